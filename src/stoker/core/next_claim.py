"""Claim the next machines of a job, or say why it waits or ends. Pure."""

from __future__ import annotations

from stoker.core import audit, budget_verdict, policy_rules
from stoker.core.approval_entries import record_approvals
from stoker.core.budget_reservations import (
    LaunchRequest,
    has_begun,
    launch_request,
    leaves_code,
    waits_code,
    waits_for_room_code,
)
from stoker.core.job_decision import JobDecision
from stoker.core.launch_history import waiting_since
from stoker.core.placement import NoCapacityNow, NoOffering, Placed, place, wants_claim
from stoker.core.snapshot import Launch
from stoker.core.unpriced_offerings import left_out
from stoker.model.durations import span_text
from stoker.model.log_entries import Claimed, Ended, Warned
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Offering

# An unknown price may be known at the next query.
_PRICES_CHANGE_S = 600.0
# Kind of the warning, in its code, that a job waits for an approval.
APPROVAL = "approval"
# A region that gave no answer is asked again.
_ASK_AGAIN_S = 60.0
# Reservations of other jobs are freed when those jobs end.
_MONEY_CHANGES_S = 300.0


def claim_next(decision: JobDecision) -> None:
    """Claim and launch machines, if the job needs them, the policy allows them and there is capacity."""
    reason = wants_claim(decision.job)
    if reason is None or decision.policy_is_unreadable():
        return
    alone = not decision.state.open_claims
    if alone and (_waited_too_long(decision) or _audit_wait(decision)):
        return
    match decision.job.offerings:
        case None:
            return
        case Unknown(error=error):
            decision.waiting = f"the provider's offerings are unknown: {error}"
            return
        case Known(value=offerings):
            pass
    if decision.job.no_offerings:
        _wait_or_end(decision, NoOffering(decision.job.no_offerings, over=True))
    elif not _apply_policy(decision, offerings) and not _denied_by_budget(decision):
        _place_and_claim(decision, offerings, reason)


def _place_and_claim(decision: JobDecision, offerings: tuple[Offering, ...], reason: str) -> None:
    """Choose among the offerings that the policy and the budgets allow, and claim one. `reason`: why the job needs
    it."""
    policy, bounds = decision.settings.policy, decision.bounds
    allowed = policy_rules.allowed(policy, decision.subject, offerings)
    reclaimed = policy_rules.reclaimed_too_often(policy, decision.subject, allowed, decision.job.market, decision.now)
    too_expensive = _too_expensive(decision, allowed)
    excluded = {key: held.waits for key, held in too_expensive.items()}
    excluded |= {offering.key: str(finding) for offering, finding in reclaimed if finding.refuses}
    unpriced = left_out(policy, decision.subject, bounds.spec, allowed)
    excluded |= unpriced
    found = place(
        decision.bounded_job,
        # Those that are left out come last: the job waits for one of the others.
        tuple(sorted(allowed, key=lambda each: each.key in unpriced)),
        decision.settings,
        decision.now,
        bound=bounds.named("spot_wait"),
        cost_bound=bounds.named("max_cost"),
        used=bounds.used_of("max_cost"),
        given_up_by=bounds.named("on_demand_after") if "on_demand_after" in bounds.by_rule else "",
        excluded=excluded,
        hopeless={key for key, held in too_expensive.items() if held.never} | set(unpriced),
    )
    match found:
        case Placed(offering=offering, reason=why):
            if _warn_of_reserves(decision, offering):
                return
            market_findings = [finding for one, finding in reclaimed if one == offering]
            audited = audit.placement_findings(decision, allowed, excluded, offering)
            if not decision.warn_of_findings((*market_findings, *audited)):
                _claim(decision, offering, reason, why)
        case NoCapacityNow(reason=why):
            held = next((each for each in too_expensive.values() if why.startswith(each.waits)), None)
            if held is not None:
                _wait_for_money(decision, held, why)
            else:
                _wait_for_capacity(decision, found)
        case NoOffering():
            _wait_or_end(decision, found)


def _wait_for_capacity(decision: JobDecision, found: NoCapacityNow) -> None:
    """Wait until an offering may have capacity again, and keep the place in the queue of a bounded place."""
    decision.waiting = found.reason
    decision.wakes.append(found.until)
    if _leave_queue(decision):
        return
    last = decision.state.last_claim
    if last is not None and last.closed is not None and last.closed.outcome == "dry":
        decision.capacity.queue(decision.state.job, last.offering)


