"""Any text as one segment of a key that every store accepts, and back."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]")
_ANY = re.compile(r".")
_ESCAPE = re.compile(r"=([0-9a-f]{2})")


def quote(name: str) -> str:
    """Escape a name, also an empty one. `.` and `..` are escaped whole: they would lead to another folder."""
    escaped = _ANY if name in (".", "..") else _UNSAFE
    return escaped.sub(lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), name) or "="


def unquote(segment: str) -> str:
    """Reverse `quote`. Raises ValueError for text that `quote` cannot have made."""
    plain = "" if segment == "=" else _ESCAPE.sub(lambda found: chr(int(found[1], 16)), segment)
    return plain.encode("latin-1").decode()
