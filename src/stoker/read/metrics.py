"""A job's metrics as series, and the utilisation of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.model.node_facts import Usage
from stoker.read.node_chunks import NodeLog, boots, fetch_chunks
from stoker.store.base import Store
from stoker.store.log_chunks import MetricLine, Sample, UsageSample, decode_lines, list_chunks


class Point(NamedTuple):
    """One value. `step` is None if the training did not report it; `at` is unix seconds by the node's clock."""

    step: int | None
    at: float
    value: float
    attempt: int


@dataclass(frozen=True)
class MetricSeries:
    """One metric over the whole job, in the order of steps (then times). Retrained steps appear once."""

    name: str
    points: tuple[Point, ...]
    # Steps that more than one attempt reported.
    retrained_steps: int = 0

    @property
    def last(self) -> Point | None:
        """The value that the latest attempt reported last."""
        return max(self.points, key=lambda point: (point.attempt, point.at), default=None)


class UsagePoint(NamedTuple):
    """A sample of the usage of one machine."""

    attempt: int
    rank: int
    at: float
    usage: Usage


@dataclass(frozen=True)
class Metrics:
    """All measurements of a job's nodes."""

    series: Mapping[str, MetricSeries] = field(default_factory=dict)
    usage: tuple[UsagePoint, ...] = ()

    @property
    def retrained_steps(self) -> int:
        """Steps trained twice, by the metric that shows most of them. A lower bound if reports are far apart."""
        return max((series.retrained_steps for series in self.series.values()), default=0)


def read_metrics(store: Store, job: str, nodes: Sequence[NodeLog]) -> Metrics:
    """Read all measurements. Where several ranks report a metric, the lowest rank counts. Raises StoreError."""
    found: dict[str, dict[int, list[Point]]] = {}
    usage: list[UsagePoint] = []
    for node in sorted(nodes):
        own: dict[str, list[Point]] = {}
        for line in _lines(store, job, node):
            if isinstance(line, UsageSample):
                usage.append(UsagePoint(node.attempt, node.rank, line.at, line.usage))
            elif isinstance(line, Sample):
                for name, value in line.values.items():
                    if not name.isprintable():
                        continue  # No agent accepts such a name, and it would be printed to a terminal.
                    own.setdefault(name, []).append(Point(line.step, line.at, value, node.attempt))
        for name, points in own.items():
            # The nodes are sorted, so the lowest rank with the metric comes first.
            found.setdefault(name, {}).setdefault(node.attempt, points)
    series = {name: series_of(name, found[name]) for name in sorted(found)}
    return Metrics(series, tuple(sorted(usage, key=lambda point: point.at)))


def series_of(name: str, by_attempt: Mapping[int, Sequence[Point]]) -> MetricSeries:
    """Join attempts: a step that a later attempt reported again has the later value. Pure."""
    attempts_of: dict[int, int] = {}
    latest: dict[int, Point] = {}
    stepless: list[Point] = []
    for attempt in sorted(by_attempt):
        steps = set()
        for point in by_attempt[attempt]:
            if point.step is None:
                stepless.append(point)
            else:
                latest[point.step] = point
                steps.add(point.step)
        for step in steps:
            attempts_of[step] = attempts_of.get(step, 0) + 1
    points = [latest[step] for step in sorted(latest)]
    points += sorted(stepless, key=lambda point: (point.attempt, point.at))
    return MetricSeries(name, tuple(points), sum(1 for count in attempts_of.values() if count > 1))


def _lines(store: Store, job: str, node: NodeLog) -> Iterator[MetricLine]:
    for folder in boots(store, job, node):
        for chunk in fetch_chunks(store, list_chunks(store, f"{folder}/metrics/")):
            if chunk.data is not None:
                yield from decode_lines(chunk.data)
