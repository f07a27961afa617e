"""Decide which units of the folder are whole when the training has ended.

A unit that was quiet is whole. A unit that was being saved needs evidence: that its files end where they should, and
that all files of the save exist. Without it the unit stays as it was in the last commit: at most one save is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.agent.checkpoints.companion_units import CompanionUnits
from stoker.agent.checkpoints.file_numbers import role_of
from stoker.agent.checkpoints.folder_snapshot import File, Files, top_folder_of
from stoker.agent.checkpoints.format_check import FormatCheck
from stoker.agent.checkpoints.save_shape import SaveShapes
from stoker.agent.checkpoints.unreadable_files import printable
from stoker.agent.checkpoints.write_history import PreSignalState, WriteHistory

# The rest of a save is waited for at least so many times as long as the longest pause in the save before, to a limit.
_PAUSES = 4
_MAX_PATIENCE_S = 1800.0
# A file of less than this share of the size in the last commit was not written to its end, where that is in doubt.
_SHORT_SHARE = 0.9
# The most characters of a path that a sentence shows.
_SHOWN_CHARS = 120


@dataclass(frozen=True)
class TrainingEnd:
    """How the training ended, as far as it matters for its files.

    `finished`: by itself, with exit code 0. `left`: it was signalled to end, and every process exited by itself within
    the grace. `died`: killed, crashed, or lost with its machine.
    """

    how: Literal["finished", "left", "died"] = "finished"
    # Files that were open for writing when the last processes were killed or frozen.
    open: frozenset[str] = frozenset()
    # The pid of the command's own process.
    root: int = 0
    # It was the only process.
    alone: bool = False
    # It exited with a status that means success.
    succeeded: bool = False
    # It exited with a status that means failure.
    failed: bool = False

    def exited(self, state: PreSignalState, path: str) -> bool:
        """Return True if the writer of the file is known to have exited by itself, closing the file on its way."""
        return self.succeeded and (self.alone or state.writers.get(path) == frozenset({self.root}))

    def gave_up(self, state: PreSignalState, path: str) -> bool:
        """Return True if the writer of the file is known to have failed, perhaps in the middle of it."""
        return self.failed and (self.alone or state.writers.get(path) == frozenset({self.root}))


@dataclass(frozen=True)
class UnitLeftOut:
    """A unit that is not committed as it is, with the file and the reason."""

    unit: str
    path: str
    reason: str


class SaveJudge:
    """One decision about all units. `changed` are the files that differ from the last commit, without logs.

    `committed_begun` says how often each unit had been begun in the state of the last commit, where that is known.
    """

    def __init__(
        self,
        files: Files,
        changed: Collection[str],
        history: WriteHistory,
        shapes: SaveShapes,
        companions: CompanionUnits,
        committed_begun: Mapping[str, int],
        check: Callable[[str], FormatCheck],
        logs: Collection[str],
    ) -> None:
        self._files = files
        self._changed = [path for path in changed if path in files]
        self._by_unit: dict[str, list[str]] = {}
        for path in self._changed:
            self._by_unit.setdefault(top_folder_of(path), []).append(path)
        self._history = history
        self._shapes = shapes
        self._companions = companions
        self._committed_begun = committed_begun
        self._check = check
        self._logs = logs

    def broken(self) -> dict[str, UnitLeftOut]:
        """Return the units with a changed file that is broken by its own format, or that the agent cannot read."""
        found: dict[str, UnitLeftOut] = {}
        for path in [*self._changed, *(path for path in self._logs if path in self._files)]:
            check = self._check(path)
            if check.unreadable or (check.state == "broken" and path not in self._logs):
                found.setdefault(top_folder_of(path), UnitLeftOut(top_folder_of(path), path, check.reason))
        return self._with_companions(found)

    def unfinished(self) -> set[str]:
        """Return the units whose save lacks files that earlier saves had, as long as these may still come."""
        found = {unit: left_out for unit in self._by_unit if (left_out := self._unfinished(unit)) is not None}
        return set(self._with_companions(found))

    def unproven(self, unsettled: Collection[str], shrank: Callable[[File], bool]) -> set[str]:
        """Return the units of the `unsettled` files that may be in the middle of a save.

        A unit is in doubt if files of its save are missing, or if one of its unsettled files shrank and its format does
        not prove it whole. Other unsettled files count as whole, because living processes have closed them.
        """
        units = {top_folder_of(path) for path in unsettled}
        return {
            unit
            for unit in units
            if self._find_missing(unit, self._by_unit.get(unit, [])) is not None
            or any(
                shrank(self._files[path]) and not self._is_proven(path)
                for path in unsettled
                if top_folder_of(path) == unit
            )
        }

    def _unfinished(self, unit: str) -> UnitLeftOut | None:
        changed = self._by_unit.get(unit, [])
        # An empty file was only opened: its writer may have been killed while other processes live on.
        empty = next((path for path in changed if self._is_emptied(path)), None)
        if empty is not None and self._history.may_go_on(changed):
            return UnitLeftOut(unit, empty, "it is empty, and was not in the saves before")
        pause_s = max(self._shapes.longest_pause_s(unit), self._companions.longest_pause_s(unit))
        if not self._history.may_go_on(changed, min(_PAUSES * pause_s, _MAX_PATIENCE_S)):
            return None
        if not self._shapes.knows(unit):
            return self._find_lacking_companion(unit, changed)
        if self._has_successor(unit, changed):
            return None
        rounds = {path: count for path, count in self._history.rounds.items() if top_folder_of(path) == unit}
        return self._find_missing(unit, changed, exceeded=self._shapes.exceeded(unit, rounds))

    def _is_short(self, path: str) -> bool:
        """Return True if the file is much smaller than those of its role in the last commit."""
        smallest = self._shapes.smallest(path)
        return smallest is not None and self._files[path].size < _SHORT_SHARE * smallest

    def _is_emptied(self, path: str) -> bool:
        return not self._files[path].size and self._shapes.never_empty(path)

    def being_removed(self) -> set[str]:
        """Return folders of which files vanished a moment ago while others remain, none of them written since."""
        removed_at, changed_at = self._history.removed_at, self._history.changed_at
        lately = {top_folder_of(path) for path in self._files if self._history.removed_lately(top_folder_of(path))} - {
            ""
        }
        return lately - {
            unit
            for path in self._files
            if (unit := top_folder_of(path)) in lately and changed_at[path] >= removed_at[unit]
        }

    def _has_successor(self, unit: str, changed: list[str]) -> bool:
        """Return True if the next save has begun, in another folder: then this one has all its files, even if earlier
        saves had more."""
        if not changed:
            return False
        newest_ns = max(self._files[path].signature.modified_ns for path in changed)
        later = [
            path
            for path in self._changed
            if top_folder_of(path) != unit and role_of(top_folder_of(path)) == role_of(unit)
        ]
        return any(self._files[path].signature.modified_ns > newest_ns for path in later)

    def _find_missing(self, unit: str, changed: list[str], *, exceeded: bool = False) -> UnitLeftOut | None:
        missing = self._shapes.missing(unit, [self._files[path] for path in changed], exceeded=exceeded)
        if missing is None:
            return self._find_lacking_companion(unit, changed)
        if not changed:
            return UnitLeftOut(unit, unit, "files of it were being removed")
        path = changed[0]
        if not missing:
            return UnitLeftOut(
                unit, path, "it was saved just before the end, and no earlier save shows what belongs to it"
            )
        return UnitLeftOut(unit, path, f"its save stopped before {missing} was written")

    def _find_lacking_companion(self, unit: str, changed: list[str]) -> UnitLeftOut | None:
        other = self._companions.still_to_come(unit) if changed else None
        if other is None:
            return None
        lacking = f"{other}/ was" if other else "the files beside the folders were"
        return UnitLeftOut(unit, changed[0], f"its save stopped before {lacking} written")

    def _with_companions(self, left_out: dict[str, UnitLeftOut]) -> dict[str, UnitLeftOut]:
        """Leave out the changed units that are one save with a unit that is left out."""
        found = dict(left_out)
        waiting = list(left_out.values())
        while waiting:
            one = waiting.pop()
            for other in sorted(self._companions.of(one.unit) & self._by_unit.keys() - found.keys()):
                # One that was written before the save of the other began may be of the save that was committed.
                nth = self._companions.begun()[other]
                if not self._companions.is_one_save(other, nth, one.unit, self._committed_begun.get(one.unit)):
                    reason = f"{one.path} of the same save is not whole"
                    found[other] = UnitLeftOut(other, self._by_unit[other][0], reason)
                    waiting.append(found[other])
        return found

    def at_end(self, end: TrainingEnd) -> dict[str, UnitLeftOut]:
        """Return the units that cannot be committed as they are."""
        left_out = self.broken()
        for path in self._changed:
            if path in end.open:
                left_out.setdefault(
                    top_folder_of(path),
                    UnitLeftOut(top_folder_of(path), path, "it was being written when the training ended"),
                )
        if end.how == "finished":
            # Files that the training closed on its way out are whole, unless another thread was writing them.
            for path in self._history.writer_died_holding().intersection(self._changed):
                if self._is_short(path) and not self._is_proven(path):
                    unit = top_folder_of(path)
                    left_out.setdefault(unit, UnitLeftOut(unit, path, "it was being written when the training ended"))
        else:
            state = self._history.pre_signal
            for unit in sorted(self._touched() - left_out.keys()):
                found = self._judge_left(unit, state, end) if end.how == "left" and state else self._judge_died(unit)
                if found is not None:
                    left_out[unit] = found
        return self._with_later(self._with_companions(left_out))

    def _touched(self) -> set[str]:
        present = {top_folder_of(path) for path in self._files}
        return {top_folder_of(path) for path in self._changed} | {
            unit for unit in present if self._history.removed_lately(unit)
        }

    def _with_later(self, left_out: dict[str, UnitLeftOut]) -> dict[str, UnitLeftOut]:
        """Leave out everything that was written after a save that is left out had begun: it may refer to that save."""
        unsettled = self._history.unsettled(self._logs) | self._history.maybe_cut_off()
        begun = [
            self._files[path].signature.modified_ns
            for path in self._changed
            if top_folder_of(path) in left_out and path in unsettled
        ]
        for path in self._changed if begun else ():
            if self._files[path].signature.modified_ns > min(begun):
                reason = f"it was written after {next(iter(left_out.values())).path}, which is not whole"
                left_out.setdefault(top_folder_of(path), UnitLeftOut(top_folder_of(path), path, reason))
        return left_out

    def _judge_died(self, unit: str) -> UnitLeftOut | None:
        unsettled = self._history.unsettled(self._logs) | self._history.maybe_cut_off()
        changed = self._by_unit.get(unit, [])
        doubtful = [path for path in changed if path in unsettled]
        if not doubtful and not self._history.removed_lately(unit):
            # The unit is quiet, but a program that fails between two files of a save may take a while to end.
            return self._unfinished(unit)
        for path in sorted(doubtful, key=lambda path: not self._history.last_seen_open(path)):
            if self._is_proven(path) or self._history.closed_before_signal(path):
                continue
            if path in self._history.maybe_lost:
                return UnitLeftOut(unit, path, "it was written just before its machine crashed, and bytes may be lost")
            reason = "being written when" if self._history.last_seen_open(path) else "written just before"
            return UnitLeftOut(unit, path, f"it was {reason} the training ended")
        return self._find_missing(unit, changed)

    def _judge_left(self, unit: str, state: PreSignalState, end: TrainingEnd) -> UnitLeftOut | None:
        """Judge a unit of a training that was signalled and exited by itself: a save that began after the signal is
        complete."""
        changed = self._by_unit.get(unit, [])
        begun = {path for path in changed if state.begun_since(path, self._files[path].signature)}
        if any(not state.by_survivor(path) for path in begun) or (not begun and not state.survives):
            return self._judge_died(unit)
        writer_died_holding = self._history.writer_died_holding()
        for path in changed:
            cut_off = path in state.open if path not in begun else path in writer_died_holding
            cut_off &= path not in begun or not end.exited(state, path) or self._is_short(path)
            # Opened between the last scan and the signal: the program exited before it wrote anything.
            cut_off |= self._is_emptied(path)
            if (cut_off or (path in begun and end.gave_up(state, path))) and not self._is_proven(path):
                return UnitLeftOut(unit, path, "it was being written when the training ended")
        under_way = {path for path in changed if path in state.unsettled} - begun
        if not begun and unit not in state.unsettled_units:
            return self._unfinished(unit)
        if not under_way and begun:
            # No file remains of a save that the signal may have cut short.
            return self._find_missing(unit, changed) if end.failed and self._shapes.knows(unit) else None
        if begun and not self._shapes.knows(unit) and all(map(self._is_proven, under_way)):
            return None
        return self._find_missing(unit, changed)

    def _is_proven(self, path: str) -> bool:
        """Return True if there is positive evidence that the file was written to its end."""
        if self._files[path].link is not None:
            return True
        check = self._check(path)
        if path in self._history.maybe_lost:
            # Lost bytes read as zeros, anywhere in the file: its end and its size prove nothing.
            return check.state == "whole" and check.reads_all
        if check.state == "whole":
            return True
        if check.form:
            return self._shapes.same_form(path, check.form)
        grown = self._history.grew(path) and self._shapes.same_size(path, self._files[path].size)
        return grown and not self._history.last_seen_open(path)


def describe(left_out: Mapping[str, UnitLeftOut]) -> str:
    """Describe in one sentence which file is not committed, and why."""
    first = next(iter(left_out.values()))
    more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
    return f"{printable(first.path, _SHOWN_CHARS)}{more} is not part of the checkpoint: {printable(first.reason)}"
