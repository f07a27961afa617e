"""Which files one save consists of, learnt from what was committed before.

A script saves the same way each time. The *role* of a file is its path with every number replaced, so that
`checkpoint-100/optimizer.pt` and `checkpoint-200/optimizer.pt` have one role. The *shape* of a save is how many files
of each role it wrote. A unit that changed in fewer files than its shape is a save that stopped half-way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from stoker.agent.snapshot import unit_of
from stoker.model import BlobRef

_DIGITS = re.compile(r"[0-9]+")


def role_of(path: str) -> str:
    return _DIGITS.sub("#", path)


class SaveShapes:
    """The shapes of saves, by the role of their unit. `sizes` and `forms` are those of committed files, by role."""

    def __init__(self) -> None:
        self._shapes: dict[str, Counter[str]] = {}
        self._sizes: dict[str, set[int]] = {}
        self._forms: dict[str, set[str]] = {}

    def learn(
        self,
        blobs: Mapping[str, BlobRef],
        before: Mapping[str, BlobRef],
        streams: Collection[str] = (),
        forms: Mapping[str, str] | None = None,
    ) -> None:
        """A commit of `blobs` followed one of `before`."""
        changed = [
            path
            for path, blob in blobs.items()
            if path not in streams and (path not in before or before[path].digest != blob.digest)
        ]
        by_unit: dict[str, Counter[str]] = {}
        for path in changed:
            by_unit.setdefault(unit_of(path), Counter())[role_of(path)] += 1
        by_role: dict[str, list[Counter[str]]] = {}
        for unit, shape in by_unit.items():
            by_role.setdefault(role_of(unit), []).append(shape)
        for role, shapes in by_role.items():
            # Of several saves in one commit, the largest: the first may have been smaller.
            self._shapes[role] = max(shapes, key=lambda shape: shape.total())
        if changed:
            self._sizes, self._forms = {}, {}
            for path, blob in blobs.items():
                self._sizes.setdefault(role_of(path), set()).add(blob.size)
        for path, form in (forms or {}).items():
            self._forms.setdefault(role_of(path), set()).add(form)

    def knows(self, unit: str) -> bool:
        return role_of(unit) in self._shapes

    def missing(self, unit: str, changed: Iterable[str]) -> str | None:
        """A role that a save of this unit had before and `changed` has not; None: none. Empty: no save is known."""
        shape = self._shapes.get(role_of(unit))
        if shape is None:
            return ""
        have = Counter(map(role_of, changed))
        return next((role for role, count in shape.items() if have[role] < count), None)

    def same_size(self, path: str, size: int) -> bool:
        return size in self._sizes.get(role_of(path), ())

    def same_form(self, path: str, form: str) -> bool:
        return form in self._forms.get(role_of(path), ())
