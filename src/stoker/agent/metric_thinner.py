"""Bound how many samples of each metric are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.agent.metric_progress import MAX_NAMES
from stoker.store.log_chunks import Sample

# Samples written of a metric: this many a second, after a burst of so many; and in the long run one a second, so that
# a week of training stays readable.
RATE_PER_S = 10.0
BURST = 100.0
LONG_RUN = 10_000
LONG_RUN_RATE_PER_S = 1.0


class Thinner:
    """Chooses the samples to write. The first, the newest and every change to or from NaN are always among them."""

    @dataclass
    class _Metric:
        allowance: float = BURST
        written: int = 0
        at: float = -math.inf
        is_finite: bool = True

    def __init__(self) -> None:
        self._metrics: dict[str, Thinner._Metric] = {}
        # The newest value of each metric, if it was not written.
        self._held_back: dict[str, tuple[float, int | None, float]] = {}

    def offer(self, sample: Sample) -> Sample | None:
        """Return the part of the sample that is to be written now; None if there is none."""
        chosen: dict[str, float] = {}
        for name, value in sample.values.items():
            metric = self._metrics.get(name)
            if metric is None:
                if len(self._metrics) >= MAX_NAMES:
                    continue
                metric = self._metrics[name] = Thinner._Metric(at=sample.at)
            rate = RATE_PER_S if metric.written < LONG_RUN else LONG_RUN_RATE_PER_S
            metric.allowance = min(BURST, metric.allowance + max(0.0, sample.at - metric.at) * rate)
            metric.at = max(metric.at, sample.at)
            is_finite = math.isfinite(value)
            if metric.allowance >= 1 or is_finite != metric.is_finite:
                metric.allowance = max(0.0, metric.allowance - 1)
                metric.written += 1
                chosen[name] = value
                self._held_back.pop(name, None)
            else:
                self._held_back[name] = (sample.at, sample.step, value)
            metric.is_finite = is_finite
        if chosen or (sample.step is not None and not sample.values):
            return Sample(sample.at, sample.step, chosen)
        return None

    def newest(self) -> list[Sample]:
        """Return the newest values that were held back, to be written after all."""
        together: dict[tuple[float, int | None], dict[str, float]] = {}
        for name, (at, step, value) in self._held_back.items():
            together.setdefault((at, step), {})[name] = value
        self._held_back.clear()
        return [Sample(at, step, values) for (at, step), values in together.items()]
