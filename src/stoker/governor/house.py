"""The rules of the house, as a governor needs them: the newest version, read again only when there is another."""

from __future__ import annotations

from dataclasses import replace

from stoker import policies
from stoker.core.policy import Policy
from stoker.errors import SpecError, StoreError, StoreUnavailable
from stoker.store import Store


class HouseReader:
    """Keeps the rules between passes."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self._version: int | None = None

    def read(self) -> Policy:
        """The policy with the newest rules. What cannot be read as rules is told in it.

        Raises StoreUnavailable when the store does not answer.
        """
        version = policies.newest(self._store)
        if version != self._version:
            self._policy = _with_rules(self._store, version, self._policy)
            self._version = version
        return self._policy


def _with_rules(store: Store, version: int, policy: Policy) -> Policy:
    try:
        kept = policies.read(store, version) if version else None
        return replace(policy, house=policies.house(kept), unread="")
    except StoreUnavailable:
        raise
    except (SpecError, StoreError) as error:
        return replace(policy, unread=str(error))
