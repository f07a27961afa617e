"""Since when the house has wanted something: found in the versions of its policy, from the newest back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker.model.errors import SpecError
from stoker.model.policy import House
from stoker.policy import versions
from stoker.store.base import Store

# Older ones count as this old: nobody waits for hundreds of objects.
_MOST_VERSIONS = 100


class Past:
    """Reads versions when they are first needed. They never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, tuple[datetime, House] | None] = {}

    def since(self, house: House, wanted: Callable[[House], bool]) -> datetime | None:
        """When the first of the versions was set that, without a break until this house, want it; None: not even this.

        Raises StoreError when the store does not answer.
        """
        found = None
        for version in range(house.version, max(0, house.version - _MOST_VERSIONS), -1):
            if version not in self._read:
                self._read[version] = self._version(version)
            each = self._read[version]
            if each is None or not wanted(each[1]):
                break
            found = each[0]
        return found

    def _version(self, version: int) -> tuple[datetime, House] | None:
        kept = versions.read(self._store, version)
        try:
            return None if kept is None else (kept.at, versions.house(kept))
        except SpecError:
            return None
