"""A job that has ended, a person who removes it and one who resumes it: with writes that land late.

The removal appends `removal`, writes the tombstone and deletes entry after entry. The resume appends `resumed` and
looks for the tombstone. Either may be given up after any of its writes, which lands later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

ENDED, REMOVAL, RESUMED = "ended", "removal", "resumed"
TOMBSTONE = 0


@dataclass(frozen=True)
class State:
    log: tuple[str | None, ...] = (ENDED,)
    tombstone: bool = False
    remover: str = "idle"
    resumer: str = "idle"
    # How many entries each has read.
    remover_knows: int = 0
    resumer_knows: int = 0
    # Creates under way: the entry's number and kind, or TOMBSTONE.
    late: frozenset[tuple[int, str]] = frozenset()
    lateness: int = 2
    removals: int = 2


@dataclass(frozen=True)
class Rules:
    """Each can be left out, to see what it is for."""

    removal_in_log: bool = True
    resume_looks_again: bool = True


class Tombstone:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def initial(self) -> State:
        return State()

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._remove(state)
        yield from self._resume(state)
        for number, what in state.late:
            after = replace(state, late=state.late - {(number, what)})
            yield f"the create of {what} lands late", _created(after, number, what)[0]

    def _remove(self, state: State) -> Iterator[tuple[str, State]]:
        match state.remover:
            case "idle" if state.removals:
                log = _whole(state.log)
                begun = replace(state, removals=state.removals - 1, remover_knows=len(log))
                if log and log[-1] != RESUMED and not state.tombstone:
                    asked = REMOVAL in log or not self.rules.removal_in_log
                    yield "the remover reads", replace(begun, remover="marks" if asked else "appends")
            case "appends":
                number = state.remover_knows + 1
                after, mine = _created(state, number, REMOVAL)
                yield f"the remover appends {number}: {mine}", replace(after, remover="marks" if mine else "idle")
                yield from self._given_up(replace(state, remover="idle"), number, REMOVAL)
            case "marks":
                yield "the remover writes the tombstone", replace(state, tombstone=True, remover="deletes")
                yield from self._given_up(replace(state, remover="idle"), TOMBSTONE, "the tombstone")
            case "deletes":
                left = [n for n, entry in enumerate(state.log) if entry is not None]
                if left:
                    log = (*state.log[: left[0]], None, *state.log[left[0] + 1 :])
                    yield f"entry {left[0] + 1} is deleted", replace(state, log=log)

    def _resume(self, state: State) -> Iterator[tuple[str, State]]:
        match state.resumer:
            case "idle":
                log = _whole(state.log)
                if log and log[-1] == ENDED and not state.tombstone:
                    yield "the resumer reads", replace(state, resumer="appends", resumer_knows=len(log))
            case "appends":
                number = state.resumer_knows + 1
                after, mine = _created(state, number, RESUMED)
                looks = "looks" if self.rules.resume_looks_again else "resumed"
                yield f"the resumer appends {number}: {mine}", replace(after, resumer=looks if mine else "idle")
                yield from self._given_up(replace(state, resumer="gave up"), number, RESUMED)
            case "looks":
                found = "refused" if state.tombstone else "resumed"
                yield f"the resumer looks again: {found}", replace(state, resumer=found)

    def _given_up(self, state: State, number: int, what: str) -> Iterator[tuple[str, State]]:
        if state.lateness:
            late = state.late | {(number, what)}
            yield f"the create of {what} is given up", replace(state, late=late, lateness=state.lateness - 1)

    def broken(self, state: State) -> str | None:
        return "a job that was resumed counts as removed" if state.resumer == "resumed" and state.tombstone else None

    def broken_at_rest(self, state: State) -> str | None:
        return None


def _whole(log: tuple[str | None, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for entry in log:
        if entry is None:
            break
        found.append(entry)
    return tuple(found)


def _created(state: State, number: int, what: str) -> tuple[State, bool]:
    """Create-if-absent. It does not remember what was deleted."""
    if number == TOMBSTONE:
        return replace(state, tombstone=True), True
    log = [*state.log, *[None] * (number - len(state.log))]
    if log[number - 1] is not None:
        return state, False
    log[number - 1] = what
    return replace(state, log=tuple(log)), True
