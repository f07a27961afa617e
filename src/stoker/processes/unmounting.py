"""Unmount everything below a folder, even if the server of a mount is dead."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

_DETACH = 0x2
_OCTAL = re.compile(r"\\([0-7]{3})")
_LIMIT_S = 10.0
# https://www.kernel.org/doc/html/latest/filesystems/fuse.html#control-filesystem
_CONNECTIONS = Path("/sys/fs/fuse/connections")


def mounted_below(folder: Path) -> list[str]:
    """Return the mount points at and below a folder, innermost first.

    Reads the kernel's table and touches no mount: access to one whose server is dead, or does not answer, would fail or
    hang.
    """
    return sorted({point for point, _ in _below(folder)}, key=len, reverse=True)


def abort_below(folder: Path) -> None:
    """Abort the FUSE connections at and below a folder. Never raises.

    Processes that wait for an answer cannot be killed otherwise. The mounts stay, and fail. If this user may not abort
    them, or the kernel lacks the files for it, the end of the server process has the same effect.
    """
    for device in {device for _, device in _below(folder) if device is not None}:
        with suppress(OSError):
            (_CONNECTIONS / device / "abort").write_text("1")


def _below(folder: Path) -> list[tuple[str, str | None]]:
    """Return the mount points, and the connection number of those served by FUSE."""
    # Links in the parents are resolved. Resolving the folder itself would send a request to its server.
    root = os.path.join(os.path.realpath(folder.parent), folder.name)  # noqa: PTH118
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return []
    found = []
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        point = _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        if point == root or point.startswith(root + "/"):
            served = kind == "fuse" or kind.startswith("fuse.")
            found.append((point, fields[2].partition(":")[2] if served else None))
    return found


def unmount_below(folder: Path) -> list[str]:
    """Unmount everything below the folder at once, even with open files. Never raises.

    Returns the mount points that remain because this user may not unmount them.
    """
    for point in mounted_below(folder):
        if os.geteuid() == 0:
            ctypes.CDLL(None).umount2(os.fsencode(point), _DETACH)
            continue
        for program in ("fusermount3", "fusermount"):
            with suppress(OSError, subprocess.SubprocessError):
                ran = subprocess.run([program, "-uz", point], capture_output=True, timeout=_LIMIT_S, check=False)
                if ran.returncode == 0:
                    break
    return mounted_below(folder)
