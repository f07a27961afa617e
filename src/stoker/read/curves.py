"""Curves of several jobs: over steps, epochs or time, whichever all of them have; drawn, or exported as rows."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, TextIO, get_args

from stoker.core.summary import Summary
from stoker.model.errors import UserError
from stoker.read.compare import Curve
from stoker.read.metrics import Metrics, MetricSeries, Point

Axis = Literal["step", "epoch", "time"]
AXES: tuple[Axis, ...] = get_args(Axis)

_EPOCH = "epoch"
# Units of the time axis: the first one whose value stays below its limit is shown.
_UNITS = (("seconds", 1.0, 180.0), ("minutes", 60.0, 180.0), ("hours", 3600.0, 72.0), ("days", 86400.0, math.inf))


@dataclass(frozen=True)
class CurvePoint:
    """One value of one metric of one job. None where the training did not report it.

    `seconds` count from the first value of that metric in that job.
    """

    job: str
    name: str
    metric: str
    attempt: int
    step: int | None
    epoch: float | None
    seconds: float
    at: datetime
    value: float


@dataclass(frozen=True)
class ComparedJob:
    """One job with all its metrics."""

    summary: Summary
    metrics: Metrics

    @property
    def id(self) -> str:
        return self.summary.id

    @property
    def name(self) -> str:
        return self.summary.name

    def points(self, metric: str) -> list[CurvePoint]:
        """The values of a metric; empty where the job does not have it."""
        series = self.metrics.series.get(metric)
        if series is None or not series.points:
            return []
        start, epochs = min(point.at for point in series.points), _Epochs(self.metrics.series)
        return [
            CurvePoint(
                job=self.id,
                name=self.name,
                metric=metric,
                attempt=point.attempt,
                step=point.step,
                epoch=epochs.of(point),
                seconds=point.at - start,
                at=datetime.fromtimestamp(point.at, timezone.utc),
                value=point.value,
            )
            for point in series.points
        ]

    def has(self, axis: Axis, metric: str) -> bool:
        """True if the metric can be drawn over this axis."""
        found = self.points(metric)
        return bool(found) and (axis == "time" or any(_x(point, axis) is not None for point in found))


@dataclass(frozen=True)
class Comparison:
    """Jobs side by side, in the order in which they were named."""

    jobs: tuple[ComparedJob, ...]

    @property
    def metric_names(self) -> list[str]:
        """Every metric that some job has."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.metrics.series))

    def points(self, metric: str | None = None) -> Iterator[CurvePoint]:
        """Iterate over all values, or those of one metric: job by job, metric by metric.

        Raises UserError, before the first value, for a metric that none of the jobs has.
        """
        self.check_metric(metric)
        names = (metric,) if metric is not None else None
        return (point for job in self.jobs for name in names or job.metrics.series for point in job.points(name))

    def check_metric(self, metric: str | None, option: str = "metric") -> None:
        """Raise UserError for a metric that none of the jobs has. `option` is what the message calls it."""
        if metric is not None and metric not in self.metric_names:
            known = ", ".join(self.metric_names) or "none"
            raise UserError(f"{option} {metric}: none of these jobs has it; there are: {known}")

    def to_csv(self, path: str | Path, metric: str | None = None) -> int:
        """Write the values as a table, and return their number.

        Raises UserError for a metric that none of the jobs has, and where the file cannot be written.
        """
        self.check_metric(metric)
        try:
            with Path(path).open("w", encoding="utf-8", newline="") as file:
                return write_csv(file, self.points(metric))
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def write_csv(file: TextIO, points: Iterable[CurvePoint]) -> int:
    """A row for each value, under the names of `CurvePoint`'s fields. Unknown values are empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("job", "name", "metric", "attempt", "step", "epoch", "seconds", "at", "value"))
    count = 0
    for one in points:
        at = one.at.isoformat().replace("+00:00", "Z")
        step, epoch = ("" if each is None else each for each in (one.step, one.epoch))
        row = (one.job, one.name, one.metric, one.attempt, step, epoch, round(one.seconds, 3), at, one.value)
        writer.writerow(row)
        count += 1
    return count


def choose_axis(jobs: Sequence[ComparedJob], metric: str, asked: Axis | None = None) -> Axis:
    """Choose steps if every job with the metric reports them, else epochs if all do, else time.

    Raises UserError if some job does not report the requested axis.
    """
    those = [job for job in jobs if metric in job.metrics.series]
    if asked is None:
        return next((axis for axis in AXES if all(job.has(axis, metric) for job in those)), "time")
    for job in those:
        if not job.has(asked, metric):
            has = " and ".join(axis for axis in AXES if job.has(axis, metric))
            raise UserError(f"--over {asked}: {job.id} does not report it for {metric}; it has {has}")
    return asked


@dataclass(frozen=True)
class Drawing:
    """Curves over one axis, the label of the axis, and the places of reclaims."""

    curves: tuple[Curve, ...]
    label: str
    marks: tuple[float, ...]


def drawing(jobs: Sequence[ComparedJob], metric: str, axis: Axis) -> Drawing:
    """Build the drawing of a metric."""
    found = [(job, job.points(metric)) for job in jobs]
    unit, unit_s = _unit(max((point.seconds for _, points in found for point in points), default=0.0))
    scale = unit_s if axis == "time" else 1.0
    curves = [
        Curve(job.id, [(x / scale, point.value) for point in points if (x := _x(point, axis)) is not None])
        for job, points in found
        if points
    ]
    label = f"{unit} since the first value" if axis == "time" else axis
    return Drawing(tuple(curves), label, tuple(mark / scale for job in jobs for mark in _marks(job, metric, axis)))


def _marks(job: ComparedJob, metric: str, axis: Axis) -> Iterator[float]:
    points = job.metrics.series[metric].points if metric in job.metrics.series else ()
    start = min((point.at for point in points), default=0.0)
    for attempt in job.summary.attempts:
        if attempt.outcome != "reclaimed":
            continue
        if axis == "step" and attempt.step is not None:
            yield float(attempt.step)
        left_at = attempt.left_at or attempt.ended_at
        if axis == "time" and left_at is not None and points:
            yield left_at.timestamp() - start


def _x(point: CurvePoint, axis: Axis) -> float | None:
    if axis == "step":
        return None if point.step is None else float(point.step)
    return point.epoch if axis == "epoch" else point.seconds


def _unit(span_s: float) -> tuple[str, float]:
    return next((name, unit_s) for name, unit_s, most in _UNITS if span_s / unit_s < most)


class _Epochs:
    """The epoch of each value: the last one reported with it or before it in the same attempt."""

    def __init__(self, series: Mapping[str, MetricSeries]) -> None:
        named = next((one for name, one in series.items() if name.lower().rpartition("/")[2] == _EPOCH), None)
        reported: dict[int, list[tuple[float, float]]] = {}
        for point in named.points if named is not None else ():
            reported.setdefault(point.attempt, []).append((point.at, point.value))
        self._reported = {attempt: sorted(pairs) for attempt, pairs in reported.items()}

    def of(self, point: Point) -> float | None:
        pairs = self._reported.get(point.attempt, [])
        place = bisect_right(pairs, (point.at, math.inf))
        return pairs[place - 1][1] if place else None
