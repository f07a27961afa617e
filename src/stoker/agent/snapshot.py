"""A folder that others write to, as it is at one moment: its files, how they look, and copies of them."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from stoker.checkpoints import safe_link
from stoker.manifests import safe_path
from stoker.model import BlobRef
from stoker.saves import LOCK

log = logging.getLogger(__name__)

IGNORED = ("*.tmp", ".tmp-*", "*.partial", ".stoker-folder.*", LOCK)

_FICLONE = 0x40049409
_PLAIN_CHARS = 1000


class Signature(NamedTuple):
    """Equal before and after: the same bytes, unless written within one tick of the filesystem's clock."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Signature:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def newest_ns(self) -> int:
        return max(self.modified_ns, self.changed_ns)


class File(NamedTuple):
    """A file of the folder. `link` is where a link inside the folder points; others are read through."""

    path: str
    signature: Signature
    mode: int
    link: str | None = None

    @property
    def size(self) -> int:
        return self.signature.size if self.link is None else len(self.link.encode())


Files = dict[str, File]


def scan(folder: Path, ignored: Collection[str] = IGNORED) -> Files:
    """Every file under `folder`, by its path relative to it. What vanishes meanwhile is left out."""
    pattern = re.compile("|".join(translate(name) for name in ignored) if ignored else r"(?!)")
    return {file.path: file for file in _scan(os.fspath(folder), "", pattern)}


@dataclass(frozen=True)
class Selection:
    """Which files of a checkpoint folder are checkpoints, where others may lie in it: by a look at it, and by name."""

    scan: Callable[[Path], Files] = scan
    takes: Callable[[str], bool] = lambda _path: True


def _scan(folder: str, below: str, ignored: re.Pattern[str]) -> Iterator[File]:
    try:
        entries = list(os.scandir(f"{folder}/{below}" if below else folder))
    except OSError:
        return
    for entry in entries:
        if ignored.match(entry.name):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _scan(folder, path, ignored)
                continue
            found = entry.stat(follow_symlinks=False)
            file = File(path, Signature.of(found), found.st_mode)
            if stat.S_ISLNK(found.st_mode):
                read = _read_link(folder, path, file)
                if read is None:
                    continue
                file = read
        except OSError:
            continue
        # Most names are plain; looking closer at each takes as long as all the rest.
        plain = len(path) <= _PLAIN_CHARS and path.isascii()
        if (stat.S_ISREG(file.mode) or file.link is not None) and (plain or safe_path(path)):
            yield file


def _read_link(folder: str, path: str, file: File) -> File | None:
    """A link inside the folder stays one; one that leads to a file outside is read as that file."""
    here = Path(folder, path)
    target = os.fspath(here.readlink())
    if target.startswith(folder + "/"):
        target = os.path.relpath(target, here.parent)
    if safe_link(path, target):
        return file._replace(link=target)
    found = here.stat()
    if not stat.S_ISREG(found.st_mode):
        log.warning("%s is left out: a link out of the checkpoint folder", path)
        return None
    return File(path, Signature.of(found), found.st_mode)


def signature_of(path: Path, file: File) -> Signature | None:
    """What the file's signature is now; None when it is gone."""
    try:
        # What was read through a link is compared through it.
        return Signature.of(path.stat() if file.link is None else path.lstat())
    except OSError:
        return None


def copy_stable(source: Path, file: File, target: Path) -> bool:
    """Copy a file that may be written any moment, sharing its blocks where the filesystem can. False: it changed."""
    if signature_of(source, file) != file.signature:
        return False
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, 1024 * 1024)
    return signature_of(source, file) == file.signature and target.stat().st_size == file.size


def unit_of(path: str) -> str:
    """The top-level folder a path lies in; empty for the plain files beside them."""
    top, separator, _ = path.partition("/")
    return top if separator else ""


def leave_out(
    files: Mapping[str, File], blocked: Collection[str], last: Mapping[str, BlobRef]
) -> tuple[Files, dict[str, BlobRef]]:
    """What may be committed while `blocked` are being written: files as they are, and parts of the last commit.

    The unit of a blocked file stays as it was in the last commit, or is left out: the plain files at the top are one.
    Units that vanished since then stay with it, because it may refer to them.
    """
    units = {unit_of(path) for path in blocked}
    taken = {path: file for path, file in files.items() if unit_of(path) not in units}
    if not units:
        return taken, {}
    present = {unit_of(path) for path in taken}
    return taken, {path: blob for path, blob in last.items() if unit_of(path) not in present}
