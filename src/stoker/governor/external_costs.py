"""What training jobs of others cost, in the books of the house: by their rows while those are there, and in `spent/`
once they are over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

from stoker.core.budget_state import Expense
from stoker.core.daily_costs import Sum, Sums, days
from stoker.governor.cost_ledger import Spent, keep_spent
from stoker.model.policy import House
from stoker.store import external_job_index
from stoker.store.base import Store
from stoker.store.external_job_index import Row


def read_expenses(store: Store, house: House) -> list[Expense]:
    """Of all that the lists of the governed regions hold. Raises StoreError when the store does not answer."""
    regions = house.sagemaker.regions if house.sagemaker is not None else ()
    rows = [row for region in regions for row in external_job_index.read(store, region).rows.values() if not row.own]
    return [
        Expense(_id(row), row.tags, day, sums.counted.known, sums.counted.whole)
        for row in rows
        for day, sums in _by_day(row).items()
    ]


def keep(store: Store, row: Row) -> None:
    """Write down what one cost that is over. May be repeated. Raises StoreError."""
    for day, sums in _by_day(row).items():
        keep_spent(store, Spent(_id(row), day, 1, sums, row.tags))


def _id(row: Row) -> str:
    """No job of Stoker's is called so. A name that is used again is another job's."""
    return f"sagemaker.{row.region}.{row.name}.{row.created_at:%Y%m%d%H%M%S}"


def _by_day(row: Row) -> dict[date, Sums]:
    """Spread evenly over the time that it trained: nobody tells which of it was billed."""
    spans = list(_spans(row))
    total_s = sum(seconds for _, seconds in spans)
    found: dict[date, Sums] = {}
    for day, seconds in spans:
        dollars = None if row.cost is None else row.cost * seconds / total_s
        # What spot would have cost without is more than that, by how much nobody knows.
        full = Sum(dollars or 0.0, whole=dollars is not None and not row.spot)
        found[day] = Sums(Sum().plus(dollars), full, Sum().plus(dollars))
    return found


def _spans(row: Row) -> Iterator[tuple[date, float]]:
    end = row.ended_at or row.looked_at
    start = max(row.created_at, end - timedelta(seconds=row.trained_s))
    for first, last in days(start, end):
        yield first.date(), (last - first).total_seconds()
