"""How the budgets of the house stand, looked up when somebody wants a machine: from the logs of all active jobs, and
from what those have left in `spent/` that are forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker import log
from stoker.core.budgets import Books, Expense, close_books, concerned, period_of
from stoker.core.snapshot import JobSnapshot, Snapshot
from stoker.core.spending import dearest
from stoker.errors import StokerError
from stoker.fold import JobState
from stoker.governor.observe import STUMBLES, Memory, for_each
from stoker.index import read_index, read_submission
from stoker.layout import spent_day, spent_month
from stoker.model import PROTOCOL_VERSION, Known, Observed, Unknown
from stoker.rules import House
from stoker.spec import Spec
from stoker.spent import read_spent
from stoker.store import Store

# Where nobody wants a machine, budgets are only looked at to warn of them in time.
WARN_EVERY_S = 300.0


class Bookkeeper:
    """Looks for one governor. What was read in a pass is kept for its further rounds."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self.store = store
        self.memory = memory
        self._jobs: tuple[str, ...] = ()
        self._read: dict[str, JobState] = {}
        self._kept: tuple[tuple[str, ...], list[Expense]] | None = None
        self._warned_s: float | None = None

    def begin(self, jobs: tuple[str, ...]) -> None:
        """A new pass. `jobs` are all that are active, listed before anything else is read here: one that is forgotten
        meanwhile is then counted by its log."""
        self._jobs = jobs
        self._read = {}
        self._kept = None

    def with_books(self, snapshot: Snapshot, house: House, now: datetime, passed_s: float) -> Snapshot:
        """The snapshot with what the budgets need, where any is about a job that wants a machine, or it is time to
        see whether a warning is due."""
        if not house.about("budget"):
            return snapshot
        for job in snapshot.jobs:
            self._read[job.state.job] = job.state
        wanted = any(_launches(job) and concerned(house, job.spec.tags) for job in snapshot.jobs)
        if not wanted and (snapshot.partial or not self._is_due(passed_s)):
            return snapshot
        books = self.look(house, now)
        return replace(snapshot, jobs=tuple(replace(job, books=books) for job in snapshot.jobs))

    def look(self, house: House, now: datetime) -> Observed[Books]:
        """How they stand. Unknown when anything could not be read that belongs to the sum."""
        try:
            found = [each for each in for_each(self._account, list(self._jobs), near=self.store.near) if each]
            return Known(close_books(house, self._forgotten(house, now), found, now))
        except (StokerError, *STUMBLES) as error:
            return Unknown(str(error) if isinstance(error, StokerError) else f"{type(error).__name__}: {error}")

    def _account(self, job: str) -> tuple[JobState, Spec] | None:
        state = self._read.get(job) or self._state(job)
        if state is None:
            return None  # A submission that is under way.
        if state.min_version > PROTOCOL_VERSION:
            raise StokerError(f"{job}: a newer Stoker governs it; update this one")
        submission = self.memory.submissions.get(job)
        if submission is None:
            submission = self.memory.submissions[job] = read_submission(self.store, state)
        return state, submission.spec

    def _state(self, job: str) -> JobState | None:
        known = self.memory.states.get(job)
        if known is None:
            record = read_index(self.store, job)
            known = record.state if record else None
        state = log.read(self.store, job, known)
        if state is not None:
            self._read[job] = self.memory.states[job] = state
        return state

    def _forgotten(self, house: House, now: datetime) -> list[Expense]:
        prefixes = _prefixes(house, now)
        if self._kept is None or self._kept[0] != prefixes:
            found = read_spent(self.store, prefixes)
            self._kept = (prefixes, [Expense(each.job, each.tags, each.day, dearest(each.cost)) for each in found])
        return self._kept[1]

    def _is_due(self, passed_s: float) -> bool:
        due = self._warned_s is None or passed_s - self._warned_s >= WARN_EVERY_S
        if due:
            self._warned_s = passed_s
        return due


def _launches(job: JobSnapshot) -> bool:
    """Whether it wants a machine, or has a claim that somebody has to finish."""
    return job.offerings is not None or any(claim.launched is None for claim in job.state.open_claims)


def _prefixes(house: House, now: datetime) -> tuple[str, ...]:
    """What has to be listed for the periods that count now, nothing twice."""
    months, days = set(), set()
    for rule in house.about("budget"):
        assert rule.budget is not None
        period = period_of(rule.budget, now)
        if rule.budget.period == "month":
            months.add(spent_month(period.start))
        else:
            count = (min(period.end, now.date()) - period.start).days + 1
            days |= {period.start.fromordinal(period.start.toordinal() + n) for n in range(count)}
    return tuple(sorted(months | {spent_day(day) for day in days if spent_month(day) not in months}))
