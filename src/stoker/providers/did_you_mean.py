"""Names of a cloud that no table has: a slip of the pen, or newer than the table.

Clouds bring out regions and machine types all the time, so a name is not wrong because a table does not have it. It
surely is where one of its words is almost, and not quite, one that the cloud uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

# What clouds name regions by, besides where they are. Two of them are as alike as `southeast` and `southwest`.
COMPASS = frozenset(
    {"north", "south", "east", "west", "central", "northeast", "northwest", "southeast", "southwest"},
)
# `wset` is so near to `west`.
_SLIP = 0.75


def is_slip(words: Iterable[str], known: Collection[str]) -> bool:
    """Whether one of the words is none of those that are known, but almost."""
    return any(word not in known and bool(get_close_matches(word, known, n=1, cutoff=_SLIP)) for word in words)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that is most like it, of the same letters where there is one; None where none is like it at all."""
    names = list(known)
    swapped = [each for each in names if sorted(each) == sorted(name)]
    return next(iter(swapped or get_close_matches(name, names, n=1)), None)


def unchecked(field: str, name: str, known: Iterable[str] = ()) -> str:
    """What a plan says that asks nobody, of a name that no table has."""
    near = nearest(name, known)
    also = f"; the nearest that is: {near}" if near else ""
    return f"{field}: {name} is not in Stoker's table, so it was not checked{also}"
