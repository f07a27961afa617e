"""Whether a job gets its next claim, and on what; or why it waits, or never will. Pure."""

from __future__ import annotations

from stoker.core import audit, budgets, policy_rules
from stoker.core.budget_reservations import Ask, ask_for, leaves_code, waits_code
from stoker.core.job_decision import Look
from stoker.core.placement import Chosen, Dry, Impossible, place, waiting_since, wants_claim
from stoker.core.snapshot import Launch
from stoker.model.durations import span_text
from stoker.model.log_entries import Claimed, Ended, Warned
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Offering

# A price that nobody knows may be known when it is asked for again.
_PRICES_CHANGE_S = 600.0
# What is reserved for other jobs is freed when those end.
_MONEY_CHANGES_S = 300.0


def claim_next(look: Look) -> None:
    """Claim a machine and launch it, where the job wants one, the house has nothing against it, and there is one."""
    reason = wants_claim(look.job)
    if reason is None or look.cannot_read_rules():
        return
    alone = not look.state.open_claims
    if alone and (_waited_too_long(look) or _audit_wait(look)):
        return
    match look.job.offerings:
        case None:
            return
        case Unknown(error=error):
            look.waiting = f"the provider's offerings are unknown: {error}"
            return
        case Known(value=offerings):
            pass
    if _heed_rules(look, offerings) or _kept_back(look):
        return
    may = policy_rules.allowed(look.policy.house, look.subject, offerings)
    often = policy_rules.taken_too_often(look.policy.house, look.subject, may, look.job.market, look.now)
    too_dear = _too_dear(look, may)
    shunned = {key: held.waits for key, held in too_dear.items()}
    shunned |= {offering.key: str(finding) for offering, finding in often if finding.refuses}
    job, whose = look.bounded_job, look.bounds.named("spot_wait")
    most, used = look.bounds.named("max_cost"), look.bounds.used_of("max_cost")
    by = look.bounds.named("on_demand_after") if "on_demand_after" in look.bounds.by_rule else ""
    found = place(
        job, may, look.policy, look.now, bound=whose, cost_bound=most, used=used, given_up_by=by, shunned=shunned
    )
    match found:
        case Chosen(offering=offering, reason=why):
            if _tell_of_reserves(look, offering):
                return
            told = [finding for one, finding in often if one == offering]
            audited = audit.of_place(job, may, look.policy, look.bounded_subject, look.now, offering, shunned)
            if not look.tell((*told, *audited)):
                _claim(look, offering, reason, why)
        case Dry(until=until, reason=why):
            held = next((each for each in too_dear.values() if why.startswith(each.waits)), None)
            if held is not None:
                _wait_for_money(look, held, why)
                return
            look.waiting = why
            look.wakes.append(until)
            if _leave_queue(look):
                return
            last = look.state.last_claim
            if last is not None and last.closed is not None and last.closed.outcome == "dry":
                look.rooms.queue(look.state.job, last.offering)
        case Impossible(reason=why, bound=True) if alone:
            ended = Ended(outcome="failed", rule=look.bounds.rule("max_cost"), claim=look.last_attempt())
            look.append(ended, why)
        case Impossible(reason=why, unpriced=unpriced):
            look.waiting = why
            if unpriced and look.state.attempts:
                # What nobody knows today never ends what has been paid for already.
                look.wake_in(_PRICES_CHANGE_S)
            elif alone:
                look.append(Ended(outcome="failed", rule="no-offering", claim=look.last_attempt()), why)


def _claim(look: Look, offering: Offering, reason: str, why: str) -> None:
    """Claim nodes of this offering if there is room for them. `reason`: why the job wants them; `why`: why these."""
    full = look.rooms.why_wait(look.state.job, offering, look.job.spec.nodes)
    if full is not None:
        look.waiting = full
        _leave_queue(look)
        return
    seq = look.state.seq + 1
    noticed = look.state.open_claims[0].number if look.state.open_claims else None
    event = Claimed(offering=offering, nodes=look.job.spec.nodes, successor_of=noticed)
    # Of a machine that is free and stays, nothing is to be said about its price.
    plain = offering.price == 0 and why == "on-demand"
    look.append(event, reason if plain else f"{reason}; {why}")
    look.actions.append(Launch(look.state.job, seq, reason))


def _heed_rules(look: Look, offerings: tuple[Offering, ...]) -> bool:
    """Refuse what the house refuses, whoever submitted it, and tell what it warns of, once."""
    fresh = not any(claim.attempt is not None for claim in look.state.since_opened())
    found = policy_rules.broken(look.policy.house, look.subject, offerings)
    for finding in found:
        if finding.refuses and not look.state.open_claims and (fresh or finding.rule.about_machines):
            ended = Ended(outcome="failed", rule=finding.code, claim=look.last_attempt())
            return look.append(ended, str(finding))
    return fresh and look.tell(found)


