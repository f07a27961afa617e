"""The fast disks that belong to a machine hold its node's folders: Local SSD of Compute Engine, instance store of EC2.

They are blank when a machine is made, keep their data in a reboot, and lose it with the machine. Nothing here may end a
boot: where the disks cannot be used, the node's folders stay on the boot disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
import uuid
from pathlib import Path

from stoker.providers.boot.install_paths import InstallPaths

# "google-local-nvme-ssd-0": https://cloud.google.com/compute/docs/disks/format-mount-local-ssd
_LOCAL_SSD = ("google-local-nvme-ssd-*", "google-local-ssd-*")
# EBS volumes are NVMe devices as well, of the model "Amazon Elastic Block Store".
_INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
# A whole device, not a path to it (`nvme1c1n1`).
_NVME = re.compile(r"nvme[0-9]+n[0-9]+")
# AWS's Deep Learning AMIs make one LVM volume of the instance store, mounted at /opt/dlami/nvme by this service. It is
# a oneshot with RemainAfterExit, and runs at every boot.
_IMAGE_SERVICE = "dlami-nvme.service"
_IMAGE_SERVICE_S = 180.0
_RAID = "/dev/md/stoker"
# The names of a group and its volume in LVM.
_VOLUME = ("stoker", "node")
_NO_TOOL = "the image has neither mdadm nor LVM to make one of them"
_COMMAND_S = 120.0
# Ordered before the agent, and no reason for a machine not to start.
_ANY_OPTIONS = "nofail,x-systemd.before=stoker-agent.service"
_OPTIONS = f"defaults,noatime,{_ANY_OPTIONS},x-systemd.device-timeout=120s"


def place_folders(install_paths: InstallPaths, asked_bytes: int | None = None) -> str:
    """Put the node's folders on the machine's own disks; return a line about it, empty if the machine has none.

    Disks with less room than the job asked for, or than the boot disk has where it did not, are not used.
    """
    links = install_paths.devices / "disk/by-id"
    found = find_links(links, *_LOCAL_SSD)
    stores = find_instance_store(install_paths)
    if stores:
        try:
            by_image = _wait_for_image()
        except (OSError, subprocess.SubprocessError) as error:
            return f"local disks are not used: {_why(error)}"
        if _is_mounted(install_paths.image_disks):
            total = None if asked_bytes is None else sum(_size(device, install_paths.blocks) for device in stores)
            return _hold_on_mount(install_paths, total, asked_bytes, by_image=by_image)
    blank = [device for device in (*found, *stores) if _is_free(device, install_paths)]
    if stores and not blank:
        return "local disks are not used: they hold something already"
    return hold_folders(install_paths, blank, asked_bytes)


def find_links(folder: Path, *patterns: str) -> list[str]:
    """The whole disks, no partitions, that these patterns match in a folder of links."""
    links = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if "-part" not in path.name]
    return list(dict.fromkeys(os.path.realpath(str(path)) for path in links))


def find_instance_store(install_paths: InstallPaths) -> list[str]:
    """The NVMe devices of EC2's instance store. Kernels name devices in any order, so that the model tells them."""
    found = [
        path.name
        for path in install_paths.blocks.glob("nvme*")
        if _NVME.fullmatch(path.name) and _read(path / "device/model").strip() == _INSTANCE_STORE
    ]
    devices = (install_paths.devices / name for name in sorted(found, key=lambda name: (len(name), name)))
    return [str(device) for device in devices if device.exists()]


def hold_folders(install_paths: InstallPaths, devices: list[str], asked_bytes: int | None = None) -> str:
    """Put the folders on these blank disks, several of them as one; return a line about it, empty where there are none.

    The file of `install_paths.disks` appears first: from then on the folders are of no use without their disks, which
    later boots find by their file system's UUID, because names of devices may change.
    """
    tool = _joining_tool() if len(devices) > 1 else ""
    used = devices if tool else devices[:1]
    if not used:
        return ""
    folder = install_paths.state
    alone = f"; one of {len(devices)} counts: {_NO_TOOL}" if len(used) < len(devices) else ""
    try:
        if reason := _too_small(sum(_size(device, install_paths.blocks) for device in used), folder, asked_bytes):
            return reason + alone
        device = used[0] if len(used) == 1 else _joined(used, tool)
        name = str(uuid.uuid4())
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-U", name, "-E", "lazy_itable_init=1,nodiscard", device)
        _mount(install_paths, name, ("mount", "-o", "noatime", device, str(folder)), f"UUID={name}", f"ext4 {_OPTIONS}")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _not_used(install_paths, error)
    return f"{folder} is on {len(used)} local disk{'s' if len(used) > 1 else ''} ({device}){alone}"


def _hold_on_mount(install_paths: InstallPaths, total: int | None, asked_bytes: int | None, *, by_image: bool) -> str:
    """Put the folders below the mount that the image made of the machine's disks. Nothing is formatted. `total` is the
    size of the disks, None for what is free on the mount."""
    folder, target = install_paths.state, install_paths.image_disks / "stoker"
    try:
        if total is None:
            total = _free_bytes(install_paths.image_disks)
        if reason := _too_small(total, folder, asked_bytes):
            return reason
        target.mkdir(exist_ok=True)
        later = f"none bind,{_ANY_OPTIONS}" + (f",x-systemd.requires={_IMAGE_SERVICE}" if by_image else "")
        _mount(install_paths, str(target), ("mount", "--bind", str(target), str(folder)), str(target), later)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _not_used(install_paths, error)
    return f"{folder} is on local disks ({install_paths.image_disks}, which the image has made)"


