"""Carry out a plan, one action after another. Each is safe to repeat, and to lose at any point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from stoker.core import policy_rules
from stoker.core.budgets import Held
from stoker.core.costs import per_s
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import hold_of
from stoker.core.prior_usage import used_before
from stoker.core.snapshot import Action, Append, Launch, Plan, Terminate, Unmark
from stoker.governor import leftovers
from stoker.governor.connected_providers import Fleet
from stoker.governor.market_records import MarketWriter
from stoker.governor.observe import Memory
from stoker.model import keys
from stoker.model.errors import (
    STUMBLES,
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    StokerError,
    StoreError,
    Transient,
    UserError,
)
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import AttemptOutcome, Claimed, Closed, Event, Launched, NodeRef, Record
from stoker.model.offerings import Instance, Offering
from stoker.model.spec import Spec
from stoker.providers.base import Checks, LaunchOrder
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.removed_jobs import forget_removed


@dataclass
class Applied:
    """What came of a plan."""

    # Jobs whose log moved on, by us or by a rival: they deserve another look at once.
    moved: set[str] = field(default_factory=set)
    done: list[Action] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    # Jobs that may have no machine any more, by what happened since the plan was made.
    waiting: dict[str, str] = field(default_factory=dict)
    # The plan was too old to go on with: everything is to be observed anew.
    stale: bool = False


class Purse(Protocol):
    """Knows what budgets say at this very moment."""

    def keeps_back(self, job: str, offering: Offering) -> str | None:
        """Why the job may not claim machines of this offering now."""

    def yields(self, job: str, number: int) -> Held | None:
        """What keeps a claim from being launched, by all that was claimed until now, by any governor. Raises
        StokerError where that is not known."""

    def claimed(self, job: str) -> None:
        """A claim of the job was made, or has its machines, from now on."""


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
        # What the plans that are applied were decided by.
        self.policy = DEFAULT
        self.market = MarketWriter(store, self._is_paid)
        self._places: set[str] = set()

    def _is_paid(self, provider: str) -> bool:
        """Who is not installed here had its claims closed by somebody else, who knows."""
        try:
            return self.fleet.capabilities(provider).paid
        except StokerError:
            return False

    def apply(self, plan: Plan, purse: Purse | None = None, is_fresh: Callable[[], bool] = lambda: True) -> Applied:
        """Do what the plan says, save for launches that the `purse` holds back by then. After a lost race or a failure
        the rest of that job's actions are dropped. Once the plan is not fresh any more, so is all of its rest."""
        applied = Applied()
        dropped: set[str] = set()
        for action in plan.actions:
            if action.job in dropped:
                continue
            if not is_fresh():
                applied.stale = True
                break
            try:
                carried_on = self._act(action, applied, purse)
            except (StokerError, *STUMBLES) as error:
                # Nothing may be concluded from it; the next pass observes anew and decides again. Also of a provider
                # that is not installed here: that is no reason to leave the other jobs alone.
                applied.problems[action.job] = str(error)
                carried_on = isinstance(action, Terminate)
            if not carried_on:
                dropped.add(action.job)
        return applied

    def _act(self, action: Action, applied: Applied, purse: Purse | None) -> bool:
        if purse is not None and self._kept_back(action, applied, purse):
            return False
        match action:
            case Append(job=job, seq=seq, event=event, reason=reason):
                applied.moved.add(job)
                if not self._append(job, seq, event, reason) or self._was_removed(job):
                    return False
                if isinstance(event, Closed) and event.rule == "no-capacity":
                    self._tell_dry(job, event.claim)
            case Launch(job=job, claim=number):
                own = job in applied.moved
                if purse is not None and self._yields(job, number, own, applied, purse):
                    return False
                applied.moved.add(job)
                self._launch(job, number)
                if purse is not None:
                    purse.claimed(job)
            case Terminate(instance=instance, provider=provider, region=region):
                try:
                    self.fleet.provider(provider).terminate(instance, region)
                except NotFound:
                    pass
            case Unmark(job=job, markers=markers):
                self._clear(job)
                state = self.memory.states.get(job)
                if state is not None:
                    self.market.complete(state)
                self._unmark(job, markers, state)
                self.memory.forget([job])
        applied.done.append(action)
        return True

    def _kept_back(self, action: Action, applied: Applied, purse: Purse) -> bool:
        """Launches take their time, and what they got costs money meanwhile: a plan may be old by its last ones."""
        match action:
            case Append(event=Claimed(offering=offering)):
                why = purse.keeps_back(action.job, offering)
            case _:
                return False
        if why is not None:
            applied.waiting[action.job] = why
        return why is not None

    def _yields(self, job: str, number: int, own: bool, applied: Applied, purse: Purse) -> bool:
        """Judge a claim once more before its launch, on all logs as they are now that it is written.

        Of two claims that several governors make at once, and that a budget has not enough for, each governor sees at
        least the one that was written first: the later one, or both where they are equally old, are not launched.
        Whoever made the claim gives it up; one of another governor is left to it, which may be launching it.
        """
        held = purse.yields(job, number)
        if held is None:
            return False
        applied.waiting[job] = held.waits or held.reason
        state = job_log.read(self.store, job, self.memory.states.get(job)) if own else None
        claim = state.claim(number) if state is not None else None
        if state is not None and claim is not None and claim.open and claim.launched is None:
            self.memory.states[job] = state
            self._close(state, claim, "abandoned", held.rule, held.reason, restart=True)
            applied.moved.add(job)
            purse.claimed(job)
        return True

    def _clear(self, job: str) -> None:
        """Before a job is forgotten, nothing of it may be left. Raises Transient while something is."""
        state = self.memory.states.get(job)
        places = {(claim.offering.provider, claim.offering.region) for claim in state.claims} if state else set()
        for place in sorted(places, key=str):
            left = leftovers.sweep(self.store, self.fleet, place, job)
            if left.problems:
                raise Transient(next(iter(left.problems.values())))

    def _append(self, job: str, seq: int, event: Event, reason: str) -> bool:
        digest = self.policy.house.digest
        record = Record(token=self.token(), by=self.by, reason=reason, event=event, policy=digest)
        return job_log.append(self.store, job, seq, record)

    def _was_removed(self, job: str) -> bool:
        """Whether the job was removed. Then its markers and cached records are deleted again.

        Asked after an append that succeeded: the number may have been free because the entry before was deleted.
        """
        if not job_log.is_removed(self.store, job):
            return False
        with suppress(StoreError):
            # The next pass finds the marker and tries again. Machines that must be given back do not wait for it.
            forget_removed(self.store, job)
        self.memory.forget([job])
        return True

    # ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _launch(self, job: str, number: int) -> None:
        """Finish a claim. Idempotent by the claim's token, so it does not matter who began."""
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
        self._remember_place(claim)
        try:
            # Not every spec in the store came by way of a client that checks it.
            if isinstance(provider, Checks):
                provider.check(order.spec)
            requests = provider.build(order)
        except UserError as error:
            # Both are pure: what is wrong with it now is wrong with it for ever.
            self._close(state, claim, "refused", type(error).__name__, str(error), restart=True)
            return
        try:
            instances = provider.launch(requests)
        except NoCapacity as error:
            self._close(state, claim, "dry", "no-capacity", str(error), restart=True)
            if provider.capabilities.dry_for_s:
                self._remember_dry(claim)
            return
        except QuotaExceeded as error:
            # The quota may be what this job's own machines use, which are about to be given back. Without any, a
            # person must act.
            outcome: AttemptOutcome = "dry" if state.attempts else "refused"
            self._close(state, claim, outcome, type(error).__name__, str(error), restart=True)
            return
        except (AuthDenied, InvalidRequest) as error:
            # A person must act. Whether another offering may still do, the error's name tells.
            self._close(state, claim, "refused", type(error).__name__, str(error), restart=True)
            return
        nodes = tuple(NodeRef(rank=i.rank, instance=i.id) for i in sorted(instances, key=lambda i: i.rank))
        event = Launched(claim=number, nodes=nodes)
        where = f"{claim.offering.machine} in {claim.offering.zone}"
        self._settle(job, state, number, event, f"{len(nodes)} × {where}")
        if self._was_removed(job):
            # It was removed between the look above and the cloud's answer: no log names these machines.
            self._give_back(instances)
        else:
            self._give_back_unnamed(job, number, instances)

    def _remember_place(self, claim: Claim) -> None:
        """Before anything is launched there, so that orphans are looked for wherever there can be any."""
        key = keys.place(claim.offering.provider, claim.offering.region)
        if key not in self._places:
            self.store.create(key, b"")
            self._places.add(key)

    def _unmark(self, job: str, markers: tuple[int, ...], state: JobState | None) -> None:
        """Delete markers of openings that are over, and announcements of openings that never came.

        The marker that follows an entry has a name that is used again: it is deleted only where the log tells the end
        of that opening.
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

    def _tell_dry(self, job: str, number: int) -> None:
        """A cloud that takes launches and finds no machines later is dry for all jobs, too."""
        state = self.memory.states.get(job)
        claim = state.claim(number) if state is not None else None
        if claim is not None and self.fleet.capabilities(claim.offering.provider).dry_for_s:
            self._remember_dry(claim)

    def _remember_dry(self, claim: Claim) -> None:
        """For all jobs. Only ever a shortcut: whoever does not know of it finds out by asking the cloud."""
        key = keys.dry(claim.offering.key)
        self.store.put(key, b"")
        now = next((meta.modified for meta in self.store.list(keys.DRY) if meta.key == key), None)
        if now is not None:
            old = [meta.key for meta in self.store.list(keys.DRY) if now - meta.modified > _DRY_KEPT]
            self.store.delete(old)

    def _give_back_unnamed(self, job: str, number: int, instances: tuple[Instance, ...]) -> None:
        """End what was launched too late, or beside what a rival launched: once the job is over, nobody may list it."""
        newest = self.memory.states[job].claim(number)
        if newest is None or (newest.open and newest.launched is None):
            return
        held = hold_of(self.memory.states[job], self.memory.submissions[job].spec)
        # A rival's may have failed meanwhile, and be kept for a look: the sweep ends those, in their time.
        named = newest.open or (held is not None and held.claim == number)
        kept = {node.instance for node in newest.launched or ()} if named else set()
        self._give_back(tuple(instance for instance in instances if instance.id not in kept))

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
        """Append the launch's result, unless somebody has settled the claim meanwhile."""

        def still_wanted(newest: JobState | None) -> tuple[Event, str] | None:
            claim = newest.claim(number) if newest else None
            if claim is None or not claim.open or claim.launched is not None:
                return None
            return event, reason

        newest = job_log.append_next(self.store, job, state, still_wanted, self.by, policy=self.policy.house.digest)
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
            max_life_s=self._longest_life_s(state, spec, claim),
            environ=submission.environ,
            bundles=submission.bundles,
        )

    def _longest_life_s(self, state: JobState, spec: Spec, claim: Claim) -> float | None:
        """By the house's bounds, too. The time is the claim's: whoever finishes it asks for the same."""
        subject = policy_rules.Subject(spec, claim.at.date(), state.job, used_before(state, spec, claim.at))
        return longest_life_s(policy_rules.bounded(self.policy.house, subject).spec, per_s(claim, claim.nodes))


# Nothing is unbounded: what was dry yesterday is forgotten.
_DRY_KEPT = timedelta(days=1)

# Added to `max_runtime` for a machine's longest life: boot, set-up, waiting and saving are not training time.
_LIFE_MARGIN_S = 3600.0


def longest_life_s(spec: Spec, burn_s: float = 0.0) -> float | None:
    """How long a machine of this job may live, whoever governs it; None where nothing bounds its time. `burn_s` are the
    dollars a second of it and its peers, where that is known: it is held no longer than all the money lasts."""
    most_s, most = spec.limits.max_runtime_s, spec.limits.max_cost
    if most_s is None:
        return None
    held_s = spec.retry.hold_on_failure_s
    if most is not None and burn_s > 0:
        held_s = min(held_s, max(0.0, most) / burn_s)
    return max(0.0, most_s) + held_s + _LIFE_MARGIN_S
