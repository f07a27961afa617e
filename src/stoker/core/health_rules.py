"""What the rules say about a job that trains: one that stands still, wastes its machines, or leads nowhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from stoker.core import stalls
from stoker.core.metric_rules import hopeless
from stoker.core.policy_rules import Finding, Subject, applies, that_count
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import Claim
from stoker.model.policy import House, Rule, Stall, Then

# What a job's own bound on silence is called in decisions, and a process of it that a person has stopped.
OWN, DEBUGGER = "stall", "debugger"
# A debugger that is there for so long is a person's, and is told.
_SESSION_S = 10.0
# It has no windows; a third of it without a word, and with idle accelerators, is a beginning.
_OWN_WINDOWS = 3
_NO_WARNING = Stall()


@dataclass(frozen=True)
class Sighting:
    """A rule that finds fault with how a job runs."""

    rule: str
    reason: str
    then: Then
    # More than a word for people.
    counts: bool = True
    # What the processes do now tells more.
    evidence: bool = True
    # For how long it has been so, as far as that can be told.
    lasts_s: float = 0.0
    # How long people are warned before anything is done about it.
    warn_before_s: float = 0.0


def findings(job: JobSnapshot, claim: Claim, house: House, subject: Subject, now: datetime) -> Iterator[Sighting]:
    """By the job's own bound first, then by the rules of the house, in their order.

    One that hangs is no wasteful one: the rule that would start it again comes first, and is waited for.
    """
    own = job.spec.limits.stall_s
    yield from _debugger(job, claim, house, subject)
    reason = stalls.silent(own, job, claim, now) if own is not None else None
    silent_s = stalls.silent_for_s(job, claim, now)
    if reason is not None:
        yield Sighting(OWN, reason, "restart", lasts_s=silent_s)
    hangs = reason is not None or _may_hang(job, claim, house, subject, now)
    for rule in house.rules:
        reason = _reason(rule, job, claim, now) if applies(rule, subject) else None
        if reason is not None and not (hangs and rule.min_gpu_utilization is not None):
            told = Finding(rule, reason)
            # A number that is no good needs no witness.
            evidence = told.counts and rule.metric is None
            use = rule.min_gpu_utilization
            before_s = (rule.stall or use or _NO_WARNING).warn_before_s
            # A mean has no beginning: the warning is about the same matter for as long as it is to come before.
            lasts_s = use.over_s + before_s if use is not None else silent_s if rule.stall is not None else 0.0
            yield Sighting(told.code, str(told), rule.action, told.counts, evidence, lasts_s, before_s)


def _debugger(job: JobSnapshot, claim: Claim, house: House, subject: Subject) -> Iterator[Sighting]:
    """Tell that rules wait for a debugger, where any would end the job otherwise."""
    found = stalls.debugged_for_s(job, claim)
    rules = [*that_count(house, subject, "stall"), *that_count(house, subject, "min_gpu_utilization")]
    if found is None or not found[1] >= _SESSION_S:
        return
    if job.spec.limits.stall_s is not None or any(rule.action != "warn" for rule in rules):
        reason = (
            f"a process of node {found[0]} is stopped, or in a debugger: rules about stalls and idle accelerators wait "
            "until it goes on; max_runtime and max_cost still count"
        )
        yield Sighting(DEBUGGER, reason, "warn", evidence=False)


def _may_hang(job: JobSnapshot, claim: Claim, house: House, subject: Subject, now: datetime) -> bool:
    """Whether a rule that does something about it finds the job standing still, or will unless something moves."""
    wanted = [rule.stall for rule in that_count(house, subject, "stall") if rule.stall and rule.action != "warn"]
    own = job.spec.limits.stall_s
    if own is not None:
        wanted.append(Stall(window_s=own / _OWN_WINDOWS, windows=_OWN_WINDOWS))
    return any(
        stalls.begins_to_stall(each, job, claim, now) or stalls.stalled(each, job, claim, now) is not None
        for each in wanted
    )


def _reason(rule: Rule, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    if rule.stall is not None:
        return stalls.stalled(rule.stall, job, claim, now)
    if rule.min_gpu_utilization is not None:
        return stalls.wasteful(rule.min_gpu_utilization, job, claim, now)
    if rule.metric is not None:
        return hopeless(rule.metric, job, claim, now)
    return None
