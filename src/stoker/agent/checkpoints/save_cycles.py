"""Learn from what is observed which files one save consists of, before any save was committed.

A program that writes a file again, or one of the next number, has finished the save before: the files written from the
first write until then are one save. A folder is looked at now and then, and versions of files are missed. So a cycle
teaches something only if it begins with the file that came first of all, and has every file that was written since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from stoker.agent.checkpoints.file_numbers import counts_time, generation_of, role_of
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, unit_of
from stoker.agent.checkpoints.save_shape import Shape, shape_of

# Parts of one save, numbered like saves, are written side by side. Saves lie further apart.
APART_S = 0.25
# No save has so many parts that are numbered like saves.
_MANY = 16


@dataclass
class _Kind:
    """Saves of one unit, or of units that are numbered upwards."""

    first: str
    # Whether `first` is known to have come first: it was seen without the others, or everything rested after it.
    sure: bool
    files: list[File] = field(default_factory=list)
    before: Shape | None = None
    learnt: Shape | None = None
    # How large the files of the last save were when it was finished, by role.
    sizes: dict[str, int] = field(default_factory=dict)
    # Roles that were written with a lower number after a higher one: these numbers count no saves.
    uncounted: set[str] = field(default_factory=set)

    def add(self, file: File, again: bool, fed: Mapping[str, int], was_open: bool) -> None:
        """A file was written. `fed`: when each role of the kind was written last."""
        if again and not counts_time(file.path):
            self.uncounted.add(role_of(file.path))
        if again or self._next_generation(file, was_open):
            begun_ns = self.files[0].signature.modified_ns
            self._close({role for role, modified_ns in fed.items() if modified_ns >= begun_ns})
            self.files = []
        self.files = [*(one for one in self.files if one.path != file.path), file]

    def _next_generation(self, file: File, was_open: bool) -> bool:
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
        # The time of a file is that of its end: of one that was seen open, it says nothing about its beginning.
        apart = apart_ns > APART_S * 1e9 and not was_open
        skips = generation[-1] > generation_of(newest.path)[-1] + 1 or generation[-1] > _MANY
        return counts_time(file.path) or skips or apart

    def _close(self, present: set[str]) -> None:
        """A save was finished: learn from it, if it was seen from its beginning to its end."""
        roles = {role_of(file.path) for file in self.files}
        generations = {generation for file in self.files if (generation := generation_of(file.path))}
        numbered = all(generation_of(file.path) for file in self.files) and not roles & self.uncounted
        begins = numbered or (self.sure and role_of(self.files[0].path) == self.first)
        if roles != present or not begins or (len(generations) > 1 and not roles & self.uncounted):
            return
        shape = shape_of(self.files)
        self.sizes = {role_of(file.path): file.size for file in self.files}
        before, self.before = self.before, shape
        if before is None or before.counts.keys() != shape.counts.keys():
            # Some saves write more than others: the last one counts.
            self.learnt = shape
            return
        last = before.last & shape.last
        self.learnt = self.before = replace(shape, last=last) if last and before.counts == shape.counts else None


class SaveCycles:
    """What was observed of saves, by the role of their unit. Not thread-safe: FolderWatch holds a lock around it."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._seen: dict[str, Signature] | None = None
        self._whole: set[str] = set()
        self._fed: set[str] = set()
        self._was_open: set[str] = set()

    def note(self, files: Files, skip: Collection[str], is_whole: Callable[[str], bool]) -> None:
        """The folder was scanned. `skip`: files that are open, or logs. What lies there at first belongs to no save."""
        if self._seen is None:
            self._seen = {path: file.signature for path, file in files.items()}
            return
        seen = self._seen = {path: signature for path, signature in self._seen.items() if path in files}
        self._fed &= files.keys()
        self._was_open = {path for path in self._was_open if path in files} | set(skip)
        new = [file for path, file in files.items() if path not in skip and _written(seen.get(path), file.signature)]
        by_kind: dict[str, list[File]] = {}
        for file in sorted(new, key=lambda file: (file.signature.modified_ns, file.path)):
            by_kind.setdefault(_kind_of(file.path), []).append(file)
        self._fed |= {file.path for file in new}
        for name, kind in self._kinds.items():
            kind.sure |= name not in by_kind
        for name, changed in by_kind.items():
            self._feed(name, changed, files, is_whole)

    def _feed(self, name: str, changed: list[File], files: Files, is_whole: Callable[[str], bool]) -> None:
        assert self._seen is not None
        fed: dict[str, int] = {}
        for path in self._fed:
            if _kind_of(path) == name:
                fed[role_of(path)] = max(fed.get(role_of(path), 0), files[path].signature.modified_ns)
        kind = self._kinds.get(name)
        if kind is None or kind.first not in fed:
            first = role_of(changed[0].path)
            kind = self._kinds[name] = _Kind(first, sure={role_of(file.path) for file in changed} == {first})
        for file in changed:
            before = self._seen.get(file.path)
            again = before is not None and (
                before.inode != file.signature.inode or file.size <= before.size or file.path in self._whole
            )
            again = again and any(one.path == file.path for one in kind.files)
            kind.add(file, again, fed, file.path in self._was_open)
            self._seen[file.path] = file.signature
            self._was_open.discard(file.path)
            (self._whole.add if is_whole(file.path) else self._whole.discard)(file.path)

    def shape(self, unit: str) -> Shape | None:
        """The shape of saves of this unit; None: not known."""
        kind = self._kinds.get(_kind_of(f"{unit}/" if unit else ""))
        return kind.learnt if kind is not None else None

    def shrank(self, file: File) -> bool:
        """Whether it is smaller than it was when the save before was finished, or that is not known."""
        kind = self._kinds.get(_kind_of(file.path))
        return kind is None or file.size < kind.sizes.get(role_of(file.path), 1 << 62)


def _written(before: Signature | None, now: Signature) -> bool:
    """Whether a file was written. A link to it that was made or removed changes its status alone."""
    return before is None or before[:4] != now[:4]


def _kind_of(path: str) -> str:
    unit = unit_of(path)
    return role_of(unit) if generation_of(unit) else unit
