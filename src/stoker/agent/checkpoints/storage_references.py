"""Read from a pickle of `torch.save` which storages it refers to. Builds no object, loads no class, runs no code.

A pickle is a program, and this one comes from the training. So its instructions are followed only as far as references
need it: of all values only short texts, small integers, names of classes and flat, short tuples of these are kept;
everything else is one and the same placeholder. Values are never hashed, compared or printed as a whole. Each
instruction takes constant time and memory, and their number is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

# Tens of thousands of tensors. Following so many instructions takes about a second.
_MAX_INSTRUCTIONS = 2_000_000
# The values in the memo: about 50 MB.
_MAX_REMEMBERED = 500_000
# A longer text is no key, no location and no name of a class.
_MAX_TEXT_BYTES = 256
_MAX_INT_BYTES = 8
# A reference has five parts.
_MAX_TUPLE = 8


class StorageReference(NamedTuple):
    """The kind of a storage, such as `FloatStorage`, and its number of elements."""

    kind: str
    elements: int


@dataclass(frozen=True)
class _Class:
    name: str


class _Anything:
    """The placeholder for all values that are not kept."""


_ANYTHING: Final = _Anything()

_Part = str | int | _Class | _Anything
_Value = _Part | tuple[_Part, ...]


class _NotFollowed(Exception):
    """The pickle has an instruction that `torch.save` does not write, or too many of them."""


def read_storages(data: bytes) -> dict[str, StorageReference] | None:
    """Return the storages that a pickle refers to, by key; None if its instructions cannot be followed."""
    try:
        return _Follower(data).run()
    except (_NotFollowed, LookupError, ValueError, struct.error):
        return None


class _Follower:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[_Value] = []
        # The lengths of the stack at which marks were set.
        self._marks: list[int] = []
        self._memo: dict[int, _Value] = {}
        self._memoized = 0
        self._storages: dict[str, StorageReference] = {}
        put, get, text = self._put, self._get, self._keep_text
        self._instructions: dict[int, Callable[[], object]] = {
            # Values of a fixed length that no reference contains: None, booleans, empty containers, floats.
            **dict.fromkeys(b"N\x88\x89]})\x8f", lambda: self._skip(0)),
            ord("G"): lambda: self._skip(8),
            # Integers.
            ord("K"): lambda: self._keep_int(1),
            ord("M"): lambda: self._keep_int(2),
            ord("J"): lambda: self._keep_int(4, signed=True),
            0x8A: lambda: self._keep_int(self._uint(1), signed=True),
            0x8B: lambda: self._keep_int(self._uint(4), signed=True),
            # Texts.
            0x8C: lambda: text(self._uint(1)),
            ord("X"): lambda: text(self._uint(4)),
            0x8D: lambda: text(self._uint(8)),
            # Bytes.
            **dict.fromkeys(b"CU", lambda: self._skip(self._uint(1))),
            **dict.fromkeys(b"BT", lambda: self._skip(self._uint(4))),
            **dict.fromkeys((0x8E, 0x96), lambda: self._skip(self._uint(8))),
            # Classes and functions.
            ord("c"): self._keep_class,
            0x93: self._keep_class_on_stack,
            # Tuples.
            ord("t"): lambda: self._keep_tuple(self._marks.pop()),
            0x85: lambda: self._keep_tuple(len(self._stack) - 1),
            0x86: lambda: self._keep_tuple(len(self._stack) - 2),
            0x87: lambda: self._keep_tuple(len(self._stack) - 3),
            # Filling containers and objects, which stay on the stack.
            ord("("): lambda: self._marks.append(len(self._stack)),
            **dict.fromkeys(b"ab", lambda: self._drop(1)),
            ord("s"): lambda: self._drop(2),
            **dict.fromkeys(b"eu\x901", lambda: self._drop_to(self._marks.pop())),
            # Values that are made of others.
            ord("R"): lambda: self._replace(2),
            0x81: lambda: self._replace(2),
            0x92: lambda: self._replace(3),
            0x91: lambda: self._replace(len(self._stack) - self._marks.pop()),
            # The stack and the memo.
            ord("0"): lambda: self._drop(1),
            ord("2"): lambda: self._stack.append(self._stack[-1]),
            ord("q"): lambda: put(self._uint(1)),
            ord("r"): lambda: put(self._uint(4)),
            0x94: self._memoize,
            ord("h"): lambda: get(self._uint(1)),
            ord("j"): lambda: get(self._uint(4)),
            # The protocol and the lengths of frames.
            0x80: lambda: self._advance(1),
            0x95: lambda: self._advance(8),
            ord("Q"): self._refer,
        }

    def run(self) -> dict[str, StorageReference]:
        data, instructions, stop = self._data, self._instructions, ord(".")
        for _ in range(_MAX_INSTRUCTIONS):
            code = data[self._at]
            self._at += 1
            if code == stop:
                return self._storages
            instructions[code]()
        raise _NotFollowed

    # ── Arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, count: int) -> int:
        """Go on behind so many bytes. Return where they begin."""
        begin = self._at
        if count > len(self._data) - begin:
            raise _NotFollowed
        self._at = begin + count
        return begin

    def _uint(self, width: int) -> int:
        begin = self._advance(width)
        return int.from_bytes(self._data[begin : self._at], "little")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + _MAX_TEXT_BYTES)
        if end < 0:
            raise _NotFollowed
        begin, self._at = self._at, end + 1
        return self._data[begin:end].decode("utf-8")

    # ── Values ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _skip(self, count: int) -> None:
        self._advance(count)
        self._stack.append(_ANYTHING)

    def _keep_int(self, width: int, *, signed: bool = False) -> None:
        begin = self._advance(width)
        known = width <= _MAX_INT_BYTES
        self._stack.append(
            int.from_bytes(self._data[begin : self._at], "little", signed=signed) if known else _ANYTHING
        )

    def _keep_text(self, length: int) -> None:
        begin = self._advance(length)
        known = length <= _MAX_TEXT_BYTES
        self._stack.append(self._data[begin : self._at].decode("utf-8", "surrogatepass") if known else _ANYTHING)

    def _keep_class(self) -> None:
        self._line()
        self._stack.append(_Class(self._line()))

    def _keep_class_on_stack(self) -> None:
        name = self._stack[-1]
        self._drop(2)
        self._stack.append(_Class(name) if isinstance(name, str) else _ANYTHING)

    def _keep_tuple(self, begin: int) -> None:
        if begin < 0:
            raise _NotFollowed
        short = len(self._stack) - begin <= _MAX_TUPLE
        # Flat: tuples in tuples would grow without bound while the pickle stays small.
        parts = [_ANYTHING if isinstance(part, tuple) else part for part in self._stack[begin:]] if short else []
        self._drop_to(begin)
        self._stack.append(tuple(parts) if short else _ANYTHING)

    def _replace(self, count: int) -> None:
        self._drop(count)
        self._stack.append(_ANYTHING)

    def _drop(self, count: int) -> None:
        self._drop_to(len(self._stack) - count)

    def _drop_to(self, length: int) -> None:
        if not 0 <= length <= len(self._stack):
            raise _NotFollowed
        del self._stack[length:]

    # ── The memo ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, index: int) -> None:
        value = self._stack[-1]
        if value is _ANYTHING:
            self._memo.pop(index, None)
        else:
            self._memo[index] = value
        if len(self._memo) > _MAX_REMEMBERED:
            raise _NotFollowed

    def _memoize(self) -> None:
        self._put(self._memoized)
        self._memoized += 1

    def _get(self, index: int) -> None:
        self._stack.append(self._memo.get(index, _ANYTHING))

    def _refer(self) -> None:
        """Note a reference: ("storage", class, key, location, number of elements)."""
        match self._stack[-1]:
            case ("storage", _Class(kind), str(key), _, int(elements), *_) if elements >= 0:
                self._storages[key] = StorageReference(kind, elements)
            case _:
                raise _NotFollowed
        self._replace(1)
