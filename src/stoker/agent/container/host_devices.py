"""Detect what this machine offers to a container."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.runtime import count_gpus

_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
_DEVICE_SPECS = ("/etc/cdi", "/var/run/cdi")
# Elastic Fabric Adapters and other RDMA devices; the Neuron devices of Inferentia and Trainium.
FABRIC = "infiniband"
_NEURON = "neuron[0-9]*"


@dataclass(frozen=True)
class HostCapabilities:
    """Capabilities of this machine, read once when the container is created."""

    uid: int
    gid: int
    gpus: int
    # The NVIDIA Container Toolkit is installed in the form that the engine needs.
    toolkit: bool
    # Size of the machine's shared memory.
    shm_bytes: int
    selinux: bool
    # The daemon runs as this user, and root in the container is this user outside.
    rootless: bool = False
    # Devices of which no toolkit tells the engine, by path. A folder stands for all devices in it.
    devices: tuple[str, ...] = ()

    @property
    def privileged(self) -> bool:
        return self.uid == 0


def detect_host(engine: str) -> HostCapabilities:
    gpus = count_gpus()
    return HostCapabilities(
        uid=os.getuid(),
        gid=os.getgid(),
        gpus=gpus,
        toolkit=gpus > 0 and _has_toolkit(engine),
        shm_bytes=_shm_bytes(),
        selinux=_enforces_selinux(),
        devices=_find_devices(Path("/dev")),
    )


def _find_devices(dev: Path) -> tuple[str, ...]:
    neurons = sorted((path for path in dev.glob(_NEURON)), key=lambda path: (len(path.name), path.name))
    fabric = [dev / FABRIC] if (dev / FABRIC).is_dir() else []
    return tuple(str(path) for path in (*fabric, *neurons))


def _has_toolkit(engine: str) -> bool:
    if engine == "podman":
        return any(file for folder in _DEVICE_SPECS for file in Path(folder).glob("nvidia*"))
    # The daemon's PATH may have more folders than this process's.
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
