"""What jobs cost, what they saved, and what of it led nowhere: `stoker costs`. Pure, from folds and summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.costs import Cost, span_s
from stoker.core.daily_costs import Spell, Sums, midnight, spells
from stoker.core.summary import AttemptSummary
from stoker.governor.cost_ledger import Spent
from stoker.model.job_state import Claim
from stoker.model.log_entries import Waste
from stoker.store.job_index import IndexRecord

# What stands for a tag that a job does not have, and for what is not kept of jobs that were removed.
NONE = "(none)"
REMOVED = "(removed)"
# What there is a row for each of, beside values of tags.
KINDS = ("day", "job", "provider", "machine")
# The columns of money, in their order.
AMOUNTS = ("spent", "on_demand", "saved", "idle", "lost", "startup", "waiting")


@dataclass
class Amount:
    """A sum of dollars as far as it is known. `known` is None where nothing is."""

    known: float | None = None
    complete: bool = True

    def add(self, dollars: float | None) -> None:
        if dollars is None:
            self.complete = False
        else:
            self.known = (self.known or 0.0) + dollars


@dataclass
class Row:
    """What belongs together. Parts of the waste never overlap: what was idle is not lost as well."""

    name: str
    jobs: set[str] = field(default_factory=set)
    spent: Amount = field(default_factory=Amount)
    on_demand: Amount = field(default_factory=Amount)
    saved: Amount = field(default_factory=Amount)
    idle: Amount = field(default_factory=Amount)
    lost: Amount = field(default_factory=Amount)
    startup: Amount = field(default_factory=Amount)
    waiting: Amount = field(default_factory=Amount)
    # On-demand dollars of what is in `saved`.
    _basis: float = 0.0

    @property
    def saved_share(self) -> float | None:
        """Of what on-demand would have cost, where both are known."""
        return self.saved.known / self._basis if self.saved.known is not None and self._basis > 0 else None

    @property
    def wasted(self) -> float:
        """As far as it is known."""
        return sum(each.known or 0.0 for each in (self.idle, self.lost, self.startup, self.waiting))

    def add(self, job: str, cost: Cost) -> None:
        self.jobs.add(job)
        self.spent.add(cost.spent)
        self.on_demand.add(cost.on_demand)
        known = cost.spent is not None and cost.on_demand is not None
        self.saved.add(cost.on_demand - cost.spent if known else None)  # type: ignore[operator]
        self._basis += (cost.on_demand or 0.0) if known else 0.0

    def add_sums(self, job: str, sums: Sums) -> None:
        """What is only known by the day."""
        self.jobs.add(job)
        for amount, each in ((self.spent, sums.spent), (self.on_demand, sums.on_demand)):
            if each.whole or each.known > 0:
                amount.add(each.known)
            if not each.whole:
                amount.add(None)
        known = sums.spent.whole and sums.on_demand.whole
        self.saved.add(sums.on_demand.known - sums.spent.known if known else None)
        self._basis += sums.on_demand.known if known else 0.0

    def waste(self, shares: Shares, spent: float | None) -> None:
        for name in ("idle", "lost", "startup", "waiting"):
            share = getattr(shares, name)
            getattr(self, name).add(None if share is None or (spent is None and share > 0) else share * (spent or 0.0))


@dataclass(frozen=True)
class Shares:
    """Which shares of an attempt's hours led nowhere. None is what nobody knows."""

    idle: float | None = 0.0
    lost: float | None = 0.0
    startup: float | None = 0.0
    waiting: float | None = 0.0


_UNKNOWN = Shares(None, None, None, None)


@dataclass(frozen=True)
class Report:
    """Rows by name, and all of them together."""

    rows: tuple[Row, ...]
    total: Row


