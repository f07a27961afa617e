"""External training jobs in what jobs share: their costs in the policy's budgets, from their index rows while these
exist and from `spent/` once the jobs are over; and their machines in the limits of machines at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta

from stoker.core.budget_state import Expense
from stoker.core.concurrency import MachineUse
from stoker.core.daily_costs import DaySums, KnownSum, days
from stoker.governor.cost_ledger import DailyCost, record_daily_cost
from stoker.model.policy import Policy
from stoker.store import external_job_index
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow


def read_rows(store: Store, policy: Policy) -> list[ExternalJobRow]:
    """The external jobs in the index of the governed regions. Raises StoreError."""
    regions = policy.sagemaker.regions if policy.sagemaker is not None else ()
    return [row for region in regions for row in external_job_index.read(store, region).rows.values() if not row.own]


def expenses_of(rows: Iterable[ExternalJobRow]) -> list[Expense]:
    """The expenses of external jobs."""
    return [
        Expense(_id(row), row.tags, day, sums.counted.known, sums.counted.whole)
        for row in rows
        for day, sums in _by_day(row).items()
    ]


def uses_of(rows: Iterable[ExternalJobRow]) -> list[MachineUse]:
    """The machines of external jobs in progress, as of the last pass over them."""
    return [
        MachineUse(row.name, row.tags, row.created_at, row.nodes, _accelerators(row), region=row.region)
        for row in rows
        if row.phase in ("launching", "running", "stopping")
    ]


def _accelerators(row: ExternalJobRow) -> int:
    return row.nodes * (row.gpus or 0) if row.accelerators is None else row.accelerators


def record_costs(store: Store, row: ExternalJobRow) -> None:
    """Write the costs of an external job that is over. May be repeated. Raises StoreError."""
    for day, sums in _by_day(row).items():
        record_daily_cost(store, DailyCost(_id(row), day, 1, sums, row.tags))


def _id(row: ExternalJobRow) -> str:
    """A name that no job of Stoker has. The creation time tells apart training jobs that reuse a name."""
    return f"sagemaker.{row.region}.{row.name}.{row.created_at:%Y%m%d%H%M%S}"


def _by_day(row: ExternalJobRow) -> dict[date, DaySums]:
    """The cost, spread evenly over the training time: SageMaker does not report when time was billed."""
    spans = list(_spans(row))
    total_s = sum(seconds for _, seconds in spans)
    found: dict[date, DaySums] = {}
    for day, seconds in spans:
        dollars = None if row.cost is None else row.cost * seconds / total_s
        # The on-demand price of a spot job is higher, by an unknown amount.
        full = KnownSum(dollars or 0.0, whole=dollars is not None and not row.spot)
        found[day] = DaySums(KnownSum().plus(dollars), full, KnownSum().plus(dollars))
    return found


def _spans(row: ExternalJobRow) -> Iterator[tuple[date, float]]:
    end = row.ended_at or row.looked_at
    start = max(row.created_at, end - timedelta(seconds=row.trained_s))
    for first, last in days(start, end):
        yield first.date(), (last - first).total_seconds()
