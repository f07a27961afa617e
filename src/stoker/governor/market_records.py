"""Record how claims ended on the spot markets, and read the records of all jobs. No failure here harms a job."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta

from stoker.core import market
from stoker.core.market import LATELY_S, MarketHistory
from stoker.model import keys, market_keys
from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.job_state import Claim, JobState
from stoker.model.policy import Policy
from stoker.store.base import Store

# Nothing is unbounded: older records are deleted.
KEPT = timedelta(days=30)
_DAY = timedelta(days=1)
# The markets are read again after this time: on a day with many claims, that takes many calls.
MARKETS_FOR_S = 60.0


class MarketReader:
    """The markets as all jobs saw them. Each provider's records are read once; make another reader for newer ones.
    Thread-safe."""

    def __init__(self, store: Store, now: datetime, policy: Policy) -> None:
        self._store = store
        self.policy = policy
        # Records are stored by day: a span of one day touches two.
        self._days = [(now - n * _DAY).date() for n in range(1 + math.ceil(_span_s(policy) / _DAY.total_seconds()))]
        self._lock = threading.Lock()
        self._read: dict[str, MarketHistory] = {}

    def of(self, provider: str) -> MarketHistory:
        """The market of one provider; `market.NO_HISTORY` where the store does not answer."""
        with self._lock:
            if provider not in self._read:
                self._read[provider] = self._read_market(provider)
            return self._read[provider]

    def _read_market(self, provider: str) -> MarketHistory:
        try:
            key_list = [
                meta.key for day in self._days for meta in self._store.list(market_keys.market_day(day, provider))
            ]
        except StoreError:
            return market.NO_HISTORY
        return MarketHistory.of(seen for key in key_list if (seen := market.parse_observation(key)) is not None)


def _span_s(policy: Policy) -> float:
    """The longest span that placement or a rule of the policy looks back."""
    return max([LATELY_S, *(rule.market.over_s for rule in policy.about("market") if rule.market is not None)])


class MarketCache:
    """The governor's current `MarketReader`, replaced when it is old or the policy has changed."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self.reader: MarketReader | None = None
        self._read_s = 0.0

    def refresh(self, now: datetime, policy: Policy) -> None:
        now_s = self._monotonic()
        if self.reader is None or self.reader.policy != policy or now_s - self._read_s >= MARKETS_FOR_S:
            self.reader, self._read_s = MarketReader(self._store, now, policy), now_s


class MarketWriter:
    """Writes the market records of closed claims: once when they close, and again for failed writes before a job is
    unmarked.

    `is_real(provider)` is false for a provider without a real market: the reclaims of a rehearsal say nothing about
    one.
    """

    def __init__(self, store: Store, is_real: Callable[[str], bool] = lambda _provider: True) -> None:
        self._store = store
        self._is_real = is_real
        # The claims that are written already, by job.
        self._written: dict[str, set[int]] = {}
        self._pruned_until: date | None = None

    def record(self, before: JobState | None, after: JobState) -> None:
        """Write the records of claims that were closed between the two states. `complete` repeats failed writes."""
        open_before = {claim.number for claim in before.claims if claim.open} if before else set()
        last = before.claims[-1].number if before and before.claims else 0
        try:
            for claim in after.claims:
                if claim.number in open_before or claim.number > last:
                    self._write(after.job, claim)
        except StoreError:
            return

    def complete(self, state: JobState) -> None:
        """Write the missing records of a job that has ended. Raises StoreUnavailable; then call it again."""
        try:
            for claim in state.claims:
                if state.ended is None or claim.closed_at is None or state.ended.at - claim.closed_at < KEPT:
                    self._write(state.job, claim)
        except StoreUnavailable:
            raise
        except StoreError:
            pass  # This governor has no permission: no reason to keep the job active for ever.
        self._written.pop(state.job, None)

    def retain(self, jobs: set[str]) -> None:
        """Forget all other jobs."""
        self._written = {job: written for job, written in self._written.items() if job in jobs}

    def _write(self, job: str, claim: Claim) -> None:
        key = market.observation_key(job, claim)
        written = self._written.setdefault(job, set())
        if (
            key is None
            or claim.number in written
            or claim.closed_at is None
            or not self._is_real(claim.offering.provider)
        ):
            return
        self._store.create(key, b"")
        written.add(claim.number)
        self._delete_old(claim.closed_at.date())

    def _delete_old(self, today: date) -> None:
        """Delete the records of days before the longest span, once a day."""
        if self._pruned_until is not None and today <= self._pruned_until:
            return
        self._pruned_until = today
        oldest = (today - KEPT).isoformat()
        for day in self._store.folders(keys.MARKET):
            if day < oldest:
                self._store.delete([meta.key for meta in self._store.list(f"{keys.MARKET}{day}/")])
