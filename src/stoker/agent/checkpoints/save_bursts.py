"""Tell from the order and the pauses of writes where one save ends and the next begins.

Writes come in bursts. A burst is a whole save if the next one begins with the same file: the program has come round.
That alone would be fooled by a file that is written twice in a save, or by files that are written with pauses. So the
burst also has to write the files that a burst beside it wrote, none of them much smaller than before; its first file
has to be the one that the program wrote first of all; and the pause after it has to be as long as the longest ones
usually are. Where any of this is in doubt, nothing is concluded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from stoker.agent.checkpoints.file_numbers import hide_generations, role_of
from stoker.agent.checkpoints.folder_events import Event
from stoker.agent.checkpoints.folder_snapshot import unit_of

# Writes closer together than this are of one burst.
PAUSE_S = 0.05
# Pauses between saves differ: one half as long as usual is one.
_SHARE = 0.5
# A file that is smaller than this part of what it was may be cut off.
_SMALLER = 0.9
# So many pauses, each too short to end a burst: the program has become faster.
_FASTER = 3
# A burst that only the next one repeats is believed if the pause between them was at least this long.
_SURE_S = 4 * PAUSE_S
_REMEMBERED = 8
# After a burst that did not fit, so many times more have to than ever did before one did not.
_PATIENCE = 4
# No save has more parts than this that are numbered upwards.
_MANY = 16
_NUMBER = re.compile(r"[0-9]+")


class Sized(Protocol):
    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Burst:
    """Files that were written together, by what they are for. `before`: their sizes in the burst before, if known.

    `first` is the file that was written first, of those that are still there; `begun` is the first of all, such as the
    journal of a database.
    """

    first: str
    begun: str
    sizes: Mapping[str, int]
    before: Mapping[str, int]
    ended_at: float
    # Nothing may be concluded from it.
    suspect: bool

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.sizes)

    @property
    def kind(self) -> _BurstKind:
        return self.first, self.names


_BurstKind = tuple[str, frozenset[str]]


class SaveBursts:
    """The bursts of one folder. `longest_s` bounds the pause that is waited for. Not thread-safe."""

    def __init__(self, sizes: Mapping[str, int], longest_s: float) -> None:
        """`sizes` are those of the files that lie there, by path."""
        self._longest_s = longest_s
        self.last: Burst | None = None
        self._previous: Burst | None = None
        self._known_sizes: dict[str, int] = {hide_generations(path, _MANY): size for path, size in sizes.items()}
        self._whole: set[frozenset[str]] = set()
        # Files that some saves write, and others do not.
        self._optional: frozenset[str] | None = None
        # Bursts since one did not fit, and the most that came before another one that did not; None: all did fit.
        self._fitting = 0
        self._most_fitting: int | None = None
        self._gaps: dict[_BurstKind, deque[float]] = {}
        self._first_seen: dict[str, int] = {}
        self._counters: dict[str, _Counter] = {}
        # The burst that is under way: paths in the order of their first write, and those that are gone by now.
        self._order: dict[str, None] = {}
        self._gone: set[str] = set()
        self._noted_at = self._pause_s = 0.0
        self._short_pauses = 0

    @property
    def under_way(self) -> bool:
        return bool(self._order)

    @property
    def quiet_s(self) -> float:
        """How long nothing has to be written for a burst to have ended. One pause alone says nothing."""
        if sum(map(len, self._gaps.values())) < 2:
            return PAUSE_S
        usual = max(map(_usual, self._gaps.values()), default=0.0)
        return min(max(PAUSE_S, _SHARE * usual), self._longest_s)

    def note(self, events: Iterable[Event], now: float) -> None:
        """Something was written."""
        events = list(events)
        if not events:
            return
        if not self._order and self.last is not None:
            self._pause_s = now - self.last.ended_at
            self._gaps.setdefault(self.last.kind, deque(maxlen=_REMEMBERED)).append(self._pause_s)
        elif self._order and now - self._noted_at >= PAUSE_S:
            self._short_pauses += 1
            if self._short_pauses >= _FASTER:
                self._gaps.clear()
        self._noted_at = now
        for event in events:
            if event.source is not None:
                self._rename(event.source, event.path)
            self._order.setdefault(event.path)
            (self._gone.add if event.gone else self._gone.discard)(event.path)

    def _rename(self, source: str, path: str) -> None:
        renamed = {
            path + old[len(source) :] if old == source or old.startswith(f"{source}/") else old: None
            for old in self._order
        }
        self._order = renamed
        self._gone.discard(source)

    def close(
        self, files: Mapping[str, Sized], changed: Collection[str], is_whole: Callable[[str], bool], *, suspect: bool
    ) -> bool:
        """The burst has ended, and left these files. False: it wrote none, and is as if it had never been.

        `changed` are those that look different from before.
        `is_whole` says whether a file is complete by its format. `suspect`: a process that may have written has ended.
        """
        paths = [path for path in self._order if path in files]
        paths += [path for path in changed if path in files and path not in self._order]
        gone = {unit_of(path) for path in self._gone} - {"", *map(unit_of, paths)}
        first, begun_first, ended_at = self._first() or "", next(iter(self._order), ""), self._noted_at
        self._order, self._gone, self._short_pauses = {}, set(), 0
        if not paths:
            return False
        self._count(first)
        sizes: dict[str, int] = {}
        before: dict[str, int] = {}
        for path in paths:
            name = self._name(path)
            self._first_seen.setdefault(name, len(self._first_seen))
            sizes[name] = max(sizes.get(name, 0), files[path].size)
            if name in self._known_sizes:
                shrank = files[path].size < _SMALLER * self._known_sizes[name]
                before[name] = 0 if shrank and is_whole(path) else self._known_sizes[name]
        present = {self._name(path) for path in files}
        # A save may be removed before the next one is written.
        removed = any(name not in present for name in self._known_sizes)
        # A folder that was not written, and of which a part is gone, is being removed.
        removed |= any(unit_of(path) in gone for path in files)
        name = self._name(first)
        begun = self._first_seen.get(name, 0 if name not in sizes else len(self._first_seen))
        misordered = name in sizes and any(self._first_seen[other] < begun for other in sizes)
        doubtful = suspect or removed or misordered or not self._fits(frozenset(sizes))
        burst = Burst(name, self._name(begun_first), sizes, before, ended_at, doubtful)
        self._known_sizes = {name: size for name, size in self._known_sizes.items() if name in present} | sizes
        self._previous, self.last = self.last, burst
        self._gaps = dict(list(self._gaps.items())[-_REMEMBERED:])
        return True

    def _fits(self, names: frozenset[str]) -> bool:
        """Whether bursts are like one another, and were for long enough since one was not."""
        if self._is_mixed(names):
            self._most_fitting = max(self._most_fitting or 1, self._fitting)
            self._fitting = 0
        else:
            self._fitting += 1
        return self._most_fitting is None or self._fitting > _PATIENCE * self._most_fitting

    def _is_mixed(self, names: frozenset[str]) -> bool:
        """Whether files are written at times of their own: which of them belong together is not known then.

        Files that only some saves write are known if they are always the same ones.
        """
        if not self._whole:
            return False
        always = frozenset.intersection(*self._whole)
        optional = names - always
        if optional and always <= names and self._optional is None:
            self._optional = optional
        comparable = always <= names or names < always
        if comparable:
            return bool(optional) and optional != self._optional
        # A program that had to wait in the middle of a save writes the rest later.
        return self.last is None or self.last.names | names not in self._whole

    def has_come_round(self) -> bool:
        """Whether the burst under way begins like the last one, and shows that this was a whole save."""
        if self.last is None or not self._order:
            return False
        first = self._first()
        same = first is not None and self._name(first) == self.last.first
        if not same and self._name(next(iter(self._order))) != self.last.begun:
            return False
        return self._is_whole(self.last, self._previous, None)

    def was_whole(self) -> bool:
        """Whether the last burst shows that the one before it was a whole save."""
        last, before = self.last, self._previous
        if last is None or before is None or last.first != before.first or self._pause_s < _SURE_S:
            return False
        return self._is_whole(before, None, last)

    def _is_whole(self, burst: Burst, before: Burst | None, after: Burst | None) -> bool:
        beside = [other.names for other in (before, after) if other is not None]
        known = burst.names in beside or any(one <= burst.names or burst.names < one for one in self._whole)
        whole = known and not burst.suspect and all(self._reaches(name, burst, after) for name in burst.sizes)
        if whole and len(self._whole) < _REMEMBERED:
            self._whole.add(burst.names)
        return whole

    def _reaches(self, name: str, burst: Burst, after: Burst | None) -> bool:
        """Whether a file is not known to be larger, before or after."""
        size = burst.sizes[name]
        if name in burst.before:
            return size >= _SMALLER * burst.before[name]
        if after is not None and name in after.sizes:
            return size >= _SMALLER * after.sizes[name]
        # Some saves write one file more.
        return any(names < burst.names and name not in names for names in self._whole)

    def _first(self) -> str | None:
        return next((path for path in self._order if path not in self._gone), None)

    def _count(self, path: str) -> None:
        numbers = _NUMBER.findall(path)
        if len(numbers) == 1:
            self._counters.setdefault(role_of(path), _Counter()).add(int(numbers[0]))

    def _name(self, path: str) -> str:
        """What a file is for: equal for the same file of two saves, and different for two files of one."""
        role = role_of(path)
        counter = self._counters.get(role)
        return role if counter is not None and counter.counts_saves else hide_generations(path, _MANY)


def _usual(pauses: Collection[float]) -> float:
    """A long pause, as one in four may be: the others may lie inside of saves."""
    return sorted(pauses)[int(0.8 * (len(pauses) - 1) + 0.5)]


class _Counter:
    """The numbers of files of one role that came first in a burst: do they count saves, or parts of one?"""

    def __init__(self) -> None:
        self._last: int | None = None
        self._steps: list[int] = []
        self.counts_saves = False

    def add(self, number: int) -> None:
        before, self._last = self._last, number
        if before is None:
            return
        if number <= before:
            # The same again, or from the beginning.
            self._steps, self.counts_saves = [], False
            return
        self._steps = [*self._steps, number - before][-_MANY:]
        skips = len(self._steps) > 1 and min(self._steps[-2:]) > 1
        self.counts_saves = self.counts_saves or skips or len(self._steps) >= _MANY
