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


def mounted_below(folder: Path) -> list[str]:
    """The mount points at and below a folder, innermost first. Asks the kernel's table and touches none of them:
    looking into one whose server is dead, or does not answer, would fail or wait for ever.
    """
    root = os.path.realpath(folder)
    try:
        table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return []
    points = [_OCTAL.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in table.splitlines()]
    below = {point for point in points if point == root or point.startswith(root + "/")}
    return sorted(below, key=len, reverse=True)


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
