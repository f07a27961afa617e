"""Find violations of health rules by a running job: stalls, idle accelerators, bad metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from stoker.core import stalls
from stoker.core.metric_rules import metric_violation
from stoker.core.policy_rules import RuleFinding, Subject, applies, enforced_rules
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import Claim
from stoker.model.policy import Policy, Rule, RuleAction, StallRule

# Names in decisions: the job's own `limits.stall`, and a process that a person has stopped.
OWN_STALL_RULE, DEBUGGER = "stall", "debugger"
# A debugger attached this long is a person's, and is reported.
_SESSION_S = 10.0
# `limits.stall` has no windows; a third of it without progress, and with idle accelerators, is the beginning of a
# stall.
_OWN_WINDOWS = 3
_NO_WARNING = StallRule()


@dataclass(frozen=True)
class Violation:
    """A rule that a running job violates."""

    rule: str
    reason: str
    action: RuleAction
    # False: audited; only a warning is written.
    enforced: bool = True
    # Agents should collect what their processes are doing.
    evidence: bool = True
    # Duration so far, as far as known.
    lasts_s: float = 0.0
    # Time between the warning and the action.
    warn_before_s: float = 0.0


def find_violations(
    job: JobSnapshot, claim: Claim, policy: Policy, subject: Subject, now: datetime
) -> Iterator[Violation]:
    """Find violations of the job's own limit first, then of the policy's rules, in their order.

    A hanging job is not reported as wasteful: the stall rule, which would restart it, takes precedence and is waited
    for.
    """
    own = job.spec.limits.stall_s
    yield from _debugger(job, claim, policy, subject)
    reason = stalls.no_progress_reason(own, job, claim, now) if own is not None else None
    silent_s = stalls.silent_for_s(job, claim, now)
    if reason is not None:
        yield Violation(OWN_STALL_RULE, reason, "restart", lasts_s=silent_s)
    hangs = reason is not None or _may_hang(job, claim, policy, subject, now)
    for rule in policy.rules:
        reason = _reason(rule, job, claim, now) if applies(rule, subject) else None
        if reason is not None and not (hangs and rule.min_gpu_utilization is not None):
            finding = RuleFinding(rule, reason)
            # A bad metric needs no evidence from processes.
            evidence = finding.enforced and rule.metric is None
            use = rule.min_gpu_utilization
            before_s = (rule.stall or use or _NO_WARNING).warn_before_s
            # A mean has no beginning: count the averaged time and the warning period as its duration.
            lasts_s = use.over_s + before_s if use is not None else silent_s if rule.stall is not None else 0.0
            yield Violation(finding.code, str(finding), rule.action, finding.enforced, evidence, lasts_s, before_s)


def _debugger(job: JobSnapshot, claim: Claim, policy: Policy, subject: Subject) -> Iterator[Violation]:
    """Warn that rules wait for a debugger, if any would end the job otherwise."""
    found = stalls.debugged_for_s(job, claim)
    rules = [*enforced_rules(policy, subject, "stall"), *enforced_rules(policy, subject, "min_gpu_utilization")]
    if found is None or not found[1] >= _SESSION_S:
        return
    if job.spec.limits.stall_s is not None or any(rule.action != "warn" for rule in rules):
        reason = (
            f"a process of node {found[0]} is stopped, or in a debugger: rules about stalls and idle accelerators wait "
            "until it goes on; max_runtime and max_cost still count"
        )
        yield Violation(DEBUGGER, reason, "warn", evidence=False)


def _may_hang(job: JobSnapshot, claim: Claim, policy: Policy, subject: Subject, now: datetime) -> bool:
    """Return whether an enforced rule finds the job stalled, or will unless it makes progress."""
    wanted = [rule.stall for rule in enforced_rules(policy, subject, "stall") if rule.stall and rule.action != "warn"]
    own = job.spec.limits.stall_s
    if own is not None:
        wanted.append(StallRule(window_s=own / _OWN_WINDOWS, windows=_OWN_WINDOWS))
    return any(
        stalls.begins_to_stall(each, job, claim, now) or stalls.stall_reason(each, job, claim, now) is not None
        for each in wanted
    )


def _reason(rule: Rule, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    if rule.stall is not None:
        return stalls.stall_reason(rule.stall, job, claim, now)
    if rule.min_gpu_utilization is not None:
        return stalls.low_use_reason(rule.min_gpu_utilization, job, claim, now)
    if rule.metric is not None:
        return metric_violation(rule.metric, job, claim, now)
    return None
