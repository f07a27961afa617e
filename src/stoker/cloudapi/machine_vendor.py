"""Tell from the firmware whether this machine can be one of a cloud, without asking a metadata server.

An address of a metadata server may be anything outside its cloud, and a request to it may wait for seconds.
"""

from __future__ import annotations

from pathlib import Path

DMI = Path("/sys/class/dmi/id")
_FIELDS = ("sys_vendor", "product_name", "bios_vendor", "bios_version")
# On Xen the vendor is not the cloud's.
_ANY_CLOUD = "xen"


def is_elsewhere(vendor: str, folder: Path | None = None) -> bool:
    """Return whether the firmware is certainly not of `vendor`, such as `amazon`. False where it says nothing."""
    found = " ".join(_read((folder or DMI) / name) for name in _FIELDS).lower().strip()
    return bool(found) and vendor not in found and _ANY_CLOUD not in found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
