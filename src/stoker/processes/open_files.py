"""Find the files that a set of processes may still change."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.processes.identity import proc_folder, stat_of

_DELETED = " (deleted)"

# Files by device and inode, each with its paths relative to the folder.
FilesByInode = Mapping[tuple[int, int], Collection[str]]


class OpenFile(NamedTuple):
    """A file that is open for writing. `appending`: all its handles only append, as for logs."""

    writers: frozenset[int]
    appending: bool


class WritableFiles(NamedTuple):
    """The files that a set of processes had open for writing at one moment."""

    files: Mapping[Path, OpenFile]
    members: frozenset[int]


def open_for_writing(
    members: Iterable[int], folder: Path, seen_at: Iterable[str] = (), aliased: FilesByInode | None = None
) -> WritableFiles:
    """Return the files under `folder` that any of these processes has open for writing, or mapped shared and writable.

    `seen_at` are other paths of the folder in the processes' own view of the file system: the kernel names files by the
    path with which they were opened. `aliased` are the files of the folder that may be opened by other paths: targets
    of links, and files with hard links. Processes that end meanwhile, or that may not be inspected, are skipped.
    """
    view = _View(folder, tuple(top.rstrip("/") + "/" for top in (os.path.realpath(folder), *seen_at)), aliased or {})
    found: dict[Path, OpenFile] = {}
    members = frozenset(members)
    for pid in members:
        for path, appending in view.open_in(pid):
            known = found.get(path, OpenFile(frozenset(), True))
            found[path] = OpenFile(known.writers | {pid}, known.appending and appending)
    return WritableFiles(found, members)


class _Handle(NamedTuple):
    """A handle as /proc/<pid>/fdinfo describes it. `inode` is None before Linux 5.14."""

    flags: int
    inode: int | None


class _View:
    """One folder, as other processes name the files in it. `prefixes` are its paths, each with a slash at its end."""

    def __init__(self, folder: Path, prefixes: tuple[str, ...], aliased: FilesByInode) -> None:
        self._folder = folder
        self._prefixes = prefixes
        self._aliased = aliased
        self._aliased_inodes = {inode for _, inode in aliased}

    def open_in(self, pid: int) -> Iterator[tuple[Path, bool]]:
        """Yield the files that the process may still change, and if it only appends."""
        proc = f"/proc/{pid}"
        handles = _handles(proc)
        if not handles:
            stat = stat_of(pid)
            if stat is None or not stat.leaderless:
                return
            proc = proc_folder(stat)
            handles = _handles(proc)
        for handle in handles:
            try:
                yield from self._of_handle(proc, handle)
            except OSError:
                continue  # Closed meanwhile.
        yield from self._mapped(proc)

    def _of_handle(self, proc: str, handle: str) -> Iterator[tuple[Path, bool]]:
        name = os.readlink(f"{proc}/fd/{handle}")  # noqa: PTH115 - hot path
        inside = name.startswith(self._prefixes)
        if not inside and not (self._aliased and name.startswith("/")):
            return
        info = _handle_info(proc, handle)
        if info.flags & os.O_ACCMODE == os.O_RDONLY:
            return
        appending = bool(info.flags & os.O_APPEND)
        if inside and (not name.endswith(_DELETED) or self._is_at(name, f"{proc}/fd/{handle}")):
            yield self._path(name), appending
        # The status of a file elsewhere is asked for only if the inode matches: its disk may not answer.
        if self._aliased and (info.inode is None or info.inode in self._aliased_inodes):
            status = os.stat(f"{proc}/fd/{handle}")  # noqa: PTH116 - hot path
            for path in self._aliased.get((status.st_dev, status.st_ino), ()):
                yield self._folder / path, appending

    def _mapped(self, proc: str) -> Iterator[tuple[Path, bool]]:
        try:
            with open(f"{proc}/maps", "rb") as file:  # noqa: PTH123 - hot path
                lines = [line for line in file if line[:80].find(b"rw-s") > 0 or line[:80].find(b"rwxs") > 0]
        except OSError:
            return
        for line in lines:
            fields = line.rstrip(b"\n").split(None, 5)
            if len(fields) != 6 or not fields[5].startswith(b"/"):
                continue
            name, inode = os.fsdecode(fields[5]), int(fields[4])
            # The kernel writes a newline as \012, and leaves a real \012 as it is.
            for spelled in {name, name.replace("\\012", "\n")}:
                if spelled.startswith(self._prefixes) and self._is_mapped_at(spelled, inode, certain=spelled == name):
                    yield self._path(spelled), False
            if inode in self._aliased_inodes:
                # The device in this list is not always that of the file's status, on btrfs for example.
                for (_, number), paths in self._aliased.items():
                    if number == inode:
                        yield from ((self._folder / path, False) for path in paths)

    def _is_mapped_at(self, name: str, inode: int, *, certain: bool) -> bool:
        if certain and not name.endswith(_DELETED) and "\\012" not in name:
            return True
        try:
            return os.lstat(self._path(name)).st_ino == inode
        except OSError:
            return False

    def _is_at(self, name: str, handle: str) -> bool:
        """Return if the open file has this very name, or false if the kernel says with it that the file is deleted."""
        try:
            return os.path.samestat(os.lstat(self._path(name)), os.stat(handle))  # noqa: PTH116 - hot path
        except OSError:
            return False

    def _path(self, name: str) -> Path:
        """Return the caller's path of a file: its name of the folder may be a link."""
        prefix = next(each for each in self._prefixes if name.startswith(each))
        return self._folder / name[len(prefix) :]


def _handles(proc: str) -> list[str]:
    try:
        return os.listdir(f"{proc}/fd")  # noqa: PTH208 - hot path
    except OSError:
        return []


def _handle_info(proc: str, handle: str) -> _Handle:
    flags, inode = os.O_RDONLY, None
    with open(f"{proc}/fdinfo/{handle}", encoding="ascii") as file:  # noqa: PTH123 - hot path
        for line in file:
            if line.startswith("flags:"):
                flags = int(line.split()[1], 8)
            elif line.startswith("ino:"):
                inode = int(line.split()[1])
    return _Handle(flags, inode)
