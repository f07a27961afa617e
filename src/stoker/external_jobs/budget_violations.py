"""Find the budgets and the limits of machines at the same time that an external job breaks by having begun. Pure.

An external job cannot be made to wait, so `wait` only warns. `refuse` stops it: before it trains, or as soon as it is
seen, where it trained already then. A budget never ends a job that it once let in.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from stoker.core import budget_verdict
from stoker.core.budget_state import FULL, code_of, denies_launches, period_of
from stoker.core.policy_rules import PREFIX, Subject, applies
from stoker.external_jobs.snapshot import NEXT_PASS_S, ExternalJobSnapshot, is_judged_by_budgets, request_of
from stoker.external_jobs.violation import RuleViolation
from stoker.model.durations import span_text
from stoker.model.observed import Known
from stoker.model.policy import Policy, Rule, RuleAction


def budget_violations(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> Iterator[RuleViolation]:
    """The budgets that were spent, and the limits that had no room, when the job began."""
    job = snapshot.job
    if not isinstance(snapshot.budget_state, Known) or not is_judged_by_budgets(job, snapshot.chain, policy, now):
        return
    request = request_of(snapshot, job.created_at or now)
    found = budget_verdict.judge(policy, subject, snapshot.budget_state, now, request)
    for each in found:
        if isinstance(each, budget_verdict.LaunchDenied):
            goes_on = _why_it_goes_on(snapshot, each.rule, now) if each.refuses else ""
            then: RuleAction = "refuse" if each.refuses and not goes_on else "warn"
            yield RuleViolation(each.rule, each.reason + goes_on, then)
    reasons = {each.code: each.reason for each in found if isinstance(each, budget_verdict.BudgetWarning)}
    for rule in policy.about("budget", "concurrent"):
        reason = reasons.get(_code_of_warning(rule, now))
        if reason is not None and applies(rule, subject) and not denies_launches(rule):
            yield RuleViolation(code_of(rule), reason, "warn", enforced=not rule.audit)


def _code_of_warning(rule: Rule, now: datetime) -> str:
    """Code of the warning that the budget is spent, or that the limit has no room."""
    if rule.budget is None:
        return f"{code_of(rule)}:{budget_verdict.ROOM}"
    return code_of(rule, period_of(rule.budget, now), FULL)


def _why_it_goes_on(snapshot: ExternalJobSnapshot, code: str, now: datetime) -> str:
    """The reason why a rule that refuses does not stop a job; empty where it does.

    The state of a budget is known for now alone. A job that has trained for longer than the time between two passes may
    have begun when there was money and room.
    """
    job = snapshot.job
    trained_s, since = job.trained_s(now), snapshot.rules_since.get(code.removeprefix(PREFIX))
    if not trained_s or job.name in snapshot.chain.stops:
        return ""
    if since is None or job.created_at is None or job.created_at < since:
        return "; it was there before the rule, and goes on"
    if trained_s > NEXT_PASS_S:
        return f"; it had trained for {span_text(trained_s)} when it was first seen, and goes on"
    return ""
