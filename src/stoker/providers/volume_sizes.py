"""Check the sizes of disks against what their types have, in the GiB that clouds call GB. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.model.errors import UserError


@dataclass(frozen=True)
class VolumeSizes:
    """The least and the most GB of each type of a cloud's disks. A type that is not listed is not checked."""

    cloud: str
    bounds: Mapping[str, tuple[int, int]]

    def check(self, field: str, kind: str, size_gb: int) -> None:
        """Raise UserError for a size that disks of this type do not have."""
        least, most = self.bounds.get(kind, (0, size_gb))
        if least <= size_gb <= most:
            return
        bound = f"{most:,} GB at most" if size_gb > most else f"{least:,} GB at least"
        raise UserError(f"{field}: {size_gb:,} GB are asked for, and a disk of type {kind} on {self.cloud} has {bound}")
