"""How the budgets of the house stand, looked up when somebody wants a machine: from the logs of all active jobs, and
from what those have left in `spent/` that are forgotten."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from stoker.core import budgets
from stoker.core.budget_reservations import Ask, ask_for, bounds_of
from stoker.core.budget_state import Books, Expense, Unread, close_books, concerned, period_of
from stoker.core.budgets import Held, Mark, Unheralded
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, JobSnapshot, Snapshot
from stoker.governor.cost_ledger import Parsed, read_spent
from stoker.governor.observe import Memory, active_jobs
from stoker.model import codec, keys
from stoker.model.errors import STUMBLES, StokerError, StoreDenied, StoreUnavailable, in_words
from stoker.model.job_state import JobState
from stoker.model.keys import spent_day, spent_month
from stoker.model.log_entries import PROTOCOL_VERSION, Warned
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.offerings import Offering
from stoker.model.policy import House
from stoker.model.spec import Spec, Submission
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_index import read_index, read_submission
from stoker.store.parallel import for_each

# In a pass that is not about a job, what was read of it so lately will do.
FRESH_S = 60.0
# A pass that launches may take minutes, and others launch meanwhile. Before it goes on, what is older than this is read
# again: about as often as a governor looks at a store that is far away.
LOOK_AGAIN_S = 15.0
# What takes long is done again no sooner than after so many times as long.
_SHARE = 4
# Where nobody wants a machine, budgets are only looked at to warn of them in time.
WARN_EVERY_S = 300.0


class Bookkeeper:
    """Looks for one governor. What was read in a pass is kept for its further rounds, for a few seconds.

    A pass over all jobs reads all their logs anyway. One over a few counts the others by what was read of them in the
    last minute, or by their records in `index/`, which every pass writes after what it did. What such a fold says runs
    counts until now, so it lacks at most what was launched since: in a minute, or, where a governor died before it
    wrote the record, until the next whole pass. A claim that was closed since counts as running.
    """

    def __init__(self, store: Store, memory: Memory) -> None:
        self.store = store
        self.memory = memory
        self._jobs: tuple[str, ...] = ()
        self._whole = True
        # When each job was last read, by the governor's own clock.
        self._seen_s: dict[str, float] = {}
        self._passed_s: float | None = None
        # What was read in this pass, and since when, by the store's clock: nothing of it is older.
        self._read_since: datetime | None = None
        self._read: dict[str, JobState] = {}
        self._kept: tuple[tuple[str, ...], list[Expense]] | None = None
        self._warned_s: float | None = None
        # Keys of `spent/` never change: over the passes, each is read once.
        self._parsed: Parsed = {}
        self._told: set[Mark] = set()
        self._books: Observed[Books] | None = None
        # The jobs behind them, and the expenses of training jobs that have no log.
        self._accounts: list[tuple[JobState, Spec]] = []
        self._others: list[Expense] = []
        # Jobs that are over, and were counted since.
        self._over: set[str] = set()
        # How long the last look took.
        self._look_s = 0.0

    def begin(self, jobs: tuple[str, ...], *, whole: bool = True, now: datetime | None = None) -> None:
        """A new pass. `jobs` are all that are active, listed before anything else is read here: one that is forgotten
        meanwhile is then counted by its log. `whole`: it is about all of them. `now`: None where the first look follows
        at once."""
        self._jobs = jobs
        self._whole = whole
        self._read_since = now
        active = set(jobs)
        self._seen_s = {job: seen_s for job, seen_s in self._seen_s.items() if job in active}
        self._over &= active
        self._read = {}
        self._kept = None
        self._books = None

    def with_books(self, snapshot: Snapshot, house: House, now: datetime, passed_s: float) -> Snapshot:
        """The snapshot with what the budgets need, where any is about a job that wants a machine or has just ended, or
        it is time to see whether a warning is due."""
        if not house.about("budget"):
            return snapshot
        self._passed_s = passed_s
        for job in snapshot.jobs:
            self._read[job.state.job] = job.state
            self._seen_s[job.state.job] = passed_s
        counted = [job for job in snapshot.jobs if concerned(house, job.spec.tags)]
        # All that a job spent is told before it is forgotten.
        ended = {job.state.job for job in counted if job.state.ended is not None}
        wanted = bool(ended - self._over) or any(map(_launches, counted))
        if not wanted and (snapshot.partial or not self._is_due(passed_s)):
            return snapshot
        # By what the snapshot has, however long that took to read; before a launch it is looked again.
        books = self._look(house, now)
        self._over |= ended
        return replace(snapshot, jobs=tuple(replace(job, books=books) for job in snapshot.jobs))

    def look(self, house: House, now: datetime) -> Observed[Books]:
        """How they stand, by nothing that is old. Unknown when anything could not be read that belongs to the sum."""
        try:
            self._renew(now)
        except StokerError as error:
            self._books = Unknown(in_words(error))
            return self._books
        return self._look(house, now)

    def _look(self, house: House, now: datetime) -> Observed[Books]:
        from stoker.governor.external_costs import read_expenses

        began_s = time.monotonic()
        self._read_since = self._read_since or now
        try:
            found = for_each(self._account_or_why_not, list(self._jobs), near=self.store.near)
            accounts = [each for each in found if isinstance(each, tuple)]
            unread = [each for each in found if isinstance(each, Unread)]
            # Before the forgotten: what is over is written there before it leaves the lists.
            others = read_expenses(self.store, house) if house.sagemaker is not None else []
            books = close_books(house, self._forgotten(house, now), accounts, now, unread, others)
            self._accounts, self._others = accounts, list(others)
            self._books = Known(budgets.without_told(house, books, self._was_told))
        except (StokerError, *STUMBLES) as error:
            self._books = Unknown(in_words(error))
        self._look_s = time.monotonic() - began_s
        return self._books

    def look_again(self, house: House, job: str, now: datetime) -> None:
        """Before a job gets a machine: a pass may launch many, one after the other, and others launch meanwhile."""
        submission = self.memory.submissions.get(job)
        if submission is not None and concerned(house, submission.spec.tags) and self._is_old(now):
            self.look(house, now)

    def keeps_back(self, house: House, job: str, offering: Offering, now: datetime) -> str | None:
        """What keeps a job from machines of this offering at this moment, of what was looked up last and of what was
        claimed here since. What is not known keeps it back, too."""
        submission, state = self.memory.submissions.get(job), self.memory.states.get(job)
        if submission is None or not concerned(house, submission.spec.tags):
            return None
        ask = None
        if state is not None:
            ask = ask_for(bounds_of(house, state, submission.spec, now), state, offering, now)
        held = self._held(house, job, submission.spec, now, ask)
        return None if held is None else held.waits or held.reason

    def yields(self, house: House, job: str, number: int, now: datetime) -> Held | None:
        """What keeps a claim that was made from being launched: another that is as old, or jobs that have begun, leave
        too little for it. Reads all logs anew, so of claims that race each sees those that were made before it. Raises
        StokerError where that is not known.
        """
        submission, state = self.memory.submissions.get(job), self.memory.states.get(job)
        if submission is None or not concerned(house, submission.spec.tags):
            return None
        self._read_anew(now)
        self.look(house, now)
        state = self._read.get(job, state)
        claim = state.claim(number) if state is not None else None
        if state is None or claim is None:
            return None
        bounds = bounds_of(house, state, submission.spec, now)
        held = self._held(house, job, submission.spec, now, ask_for(bounds, state, claim.offering, now, claim))
        if held is not None and held.unknown:
            raise StokerError(held.reason)
        return held

    def _held(self, house: House, job: str, spec: Spec, now: datetime, ask: Ask | None) -> Held | None:
        found = budgets.judge(house, Subject(spec, now.date(), job), self._at(house, now), now, ask)
        return next((each for each in found if isinstance(each, Held)), None)

    def _at(self, house: House, now: datetime) -> Observed[Books] | None:
        """How the budgets stand now, by what was read: what runs goes on, and what was claimed here since counts."""
        if not isinstance(self._books, Known):
            return self._books
        try:
            accounts = [(self._read.get(state.job, state), spec) for state, spec in self._accounts]
            kept = self._forgotten(house, now)
            return Known(close_books(house, kept, accounts, now, self._books.value.unread, self._others))
        except (StokerError, *STUMBLES) as error:
            return Unknown(in_words(error))

    def _read_anew(self, now: datetime) -> None:
        """Read all logs again with the next look, and what was spent by jobs that are forgotten since."""
        active = tuple(active_jobs(self.store))
        if set(self._jobs) - set(active):
            self._kept = None
        self._jobs, self._whole, self._read, self._read_since = active, True, {}, now

    def claimed(self, job: str) -> None:
        """A claim was made or launched in this pass: it counts from here on."""
        state = self.memory.states.get(job)
        if state is not None and job in self._read:
            self._read[job] = state

    def note_words(self, house: House, done: Append) -> None:
        """Remember that a budget was told to be nearly spent, after it was told: jobs that say so may be forgotten.
        Raises StoreError."""
        submission = self.memory.submissions.get(done.job)
        if submission is None or not isinstance(done.event, Warned):
            return
        mark = budgets.told_by(house, submission.spec.tags, done.event.code)
        if mark is not None:
            self.note_told(mark)

    def unheralded(self, house: House) -> list[Unheralded]:
        """What is to be told of budgets that no job can tell, as far as they were looked at in this pass."""
        return list(budgets.unheralded(house, self._books.value)) if isinstance(self._books, Known) else []

    def note_told(self, mark: Mark) -> None:
        """Nobody tells it again. Raises StoreError."""
        if mark not in self._told:
            self.store.create(_key(mark), b"")
            self._told.add(mark)

    def _is_old(self, now: datetime) -> bool:
        # Looking never takes up most of a pass.
        most_s = max(LOOK_AGAIN_S, _SHARE * self._look_s)
        return self._read_since is not None and (now - self._read_since).total_seconds() >= most_s

    def _renew(self, now: datetime) -> None:
        """Have all of it read again that is too old, from the logs themselves, and of the jobs that came since."""
        if self._is_old(now):
            self._jobs = tuple(active_jobs(self.store))
            self._whole, self._read, self._kept, self._read_since = True, {}, None, now

    def _was_told(self, mark: Mark) -> bool:
        if mark not in self._told and self.store.head(_key(mark)) is not None:
            self._told.add(mark)
        return mark in self._told

    def _account_or_why_not(self, job: str) -> tuple[JobState, Spec] | Unread | None:
        try:
            return self._account(job)
        except (StoreUnavailable, StoreDenied):
            raise  # Nobody knows anything then.
        except (StokerError, *STUMBLES) as error:
            return Unread(job, in_words(error), self._tags(job))

    def _tags(self, job: str) -> Mapping[str, str] | None:
        """Of a job whose log cannot be read: its spec may tell which budgets it is in."""
        known = self.memory.submissions.get(job)
        if known is not None:
            return known.spec.tags
        found = self.store.get(keys.spec(job))
        try:
            return None if found is None else codec.loads(Submission, found.data, where=keys.spec(job)).spec.tags
        except (StokerError, *STUMBLES):
            return None

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
        if known is not None and not self._whole and self._is_fresh(job):
            return known
        record = read_index(self.store, job) if known is None else None
        # Of a job that the pass is not about, the record is enough. To read on from a state costs one call, and to
        # look for a newer record three.
        state = record.state if record is not None and not self._whole else job_log.read(self.store, job, known)
        if state is not None:
            self._read[job] = self.memory.states[job] = state
            if self._passed_s is not None:
                self._seen_s[job] = self._passed_s
        return state

    def _is_fresh(self, job: str) -> bool:
        seen_s = self._seen_s.get(job)
        return seen_s is not None and self._passed_s is not None and self._passed_s - seen_s < FRESH_S

    def _forgotten(self, house: House, now: datetime) -> list[Expense]:
        prefixes = _prefixes(house, now)
        if self._kept is None or self._kept[0] != prefixes:
            found = read_spent(self.store, prefixes, self._parsed)
            kept = [Expense(e.job, e.tags, e.day, e.sums.counted.known, e.sums.counted.whole) for e in found]
            self._kept = (prefixes, kept)
        return self._kept[1]

    def _is_due(self, passed_s: float) -> bool:
        due = self._warned_s is None or passed_s - self._warned_s >= WARN_EVERY_S
        if due:
            self._warned_s = passed_s
        return due


def _launches(job: JobSnapshot) -> bool:
    """Whether it wants a machine, or has a claim that somebody has to finish."""
    return job.offerings is not None or any(claim.launched is None for claim in job.state.open_claims)


def _key(mark: Mark) -> str:
    return keys.budget_told(mark.rule, mark.start, mark.value, mark.kind)


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
