"""Segments of keys that every store accepts: names that can be used as they are, and any other text, escaped."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_ANY = re.compile(r".")
_SAFE_NAME = re.compile(r"[A-Za-z0-9._+=-]{1,100}")
_ESCAPE = re.compile(r"=([0-9a-f]{2})")


def quote(name: str) -> str:
    """Escape a name, also an empty one. `.` and `..` are escaped whole: they would lead to another folder."""
    escaped = _ANY if name in (".", "..") else _UNSAFE
    return escaped.sub(lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), name) or "="


def unquote(segment: str) -> str:
    """Reverse `quote`. Raises ValueError for text that `quote` cannot have made."""
    plain = "" if segment == "=" else _ESCAPE.sub(lambda found: chr(int(found[1], 16)), segment)
    return plain.encode("latin-1").decode()


def is_safe_name(name: str) -> bool:
    """Return whether a checkpoint's name can be used in a key and a path without escaping."""
    return _SAFE_NAME.fullmatch(name) is not None and not name.startswith(".")
