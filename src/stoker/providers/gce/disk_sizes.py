"""Check the sizes of disks against what Compute Engine's disk types have. Pure."""

from __future__ import annotations

from stoker.model.errors import UserError
from stoker.model.resources import GceResources, Resources
from stoker.providers.machine_types import disk_size
from stoker.providers.volume_sizes import VolumeSizes

_LEAST_GB = 10
# "Persistent Disk volumes can be up to 64 TiB in size", https://cloud.google.com/compute/docs/disks/persistent-disks.
# "The maximum Hyperdisk volume size is: 64 TiB for Hyperdisk Balanced, 64 TiB for Hyperdisk Extreme, 32 TiB for
# Hyperdisk Throughput", https://cloud.google.com/compute/docs/disks/hyperdisks.
_TIB = 1024
_KINDS = ("pd-standard", "pd-balanced", "pd-ssd", "pd-extreme")
_SIZES = VolumeSizes(
    "Compute Engine",
    {
        **dict.fromkeys(_KINDS, (_LEAST_GB, 64 * _TIB)),
        "hyperdisk-balanced": (4, 64 * _TIB),
        "hyperdisk-balanced-high-availability": (4, 64 * _TIB),
        "hyperdisk-extreme": (64, 64 * _TIB),
        "hyperdisk-throughput": (0, 32 * _TIB),
    },
)


def check(resources: Resources) -> None:
    """Raise UserError for a size that disks of the type do not have: of the boot disk, and of disks in the
    overrides."""
    boot_kind = "pd-balanced"
    for index, disk in enumerate((resources.gce or GceResources()).overrides.get("disks") or ()):
        made = disk.get("initializeParams") or {}
        # The type may be written as a link.
        kind, size = str(made.get("diskType", boot_kind)).rpartition("/")[2], str(made.get("diskSizeGb", ""))
        if size.isdigit():
            field = f"resources.gce.overrides.disks[{index}].initializeParams.diskSizeGb"
            _SIZES.check(field, kind, int(size))
        elif disk.get("boot"):
            boot_kind = kind
    if resources.disk_bytes is None:
        return
    size_gb = disk_size(resources.disk_bytes)
    if size_gb < _LEAST_GB:
        raise UserError(f"resources.disk: Compute Engine's disks have {_LEAST_GB}GB at least")
    _SIZES.check("resources.disk", boot_kind, size_gb)
