"""Find the files that a set of processes may still change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class OpenFile(NamedTuple):
    """A file that is open for writing. `appending`: all its handles only append, as for logs."""

    writers: frozenset[int]
    appending: bool


class WritableFiles(NamedTuple):
    """The files that a set of processes had open for writing at one moment."""

    files: Mapping[Path, OpenFile]
    members: frozenset[int]


def open_for_writing(members: Iterable[int], folder: Path, seen_at: Iterable[str] = ()) -> WritableFiles:
    """Return the files under `folder` that any of these processes has open for writing, or mapped shared and writable.

    `seen_at` are other paths of the folder in the processes' own view of the file system: the kernel names files by the
    path with which they were opened. Processes that end meanwhile, or that may not be inspected, are skipped.
    """
    prefixes = tuple(top.rstrip("/") + "/" for top in (os.path.realpath(folder), *seen_at))
    found: dict[Path, OpenFile] = {}
    members = frozenset(members)
    for pid in members:
        for name, appending in (*_open_files(pid, prefixes), *_mapped_files(pid, prefixes)):
            prefix = next(each for each in prefixes if name.startswith(each))
            # By the caller's name of the folder, which may be a link.
            path = folder / name[len(prefix) :]
            known = found.get(path, OpenFile(frozenset(), True))
            found[path] = OpenFile(known.writers | {pid}, known.appending and appending)
    return WritableFiles(found, members)


def _open_files(pid: int, prefixes: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    try:
        handles = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - hot path
    except OSError:
        return
    for handle in handles:
        try:
            name = os.readlink(f"/proc/{pid}/fd/{handle}")  # noqa: PTH115 - hot path
            if name.startswith(prefixes) and not name.endswith(" (deleted)"):
                flags = _flags(pid, handle)
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    yield name, bool(flags & os.O_APPEND)
        except OSError:
            continue


def _flags(pid: int, handle: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{handle}", encoding="ascii") as file:  # noqa: PTH123 - hot path
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8)
    return os.O_RDONLY


def _mapped_files(pid: int, prefixes: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            for line in file:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) == 6 and fields[1].startswith("rw") and fields[1].endswith("s"):
                    name = fields[5].replace("\\012", "\n")
                    if name.startswith(prefixes) and not name.endswith(" (deleted)"):
                        yield name, False
    except OSError:
        return
