"""The result of `stoker policy test`: what the policy means for one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from stoker.cli.format import counted, to_json
from stoker.core import audit, policy_rules
from stoker.core.acceptable_offerings import acceptable
from stoker.core.policy_rules import EffectiveLimits, RuleFinding, Subject
from stoker.jobfile import ResolvedJob
from stoker.model import channel_address
from stoker.model.policy import Exemption, Policy, Rule, RuleAction
from stoker.model.spec import Spec
from stoker.notifications.events import in_scope
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.read.safe_text import legible
from stoker.store.base import Store
from stoker.submit.choose_offerings import connect
from stoker.submit.identity import with_submitter
from stoker.submit.policy_check import forecast_budgets, limit_text, policy_filled

# The consequences of a budget that would be exceeded.
_CONSEQUENCES = {"refuse": "would be refused", "wait": "would wait", "warn": "warning"}


@dataclass(frozen=True)
class WarningLimit:
    """A limit that only warns when it is reached, and ends nothing."""

    rule: Rule
    field: str
    value: float | None


@dataclass(frozen=True)
class PolicyVerdict:
    """The rules, limits, budgets and channels that apply to a job before it is submitted."""

    policy: Policy
    # The lines about what the policy fills in, one for each rule.
    filled: tuple[str, ...]
    findings: tuple[RuleFinding, ...]
    bounds: EffectiveLimits
    # The budgets that would be exceeded, with the consequences.
    budgets: tuple[tuple[str, RuleAction], ...]
    # How much of each budget is spent, reserved and left, and what the job would reserve.
    balances: tuple[str, ...]
    # How many of the machines of each limit are in use.
    in_use: tuple[str, ...]
    watched: tuple[WarningLimit, ...]
    # The exemptions that are valid today, by the names of their rules.
    exempt: dict[str, Exemption]
    # The channels that would be notified about the job, by name, without the keys in their addresses.
    notified: dict[str, dict[str, Any]]

    @property
    def refused(self) -> bool:
        refused = any(each.refuses and not each.needs_approval for each in self.findings)
        return refused or any(then == "refuse" for _, then in self.budgets)

    def lines(self) -> Iterator[str]:
        """The verdict as lines for people."""
        yield from self.filled
        for finding in self.findings:
            for line in finding.lines:
                if finding.needs_approval:
                    yield f"would wait: {line}{policy_rules.approval_text(finding.rule, None)}"
                else:
                    yield f"{'would be refused' if finding.refuses else 'warning'}: {line}"
        for reason, then in self.budgets:
            yield f"{_CONSEQUENCES[then]}: {reason}"
        for line in self.balances:
            yield f"budget: {line}"
        for line in self.in_use:
            yield f"limit: {line}"
        for name, exemption in self.exempt.items():
            yield f"exempt from {name} until {exemption.until} ({legible(exemption.why)})"
        for field, name in self.bounds.by_rule.items():
            yield f"bounded: {field} {limit_text(field, self.bounds.value(field))} by policy {name}"
        for each in self.watched:
            mode = "audit" if each.rule.audit else "a warning"
            yield f"warning only: {each.field} {limit_text(each.field, each.value)} by policy {each.rule.name} ({mode})"
        for name, channel in self.notified.items():
            yield f"notified: {name} ({channel['to']}): {', '.join(channel['events']) or 'everything'}"
        if not self.refused and not any(each.needs_approval for each in self.findings):
            rules = counted(len(self.policy.rules), "rule")
            yield f"allowed by {rules}" if self.policy.rules else "allowed: there are no rules"

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON fields."""
        return {
            "refused": self.refused,
            "filled": list(self.filled),
            "findings": [
                {"rule": each.rule.name, "then": each.rule.action, "audit": each.rule.audit, "reason": each.reason}
                for each in self.findings
            ],
            "bounds": {
                field: {"value": self.bounds.value(field), "rule": rule} for field, rule in self.bounds.by_rule.items()
            },
            "watched": [
                {"rule": each.rule.name, "audit": each.rule.audit, "field": each.field, "value": each.value}
                for each in self.watched
            ],
            "exempt": to_json(self.exempt),
            "budgets": [{"refused": then == "refuse", "then": then, "reason": reason} for reason, then in self.budgets],
            "stands": [*self.balances, *self.in_use],
            "notify": self.notified,
            "policy": self.policy.digest,
        }


def judge_job(policy: Policy, store: Store, resolved: ResolvedJob) -> PolicyVerdict:
    """Test a job against the policy, as its submitter here would submit it.

    No cloud is asked for machines: they are those of the tables that come with Stoker.
    """
    spec, _ = with_submitter(resolved.spec, store)
    provider = connect(spec, store, offline=True)
    filled = policy_filled(policy, spec, resolved.written)
    spec = filled.spec
    offered = offerings_in_regions(provider, spec.resources).offerings
    subject = Subject(spec, datetime.now(timezone.utc).date())
    bounds = policy_rules.effective_limits(policy, subject)
    fitting, _ = acceptable(bounds.spec, offered, unpriced=True)
    budget = forecast_budgets(store, policy, spec, fitting)
    return PolicyVerdict(
        policy=policy,
        filled=filled.lines,
        findings=policy_rules.broken(policy, subject, fitting),
        bounds=bounds,
        budgets=budget.exceeded,
        balances=budget.balances,
        in_use=budget.in_use,
        watched=tuple(_watched(policy, subject)),
        exempt=_exempt(policy, subject),
        notified=_notified(policy, spec),
    )


def _watched(policy: Policy, subject: Subject) -> Iterator[WarningLimit]:
    for rule, bounds in audit.audited_limits(policy, subject, "max_runtime_s", "max_cost", "max_wait_s"):
        for field in bounds.by_rule:
            yield WarningLimit(rule, field, bounds.value(field))


def _exempt(policy: Policy, subject: Subject) -> dict[str, Exemption]:
    return {
        rule.name: each
        for rule in policy.rules
        if policy_rules.in_scope(rule, subject.spec.tags)
        for each in policy_rules.exemptions(rule, subject)
        if policy_rules.is_valid(each, subject.today)
    }


def _notified(policy: Policy, spec: Spec) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        each.name: {"to": channel_address.masked(each.to), "events": list(each.events)}
        for each in policy.notify
        if in_scope(each, spec.tags)
    }
    for number, to in enumerate(spec.notify):
        found[f"notify[{number}]"] = {"to": channel_address.masked(to), "events": []}
    return found
