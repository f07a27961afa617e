"""Carry out a plan, action by action. Each action is safe to repeat, and the process may die at any point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol

from stoker.core.budget_verdict import LaunchDenied
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import hold_of
from stoker.core.launch_history import SUBNET_FULL
from stoker.core.longest_life import claim_life_s
from stoker.core.snapshot import Action, Append, Launch, Plan, Terminate, Unmark
from stoker.governor import leftovers
from stoker.governor.connected_providers import Fleet
from stoker.governor.market_records import MarketWriter
from stoker.governor.observe import Memory
from stoker.model import keys
from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    StillQueued,
    StokerError,
    StoreError,
    SubnetFull,
    Transient,
    UserError,
    describe_error,
)
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import AttemptOutcome, Claimed, Closed, Event, Launched, NodeRef, Record
from stoker.model.offerings import Instance, Offering
from stoker.providers.base import LaunchOrder, SupportsSpecCheck
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.removed_jobs import delete_derived_keys
from stoker.store.store_clock import read_time


@dataclass
class ApplyResult:
    """The result of carrying out a plan."""

    # Jobs whose log has new entries, of this governor or another: they are decided again at once.
    moved: set[str] = field(default_factory=set)
    done: list[Action] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    # Jobs that may not launch any more, with the reason, by what happened since the plan was made.
    waiting: dict[str, str] = field(default_factory=dict)
    # The plan became too old to go on with: everything has to be observed again.
    stale: bool = False


class BudgetGuard(Protocol):
    """Checks launches against the budgets at the present time."""

    def launch_denied(self, job: str, offering: Offering) -> str | None:
        """The reason why the job may not claim machines of this offering now; None: it may."""

    def launch_conflict(self, job: str, number: int) -> LaunchDenied | None:
        """The reason why a written claim may not be launched, by all claims of all governors until now; None: it may.
        Raises StokerError where the budgets are unknown."""

    def count_claim(self, job: str) -> None:
        """Count a claim of the job that was made, launched or closed just now."""


class Applier:
    """Carries out plans against one store and its providers."""

    def __init__(
        self, store: Store, fleet: Fleet, memory: Memory, by: str, token: Callable[[], str] = job_log.new_token
    ) -> None:
        self.store = store
        self.fleet = fleet
        self.memory = memory
        self.by = by
        self.token = token
        # The settings by which the plans were decided.
        self.settings = DEFAULT
        self.market = MarketWriter(store, self._is_paid)
        self._places: set[str] = set()

    def _is_paid(self, provider: str) -> bool:
        """Return whether the provider's machines cost money. False where it is not installed here: then another
        governor closed its claims, and recorded them."""
        try:
            return self.fleet.capabilities(provider).paid
        except StokerError:
            return False

    def apply(
        self, plan: Plan, budget_guard: BudgetGuard | None = None, is_fresh: Callable[[], bool] = lambda: True
    ) -> ApplyResult:
        """Carry out the plan, except launches that `budget_guard` denies by then. After a lost race or a failure the
        rest of that job's actions is dropped. Once `is_fresh` is false, the rest of the plan is dropped."""
        applied = ApplyResult()
        dropped: set[str] = set()
        for action in plan.actions:
            if action.job in dropped:
                continue
            if not is_fresh():
                applied.stale = True
                break
            try:
                carried_on = self._act(action, applied, budget_guard)
            except Exception as error:  # noqa: BLE001 - the edge of one job: the others are governed all the same
                # An error proves nothing: the next pass observes and decides again. A provider that is not installed
                # here must not stop the other jobs either.
                applied.problems[action.job] = describe_error(error)
                carried_on = isinstance(action, Terminate)
            if not carried_on:
                dropped.add(action.job)
        return applied

    def _act(self, action: Action, applied: ApplyResult, budget_guard: BudgetGuard | None) -> bool:
        if budget_guard is not None and self._is_denied(action, applied, budget_guard):
            return False
        match action:
            case Append(job=job, seq=seq, event=event, reason=reason):
                applied.moved.add(job)
                if not self._append(job, seq, event, reason) or self._was_removed(job):
                    return False
                if isinstance(event, Closed) and event.rule == "no-capacity":
                    self._record_dry_close(job, event.claim)
            case Launch(job=job, claim=number):
                own = job in applied.moved
                if budget_guard is not None and self._gives_up_claim(job, number, own, applied, budget_guard):
                    return False
                applied.moved.add(job)
                try:
                    self._launch(job, number)
                except StillQueued as queued:
                    # Nothing has changed: the next pass repeats the request.
                    applied.waiting[job] = str(queued)
                    if not own:
                        applied.moved.discard(job)
                    return False
                if budget_guard is not None:
                    budget_guard.count_claim(job)
            case Terminate(instance=instance, provider=provider, region=region):
                try:
                    self.fleet.provider(provider).terminate(instance, region)
                except NotFound:
                    pass
            case Unmark(job=job, markers=markers):
                self._remove_leftovers(job)
                state = self.memory.states.get(job)
                if state is not None:
                    self.market.complete(state)
                self._unmark(job, markers, state)
                self.memory.forget([job])
        applied.done.append(action)
        return True

    def _is_denied(self, action: Action, applied: ApplyResult, budget_guard: BudgetGuard) -> bool:
        """Return whether the budgets deny a claim by now: earlier launches of the same plan took time and cost
        money."""
        if not (isinstance(action, Append) and isinstance(action.event, Claimed)):
            return False
        why = budget_guard.launch_denied(action.job, action.event.offering)
        if why is not None:
            applied.waiting[action.job] = why
        return why is not None

    def _gives_up_claim(
        self, job: str, number: int, own: bool, applied: ApplyResult, budget_guard: BudgetGuard
    ) -> bool:
        """Check a claim against the budgets once more before its launch, on all logs as they are after its writing.

        Of two claims that governors make at the same time, and that a budget has not enough money for, each governor
        sees at least the one that was written first: the later one, or both where they are equally old, are not
        launched. The governor that made the claim closes it. A claim of another governor is left to that one, which may
        be launching it.
        """
        held = budget_guard.launch_conflict(job, number)
        if held is None:
            return False
        applied.waiting[job] = held.waits or held.reason
        state = job_log.read(self.store, job, self.memory.states.get(job)) if own else None
        claim = state.claim(number) if state is not None else None
        if state is not None and claim is not None and claim.open and claim.launched is None:
            self._close(state, claim, "abandoned", held.rule, held.reason, restart=True)
            applied.moved.add(job)
            budget_guard.count_claim(job)
        return True

    def _remove_leftovers(self, job: str) -> None:
        """Remove everything that the job's machines left, before the job is unmarked. Raises Transient while some of it
        cannot be removed."""
        state = self.memory.states.get(job)
        places = {(claim.offering.provider, claim.offering.region) for claim in state.claims} if state else set()
        for place in sorted(places, key=str):
            left = leftovers.sweep(self.store, self.fleet, place, partial(read_time, self.store), job)
            if left.problems:
                raise Transient(next(iter(left.problems.values())))

    def _append(self, job: str, seq: int, event: Event, reason: str) -> bool:
        digest = self.settings.policy.digest
        record = Record(token=self.token(), by=self.by, reason=reason, event=event, policy=digest)
        return job_log.append(self.store, job, seq, record)

    def _was_removed(self, job: str) -> bool:
        """Return whether the job was removed. Then its markers and cached records are deleted again.

        Asked after an append that succeeded: the number may have been free because the entry before was deleted.
        """
        if not job_log.is_removed(self.store, job):
            return False
        with suppress(StoreError):
            # The next pass finds the marker and tries again. Machines that must be given back do not wait for it.
            delete_derived_keys(self.store, job)
        self.memory.forget([job])
        return True

    # ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _launch(self, job: str, number: int) -> None:
        """Finish a claim. Idempotent by the claim's token, so any governor may finish what another began."""
        state = job_log.read(self.store, job, self.memory.states.get(job))
        claim = state.claim(number) if state else None
        if state is None or claim is None or not claim.open or claim.launched is not None:
            return
        # After the log was read, and before any money is spent: a log that was deleted in part looks like an old one.
        if self._was_removed(job):
            return
        self.memory.states[job] = state
        provider = self.fleet.provider(claim.offering.provider)
        order = self._order(state, claim)
        self._record_place(claim)
        try:
            # Not every spec in the store was submitted by a client that checks it.
            if isinstance(provider, SupportsSpecCheck):
                provider.check(order.spec)
            requests = provider.build(order)
        except UserError as error:
            # Both calls are pure: a spec that is wrong now stays wrong.
            self._close(state, claim, "refused", type(error).__name__, str(error), restart=True)
            return
        try:
            instances = provider.launch(requests)
        except NoCapacity as error:
            self._close(state, claim, "dry", "no-capacity", str(error), restart=True)
            if provider.capabilities.dry_for_s:
                self._record_dry(claim)
            return
        except SubnetFull as error:
            # Says nothing about the market: other jobs may use another network.
            self._close(state, claim, "dry", SUBNET_FULL, str(error), restart=True)
            return
        except QuotaExceeded as error:
            # This job's own machines, which are about to be terminated, may use up the quota. Without any, a person
            # must act.
            outcome: AttemptOutcome = "dry" if state.attempts else "refused"
            self._close(state, claim, outcome, type(error).__name__, str(error), restart=True)
            return
        except (AuthDenied, InvalidRequest) as error:
            # A person must act. By the error's name the next decision knows whether another offering may still work.
            self._close(state, claim, "refused", type(error).__name__, str(error), restart=True)
            return
        nodes = tuple(NodeRef(rank=i.rank, instance=i.id) for i in sorted(instances, key=lambda i: i.rank))
        event = Launched(claim=number, nodes=nodes)
        where = f"{claim.offering.machine} in {claim.offering.zone}"
        self._settle(job, state, number, event, f"{len(nodes)} × {where}")
        if self._was_removed(job):
            # The job was removed between the check above and the cloud's answer: no log names these machines.
            self._give_back(instances)
        else:
            self._give_back_unnamed(job, number, instances)

    def _record_place(self, claim: Claim) -> None:
        """Record the place before anything is launched there, so that sweeps cover every place with orphans."""
        key = keys.place(claim.offering.provider, claim.offering.region)
        if key not in self._places:
            self.store.create(key, b"")
            self._places.add(key)

    def _unmark(self, job: str, markers: tuple[int, ...], state: JobState | None) -> None:
        """Delete markers of openings that are over, and announcements of openings that never followed.

        The name of a marker after an entry may be used again: it is deleted only where the log holds the end of that
        opening.
        """
        last = state.ended.seq if state is not None and state.ended is not None else 0
        gone = []
        for meta in self.store.list(f"{keys.ACTIVE}{job}/"):
            marker = keys.read_marker(meta.key)
            if marker is None or marker[1] not in markers:
                continue
            if marker[1] <= last or meta.key != keys.active(job, marker[1]):
                gone.append(meta.key)
        self.store.delete(gone)

    def _record_dry_close(self, job: str, number: int) -> None:
        """Record for all jobs that an offering is dry: its cloud accepted a launch, and found no machines later."""
        state = self.memory.states.get(job)
        claim = state.claim(number) if state is not None else None
        if claim is not None and self.fleet.capabilities(claim.offering.provider).dry_for_s:
            self._record_dry(claim)

    def _record_dry(self, claim: Claim) -> None:
        """Record for all jobs that an offering is dry. Only an optimisation: a governor that does not see the record
        learns the same from the cloud."""
        key = keys.dry(claim.offering.key)
        self.store.put(key, b"")
        now = next((meta.modified for meta in self.store.list(keys.DRY) if meta.key == key), None)
        if now is not None:
            old = [meta.key for meta in self.store.list(keys.DRY) if now - meta.modified > _DRY_KEPT_FOR]
            self.store.delete(old)

    def _give_back_unnamed(self, job: str, number: int, instances: tuple[Instance, ...]) -> None:
        """Terminate machines that were launched too late, or beside those of another governor: once the job is over, no
        pass may list them."""
        newest = self.memory.states[job].claim(number)
        if newest is None or (newest.open and newest.launched is None):
            return
        held = hold_of(self.memory.states[job], self.memory.submissions[job].spec)
        # The other governor's machines may have failed meanwhile and be held for debugging: the sweep ends them later.
        named = newest.open or (held is not None and held.claim == number)
        in_log = {node.instance for node in newest.launched or ()} if named else set()
        self._give_back(tuple(instance for instance in instances if instance.id not in in_log))

    def _give_back(self, instances: tuple[Instance, ...]) -> None:
        for instance in instances:
            if instance.state != "gone":
                self.fleet.provider(instance.provider).terminate(instance.id, instance.region)

    def _close(
        self, state: JobState, claim: Claim, outcome: AttemptOutcome, rule: str, reason: str, restart: bool
    ) -> None:
        event = Closed(claim=claim.number, outcome=outcome, rule=rule, restart=restart)
        self._settle(state.job, state, claim.number, event, reason)

    def _settle(self, job: str, state: JobState, number: int, event: Event, reason: str) -> None:
        """Append the launch's result, unless another governor has settled the claim meanwhile."""

        def still_wanted(newest: JobState | None) -> tuple[Event, str] | None:
            claim = newest.claim(number) if newest else None
            if claim is None or not claim.open or claim.launched is not None:
                return None
            return event, reason

        newest = job_log.append_next(self.store, job, state, still_wanted, self.by, policy=self.settings.policy.digest)
        if newest is not None:
            self.memory.states[job] = newest

    def _order(self, state: JobState, claim: Claim) -> LaunchOrder:
        submission = self.memory.submissions.get(state.job)
        if submission is None:
            raise StokerError(f"{state.job}: its spec was not read")
        self.fleet.check_place(submission)
        spec = submission.spec
        return LaunchOrder(
            job=state.job,
            name=spec.name,
            claim=claim.number,
            nodes=claim.nodes,
            attempt=1 + len(state.attempts),
            store=self.fleet.store_url,
            spec=spec,
            submitter=submission.submitter,
            offering=claim.offering,
            max_life_s=claim_life_s(self.settings.policy, state, spec, claim),
            environ=submission.environ,
            bundles=submission.bundles,
            inputs_bytes=submission.inputs_bytes,
        )


# Nothing is unbounded: records of dry offerings are deleted after this time.
_DRY_KEPT_FOR = timedelta(days=1)
