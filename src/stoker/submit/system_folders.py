"""Refuse folders that are named by mistake: parts of the operating system, a whole disk, a home."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from stoker.model.errors import UserError

# Filesystems that the kernel generates. Some of their files never end, or block for ever.
_KERNEL_FILESYSTEMS = frozenset(
    {
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    }
)
_SYSTEM = frozenset(
    {
        "/Applications",
        "/Library",
        "/System",
        "/Users",
        "/bin",
        "/boot",
        "/etc",
        "/home",
        "/lib",
        "/lib64",
        "/root",
        "/run",
        "/sbin",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/usr/local",
        "/usr/share",
        "/var",
    }
)


def check_code_folder(folder: Path) -> None:
    """Raise UserError for a folder that cannot be a code folder. `folder` is resolved."""
    advice = "name the folder that holds the script"
    if folder == folder.parent or folder == _home():
        # Keys and passwords lie there, and would be uploaded to the bucket.
        raise UserError(f"code: {folder} is not a folder of code alone; {advice}")
    if str(folder) in _SYSTEM or is_on_kernel_filesystem(folder):
        raise UserError(f"code: {folder} belongs to the operating system; {advice}")


def check_input_folder(name: str, path: Path) -> None:
    """Raise UserError for an input whose files are not files on a disk."""
    if is_on_kernel_filesystem(path):
        raise UserError(f"inputs.{name}: {path} belongs to the operating system; name a folder of data")


def is_on_kernel_filesystem(path: Path) -> bool:
    """True if the path lies on a filesystem that the kernel generates."""
    real = os.path.realpath(path)
    if real == "/dev" or (real.startswith("/dev/") and not real.startswith("/dev/shm/")):
        return True
    try:
        device = Path(real).stat().st_dev
    except OSError:
        return real.startswith(("/proc/", "/sys/"))
    return is_kernel_filesystem(device)


def is_kernel_filesystem(device: int) -> bool:
    """True if the filesystem with this device number is one that the kernel generates."""
    return _kinds().get(f"{os.major(device)}:{os.minor(device)}") in _KERNEL_FILESYSTEMS


@lru_cache(maxsize=1)
def _kinds() -> dict[str, str]:
    """The types of all mounted filesystems by device number. Empty where the system does not list them."""
    found = {}
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 2 and after:
            found[fields[2]] = after.split(" ")[0]
    return found


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (RuntimeError, OSError):
        return None  # The user has no home.
