"""The state of the policy's budgets and of its limits of machines at the same time, read when a job wants a machine:
from the logs of all active jobs, and from the records of ended jobs in `spent/`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.core import budget_verdict
from stoker.core.budget_reservations import LaunchRequest, launch_request, limits_of_job
from stoker.core.budget_state import BudgetState, Expense, UnreadableJob, compute_budget_state, has_budget, period_of
from stoker.core.budget_verdict import BudgetMark, LaunchDenied, UnreportedWarning
from stoker.core.concurrency import MachineUse
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, JobSnapshot, Snapshot
from stoker.governor.cost_ledger import ParsedKeys, read_daily_costs
from stoker.governor.observe import Memory, active_jobs
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StokerError, StoreDenied, StoreError, StoreUnavailable, describe_error
from stoker.model.job_state import JobState
from stoker.model.keys import spent_day, spent_month
from stoker.model.log_entries import PROTOCOL_VERSION, Warned
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_index import read_index, read_submission
from stoker.store.parallel import read_each

# In a pass that is not about a job, a state of that job is reused for this long.
FRESH_S = 60.0
# A pass that launches may take minutes, and other governors launch meanwhile. Before each launch, budgets that were
# read longer ago than this are read again: about as often as a governor passes over a remote store.
REREAD_AFTER_S = 15.0
# Reading budgets is repeated no sooner than after so many times as long as it took.
_MIN_PAUSE_FACTOR = 4
# Where no job wants a machine, budgets are read this often, to warn of them in time.
WARN_EVERY_S = 300.0


@dataclass
class _PassInputs:
    """Everything that a pass has read for its budgets. Nothing in it is older than `since`, by the store's clock."""

    # All active jobs.
    jobs: tuple[str, ...] = ()
    # The pass is about all of them: their logs are read, and no older state or index record is used.
    whole: bool = True
    since: datetime | None = None
    states: dict[str, JobState] = field(default_factory=dict)
    # The expenses of ended jobs, with the prefixes of `spent/` that they were read from.
    ended_expenses: tuple[tuple[str, ...], list[Expense]] | None = None


@dataclass(frozen=True)
class _External:
    """The expenses and the machines of external jobs."""

    expenses: list[Expense] = field(default_factory=list)
    uses: list[MachineUse] = field(default_factory=list)


