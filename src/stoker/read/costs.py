"""Costs, savings and waste of jobs, for `stoker costs`, also as a table for spreadsheets. Computed from job states and
summaries alone."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO

from stoker.core.costs import Cost, valid_span_s
from stoker.core.daily_costs import DaySums, PaidSpan, midnight, paid_spans
from stoker.core.summary import AttemptSummary
from stoker.governor.cost_ledger import DailyCost
from stoker.model.job_state import Claim
from stoker.model.log_entries import Waste
from stoker.store.job_index import IndexRecord

# The value of a missing tag, and of properties that are not recorded for removed jobs.
NONE = "(none)"
REMOVED = "(removed)"
# The kinds of rows, beside values of tags.
KINDS = ("day", "job", "provider", "machine")
# The columns of dollars, in their order.
AMOUNTS = ("spent", "on_demand", "saved", "idle", "lost", "startup", "waiting")


@dataclass
class Amount:
    """A sum of dollars as far as it is known. `known` is None where no part is known."""

    known: float | None = None
    complete: bool = True

    def add(self, dollars: float | None) -> None:
        if dollars is None:
            self.complete = False
        else:
            self.known = (self.known or 0.0) + dollars


@dataclass
class CostRow:
    """The costs of one row. Parts of the waste never overlap: idle time is not counted as lost too."""

    name: str
    jobs: set[str] = field(default_factory=set)
    spent: Amount = field(default_factory=Amount)
    on_demand: Amount = field(default_factory=Amount)
    saved: Amount = field(default_factory=Amount)
    idle: Amount = field(default_factory=Amount)
    lost: Amount = field(default_factory=Amount)
    startup: Amount = field(default_factory=Amount)
    waiting: Amount = field(default_factory=Amount)
    # The on-demand cost that `saved` refers to.
    _basis: float = 0.0

    @property
    def saved_share(self) -> float | None:
        """The saved share of the on-demand cost, where both are known."""
        return self.saved.known / self._basis if self.saved.known is not None and self._basis > 0 else None

    def add(self, job: str, cost: Cost) -> None:
        self.jobs.add(job)
        self.spent.add(cost.spent)
        self.on_demand.add(cost.on_demand)
        known = cost.spent is not None and cost.on_demand is not None
        self.saved.add(cost.on_demand - cost.spent if known else None)  # type: ignore[operator]
        self._basis += (cost.on_demand or 0.0) if known else 0.0

    def add_sums(self, job: str, sums: DaySums) -> None:
        """Add costs that are known only by the day."""
        self.jobs.add(job)
        for amount, each in ((self.spent, sums.spent), (self.on_demand, sums.on_demand)):
            if each.whole or each.known > 0:
                amount.add(each.known)
            if not each.whole:
                amount.add(None)
        known = sums.spent.whole and sums.on_demand.whole
        self.saved.add(sums.on_demand.known - sums.spent.known if known else None)
        self._basis += sums.on_demand.known if known else 0.0

    def waste(self, shares: WasteShares, spent: float | None) -> None:
        for name in ("idle", "lost", "startup", "waiting"):
            share = getattr(shares, name)
            getattr(self, name).add(None if share is None or (spent is None and share > 0) else share * (spent or 0.0))


@dataclass(frozen=True)
class WasteShares:
    """The wasted shares of an attempt's hours. None means unknown."""

    idle: float | None = 0.0
    lost: float | None = 0.0
    startup: float | None = 0.0
    waiting: float | None = 0.0


_UNKNOWN = WasteShares(None, None, None, None)


@dataclass(frozen=True)
class CostReport:
    """The rows, and their total."""

    rows: tuple[CostRow, ...]
    total: CostRow


def report(
    records: Iterable[IndexRecord], removed: Iterable[DailyCost], by: str, now: datetime, since: datetime | None = None
) -> CostReport:
    """Compute the rows by `day`, `job`, `provider`, `machine` or the name of a tag; a tag with one of these names is
    written with `tags.` before it. `removed` has the costs of removed jobs."""
    rows: dict[str, CostRow] = {}
    total = CostRow("total")
    for record in records:
        naming = _naming(record, by)
        for spell, shares in _spells(record, now, since):
            row = rows.setdefault(naming(spell), CostRow(naming(spell)))
            cost = spell.cost
            for each in (row, total):
                each.add(record.state.job, cost)
                each.waste(shares, cost.spent)
    for each_spent in removed:
        if since is not None and each_spent.day < since.date():
            continue
        name = _name_of_removed(each_spent, by)
        for each in (rows.setdefault(name, CostRow(name)), total):
            each.add_sums(each_spent.job, each_spent.sums)
            each.waste(_UNKNOWN, None)
    ordered = sorted(rows.values(), key=lambda row: row.name if by == "day" else (-(row.spent.known or 0.0), row.name))
    return CostReport(tuple(ordered), total)


