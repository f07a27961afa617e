"""Find out from the order and the pauses of writes where one save ends and the next begins.

Writes come in bursts. A burst is a whole save if the next one begins with the same file: the program has come round.
That alone would be misled by a file that is written twice in a save, or by files that are written with pauses. So four
conditions are added:

- the burst writes the same files as a burst before or after it,
- none of these files is much smaller than before,
- its first file is the one that the program wrote first of all,
- the pause after it is as long as the longest pauses usually are.

Where any of this is in doubt, nothing is concluded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stoker.agent.checkpoints.file_numbers import hide_generations, role_of
from stoker.agent.checkpoints.folder_events import FolderEvent
from stoker.agent.checkpoints.folder_snapshot import top_folder_of

# Writes that are closer together than this belong to one burst.
PAUSE_S = 0.05
# Pauses between saves vary: a pause of at least this share of the usual one ends a burst.
_PAUSE_SHARE = 0.5
# A file that is smaller than this share of its earlier size may be cut off.
_SIZE_SHARE = 0.9
# After this many pauses, each too short to end a burst, the program is taken to have become faster.
_FASTER = 3
# A burst that only the next one repeats is accepted if the pause between them was at least this long.
_SURE_S = 4 * PAUSE_S
_REMEMBERED = 8
# After a misfit, the run of fitting bursts must become longer than this many times the longest run that a misfit ever
# ended.
_PATIENCE = 4
# No save has more parts than this that are numbered upwards.
_MAX_PARTS = 16
_NUMBER = re.compile(r"[0-9]+")


class Sized(Protocol):
    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Burst:
    """Files that were written together, by role. `before`: their sizes in the burst before, where known.

    `first` is the file that was written first among those that still exist; `begun` is the first of all, which may be
    the journal of a database.
    """

    first: str
    begun: str
    sizes: Mapping[str, int]
    before: Mapping[str, int]
    ended_at: float
    # Nothing may be concluded from a suspect burst.
    suspect: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.sizes)

    @property
    def kind(self) -> _BurstKind:
        return self.first, self.names


_BurstKind = tuple[str, frozenset[str]]


@dataclass
class _BurstUnderWay:
    """The writes since the last burst ended: paths in the order of their first write, and paths removed since."""

    order: dict[str, None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    noted_at: float = 0.0
    short_pauses: int = 0

    def first(self) -> str | None:
        """Return the path that was written first among those that still exist."""
        return next((path for path in self.order if path not in self.gone), None)

    def add(self, event: FolderEvent) -> None:
        if event.source is not None:
            self._rename(event.source, event.path)
        self.order.setdefault(event.path)
        (self.gone.add if event.gone else self.gone.discard)(event.path)

    def _rename(self, source: str, path: str) -> None:
        self.order = {
            path + old[len(source) :] if old == source or old.startswith(f"{source}/") else old: None
            for old in self.order
        }
        self.gone.discard(source)


class _BurstFit:
    """Compares the file sets of bursts: whether a program writes the same files in every save."""

    def __init__(self) -> None:
        # The file sets of saves that were shown to be whole.
        self.whole: set[frozenset[str]] = set()
        # Files that only some saves write.
        self._optional: frozenset[str] | None = None
        # The present run of fitting bursts, and the longest run that a misfit ended; None: no burst was a misfit.
        self._fitting = 0
        self._longest_run: int | None = None

    def fits(self, names: frozenset[str], previous: frozenset[str] | None) -> bool:
        """Return True if bursts have been alike for long enough since one was different.

        `previous` are the files of the burst before.
        """
        if self._is_mixed(names, previous):
            self._longest_run = max(self._longest_run or 1, self._fitting)
            self._fitting = 0
        else:
            self._fitting += 1
        return self._longest_run is None or self._fitting > _PATIENCE * self._longest_run

    def _is_mixed(self, names: frozenset[str], previous: frozenset[str] | None) -> bool:
        """Return True if files are written at times of their own: which of them belong together is unknown then.

        Files that only some saves write are accepted if they are always the same ones.
        """
        if not self.whole:
            return False
        always = frozenset.intersection(*self.whole)
        optional = names - always
        if optional and always <= names and self._optional is None:
            self._optional = optional
        comparable = always <= names or names < always
        if comparable:
            return bool(optional) and optional != self._optional
        # A program that had to wait in the middle of a save writes the rest later.
        return previous is None or previous | names not in self.whole

    def is_known(self, names: frozenset[str]) -> bool:
        return any(one <= names or names < one for one in self.whole)

    def note_whole(self, names: frozenset[str]) -> None:
        if len(self.whole) < _REMEMBERED:
            self.whole.add(names)


class SaveBursts:
    """The bursts of one folder. `max_quiet_s` bounds the pause that is waited for. Not thread-safe."""

    def __init__(self, sizes: Mapping[str, int], max_quiet_s: float) -> None:
        """`sizes` are those of the files that exist in the folder, by path."""
        self._max_quiet_s = max_quiet_s
        self.last: Burst | None = None
        self._previous: Burst | None = None
        self._under_way = _BurstUnderWay()
        self._fit = _BurstFit()
        # The last known size of each file, by role.
        self._known_sizes: dict[str, int] = {hide_generations(path, _MAX_PARTS): size for path, size in sizes.items()}
        # The order in which roles were first seen.
        self._first_seen: dict[str, int] = {}
        self._counters: dict[str, _Counter] = {}
        # Pauses after bursts of each kind, and the pause before the burst under way.
        self._gaps: dict[_BurstKind, deque[float]] = {}
        self._pause_s = 0.0

    @property
    def quiet_s(self) -> float:
        """How long nothing has to be written for a burst to have ended. A single pause is no basis for this."""
        if sum(map(len, self._gaps.values())) < 2:
            return PAUSE_S
        usual = max(map(_usual, self._gaps.values()), default=0.0)
        return min(max(PAUSE_S, _PAUSE_SHARE * usual), self._max_quiet_s)

    def note(self, events: Iterable[FolderEvent], now: float) -> None:
        """Add writes to the burst under way."""
        events = list(events)
        if not events:
            return
        burst = self._under_way
        if not burst.order and self.last is not None:
            self._pause_s = now - self.last.ended_at
            self._gaps.setdefault(self.last.kind, deque(maxlen=_REMEMBERED)).append(self._pause_s)
        elif burst.order and now - burst.noted_at >= PAUSE_S:
            burst.short_pauses += 1
            if burst.short_pauses >= _FASTER:
                self._gaps.clear()
        burst.noted_at = now
        for event in events:
            burst.add(event)

    def close(
        self, files: Mapping[str, Sized], changed: Collection[str], is_whole: Callable[[str], bool], *, suspect: bool
    ) -> bool:
        """End the burst, which left these files. Return False if it wrote none: then it is ignored.

        `changed` are the files that look different from before. `is_whole` says whether a file is complete by its
        format. `suspect`: a process that may have written has ended.
        """
        ended, self._under_way = self._under_way, _BurstUnderWay()
        paths = [path for path in ended.order if path in files]
        paths += [path for path in changed if path in files and path not in ended.order]
        if not paths:
            return False
        first = ended.first() or ""
        self._count(first)
        sizes, before = self._sizes(paths, files, is_whole)
        present = {self._name(path) for path in files}
        name = self._name(first)
        doubtful = suspect or self._is_removing(ended, paths, files, present) or self._is_misordered(name, sizes)
        previous = self.last.names if self.last is not None else None
        # Only bursts that are not in doubt for another reason count for the fit.
        doubtful = doubtful or not self._fit.fits(frozenset(sizes), previous)
        begun = self._name(next(iter(ended.order), ""))
        burst = Burst(name, begun, sizes, before, ended.noted_at, doubtful)
        self._known_sizes = {name: size for name, size in self._known_sizes.items() if name in present} | sizes
        self._previous, self.last = self.last, burst
        self._gaps = dict(list(self._gaps.items())[-_REMEMBERED:])
        return True

    def _sizes(
        self, paths: Iterable[str], files: Mapping[str, Sized], is_whole: Callable[[str], bool]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return the sizes of the written files by role, now and before the burst."""
        sizes: dict[str, int] = {}
        before: dict[str, int] = {}
        for path in paths:
            name = self._name(path)
            self._first_seen.setdefault(name, len(self._first_seen))
            sizes[name] = max(sizes.get(name, 0), files[path].size)
            if name in self._known_sizes:
                shrank = files[path].size < _SIZE_SHARE * self._known_sizes[name]
                before[name] = 0 if shrank and is_whole(path) else self._known_sizes[name]
        return sizes, before

    def _is_removing(
        self, burst: _BurstUnderWay, paths: Iterable[str], files: Mapping[str, Sized], present: Collection[str]
    ) -> bool:
        # A save may be removed before the next one is written.
        if any(name not in present for name in self._known_sizes):
            return True
        # A folder that was not written, and of which a part is gone, is being removed.
        units = {top_folder_of(path) for path in burst.gone} - {"", *map(top_folder_of, paths)}
        return any(top_folder_of(path) in units for path in files)

    def _is_misordered(self, first: str, sizes: Mapping[str, int]) -> bool:
        """Return True if the burst wrote a file that the program had written before `first` when it began."""
        return first in sizes and any(self._first_seen[other] < self._first_seen[first] for other in sizes)

    def has_come_round(self) -> bool:
        """Return True if the burst under way begins like the last one, and so shows that this was a whole save."""
        if self.last is None or not self._under_way.order:
            return False
        first = self._under_way.first()
        same = first is not None and self._name(first) == self.last.first
        if not same and self._name(next(iter(self._under_way.order))) != self.last.begun:
            return False
        return self._is_whole(self.last, self._previous, None)

    def was_whole(self) -> bool:
        """Return True if the last burst shows that the one before it was a whole save."""
        last, before = self.last, self._previous
        if last is None or before is None or last.first != before.first or self._pause_s < _SURE_S:
            return False
        return self._is_whole(before, None, last)

    def _is_whole(self, burst: Burst, before: Burst | None, after: Burst | None) -> bool:
        beside = [other.names for other in (before, after) if other is not None]
        known = burst.names in beside or self._fit.is_known(burst.names)
        whole = known and not burst.suspect and all(self._reaches(name, burst, after) for name in burst.sizes)
        if whole:
            self._fit.note_whole(burst.names)
        return whole

    def _reaches(self, name: str, burst: Burst, after: Burst | None) -> bool:
        """Return True unless the file is known to be larger before or after the burst."""
        size = burst.sizes[name]
        if name in burst.before:
            return size >= _SIZE_SHARE * burst.before[name]
        if after is not None and name in after.sizes:
            return size >= _SIZE_SHARE * after.sizes[name]
        # Some saves write one file more.
        return any(names < burst.names and name not in names for names in self._fit.whole)

    def _count(self, path: str) -> None:
        numbers = _NUMBER.findall(path)
        if len(numbers) == 1:
            self._counters.setdefault(role_of(path), _Counter()).add(int(numbers[0]))

    def _name(self, path: str) -> str:
        """Return the role of a file: equal for the same file of two saves, different for two files of one save."""
        role = role_of(path)
        counter = self._counters.get(role)
        return role if counter is not None and counter.counts_saves else hide_generations(path, _MAX_PARTS)


def _usual(pauses: Collection[float]) -> float:
    """Return the 80th percentile: most of the shorter pauses may lie inside saves."""
    return sorted(pauses)[int(0.8 * (len(pauses) - 1) + 0.5)]


class _Counter:
    """The numbers of files of one role that came first in a burst, to decide if they count saves or parts of one."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._steps: list[int] = []
        self.counts_saves = False

    def add(self, number: int) -> None:
        before, self._last = self._last, number
        if before is None:
            return
        if number <= before:
            # The same number again, or a restart from the beginning.
            self._steps, self.counts_saves = [], False
            return
        self._steps = [*self._steps, number - before][-_MAX_PARTS:]
        skips = len(self._steps) > 1 and min(self._steps[-2:]) > 1
        self.counts_saves = self.counts_saves or skips or len(self._steps) >= _MAX_PARTS