def _wait_or_end(decision: JobDecision, found: NoOffering) -> None:
    """End a job that no offering can serve, unless an attempt still saves or an unknown price is all that is missing:
    a job without a known price waits for one, under its limit on the cost."""
    alone = not decision.state.open_claims
    if found.bound and alone and not decision.job.unanswered:
        rule = decision.bounds.rule("max_cost")
        decision.append(Ended(outcome="failed", rule=rule, claim=decision.last_attempt()), found.reason)
        return
    decision.waiting = found.reason
    if found.unpriced:
        # The submitter knew a price, or the rule is newer than the job: prices are refreshed meanwhile.
        decision.wake_in(_PRICES_CHANGE_S)
        _leave_queue(decision)
    elif decision.job.unanswered:
        # A region that did not answer may have a machine that serves.
        decision.waiting = f"{found.reason}; {decision.job.unanswered}"
        decision.wake_in(_ASK_AGAIN_S)
        _leave_queue(decision)
    elif alone:
        last, job = decision.last_attempt(), decision.state.job
        go_on = f"; `stoker clone {job} --set resume_from={job}` and a `--set` for other resources goes on elsewhere"
        reason = found.reason + (go_on if found.over and last is not None else "")
        decision.append(Ended(outcome="failed", rule="no-offering", claim=last), reason)


def _claim(decision: JobDecision, offering: Offering, reason: str, why: str) -> None:
    """Claim nodes of this offering if there is room. `reason`: why the job needs nodes; `why`: why this offering."""
    full = decision.capacity.why_wait(decision.state.job, offering, decision.job.spec.nodes)
    if full is not None:
        decision.waiting = full
        _leave_queue(decision)
        return
    seq = decision.state.seq + 1
    noticed = decision.state.open_claims[0].number if decision.state.open_claims else None
    event = Claimed(offering=offering, nodes=decision.job.spec.nodes, successor_of=noticed)
    # The kind of machine is worth no words if it is free and on-demand.
    plain = offering.price == 0 and why == "on-demand"
    decision.append(event, reason if plain else f"{reason}; {why}")
    decision.actions.append(Launch(decision.state.job, seq, reason))


def _apply_policy(decision: JobDecision, offerings: tuple[Offering, ...]) -> bool:
    """End a job that the policy refuses, let one wait that needs an approval, and warn once for each rule that only
    warns."""
    fresh = not has_begun(decision.state)
    found = policy_rules.broken(decision.settings.policy, decision.subject, offerings)
    if decision.job.unanswered:
        # The machines of a region that did not answer may be allowed.
        found = tuple(each for each in found if not each.about_machines)
    refusals = [each for each in found if each.refuses and (fresh or each.about_machines)]
    for finding in refusals if not decision.state.open_claims else ():
        if not finding.needs_approval:
            ended = Ended(outcome="failed", rule=finding.code, claim=decision.last_attempt())
            return decision.append(ended, str(finding))
    pending = [each for each in refusals if each.needs_approval]
    if pending:
        lines = [f"{each}{policy_rules.approval_text(each.rule, decision.state.job)}" for each in pending]
        decision.waiting = lines[0]
        for finding, line in zip(pending, lines, strict=True):
            code = f"{finding.code}:{APPROVAL}"
            if code not in decision.state.warned:
                return decision.append(Warned(code=code), line)
        # It waits for a person now, and holds up no younger job.
        return _leave_queue(decision) or True
    return record_approvals(decision) or (fresh and decision.warn_of_findings(found))


def warn_of_budgets(decision: JobDecision) -> bool:
    """Warn of nearly spent budgets, if this job is the one that reports for all jobs of the budget."""
    warnings = budget_verdict.warnings_of_job(
        decision.settings.policy, decision.state.job, decision.job.spec.tags, decision.job.budget_state, decision.now
    )
    return any(decision.warn(warning) for warning in warnings)


def _denied_by_budget(decision: JobDecision) -> bool:
    """Return whether a budget denies the next claim: the job waits, or ends if it never ran and the rule refuses."""
    found = budget_verdict.judge(decision.settings.policy, decision.subject, decision.job.budget_state, decision.now)
    if any(isinstance(each, budget_verdict.BudgetWarning) and decision.warn(each) for each in found):
        return True
    held = [each for each in found if isinstance(each, budget_verdict.LaunchDenied)]
    fresh = not has_begun(decision.state)
    for each in held:
        if each.refuses and fresh and not decision.state.open_claims:
            return decision.append(Ended(outcome="failed", rule=each.rule, claim=decision.last_attempt()), each.reason)
    for each in held[:1]:
        decision.waiting = each.waits or each.reason
    decision.wakes += [each.until for each in held if each.until is not None]
    return bool(held)


