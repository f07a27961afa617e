"""Classes that hold settings, as version 3 of SageMaker's SDK has them, and the check of the names of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TypeVar

_Config = TypeVar("_Config")


def config(kind: type[_Config]) -> type[_Config]:
    """Make a frozen dataclass whose unknown arguments get one line with the nearest name."""
    made = dataclass(frozen=True)(kind)
    known = [field.name for field in fields(made)]  # type: ignore[arg-type]  # A dataclass, as of the line above.
    made.__init__ = _checked(made.__init__, kind.__name__, known)  # type: ignore[method-assign]  # As a dataclass does.
    return made


def check_names(kind: str, known: list[str], given: Mapping[str, object]) -> None:
    """Raise TypeError for the first argument that is not known."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise TypeError(f"{kind}: there is no argument {name!r}{f'; did you mean {near[0]}?' if near else ''}")


def _checked(init: Callable[..., None], kind: str, known: list[str]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: object, *values: object, **named: object) -> None:
        check_names(kind, known, named)
        init(self, *values, **named)

    return checked
