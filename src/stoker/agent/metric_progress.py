"""The progress of a training by its metrics: steps, newest values, and the best value of each metric."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stoker.model.node_facts import Trend
from stoker.store.log_chunks import MetricsMark, Sample

# Heartbeats carry the newest value of so many metrics.
MAX_NAMES = 200
# Rules look at a few metrics only.
MAX_TRENDS = 50


@dataclass(frozen=True)
class Progress:
    """The progress of a training so far, for heartbeats and the exit."""

    first_step: int | None = None
    last_step: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)
    # How often it moved on, by its steps (`StepCount`).
    moves: int = 0


@dataclass
class _Extremes:
    """The lowest and the highest value so far, and when each was first reached."""

    low: float
    low_at_s: float
    high: float
    high_at_s: float

    def note(self, value: float, now_s: float) -> None:
        if value < self.low:
            self.low, self.low_at_s = value, now_s
        if value > self.high:
            self.high, self.high_at_s = value, now_s

    def trend(self, now_s: float) -> Trend:
        return Trend(self.low, round(now_s - self.low_at_s, 3), self.high, round(now_s - self.high_at_s, 3))


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


class ProgressTracker:
    """Follows samples. Metrics that the job names (`named`) are never crowded out by others that its script reports."""

    def __init__(self, named: Collection[str]) -> None:
        self._named = frozenset(named)
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._steps = StepCount()
        self._values: dict[str, float] = {}
        self._extremes: dict[str, _Extremes] = {}

    def note(self, sample: Sample, now_s: float) -> None:
        """Take one more sample."""
        if sample.step is not None:
            if self.first_step is None:
                self.first_step = sample.step
            self.last_step = sample.step
            self._steps.note(sample.step, sample.values)
        for name, value in sample.values.items():
            if name in self._values or name in self._named or len(self._values) < MAX_NAMES:
                self._values[name] = value
                self._note_extremes(name, value, now_s)

    def resume(self, mark: MetricsMark, values: Mapping[str, float]) -> None:
        """Add what earlier boots of this machine have written."""
        self.first_step = mark.first_step if mark.first_step is not None else self.first_step
        self.last_step = self.last_step if self.last_step is not None else mark.last_step
        self._values = {**values, **self._values}

    def progress(self, now_s: float) -> Progress:
        """Return the progress now."""
        trends = {name: extremes.trend(now_s) for name, extremes in self._extremes.items()}
        return Progress(self.first_step, self.last_step, dict(self._values), trends, self._steps.moves)

    def _note_extremes(self, name: str, value: float, now_s: float) -> None:
        if not math.isfinite(value):
            return
        extremes = self._extremes.get(name)
        if extremes is not None:
            extremes.note(value, now_s)
        elif name in self._named or len(self._extremes) < MAX_TRENDS:
            self._extremes[name] = _Extremes(value, now_s, value, now_s)
