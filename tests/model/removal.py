"""One job's log, its removal, and governors that may stand still anywhere: with requests that land late.

The log has entry 1 (submitted), and then a claim, its launch, an end. A governor reads the log, appends, looks for the
tombstone, launches, records the launch, looks again. Between any two of these the job may end and be removed, and a
create may land after its sender has given up. The removal writes the tombstone and then deletes entry after entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

SUBMITTED, CLAIMED, LAUNCHED, ENDED = "submitted", "claimed", "launched", "ended"


@dataclass(frozen=True)
class Governor:
    """`knows` is the log as it was read last, `at` what it does next. `stale`: its claim came after the tombstone."""

    at: str = "idle"
    knows: tuple[str, ...] = ()
    stale: bool = False


@dataclass(frozen=True)
class State:
    log: tuple[str | None, ...] = (SUBMITTED,)
    tombstone: bool = False
    removing: int | None = None
    governors: tuple[Governor, ...] = ()
    machines: int = 0
    ever: int = 0
    # Creates under way: number and entry.
    late: frozenset[tuple[int, str]] = frozenset()
    lateness: int = 1
    passes: int = 3
    # The index: the records that are there (numbers of entries, and whether they tell the end), by key.
    index: frozenset[tuple[int, bool]] = frozenset()
    late_index: frozenset[tuple[int, bool]] = frozenset()
    bought_in_vain: bool = False


@dataclass(frozen=True)
class Rules:
    """Each can be left out, to see what it is for."""

    tombstone_first: bool = True
    look_before_launch: bool = True
    look_after_launch: bool = True
    numbered_index: bool = True
    removed_is_not_listed: bool = True


class Removal:
    def __init__(self, rules: Rules, governors: int = 2) -> None:
        self.rules = rules
        self.governors = governors

    def initial(self) -> State:
        return State(governors=(Governor(),) * self.governors)

    # ── What happens ──

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        for n, governor in enumerate(state.governors):
            yield from self._govern(state, n, governor)
        yield from self._person(state)
        for number, entry in state.late:
            after = replace(state, late=state.late - {(number, entry)})
            yield f"the create of {number} lands late", _created(after, number, entry)[0]
        for record in state.late_index:
            after = replace(state, late_index=state.late_index - {record})
            yield f"the record of {record[0]} lands late", self._recorded(after, record)
        if state.machines and _whole(state.log)[-1:] == (ENDED,) and not state.tombstone:
            yield "the machine is gone", replace(state, machines=0)

    def _govern(self, state: State, n: int, governor: Governor) -> Iterator[tuple[str, State]]:
        def to(after: State, **changes: object) -> State:
            changed = replace(governor, **changes)  # type: ignore[arg-type]
            return replace(after, governors=(*after.governors[:n], changed, *after.governors[n + 1 :]))

        stale = governor.stale or state.tombstone
        match governor.at:
            case "idle" if state.passes:
                log = _whole(state.log)
                if log and not (self.rules.removed_is_not_listed and state.tombstone):
                    yield f"{n} reads {len(log)}", to(replace(state, passes=state.passes - 1), at="decided", knows=log)
            case "decided":
                yield from self._decided(state, n, governor, to)
            case "appended" | "launching":
                # It carries on from what it knew: a log that was deleted in part looks like an old one.
                if self.rules.look_before_launch and state.tombstone:
                    yield f"{n} finds the tombstone", to(state, at="idle", knows=(), stale=False)
                else:
                    yield f"{n} goes on to launch", to(state, at="buying", stale=stale)
            case "buying":
                bought = replace(state, machines=1, ever=state.ever + 1)
                yield (
                    f"{n} buys a machine",
                    to(replace(bought, bought_in_vain=state.bought_in_vain or governor.stale), at="bought"),
                )
            case "bought":
                after, mine = _created(state, len(governor.knows) + 1, LAUNCHED)
                yield f"{n} records the launch: {mine}", to(after, at="settled")
            case "settled":
                given_back = self.rules.look_after_launch and (state.tombstone or ENDED in _whole(state.log))
                after = replace(state, machines=0) if given_back else state
                yield f"{n} looks again", to(after, at="indexing", knows=_carried(governor.knows, state.log))
            case "indexing":
                record = (len(governor.knows), ENDED in governor.knows)
                done = to(state, at="idle", knows=(), stale=False)
                yield f"{n} writes the record of {record[0]}", self._recorded(done, record)
                if state.lateness:
                    late = replace(done, late_index=done.late_index | {record}, lateness=state.lateness - 1)
                    yield f"the record of {record[0]} by {n} is late", late

    def _decided(self, state: State, n: int, governor: Governor, to: object) -> Iterator[tuple[str, State]]:
        assert callable(to)
        known = governor.knows
        if ENDED in known:
            yield f"{n} has nothing to decide", to(state, at="indexing")
        elif CLAIMED in known:
            closed = ENDED in _carried(known, state.log)
            yield (
                f"{n} finishes the claim",
                to(state, at="idle" if closed else "launching", knows=() if closed else known),
            )
        else:
            number = len(known) + 1
            after, mine = _created(state, number, CLAIMED)
            if mine:
                yield f"{n} claims {number}", to(after, at="appended", knows=(*known, CLAIMED), stale=state.tombstone)
            else:
                yield f"{n} loses the race for {number}", to(state, at="idle", knows=())
            if state.lateness:
                late = replace(state, late=state.late | {(number, CLAIMED)}, lateness=state.lateness - 1)
                yield f"the claim of {number} by {n} is late", to(late, at="idle", knows=())

    def _person(self, state: State) -> Iterator[tuple[str, State]]:
        log = _whole(state.log)
        if log and ENDED not in log and not state.machines and not state.tombstone:
            yield "the job is stopped, and ends", _created(state, len(log) + 1, ENDED)[0]
        if ENDED in log and not state.machines and state.removing is None:
            yield "the removal begins", replace(state, removing=1, tombstone=self.rules.tombstone_first)
        if state.removing is not None and state.removing <= len(state.log):
            gone = state.removing - 1
            rest = replace(state, log=(*state.log[:gone], None, *state.log[gone + 1 :]), removing=state.removing + 1)
            if state.removing == len(state.log):
                rest = replace(rest, index=frozenset())
            yield f"entry {state.removing} is deleted", rest

    def _recorded(self, state: State, record: tuple[int, bool]) -> State:
        index = state.index if self.rules.numbered_index else frozenset()
        return replace(state, index=frozenset({*(one for one in index if one[0] != record[0]), record}))

    # ── What must hold ──

    def broken(self, state: State) -> str | None:
        return "a machine is bought for a job that was removed before its claim" if state.bought_in_vain else None

    def broken_at_rest(self, state: State) -> str | None:
        removed = state.removing is not None
        if removed and state.machines:
            return "a machine of a removed job is left"
        listed = max(state.index, default=None) if self.rules.numbered_index else next(iter(state.index), None)
        if removed and listed is not None and not (self.rules.removed_is_not_listed and state.tombstone):
            return "a removed job is listed again"
        if not removed and listed is not None and any(ended for _, ended in state.index) and not listed[1]:
            return "the index says that an ended job runs"
        return None


class IndexOnly(Removal):
    """Records of a job that has ended, without governors that launch: who writes last is not who knows most."""

    def initial(self) -> State:
        known = (SUBMITTED, CLAIMED), (SUBMITTED, CLAIMED, ENDED)
        governors = tuple(Governor("indexing", knows) for knows in known)
        return State((SUBMITTED, CLAIMED, ENDED), governors=governors, passes=0)

    def _person(self, state: State) -> Iterator[tuple[str, State]]:
        yield from ()

    def broken_at_rest(self, state: State) -> str | None:
        newest = max(state.index, default=None) if self.rules.numbered_index else next(iter(state.index), None)
        if state.removing is None and newest is not None and not newest[1]:
            return "the index says that an ended job runs"
        return super().broken_at_rest(state)


def _whole(log: tuple[str | None, ...]) -> tuple[str, ...]:
    """What a reader finds from number 1 on."""
    found: list[str] = []
    for entry in log:
        if entry is None:
            break
        found.append(entry)
    return tuple(found)


def _carried(known: tuple[str, ...], log: tuple[str | None, ...]) -> tuple[str, ...]:
    """What a reader knows that carries on from a state."""
    found = list(known)
    while len(found) < len(log) and (entry := log[len(found)]) is not None:
        found.append(entry)
    return tuple(found)


def _created(state: State, number: int, entry: str) -> tuple[State, bool]:
    """Create-if-absent. It does not remember what was deleted."""
    log = [*state.log, *[None] * (number - len(state.log))]
    if log[number - 1] is not None:
        return state, False
    log[number - 1] = entry
    return replace(state, log=tuple(log)), True