def _mount(install_paths: InstallPaths, marker: str, mount: tuple[str, ...], source: str, how: str) -> None:
    """Mount the folders now, and in all later boots."""
    folder = install_paths.state
    folder.mkdir(parents=True, exist_ok=True)
    install_paths.disks.write_text(marker + "\n", encoding="utf-8")
    _run(*mount)
    folder.chmod(0o755)
    _relabel(folder)
    with install_paths.fstab.open("a", encoding="utf-8") as file:
        file.write(f"{source} {folder} {how} 0 0\n")


def _relabel(folder: Path) -> None:
    """Give a new file system the SELinux label of its place, which all that is made in it inherits. Without one it is
    `unlabeled_t`, which containers and other confined programs may not read."""
    if shutil.which("restorecon") is not None:
        # As good as without a label where the policy knows no place.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _run("restorecon", str(folder))


def _too_small(total: int, folder: Path, asked_bytes: int | None) -> str:
    """A line that says why disks of this size are not used; empty if they are."""
    if asked_bytes is not None and total < asked_bytes:
        return f"local disks are not used: they have {total / 1e9:.0f} GB, {asked_bytes / 1e9:.0f} GB were asked for"
    if asked_bytes is None and total < _free_bytes(folder):
        return "local disks are not used: the boot disk has more room"
    return ""


def _not_used(install_paths: InstallPaths, error: Exception) -> str:
    """Take the folders from their disks again, and return a line about it."""
    folder, marker = install_paths.state, install_paths.disks
    try:
        if _is_mounted(folder):
            _run("umount", str(folder))
        if marker.exists():
            marker.unlink()
    except (OSError, subprocess.SubprocessError):
        return f"{folder} is on local disks that a reboot will lose: {_why(error)}"
    return f"local disks are not used: {_why(error)}"


def _why(error: Exception) -> str:
    output = getattr(error, "output", b"") or b""
    return " ".join(f"{error} {output.decode(errors='replace')}".split())


def _wait_for_image() -> bool:
    """Wait until the image has made what it makes of the disks; return whether it has a service for that.

    Raises TimeoutExpired if the service takes too long: the disks must not be touched then.
    """
    until_s = time.monotonic() + _IMAGE_SERVICE_S
    while True:
        output = _run("systemctl", "show", "--property=LoadState,ActiveState,Job", _IMAGE_SERVICE)
        state = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        if state.get("LoadState") != "loaded":
            return False
        # Without a job, which systemd shows as `Job=`, it does not run: it has run already, or was disabled.
        if state.get("ActiveState") != "activating" and state.get("Job", "") in ("", "0"):
            return True
        if time.monotonic() >= until_s:
            raise subprocess.TimeoutExpired(f"{_IMAGE_SERVICE} of the image", _IMAGE_SERVICE_S)
        time.sleep(0.5)


def _is_mounted(folder: Path) -> bool:
    """Return whether this folder is a mount, also one of another folder of the same file system."""
    return any(line.split(" ")[4:5] == [str(folder)] for line in _read(Path("/proc/self/mountinfo")).splitlines())


def _joining_tool() -> str:
    """The program that makes one device of several; empty without any. Images for servers have mdadm mostly, others
    LVM, and small ones neither."""
    return next((name for name in ("mdadm", "lvcreate") if shutil.which(name) is not None), "")


def _joined(devices: list[str], tool: str) -> str:
    """One device of all these, which later boots find again."""
    count = len(devices)
    if tool == "mdadm":
        _run("mdadm", "--create", _RAID, "--run", "--force", "--level=0", f"--raid-devices={count}", *devices)
        return _RAID
    group, volume = _VOLUME
    _run("vgcreate", "--yes", group, *devices)
    _run("lvcreate", "--yes", "--name", volume, "--stripes", str(count), "--extents", "100%FREE", group)
    return f"/dev/{group}/{volume}"


def _is_free(device: str, install_paths: InstallPaths) -> bool:
    """Return whether nothing uses a disk, and nothing is on it. Any other belongs to the image or to the job.

    Blank has neither a file system nor partitions: "no (specified) devices could be identified […] an exit status of 2
    is returned" (blkid(8)).
    """
    block = install_paths.blocks / Path(device).name
    used = "\n".join(_read(Path(path)) for path in ("/proc/mounts", "/proc/mdstat", "/proc/swaps"))
    if block.name in used or any((block / "holders").glob("*")) or any(block.glob("*/partition")):
        return False
    try:
        _run("blkid", "-p", device)
    except subprocess.CalledProcessError as error:
        return error.returncode == 2
    except (OSError, subprocess.SubprocessError):
        pass
    return False


def _size(device: str, blocks: Path) -> int:
    """The size of a disk in bytes, 0 if it is unknown. Linux counts in sectors of 512 bytes, whatever those of the disk
    are."""
    sectors = _read(blocks / Path(device).name / "size").strip()
    return int(sectors) * 512 if sectors.isdigit() else 0


def _free_bytes(folder: Path) -> int:
    """The free space where the folder is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(str(folder)).free


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=_COMMAND_S,
    )
    return done.stdout.decode(errors="replace")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
