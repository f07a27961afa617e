"""What `stoker policy test` finds: all that the rules of a house would mean for one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from stoker.cli.format import counted, whole
from stoker.core import audit, policy_rules
from stoker.core.placement import acceptable
from stoker.core.policy_rules import Bounded, Finding, Subject
from stoker.model import channel_address
from stoker.model.policy import Exemption, House, Rule, Then
from stoker.model.spec import Spec
from stoker.notifications.events import in_scope
from stoker.store.base import Store
from stoker.submit.identity import identified
from stoker.submit.policy_check import as_housed, bound_value, forecast
from stoker.submit.prepare import connect

# What comes of a budget, in words.
_COMES = {"refuse": "would be refused", "wait": "would wait", "warn": "warning"}


@dataclass(frozen=True)
class Watched:
    """A bound that people are told of when it is reached, and that ends nothing."""

    rule: Rule
    field: str
    value: float | None


@dataclass(frozen=True)
class Verdict:
    """What the rules say to a job, before it is submitted."""

    house: House
    findings: tuple[Finding, ...]
    bounds: Bounded
    # What the budgets say, and what comes of it.
    budgets: tuple[tuple[str, Then], ...]
    # What is spent, reserved and left of each, and what the job would reserve.
    stands: tuple[str, ...]
    watched: tuple[Watched, ...]
    # The exemptions that count today, by the names of their rules.
    exempt: dict[str, Exemption]
    # The channels that would hear of the job, by their names, without the keys in their addresses.
    heard: dict[str, dict[str, Any]]

    @property
    def refused(self) -> bool:
        return any(each.refuses for each in self.findings) or any(then == "refuse" for _, then in self.budgets)

    def lines(self) -> Iterator[str]:
        """For people."""
        for finding in self.findings:
            yield f"{'would be refused' if finding.refuses else 'warning'}: {finding}"
        for reason, then in self.budgets:
            yield f"{_COMES[then]}: {reason}"
        for line in self.stands:
            yield f"budget: {line}"
        for name, exemption in self.exempt.items():
            yield f"not held against it: {name}, until {exemption.until} ({exemption.why})"
        for field, name in self.bounds.by_rule.items():
            yield f"bounded: {field} {bound_value(field, self.bounds.value(field))} by policy {name}"
        for each in self.watched:
            mode = "audit" if each.rule.audit else "a warning"
            yield f"only told: {each.field} {bound_value(each.field, each.value)} by policy {each.rule.name} ({mode})"
        for name, channel in self.heard.items():
            yield f"told: {name} ({channel['to']}): {', '.join(channel['events']) or 'everything'}"
        if not self.refused:
            rules = counted(len(self.house.rules), "rule")
            yield f"allowed by {rules}" if self.house.rules else "allowed: there are no rules"

    def told(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "refused": self.refused,
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
            "exempt": whole(self.exempt),
            "budgets": [{"refused": then == "refuse", "then": then, "reason": reason} for reason, then in self.budgets],
            "stands": list(self.stands),
            "notify": self.heard,
            "policy": self.house.digest,
        }


def verdict(house: House, store: Store, spec: Spec) -> Verdict:
    """Hold the rules against a job, as its submitter here would. No cloud is asked for machines: they are those of the
    tables that come with Stoker."""
    spec, _ = identified(spec, store)
    offered = connect(spec, store, offline=True).offerings(spec.resources)
    fitting, _ = acceptable(as_housed(house, spec), offered, unpriced=True)
    subject = Subject(spec, datetime.now(timezone.utc).date())
    money = forecast(store, house, spec, fitting)
    return Verdict(
        house=house,
        findings=policy_rules.broken(house, subject, fitting),
        bounds=policy_rules.bounded(house, subject),
        budgets=money.coming,
        stands=money.stands,
        watched=tuple(_watched(house, subject)),
        exempt=_exempt(house, subject),
        heard=_heard(house, spec),
    )


def _watched(house: House, subject: Subject) -> Iterator[Watched]:
    for rule, bounds in audit.watched(house, subject, "max_runtime_s", "max_cost", "max_wait_s"):
        for field in bounds.by_rule:
            yield Watched(rule, field, bounds.value(field))


def _exempt(house: House, subject: Subject) -> dict[str, Exemption]:
    return {
        rule.name: each
        for rule in house.rules
        if policy_rules.in_scope(rule, subject.spec.tags)
        for each in policy_rules.exemptions(rule, subject)
        if subject.today <= each.until
    }


def _heard(house: House, spec: Spec) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        each.name: {"to": channel_address.masked(each.to), "events": list(each.events)}
        for each in house.notify
        if in_scope(each, spec.tags)
    }
    for number, to in enumerate(spec.notify):
        found[f"notify[{number}]"] = {"to": channel_address.masked(to), "events": []}
    return found