def whole_days(removed: Iterable[DailyCost], since: datetime | None) -> list[str]:
    """The removed jobs for which the whole first day is counted, because their costs are recorded by day."""
    if since is None or since == midnight(since.date()):
        return []
    return sorted({each.job for each in removed if each.day == since.date()})


def _spells(record: IndexRecord, now: datetime, since: datetime | None) -> Iterator[tuple[PaidSpan, WasteShares]]:
    attempts = {attempt.claim: attempt for attempt in record.summary.attempts}
    held = {claim: attempt.held_until for claim, attempt in attempts.items()}
    shares = {
        claim.number: shares_of(claim, attempts.get(claim.number), now, record.summary.heard_at)
        for claim in record.state.attempts
    }
    for spell in paid_spans(record.state, now, held, since):
        closed_at = spell.claim.closed_at
        # A held machine is in use by a person, not wasted.
        is_held = closed_at is not None and spell.start >= closed_at
        yield spell, WasteShares() if is_held else shares[spell.claim.number]


def shares_of(claim: Claim, attempt: AttemptSummary | None, now: datetime, heard_at: datetime | None) -> WasteShares:
    """The shares of the time between `launched` and `closed` (or now). Facts are untrusted, so the sum is capped."""
    assert claim.launched_at is not None
    total_s = ((claim.closed_at or now) - claim.launched_at).total_seconds()
    if total_s <= 0:
        return WasteShares()
    # The time since the last heartbeat is unknown.
    seen_s = total_s
    if claim.closed_at is None:
        seen_s = min(total_s, max(0.0, ((heard_at or now) - claim.launched_at).total_seconds()))
    reported = claim.closed.waste if claim.closed else attempt.waste if attempt else None
    trained = claim.closed.trained_s if claim.closed else attempt.trained_s if attempt else 0.0
    waste = reported or Waste()
    waited_s = min(valid_span_s(waste.waited_s), seen_s)
    trained_s = min(valid_span_s(trained), seen_s - waited_s)
    idle_s = None if waste.idle_s is None else min(valid_span_s(waste.idle_s), trained_s)
    lost_s = None if waste.lost_s is None else min(valid_span_s(waste.lost_s), trained_s - (idle_s or 0.0))
    if claim.closed is None:
        lost_s = 0.0  # A save may still come.
    if trained_s == 0:
        idle_s = lost_s = 0.0
    return WasteShares(
        idle=None if idle_s is None else idle_s / total_s,
        lost=None if lost_s is None else lost_s / total_s,
        startup=(seen_s - waited_s - trained_s) / total_s,
        waiting=None if reported is None else waited_s / total_s,
    )


def _naming(record: IndexRecord, by: str) -> Callable[[PaidSpan], str]:
    if by == "day":
        return lambda spell: spell.day.isoformat()
    if by == "provider":
        return lambda spell: spell.claim.offering.provider
    if by == "machine":
        return lambda spell: spell.claim.offering.machine
    name = record.state.job if by == "job" else record.summary.tags.get(_tag(by), NONE)
    return lambda _spell: name


def _name_of_removed(spent: DailyCost, by: str) -> str:
    if by == "day":
        return spent.day.isoformat()
    if by in ("provider", "machine"):
        return REMOVED
    return spent.job if by == "job" else spent.tags.get(_tag(by), NONE)


def _tag(by: str) -> str:
    """The name of the tag, written as in `--set`."""
    return by.removeprefix("tags.")


# A cell that begins with one of these is a formula for spreadsheets: a tag could then run something.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def write_csv(file: TextIO, found: CostReport, by: str) -> int:
    """Write one row for each line of `stoker costs`, without the total, and return their number.

    Unknown amounts are empty; `incomplete` names the amounts of which a part is unknown.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((_cell(by), "jobs", *AMOUNTS, "incomplete"))
    for row in found.rows:
        amounts = [getattr(row, name) for name in AMOUNTS]
        known = ["" if amount.known is None else round(amount.known, 6) for amount in amounts]
        missing = " ".join(name for name, amount in zip(AMOUNTS, amounts, strict=True) if not amount.complete)
        writer.writerow((_cell(row.name), len(row.jobs), *known, missing))
    return len(found.rows)


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULAS) else text