def tell_of_budgets(look: Look) -> bool:
    """Tell what this job is to tell of budgets that are nearly spent, on behalf of all of their jobs."""
    told = budgets.heralded(look.policy.house, look.state.job, look.job.spec.tags, look.job.books, look.now)
    return any(look.warn(word) for word in told)


def _kept_back(look: Look) -> bool:
    """Whether a budget keeps the next claim back: it waits, or was never to begin."""
    found = budgets.judge(look.policy.house, look.subject, look.job.books, look.now)
    if any(isinstance(each, budgets.Word) and look.warn(each) for each in found):
        return True
    held = [each for each in found if isinstance(each, budgets.Held)]
    fresh = not any(claim.attempt is not None for claim in look.state.since_opened())
    for each in held:
        if each.refuses and fresh and not look.state.open_claims:
            return look.append(Ended(outcome="failed", rule=each.rule, claim=look.last_attempt()), each.reason)
    for each in held[:1]:
        look.waiting = each.waits or each.reason
    look.wakes += [each.until for each in held if each.until is not None]
    return bool(held)


def _too_dear(look: Look, offerings: tuple[Offering, ...]) -> dict[str, budgets.Held]:
    """The offerings, by their keys, for which a budget has too little left, and what they wait for."""
    found: dict[str, budgets.Held] = {}
    if not look.policy.house.about("budget"):
        return found
    judged: dict[Ask, budgets.Held | None] = {}
    for offering in offerings:
        ask = ask_for(look.bounds, look.state, offering, look.now)
        if ask not in judged:
            told = budgets.judge(look.policy.house, look.subject, look.job.books, look.now, ask)
            judged[ask] = next((each for each in told if isinstance(each, budgets.Held)), None)
        held = judged[ask]
        if held is not None:
            found[offering.key] = held
    return found


def _tell_of_reserves(look: Look, offering: Offering) -> bool:
    """Tell, once a period, that a budget which keeps no job back has too little left for this launch."""
    if not look.policy.house.about("budget"):
        return False
    ask = ask_for(look.bounds, look.state, offering, look.now)
    told = budgets.judge(look.policy.house, look.subject, look.job.books, look.now, ask)
    return any(isinstance(each, budgets.Word) and look.warn(each) for each in told)


def _wait_for_money(look: Look, held: budgets.Held, why: str) -> None:
    """Take a place in the queue for what a budget has left, or end a job that was never to begin."""
    look.waiting = why
    if held.until is not None:
        look.wakes.append(held.until)
    look.wake_in(_MONEY_CHANGES_S)
    fresh = not any(claim.attempt is not None for claim in look.state.since_opened())
    if held.refuses and fresh and not look.state.open_claims:
        look.append(Ended(outcome="failed", rule=held.rule, claim=look.last_attempt()), held.reason)
        return
    code = waits_code(look.state, held.amount) if held.amount and not look.state.open_claims else None
    if code is not None:
        look.append(Warned(code=code), held.reason)


def _leave_queue(look: Look) -> bool:
    """Give up the place in the queue for money: what the job waits for is something else."""
    code = leaves_code(look.state)
    return code is not None and look.append(Warned(code=code), "no longer waits for a budget")


def _waited_too_long(look: Look) -> bool:
    longest = look.bounds.spec.limits.max_wait_s
    if longest is None:
        return False
    left = longest - _waited_s(look)
    if left > 0:
        look.wake_in(left)
        return False
    reason = f"{look.bounds.named('max_wait')} ({span_text(longest)} without a machine) is reached"
    ended = Ended(outcome="failed", rule=look.bounds.rule("max_wait"), claim=look.last_attempt())
    return look.append(ended, reason)


def _audit_wait(look: Look) -> bool:
    """Tell, once for each rule which is only watched, that it would have ended the waiting."""
    for _, bounds in audit.watched(look.policy.house, look.bounded_subject, "max_wait_s"):
        most = {"max_wait": bounds.spec.limits.max_wait_s, "spot_wait": bounds.spec.retry.spot_wait_s}
        for field, what in (("max_wait", "is reached"), ("spot_wait", "is over: on-demand will do")):
            longest, code = most[field], bounds.rule(field)
            if field not in bounds.by_rule or longest is None or code in look.state.warned:
                continue
            if _waited_s(look) >= longest:
                told = f"{bounds.named(field)} ({span_text(longest)} without a machine) {what}"
                return look.append(Warned(code=code), f"{told}; audit: nothing is done")
    return False


def _waited_s(look: Look) -> float:
    """How long the job has been without machines. Of use only where it has none."""
    return (look.now - waiting_since(look.state)).total_seconds()
