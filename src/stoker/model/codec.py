"""Frozen dataclasses to JSON and back, strictly.

Facts come from machines that run other people's code, so nothing is coerced: a string where a number belongs is an
error that names the field. Unknown fields are ignored by default, since a newer writer may add some.

`parse` is the only parser of JSON that others may have written: nodes, other submitters, clouds, the training. Its one
error is CodecError, whatever the text holds.

Supported: None, bool, int, float, str, datetime (ISO 8601, aware), Literal, X | None, tuple[X, ...], dict[str, X],
dataclasses, and unions of dataclasses distinguished by a class attribute `kind`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stoker.model.errors import CodecError

T = TypeVar("T")

_PLAIN = frozenset({str, bool, int, type(None)})
# Every count and seed fits, and sums still convert to floats and text. A number of a thousand digits does neither, and
# would crash every reader that shows it.
_MOST_INT = 10**200
# Records of Stoker have about ten levels, answers of clouds a few more. Code that walks a tree may call itself.
MAX_DEPTH = 64
_MOST_DIGITS = 200
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
Decoder = Callable[[Any, str], Any]


def dump(value: Any) -> Any:
    """Return a JSON-ready copy. None is left out if it is the default; a tagged dataclass has its `kind`."""
    cls: Any = type(value)
    if cls in _PLAIN or isinstance(value, (str, int)):  # By type first: most values are of these types.
        return value
    if isinstance(value, float):
        # JSON has no NaN or infinity, and a diverged loss must still reach the reader.
        return value if math.isfinite(value) else repr(value)
    shape = _shape(cls)
    if shape is not None:
        kind, fields, parts = shape
        out: dict[str, Any] = {} if kind is None else {"kind": kind}
        for (name, omits_none), part in zip(fields, parts(value), strict=True):
            if part is not None or not omits_none:
                out[name] = part if type(part) in _PLAIN else dump(part)
        return out
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if isinstance(value, (tuple, list)):
        return [dump(part) for part in value]
    if isinstance(value, dict):
        return {str(key): dump(part) for key, part in value.items()}
    raise TypeError(f"cannot encode {cls.__name__}")


def dumps(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, so equal values have equal bytes and equal digests."""
    text = json.dumps(dump(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    # Half of a surrogate pair (from a name or log line that was not UTF-8) has no bytes; as `\\udXXX` it is valid JSON.
    return text.encode(errors="backslashreplace")


def digest(data: bytes) -> str:
    """The SHA-256 of these bytes, which names them."""
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes | str, *, where: str = "", nonfinite: bool = False) -> Any:
    """Parse JSON. Raises CodecError, and nothing else, for anything that is none.

    Also for nesting deeper than MAX_DEPTH, whole numbers of more than 200 digits, numbers that a float cannot hold, and
    the words NaN and Infinity, which are not JSON; `nonfinite` allows those. The caller bounds the length of `data`.
    """
    try:
        if isinstance(data, bytes):
            data = data.removeprefix(_BYTE_ORDER_MARK).decode()
        tree = (_NONFINITE_PARSER if nonfinite else _PARSER).decode(data)
    except RecursionError:
        raise CodecError(where, "nested too deeply") from None
    except ValueError as error:
        raise CodecError(where, f"not JSON: {error}") from None
    # Counting is fast, and most texts have few brackets.
    if data.count("[") + data.count("{") > MAX_DEPTH:
        _check_depth(tree, where)
    return tree


def parse_object(data: bytes | str, *, where: str = "") -> dict[str, Any]:
    """Parse a JSON object. Raises CodecError as `parse`, and for any other value."""
    tree = parse(data, where=where)
    if not isinstance(tree, dict):
        raise _wrong(where, "a mapping", tree)
    return tree


def loads(cls: type[T], data: bytes, *, where: str = "") -> T:
    """Decode `data` as `cls`. Raises CodecError for anything else."""
    return load(cls, parse(data, where=where), where=where)


def load(cls: type[T], tree: Any, *, where: str = "") -> T:
    """Build `cls` from parsed JSON. Raises CodecError naming the first part that does not fit."""
    return typing.cast(T, _decoder(typing.cast(Any, cls))(tree, where))


def _check_depth(tree: Any, where: str) -> None:
    """Raise CodecError for a tree that is nested too deeply. Goes level by level, without calling itself."""
    level = [tree]
    for _ in range(MAX_DEPTH):
        parts = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise CodecError(where, "nested too deeply")


def _parse_int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _refuse_word(word: str) -> float:
    raise ValueError(f"{word} is no number")


_PARSER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_word)
_NONFINITE_PARSER = json.JSONDecoder(parse_int=_parse_int)


@cache
def _shape(cls: type) -> tuple[str | None, tuple[tuple[str, bool], ...], Callable[[Any], tuple[Any, ...]]] | None:
    """The tag of a dataclass, its fields and how to get all of them; None for any other class.

    With each field, whether None may be left out: only if None is its default.
    """
    if not dataclasses.is_dataclass(cls):
        return None
    kind = getattr(cls, "kind", None)
    fields = tuple((field.name, field.default is None) for field in dataclasses.fields(cls))
    names = [name for name, _ in fields]
    parts = attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
    return kind if isinstance(kind, str) else None, fields, parts


