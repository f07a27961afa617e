"""Which files may still change under the hands of a set of processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def open_for_writing(members: Iterable[int], folder: Path, seen_at: Iterable[str] = ()) -> set[Path]:
    """Files under `folder` that any of these processes has open for writing, or mapped shared and writable.

    `seen_at` is where else they have the folder, in a view of the file system of their own: the kernel names files
    as whoever opened them does. Processes that end meanwhile, or that may not be looked into, are passed over.
    """
    prefixes = tuple(top.rstrip("/") + "/" for top in (os.path.realpath(folder), *seen_at))
    found: set[Path] = set()
    for pid in members:
        for name in (*_open_files(pid, prefixes), *_mapped_files(pid, prefixes)):
            prefix = next(each for each in prefixes if name.startswith(each))
            # As the caller names the folder, which may be through a link.
            found.add(folder / name[len(prefix) :])
    return found


def _open_files(pid: int, prefixes: tuple[str, ...]) -> Iterator[str]:
    try:
        handles = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - hot path
    except OSError:
        return
    for handle in handles:
        try:
            name = os.readlink(f"/proc/{pid}/fd/{handle}")  # noqa: PTH115 - hot path
            if name.startswith(prefixes) and not name.endswith(" (deleted)") and _writable(pid, handle):
                yield name
        except OSError:
            continue


def _writable(pid: int, handle: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{handle}", encoding="ascii") as file:  # noqa: PTH123 - hot path
        for line in file:
            if line.startswith("flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _mapped_files(pid: int, prefixes: tuple[str, ...]) -> Iterator[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            for line in file:
                fields = line.rstrip("\n").split(None, 5)
                if len(fields) == 6 and fields[1].startswith("rw") and fields[1].endswith("s"):
                    name = fields[5].replace("\\012", "\n")
                    if name.startswith(prefixes) and not name.endswith(" (deleted)"):
                        yield name
    except OSError:
        return
