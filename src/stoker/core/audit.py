"""What the rules that are only watched, or only warn, would have done: a word for people, and nothing more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.core import attempt_evidence, policy_rules, retry
from stoker.core.governor_settings import Policy
from stoker.core.placement import Chosen, place
from stoker.core.policy_rules import Bounded, Finding, Subject
from stoker.core.retry import Verdict
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import Claim
from stoker.model.offerings import Offering
from stoker.model.policy import House, Rule


def watched(house: House, subject: Subject, *about: str) -> Iterator[tuple[Rule, Bounded]]:
    """Each of them with what the bounds would be if it counted, one by one: of two that are broken, both are told.

    A bound that only warns is one that would have stopped.
    """
    for rule in house.rules:
        if (rule.audit or rule.action == "warn") and rule.subject in about and policy_rules.applies(rule, subject):
            counting = replace(rule, audit=False, then="stop" if rule.action == "warn" else rule.then)
            yield rule, policy_rules.bounded(replace(house, rules=(counting,)), subject)


def of_verdict(job: JobSnapshot, claim: Claim, policy: Policy, subject: Subject, verdict: Verdict) -> Iterator[Finding]:
    """Where another verdict on this attempt would have been reached. `job` and `subject` are as they are bounded."""
    house = policy.house
    counting = policy_rules.that_count(house, subject, "failure")
    for rule, bounds in watched(house, subject, "resume", "failure"):
        diagnoses = tuple(each for each in house.about("failure") if each in counting or each == rule)
        other = retry.verdict(attempt_evidence.case_of(replace(job, spec=bounds.spec), claim, policy, diagnoses))
        if (other.outcome, other.rule, other.restart) != (verdict.outcome, verdict.rule, verdict.restart):
            then = "would be followed by another" if other.restart else "would be the last"
            yield Finding(rule, f"attempt {claim.attempt} {then}: {other.reason}")


def of_place(
    job: JobSnapshot,
    offerings: tuple[Offering, ...],
    policy: Policy,
    subject: Subject,
    now: datetime,
    chosen: Offering,
    shunned: Mapping[str, str],
) -> Iterator[Finding]:
    """Where spot would have been given up, or would not have been. `job` and `subject` are as they are bounded."""
    for rule, bounds in watched(policy.house, subject, "spot"):
        other = place(replace(job, spec=bounds.spec), offerings, policy, now, shunned=shunned)
        if isinstance(other, Chosen) and other.offering.spot != chosen.spot:
            yield Finding(rule, f"the next attempt would get {other.offering.title}: {other.reason}")
