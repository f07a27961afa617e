"""The state of a folder that other processes write to: its files, their signatures, open handles, stable copies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stoker.agent.checkpoints.save_protocol import LOCK
from stoker.agent.checkpoints.unreadable_files import as_unreadable, naming_unreadable, printable
from stoker.agent.confinement import Confinement, handle_path
from stoker.model.node_facts import BlobRef
from stoker.processes import FilesByInode, OpenFile, WritableFiles
from stoker.processes.pseudo_files import is_pseudo
from stoker.store.base import FileChanged
from stoker.store.checkpoint_manifests import PATH_DEPTH, safe_path, why_unsafe
from stoker.store.hashed_copy import FICLONE
from stoker.store.link_targets import safe_link

log = logging.getLogger(__name__)

IGNORED_NAMES = ("*.tmp", ".tmp-*", "*.partial", ".stoker-folder.*", LOCK)

# The maximum depth of folders: a deeper path is a program's mistake, and readers refuse a checkpoint with it.
MAX_DEPTH = PATH_DEPTH - 1

# Errors that say that a file or folder vanished, or was replaced, since it was listed.
_VANISHED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


_PLAIN_CHARS = 1000
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Signature(NamedTuple):
    """The identity of a file's content.

    Equal signatures mean equal bytes, unless the file was written within one tick of the clock.
    """

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
    """A file of the folder.

    `link` is the target of a link inside the folder. Other links are read as the file they point to, or left out.
    `aliased`: there may be other paths to the file, because it was read through such a link or has hard links.
    `problem` says why no checkpoint can hold this file; then nothing of its unit is committed. A folder whose files are
    unknown is listed as such a file, with a slash at the end of its path.
    """

    path: str
    signature: Signature
    mode: int
    link: str | None = None
    aliased: bool = False
    problem: str = ""

    @property
    def size(self) -> int:
        return self.signature.size if self.link is None else len(self.link.encode())


Files = dict[str, File]
# Takes note of a link that is left out: its path and its target.
LeaveOut = Callable[[str, str], None]
_NO_SIGNATURE = Signature(0, 0, 0, 0, 0)


class LinkWarnings:
    """Warns the user once about links out of the checkpoint folder that lead to no file."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = False

    def __call__(self, path: str, target: str) -> None:
        _log_left_out(path, target)
        said, self._said = self._said, True
        if not said:
            self._say(
                f"warning: {_link_left_out(path, target)}; let the script write the files itself. This warning appears "
                "once for all such links"
            )


@lru_cache(maxsize=1000)
def _log_left_out(path: str, target: str) -> None:
    """Log it once."""
    log.warning("%s", _link_left_out(path, target))


def _link_left_out(path: str, target: str) -> str:
    text = f"{path} is left out: a link out of the checkpoint folder, to {target}, which is no file on a disk"
    return printable(text)


def scan(
    folder: Path,
    ignored: Collection[str] = IGNORED_NAMES,
    confinement: Confinement | None = None,
    *,
    leave_out: LeaveOut | None = None,
    links_out: bool = True,
    closed_folders: bool = False,
) -> Files:
    """Return every file under `folder` by relative path, also those that cannot be kept (`File.problem`).

    Files that vanish meanwhile are left out, and so is what has no content of its own: pipes, sockets, devices, files
    of the kernel, and links to anything but a file, which `leave_out` takes note of.

    Without `links_out`, links out of the folder are left out. With `confinement`, no link leads out of the folder, not
    even the folder itself, even if something is replaced meanwhile. With `closed_folders`, a folder below that cannot
    be read is in the result, as a file with the mode of a folder: otherwise nothing would show that its files are
    missing.
    """
    pattern = _matching(tuple(ignored))
    try:
        handle = os.open(folder, OPEN_FOLDER) if confinement is None else confinement.open(folder)
    except OSError:
        return {}
    try:
        noting = leave_out or _log_left_out if confinement is None else confinement.leave_out
        rules = _Scan(os.fspath(folder), pattern, confinement, noting, links_out, closed_folders)
        return {file.path: file for file in _scan(rules, handle, "")}
    finally:
        os.close(handle)


