"""The policy as a governor needs it: the newest version, read again only when there is a newer one."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from stoker.core.governor_settings import GovernorSettings
from stoker.model.errors import SpecError, StoreError, StoreUnavailable
from stoker.policy import versions
from stoker.policy.approvals import ApprovalReader
from stoker.store.base import Store


class PolicyReader:
    """Caches the policy between passes."""

    def __init__(self, store: Store, settings: GovernorSettings) -> None:
        self._store = store
        self._settings = settings
        self._version: int | None = None
        self._approvals = ApprovalReader(store)

    def read(self) -> GovernorSettings:
        """The governor's settings with the newest policy. Where that cannot be read, `policy_error` says why, and the
        last readable policy stays. Approvals are read each time, where some rule has approvers. Raises StoreError.
        """
        version = versions.newest(self._store)
        if version != self._version:
            self._load(version)
        today = datetime.now(timezone.utc).date()
        # A day more, so that a clock that is wrong does no harm: the decision compares with the store's clock.
        policy = self._approvals.with_approvals(self._settings.policy, today - timedelta(days=1))
        return self._settings if policy is self._settings.policy else replace(self._settings, policy=policy)

    def _load(self, version: int) -> None:
        try:
            stored = versions.read(self._store, version) if version else None
            self._settings = replace(self._settings, policy=versions.parsed_policy(stored), policy_error="")
        except StoreUnavailable:
            raise
        except SpecError as error:
            # The text of a version never changes, so it is not read again.
            self._settings = replace(self._settings, policy_error=str(error))
        except StoreError as error:
            # A refused or corrupt read may succeed the next time.
            self._settings = replace(self._settings, policy_error=str(error))
            return
        self._version = version