class BudgetTracker:
    """Reads the budgets for one governor. What a pass has read is reused in its further rounds, for a few seconds.

    A pass over all jobs reads all their logs anyway. A pass over a few jobs counts the others by states that were read
    in the last minute, or by their records in `index/`, which every pass writes after its actions. Claims that are open
    in such a state are counted until now, so the sum lacks at most what was launched since: in a minute, or, where a
    governor died before it wrote the record, until the next whole pass. A claim that was closed since counts as
    running.
    """

    def __init__(self, store: Store, memory: Memory) -> None:
        self.store = store
        self.memory = memory
        self._inputs = _PassInputs()
        # When each job was last read, and when this pass began, by the governor's monotonic clock.
        self._seen_s: dict[str, float] = {}
        self._passed_s: float | None = None
        self._warned_s: float | None = None
        # Keys of `spent/` never change: each is parsed once over all passes.
        self._parsed: ParsedKeys = {}
        self._reported: set[BudgetMark] = set()
        # The result of the last read: the budgets, the jobs that were counted, and what external jobs have, which have
        # no log.
        self._state: Observed[BudgetState] | None = None
        self._accounts: list[tuple[JobState, Spec]] = []
        self._external = _External()
        # Ended jobs that were counted after their end.
        self._counted_ended: set[str] = set()
        # How long the last read took.
        self._took_s = 0.0

    def begin(self, jobs: tuple[str, ...], *, whole: bool = True, now: datetime | None = None) -> None:
        """Start a new pass. `whole`: it is about all jobs. `now` is None where the budgets are read at once.

        `jobs` are all active jobs, listed before anything else is read: a job that is unmarked meanwhile is still
        counted by its log.
        """
        self._inputs = _PassInputs(jobs, whole, now)
        active = set(jobs)
        self._seen_s = {job: seen_s for job, seen_s in self._seen_s.items() if job in active}
        self._counted_ended &= active
        self._state = None

    def with_budget_state(self, snapshot: Snapshot, policy: Policy, now: datetime, passed_s: float) -> Snapshot:
        """The snapshot with the state of the budgets, where a decision may need it: a job in some budget wants a
        machine or has just ended, or it is time to check whether a warning is due."""
        if not policy.about("budget", "concurrent"):
            return snapshot
        self._passed_s = passed_s
        for job in snapshot.jobs:
            self._inputs.states[job.state.job] = job.state
            self._seen_s[job.state.job] = passed_s
        counted = [job for job in snapshot.jobs if has_budget(policy, job.spec.tags)]
        # A job's whole cost is reported before the job is unmarked.
        ended = {job.state.job for job in counted if job.state.ended is not None}
        wanted = bool(ended - self._counted_ended) or any(map(_wants_machine, counted))
        if not wanted and (snapshot.partial or not self._is_warning_due(passed_s)):
            return snapshot
        # From the states of the snapshot, however long they took to read; before a launch the logs are read again.
        state = self._compute(policy, now)
        self._counted_ended |= ended
        return replace(snapshot, jobs=tuple(replace(job, budget_state=state) for job in snapshot.jobs))

    def read_state(self, policy: Policy, now: datetime) -> Observed[BudgetState]:
        """The state of the budgets, with old inputs read again. Unknown when anything in the sum could not be read."""
        try:
            self._drop_old_inputs(now)
        except StokerError as error:
            self._state = Unknown(describe_error(error))
            return self._state
        return self._compute(policy, now)

    def _compute(self, policy: Policy, now: datetime) -> Observed[BudgetState]:
        from stoker.governor.external_costs import expenses_of, read_rows, uses_of

        began_s = time.monotonic()
        self._inputs.since = self._inputs.since or now
        try:
            found = read_each(self._account_or_unreadable, list(self._inputs.jobs), is_local=self.store.is_local)
            accounts = [each for each in found if isinstance(each, tuple)]
            unreadable = [each for each in found if isinstance(each, UnreadableJob)]
            # Before the ended jobs: an external job that is over is written to `spent/` before it leaves these lists.
            rows = read_rows(self.store, policy) if policy.sagemaker is not None else []
            external = _External(expenses_of(rows), uses_of(rows))
            ended = self._ended_expenses(policy, now)
            state = compute_budget_state(policy, ended, accounts, now, unreadable, external.expenses, external.uses)
            self._accounts, self._external = accounts, external
            self._state = Known(budget_verdict.without_reported(policy, state, self._was_reported))
        except Exception as error:  # noqa: BLE001 - a sum that cannot be computed is unknown, and starts no machine
            self._state = Unknown(describe_error(error))
        self._took_s = time.monotonic() - began_s
        return self._state

    def refresh_before_launch(self, policy: Policy, job: str, now: datetime) -> None:
        """Read old budgets again before a job gets a machine: this pass and other governors may have launched others
        since."""
        submission = self.memory.submissions.get(job)
        if submission is not None and has_budget(policy, submission.spec.tags) and self._is_old(now):
            self.read_state(policy, now)

    def launch_denied(self, policy: Policy, job: str, offering: Offering, now: datetime) -> str | None:
        """The reason why a job may not claim machines of this offering now, by the budgets that were read last and the
        claims that this governor made since. Unknown budgets deny, too."""
        submission, state = self.memory.submissions.get(job), self.memory.states.get(job)
        if submission is None or not has_budget(policy, submission.spec.tags):
            return None
        request = None
        if state is not None:
            request = launch_request(limits_of_job(policy, state, submission.spec, now), state, offering, now)
        held = self._find_hold(policy, job, submission.spec, now, request)
        return None if held is None else held.waits or held.reason

    def launch_conflict(self, policy: Policy, job: str, number: int, now: datetime) -> LaunchDenied | None:
        """The reason why a claim that is written may not be launched: another claim that is as old, or running jobs,
        leave too little money for it.

        Reads all logs again, so of claims that race each sees those that were written before it. Raises StokerError
        where the budgets are unknown.
        """
        submission, state = self.memory.submissions.get(job), self.memory.states.get(job)
        if submission is None or not has_budget(policy, submission.spec.tags):
            return None
        self._drop_logs(now)
        self.read_state(policy, now)
        state = self._inputs.states.get(job, state)
        claim = state.claim(number) if state is not None else None
        if state is None or claim is None:
            return None
        limits = limits_of_job(policy, state, submission.spec, now)
        request = launch_request(limits, state, claim.offering, now, claim)
        held = self._find_hold(policy, job, submission.spec, now, request)
        if held is not None and held.unknown:
            raise StokerError(held.reason)
        return held

    def _find_hold(
        self, policy: Policy, job: str, spec: Spec, now: datetime, request: LaunchRequest | None
    ) -> LaunchDenied | None:
        found = budget_verdict.judge(policy, Subject(spec, now.date(), job), self._state_at(policy, now), now, request)
        return next((each for each in found if isinstance(each, LaunchDenied)), None)

    def _state_at(self, policy: Policy, now: datetime) -> Observed[BudgetState] | None:
        """The state at `now` from the last read: running machines cost more by then, and claims of this governor
        count."""
        if not isinstance(self._state, Known):
            return self._state
        try:
            accounts = [(self._inputs.states.get(state.job, state), spec) for state, spec in self._accounts]
            ended, unreadable = self._ended_expenses(policy, now), self._state.value.unreadable
            external = self._external
            state = compute_budget_state(policy, ended, accounts, now, unreadable, external.expenses, external.uses)
            return Known(state)
        except Exception as error:  # noqa: BLE001 - a sum that cannot be computed is unknown, and starts no machine
            return Unknown(describe_error(error))

    def _drop_logs(self, now: datetime) -> None:
        """Have the next read read all logs, and the expenses of jobs that were unmarked since."""
        active = tuple(active_jobs(self.store))
        was_unmarked = bool(set(self._inputs.jobs) - set(active))
        ended_expenses = None if was_unmarked else self._inputs.ended_expenses
        self._inputs = _PassInputs(active, since=now, ended_expenses=ended_expenses)

    def count_claim(self, job: str) -> None:
        """Count a claim that was made, launched or closed in this pass from now on."""
        state = self.memory.states.get(job)
        if state is not None and job in self._inputs.states:
            self._inputs.states[job] = state

    def record_warning(self, policy: Policy, done: Append) -> None:
        """Remember that a warning of a budget was written, after it was: the job that holds it may be unmarked. Raises
        StoreError."""
        submission = self.memory.submissions.get(done.job)
        if submission is None or not isinstance(done.event, Warned):
            return
        mark = budget_verdict.mark_of_code(policy, submission.spec.tags, done.event.code)
        if mark is not None:
            self.record_reported(mark)

    def unreported(self, policy: Policy) -> list[UnreportedWarning]:
        """The warnings of budgets that no job's log can hold, as far as the budgets were read in this pass."""
        return (
            list(budget_verdict.unreported_warnings(policy, self._state.value))
            if isinstance(self._state, Known)
            else []
        )

    def record_reported(self, mark: BudgetMark) -> None:
        """Remember for all governors that this warning was reported. Raises StoreError."""
        if mark not in self._reported:
            self.store.create(_reported_key(mark), b"")
            self._reported.add(mark)

    def _was_reported(self, mark: BudgetMark) -> bool:
        if mark not in self._reported and self.store.head(_reported_key(mark)) is not None:
            self._reported.add(mark)
        return mark in self._reported

    def _is_old(self, now: datetime) -> bool:
        # Reading budgets never takes up most of a pass.
        max_age_s = max(REREAD_AFTER_S, _MIN_PAUSE_FACTOR * self._took_s)
        return self._inputs.since is not None and (now - self._inputs.since).total_seconds() >= max_age_s

    def _drop_old_inputs(self, now: datetime) -> None:
        """Where the inputs are too old, have all of them read again, from the logs of the jobs that are active now."""
        if self._is_old(now):
            self._inputs = _PassInputs(tuple(active_jobs(self.store)), since=now)

    def _account_or_unreadable(self, job: str) -> tuple[JobState, Spec] | UnreadableJob | None:
        try:
            return self._account(job)
        except (StoreUnavailable, StoreDenied):
            raise  # No job can be read then: the whole sum is unknown.
        except Exception as error:  # noqa: BLE001 - one corrupt job concerns its own budgets alone
            return UnreadableJob(job, describe_error(error), self._tags(job))

    def _tags(self, job: str) -> Mapping[str, str] | None:
        """The tags of a job whose log cannot be read: its spec may tell which budgets it counts against."""
        known = self.memory.submissions.get(job)
        if known is not None:
            return known.spec.tags
        try:
            found = self.store.get(keys.spec(job))
            return None if found is None else codec.loads(Submission, found.data, where=keys.spec(job)).spec.tags
        except (StoreUnavailable, StoreDenied):
            raise
        except (StoreError, CodecError):
            return None

    def _account(self, job: str) -> tuple[JobState, Spec] | None:
        state = self._inputs.states.get(job) or self._read_job(job)
        if state is None:
            return None  # The job is being submitted.
        if state.min_version > PROTOCOL_VERSION:
            raise StokerError(f"{job}: a newer Stoker governs it; update this one")
        submission = self.memory.submissions.get(job)
        if submission is None:
            submission = self.memory.submissions[job] = read_submission(self.store, state)
        return state, submission.spec

    def _read_job(self, job: str) -> JobState | None:
        known = self.memory.states.get(job)
        if known is not None and not self._inputs.whole and self._is_fresh(job):
            return known
        # For a job that the pass is not about, the index record is enough. Reading on from a known state costs one
        # call, and looking for a newer record three.
        record = read_index(self.store, job) if known is None and not self._inputs.whole else None
        state = record.state if record is not None else job_log.read(self.store, job, known)
        if state is not None:
            self._inputs.states[job] = self.memory.states[job] = state
            if self._passed_s is not None:
                self._seen_s[job] = self._passed_s
        return state

    def _is_fresh(self, job: str) -> bool:
        seen_s = self._seen_s.get(job)
        return seen_s is not None and self._passed_s is not None and self._passed_s - seen_s < FRESH_S

    def _ended_expenses(self, policy: Policy, now: datetime) -> list[Expense]:
        prefixes = _prefixes(policy, now)
        if self._inputs.ended_expenses is None or self._inputs.ended_expenses[0] != prefixes:
            found = read_daily_costs(self.store, prefixes, self._parsed)
            expenses = [Expense(e.job, e.tags, e.day, e.sums.counted.known, e.sums.counted.whole) for e in found]
            self._inputs.ended_expenses = (prefixes, expenses)
        return self._inputs.ended_expenses[1]

    def _is_warning_due(self, passed_s: float) -> bool:
        due = self._warned_s is None or passed_s - self._warned_s >= WARN_EVERY_S
        if due:
            self._warned_s = passed_s
        return due


def _wants_machine(job: JobSnapshot) -> bool:
    """Return whether the job wants a machine, or has a claim whose launch is not finished."""
    return job.offerings is not None or any(claim.launched is None for claim in job.state.open_claims)


def _reported_key(mark: BudgetMark) -> str:
    return keys.budget_warning(mark.rule, mark.start, mark.value, mark.kind)


def _prefixes(policy: Policy, now: datetime) -> tuple[str, ...]:
    """The prefixes of `spent/` to list for the current periods of all budgets, without overlap."""
    months, days = set(), set()
    for rule in policy.about("budget"):
        assert rule.budget is not None
        period = period_of(rule.budget, now)
        if rule.budget.period in ("month", "quarter"):
            day = period.start
            while day < min(period.end, now.date() + timedelta(days=1)):
                months.add(spent_month(day))
                day = (day.replace(day=1) + timedelta(days=31)).replace(day=1)
        else:
            count = (min(period.end, now.date()) - period.start).days + 1
            days |= {period.start.fromordinal(period.start.toordinal() + n) for n in range(count)}
    return tuple(sorted(months | {spent_day(day) for day in days if spent_month(day) not in months}))
