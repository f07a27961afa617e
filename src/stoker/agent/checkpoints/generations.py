"""Tell numbers that count saves from numbers that count parts of one.

`epoch-001.json` and `epoch-002.json` are two saves, and so are `checkpoint-10/` and `checkpoint-20/`. `rank0.pt` and
`rank1.pt`, or `model-00001-of-00003`, are parts of one. Only a counting word before the number tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_DIGITS = re.compile(r"[0-9]+")
# Words that count time, and words for a save. The latter are also given to parts: `ckpt_0.pt` may be that of rank 0.
_TIMES = "epochs?|global_?steps?|steps?|iterations?|iters?|updates?|rounds?"
_SAVES = "checkpoints?|ckpts?|saves?|snapshots?"
_COUNTED = re.compile(rf"(?:(?<![a-z])(?:({_TIMES})|({_SAVES})))[ _=.:-]{{0,2}}([0-9]+)(?![0-9]*-of-)", re.IGNORECASE)

Generation = tuple[int, ...]


def role_of(path: str) -> str:
    """The path with every number replaced: equal for the same file of two saves."""
    return _DIGITS.sub("#", path)


def generation_of(path: str) -> Generation:
    """The numbers in a path that count saves. Empty: there are none."""
    return tuple(int(found[3]) for found in _COUNTED.finditer(path))


def counts_time(path: str) -> bool:
    """Whether one of these numbers counts epochs, steps or the like, which parts of a save never do."""
    return any(found[1] for found in _COUNTED.finditer(path))


def newest_counts(paths: Iterable[str]) -> Counter[str]:
    """How many files of each role there are; where a number counts time, of the newest generation alone."""
    newest: dict[str, Generation] = {}
    counts: Counter[str] = Counter()
    for path in paths:
        role, generation = role_of(path), generation_of(path) if counts_time(path) else ()
        if role not in newest or generation > newest[role]:
            newest[role], counts[role] = generation, 0
        counts[role] += generation == newest[role]
    return counts
