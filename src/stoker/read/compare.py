"""Compare jobs: differing parameters first, then results; and draw their curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stoker.read.format import dollars, duration
from stoker.read.metrics import MetricSeries

# Lower is better for a metric whose name contains one of these …
_LOWER_PARTS = ("loss", "error", "perplexity")
# … or has one of these as a whole word. They are too short to be searched inside words: "answer" contains "wer".
_LOWER_WORDS = frozenset(("wer", "cer", "ppl", "err", "mse", "mae", "rmse", "bpb", "nll"))
_WORD = re.compile(r"[A-Za-z]+")

# Distinguishable without colours; the first is finer than a character and is used for a single curve.
_FINE = "braille"
_MARKERS = "•x+o*#@%"
_MISSING = "–"


@dataclass(frozen=True)
class JobRow:
    """The properties of a job that a comparison shows. None means unknown."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    duration_s: float | None = None
    attempts: int = 0
    cost: float | None = None
    # The dollars that spot saved against on-demand.
    savings: float | None = None


@dataclass(frozen=True)
class TableLine:
    """One property of every job. `best` is the column of the best job, where there is one."""

    kind: Literal["param", "metric", "run"]
    label: str
    cells: tuple[str, ...]
    differs: bool = False
    best: int | None = None


@dataclass(frozen=True)
class ComparisonTable:
    """A table of jobs: `jobs` are the names of the columns, properties are lines."""

    jobs: tuple[str, ...]
    lines: tuple[TableLine, ...]


@dataclass(frozen=True)
class Curve:
    """One line of a drawing. Points that are not finite are left out."""

    label: str
    points: Sequence[tuple[float, float]]


def lower_is_better(metric: str) -> bool:
    """True if a lower value of this metric is better, judged by its name."""
    name = metric.lower()
    return any(part in name for part in _LOWER_PARTS) or not _LOWER_WORDS.isdisjoint(_WORD.findall(name))


def best_value(metric: str, values: Iterable[float]) -> float | None:
    """The best of the values; NaN is never best. None when there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return None
    return min(numbers) if lower_is_better(metric) else max(numbers)


def final_and_best(series: Mapping[str, MetricSeries]) -> tuple[dict[str, float], dict[str, float]]:
    """The newest and the best value of each metric."""
    final: dict[str, float] = {}
    best: dict[str, float] = {}
    for name, one in series.items():
        last = one.last
        if last is not None:
            final[name] = last.value
        top = best_value(name, (point.value for point in one.points))
        if top is not None:
            best[name] = top
    return final, best


def comparison(rows: Sequence[JobRow]) -> ComparisonTable:
    """The table: differing parameters, metrics, the runs themselves, then parameters that are equal in all jobs."""
    params = [_param_line(name, rows) for name in _names(row.params for row in rows)]
    metrics = []
    for name in _names(row.final for row in rows):
        metrics.append(_metric_line(f"{name} (final)", name, [row.final.get(name) for row in rows]))
        metrics.append(_metric_line(f"{name} (best)", name, [row.best.get(name) for row in rows]))
    lines = [line for line in params if line.differs] + metrics + _run_lines(rows)
    lines += [line for line in params if not line.differs]
    return ComparisonTable(tuple(row.name for row in rows), tuple(lines))


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """All names, in the order of first appearance."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _param_line(name: str, rows: Sequence[JobRow]) -> TableLine:
    cells = tuple(_show(row.params[name]) if name in row.params else _MISSING for row in rows)
    return TableLine("param", name, cells, differs=len(set(cells)) > 1)


def _metric_line(label: str, metric: str, values: Sequence[float | None]) -> TableLine:
    cells = tuple(_MISSING if value is None else _number(value) for value in values)
    known = [value for value in values if value is not None]
    best = best_value(metric, known)
    winner = None if best is None or len(known) < 2 or len(set(known)) < 2 else values.index(best)
    return TableLine("metric", label, cells, differs=len(set(cells)) > 1, best=winner)


def _run_lines(rows: Sequence[JobRow]) -> list[TableLine]:
    columns = (
        ("duration", [None if row.duration_s is None else duration(row.duration_s) for row in rows]),
        ("attempts", [str(row.attempts) for row in rows]),
        ("cost", [None if row.cost is None else dollars(row.cost) for row in rows]),
        ("saved by spot", [None if row.savings is None else dollars(row.savings) for row in rows]),
    )
    lines = []
    for label, values in columns:
        if label == "saved by spot" and not any(row.savings for row in rows):
            continue
        cells = tuple(_MISSING if value is None else value for value in values)
        lines.append(TableLine("run", label, cells, differs=len(set(cells)) > 1))
    return lines


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"


def curve(
    series: Sequence[Curve],
    marks: Sequence[float] = (),
    width: int = 80,
    height: int = 18,
    *,
    color: bool = False,
    x_label: str = "step",
    mark_label: str = "reclaimed",
) -> str:
    """The curves drawn in characters, `marks` as vertical lines, and a legend below. Empty without points."""
    drawn = [(one.label, _finite(one.points)) for one in series]
    drawn = [(label, points) for label, points in drawn if points]
    if not drawn:
        return ""
    import plotext  # loaded only when something is drawn: it takes a tenth of a second

    legend = []
    lowest = min(x for _, points in drawn for x, _ in points)
    highest = max(x for _, points in drawn for x, _ in points)
    shown = [mark for mark in marks if lowest <= mark <= highest]
    figure = plotext.figure
    figure.clear()
    try:
        figure.plot_size(max(20, width), max(6, height))
        # The one theme that leaves the terminal's own background alone.
        figure.theme("simple")
        for mark in shown:
            figure.line(mark, "vertical", pixel=plotext.pixel(foreground=8))
        for index, (label, points) in enumerate(drawn):
            sign = _MARKERS[index % len(_MARKERS)]
            marker = _FINE if len(drawn) == 1 else sign
            figure.draw(figure.signal([x for x, _ in points], [y for _, y in points], marker=marker).lines())
            legend.append(f"{'⠒' if len(drawn) == 1 else sign} {label}")
        ticks = _round_ticks(lowest, highest)
        figure.ruler("x", "lower").ticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.label(x_label)
        picture = str(figure.build().string(colorless=not color))
    finally:
        figure.clear()
    if shown:
        legend.append(f"│ {mark_label}")
    rows = [row.rstrip() for row in picture.rstrip("\n").split("\n")]
    return "\n".join([*rows, "  ".join(legend)])


def _round_ticks(lowest: float, highest: float) -> list[float]:
    """About five round numbers: 40 steps, not 39.7."""
    span = highest - lowest
    if not span > 0:
        return [lowest]
    rough = span / 5
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * scale for unit in (1, 2, 5, 10) if unit * scale >= rough)
    first = math.ceil(lowest / step)
    return [n * step for n in range(first, math.floor(highest / step) + 1)]


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
