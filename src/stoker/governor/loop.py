"""The governor: observe, decide, apply. All its state is in the store, so any number may run at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.core.budget_verdict import LaunchDenied
from stoker.core.decide import decide
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Action, Append, JobSnapshot, Plan, Snapshot, Unmark
from stoker.governor.apply import Applier, ApplyResult
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import record_job_costs
from stoker.governor.freshness import Freshness, with_sleep
from stoker.governor.index_writer import IndexWriter
from stoker.governor.leftovers import sweep
from stoker.governor.market_records import MarketCache
from stoker.governor.observe import (
    Memory,
    Observation,
    active_jobs,
    known_places,
    list_clouds,
    observe,
)
from stoker.governor.pass_notifier import PassNotifier
from stoker.governor.pass_record import governor_name, record_pass
from stoker.governor.price_keeper import PriceKeeper
from stoker.model.errors import StokerError, StoreError, describe_error
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import LOOP_WAIT_S, NotificationDispatcher
from stoker.notifications.events import Notification, leftover_name, orphan_notification, orphan_notifications
from stoker.policy.reader import PolicyReader
from stoker.providers.base import SupportsWakeup
from stoker.store.base import Store
from stoker.store.job_log import new_token
from stoker.store.removed_jobs import clear_markers
from stoker.store.store_clock import StoreClock, read_clock

# Rounds over one job in one pass before the rest is left to the next: a claim, its launch, its close and the next claim
# fit in easily, and a bug that never settles cannot spin.
MAX_ROUNDS = 12

# Events wake the governor; the tick only catches what they miss. A local store costs nothing to read.
TICK_NEAR_S = 2.0
TICK_FAR_S = 15.0
# A single pass always sweeps for leftovers; a loop does so this often.
SWEEP_EVERY_S = 60.0


@dataclass(frozen=True)
class Pass:
    """The result of one pass."""

    active: int
    at: datetime
    actions: tuple[Action, ...] = ()
    # Seconds until the next pass is due even if nothing happens; None: no deadline is known.
    wake_in_s: float | None = None
    problems: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    # `unsent`: some notification is not sent yet. `can_send`: this governor may be able to send one.
    can_send: bool = False
    unsent: bool = False

    @property
    def idle(self) -> bool:
        """Return whether nothing is left to do, as far as this pass saw."""
        return self.active == 0 and not self.can_send


class Governor:
    """Governs every active job of one store. Not thread-safe; make one for each thread."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet | None = None,
        name: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = new_token,
        dispatcher: NotificationDispatcher | None = None,
        with_sleep: Callable[[], float] = with_sleep,
    ) -> None:
        self.store = store
        self.fleet = fleet or Fleet(store.url)
        self.settings = DEFAULT
        self._policy_reader = PolicyReader(store, DEFAULT)
        self.name = name or governor_name()
        self.monotonic = monotonic
        self._with_sleep = with_sleep
        self.memory = Memory()
        self.applier = Applier(store, self.fleet, self.memory, self.name, token)
        self.indexer = IndexWriter(store, self.memory, monotonic)
        self.budget_tracker = BudgetTracker(store, self.memory)
        dispatcher = dispatcher or NotificationDispatcher(store, self.name, token)
        self.notifier = PassNotifier(dispatcher, self.memory, self.budget_tracker)
        self._markets = MarketCache(store, monotonic)
        self._clock: StoreClock | None = None
        self._swept_s: float | None = None

    @property
    def dispatcher(self) -> NotificationDispatcher:
        return self.notifier.dispatcher

    def plan(self) -> tuple[Plan, Observation]:
        """The plan of a pass that started now, without any action."""
        self.settings = self._policy_reader.read()
        markers = active_jobs(self.store)
        self.budget_tracker.begin(tuple(markers))
        clock = read_clock(self.store, self.name, self.monotonic)
        self._markets.refresh(clock.now(), self.settings.policy)
        observation = self._observe(markers)
        return self._decide(observation.snapshot, clock.now()), observation

    def run_pass(self, only: set[str] | None = None) -> Pass:
        """Make one pass over every active job, or over `only` these. Raises StoreError if the store does not answer."""
        self.settings = self.applier.settings = self._policy_reader.read()
        active = active_jobs(self.store)
        markers = {job: found for job, found in active.items() if only is None or job in only}
        clock = self._begin(active, len(markers), whole=only is None)
        sweeping = only is None and self._sweep_is_due()
        fresh = Freshness(clock.now(), self._with_sleep, self.monotonic)
        observation = self._observe(markers, everywhere=sweeping, only=only)
        absent = markers.keys() - {job.state.job for job in observation.snapshot.jobs} - observation.problems.keys()
        problems = observation.problems | clear_markers(self.store, sorted(absent))
        self._forget_others({*active, *observation.listing.jobs()})
        actions: list[Action] = []
        others: tuple[JobSnapshot, ...] | None = () if only is None else None
        plan = self._decide(replace(observation.snapshot, partial=only is not None, others=others), fresh.observed())
        problems |= plan.problems
        newest = {job.state.job: job for job in observation.snapshot.jobs}
        waiting = dict(plan.waiting)
        wakes = [plan.wake_at]
        for _ in range(MAX_ROUNDS):
            applied = self._apply(plan, newest, waiting, problems, clock, fresh)
            actions += applied.done
            if applied.stale:
                problems["clock"] = "this computer slept, or this process was stopped: the next pass decides anew"
                wakes.append(clock.now())
                break
            again = {job: markers.get(job, ()) for job in applied.moved if job not in applied.problems}
            if not again:
                break
            fresh = Freshness(clock.now(), self._with_sleep, self.monotonic)
            part = self._observe_again(again, observation)
            self._record_markets(part, newest, problems)
            newest |= {job.state.job: job for job in part.snapshot.jobs}
            others = tuple(newest.values()) if only is None else None
            plan = self._decide(replace(part.snapshot, partial=True, others=others), fresh.observed())
            problems |= part.problems | plan.problems
            waiting = {job: text for job, text in waiting.items() if job not in again} | plan.waiting
            wakes.append(plan.wake_at)
        # An action that failed is the reason why its job waits, whatever was decided: `ps` and `explain` show it.
        waiting |= {job: text for job, text in problems.items() if job in newest}
        self.indexer.update_all(list(newest.values()), waiting, clock.now())
        removed = orphan_notifications(actions, clock.now())
        if sweeping:
            problems |= self._sweep(observation, removed, clock)
        known_active = None if only is not None else set(markers)
        problems |= self.notifier.notify(newest, removed, known_active, self.settings.policy, clock)
        return Pass(
            active=len(markers),
            at=clock.now(),
            actions=tuple(actions),
            wake_in_s=_soonest(wakes, clock),
            problems=problems,
            waiting=waiting,
            can_send=self.dispatcher.pending,
            unsent=self.notifier.unsent,
        )

    def _apply(
        self,
        plan: Plan,
        newest: dict[str, JobSnapshot],
        waiting: dict[str, str],
        problems: dict[str, str],
        clock: StoreClock,
        fresh: Freshness,
    ) -> ApplyResult:
        """Carry out a plan, after the records of jobs that it unmarks. Updates `waiting` and `problems`."""
        plan = self._write_final_records(plan, newest, waiting, problems, clock)
        plan = self.notifier.record_endings(plan, newest, clock)
        guard = _PassBudgetGuard(self.budget_tracker, self.settings.policy, clock)
        applied = self.applier.apply(plan, guard, fresh.still)
        waiting.update(applied.waiting)
        self._record_warnings(applied.done, problems)
        problems.update(applied.problems)
        return applied

    def _begin(self, active: Collection[str], count: int, *, whole: bool) -> StoreClock:
        """Record a pass over `count` jobs, and start it in the budgets, notifications and markets."""
        clock = self._clock = record_pass(self.store, self.name, count, self.monotonic)
        self.budget_tracker.begin(tuple(sorted(active)), whole=whole, now=clock.now())
        self.dispatcher.begin(self.settings.policy)
        self._markets.refresh(clock.now(), self.settings.policy)
        return clock

    def _forget_others(self, seen: set[str]) -> None:
        """Forget jobs that are neither active nor have machines: an id that is used again is another job. Partial
        passes do so too, since a governor may make no whole pass for months."""
        self.memory.retain(seen)
        self.applier.market.retain(seen)

    def _record_markets(self, part: Observation, before: dict[str, JobSnapshot], problems: dict[str, str]) -> None:
        """Record the claims that were closed since the job was last observed, for the market statistics."""
        for job in part.snapshot.jobs:
            known = before.get(job.state.job)
            try:
                self.applier.market.record(known.state if known else None, job.state)
            except Exception as error:  # noqa: BLE001 - one job's market record must not stop the pass
                problems[job.state.job] = describe_error(error)

    def watch(
        self,
        until: Callable[[Pass], bool],
        on_pass: Callable[[Pass], None] | None = None,
        on_error: Callable[[StokerError], None] | None = None,
    ) -> None:
        """Make passes until `until` returns true. Wakes at once for a notice or an exit on this computer."""
        self.notifier.patience_s = LOOP_WAIT_S
        prices = PriceKeeper(self.store, self.monotonic)
        while True:
            try:
                problems = prices.read()
                done = self.run_pass()
                done = replace(done, problems=problems | done.problems)
            except StokerError as error:
                # Without the store nothing can be decided. Machines enforce their limits themselves meanwhile.
                if on_error is not None:
                    on_error(error)
                self.sleep(None)
                continue
            if on_pass is not None:
                on_pass(done)
            if until(done):
                self.notifier.finish(self._clock)
                return
            self.sleep(done.wake_in_s)

    def sleep(self, wake_in_s: float | None) -> None:
        """Sleep until a deadline, a wake-up, or the tick (with jitter, so that many governors do not act in step)."""
        tick_s = (TICK_NEAR_S if self.store.is_local else TICK_FAR_S) * random.uniform(0.8, 1.2)
        pause_s = min(tick_s, wake_in_s) if wake_in_s is not None else tick_s
        waker = next(
            (p for p in self.fleet.connected() if isinstance(p, SupportsWakeup) and p.capabilities.wakes), None
        )
        if waker is not None:
            waker.wait(max(0.02, pause_s))
        else:
            time.sleep(max(0.02, pause_s))

    def _observe(
        self, markers: dict[str, tuple[int, ...]], *, everywhere: bool = False, only: set[str] | None = None
    ) -> Observation:
        """List the clouds, then observe the jobs. `everywhere`: list all places where this store ever launched, which
        may hold machines of jobs without a marker. `only`: ignore listed machines of all other jobs."""
        more = known_places(self.store) if everywhere else ()
        listing = list_clouds(self.store, self.fleet, self.memory, markers, more)
        if only is not None:
            listing = listing.narrowed(only)
        return observe(self.store, self.fleet, self.memory, markers, listing, self._markets.reader)

    def _observe_again(self, moved: dict[str, tuple[int, ...]], before: Observation) -> Observation:
        """Observe the jobs whose logs have changed. The clouds are not listed again: an older list is only
        less complete."""
        listing = before.listing.narrowed(set(moved))
        return observe(self.store, self.fleet, self.memory, moved, listing, self._markets.reader)

    def _sweep_is_due(self) -> bool:
        """Return whether to sweep in this pass: listing everywhere costs a call for each place."""
        due = self._swept_s is None or self.monotonic() - self._swept_s >= SWEEP_EVERY_S
        if due:
            self._swept_s = self.monotonic()
        return due

    def _sweep(self, observation: Observation, removed: list[Notification], clock: StoreClock) -> dict[str, str]:
        """Remove leftovers of machines in the places that were listed. Adds the orphans among them to `removed`."""
        problems: dict[str, str] = {}
        for place in observation.listing.instances:
            swept = sweep(self.store, self.fleet, place, clock.now)
            problems |= swept.problems
            removed += [
                orphan_notification(each.job, leftover_name(each), why, clock.now()) for each, why in swept.orphans
            ]
        return problems

    def places(self) -> set[tuple[str, str]]:
        """The providers and regions of the jobs that this governor remembers."""
        asked = (submission.spec.resources for submission in self.memory.submissions.values())
        return {(each.provider, region) for each in asked for region in each.regions}

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """Decide as of `now`, when the observation began. If the process was suspended since, the present time would
        make everything that it saw look old."""
        known = self.budget_tracker.with_budget_state(snapshot, self.settings.policy, now, self.monotonic())
        return decide(known, self.settings, now)

    def _record_warnings(self, done: list[Action], problems: dict[str, str]) -> None:
        for action in done:
            if isinstance(action, Append):
                try:
                    self.budget_tracker.record_warning(self.settings.policy, action)
                except StoreError as error:
                    # At worst the warning is reported twice.
                    problems.setdefault(action.job, describe_error(error))

    def _write_final_records(
        self,
        plan: Plan,
        newest: dict[str, JobSnapshot],
        waiting: dict[str, str],
        problems: dict[str, str],
        clock: StoreClock,
    ) -> Plan:
        """Write the costs and the last index record of jobs that the plan unmarks: no pass reads a job without a marker
        again. Returns the plan without unmarking jobs for which that failed."""
        rest: list[Action] = []
        for action in plan.actions:
            if isinstance(action, Unmark):
                try:
                    job = newest[action.job]
                    record_job_costs(self.store, job.state, job.spec, clock.now())
                    self.indexer.update(job, waiting.get(action.job, ""), clock.now())
                except Exception as error:  # noqa: BLE001 - the edge of one job
                    # The job stays active, since its costs would otherwise never count. One cause is a role that may
                    # not write to `spent/` yet.
                    problems[action.job] = describe_error(error)
                    continue
            rest.append(action)
        return replace(plan, actions=tuple(rest))


@dataclass(frozen=True)
class _PassBudgetGuard:
    """The budgets of this pass, at the present time. Implements `BudgetGuard`."""

    tracker: BudgetTracker
    policy: Policy
    clock: StoreClock

    def launch_denied(self, job: str, offering: Offering) -> str | None:
        self.tracker.refresh_before_launch(self.policy, job, self.clock.now())
        # The clock is read again: the refresh takes a while, in which running machines cost money.
        return self.tracker.launch_denied(self.policy, job, offering, self.clock.now())

    def launch_conflict(self, job: str, number: int) -> LaunchDenied | None:
        return self.tracker.launch_conflict(self.policy, job, number, self.clock.now())

    def count_claim(self, job: str) -> None:
        self.tracker.count_claim(job)


def _soonest(wakes: list[datetime | None], clock: StoreClock) -> float | None:
    known = [wake for wake in wakes if wake is not None]
    return max(0.0, (min(known) - clock.now()).total_seconds()) if known else None
