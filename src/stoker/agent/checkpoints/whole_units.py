"""Decide which units of the folder are whole when the training has ended.

A unit that was quiet is whole. One that was being saved needs evidence: that its files end where they should, and that
all files of the save are there. Without it the unit stays as it was in the last commit: at most one save is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.agent.checkpoints.file_numbers import role_of
from stoker.agent.checkpoints.folder_snapshot import File, Files, unit_of
from stoker.agent.checkpoints.format_check import FormatCheck
from stoker.agent.checkpoints.save_shape import SaveShapes
from stoker.agent.checkpoints.write_history import Mark, WriteHistory


@dataclass(frozen=True)
class TrainingEnd:
    """How the training ended, as far as it says something about its files.

    `finished`: by itself, with exit code 0. `left`: it was told to, and every process went by itself within the grace.
    `died`: killed, crashed, or taken with its machine.
    """

    how: Literal["finished", "left", "died"] = "finished"
    # Files that were open for writing when the last processes were killed or frozen.
    open: frozenset[str] = frozenset()
    # The command's own process, whether it was the only one, and how it ended: by exit(3) with a status that says
    # success, or with one that says failure.
    root: int = 0
    alone: bool = False
    succeeded: bool = False
    failed: bool = False

    def exited(self, mark: Mark, path: str) -> bool:
        """Whether the writer of a file is known to have ended by itself, closing it on its way."""
        return self.succeeded and (self.alone or mark.writers.get(path) == frozenset({self.root}))

    def gave_up(self, mark: Mark, path: str) -> bool:
        """Whether the writer of a file is known to have failed, perhaps in the middle of it."""
        return self.failed and (self.alone or mark.writers.get(path) == frozenset({self.root}))


@dataclass(frozen=True)
class Held:
    """Why a unit is not committed as it is."""

    unit: str
    path: str
    reason: str


class UnitJudge:
    """One decision: `changed` are the files that differ from the last commit, logs excluded."""

    def __init__(
        self,
        files: Files,
        changed: Collection[str],
        history: WriteHistory,
        shapes: SaveShapes,
        check: Callable[[str], FormatCheck],
        logs: Collection[str],
    ) -> None:
        self._files = files
        self._changed = [path for path in changed if path in files]
        self._history = history
        self._shapes = shapes
        self._check = check
        self._logs = logs

    def broken(self) -> dict[str, Held]:
        """Units with a changed file that its own format calls broken, by unit."""
        found: dict[str, Held] = {}
        for path in self._changed:
            check = self._check(path)
            if check.state == "broken":
                found.setdefault(unit_of(path), Held(unit_of(path), path, check.reason))
        return found

    def unfinished(self) -> set[str]:
        """Units whose save lacks files that the saves before had, as long as these may still come."""
        units = {unit_of(path) for path in self._changed}
        return {unit for unit in units if self._unfinished(unit) is not None}

    def unproven(self, hot: Collection[str], shrank: Callable[[File], bool]) -> set[str]:
        """Units of files that moved just now, and of which nothing shows that they are whole between two saves.

        The files were closed by processes that live: only one that is smaller than in the save before is doubtful.
        """
        units = {unit_of(path) for path in hot}
        return {
            unit
            for unit in units
            if self._incomplete(unit, [path for path in self._changed if unit_of(path) == unit]) is not None
            or any(shrank(self._files[path]) and not self._proven(path) for path in hot if unit_of(path) == unit)
        }

    def _unfinished(self, unit: str) -> Held | None:
        changed = [path for path in self._changed if unit_of(path) == unit]
        # Opened, and no more: its writer may have been killed, while others of the training live on.
        empty = next((path for path in changed if self._emptied(path)), None)
        if empty is not None and self._history.may_go_on(changed):
            return Held(unit, empty, "it is empty, and was not in the saves before")
        waits = self._shapes.knows(unit) and self._history.may_go_on(changed) and not self._followed(unit, changed)
        return self._incomplete(unit, changed) if waits else None

    def _emptied(self, path: str) -> bool:
        return not self._files[path].size and self._shapes.never_empty(path)

    def being_removed(self) -> set[str]:
        """Folders of which files vanished a moment ago and others lie there still, none of them written since."""
        removed_at, changed_at = self._history.removed_at, self._history.changed_at
        lately = {unit_of(path) for path in self._files if self._history.removed_lately(unit_of(path))} - {""}
        return lately - {
            unit for path in self._files if (unit := unit_of(path)) in lately and changed_at[path] >= removed_at[unit]
        }

    def _followed(self, unit: str, changed: list[str]) -> bool:
        """Whether the next save has begun: then this one has all its files, even if earlier saves had others, too.

        A program may save in another way after it has resumed. Lightning writes `last-v1.ckpt` beside the `last.ckpt`
        that it resumed from.
        """
        rounds = {path: count for path, count in self._history.rounds.items() if unit_of(path) == unit}
        if self._shapes.exceeded(unit, rounds) or not changed:
            return bool(changed)
        newest_ns = max(self._files[path].signature.modified_ns for path in changed)
        later = [path for path in self._changed if unit_of(path) != unit and role_of(unit_of(path)) == role_of(unit)]
        return any(self._files[path].signature.modified_ns > newest_ns for path in later)

    def _incomplete(self, unit: str, changed: list[str]) -> Held | None:
        missing = self._shapes.missing(unit, [self._files[path] for path in changed])
        if missing is None:
            return None
        if not changed:
            return Held(unit, unit, "files of it were being removed")
        path = changed[0]
        if not missing:
            return Held(unit, path, "it was saved just before the end, and no earlier save shows what belongs to it")
        return Held(unit, path, f"its save stopped before {missing} was written")

    def at_end(self, end: TrainingEnd) -> dict[str, Held]:
        """The units that cannot be committed as they are, by unit."""
        held = self.broken()
        for path in self._changed:
            if path in end.open:
                held.setdefault(
                    unit_of(path), Held(unit_of(path), path, "it was being written when the training ended")
                )
        if end.how != "finished":
            mark = self._history.mark
            for unit in sorted(self._touched() - held.keys()):
                found = self._left(unit, mark, end) if end.how == "left" and mark else self._died(unit)
                if found is not None:
                    held[unit] = found
        return self._with_later(held)

    def _touched(self) -> set[str]:
        present = {unit_of(path) for path in self._files}
        return {unit_of(path) for path in self._changed} | {
            unit for unit in present if self._history.removed_lately(unit)
        }

    def _with_later(self, held: dict[str, Held]) -> dict[str, Held]:
        """Whatever was written after a save that is held back had begun may refer to it: it is held back with it."""
        hot = self._history.hot(self._logs) | self._history.shaken()
        begun = [
            self._files[path].signature.modified_ns for path in self._changed if unit_of(path) in held and path in hot
        ]
        for path in self._changed if begun else ():
            if self._files[path].signature.modified_ns > min(begun):
                reason = f"it was written after {next(iter(held.values())).path}, which is not whole"
                held.setdefault(unit_of(path), Held(unit_of(path), path, reason))
        return held

    def _died(self, unit: str) -> Held | None:
        hot = self._history.hot(self._logs) | self._history.shaken()
        changed = [path for path in self._changed if unit_of(path) == unit]
        doubtful = [path for path in changed if path in hot]
        if not doubtful and not self._history.removed_lately(unit):
            # Quiet: but a program that fails between two files of a save may take a while to end.
            return self._unfinished(unit)
        for path in sorted(doubtful, key=lambda path: not self._history.last_seen_open(path)):
            if not self._proven(path) and not self._history.closed_before_told(path):
                reason = "being written when" if self._history.last_seen_open(path) else "written just before"
                return Held(unit, path, f"it was {reason} the training ended")
        return self._incomplete(unit, changed)

    def _left(self, unit: str, mark: Mark, end: TrainingEnd) -> Held | None:
        """The training was told, and went by itself: a save that began after that ran to its end."""
        changed = [path for path in self._changed if unit_of(path) == unit]
        begun = {path for path in changed if mark.begun_since(path, self._files[path].signature)}
        if any(not mark.by_survivor(path) for path in begun) or (not begun and not mark.survives):
            return self._died(unit)
        died_open = self._history.died_open()
        for path in changed:
            cut_off = path in mark.open if path not in begun else path in died_open and not end.exited(mark, path)
            # Opened between the last look and the signal: the program has left before it wrote anything.
            cut_off |= self._emptied(path)
            if (cut_off or (path in begun and end.gave_up(mark, path))) and not self._proven(path):
                return Held(unit, path, "it was being written when the training ended")
        under_way = {path for path in changed if path in mark.hot} - begun
        if not begun and unit not in mark.hot_units:
            return self._unfinished(unit)
        if not under_way and begun:
            # Nothing is left of a save that the signal may have cut short.
            return self._incomplete(unit, changed) if end.failed and self._shapes.knows(unit) and end.alone else None
        if begun and not self._shapes.knows(unit) and all(map(self._proven, under_way)):
            return None
        return self._incomplete(unit, changed)

    def _proven(self, path: str) -> bool:
        """Whether there is positive evidence that the file was written to its end."""
        if self._files[path].link is not None:
            return True
        check = self._check(path)
        if check.state == "whole":
            return True
        if check.form:
            return self._shapes.same_form(path, check.form)
        grown = self._history.grew(path) and self._shapes.same_size(path, self._files[path].size)
        return grown and not self._history.last_seen_open(path)


def describe(held: Mapping[str, Held]) -> str:
    """One sentence for the person: which file, and why."""
    first = next(iter(held.values()))
    more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
    return f"{first.path}{more} is not part of the checkpoint: {first.reason}"
