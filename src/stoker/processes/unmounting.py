"""Take away what is mounted below a folder, also where whoever served it is dead."""

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
    """The mount points at and below a folder, innermost first. Asks the kernel's table and touches none of them:
    looking into one whose server is dead, or does not answer, would fail or wait for ever.
    """
    return sorted({point for point, _ in _below(folder)}, key=len, reverse=True)


def abort_below(folder: Path) -> None:
    """End what FUSE serves at and below a folder, for whoever waits for an answer: no signal wakes them. Never raises.

    What is mounted stays, and fails. Where this user may not, or the kernel's files for it are not there, the end of
    whoever serves it does the same.
    """
    for device in {device for _, device in _below(folder) if device is not None}:
        with suppress(OSError):
            (_CONNECTIONS / device / "abort").write_text("1")


def _below(folder: Path) -> list[tuple[str, str | None]]:
    """The mount points, and the number of the connection for those that FUSE serves."""
    # Links above it are followed. To follow the folder itself would be to ask who serves it.
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
    """Unmount them, at once for everybody who looks, whoever has files open there. Never raises.

    Answers those that are still there: this user may not.
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
