"""Learn which top-level folders a program writes in every save, such as `unet/` and `vae/`: they are one save.

A folder without a number is written over by the next save. Two of them belong together if the program has begun them
in turn: one, the other, the first again. From then on a save has both, or it is not whole.

Why: docs/decisions/companion-folders.md.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

# So many beginnings of units are remembered …
_REMEMBERED = 256
# … and so many of a pair are compared: one of them may be written in some saves only.
_COMPARED = 7
# Two units that were begun in turn so often belong together.
_IN_TURN = 3
# A program that writes more units than this has samples or the like among them: the first ones count.
_MOST_UNITS = 64


@dataclass(frozen=True)
class _Beginning:
    """A save of the unit began, by the time stamp of its first file."""

    unit: str
    at_ns: int


class CompanionUnits:
    """The order in which units without a number were begun, the plain files at the top among them."""

    def __init__(self) -> None:
        self._beginnings: deque[_Beginning] = deque(maxlen=_REMEMBERED)
        # The place of each unit in the first save, and how often it was begun.
        self._place: dict[str, int] = {}
        self._begun: Counter[str] = Counter()
        # Companions that were found since the last beginning.
        self._known: dict[str, set[str]] = {}

    def note(self, unit: str, at_ns: int) -> None:
        """Record that the program began to write the unit, or began it again."""
        if unit in self._place or len(self._place) < _MOST_UNITS:
            self._place.setdefault(unit, len(self._place))
            self._beginnings.append(_Beginning(unit, at_ns))
            self._begun[unit] += 1
            self._known = {}

    def expect(self, units: Iterable[str]) -> None:
        """Record the units of a save of an earlier attempt, in the order in which they were written."""
        order = list(dict.fromkeys(units))
        for unit in (*order, *order):
            self.note(unit, 0)

    def of(self, unit: str) -> set[str]:
        """Return the units that belong to the same saves as this one."""
        if unit not in self._place:
            return set()
        if unit not in self._known:
            self._known[unit] = {other for other in self._place if other != unit and self._in_turn(unit, other)}
        return self._known[unit]

    def still_to_come(self, unit: str) -> str | None:
        """Return a unit that the program has yet to begin in the save in which it has begun this one; None: there is
        none."""
        for other in sorted(self.of(unit), key=self._place.__getitem__):
            if self._place[unit] < self._place[other] and self._is_between(unit, other):
                return other
        return None

    def begun(self) -> Mapping[str, int]:
        """Return how often each unit was begun until now."""
        return dict(self._begun)

    def is_one_save(self, unit: str, nth: int | None, other: str, other_nth: int | None) -> bool:
        """Return True if the nth state of one unit and that of its companion are known to be of one save."""
        if nth is None or other_nth is None:
            return False
        ahead = self._begun[unit] - self._begun[other]
        if self._is_between(unit, other):
            ahead += -1 if self._place[unit] < self._place[other] else 1
        return nth - other_nth == ahead

    def _is_between(self, unit: str, other: str) -> bool:
        """Return True if the first of the two was begun last: the other is still to come."""
        return self._of_pair(unit, other)[-1].unit == min(unit, other, key=self._place.__getitem__)

    def longest_pause_s(self, unit: str) -> float:
        """Return the longest time from the beginning of one unit of a save to that of another."""
        pauses_ns = [0]
        for other in self.of(unit):
            pair = self._of_pair(unit, other)
            first = min(unit, other, key=self._place.__getitem__)
            for earlier, later in pairwise(pair):
                if earlier.unit == first and earlier.at_ns:
                    pauses_ns.append(later.at_ns - earlier.at_ns)
        return max(pauses_ns) / 1e9

    def _of_pair(self, one: str, other: str) -> list[_Beginning]:
        return [each for each in self._beginnings if each.unit in (one, other)][-_COMPARED:]

    def _in_turn(self, one: str, other: str) -> bool:
        pair = self._of_pair(one, other)
        turns = all(earlier.unit != later.unit for earlier, later in pairwise(pair))
        return turns and len(pair) >= _IN_TURN
