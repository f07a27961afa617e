"""Enter a private view of this machine for one process tree: folders and files at other paths, another host name.

A bare Python reads this file and calls `enter` between fork and the program (see `spawn`), so it uses the standard
library alone, and nothing of this package. The mounts disappear with the last process that sees them, and nothing is
written to a disk: if a target path does not exist, its nearest existing parent is replaced, in this view, by a folder
in memory with the same entries plus the new one.
"""

# Paths are strings: importing pathlib takes longer than all of this takes to run.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH120, PTH208, PTH211

from __future__ import annotations

import ctypes
import errno
import os
import stat

_NEW_MOUNTS, _NEW_NAME, _NEW_USER = 0x00020000, 0x04000000, 0x10000000
_NOSUID, _NODEV, _BIND, _RECURSIVE, _SLAVE = 0x2, 0x4, 0x1000, 0x4000, 0x80000
_READ, _REMOUNT = 0x1, 0x20
# nosuid, nodev, noexec, noatime and nodiratime, which have the same values in statvfs and mount.
_PRESERVED_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800
_DETACH = 0x2

_libc = ctypes.CDLL(None, use_errno=True)


def enter(mounts: list[tuple[str, ...]], cwd: str, hostname: str = "") -> None:
    """Make this process and its children see each source at its target, and change to `cwd` in this view.

    A mount whose third part is `ro` is read-only. Later mounts may be inside earlier ones. With `hostname` the machine
    has this name in the view. Raises OSError with a text that says what was refused.
    """
    _unshare((_NEW_MOUNTS if mounts else 0) | (_NEW_NAME if hostname else 0))
    if hostname:
        name = os.fsencode(hostname)
        _call("a host name", "sethostname", name, len(name))
    if mounts:
        # Mounts that are made outside later become visible inside. None of ours becomes visible outside.
        _call("private mounts", "mount", None, b"/", None, _RECURSIVE | _SLAVE, None)
    for source, target, *how in mounts:
        if not os.path.exists(target):
            _make_room(target, folder=os.path.isdir(source))
        _bind(source, target)
        if how == ["ro"]:
            _forbid_writing(target)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise OSError(error.errno, f"going to {cwd}: {error.strerror}") from None


def _unshare(namespaces: int) -> None:
    try:
        _call("a namespace of its own", "unshare", namespaces)
    except PermissionError:
        # A user without permission to mount may do so in a new user namespace. The user id stays the same there, and
        # the program has no more rights than before.
        user, group = os.geteuid(), os.getegid()
        _call("a user namespace", "unshare", _NEW_USER | namespaces)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            try:
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                    file.write(text)
            except OSError as error:
                raise OSError(error.errno, f"a user namespace: {name}: {error.strerror}") from None


def _bind(source: str, target: str) -> None:
    _call(f"mounting at {target}", "mount", os.fsencode(source), os.fsencode(target), None, _BIND | _RECURSIVE, None)


def _forbid_writing(target: str) -> None:
    # Existing restrictions are preserved: a user namespace may not lift them.
    preserved = os.statvfs(target).f_flag & _PRESERVED_FLAGS
    _call(
        f"{target} without writing",
        "mount",
        None,
        os.fsencode(target),
        None,
        _BIND | _REMOUNT | _READ | preserved,
        None,
    )


def _make_room(target: str, *, folder: bool) -> None:
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    above = os.path.realpath(above)
    missing = os.path.relpath(target, above).split("/")
    _shadow(above, without=missing[0])
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _shadow(folder: str, *, without: str) -> None:
    """Cover a folder with one in memory that has the same entries, except the broken link `without`."""
    mode = stat.S_IMODE(os.stat(folder).st_mode)  # noqa: PTH116
    # Opened before they are covered: later their paths would lead elsewhere.
    entries = {name: os.open(f"{folder}/{name}", os.O_PATH | os.O_NOFOLLOW) for name in os.listdir(folder)}
    # The root cannot be covered, only exchanged: the new one is built on another folder. Not on /proc, which is needed
    # here.
    stage = folder if folder != "/" else next(f"/{name}" for name in entries if name != "proc" and _is_folder(name))
    options = f"mode={mode:o}".encode()
    _call(f"covering {folder}", "mount", b"tmpfs", os.fsencode(stage), b"tmpfs", _NOSUID | _NODEV, options)
    for name, handle in entries.items():
        here = f"{stage}/{name}"
        kind = os.fstat(handle).st_mode
        if stat.S_ISLNK(kind):
            if name != without:
                os.symlink(os.readlink(b"", dir_fd=handle), here)
        else:
            if stat.S_ISDIR(kind):
                os.mkdir(here)
            else:
                os.close(os.open(here, os.O_CREAT | os.O_WRONLY))
            _bind(f"/proc/self/fd/{handle}", here)
            if f"{folder}{name}" == stage:
                # Parent mounts were bound recursively.
                _call(f"uncovering {here}", "umount2", os.fsencode(here), _DETACH)
        os.close(handle)
    if folder == "/":
        os.chdir(stage)
        _call("another root", "pivot_root", b".", b".")
        _call("leaving the old root", "umount2", b".", _DETACH)
        os.chdir("/")


def _is_folder(name: str) -> bool:
    return os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")


def _call(what: str, name: str, *arguments: bytes | int | None) -> None:
    if getattr(_libc, name)(*(ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments)) != 0:
        problem = ctypes.get_errno()
        # ENOSPC means that the limit user.max_user_namespaces is 0.
        refused = problem in (errno.EPERM, errno.ENOSPC)
        raise OSError(problem, f"{what}: {'not allowed' if refused else os.strerror(problem)}")
