"""The progress of a training by its metrics: steps, newest values, and the best value of each metric."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stoker.agent.health.step_count import StepCount
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
