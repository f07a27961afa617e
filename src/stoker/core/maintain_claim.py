"""Maintain an open claim: finish its launch, replace broken gangs, time out silent ranks, apply health rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core import budget_verdict, health_rules, policy_rules
from stoker.core.budget_reservations import has_begun, launch_request
from stoker.core.costs import valid_span_s
from stoker.core.end_machines import end_after_grace, end_rank
from stoker.core.heartbeat_timeout import overdue_etag, silence_s
from stoker.core.job_decision import JobDecision
from stoker.core.launch_history import waiting_since
from stoker.core.saved_work import nothing_saved_yet
from stoker.core.snapshot import Launch
from stoker.model.durations import span_text
from stoker.model.job_state import Claim
from stoker.model.log_entries import AttemptOutcome, Closed, Draining, Suspected, Warned
from stoker.model.observed import Known
from stoker.model.path_patterns import as_written

# A violation this long after the last warning, and younger than that warning, is a new one and is warned of again.
_WARNING_COUNTS = timedelta(minutes=10)
_LONGEST_S = 1e8
# Outcomes that are followed by another attempt and are no fault of the script.
# The end of the warning that an attempt left no checkpoint.
FROM_THE_BEGINNING = "the next attempt starts from the beginning"
_UNSAVED: frozenset[AttemptOutcome] = frozenset({"reclaimed", "lost", "infrastructure", "abandoned"})


@dataclass(frozen=True)
class _LastWarning:
    """The newest warning about a rule: its code, its time (None: not written yet), the code of the next one, and its
    number."""

    code: str
    at: datetime | None
    next: str
    number: int


def maintain_claim(decision: JobDecision, claim: Claim) -> bool:
    """Do the first thing that an open claim needs."""
    if claim.launched is None:
        return _finish_launch(decision, claim)
    if decision.is_over(claim):
        return False  # It is closed after an older attempt, or once unreadable facts can be read.
    if claim.drain is not None:
        decision.waiting = f"asked to save and leave: {claim.drain.reason}"
        end_after_grace(decision, claim, claim.drain.at, "it was asked to save and leave, and did not leave in time")
        return False
    return (
        _drain_broken_gang(decision, claim)
        or _time_out_silent_ranks(decision, claim)
        or _apply_health_rules(decision, claim)
        or _warn_unsafe(decision, claim)
    )


def _finish_launch(decision: JobDecision, claim: Claim) -> bool:
    """Launch a claim of any governor. The launch token prevents a second launch for as long as it is valid."""
    if (decision.now - claim.at).total_seconds() >= decision.job.capabilities.token_lifetime_s:
        closed = Closed(claim=claim.number, outcome="abandoned", rule="token-expired", restart=True)
        return decision.append(closed, "it was not launched in time, and a launch now might be a second one")
    denied = _denied_by_budget(decision, claim)
    if denied is not None:
        closed = Closed(claim=claim.number, outcome="abandoned", rule=denied.rule, restart=True)
        return decision.append(closed, denied.reason)
    ended = _ended_approval(decision, claim)
    if ended is not None:
        closed = Closed(claim=claim.number, outcome="abandoned", rule=ended.code, restart=True)
        return decision.append(closed, str(ended))
    if _queued_too_long(decision, claim):
        closed = Closed(claim=claim.number, outcome="abandoned", rule=decision.bounds.rule("max_wait"), restart=True)
        reason = f"its request was in the cloud's queue when {decision.bounds.named('max_wait')} was reached"
        return decision.append(closed, reason)
    decision.actions.append(Launch(decision.state.job, claim.number, claim.reason))
    return False


def _queued_too_long(decision: JobDecision, claim: Claim) -> bool:
    """Return whether the job has waited for its longest time on a request in the cloud's queue.

    Time in the queue is time without a machine. While an older attempt still saves, the job has one.
    """
    longest_s = decision.bounds.spec.limits.max_wait_s
    if longest_s is None or not claim.offering.queued or len(decision.state.open_claims) > 1:
        return False
    left_s = longest_s - (decision.now - waiting_since(decision.state)).total_seconds()
    # A governor may be sending the request at this moment.
    left_s = max(left_s, decision.settings.unfinished_s - (decision.now - claim.at).total_seconds())
    if left_s > 0:
        decision.wake_in(left_s)
    return left_s <= 0


def _denied_by_budget(decision: JobDecision, claim: Claim) -> budget_verdict.LaunchDenied | None:
    """Return the budget that has too little left for a claim that no governor has launched yet.

    A governor that is launching it right now terminates machines that come after the close. An unknown budget closes
    nothing.
    """
    if (decision.now - claim.at).total_seconds() < decision.settings.unfinished_s or not isinstance(
        decision.job.budget_state, Known
    ):
        return None
    ask = launch_request(decision.bounds, decision.state, claim.offering, decision.now, claim)
    found = budget_verdict.judge(
        decision.settings.policy, decision.subject, decision.job.budget_state, decision.now, ask
    )
    return next((each for each in found if isinstance(each, budget_verdict.LaunchDenied)), None)


def _ended_approval(decision: JobDecision, claim: Claim) -> policy_rules.RuleFinding | None:
    """Return the rule that a claim without machines breaks again, because its approval ended after the claim was made.

    A request may be in the cloud's queue for an hour. A governor that is launching the claim right now terminates
    machines that come after the close.
    """
    if (decision.now - claim.at).total_seconds() < decision.settings.unfinished_s:
        return None
    policy, subject, fresh = decision.settings.policy, decision.subject, not has_begun(decision.state)
    approved = {
        rule.name for rule in policy.rules if any(each.approved_by for each in policy_rules.exemptions(rule, subject))
    }
    found = policy_rules.broken(policy, subject, (claim.offering,)) if approved else ()
    needed = (each for each in found if each.needs_approval and (fresh or each.about_machines))
    return next((each for each in needed if each.rule.name in approved), None)


def _drain_broken_gang(decision: JobDecision, claim: Claim) -> bool:
    """Ask all ranks to save and leave if one rank of the gang is gone."""
    if claim.nodes == 1:
        return False
    for rank in range(claim.nodes):
        left = decision.job.exit_of(claim, rank)
        if left is None and decision.job.exit_unread(claim, rank):
            continue  # It may have finished.
        if left is None and decision.job.rank_gone(claim, rank):
            reason = f"node {rank} is gone: the other nodes save, and the job resumes with all of them"
            return decision.append(Draining(claim=claim.number, outcome="lost", rule="gang"), reason)
        if left is not None and left.outcome != "succeeded" and decision.job.known_unnoticed(claim):
            reason = f"node {rank} left ({left.why}): the other nodes save"
            return decision.append(Draining(claim=claim.number, outcome="infrastructure", rule="gang"), reason)
    return False


def _time_out_silent_ranks(decision: JobDecision, claim: Claim) -> bool:
    """Time out silent ranks in two steps: log the ETag of the last heartbeat; terminate if it stays unchanged."""
    for rank in range(claim.nodes):
        etag = overdue_etag(decision.job, claim, rank, decision.now)
        if etag is None:
            continue
        beat = decision.job.heartbeat_of(claim, rank)
        limit = timedelta(seconds=silence_s(decision.job, beat.value if beat is not None else None))
        if decision.silence_inconclusive and etag:  # A rank without any heartbeat has nothing to lose.
            decision.waiting = (
                "nodes are silent, and the silence may be this governor's own trouble with the store: nothing is ended"
            )
            continue
        suspicion = claim.suspicions.get(str(rank))
        if suspicion is None or suspicion.etag != etag:
            reason = f"node {rank} has sent no heartbeat for {span_text(limit.total_seconds())}"
            return decision.append(Suspected(claim=claim.number, rank=rank, etag=etag), reason)
        if decision.now - suspicion.at >= limit:
            end_rank(decision, claim, rank, "its machine fell silent, and stayed silent")
        else:
            decision.wakes.append(suspicion.at + limit)
    return False


def _apply_health_rules(decision: JobDecision, claim: Claim) -> bool:
    """Warn of a stalled, wasteful or hopeless training first, then do what the violated rule says."""
    for found in health_rules.find_violations(
        decision.job, claim, decision.settings.policy, decision.subject, decision.now
    ):
        only_warns = found.action == "warn" or not found.enforced
        warning = _last_warning(decision, claim, found.rule, audit=not found.enforced)
        if warning.at is None or not (only_warns or _is_about(decision, warning, found)):
            return decision.append(
                Warned(code=warning.next, evidence=found.evidence), found.reason + _after(decision, found)
            )
        if only_warns:
            continue
        due = warning.at + timedelta(seconds=found.warn_before_s)
        if decision.now < due:
            decision.wakes.append(due)
            continue
        if not (
            _has_evidence(decision, claim, warning.code)
            if found.evidence
            else _heard_since(decision, claim, warning.at)
        ):
            continue
        outcome: AttemptOutcome = "limit" if found.action == "stop" else "infrastructure"
        return decision.append(Draining(claim=claim.number, outcome=outcome, rule=found.rule), found.reason)
    return False


def _after(decision: JobDecision, found: health_rules.Violation) -> str:
    """Text after the reason of a warning: when it is acted on, and where to look."""
    acts = found.enforced and found.action != "warn" and found.warn_before_s > 0
    due = f"; unless that changes, it is asked to leave in {span_text(found.warn_before_s)}" if acts else ""
    shown = f"; `stoker logs {decision.state.job} --evidence` shows what it does" if found.evidence else ""
    return due + shown


def _last_warning(decision: JobDecision, claim: Claim, rule: str, *, audit: bool) -> _LastWarning:
    """The newest warning about this rule in this attempt. Warnings in audit mode have codes of their own."""
    code, number = f"{rule}:{'audit:' if audit else ''}{claim.number}", 1
    while (following := f"{rule}:{number + 1}:{claim.number}") in decision.state.warned and not audit:
        code, number = following, number + 1
    at = decision.state.warned_at.get(code)
    return _LastWarning(code, at, code if at is None else following, number)


def _is_about(decision: JobDecision, warning: _LastWarning, found: health_rules.Violation) -> bool:
    """Return whether the last warning was about this violation: written recently, or since the violation began.

    A violation without a known beginning, such as a metric, counts after two warnings: a governor may pass rarely.
    """
    assert warning.at is not None
    lasts = timedelta(seconds=min(max(0.0, found.lasts_s), _LONGEST_S))
    # With a warning period, the warning must be about this stall and not about an earlier one.
    least = timedelta(0) if found.warn_before_s > 0 else _WARNING_COUNTS
    return decision.now - warning.at <= max(least, lasts) or (not found.evidence and warning.number > 1)


def _heard_since(decision: JobDecision, claim: Claim, at: datetime) -> bool:
    """Return whether every present rank has sent a heartbeat since `at`: a single odd value ends nothing. Ranks that
    have left send none."""
    present = [rank for rank in range(claim.nodes) if decision.job.exit_of(claim, rank) is None]
    beats = [decision.job.heartbeat_of(claim, rank) for rank in present]
    return all(beat.modified > at for beat in beats if beat is not None)


def _has_evidence(decision: JobDecision, claim: Claim, code: str) -> bool:
    """Return whether every rank has collected its evidence, or the time for that is over."""
    deadline = decision.state.warned_at[code] + timedelta(seconds=decision.settings.evidence_s)
    beats = [decision.job.heartbeat_of(claim, rank) for rank in range(claim.nodes)]
    if all(beat is not None and code in beat.value.evidence for beat in beats) or decision.now >= deadline:
        return True
    decision.wakes.append(deadline)
    return False


def _warn_unsafe(decision: JobDecision, claim: Claim) -> bool:
    """Warn, once an attempt, of a job without a checkpoint: the next reclaim would lose its work."""
    code = f"no-checkpoint:{claim.number}"
    found = decision.job.heartbeat_of(claim, 0)
    if code in decision.state.warned or found is None or found.value.checkpoint is not None:
        return False
    beat, folder = found.value, as_written(decision.job.spec.checkpoints.dir)
    # Two more heartbeats, because the agent first looks for saves elsewhere.
    empty = beat.restored_from is None and beat.checkpoint_files == 0
    overdue = beat.trained_s >= decision.settings.empty_folder_s + 2 * valid_span_s(beat.interval_s)
    if empty and overdue:
        return decision.append(Warned(code=code), nothing_saved_yet(folder, beat.trained_s, beat.saves_elsewhere))
    if not claim.offering.spot or beat.trained_s < decision.settings.checkpoint_warning_s:
        return False
    lost = "everything" if beat.restored_from is None else "what was trained since its start"
    reason = (
        f"no checkpoint for {span_text(decision.settings.checkpoint_warning_s)} on a spot machine: "
        f"a reclaim would lose {lost}; the folder watched is {folder}"
    )
    return decision.append(Warned(code=code), reason)


def warn_unsaved(decision: JobDecision) -> None:
    """Warn that the next attempt starts from the beginning, if the last one ended by no fault of the script and left no
    checkpoint. Not repeated if its missing checkpoint was warned of before."""
    claim = next((claim for claim in reversed(decision.state.attempts) if claim.closed), None)
    closed = claim.closed if claim is not None else None
    if claim is None or closed is None or closed.outcome not in _UNSAVED or closed.trained_s <= 0.0:
        return
    code = f"no-checkpoint:{closed.claim}"
    if closed.checkpoint is not None or closed.restored_from is not None or code in decision.state.warned:
        return
    reason = f"attempt {claim.attempt}: {claim.closed_reason}; {FROM_THE_BEGINNING}"
    decision.append(Warned(code=code), reason)
