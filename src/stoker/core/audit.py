"""Find what audited rules, and rules that only warn, would have done. Their findings become warnings. Pure.

One question is decided a second time with one such rule enforced: the end of an attempt, or the choice of an offering.
Why not the whole plan: docs/decisions/audit-repeats-one-question.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stoker.core import attempt_evidence, attempt_verdict, policy_rules
from stoker.core.attempt_verdict import Verdict
from stoker.core.job_decision import JobDecision
from stoker.core.placement import Placed, place
from stoker.core.policy_rules import EffectiveLimits, RuleFinding, Subject
from stoker.model.job_state import Claim
from stoker.model.offerings import Offering
from stoker.model.policy import Policy, Rule


def audited_limits(policy: Policy, subject: Subject, *about: str) -> Iterator[tuple[Rule, EffectiveLimits]]:
    """Each such rule with the limits as if it alone were enforced, so that two broken rules give two findings.

    A limit that only warns is treated as one that stops.
    """
    for rule in policy.rules:
        if (rule.audit or rule.action == "warn") and rule.subject in about and policy_rules.applies(rule, subject):
            enforced = replace(rule, audit=False, then="stop" if rule.action == "warn" else rule.then)
            yield rule, policy_rules.effective_limits(replace(policy, rules=(enforced,)), subject)


def tightened_limits(decision: JobDecision, *about: str) -> Iterator[tuple[Rule, EffectiveLimits]]:
    """Each such rule with the limits as if it were enforced beside the enforced ones."""
    return audited_limits(decision.settings.policy, replace(decision.subject, spec=decision.bounds.spec), *about)


def verdict_findings(decision: JobDecision, claim: Claim, verdict: Verdict) -> Iterator[RuleFinding]:
    """Report rules that would have changed the verdict."""
    policy = decision.settings.policy
    enforced = policy_rules.enforced_rules(policy, decision.subject, "failure")
    for rule, bounds in tightened_limits(decision, "resume", "failure"):
        diagnoses = tuple(each for each in policy.about("failure") if each in enforced or each == rule)
        job = replace(decision.job, spec=bounds.spec)
        other = attempt_verdict.judge(attempt_evidence.evidence_of(job, claim, decision.settings, diagnoses))
        if (other.outcome, other.rule, other.restart) != (verdict.outcome, verdict.rule, verdict.restart):
            then = "would be followed by another" if other.restart else "would be the last"
            yield RuleFinding(rule, f"attempt {claim.attempt} {then}: {other.reason}")


def placement_findings(
    decision: JobDecision, offerings: tuple[Offering, ...], excluded: Mapping[str, str], chosen: Offering
) -> Iterator[RuleFinding]:
    """Report rules that would have changed the choice between spot and on-demand."""
    for rule, bounds in tightened_limits(decision, "spot"):
        job = replace(decision.job, spec=bounds.spec)
        other = place(job, offerings, decision.settings, decision.now, excluded=excluded)
        if isinstance(other, Placed) and other.offering.spot != chosen.spot:
            yield RuleFinding(rule, f"the next attempt would get {other.offering.title}: {other.reason}")
