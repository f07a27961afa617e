"""Find what audited rules, and rules that only warn, would have done. Their findings become warnings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.core import attempt_evidence, policy_rules, retry
from stoker.core.governor_settings import GovernorSettings
from stoker.core.placement import Placed, place
from stoker.core.policy_rules import EffectiveLimits, RuleFinding, Subject
from stoker.core.retry import Verdict
from stoker.core.snapshot import JobSnapshot
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


def verdict_findings(
    job: JobSnapshot, claim: Claim, settings: GovernorSettings, subject: Subject, verdict: Verdict
) -> Iterator[RuleFinding]:
    """Report rules that would have changed the verdict. `job` and `subject` have the effective limits applied."""
    policy = settings.policy
    enforced = policy_rules.enforced_rules(policy, subject, "failure")
    for rule, bounds in audited_limits(policy, subject, "resume", "failure"):
        diagnoses = tuple(each for each in policy.about("failure") if each in enforced or each == rule)
        other = retry.verdict(attempt_evidence.evidence_of(replace(job, spec=bounds.spec), claim, settings, diagnoses))
        if (other.outcome, other.rule, other.restart) != (verdict.outcome, verdict.rule, verdict.restart):
            then = "would be followed by another" if other.restart else "would be the last"
            yield RuleFinding(rule, f"attempt {claim.attempt} {then}: {other.reason}")


def placement_findings(
    job: JobSnapshot,
    offerings: tuple[Offering, ...],
    settings: GovernorSettings,
    subject: Subject,
    now: datetime,
    chosen: Offering,
    excluded: Mapping[str, str],
) -> Iterator[RuleFinding]:
    """Report rules that would have changed the choice between spot and on-demand. `job` and `subject` have the
    effective limits applied."""
    for rule, bounds in audited_limits(settings.policy, subject, "spot"):
        other = place(replace(job, spec=bounds.spec), offerings, settings, now, excluded=excluded)
        if isinstance(other, Placed) and other.offering.spot != chosen.spot:
            yield RuleFinding(rule, f"the next attempt would get {other.offering.title}: {other.reason}")
