"""Something that jobs share, submissions that rely on it and collectors that delete it: with requests that land late.

A submission takes the first generation that is not given up, sends it if it is not there, writes its spec and looks for
the mark. A collector finds a generation that no spec names, gives it up, reads the specs anew and deletes it. Jobs are
removed. Age plays no part: a collector may take what was just sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

GENERATIONS = 3


@dataclass(frozen=True, order=True)
class Actor:
    """A submission or a collector: what it does next, and with which generation."""

    at: str = "idle"
    generation: int = 0


@dataclass(frozen=True)
class State:
    data: frozenset[int] = frozenset({1})
    marks: frozenset[int] = frozenset()
    submissions: tuple[Actor, ...] = (Actor(),) * 2
    collectors: tuple[Actor, ...] = (Actor(),) * 2
    # Requests under way: put, mark or delete of a generation.
    late: frozenset[tuple[str, int]] = frozenset()
    lateness: int = 1
    passes: int = 2


@dataclass(frozen=True)
class Rules:
    """Each can be left out, to see what it is for."""

    generations: bool = True
    specs_are_read_again: bool = True
    mark_is_looked_for: bool = True
    marks_stay: bool = True


class Collection:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def initial(self) -> State:
        return State()

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        for n, actor in enumerate(state.submissions):
            yield from self._submit(state, n, actor)
        for n, actor in enumerate(state.collectors):
            yield from self._collect(state, n, actor)
        for what, generation in state.late:
            after = _landed(replace(state, late=state.late - {(what, generation)}), what, generation)
            yield f"the {what} of {generation} lands late", after

    def _submit(self, state: State, n: int, me: Actor) -> Iterator[tuple[str, State]]:
        def to(after: State, at: str, generation: int = me.generation) -> State:
            # Sorted: which of them is which makes no difference.
            actors = (*after.submissions[:n], Actor(at, generation), *after.submissions[n + 1 :])
            return replace(after, submissions=tuple(sorted(actors)))

        match me.at:
            case "idle":
                free = [g for g in range(1, GENERATIONS + 1) if g not in state.marks or not self.rules.generations]
                if free:
                    yield f"submission {n} takes {free[0]}", to(state, "sends", free[0])
            case "sends" if me.generation in state.data:
                yield f"submission {n} finds it", to(state, "names")
            case "sends":
                for step, after in _sent(to(state, "names"), to(state, "gave up"), "put", me.generation):
                    yield f"submission {n}: {step}", after
            case "names":
                yield f"submission {n} writes its spec", to(state, "looks")
            case "looks":
                given_up = me.generation in state.marks
                if not self.rules.generations:
                    # The second look of old: what is gone is sent again under the same name.
                    given_up = me.generation not in state.data
                if given_up and self.rules.mark_is_looked_for:
                    yield f"submission {n} starts over", to(state, "idle")
                else:
                    yield f"submission {n} is done", to(state, "submitted")
            case "submitted":
                yield f"job {n} is removed", to(state, "removed")

    def _collect(self, state: State, n: int, me: Actor) -> Iterator[tuple[str, State]]:
        def to(after: State, at: str, generation: int = me.generation) -> State:
            return replace(after, collectors=(*after.collectors[:n], Actor(at, generation), *after.collectors[n + 1 :]))

        named = {job.generation for job in state.submissions if job.at in ("looks", "submitted")}
        match me.at:
            case "idle" if state.passes:
                for generation in state.data - named:
                    begun = replace(state, passes=state.passes - 1)
                    yield f"collector {n} finds {generation} unneeded", to(begun, "gives up", generation)
            case "gives up":
                for step, after in _sent(to(state, "reads"), to(state, "idle"), "mark", me.generation):
                    yield f"collector {n}: {step}", after
            case "reads":
                needed = self.rules.specs_are_read_again and me.generation in named
                yield f"collector {n} reads again: {needed}", to(state, "idle" if needed else "deletes")
            case "deletes":
                gone = to(state, "idle")
                if not self.rules.marks_stay:
                    gone = replace(gone, marks=gone.marks - {me.generation})
                for step, after in _sent(gone, to(state, "idle"), "delete", me.generation):
                    yield f"collector {n}: {step}", after

    def broken(self, state: State) -> str | None:
        lost = [
            job.generation for job in state.submissions if job.at == "submitted" and job.generation not in state.data
        ]
        return f"a job relies on {lost[0]}, which was deleted" if lost else None

    def broken_at_rest(self, state: State) -> str | None:
        return None


def _sent(answered: State, given_up: State, what: str, generation: int) -> Iterator[tuple[str, State]]:
    after = _landed(answered, what, generation)
    yield f"{what} of {generation}", after
    if after.lateness:
        request = (what, generation)
        yield f"{what} of {generation}, twice", replace(after, late=after.late | {request}, lateness=after.lateness - 1)
        late = replace(given_up, late=given_up.late | {request}, lateness=given_up.lateness - 1)
        yield f"{what} of {generation} is given up", late


def _landed(state: State, what: str, generation: int) -> State:
    match what:
        case "put":
            return replace(state, data=state.data | {generation})
        case "mark":
            return replace(state, marks=state.marks | {generation})
        case _:
            return replace(state, data=state.data - {generation})
