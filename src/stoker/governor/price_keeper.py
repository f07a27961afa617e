"""Keep the price tables of a store: governors and people read them there, and refresh them where their role allows.
Limits on cost and budgets hold only for known prices. No failure here harms a job.

The newest table of each region counts, on every computer: a table says its date. So tables may be brought and published
in any order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone

from stoker.model import keys
from stoker.model.errors import StokerError, StoreDenied, StoreUnavailable, UserError
from stoker.providers import registry
from stoker.providers.price_book import PricesModule
from stoker.store.base import Store

# The tables of the store are read again after this time.
_READ_EVERY_S = 3600.0
# A table older than this is refreshed; a refresh that failed is tried again later.
FRESH_DAYS = 7
_RETRY_S = 6 * 3600.0
# A table of all regions with all machines has less.
_LIMIT_BYTES = 4 * 1024 * 1024


class PriceKeeper:
    """The price tables of one store. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._now = now
        self._read_at_s: float | None = None
        self._tried_at_s: dict[tuple[str, str], float] = {}

    def read(self) -> dict[str, str]:
        """Bring the store's tables into this computer's home, at most once an hour. Returns problems.

        Raises StoreUnavailable.
        """
        if self._read_at_s is not None and self._monotonic() - self._read_at_s < _READ_EVERY_S:
            return {}
        read_at_s = self._monotonic()
        problems: dict[str, str] = {}
        try:
            stored = {meta.key for meta in self._store.list(keys.PRICES)}
        except StoreDenied as error:
            stored, problems = set(), {"prices": str(error)}
        for name, module in _modules() if stored else ():
            try:
                if keys.prices(name) in stored:
                    _bring(self._store, name, module)
            except StoreUnavailable:
                raise
            except (StokerError, ValueError) as error:
                problems[f"prices of {name}"] = str(error)
        # Not before: a call that the store did not answer is repeated.
        self._read_at_s = read_at_s
        return problems

    def refresh(self, places: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Refresh the oldest of these tables, each named by provider and region, where it is old. Returns problems.

        One table for each call, since a price list has many pages. A governor without the permission, or without the
        package, keeps the tables as they are. Raises StoreUnavailable.
        """
        modules = dict(_modules())
        due = [
            (age_days, name, region)
            for name, region in sorted(set(places))
            if name in modules and (age_days := self._age_days(modules[name], region)) > FRESH_DAYS
            if self._may_try(name, region)
        ]
        if not due:
            return {}
        _, name, region = max(due)
        self._tried_at_s[name, region] = self._monotonic()
        try:
            modules[name].refresh_now((region,))
            publish(self._store, name, modules[name])
        except StoreUnavailable:
            raise
        except StokerError as error:
            return {f"prices of {name} in {region}": str(error)}
        return {}

    def _age_days(self, module: PricesModule, region: str) -> float:
        found = module.tables().get(region)
        return float("inf") if found is None else (self._now().date() - found.date).days

    def _may_try(self, name: str, region: str) -> bool:
        tried_at_s = self._tried_at_s.get((name, region))
        return tried_at_s is None or self._monotonic() - tried_at_s >= _RETRY_S


def bring_prices(store: Store, provider: str) -> tuple[str, ...]:
    """Bring the store's newer tables of a provider into this computer's home. Returns a warning where they cannot be
    used; none for a provider without tables. Raises StoreUnavailable."""
    try:
        module = registry.prices(provider)
    except UserError:
        return ()
    try:
        _bring(store, provider, module)
    except StoreUnavailable:
        raise
    except (StokerError, ValueError) as error:
        return (f"the store's prices of {provider} are not used: {error}",)
    return ()


def publish(store: Store, name: str, module: PricesModule) -> None:
    """Put the refreshed tables of a provider into the store, for all its governors and users. Newer tables of the store
    are kept, here and there. Raises StoreError."""
    with suppress(ValueError):  # A damaged table is replaced.
        _bring(store, name, module)
    store.put(keys.prices(name), module.BOOK.render(module.BOOK.refreshed_tables()).encode())


def _bring(store: Store, name: str, module: PricesModule) -> None:
    """Raises StoreError, ValueError for a damaged table, and UserError for a home that is not writable."""
    found = store.get(keys.prices(name), limit=_LIMIT_BYTES)
    if found is not None:
        module.BOOK.keep(found.data.decode())


def _modules() -> list[tuple[str, PricesModule]]:
    """The price tables by provider. A provider without a table is left out."""
    found = []
    for name in registry.names():
        with suppress(UserError):
            found.append((name, registry.prices(name)))
    return found