def _too_expensive(decision: JobDecision, offerings: tuple[Offering, ...]) -> dict[str, budget_verdict.LaunchDenied]:
    """The offerings, by key, for which a budget has too little left or a limit no room, and the reason for waiting."""
    found: dict[str, budget_verdict.LaunchDenied] = {}
    if not decision.settings.policy.about("budget", "concurrent"):
        return found
    judged: dict[LaunchRequest, budget_verdict.LaunchDenied | None] = {}
    for offering in offerings:
        ask = launch_request(decision.bounds, decision.state, offering, decision.now)
        if ask not in judged:
            verdicts = budget_verdict.judge(
                decision.settings.policy, decision.subject, decision.job.budget_state, decision.now, ask
            )
            denied = (each for each in verdicts if isinstance(each, budget_verdict.LaunchDenied))
            judged[ask] = min(denied, key=lambda each: not each.never, default=None)
        held = judged[ask]
        if held is not None:
            found[offering.key] = held
    return found


def _warn_of_reserves(decision: JobDecision, offering: Offering) -> bool:
    """Warn, once a period, that a budget which only warns has too little left for this launch."""
    if not decision.settings.policy.about("budget", "concurrent"):
        return False
    ask = launch_request(decision.bounds, decision.state, offering, decision.now)
    verdicts = budget_verdict.judge(
        decision.settings.policy, decision.subject, decision.job.budget_state, decision.now, ask
    )
    return any(isinstance(each, budget_verdict.BudgetWarning) and decision.warn(each) for each in verdicts)


def _wait_for_money(decision: JobDecision, held: budget_verdict.LaunchDenied, why: str) -> None:
    """Queue the job for what the budget has left, or for machines that others have; or end a job that never ran if the
    rule refuses."""
    decision.waiting = why
    if held.until is not None:
        decision.wakes.append(held.until)
    decision.wake_in(_MONEY_CHANGES_S)
    fresh = not has_begun(decision.state)
    if held.refuses and fresh and not decision.state.open_claims:
        decision.append(Ended(outcome="failed", rule=held.rule, claim=decision.last_attempt()), held.reason)
        return
    code = None
    if held.machines is not None and not decision.state.open_claims:
        code = waits_for_room_code(decision.state, *held.machines)
    elif held.amount and not decision.state.open_claims:
        code = waits_code(decision.state, held.amount)
    if code is not None:
        decision.append(Warned(code=code), held.reason)


def _leave_queue(decision: JobDecision) -> bool:
    """Leave the queue for a budget: the job now waits for something else."""
    code = leaves_code(decision.state)
    return code is not None and decision.append(Warned(code=code), "no longer waits for a budget")


def _waited_too_long(decision: JobDecision) -> bool:
    longest = decision.bounds.spec.limits.max_wait_s
    if longest is None:
        return False
    left = longest - _waited_s(decision)
    if left > 0:
        decision.wake_in(left)
        return False
    reason = f"{decision.bounds.named('max_wait')} ({span_text(longest)} without a machine) is reached"
    ended = Ended(outcome="failed", rule=decision.bounds.rule("max_wait"), claim=decision.last_attempt())
    return decision.append(ended, reason)


def _audit_wait(decision: JobDecision) -> bool:
    """Warn, once for each audited rule, that it would have ended the waiting."""
    for _, bounds in audit.tightened_limits(decision, "max_wait_s"):
        most = {"max_wait": bounds.spec.limits.max_wait_s, "spot_wait": bounds.spec.retry.spot_wait_s}
        for field, what in (("max_wait", "is reached"), ("spot_wait", "is over: on-demand will do")):
            longest, code = most[field], bounds.rule(field)
            if field not in bounds.by_rule or longest is None or code in decision.state.warned:
                continue
            if _waited_s(decision) >= longest:
                reached = f"{bounds.named(field)} ({span_text(longest)} without a machine) {what}"
                return decision.append(Warned(code=code), f"{reached}; audit: nothing is done")
    return False


def _waited_s(decision: JobDecision) -> float:
    """How long the job has been without machines. Meaningful only while it has none."""
    return (decision.now - waiting_since(decision.state)).total_seconds()
