"""The fast disks that belong to a machine hold its node's folder. Python 3.6 or newer.

They are blank when a machine is made, keep their data in a reboot, and lose it with the machine. Nothing here may end a
boot: where the disks cannot be used, the node's folder stays on the boot disk.
"""

import os
import shutil
import subprocess
import uuid
from pathlib import Path

_RAID = "/dev/md/stoker"
_COMMAND_S = 120.0
# Ordered before the agent, and no reason for a machine not to start.
_OPTIONS = "defaults,noatime,nofail,x-systemd.device-timeout=30s,x-systemd.before=stoker-agent.service"


def find_disks(folder: Path, *patterns: str) -> "list[str]":
    """The blank whole disks, no partitions, that these patterns match in a folder of links. A disk that something uses,
    or that holds anything already, belongs to the image or to the job."""
    links = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if "-part" not in path.name]
    devices = list(dict.fromkeys(os.path.realpath(str(path)) for path in links))
    used = "\n".join(_read(path) for path in ("/proc/mounts", "/proc/mdstat", "/proc/swaps"))
    return [device for device in devices if Path(device).name not in used and _is_blank(device)]


def hold_folder(folder: Path, devices: "list[str]", marker: Path, fstab: Path, sizes: Path) -> str:
    """Put the folder on these disks, several of them as one; return a line about it, empty where there are none.

    `marker` appears first: from then on the folder is of no use without its disks. In later boots they are found by
    their file system's UUID, because names of devices may change. `sizes` is `/sys/class/block`.
    """
    # Several disks are one by mdadm, which not every image has.
    used = devices if shutil.which("mdadm") is not None else devices[:1]
    if not used:
        return ""
    try:
        if sum(_size(device, sizes) for device in used) < _free_bytes(folder):
            return "local disks are not used: the boot disk has more room"
        device = used[0] if len(used) == 1 else _joined(used)
        name = str(uuid.uuid4())
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-U", name, "-E", "lazy_itable_init=1,nodiscard", device)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker.write_text(name + "\n", encoding="utf-8")
        _run("mount", "-o", "noatime", device, str(folder))
        folder.chmod(0o700)
        with fstab.open("a", encoding="utf-8") as file:
            file.write(f"UUID={name} {folder} ext4 {_OPTIONS} 0 0\n")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        output = getattr(error, "output", b"") or b""
        why = f"{error} {output.decode(errors='replace').strip()}"
        if _released(folder, marker):
            return f"local disks are not used: {why}"
        return f"{folder} is on local disks that a reboot will lose: {why}"
    return f"{folder} is on {len(used)} local disk{'s' if len(used) > 1 else ''} ({device})"


def _released(folder: Path, marker: Path) -> bool:
    """Take the folder from its disks again; return whether it is on the boot disk now."""
    try:
        if folder.is_dir() and os.path.ismount(str(folder)):
            _run("umount", str(folder))
        if marker.exists():
            marker.unlink()
        return True
    except (OSError, subprocess.SubprocessError):
        return False


def _joined(devices: "list[str]") -> str:
    """One device of all these."""
    _run("mdadm", "--create", _RAID, "--run", "--force", "--level=0", f"--raid-devices={len(devices)}", *devices)
    return _RAID


def _is_blank(device: str) -> bool:
    """Return whether a disk has neither a file system nor partitions: "no (specified) devices could be identified […]
    an exit status of 2 is returned" (blkid(8))."""
    try:
        _run("blkid", "-p", device)
    except subprocess.CalledProcessError as error:
        return error.returncode == 2
    except (OSError, subprocess.SubprocessError):
        pass
    return False


def _size(device: str, sizes: Path) -> int:
    """The size of a disk in bytes. Linux counts in sectors of 512 bytes, whatever those of the disk are."""
    return int(_read(str(sizes / Path(device).name / "size")) or 0) * 512


def _free_bytes(folder: Path) -> int:
    """The free space where the folder is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(str(folder)).free


def _run(*command: str) -> None:
    subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=_COMMAND_S,
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
