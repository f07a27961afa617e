"""One output file that is rewritten, by an agent that may die and be followed by another: with writes that land late.

A write is answered; answered, and lands once more; or given up, and lands later. Each version of the file is one number
higher than the one before. Objects are kept by name: the plain name (0, 0), and `(boot + 1, n)` for later versions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

PLAIN = (0, 0)
Name = tuple[int, int]


@dataclass(frozen=True)
class Write:
    """A write that is under way. `create`: only if nothing is there."""

    name: Name
    version: int
    create: bool


@dataclass(frozen=True)
class State:
    objects: frozenset[tuple[Name, int]] = frozenset()
    # The newest version of the file, and the newest whose write was answered.
    version: int = 0
    durable: int = 0
    boot: int = 0
    number: int = 0
    begun: bool = False
    # The plain name is to follow the version that was just written.
    mirrors: bool = False
    late: frozenset[Write] = frozenset()
    late_deletes: frozenset[Name] = frozenset()
    lateness: int = 2


@dataclass(frozen=True)
class Rules:
    """Each can be left out, to see what it is for."""

    versions: bool = True
    boots_are_ordered: bool = True
    number_for_every_try: bool = True


class Outputs:
    VERSIONS = 3
    BOOTS = 2

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def initial(self) -> State:
        return State()

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        if state.version < self.VERSIONS:
            yield "the script writes", replace(state, version=state.version + 1)
        if state.boot + 1 < self.BOOTS:
            number = state.number if self.rules.boots_are_ordered else 0
            yield "the agent dies", replace(state, boot=state.boot + 1, number=number, mirrors=False)
        if state.mirrors:
            yield from self._send(replace(state, mirrors=False), Write(PLAIN, state.durable, create=False), state)
        elif state.durable < state.version:
            yield from self._write(state)
        for write in state.late:
            yield f"{write} lands late", _landed(replace(state, late=state.late - {write}), write)
        for name in state.late_deletes:
            left = frozenset(one for one in state.objects if one[0] != name)
            after = replace(state, objects=left, late_deletes=state.late_deletes - {name})
            yield f"the delete of {name} lands late", after

    def _write(self, state: State) -> Iterator[tuple[str, State]]:
        if not self.rules.versions or (state.boot == 0 and not state.begun):
            create = self.rules.versions
            answered = replace(state, durable=state.version, begun=True)
            write, given_up = Write(PLAIN, state.version, create), replace(state, begun=True)
        else:
            number = state.number + 1
            boot = state.boot if self.rules.boots_are_ordered else 0
            write = Write((boot + 1, number), state.version, create=False)
            answered = replace(state, durable=state.version, number=number, mirrors=True)
            given_up = replace(state, number=number) if self.rules.number_for_every_try else state
        if write.create and any(name == PLAIN for name, _ in state.objects):
            yield "the plain name is taken", given_up
            return
        yield from self._send(answered, write, given_up)

    def _send(self, answered: State, write: Write, given_up: State) -> Iterator[tuple[str, State]]:
        after = _landed(answered, write)
        lower = {name for name, _ in after.objects if PLAIN < name < write.name}
        for step, deleted in self._deleted(after, lower):
            yield f"{write} is answered{step}", deleted
            if deleted.lateness:
                again = replace(deleted, late=deleted.late | {write}, lateness=deleted.lateness - 1)
                yield f"{write} is answered{step}, and was sent twice", again
        if given_up.lateness:
            yield (
                f"{write} is given up",
                replace(given_up, late=given_up.late | {write}, lateness=given_up.lateness - 1),
            )

    def _deleted(self, state: State, lower: set[Name]) -> Iterator[tuple[str, State]]:
        left = frozenset(one for one in state.objects if one[0] not in lower)
        yield "", replace(state, objects=left)
        if lower and state.lateness:
            late = replace(state, late_deletes=state.late_deletes | lower, lateness=state.lateness - 1)
            yield ", lower ones are deleted late", late

    def broken(self, state: State) -> str | None:
        highest = max(state.objects, default=(PLAIN, 0))
        return f"version {highest[1]} counts, and {state.durable} was kept" if highest[1] < state.durable else None

    def broken_at_rest(self, state: State) -> str | None:
        return None


def _landed(state: State, write: Write) -> State:
    if write.create and any(name == write.name for name, _ in state.objects):
        return state
    rest = {one for one in state.objects if one[0] != write.name}
    return replace(state, objects=frozenset({*rest, (write.name, write.version)}))
