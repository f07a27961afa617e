"""The governor's decision: pure, from what was observed to what to do. No clock, no I/O, no randomness.

At most one entry a job is appended for each look at it (a claim is followed by its launch). After an append the job is
observed and decided on again, so every decision rests on the newest log.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker.core import attempt_evidence, audit, ended_jobs, gate, hold, limits, orphans, policy_rules, retry
from stoker.core.governor_settings import Policy
from stoker.core.heartbeat_timeout import mass_silence
from stoker.core.job_decision import Look
from stoker.core.next_claim import claim_next, tell_of_budgets
from stoker.core.open_claims import tend, warn_unsaved
from stoker.core.place_capacity import Rooms, is_bounded, place_in_queue
from stoker.core.snapshot import Action, Append, JobSnapshot, Plan, Snapshot, Unmark
from stoker.model.errors import STUMBLES, in_words
from stoker.model.job_state import Claim
from stoker.model.log_entries import PROTOCOL_VERSION, Closed, Draining, Ended, Outcome, Warned
from stoker.model.observed import Known


def decide(snapshot: Snapshot, policy: Policy, now: datetime) -> Plan:
    """What to do about everything that was observed. The order of the listings does not matter."""
    # Who looks at a few jobs only cannot tell whether silence is theirs or everybody's: a whole pass judges it.
    blind = snapshot.partial or mass_silence(snapshot, policy, now)
    actions: list[Action] = []
    wakes: list[datetime] = []
    waiting: dict[str, str] = {}
    problems: dict[str, str] = {}
    mine = {job.state.job for job in snapshot.jobs}
    others = [job for job in snapshot.others or () if job.state.job not in mine]
    rooms = Rooms.of((*snapshot.jobs, *others), complete=snapshot.others is not None)
    # Those that nothing is decided about matter only to the queue.
    queue = (*snapshot.jobs, *others) if any(map(is_bounded, snapshot.jobs)) else snapshot.jobs
    for job in sorted(queue, key=lambda job: place_in_queue(job.state)):
        try:
            plan = decide_job(job, policy, now, blind=blind, rooms=rooms)
        except STUMBLES as error:
            # Whatever is wrong with one job, the others are governed.
            if job.state.job in mine:
                problems[job.state.job] = in_words(error)
            continue
        if job.state.job not in mine:
            continue
        actions += plan.actions
        waiting |= plan.waiting
        if plan.wake_at is not None:
            wakes.append(plan.wake_at)
    actions += orphans.strays(snapshot, now)
    return Plan(actions=tuple(actions), wake_at=min(wakes, default=None), waiting=waiting, problems=problems)


def decide_job(
    job: JobSnapshot, policy: Policy, now: datetime, *, blind: bool = False, rooms: Rooms | None = None
) -> Plan:
    """What to do about one job. `blind`: silence proves nothing (so many are silent, or too few were looked at).

    `rooms`: where only so many nodes fit, and the jobs before this one that wait there.
    """
    # Who is blind cannot tell a machine that its cloud has not heard of from one that nobody hears.
    look = Look(job if blind else job.settled(now), policy, now, blind, rooms or Rooms.of([job], complete=True))
    _decide(look)
    return Plan(
        actions=tuple(look.actions),
        wake_at=min(look.wakes, default=None),
        waiting={job.state.job: look.waiting} if look.waiting else {},
    )


def _decide(look: Look) -> None:
    """What is over comes first, then what people and bounds want, then what lives, and at last what may come."""
    if look.state.min_version > PROTOCOL_VERSION:
        look.waiting = "a newer Stoker governs this job; update this one"
        return
    look.actions += orphans.sweep(look.bounded_job, look.now)
    if look.state.ended is not None:
        _retire(look)
    elif _close_what_is_over(look):
        pass
    elif look.state.stop is not None:
        _stop(look)
    elif _enforce_limits(look) or _tell_of_limits(look):
        pass
    elif not any(tend(look, claim) for claim in look.state.open_claims) and not tell_of_budgets(look):
        claim_next(look)
        # The next machine comes first.
        if not any(isinstance(action, Append) for action in look.actions):
            warn_unsaved(look)


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _retire(look: Look) -> None:
    """Forget an ended job once its machines are positively gone."""
    found = ended_jobs.retire(look.bounded_job, look.policy, look.now)
    look.waiting = found.waiting
    if found.wake_at is not None:
        look.wakes.append(found.wake_at)
    if found.markers:
        look.actions.append(Unmark(look.state.job, found.markers, "ended, and every machine is gone"))


def _close_what_is_over(look: Look) -> bool:
    """Close the oldest attempt that is over; with the job, if its verdict is the job's end."""
    for claim in look.state.open_claims:
        if not look.over(claim) or not attempt_evidence.facts_complete(look.job, claim):
            continue
        diagnoses = policy_rules.that_count(look.policy.house, look.subject, "failure")
        by = look.bounds.named("resumes") if "resumes" in look.bounds.by_rule else ""
        case = attempt_evidence.case_of(look.bounded_job, claim, look.policy, diagnoses, by)
        verdict = retry.verdict(case)
        if look.tell(audit.of_verdict(look.bounded_job, claim, look.policy, look.bounded_subject, verdict)):
            return True
        if verdict.outcome == "failed" and not verdict.restart and look.cannot_read_rules():
            continue  # One of them may know better.
        closed = retry.closing(case, verdict)
        if verdict.restart or verdict.outcome == "stopped":
            return look.append(closed, verdict.reason)
        if any(older.number < claim.number for older in look.state.open_claims):
            # An older attempt may still be saving: the end of the job waits for it, and is then judged anew.
            continue
        if _released_another(look, claim):
            # The exits that are judged here have let the next attempt start already. It is the job now.
            return look.append(replace(closed, restart=True), verdict.reason)
        if verdict.rule in hold.HELD_RULES and look.job.spec.retry.hold_on_failure_s > 0:
            closed = replace(closed, hold_s=hold.allowed_s(look.state, claim, look.bounds.spec, look.now))
        outcome: Outcome = "succeeded" if verdict.outcome == "succeeded" else "failed"
        ended = Ended(
            outcome=outcome,
            rule=verdict.rule,
            claim=claim.number,
            exit_code=0 if outcome == "succeeded" else closed.exit_code,
            closing=closed,
        )
        return look.append(ended, verdict.reason)
    return False


