"""Names that no table has: typing errors, or newer than the table.

Clouds add regions and machine types all the time, so a missing name is not wrong by itself. It surely is a typing error
if one of its words is almost, but not exactly, a word that the cloud uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

# Words that clouds use in region names besides geography. Some are as similar to each other as `southeast` and
# `southwest`.
COMPASS = frozenset(
    {"north", "south", "east", "west", "central", "northeast", "northwest", "southeast", "southwest"},
)
# `wset` is as similar as this to `west`.
_SIMILARITY = 0.75


def is_typo(words: Iterable[str], known: Collection[str]) -> bool:
    """Return True if one of the words is almost, but not exactly, a known one."""
    return any(word not in known and bool(get_close_matches(word, known, n=1, cutoff=_SIMILARITY)) for word in words)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, preferably one with the same letters; None if none is similar."""
    names = list(known)
    same_letters = [each for each in names if sorted(each) == sorted(name)]
    return next(iter(same_letters or get_close_matches(name, names, n=1)), None)


def unchecked(field: str, name: str, known: Iterable[str] = ()) -> str:
    """The remark of an offline plan about a name that no table has."""
    similar = nearest(name, known)
    also = f"; the nearest that is: {similar}" if similar else ""
    return f"{field}: {name} is not in Stoker's table, so it was not checked{also}"
