"""What this machine has that a container may see."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.fetch_code import count_gpus

_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
_DEVICE_SPECS = ("/etc/cdi", "/var/run/cdi")


@dataclass(frozen=True)
class Surroundings:
    """Read once, when the container is made."""

    uid: int
    gid: int
    gpus: int
    # The NVIDIA Container Toolkit, as the engine needs it.
    toolkit: bool
    # What processes of this machine may share in memory.
    shm_bytes: int
    selinux: bool
    # The daemon is the user's own, and root inside is the user.
    rootless: bool = False

    @property
    def privileged(self) -> bool:
        return self.uid == 0


def look(engine: str) -> Surroundings:
    gpus = count_gpus()
    return Surroundings(
        uid=os.getuid(),
        gid=os.getgid(),
        gpus=gpus,
        toolkit=gpus > 0 and _has_toolkit(engine),
        shm_bytes=_shm_bytes(),
        selinux=_enforces_selinux(),
    )


def _has_toolkit(engine: str) -> bool:
    if engine == "podman":
        return any(file for folder in _DEVICE_SPECS for file in Path(folder).glob("nvidia*"))
    # The daemon's own path may have more than this process's.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/bin", "/usr/bin", "/usr/sbin"))
    return any(shutil.which(program, path=path) for program in _TOOLKIT)


def _shm_bytes() -> int:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize


def _enforces_selinux() -> bool:
    try:
        return Path("/sys/fs/selinux/enforce").read_text().strip() == "1"
    except OSError:
        return False
