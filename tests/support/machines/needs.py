"""What booting machines needs, and what of it is missing here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.machines.images import TREES

_TOOLS = ("systemd-nspawn", "unshare", "nsenter", "mount", "umount", "ip")

# What a cloud does to boot a machine, in small: namespaces of its own, a disk in memory, a layer over a tree.
_PROBE = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/lower" "$1/upper" "$1/work" "$1/root" &&
mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/root"
"""


@lru_cache(maxsize=1)
def why_no_machines() -> str | None:
    """One line that says why no machine can be booted here; None where they can. Asked once for each process."""
    if os.geteuid() != 0:
        return "test machines need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"test machines need {', '.join(missing)} (Debian: iproute2 systemd-container util-linux)"
    if find_spec("moto") is None or find_spec("ministack") is None:
        return "test machines need moto and ministack (pip install 'stoker[test]')"
    unbuilt = [image.suite for image in TREES if not image.built]
    if unbuilt:
        return f"no image of Debian {', '.join(unbuilt)} is built (sh scripts/need-machines.sh)"
    return _no_right()


def _no_right() -> str | None:
    folder = tempfile.mkdtemp(prefix="stoker-probe-")
    try:
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", _PROBE, "sh", folder]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        Path(folder).rmdir()
    if ran.returncode:
        told = " ".join(ran.stderr.split()) or f"status {ran.returncode}"
        return f"test machines need namespaces and overlayfs, which this place does not give: {told}"
    return None
