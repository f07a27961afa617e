"""Find since when the policy has had a property, from its newest version back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker.model.errors import SpecError
from stoker.model.policy import Policy
from stoker.policy import versions
from stoker.store.base import Store

# Older versions are not read, since each is one object: the property counts as no older than this.
_MAX_VERSIONS = 100


class PolicyHistory:
    """Versions of the policy, each read once when first needed: they never change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[int, tuple[datetime, Policy] | None] = {}

    def since(self, policy: Policy, wanted: Callable[[Policy], bool]) -> datetime | None:
        """When the first version of the unbroken run up to `policy` was set for which `wanted` holds; None where it
        does not hold for `policy` itself. Raises StoreError.
        """
        found = None
        for version in range(policy.version, max(0, policy.version - _MAX_VERSIONS), -1):
            if version not in self._read:
                self._read[version] = self._version(version)
            each = self._read[version]
            if each is None or not wanted(each[1]):
                break
            found = each[0]
        return found

    def _version(self, version: int) -> tuple[datetime, Policy] | None:
        stored = versions.read(self._store, version)
        try:
            return None if stored is None else (stored.at, versions.parsed_policy(stored))
        except SpecError:
            return None