def _released_another(look: Look, claim: Claim) -> bool:
    """Whether a younger attempt may be training by now, let go by this one's exits alone."""
    exits = tuple(look.job.exit_of(claim, rank) for rank in range(claim.nodes))
    return gate.left_for_good(exits) and any(
        other.number > claim.number and other.launched for other in look.state.open_claims
    )


def _stop(look: Look) -> None:
    """A person asked for the end: let what trains save, drop what never came, then end."""
    stop = look.state.stop
    assert stop is not None
    for claim in look.state.open_claims:
        if claim.launched is None:
            # A launch that comes late finds its claim closed: its agents never train, and the sweep ends them.
            look.append(Closed(claim=claim.number, outcome="stopped", rule="stop"), f"stopped by {stop.by}")
            return
    if not look.state.open_claims:
        last = look.state.last_claim
        number = last.number if last and last.attempt is not None else None
        look.append(Ended(outcome="stopped", rule="stop", claim=number), stop.reason or f"stopped by {stop.by}")
        return
    look.waiting = "stopping: waiting for the last save"
    for claim in look.state.open_claims:
        if _never_spoke(look, claim):
            # Whatever it does from here on, it reads the log before it trains: there is nothing to save.
            for rank in range(claim.nodes):
                look.end_rank(claim, rank, "it was asked to stop before its agents came up")
            continue
        look.end_after_grace(claim, stop.at, "it was asked to stop and did not leave in time")


def _never_spoke(look: Look, claim: Claim) -> bool:
    """Whether no rank's agent is known to have said anything, ever. What could not be read is no silence."""
    told = look.job.facts.get(claim.number, ())
    return len(told) == claim.nodes and all(
        facts.heartbeat == Known(None) and facts.exit == Known(None) for facts in told
    )


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _enforce_limits(look: Look) -> bool:
    found = _reached(look, look.bounds, look.save_s)
    if found is None:
        return False
    if not look.state.open_claims:
        return look.append(Ended(outcome="failed", rule=found.rule, claim=look.last_attempt()), found.reason)
    for claim in look.state.open_claims:
        if claim.drain is None and claim.launched is not None:
            return look.append(Draining(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
        if claim.launched is None:
            return look.append(Closed(claim=claim.number, outcome="limit", rule=found.rule), found.reason)
    return False


def _tell_of_limits(look: Look) -> bool:
    """Tell, once for each rule which only warns or is only watched, that its bound is reached."""
    for rule, bounds in audit.watched(look.policy.house, look.bounded_subject, "max_runtime_s", "max_cost"):
        # Who warns ends nothing, so nothing is set aside for a last save.
        found = _reached(look, bounds, 0.0 if rule.action == "warn" else look.save_s) if bounds.by_rule else None
        if found is not None and found.rule not in look.state.warned and found.rule.startswith(policy_rules.PREFIX):
            watched = "; audit: nothing is done" if rule.audit else ""
            return look.append(Warned(code=found.rule), f"{found.reason}{watched}")
    return False


def _reached(look: Look, bounds: policy_rules.Bounded, save_s: float) -> limits.Reached | None:
    found = limits.reached(look.job, bounds, look.now, save_s)
    if isinstance(found, limits.Reached):
        return found
    if found.next_s is not None:
        look.wake_in(found.next_s)
    return None
