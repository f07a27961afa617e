"""Walk the folders that outputs are taken from, and say which files cannot be stored, and why."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from stoker.agent.checkpoints.folder_snapshot import IGNORED_NAMES, MAX_DEPTH, OPEN_FOLDER
from stoker.agent.confinement import Confinement, open_plain
from stoker.store.checkpoint_manifests import safe_path, why_unsafe

# Caches that programs make again. Skipped without a message.
CACHES = frozenset(
    {
        *("__pycache__", ".git", ".stoker", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
        *(".ipynb_checkpoints", ".tox", ".nox", ".triton", ".nv", "node_modules", ".DS_Store"),
    }
)
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
_CORE = re.compile(r"core(\.\d+)?")
_CORE_MAGIC = b"\x7fELF"
# Files of Stoker itself, and those that Python makes again. Skipped without a message.
_UNREPORTED = re.compile("|".join(translate(name) for name in (".stoker-*", "*.pyc")))
_TOO_DEEP, _CANNOT_BE_READ = f"lies deeper than {MAX_DEPTH} folders", "cannot be read"
_UNFINISHED = re.compile("|".join(translate(name) for name in IGNORED_NAMES))


class WalkScope(NamedTuple):
    """The files that a walk finds beside plain outputs."""

    # Files on other disks.
    mounts: bool = False
    # Caches and Python environments.
    caches: bool = False
    # Files of Stoker itself, and those that Python makes again.
    unreported: bool = False


OUTPUTS = WalkScope()
EVERYTHING = WalkScope(mounts=True, caches=True)
BASELINE = WalkScope(mounts=True, unreported=True)


class WalkedFile(NamedTuple):
    """A file below a folder, with its status or with the reason why it cannot be stored."""

    path: str
    status: os.stat_result | None
    problem: str | None
    # The open folder that the file lies in, until the walk goes on.
    parent: int


def walk_files(folder: Path, confinement: Confinement | None, scope: WalkScope) -> Iterator[WalkedFile]:
    """Yield every file below a folder. Follows no link."""
    try:
        handle = os.open(folder, OPEN_FOLDER) if confinement is None else confinement.open(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        yield WalkedFile(".", None, _unreadable(error), -1)
        return
    try:
        yield from _walk_in(handle, "", scope, None if scope.mounts else os.fstat(handle).st_dev)
    finally:
        os.close(handle)


def _walk_in(handle: int, below: str, scope: WalkScope, device: int | None) -> Iterator[WalkedFile]:
    """Walk by handles: a link that replaces a folder meanwhile is not followed. Only this device, if one is given."""
    with os.scandir(handle) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if (not scope.unreported and _UNREPORTED.match(entry.name)) or (not scope.caches and entry.name in CACHES):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield WalkedFile(path, None, _unreadable(error), handle)
            continue
        with suppress(FileNotFoundError):
            if _UNFINISHED.match(entry.name):
                known = None if stat.S_ISDIR(status.st_mode) else status
                yield WalkedFile(path, known, "its name says that it is unfinished", handle)
            elif not stat.S_ISDIR(status.st_mode):
                yield WalkedFile(path, status, None, handle)
            elif path.count("/") >= MAX_DEPTH:
                yield WalkedFile(path, None, _TOO_DEEP, handle)
            elif device is not None and status.st_dev != device:
                yield WalkedFile(path, None, "lies on another disk", handle)
            else:
                yield from _walk_folder(handle, path, scope, device)


def _walk_folder(parent: int, path: str, scope: WalkScope, device: int | None) -> Iterator[WalkedFile]:
    try:
        handle = os.open(posixpath.basename(path), OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        yield WalkedFile(path, None, _unreadable(error), parent)
        return
    try:
        if not scope.caches and any(os.access(mark, os.F_OK, dir_fd=handle) for mark in _ENVIRONMENT_MARKS):
            yield WalkedFile(path, None, "a Python environment", parent)
        else:
            yield from _walk_in(handle, path, scope, device)
    finally:
        os.close(handle)


def _unreadable(error: OSError) -> str:
    return f"{_CANNOT_BE_READ} ({error.strerror})"


def is_closed(problem: str | None) -> bool:
    """Return whether this problem is of a folder whose files are unknown."""
    return problem is not None and (problem == _TOO_DEEP or problem.startswith(_CANNOT_BE_READ))


def leads_inside(folder: Path, path: str) -> bool:
    return os.path.realpath(folder / path).startswith(f"{os.path.realpath(folder)}/")


def find_problem(parent: int, path: str, status: os.stat_result) -> str | None:
    """Return why this file in an open folder cannot be stored; None if it can."""
    if stat.S_ISLNK(status.st_mode):
        return "a link out of the folder"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    name = posixpath.basename(path)
    if not safe_path(path):
        return why_unsafe(path)
    try:
        with os.fdopen(open_plain(name, os.O_RDONLY, parent), "rb") as reader:
            if _CORE.fullmatch(name) and reader.read(len(_CORE_MAGIC)) == _CORE_MAGIC:
                return "a core dump"
    except OSError as error:
        return None if error.errno == errno.ENOENT else _unreadable(error)
    return None
