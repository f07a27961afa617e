"""Filter expressions of lists: as much of Google's two languages as clients here use. All else is refused.

One language compares (`labels.x=y AND (status=RUNNING OR status=STAGING)`, https://google.aip.dev/160), where OR binds
tighter than AND. The other matches regular expressions against the whole field (`name eq "a|b"`). One filter speaks
one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.support.gce.errors import Failure, Json

Passes = Callable[[Json], bool]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<mark>[()])
    | (?P<sign>!=|<=|>=|=|<|>|:)
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | '(?P<single>(?:[^'\\]|\\.)*)'
    | (?P<word>[^\s()=!<>:"']+)
    )""",
    re.VERBOSE,
)
_REGEXP = ("eq", "ne")
_SIGNS = ("=", "!=", "<", "<=", ">", ">=", ":")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def compiled(expression: str, known: Callable[[tuple[str, ...]], bool]) -> Passes:
    """What tells whether a resource passes. `known` says whether resources have such a field.

    Raises Failure (400) for what is not understood.
    """
    return _Reader(expression, known).read()


class _Reader:
    def __init__(self, expression: str, known: Callable[[tuple[str, ...]], bool]) -> None:
        self._expression = expression
        self._known = known
        self._tokens = self._split(expression)
        self._at = 0
        self._languages: set[str] = set()

    def read(self) -> Passes:
        passes = self._all()
        if self._at < len(self._tokens):
            raise self._refuse(f"something is left at {self._peek().text!r}")
        if len(self._languages) > 1:
            raise self._refuse("comparisons and regular expressions do not mix")
        return passes

    def _split(self, expression: str) -> list[_Token]:
        found, at = [], 0
        while expression[at:].strip():
            match = _TOKEN.match(expression, at)
            if match is None:
                raise self._refuse(f"not understood at {expression[at:][:20]!r}")
            kind = str(match.lastgroup)
            text = match[kind]
            if kind in ("double", "single"):
                # Only the quote itself is escaped for the filter; the rest belongs to a regular expression.
                kind, text = "quoted", re.sub(r"\\([\"'])", r"\1", text)
            found.append(_Token(kind, text))
            at = match.end()
        if not found:
            raise self._refuse("it is empty")
        return found

    def _all(self) -> Passes:
        parts = [self._any()]
        while self._at < len(self._tokens) and self._peek() != _Token("mark", ")"):
            if self._peek() == _Token("word", "AND"):
                self._at += 1
            parts.append(self._any())
        return lambda resource: all(part(resource) for part in parts)

    def _any(self) -> Passes:
        parts = [self._one()]
        while self._at < len(self._tokens) and self._peek() == _Token("word", "OR"):
            self._at += 1
            parts.append(self._one())
        if len(parts) > 1 and "regexp" in self._languages:
            raise self._refuse("regular expressions cannot be joined by OR")
        return lambda resource: any(part(resource) for part in parts)

    def _one(self) -> Passes:
        token = self._take()
        if token == _Token("word", "NOT"):
            inner = self._one()
            return lambda resource: not inner(resource)
        if token == _Token("mark", "("):
            passes = self._all()
            if self._take() != _Token("mark", ")"):
                raise self._refuse("a parenthesis is missing")
            return passes
        if token.kind != "word":
            raise self._refuse(f"a field was expected, not {token.text!r}")
        return self._comparison(tuple(token.text.split(".")))

    def _comparison(self, field: tuple[str, ...]) -> Passes:
        if not self._known(field):
            raise self._refuse(f"there is no field {'.'.join(field)}")
        operator, value = self._take(), self._take()
        if value.kind not in ("word", "quoted"):
            raise self._refuse(f"a value was expected, not {value.text!r}")
        if operator.kind == "word" and operator.text in _REGEXP:
            self._languages.add("regexp")
            return self._regexp(field, operator.text, value.text)
        if operator.kind != "sign" or operator.text not in _SIGNS:
            raise self._refuse(f"there is no operator {operator.text!r}")
        self._languages.add("comparison")
        return _compare(field, operator.text, value)

    def _regexp(self, field: tuple[str, ...], operator: str, pattern: str) -> Passes:
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise self._refuse(f"{pattern!r} is no regular expression: {error}") from error

        def passes(resource: Json) -> bool:
            matches = any(wanted.fullmatch(_text(value)) is not None for value in _values(resource, field))
            return matches is (operator == "eq")

        return passes

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        if self._at >= len(self._tokens):
            raise self._refuse("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _refuse(self, why: str) -> Failure:
        told = f"Invalid value for field 'filter': '{self._expression}'. Invalid list filter expression: {why}."
        return Failure(400, "invalid", told)


def _compare(field: tuple[str, ...], operator: str, wanted: _Token) -> Passes:
    text = wanted.text

    def passes(resource: Json) -> bool:
        values = _values(resource, field)
        match operator:
            case "=":
                return any(_equal(value, text) for value in values)
            case "!=":
                return not any(_equal(value, text) for value in values)
            case ":":
                return bool(values) if text == "*" else any(text.lower() in _text(value).lower() for value in values)
            case _:
                return any(_ordered(value, operator, text) for value in values)

    return passes


def _values(resource: Any, field: tuple[str, ...]) -> list[Any]:
    """What stands at a field: nothing, one thing, or one for each member of a list on the way."""
    if isinstance(resource, list):
        return [value for each in resource for value in _values(each, field)]
    if not field:
        return [] if resource is None else [resource]
    return _values(resource.get(field[0]), field[1:]) if isinstance(resource, dict) else []


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(value: Any, wanted: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(pattern, _text(value), re.DOTALL) is not None


def _ordered(value: Any, operator: str, wanted: str) -> bool:
    one, other = _comparable(_text(value)), _comparable(wanted)
    if type(one) is not type(other):
        return False
    before = {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}  # type: ignore[operator]
    return before[operator]


def _comparable(text: str) -> float | datetime | str:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    # A time without a zone can be compared with none of ours.
    return found if found.tzinfo is not None else text
