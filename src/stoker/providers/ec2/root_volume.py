"""The root volume of a machine: as large and as fast as the job needs. Pure.

An explicit `resources.disk`, and whatever `overrides` say, comes before all of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.model.errors import InvalidRequest
from stoker.model.resources import Ec2Resources
from stoker.model.spec import Spec
from stoker.providers import node_disks
from stoker.providers.base import LaunchOrder
from stoker.providers.ec2 import catalog, overrides
from stoker.providers.ec2.images import Ec2Image
from stoker.providers.machine_types import disk_size
from stoker.providers.volume_sizes import VolumeSizes

# The throughput and operations of gp3 by default, and the most throughput that operations allow: "0.25 MiB/s per
# provisioned IOPS", https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
_KIND = "gp3"
_MIB_S = 125
_IOPS = 3000
_MIB_S_PER_IOPS = 0.25
# A bound for what throughput costs: gp3 has up to 2,000.
_MOST_MIB_S = 1000
# gp2, which gp3 replaced, was faster when it was larger: 3 IOPS for each GiB, up to 16,000, and 250 MiB/s from 334 GiB
# on. A large gp3 volume is not to be slower than that.
_GP2_IOPS_PER_GIB = 3
_GP2_MOST_IOPS = 16_000
_GP2_FAST_GIB = 334
_GP2_MIB_S = 250
# "gp2: 1 - 16,384 GiB, gp3: 1 - 65,536 GiB, io1: 4 - 16,384 GiB, io2: 4 - 65,536 GiB, st1 and sc1: 125 - 16,384 GiB,
# standard: 1 - 1024 GiB" (EbsBlockDevice, VolumeSize).
_SIZES = VolumeSizes(
    "EC2",
    {
        "gp2": (1, 16_384),
        "gp3": (1, 65_536),
        "io1": (4, 16_384),
        "io2": (4, 65_536),
        "st1": (125, 16_384),
        "sc1": (125, 16_384),
        "standard": (1, 1024),
    },
)
# A size that only EC2 knows, until the image was looked up: `filled` replaces it.
_BESIDE = re.compile(r"\(the image's size and ([0-9]+) GiB\)")


def ebs(order: LaunchOrder, image: Ec2Image) -> dict[str, Any]:
    """The volume, as RunInstances takes it."""
    volume: dict[str, Any] = {"VolumeType": _KIND, "DeleteOnTermination": True}
    own_disks = uses_own_disks(order.spec, order.offering.machine, order.inputs_bytes)
    size = _size(order.spec, image, order.inputs_bytes, own_disks=own_disks)
    # A GPU that waits for its disk costs more than a faster disk.
    mib_s, iops = _MIB_S * (1 + order.offering.gpus), _IOPS
    if isinstance(size, int) and not own_disks:
        iops = max(iops, min(_GP2_IOPS_PER_GIB * size, _GP2_MOST_IOPS))
        mib_s = max(mib_s, _GP2_MIB_S if size >= _GP2_FAST_GIB else _MIB_S)
    mib_s = min(mib_s, _MOST_MIB_S)
    iops = max(iops, round(mib_s / _MIB_S_PER_IOPS))
    volume |= {"Throughput": mib_s} if mib_s > _MIB_S else {}
    volume |= {"Iops": iops} if iops > _IOPS else {}
    return volume if size is None else volume | {"VolumeSize": size}


def check(spec: Spec) -> None:
    """Raise UserError for a size that volumes of the type do not have: of the root volume, and of volumes in the
    overrides."""
    ec2 = spec.resources.ec2 or Ec2Resources()
    root_kind = _KIND
    for index, disk in enumerate(ec2.overrides.get("BlockDeviceMappings") or ()):
        volume = disk.get("Ebs") if isinstance(disk, Mapping) else None
        if not isinstance(volume, Mapping):
            continue
        kind, size = str(volume.get("VolumeType", _KIND)), volume.get("VolumeSize")
        if isinstance(size, int):
            where = f"resources.ec2.overrides.BlockDeviceMappings[{index}].Ebs.VolumeSize"
            _SIZES.check(where, kind, size)
        elif "SnapshotId" not in volume:
            # Without a size it is the root volume, whose size resources.disk gives.
            root_kind = kind
    if spec.resources.disk_bytes is not None:
        _SIZES.check("resources.disk", root_kind, disk_size(spec.resources.disk_bytes))


def uses_own_disks(spec: Spec, machine: str, inputs_bytes: int) -> bool:
    """Return whether the node's folders are on the machine's instance store."""
    ec2 = spec.resources.ec2 or Ec2Resources()
    taken = overrides.maps_instance_store(ec2.overrides)
    return not taken and node_disks.on_own_disks(catalog.facts(machine), spec, inputs_bytes)


def plan_note(spec: Spec, machine: str, image: Ec2Image, inputs_bytes: int) -> str:
    """The line of the plan about a job's folders on this machine."""
    own_disks = uses_own_disks(spec, machine, inputs_bytes)
    size = _size(spec, image, inputs_bytes, own_disks=own_disks)
    beside = _BESIDE.fullmatch(str(size))
    room = f"with {beside[1]} GB beside the image" if beside else f"{size} GB"
    return node_disks.plan_note(catalog.facts(machine), f"the root volume of {machine}, {room}", own_disks=own_disks)


def filled(disk: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of the root volume with the size that follows from the image, as DescribeImages describes it.

    Raises InvalidRequest if the job asks for less than the image has.
    """
    volume = disk.get("Ebs", {})
    size, has = volume.get("VolumeSize"), _image_gib(image)
    if isinstance(size, int) and has is not None and size < has:
        raise InvalidRequest(f"resources.disk: the image has {has} GB, and {size} GB are asked for; ask for more")
    beside = _BESIDE.fullmatch(str(size))
    if beside is None:
        return dict(disk)
    # Without its size EC2 makes the volume as large as the image.
    sized = {key: value for key, value in volume.items() if key != "VolumeSize"}
    return dict(disk) | {"Ebs": sized if has is None else sized | {"VolumeSize": has + int(beside[1])}}


def _image_gib(image: Mapping[str, Any]) -> int | None:
    """The size of the image's root volume; None if it is not known."""
    for each in image.get("BlockDeviceMappings", ()):
        if each.get("DeviceName") == image.get("RootDeviceName"):
            found: int | None = each.get("Ebs", {}).get("VolumeSize")
            return found
    return None


def _size(spec: Spec, image: Ec2Image, inputs_bytes: int, *, own_disks: bool) -> int | str | None:
    """The size in GiB, or a text that `filled` replaces; None for the size of the image."""
    wanted = spec.resources.disk_bytes
    if wanted is not None:
        return disk_size(wanted)
    beside = node_disks.beside_image_gib(spec, inputs_bytes, own_disks=own_disks)
    if not beside:
        return None
    return f"(the image's size and {beside} GiB)" if image.gib is None else image.gib + beside
