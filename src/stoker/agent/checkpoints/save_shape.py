"""Which files one save consists of, learnt from what was committed before.

A script saves the same way each time. The *role* of a file is its path with every number replaced, so that
`checkpoint-100/optimizer.pt` and `checkpoint-200/optimizer.pt` have one role. The *shape* of a save is how many files
of each role it wrote, and which came last. A unit that changed in fewer files than its shape, or in another one last,
is a save that stopped half-way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stoker.agent.snapshot import File, unit_of
from stoker.model import BlobRef

_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Shape:
    """How many files of each role one save wrote, and the role of the last."""

    counts: Counter[str]
    last: str


def role_of(path: str) -> str:
    return _DIGITS.sub("#", path)


class SaveShapes:
    """The shapes of saves, by the role of their unit. `sizes` and `forms` are those of committed files, by role."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._sizes: dict[str, set[int]] = {}
        self._forms: dict[str, set[str]] = {}

    def learn(
        self,
        blobs: Mapping[str, BlobRef],
        before: Mapping[str, BlobRef],
        streams: Collection[str] = (),
        forms: Mapping[str, str] | None = None,
    ) -> None:
        """A commit of `blobs`, oldest first, followed one of `before`."""
        changed = [
            path
            for path, blob in blobs.items()
            if path not in streams and (path not in before or before[path].digest != blob.digest)
        ]
        by_unit: dict[str, list[str]] = {}
        for path in changed:
            by_unit.setdefault(unit_of(path), []).append(role_of(path))
        by_role: dict[str, list[list[str]]] = {}
        for unit, roles in by_unit.items():
            by_role.setdefault(role_of(unit), []).append(roles)
        for role, saves in by_role.items():
            # Of several saves in one commit, the largest: the first may have been smaller.
            largest = max(saves, key=len)
            self._shapes[role] = Shape(Counter(largest), largest[-1])
        if changed:
            self._sizes, self._forms = {}, {}
            for path, blob in blobs.items():
                self._sizes.setdefault(role_of(path), set()).add(blob.size)
        for path, form in (forms or {}).items():
            self._forms.setdefault(role_of(path), set()).add(form)

    def knows(self, unit: str) -> bool:
        return role_of(unit) in self._shapes

    def missing(self, unit: str, changed: Sequence[File]) -> str | None:
        """A role that a save of this unit still has to write, by the saves before; None: none. Empty: none is known.

        Of files that are overwritten, all may differ from the last commit and be of two saves: the one that a save
        writes last has to be the newest.
        """
        shape = self._shapes.get(role_of(unit))
        if shape is None:
            return ""
        have = Counter(role_of(file.path) for file in changed)
        lacking = next((role for role, count in shape.counts.items() if have[role] < count), None)
        if lacking is not None or not changed:
            return lacking
        newest_ns = max(file.signature.modified_ns for file in changed)
        newest = {role_of(file.path) for file in changed if file.signature.modified_ns == newest_ns}
        return None if shape.last in newest else shape.last

    def same_size(self, path: str, size: int) -> bool:
        return size in self._sizes.get(role_of(path), ())

    def same_form(self, path: str, form: str) -> bool:
        return form in self._forms.get(role_of(path), ())
