"""Where the folders of a node lie, and how much room they need. Pure.

The folders (code, environments, copied inputs, checkpoints on their way) are on the machine's own fast disks where
these are large enough, otherwise on its boot disk: `stoker.providers.boot.local_disks` does it on the machine.
"""

from __future__ import annotations

from stoker.model.spec import Spec
from stoker.providers.machine_types import MachineType

# The room for everything beside the known inputs, in GiB: an environment with a framework takes 10 to 20 once it is
# unpacked, and a checkpoint is copied before it is sent.
_FOLDERS_GIB = 50
# An image with CUDA and a framework takes 20 to 30, and is there twice while it is unpacked. Container engines keep
# images on the boot disk, wherever the node's folders are.
_CONTAINER_GIB = 50
_GB = 1000**3
_GIB = 1024**3


def needed_gib(inputs_bytes: int) -> int:
    """The room that the node's folders need, if the job does not say it. `inputs_bytes` are those of the inputs that
    are copied to each node, as far as known."""
    return _FOLDERS_GIB + -(-inputs_bytes // _GIB)


def on_own_disks(machine: MachineType, spec: Spec, inputs_bytes: int) -> bool:
    """Return whether the machine's own disks have the room that the job asks for, or needs."""
    wanted = spec.resources.disk_bytes
    return machine.disks_gb * _GB >= (needed_gib(inputs_bytes) * _GIB if wanted is None else wanted)


def beside_image_gib(spec: Spec, inputs_bytes: int, *, own_disks: bool) -> int:
    """The room that a boot disk needs beside the machine's image, if the job does not say its size. `own_disks`: the
    node's folders are not on it."""
    container = _CONTAINER_GIB if spec.environment.container is not None else 0
    return container + (0 if own_disks else needed_gib(inputs_bytes))


def plan_note(machine: MachineType, boot_disk: str, *, own_disks: bool) -> str:
    """The line of the plan that says where the folders lie. `boot_disk` is the boot disk in words, with its size."""
    size = f"{machine.disks_gb / 1000:.1f} TB" if machine.disks_gb >= 1000 else f"{machine.disks_gb} GB"
    where = f"{machine.name}'s own disks, {size}" if own_disks else boot_disk
    return f"disk: checkpoints, inputs and environments on {where}"
