"""Learn from what is observed which files one save consists of, before any save was committed.

A program that writes a file again, or one of the next number, has finished the save before: the files written from the
first write until then are one save. A folder is looked at now and then, and versions of files are missed. So a cycle
teaches something only if it begins with the file that came first of all, and has a file of every role that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from stoker.agent.checkpoints.generations import counts_time, generation_of, role_of
from stoker.agent.checkpoints.save_shape import Shape, shape_of
from stoker.agent.snapshot import File, Files, Signature, unit_of

# Parts of one save, numbered like saves, are written side by side. Saves lie further apart.
APART_S = 0.25


@dataclass
class _Kind:
    """Saves of one unit, or of units that are numbered upwards."""

    first: str
    # Whether `first` is known to have come first: it was seen without the others, or everything rested after it.
    sure: bool
    files: list[File] = field(default_factory=list)
    before: Shape | None = None
    learnt: Shape | None = None
    # Roles that were written with a lower number after a higher one: these numbers count no saves.
    uncounted: set[str] = field(default_factory=set)

    def add(self, file: File, again: bool, present: set[str]) -> None:
        if again or self._next_generation(file):
            self._close(present)
            self.files = []
        self.files = [*(one for one in self.files if one.path != file.path), file]

    def _next_generation(self, file: File) -> bool:
        role, generation = role_of(file.path), generation_of(file.path)
        older = [one for one in self.files if role_of(one.path) == role and one.path != file.path]
        if not generation or not older or role in self.uncounted:
            return False
        newest = max(older, key=lambda one: generation_of(one.path))
        if generation_of(newest.path) > generation:
            self.uncounted.add(role)
            self.learnt = None
            return False
        if generation_of(newest.path) == generation:
            return False
        apart_ns = file.signature.modified_ns - max(one.signature.modified_ns for one in self.files)
        skips = len(generation) == 1 and generation[0] > generation_of(newest.path)[0] + 1
        return counts_time(file.path) or skips or apart_ns > APART_S * 1e9

    def _close(self, present: set[str]) -> None:
        """A save was finished: learn from it, if it was seen from its beginning to its end."""
        roles = {role_of(file.path) for file in self.files}
        generations = {generation for file in self.files if (generation := generation_of(file.path))}
        numbered = all(generation_of(file.path) for file in self.files)
        begins = numbered or (self.sure and role_of(self.files[0].path) == self.first)
        if roles != present or not begins or (len(generations) > 1 and not roles & self.uncounted):
            return
        shape = shape_of(self.files)
        if self.before is None or self.before.counts == shape.counts:
            last = shape.last if self.before is None else self.before.last & shape.last
            shape = Shape(shape.counts, last)
            self.learnt = shape if last else None
        else:
            self.learnt = None
        self.before = shape if shape.last else None


class SaveCycles:
    """What was observed of saves, by the role of their unit. Not thread-safe: FolderWatch holds a lock around it."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._seen: dict[str, Signature] | None = None
        self._whole: set[str] = set()
        self._fed: set[str] = set()

    def note(self, files: Files, skip: Collection[str], is_whole: Callable[[str], bool]) -> None:
        """The folder was scanned. `skip`: files that are open, or logs. What lies there at first belongs to no save."""
        if self._seen is None:
            self._seen = {path: file.signature for path, file in files.items()}
            return
        seen = self._seen = {path: signature for path, signature in self._seen.items() if path in files}
        self._fed &= files.keys()
        new = [file for path, file in files.items() if path not in skip and seen.get(path) != file.signature]
        by_kind: dict[str, list[File]] = {}
        for file in sorted(new, key=lambda file: (file.signature.modified_ns, file.path)):
            by_kind.setdefault(_kind_of(file.path), []).append(file)
        self._fed |= {file.path for file in new}
        for name, kind in self._kinds.items():
            kind.sure |= name not in by_kind
        for name, changed in by_kind.items():
            self._feed(name, changed, is_whole)

    def _feed(self, name: str, changed: list[File], is_whole: Callable[[str], bool]) -> None:
        assert self._seen is not None
        present = {role_of(path) for path in self._fed if _kind_of(path) == name}
        kind = self._kinds.get(name)
        if kind is None or kind.first not in present:
            first = role_of(changed[0].path)
            kind = self._kinds[name] = _Kind(first, sure={role_of(file.path) for file in changed} == {first})
        for file in changed:
            before = self._seen.get(file.path)
            again = before is not None and (
                before.inode != file.signature.inode or file.size <= before.size or file.path in self._whole
            )
            kind.add(file, again and any(one.path == file.path for one in kind.files), present)
            self._seen[file.path] = file.signature
            (self._whole.add if is_whole(file.path) else self._whole.discard)(file.path)

    def shape(self, unit: str) -> Shape | None:
        """The shape of saves of this unit; None: not known."""
        kind = self._kinds.get(_kind_of(f"{unit}/" if unit else ""))
        return kind.learnt if kind is not None else None


def _kind_of(path: str) -> str:
    unit = unit_of(path)
    return role_of(unit) if generation_of(unit) else unit
