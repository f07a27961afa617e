"""Count the moves of a training by the steps that it reports, whatever order they come in."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

# How many steps are remembered. A training that counts anew in every epoch returns to a step only after more.
_REMEMBERED = 64
# Of so many changes of the step, at most this share goes down in a training that counts anew.
_CHANGES = 32
_DOWN_SHARE = 0.25


class StepCount:
    """Counts how often the training moved on.

    Comparing the newest step now and then is not enough: epochs of ten steps may show the same step each time. Nor is
    every change a move: side threads of two ranks that hang at different steps report them in turn for ever.
    """

    def __init__(self) -> None:
        self.moves = 0
        self._last: int | None = None
        self._recent: OrderedDict[int, dict[str, float]] = OrderedDict()
        self._down: deque[bool] = deque(maxlen=_CHANGES)

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Take a report with a step.

        The same step again is no move. A step that was reported lately is a move if it comes with other values, or if
        the steps count up.
        """
        known = self._recent.get(step)
        self._recent[step] = {**(known or {}), **values}
        self._recent.move_to_end(step)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)
        if step == self._last:
            return
        self._down.append(self._last is not None and step < self._last)
        self._last = step
        counts_up = sum(self._down) <= _DOWN_SHARE * len(self._down)
        changed = known is not None and any(known.get(name) != value for name, value in values.items())
        if known is None or changed or counts_up:
            self.moves += 1
