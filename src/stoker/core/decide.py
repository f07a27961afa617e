"""Decide what the governor does, from what it observed. Pure: no clock, no I/O, no randomness.

Each call plans at most one log entry for a job (a claim is followed by its launch). After the append the job is
observed and decided on again, so every decision rests on the newest log.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker.core import (
    attempt_evidence,
    attempt_verdict,
    audit,
    ended_jobs,
    gate,
    hold,
    limits,
    policy_rules,
    unowned_machines,
)
from stoker.core.approval_entries import record_withdrawals
from stoker.core.end_machines import end_after_grace, end_rank
from stoker.core.governor_settings import GovernorSettings
from stoker.core.heartbeat_timeout import mass_silence, resolve_unheard_of
from stoker.core.job_decision import JobDecision
from stoker.core.maintain_claim import maintain_claim, warn_unsaved
from stoker.core.next_claim import claim_next, warn_of_budgets
from stoker.core.place_capacity import CapacityQueue, place_in_queue, waits_for_bounded_place
from stoker.core.snapshot import Action, Append, JobSnapshot, Plan, Snapshot, Unmark
from stoker.model.errors import describe_error
from stoker.model.job_state import Claim
from stoker.model.log_entries import PROTOCOL_VERSION, Closed, Draining, Ended, Outcome, Warned
from stoker.model.observed import Known


def decide(snapshot: Snapshot, settings: GovernorSettings, now: datetime) -> Plan:
    """Plan the actions for everything that was observed. The order of the listings does not matter."""
    # A partial pass cannot distinguish a few silent nodes from an outage of the store: only a whole pass judges
    # silence.
    silence_inconclusive = snapshot.partial or mass_silence(snapshot, settings, now)
    actions: list[Action] = []
    wakes: list[datetime] = []
    waiting: dict[str, str] = {}
    problems: dict[str, str] = {}
    mine = {job.state.job for job in snapshot.jobs}
    others = [job for job in snapshot.others or () if job.state.job not in mine]
    capacity = CapacityQueue.of((*snapshot.jobs, *others), complete=snapshot.others is not None)
    # Jobs outside this pass are evaluated only for their places in the queue.
    queue = (*snapshot.jobs, *others) if any(map(waits_for_bounded_place, snapshot.jobs)) else snapshot.jobs
    for job in sorted(queue, key=lambda job: place_in_queue(job.state)):
        try:
            plan = decide_job(job, settings, now, silence_inconclusive=silence_inconclusive, capacity=capacity)
        except Exception as error:  # noqa: BLE001 - the edge of one job: a bug in it must not stop the others
            if job.state.job in mine:
                problems[job.state.job] = describe_error(error)
            continue
        if job.state.job not in mine:
            continue
        actions += plan.actions
        waiting |= plan.waiting
        if plan.wake_at is not None:
            wakes.append(plan.wake_at)
    actions += unowned_machines.find_strays(snapshot, now)
    return Plan(actions=tuple(actions), wake_at=min(wakes, default=None), waiting=waiting, problems=problems)


def decide_job(
    job: JobSnapshot,
    settings: GovernorSettings,
    now: datetime,
    *,
    silence_inconclusive: bool = False,
    capacity: CapacityQueue | None = None,
) -> Plan:
    """Plan the actions for one job.

    `silence_inconclusive`: missing heartbeats prove nothing, because too many nodes are silent or the pass is partial.
    `capacity` counts the nodes at places with a bound, and the jobs that wait there before this one.
    """
    # If silence proves nothing, "unknown to the cloud" is no evidence either that a machine is dead.
    decision = JobDecision(
        job if silence_inconclusive else resolve_unheard_of(job, now),
        settings,
        now,
        silence_inconclusive,
        capacity or CapacityQueue.of([job], complete=True),
    )
    _decide(decision)
    return Plan(
        actions=tuple(decision.actions),
        wake_at=min(decision.wakes, default=None),
        waiting={job.state.job: decision.waiting} if decision.waiting else {},
    )


def _decide(decision: JobDecision) -> None:
    """Handle, in this order: finished attempts, a requested stop, withdrawn approvals, limits, open claims, the
    next claim."""
    if decision.state.min_version > PROTOCOL_VERSION:
        decision.waiting = "a newer Stoker governs this job; update this one"
        return
    decision.actions += unowned_machines.find_unowned(decision.bounded_job, decision.now)
    until = unowned_machines.ends_itself_until(decision.bounded_job, decision.now)
    if until is not None:
        decision.wakes.append(until)
    if decision.state.ended is not None:
        _retire(decision)
    elif _close_what_is_over(decision):
        pass
    elif decision.state.stop is not None:
        _stop(decision)
    elif record_withdrawals(decision) or _enforce_limits(decision) or _tell_of_limits(decision):
        pass
    elif not any(maintain_claim(decision, claim) for claim in decision.state.open_claims) and not warn_of_budgets(
        decision
    ):
        claim_next(decision)
        # A claim has precedence over a warning: only one entry is appended.
        if not any(isinstance(action, Append) for action in decision.actions):
            warn_unsaved(decision)


# ── Endings ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _retire(decision: JobDecision) -> None:
    """Remove the markers of an ended job once its machines are positively gone."""
    found = ended_jobs.retire(decision.bounded_job, decision.settings, decision.now)
    decision.waiting = found.waiting
    if found.wake_at is not None:
        decision.wakes.append(found.wake_at)
    if found.markers:
        decision.actions.append(Unmark(decision.state.job, found.markers, "ended, and every machine is gone"))


def _close_what_is_over(decision: JobDecision) -> bool:
    """Close the oldest attempt that is over. End the job in the same entry if the verdict ends it."""
    for claim in decision.state.open_claims:
        if not decision.is_over(claim) or not attempt_evidence.facts_complete(decision.job, claim):
            continue
        diagnoses = policy_rules.enforced_rules(decision.settings.policy, decision.subject, "failure")
        by = decision.bounds.named("resumes") if "resumes" in decision.bounds.by_rule else ""
        evidence = attempt_evidence.evidence_of(decision.bounded_job, claim, decision.settings, diagnoses, by)
        verdict = attempt_verdict.judge(evidence)
        if decision.warn_of_findings(audit.verdict_findings(decision, claim, verdict)):
            return True
        if verdict.outcome == "failed" and not verdict.restart and decision.policy_is_unreadable():
            continue  # A failure rule of the unreadable policy may restart it.
        closed = attempt_verdict.closed_entry(evidence, verdict)
        if verdict.restart or verdict.outcome == "stopped":
            return decision.append(closed, verdict.reason)
        if any(older.number < claim.number for older in decision.state.open_claims):
            # An older attempt may still be saving: the job ends only after that attempt, by a new verdict.
            continue
        if _released_another(decision, claim):
            # These exits have already allowed the next attempt to start, so the job goes on with that attempt.
            return decision.append(replace(closed, restart=True), verdict.reason)
        if verdict.rule in hold.HELD_RULES and decision.job.spec.retry.hold_on_failure_s > 0:
            closed = replace(closed, hold_s=hold.allowed_s(decision.state, claim, decision.bounds.spec, decision.now))
        outcome: Outcome = "succeeded" if verdict.outcome == "succeeded" else "failed"
        ended = Ended(
            outcome=outcome,
            rule=verdict.rule,
            claim=claim.number,
            exit_code=0 if outcome == "succeeded" else closed.exit_code,
            closing=closed,
        )
        return decision.append(ended, verdict.reason)
    return False


def _released_another(decision: JobDecision, claim: Claim) -> bool:
    """Return whether a younger attempt may already train because the exits of this one allow it."""
    exits = tuple(decision.job.exit_of(claim, rank) for rank in range(claim.nodes))
    return gate.left_for_good(exits) and any(
        other.number > claim.number and other.launched for other in decision.state.open_claims
    )


def _stop(decision: JobDecision) -> None:
    """Carry out a requested stop: let running attempts save, close unlaunched claims, then end the job."""
    stop = decision.state.stop
    assert stop is not None
    for claim in decision.state.open_claims:
        if claim.launched is None:
            # A launch that comes late finds its claim closed: its agents never train, and its machines are terminated.
            decision.append(Closed(claim=claim.number, outcome="stopped", rule="stop"), f"stopped by {stop.by}")
            return
    if not decision.state.open_claims:
        last = decision.state.last_claim
        number = last.number if last and last.attempt is not None else None
        decision.append(Ended(outcome="stopped", rule="stop", claim=number), stop.reason or f"stopped by {stop.by}")
        return
    decision.waiting = "stopping: waiting for the last save"
    for claim in decision.state.open_claims:
        if _never_spoke(decision, claim):
            # An agent that starts now reads the log before it trains, so there is nothing to save.
            for rank in range(claim.nodes):
                end_rank(decision, claim, rank, "it was asked to stop before its agents came up")
            continue
        end_after_grace(decision, claim, stop.at, "it was asked to stop and did not leave in time")


def _never_spoke(decision: JobDecision, claim: Claim) -> bool:
    """Return whether it is known that no rank's agent ever wrote a fact. An unreadable fact does not count as
    absent."""
    known = decision.job.facts.get(claim.number, ())
    return len(known) == claim.nodes and all(
        facts.heartbeat == Known(None) and facts.exit == Known(None) for facts in known
    )


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _enforce_limits(decision: JobDecision) -> bool:
    found = _reached(decision, decision.bounds, decision.save_s)
    if found is None:
        return False
    if not decision.state.open_claims:
        return decision.append(Ended(outcome="failed", rule=found.rule, claim=decision.last_attempt()), found.reason)
    for claim in decision.state.open_claims:
        if claim.drain is None and claim.launched is not None:
            return decision.append(Draining(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
        if claim.launched is None:
            return decision.append(Closed(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
    return False


def _tell_of_limits(decision: JobDecision) -> bool:
    """Warn, once for each rule that only warns or is audited, that its limit is reached."""
    for rule, bounds in audit.tightened_limits(decision, "max_runtime_s", "max_cost"):
        # A warning ends nothing, so nothing is set aside for a last save.
        found = (
            _reached(decision, bounds, 0.0 if rule.action == "warn" else decision.save_s) if bounds.by_rule else None
        )
        if found is not None and found.rule not in decision.state.warned and found.rule.startswith(policy_rules.PREFIX):
            audited = "; audit: nothing is done" if rule.audit else ""
            return decision.append(Warned(code=found.rule), f"{found.reason}{audited}")
    return False


def _reached(decision: JobDecision, bounds: policy_rules.EffectiveLimits, save_s: float) -> limits.Reached | None:
    found = limits.check_limits(decision.job, bounds, decision.now, save_s)
    if isinstance(found, limits.Reached):
        return found
    if found.next_s is not None:
        decision.wake_in(found.next_s)
    return None