@lru_cache(maxsize=16)
def _matching(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of these names. A folder is scanned twice a second."""
    return re.compile("|".join(translate(name) for name in names) if names else r"(?!)")


@dataclass(frozen=True)
class Selection:
    """The files of a folder that are checkpoints, where there may be others: found by a scan, or tested by path."""

    scan: Callable[[Path], Files] = lambda folder: scan(folder, closed_folders=True)
    takes: Callable[[str], bool] = lambda _path: True
    confinement: Confinement | None = None
    # Says whether a file of this folder was there before the training, and is unchanged: it is not the job's.
    was_there: Callable[[Path, File], bool] = lambda _folder, _file: False


class OpenFiles(NamedTuple):
    """The files that the training has open for writing, by path relative to the folder, and its processes."""

    files: dict[str, OpenFile]
    members: frozenset[int]


@dataclass
class FolderView:
    """Access to one checkpoint folder: its files, and which of them are open for writing.

    `writing` gives the open files by absolute path; its argument are the files that may be open by other paths, as of
    the last scan.
    """

    folder: Path
    writing: Callable[[FilesByInode], WritableFiles]
    selection: Selection = Selection()
    _aliased: FilesByInode = field(default_factory=dict, init=False)

    def scan(self) -> Files:
        found = self.selection.scan(self.folder)
        aliased: dict[tuple[int, int], list[str]] = {}
        for path, file in found.items():
            if file.aliased:
                aliased.setdefault(file.signature[:2], []).append(path)
        self._aliased = aliased
        return found

    def open_files(self) -> OpenFiles:
        """Return the checkpoint files that are open for writing at this moment."""
        writing = self.writing(self._aliased)
        found = {}
        for absolute, file in writing.files.items():
            try:
                path = absolute.relative_to(self.folder).as_posix()
            except ValueError:
                continue
            if self.selection.takes(path):
                found[path] = file
        return OpenFiles(found, writing.members)


@dataclass(frozen=True)
class _Scan:
    folder: str
    ignored: re.Pattern[str]
    confinement: Confinement | None
    leave_out: LeaveOut
    links_out: bool
    closed_folders: bool


def _scan(scan: _Scan, handle: int, below: str) -> Iterator[File]:
    """Scan by handles, so that a folder that is replaced by a link meanwhile leads nowhere else."""
    try:
        entries = list(os.scandir(handle))
        device = os.fstat(handle).st_dev
    except OSError as error:
        if scan.closed_folders and below:
            yield from _closed(f"{below}/", os.fstat(handle), error)
        return
    for entry in entries:
        if scan.ignored.match(entry.name):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                if path.count("/") >= MAX_DEPTH:
                    yield File(f"{path}/", _NO_SIGNATURE, stat.S_IFDIR, problem=why_unsafe(f"{path}/"))
                    continue
                inner = os.open(entry.name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=handle)
                try:
                    if os.fstat(inner).st_dev == device or not is_pseudo(inner):
                        yield from _scan(scan, inner, path)
                finally:
                    os.close(inner)
                continue
            found = entry.stat(follow_symlinks=False)
            file = File(path, Signature.of(found), found.st_mode, aliased=found.st_nlink > 1)
            if stat.S_ISLNK(found.st_mode):
                read = _read_link(scan, handle, entry.name, file)
                if read is None:
                    continue
                file = read
            elif found.st_dev != device and _is_pseudo(handle, entry.name):
                continue  # A single file that was mounted here.
        except OSError as error:
            if scan.closed_folders:
                named = f"{path}/" if entry.is_dir(follow_symlinks=False) else path
                yield from _closed(named, _status_of(entry, handle), error)
            continue
        if not stat.S_ISREG(file.mode) and file.link is None:
            continue
        # Most names are plain; a closer check of each name takes as long as the rest of the scan.
        plain = len(path) <= _PLAIN_CHARS and path.isascii()
        yield file if plain or safe_path(path) else file._replace(problem=why_unsafe(path))


def _closed(path: str, status: os.stat_result, error: OSError) -> Iterator[File]:
    """Describe a folder whose content cannot be read, or an entry of an open folder that cannot be examined."""
    file = File(path, Signature.of(status), stat.S_IFDIR)
    if as_unreadable(path, error) is not None:
        yield file
    elif error.errno not in _VANISHED:
        # Such as too many open files. Without it the rest would pass for all of the save.
        yield file._replace(problem=f"the agent cannot read it now ({error.strerror})")


def _status_of(entry: os.DirEntry[str], handle: int) -> os.stat_result:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return os.fstat(handle)


def placed(folder: str, files: Iterable[File]) -> list[File]:
    """Return the files of a folder by their paths from the folder above it."""
    found = [file._replace(path=f"{folder}/{file.path}") for file in files]
    return [file._replace(problem=why_unsafe(file.path)) if _is_too_long(file) else file for file in found]


def _is_too_long(file: File) -> bool:
    deep, long = file.path.count("/") > MAX_DEPTH, len(file.path) > _PLAIN_CHARS
    return not file.problem and (deep or (long and not safe_path(file.path)))


def _read_link(scan: _Scan, handle: int, name: str, file: File) -> File | None:
    """Keep a link inside the folder as a link. Read another as the file it points to, but not out of a confinement."""
    path = file.path
    target = os.readlink(name, dir_fd=handle)
    if target.startswith(scan.folder + "/"):
        target = os.path.relpath(target, Path(scan.folder, path).parent)
    if safe_link(path, target):
        return file._replace(link=target)
    if scan.confinement is None and not scan.links_out:
        return None
    try:
        found = os.stat(name, dir_fd=handle) if scan.confinement is None else None
    except OSError as error:
        if error.errno not in _VANISHED:
            raise
        found = None
    if found is None or not stat.S_ISREG(found.st_mode) or _is_pseudo(handle, name):
        scan.leave_out(path, target)
        return None
    return File(path, Signature.of(found), found.st_mode, aliased=True)


def _is_pseudo(folder: int, name: str) -> bool:
    # Opened with O_PATH: a real open has effects on a pipe or a device.
    handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)
    try:
        return is_pseudo(handle)
    finally:
        os.close(handle)


def signature_of(path: Path, file: File) -> Signature | None:
    """Return the present signature of the file; None if it is gone."""
    try:
        # A file that was read through a link is compared through the link.
        return Signature.of(path.stat() if file.link is None else path.lstat())
    except OSError:
        return None


@contextmanager
def pinned_path(source: Path, file: File, *, exact: bool = True) -> Iterator[Path]:
    """Give a path to the scanned file that stays valid if a process puts another file or a link in its place.

    Raises FileChanged where `source` is another file by now or, if `exact`, has changed; OSError where it is gone.
    The path leads to a plain file: opening it waits for no pipe.
    """
    # Opened with O_PATH: a real open has effects on a pipe or a device.
    handle = os.open(source, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        found = Signature.of(status)
        same = found == file.signature if exact else found[:2] == file.signature[:2]
        # The number of a deleted file is soon that of another one, perhaps a pipe.
        if not same or not stat.S_ISREG(status.st_mode):
            raise FileChanged(f"{source} changed while it was read")
        yield handle_path(handle)
    finally:
        os.close(handle)


def copy_stable(source: Path, file: File, target: Path) -> bool:
    """Copy a file that may be written at any moment, sharing its blocks where the filesystem can.

    Returns False if the file changed meanwhile. Raises FileUnreadable.
    """
    try:
        with pinned_path(source, file) as held, _open_readable(held, file) as reader, target.open("wb") as writer:
            try:
                fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
            except OSError:
                shutil.copyfileobj(reader, writer, 1024 * 1024)
    except FileChanged:
        return False
    return signature_of(source, file) == file.signature and target.stat().st_size == file.size


def _open_readable(path: Path, file: File) -> BinaryIO:
    with naming_unreadable(file.path):
        return path.open("rb")


def top_folder_of(path: str) -> str:
    """Return the top-level folder of a path; empty for the plain files beside the folders. Its files are one unit."""
    top, separator, _ = path.partition("/")
    return top if separator else ""


def without_units(
    files: Mapping[str, File], blocked: Collection[str], last: Mapping[str, BlobRef]
) -> tuple[Files, dict[str, BlobRef]]:
    """Return what may be committed while `blocked` are being written: files as they are, and parts of the last commit.

    The unit of a blocked file stays as it was in the last commit, or is left out; the plain files at the top are one
    unit. Units that vanished since the last commit are carried over, too, because the older unit may refer to them.
    """
    units = {top_folder_of(path) for path in blocked}
    taken = {path: file for path, file in files.items() if top_folder_of(path) not in units}
    if not units:
        return taken, {}
    present = {top_folder_of(path) for path in taken}
    return taken, {path: blob for path, blob in last.items() if top_folder_of(path) not in present}
