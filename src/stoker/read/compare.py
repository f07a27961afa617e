"""Put jobs side by side: what differs first, then what came of it; and draw their curves."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stoker.read.metrics import Series

# Lower is better for a metric whose name has one of these in it …
_LOWER_PARTS = ("loss", "error", "perplexity")
# … or one of these as a word. They are too short to be looked for inside words: "answer" has "wer" in it.
_LOWER_WORDS = frozenset(("wer", "cer", "ppl", "err", "mse", "mae", "rmse", "bpb", "nll"))
_WORD = re.compile(r"[A-Za-z]+")

# Told apart without colours; the first is finer than a character and stands alone.
_FINE = "braille"
_MARKERS = "•x+o*#@%"
_MISSING = "–"


@dataclass(frozen=True)
class JobRow:
    """What a comparison needs to know of a job. None is unknown."""

    name: str
    params: Mapping[str, object] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    duration_s: float | None = None
    attempts: int = 0
    cost: float | None = None
    # Dollars that spot saved against on-demand.
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
class Table:
    """Jobs are columns (`jobs` their names), properties are lines."""

    jobs: tuple[str, ...]
    lines: tuple[TableLine, ...]


@dataclass(frozen=True)
class Curve:
    """What is drawn as one line. Points that are not finite are left out."""

    label: str
    points: Sequence[tuple[float, float]]


def lower_is_better(metric: str) -> bool:
    name = metric.lower()
    return any(part in name for part in _LOWER_PARTS) or not _LOWER_WORDS.isdisjoint(_WORD.findall(name))


def best_value(metric: str, values: Iterable[float]) -> float | None:
    """The best of the values; NaN is never best. None when there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return None
    return min(numbers) if lower_is_better(metric) else max(numbers)


def final_and_best(series: Mapping[str, Series]) -> tuple[dict[str, float], dict[str, float]]:
    """Of each metric the newest value and the best one."""
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


def comparison(rows: Sequence[JobRow]) -> Table:
    """Parameters that differ, then metrics, then the runs themselves, then the parameters that are all the same."""
    params = [_param_line(name, rows) for name in _names(row.params for row in rows)]
    metrics = []
    for name in _names(row.final for row in rows):
        metrics.append(_metric_line(f"{name} (final)", name, [row.final.get(name) for row in rows]))
        metrics.append(_metric_line(f"{name} (best)", name, [row.best.get(name) for row in rows]))
    lines = [line for line in params if line.differs] + metrics + _run_lines(rows)
    lines += [line for line in params if not line.differs]
    return Table(tuple(row.name for row in rows), tuple(lines))


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """Every name, in the order of first appearance."""
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
        ("duration", [None if row.duration_s is None else _duration(row.duration_s) for row in rows]),
        ("attempts", [str(row.attempts) for row in rows]),
        ("cost", [None if row.cost is None else _dollars(row.cost) for row in rows]),
        ("saved by spot", [None if row.savings is None else _dollars(row.savings) for row in rows]),
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


def _dollars(value: float) -> str:
    return f"${value:.4f}" if 0 < abs(value) < 0.1 else f"${value:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest_s:02d}s"


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
    """A picture of the curves in characters, `marks` as vertical lines, and a legend below. Empty without points."""
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
    """Some five round numbers: nobody trains 39.7 steps."""
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
