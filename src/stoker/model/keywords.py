"""Errors for unknown keywords, which name the nearest known one."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from stoker.model.errors import WrongKeyword

F = TypeVar("F", bound="Callable[..., object]")


def checks_keywords(function: F) -> F:
    """Make a call with an unknown keyword raise WrongKeyword, a TypeError that names the nearest keyword."""
    known = [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_POSITIONAL]

    @functools.wraps(function)
    def checked(*arguments: object, **named: object) -> object:
        for name in named:
            if name not in known:
                raise WrongKeyword(f"{function.__name__}({name}=…): there is no such argument; {nearest(name, known)}")
        return function(*arguments, **named)

    return checked  # type: ignore[return-value]


C = TypeVar("C", bound=type)


def checks_fields(cls: C) -> C:
    """The same for the constructor of a dataclass; costs nothing for valid calls."""
    init = cls.__init__  # type: ignore[misc]

    @functools.wraps(init)
    def checked(self: object, *arguments: object, **named: object) -> None:
        try:
            init(self, *arguments, **named)
        except TypeError:
            known = [field.name for field in dataclasses.fields(cls) if field.init]
            for name in named:
                if name not in known:
                    raise WrongKeyword(f"{cls.__name__}({name}=…): unknown field; {nearest(name, known)}") from None
            raise

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def nearest(name: str, known: list[str]) -> str:
    """`did you mean store?`, or the list of known names."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
