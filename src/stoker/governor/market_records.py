"""Write down what claims saw of the markets, and read what those of all jobs did. Nothing here ever harms a job."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta

from stoker.core import market
from stoker.core.market import LATELY_S, Market
from stoker.model import keys
from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.job_state import Claim, JobState
from stoker.model.policy import House
from stoker.store.base import Store

# Nothing is unbounded: what was seen so long ago is forgotten.
KEPT = timedelta(days=30)
_DAY = timedelta(days=1)


class MarketReader:
    """The markets as all jobs saw them, each provider's read once: make another for what came since. Thread-safe."""

    def __init__(self, store: Store, now: datetime, house: House) -> None:
        self._store = store
        self.house = house
        # Days are whole: a look back over one of them reaches into two.
        self._days = [(now - n * _DAY).date() for n in range(1 + math.ceil(_span_s(house) / _DAY.total_seconds()))]
        self._lock = threading.Lock()
        self._read: dict[str, Market] = {}

    def of(self, provider: str) -> Market:
        """Unknown where the store does not tell."""
        with self._lock:
            if provider not in self._read:
                self._read[provider] = self._look(provider)
            return self._read[provider]

    def _look(self, provider: str) -> Market:
        try:
            key_list = [meta.key for day in self._days for meta in self._store.list(keys.markets(day, provider))]
        except StoreError:
            return market.UNKNOWN
        return Market.of(seen for key in key_list if (seen := market.parse(key)) is not None)


def _span_s(house: House) -> float:
    """As far back as anybody looks."""
    return max([LATELY_S, *(rule.market.over_s for rule in house.about("market") if rule.market is not None)])


class MarketWriter:
    """Writes the sightings of closed claims: at once, as well as it can, and again before a job is forgotten.

    `real` tells of a provider whether its market is one: what a rehearsal takes back says nothing of any.
    """

    def __init__(self, store: Store, real: Callable[[str], bool] = lambda _provider: True) -> None:
        self._store = store
        self._real = real
        # What need not be written again, by job.
        self._written: dict[str, set[int]] = {}
        self._swept: date | None = None

    def note(self, before: JobState | None, after: JobState) -> None:
        """Write down what was closed between the two. What fails is put right by `complete`."""
        open_before = {claim.number for claim in before.claims if claim.open} if before else set()
        last = before.claims[-1].number if before and before.claims else 0
        try:
            for claim in after.claims:
                if claim.number in open_before or claim.number > last:
                    self._write(after.job, claim)
        except StoreError:
            return

    def complete(self, state: JobState) -> None:
        """Write down what nobody has written yet of a job that has ended. Raises StoreUnavailable: then do it again."""
        try:
            for claim in state.claims:
                if state.ended is None or claim.closed_at is None or state.ended.at - claim.closed_at < KEPT:
                    self._write(state.job, claim)
        except StoreUnavailable:
            raise
        except StoreError:
            pass  # Whoever governs may not: no reason to look at this job for ever.
        self._written.pop(state.job, None)

    def keep(self, jobs: set[str]) -> None:
        """Forget all but these."""
        self._written = {job: written for job, written in self._written.items() if job in jobs}

    def _write(self, job: str, claim: Claim) -> None:
        key = market.key_of(job, claim)
        written = self._written.setdefault(job, set())
        if key is None or claim.number in written or claim.closed_at is None or not self._real(claim.offering.provider):
            return
        self._store.create(key, b"")
        written.add(claim.number)
        self._forget_old(claim.closed_at.date())

    def _forget_old(self, today: date) -> None:
        """Remove days that nobody looks back on. Once a day will do."""
        if self._swept is not None and today <= self._swept:
            return
        self._swept = today
        oldest = (today - KEPT).isoformat()
        for day in self._store.folders(keys.MARKET):
            if day < oldest:
                self._store.delete([meta.key for meta in self._store.list(f"{keys.MARKET}{day}/")])