def report(
    records: Iterable[IndexRecord], removed: Iterable[Spent], by: str, now: datetime, since: datetime | None = None
) -> Report:
    """The rows by `day`, `job`, `provider`, `machine`, or a tag's name, with `tags.` before it where it is one of
    these. `removed` is of jobs that are in no record."""
    rows: dict[str, Row] = {}
    total = Row("total")
    for record in records:
        naming = _naming(record, by)
        for spell, shares in _spells(record, now, since):
            row = rows.setdefault(naming(spell), Row(naming(spell)))
            cost = spell.cost
            for each in (row, total):
                each.add(record.state.job, cost)
                each.waste(shares, cost.spent)
    for each_spent in removed:
        if since is not None and each_spent.day < since.date():
            continue
        name = _name_of_removed(each_spent, by)
        for each in (rows.setdefault(name, Row(name)), total):
            each.add_sums(each_spent.job, each_spent.sums)
            each.waste(_UNKNOWN, None)
    ordered = sorted(rows.values(), key=lambda row: row.name if by == "day" else (-(row.spent.known or 0.0), row.name))
    return Report(tuple(ordered), total)


def whole_days(removed: Iterable[Spent], since: datetime | None) -> list[str]:
    """The removed jobs of which more is counted than there was since then: what they spent is only kept by the day."""
    if since is None or since == midnight(since.date()):
        return []
    return sorted({each.job for each in removed if each.day == since.date()})


def _spells(record: IndexRecord, now: datetime, since: datetime | None) -> Iterator[tuple[Spell, Shares]]:
    attempts = {attempt.claim: attempt for attempt in record.summary.attempts}
    held = {claim: attempt.held_until for claim, attempt in attempts.items()}
    shares = {
        claim.number: shares_of(claim, attempts.get(claim.number), now, record.summary.heard_at)
        for claim in record.state.attempts
    }
    for spell in spells(record.state, now, held, since):
        closed_at = spell.claim.closed_at
        # Whoever keeps a machine for a look has a use for it.
        is_held = closed_at is not None and spell.start >= closed_at
        yield spell, Shares() if is_held else shares[spell.claim.number]


def shares_of(claim: Claim, attempt: AttemptSummary | None, now: datetime, heard_at: datetime | None) -> Shares:
    """Of the hours between `launched` and `closed`, or now. Facts are untrusted: together they are never more."""
    assert claim.launched_at is not None
    total_s = ((claim.closed_at or now) - claim.launched_at).total_seconds()
    if total_s <= 0:
        return Shares()
    # What was since an attempt was last heard of, nobody knows.
    seen_s = total_s
    if claim.closed_at is None:
        seen_s = min(total_s, max(0.0, ((heard_at or now) - claim.launched_at).total_seconds()))
    told = claim.closed.waste if claim.closed else attempt.waste if attempt else None
    trained = claim.closed.trained_s if claim.closed else attempt.trained_s if attempt else 0.0
    waste = told or Waste()
    waited_s = min(span_s(waste.waited_s), seen_s)
    trained_s = min(span_s(trained), seen_s - waited_s)
    idle_s = None if waste.idle_s is None else min(span_s(waste.idle_s), trained_s)
    lost_s = None if waste.lost_s is None else min(span_s(waste.lost_s), trained_s - (idle_s or 0.0))
    if claim.closed is None:
        lost_s = 0.0  # It may still be saved.
    if trained_s == 0:
        idle_s = lost_s = 0.0
    return Shares(
        idle=None if idle_s is None else idle_s / total_s,
        lost=None if lost_s is None else lost_s / total_s,
        startup=(seen_s - waited_s - trained_s) / total_s,
        waiting=None if told is None else waited_s / total_s,
    )


def _naming(record: IndexRecord, by: str) -> Callable[[Spell], str]:
    if by == "day":
        return lambda spell: spell.day.isoformat()
    if by == "provider":
        return lambda spell: spell.claim.offering.provider
    if by == "machine":
        return lambda spell: spell.claim.offering.machine
    name = record.state.job if by == "job" else record.summary.tags.get(_tag(by), NONE)
    return lambda _spell: name


def _name_of_removed(spent: Spent, by: str) -> str:
    if by == "day":
        return spent.day.isoformat()
    if by in ("provider", "machine"):
        return REMOVED
    return spent.job if by == "job" else spent.tags.get(_tag(by), NONE)


def _tag(by: str) -> str:
    """As in `--set`."""
    return by.removeprefix("tags.")
