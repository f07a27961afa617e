"""Learn from observed writes which files one save consists of, before any save was committed.

A program that writes a file again, or one with the next number, has finished the save before: the files written from
the first write until then are one save. Scans miss versions of files between them. So a cycle teaches something only if
it begins with the file that came first of all, and has every file that was written since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from stoker.agent.checkpoints.companion_units import CompanionUnits
from stoker.agent.checkpoints.file_numbers import Generation, counts_time, generation_of, role_of
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, top_folder_of
from stoker.agent.checkpoints.save_shape import Shape, shape_of

# Parts of one save that are numbered like saves are written close together. Saves are further apart than this.
APART_S = 0.25
# No save has more parts than this that are numbered like saves.
_MAX_PARTS = 16
# So many shapes of saves are remembered.
_REMEMBERED = 8


@dataclass
class _SaveUnderWay:
    """The files of the save that is being observed, in the order of their last writes.

    A save may have 100,000 files of one role, and each of them is added: nothing here looks at all of them.
    """

    files: dict[str, File] = field(default_factory=dict)
    newest_ns: int = 0
    # The newest generation of each role, and a file that has it.
    _newest: dict[str, tuple[Generation, str]] = field(default_factory=dict)

    def add(self, file: File) -> None:
        self.files.pop(file.path, None)
        self.files[file.path] = file
        self.newest_ns = max(self.newest_ns, file.signature.modified_ns)
        role, generation = role_of(file.path), generation_of(file.path)
        if role not in self._newest or generation > self._newest[role][0]:
            self._newest[role] = generation, file.path

    def newest_beside(self, path: str, role: str) -> Generation | None:
        """Return the newest generation among the other files of this role; None: there is no other."""
        found = self._newest.get(role)
        if found is None or found[1] != path:
            return None if found is None else found[0]
        # Few files are written twice in a save.
        others = (generation_of(one) for one in self.files if one != path and role_of(one) == role)
        return max(others, default=None)


@dataclass
class _Kind:
    """Saves of one unit, or of units that are numbered upwards."""

    first: str
    # True if `first` is known to have come first: it was seen without the others, or everything rested after it.
    sure: bool
    under_way: _SaveUnderWay = field(default_factory=_SaveUnderWay)
    before: Shape | None = None
    learnt: Shape | None = None
    # The shapes that finished saves had.
    finished: deque[Shape] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    # The sizes of the files of the last save when it was finished, by role.
    sizes: dict[str, int] = field(default_factory=dict)
    # Roles that were written with a lower number after a higher one: these numbers do not count saves.
    uncounted: set[str] = field(default_factory=set)

    def add(self, file: File, again: bool, last_written: Mapping[str, int], was_open: bool) -> bool:
        """Add a written file, and return True if a save begins with it.

        `last_written`: when each role of the kind was written last.
        """
        if again and not counts_time(file.path):
            self.uncounted.add(role_of(file.path))
        if again or self._next_generation(file, was_open):
            begun_ns = next(iter(self.under_way.files.values())).signature.modified_ns
            self._close({role for role, modified_ns in last_written.items() if modified_ns >= begun_ns})
            self.under_way = _SaveUnderWay()
        begins = not self.under_way.files
        self.under_way.add(file)
        return begins

    def _next_generation(self, file: File, was_open: bool) -> bool:
        role, generation = role_of(file.path), generation_of(file.path)
        newest = self.under_way.newest_beside(file.path, role) if generation and role not in self.uncounted else None
        if newest is None or newest == generation:
            return False
        if newest > generation:
            self.uncounted.add(role)
            self.learnt = None
            return False
        apart_ns = file.signature.modified_ns - self.under_way.newest_ns
        # A file is stamped when its writing ends: the stamp of a file that was seen open says nothing about its
        # beginning.
        apart = apart_ns > APART_S * 1e9 and not was_open
        skips = generation[-1] > newest[-1] + 1 or generation[-1] > _MAX_PARTS
        return counts_time(file.path) or skips or apart

    def _close(self, present: set[str]) -> None:
        """Finish a save, and learn from it if it was seen from its beginning to its end."""
        files = list(self.under_way.files.values())
        roles = {role_of(file.path) for file in files}
        generations = {generation for file in files if (generation := generation_of(file.path))}
        numbered = all(generation_of(file.path) for file in files) and not roles & self.uncounted
        begins = numbered or (self.sure and role_of(files[0].path) == self.first)
        if roles != present or not begins or (len(generations) > 1 and not roles & self.uncounted):
            return
        shape = shape_of(files)
        self.sizes = {role_of(file.path): file.size for file in files}
        if not any(shape.is_like(one) for one in self.finished):
            self.finished.append(shape)
        before, self.before = self.before, shape
        if before is None or before.counts.keys() != shape.counts.keys():
            # Some saves write more than others: the last one counts.
            self.learnt = shape
            return
        last = before.last & shape.last
        self.learnt = self.before = replace(shape, last=last) if last and before.counts == shape.counts else None


class SaveCycles:
    """Observed saves by the role of their unit. Not thread-safe: FolderWatch guards it with its lock."""

    def __init__(self) -> None:
        self.companions = CompanionUnits()
        self._kinds: dict[str, _Kind] = {}
        self._seen: dict[str, Signature] | None = None
        self._whole: set[str] = set()
        self._observed: set[str] = set()
        self._was_open: set[str] = set()

    def note(self, files: Files, skip: Collection[str], is_whole: Callable[[str], bool]) -> None:
        """Record a scan of the folder. `skip`: files that are open, or logs.

        Files of the first scan belong to no observed save.
        """
        if self._seen is None:
            self._seen = {path: file.signature for path, file in files.items()}
            return
        seen = self._seen = {path: signature for path, signature in self._seen.items() if path in files}
        self._observed &= files.keys()
        self._was_open = {path for path in self._was_open if path in files} | set(skip)
        new = [file for path, file in files.items() if path not in skip and _written(seen.get(path), file.signature)]
        by_kind: dict[str, list[File]] = {}
        for file in sorted(new, key=lambda file: (file.signature.modified_ns, file.path)):
            by_kind.setdefault(_kind_of(file.path), []).append(file)
        self._observed |= {file.path for file in new}
        for name, kind in self._kinds.items():
            kind.sure |= name not in by_kind
        begun: list[File] = []
        for name, changed in by_kind.items():
            begun += self._add_files(name, changed, files, is_whole)
        for file in sorted(begun, key=lambda file: file.signature.modified_ns):
            self.companions.note(top_folder_of(file.path), file.signature.modified_ns)

    def _add_files(self, name: str, changed: list[File], files: Files, is_whole: Callable[[str], bool]) -> list[File]:
        """Add the changed files of one kind. Return those with which a save of a unit without a number begins."""
        assert self._seen is not None
        last_written: dict[str, int] = {}
        for path in self._observed:
            if _kind_of(path) == name:
                last_written[role_of(path)] = max(last_written.get(role_of(path), 0), files[path].signature.modified_ns)
        kind = self._kinds.get(name)
        if kind is None or kind.first not in last_written:
            first = role_of(changed[0].path)
            kind = self._kinds[name] = _Kind(first, sure={role_of(file.path) for file in changed} == {first})
        begun: list[File] = []
        for file in changed:
            before = self._seen.get(file.path)
            # A file that is not known any more was removed since.
            again = before is None or (
                before.inode != file.signature.inode or file.size <= before.size or file.path in self._whole
            )
            again = again and file.path in kind.under_way.files
            begins = kind.add(file, again, last_written, file.path in self._was_open)
            if begins and not generation_of(top_folder_of(file.path)):
                begun.append(file)
            self._seen[file.path] = file.signature
            self._was_open.discard(file.path)
            (self._whole.add if is_whole(file.path) else self._whole.discard)(file.path)
        return begun

    def shape(self, unit: str) -> Shape | None:
        """Return the shape of saves of this unit; None: not known."""
        kind = self._kinds.get(_kind_of(f"{unit}/" if unit else ""))
        return kind.learnt if kind is not None else None

    def had_shape(self, unit: str, shape: Shape) -> bool:
        """Return True if a finished save of this unit had such a shape."""
        kind = self._kinds.get(_kind_of(f"{unit}/" if unit else ""))
        return kind is not None and any(shape.is_like(one) for one in kind.finished)

    def shrank(self, file: File) -> bool:
        """Return True if the file is smaller than in the finished save before, or if that size is not known."""
        kind = self._kinds.get(_kind_of(file.path))
        return kind is None or file.size < kind.sizes.get(role_of(file.path), 1 << 62)


def _written(before: Signature | None, now: Signature) -> bool:
    """Return True if the file was written. ctime is not compared: adding or removing a hard link changes it."""
    return before is None or before[:4] != now[:4]


def _kind_of(path: str) -> str:
    unit = top_folder_of(path)
    return role_of(unit) if generation_of(unit) else unit
