"""The rules of the house, as a governor needs them: the newest version, read again only when there is another."""

from __future__ import annotations

from dataclasses import replace

from stoker.core.governor_settings import Policy
from stoker.model.errors import SpecError, StoreError, StoreUnavailable
from stoker.policy import versions
from stoker.store.base import Store


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
        version = versions.newest(self._store)
        if version != self._version:
            self._take(version)
        return self._policy

    def _take(self, version: int) -> None:
        try:
            kept = versions.read(self._store, version) if version else None
            self._policy = replace(self._policy, house=versions.house(kept), unread="")
        except StoreUnavailable:
            raise
        except SpecError as error:
            # It stays as it is written.
            self._policy = replace(self._policy, unread=str(error))
        except StoreError as error:
            # What was refused, or garbled on its way, may be read the next time.
            self._policy = replace(self._policy, unread=str(error))
            return
        self._version = version