@cache
def _decoder(annotation: Any) -> Decoder:
    origin = get_origin(annotation)
    if annotation is Any:
        return lambda tree, _where: tree
    if annotation in (str, bool, int, float):
        return _SCALARS[annotation]
    if annotation is type(None):
        return _none
    if annotation is datetime:
        return _datetime
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    if origin is tuple:
        return _tuple(_decoder(get_args(annotation)[0]))
    if origin is dict:
        return _dict(_decoder(get_args(annotation)[1]))
    if dataclasses.is_dataclass(annotation):
        return _dataclass(annotation)  # type: ignore[arg-type]
    raise TypeError(f"no decoder for {annotation!r}")


def _join(where: str, part: str) -> str:
    return f"{where}.{part}" if where else part


def _wrong(where: str, wanted: str, tree: Any) -> CodecError:
    return CodecError(where, f"expected {wanted}, found {_describe(tree)}")


def _describe(tree: Any) -> str:
    try:
        text = repr(tree)
    except ValueError:  # A number with more digits than Python prints.
        return f"something of type {type(tree).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _str(tree: Any, where: str) -> str:
    if isinstance(tree, str):
        # JSON can hold halves of surrogate pairs; stores, logs and terminals cannot.
        return tree if tree.isascii() else tree.encode(errors="replace").decode()
    raise _wrong(where, "text", tree)


def _bool(tree: Any, where: str) -> bool:
    if isinstance(tree, bool):
        return tree
    raise _wrong(where, "true or false", tree)


def _int(tree: Any, where: str) -> int:
    if isinstance(tree, int) and not isinstance(tree, bool):
        if -_MOST_INT < tree < _MOST_INT:
            return tree
        raise CodecError(where, "expected a whole number of reasonable size")
    raise _wrong(where, "a whole number", tree)


def _float(tree: Any, where: str) -> float:
    if isinstance(tree, (int, float)) and not isinstance(tree, bool):
        try:
            return float(tree)
        except OverflowError:
            raise _wrong(where, "a number of reasonable size", tree) from None
    if tree in ("nan", "inf", "-inf"):
        return float(tree)
    raise _wrong(where, "a number", tree)


def _none(tree: Any, where: str) -> None:
    if tree is not None:
        raise _wrong(where, "nothing", tree)


_SCALARS: dict[Any, Decoder] = {str: _str, bool: _bool, int: _int, float: _float}


def _datetime(tree: Any, where: str) -> datetime:
    text = _str(tree, where)
    try:
        # Python 3.10 does not read the Z.
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise _wrong(where, "a time (ISO 8601)", tree) from None
    if moment.tzinfo is None:
        raise _wrong(where, "a time with its zone", tree)
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:  # The first or last hours of the calendar, in another zone.
        raise _wrong(where, "a time between the years 1 and 9999", tree) from None


def _literal(choices: tuple[Any, ...]) -> Decoder:
    def decode(tree: Any, where: str) -> Any:
        for choice in choices:
            if tree == choice and type(tree) is type(choice):
                return choice
        raise _wrong(where, "one of " + ", ".join(map(str, choices)), tree)

    return decode


def _tuple(item: Decoder) -> Decoder:
    def decode(tree: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(tree, list):
            raise _wrong(where, "a list", tree)
        return tuple(item(part, f"{where}[{index}]") for index, part in enumerate(tree))

    return decode


def _dict(item: Decoder) -> Decoder:
    def decode(tree: Any, where: str) -> dict[str, Any]:
        if not isinstance(tree, dict):
            raise _wrong(where, "a mapping", tree)
        return {_str(key, where): item(part, _join(where, key)) for key, part in tree.items()}

    return decode


def _dataclass(cls: type) -> Decoder:
    hints = get_type_hints(cls)
    fields = [
        (
            field.name,
            _decoder(hints[field.name]),
            field.default is field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
        if get_origin(hints[field.name]) is not ClassVar
    ]

    def decode(tree: Any, where: str) -> Any:
        if not isinstance(tree, dict):
            raise _wrong(where, "a mapping", tree)
        values: dict[str, Any] = {}
        for name, decoder, required in fields:
            if name in tree:
                values[name] = decoder(tree[name], f"{where}.{name}" if where else name)
            elif required:
                raise CodecError(_join(where, name), "is missing")
        return cls(**values)

    return decode


def _union(members: tuple[Any, ...]) -> Decoder:
    tagged = {member.kind: _decoder(member) for member in members if isinstance(getattr(member, "kind", None), str)}
    plain = [_decoder(member) for member in members if not isinstance(getattr(member, "kind", None), str)]

    def decode(tree: Any, where: str) -> Any:
        if tagged and isinstance(tree, dict) and "kind" in tree:
            kind = tree["kind"]
            decoder = tagged.get(kind) if isinstance(kind, str) else None
            if decoder is None:
                raise CodecError(_join(where, "kind"), f"unknown kind {_describe(kind)}")
            return decoder(tree, where)
        problem: CodecError | None = None
        for decoder in plain:
            try:
                return decoder(tree, where)
            except CodecError as error:
                # Prefer the error that is deepest in the data.
                if problem is None or len(error.path) > len(problem.path):
                    problem = error
        raise problem or _wrong(where, "one of " + ", ".join(sorted(tagged)), tree)

    return decode
