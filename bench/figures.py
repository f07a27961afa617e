"""The figures, and their presentation: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Amount = TypeVar("_Amount")


@dataclass(frozen=True)
class Figure:
    """One number. At most `limit` is wanted; None: it is shown without a target. `difference`: it is one time minus
    another, so that noise may bring it below zero."""

    name: str
    unit: str
    limit: float | None = None
    difference: bool = False

    @property
    def target(self) -> str:
        if self.limit is None:
            return ""
        return "0" if self.limit == 0 else f"≤ {self.limit:g}"

    def met(self, value: float) -> bool:
        return self.limit is None or value <= self.limit


@dataclass(frozen=True)
class Size:
    """How much a measurement does. The short form takes the same way with small amounts, in seconds: it shows that the
    measurement works, and its numbers mean nothing."""

    short: bool = False

    def choose(self, full: _Amount, short: _Amount) -> _Amount:
        return short if self.short else full


FULL, SHORT = Size(), Size(short=True)


@dataclass(frozen=True)
class Measurement:
    """A function that measures, and the figures it answers. Its docstring says how, in a sentence a figure; the amounts
    in it are those of the full form."""

    figures: tuple[Figure, ...]
    measure: Callable[[Size], Mapping[str, float]]
    # One line that says why it cannot be measured here; None where it can.
    why_not: Callable[[], str | None] = lambda: None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(figure.name for figure in self.figures)


def verdict(figure: Figure, value: float | None) -> str:
    """`ok`, `MISS`, `FAILED` when it could not be measured, nothing where nothing is wanted."""
    if value is None:
        return "FAILED"
    if figure.limit is None:
        return ""
    return "ok" if figure.met(value) else "MISS"


def table(found: Sequence[tuple[Figure, float | None]]) -> str:
    """The figures under one another; a value of None could not be measured."""
    rows = [("figure", "value", "unit", "target", "")]
    rows += [(f.name, "–" if value is None else text(value), f.unit, f.target, verdict(f, value)) for f, value in found]
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"{name:<{wide[0]}}  {value:>{wide[1]}}  {unit:<{wide[2]}}  {target:<{wide[3]}}  {judged}".rstrip()
        for name, value, unit, target, judged in rows
    )


def document(found: Sequence[tuple[Figure, float | None]]) -> dict[str, dict[str, object]]:
    """The same for programs. What could not be measured has the value null."""
    return {
        figure.name: {"value": value, "unit": figure.unit, "target": figure.target, "limit": figure.limit}
        for figure, value in found
    }


def text(value: float) -> str:
    """Four digits that count, never an exponent."""
    if value == int(value):
        return str(int(value))
    digits = 4 if abs(value) < 1 else 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f}"
