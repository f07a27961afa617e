"""Fields of files that people write: their documentation, written form and bounds, as metadata of dataclass fields."""

from __future__ import annotations

import dataclasses
from typing import Any

# No machine costs more an hour, no account has more money and no more nodes ever trained together. A larger number is a
# mistake, and sums with it would overflow.
MAX_PRICE = 1e6
MAX_DOLLARS = 1e9
MAX_NODES = 10_000


def file_field(
    doc: str,
    *,
    form: str = "",
    default: Any = dataclasses.MISSING,
    factory: Any = dataclasses.MISSING,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    key: str = "",
) -> Any:
    """A dataclass field of a file that people write: its documentation, its written form, and the bounds of its number.
    Durations and sizes have an upper bound of their own.

    `key` is the name in the file, if that is no valid name in Python.
    """
    metadata = {"doc": doc, "form": form, "least": least, "above": above, "most": most, "key": key}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is not dataclasses.MISSING:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(metadata=metadata)
