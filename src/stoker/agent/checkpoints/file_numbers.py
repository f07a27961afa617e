"""Distinguish numbers that count saves from numbers that count parts of one save.

`epoch-001.json` and `epoch-002.json` are two saves, and so are `checkpoint-10/` and `checkpoint-20/`. `rank0.pt` and
`rank1.pt`, or `model-00001-of-00003`, are parts of one. Only a counting word before the number shows which it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from stoker.agent.checkpoints.folder_snapshot import top_folder_of
from stoker.model.node_facts import BlobRef

_DIGITS = re.compile(r"[0-9]+")
_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)([^0-9]*)")
_FRACTION = re.compile(r"[0-9]+[.][0-9]+")
# Words that count time, and words for a save. The latter are also used for parts: `ckpt_0.pt` may be that of rank 0.
_TIMES = "epochs?|global_?steps?|steps?|iterations?|iters?|updates?|rounds?"
_SAVES = "checkpoints?|ckpts?|saves?|snapshots?"
_COUNTED = re.compile(rf"(?:(?<![a-z])(?:({_TIMES})|({_SAVES})))[ _=.:-]{{0,2}}([0-9]+)(?![0-9]*-of-)", re.IGNORECASE)

Generation = tuple[int, ...]


def role_of(path: str) -> str:
    """Replace every number in the path: the result is equal for the same file of two saves."""
    return _DIGITS.sub("#", path)


def generation_of(path: str) -> Generation:
    """Return the numbers in a path that count saves; empty if there are none."""
    return tuple(int(found[3]) for found in _COUNTED.finditer(path))


def counts_time(path: str) -> bool:
    """Return True if one of these numbers counts epochs, steps or the like, which numbers of parts never do."""
    return any(found[1] for found in _COUNTED.finditer(path))


def hide_generations(path: str, parts: int) -> str:
    """Replace every number in the path that certainly counts saves, and not one of `parts` parts of a save.

    Numbers with a fraction beside such a number, for example a loss, are replaced as well.
    """

    def hide(found: re.Match[str]) -> str:
        counts = bool(found[1]) or int(found[3]) > parts
        return found[0][: -len(found[3])] + "#" if counts else found[0]

    hidden = _COUNTED.sub(hide, path)
    return hidden if hidden == path else _FRACTION.sub("#", hidden)


def newest_counts(paths: Iterable[str]) -> Counter[str]:
    """Count the files of each role; where a number counts time, those of the newest generation only."""
    newest: dict[str, Generation] = {}
    counts: Counter[str] = Counter()
    for path in paths:
        role, generation = role_of(path), generation_of(path) if counts_time(path) else ()
        if role not in newest or generation > newest[role]:
            newest[role], counts[role] = generation, 0
        counts[role] += generation == newest[role]
    return counts


def newest_names(paths: Iterable[str]) -> dict[str, str]:
    """Return, by role, the newest of the names at the top in which a number counts epochs, steps or the like."""
    newest: dict[str, str] = {}
    for top in {path.partition("/")[0] for path in paths}:
        if counts_time(top):
            role = role_of(top)
            newest[role] = max(newest.get(role, top), top, key=lambda name: (generation_of(name), name))
    return newest


def newest_generation(paths: Iterable[str]) -> set[str]:
    """Return the paths without those that a path with the same role and a higher generation follows."""
    found = set(paths)
    newest: dict[str, Generation] = {}
    for path in found:
        newest[role_of(path)] = max(newest.get(role_of(path), ()), generation_of(path))
    return {path for path in found if generation_of(path) == newest[role_of(path)]}


def newest_of_each_kind(blobs: Mapping[str, BlobRef]) -> dict[str, BlobRef]:
    """Return the files of the highest-numbered unit of each kind, and all files of units without a number."""
    newest: dict[str, tuple[int, str]] = {}
    for unit in {top_folder_of(path) for path in blobs}:
        kind, number = number_of(unit) or (unit, 0)
        newest[kind] = max(newest.get(kind, (-1, "")), (number, unit))
    units = {unit for _, unit in newest.values()}
    return {path: blob for path, blob in blobs.items() if top_folder_of(path) in units}


def number_of(unit: str) -> tuple[str, int] | None:
    """Return kind and number of a unit: `checkpoint-200` is number 200 of its kind. None: not exactly one number."""
    found = _NUMBERED.fullmatch(unit)
    return (f"{found[1]}#{found[3]}", int(found[2])) if found else None
