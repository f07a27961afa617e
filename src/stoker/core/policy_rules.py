"""Find the policy rules that a job breaks, and its effective limits. Pure: clients and governors get the same
answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime

from stoker.core import spot
from stoker.core.market import MarketHistory
from stoker.core.name_list import first_names
from stoker.core.policy_patterns import is_submitter, matches_tag
from stoker.core.rule_checks import CheckedJob, Problem, allows_text, forbids, problems_of
from stoker.core.tag_groups import tags_of_groups
from stoker.model.durations import span_text
from stoker.model.offerings import Offering
from stoker.model.policy import Exemption, NotificationChannel, Policy, Rule
from stoker.model.spec import SUBMITTER_TAG, Spec

# Prefix of the name of a policy rule in decisions.
PREFIX = "policy:"


@dataclass(frozen=True)
class PriorUsage:
    """Time and money that a job used before it was last opened: counts against the policy's limits, and not against the
    job's own."""

    dollars: float = 0.0
    trained_s: float = 0.0


@dataclass(frozen=True)
class Subject:
    """A job that rules are applied to. `job` is None before it has an id. `is_external`: an external job, which Stoker
    cannot submit again."""

    spec: Spec
    today: date
    job: str | None = None
    used: PriorUsage = PriorUsage()
    is_external: bool = False


@dataclass(frozen=True)
class RuleFinding:
    """A broken rule, and how it is broken. `problems` are the parts of the reason, where it has several."""

    rule: Rule
    reason: str
    problems: tuple[Problem, ...] = ()

    @property
    def enforced(self) -> bool:
        """True if the rule is enforced, and not only audited."""
        return not self.rule.audit

    @property
    def refuses(self) -> bool:
        return self.enforced and self.rule.action == "refuse"

    @property
    def needs_approval(self) -> bool:
        """True if the job waits for an approver instead of being refused."""
        return self.refuses and bool(self.rule.approvers)

    @property
    def about_machines(self) -> bool:
        """True if it also concerns later attempts of a job that runs."""
        return any(each.about_machines for each in self.problems) if self.problems else self.rule.about_machines

    @property
    def code(self) -> str:
        """Name of the rule in decisions."""
        return f"{PREFIX}{self.rule.name}"

    def __str__(self) -> str:
        return f"{self._title}: {self.reason}"

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each problem: the rule, the field, what is wrong and what to do."""
        return tuple(f"{self._title}: {each}" for each in self.problems) or (str(self),)

    @property
    def _title(self) -> str:
        return f"policy {self.rule.name}{' (audit)' if self.rule.audit else ''}"


def applies(rule: Rule, subject: Subject) -> bool:
    """Return whether the rule applies to this job today."""
    if not in_scope(rule, subject.spec.tags):
        return False
    return not any(is_valid(each, subject.today) for each in exemptions(rule, subject))


def is_valid(exemption: Exemption, today: date) -> bool:
    """Return whether an exemption has neither expired nor been withdrawn."""
    return today <= exemption.until and not exemption.withdrawn_by


def in_scope(rule: Rule | NotificationChannel, tags: Mapping[str, str]) -> bool:
    """Return whether the rule or channel covers jobs with these tags. The submitter is one of the tags."""
    return all(name in tags and matches_tag(name, wanted, tags[name]) for name, wanted in rule.scope.items())


def exemptions(rule: Rule, subject: Subject) -> tuple[Exemption, ...]:
    """The rule's exemptions for this job or its submitter, also those that expired or were withdrawn.

    Matched by the job's id, because any submitter may choose any name. A clone of an external job is matched by the
    name of the job that it continues. An approval covers external jobs only where it was given for one.
    """
    ids = {subject.job, subject.spec.name} if subject.is_external else {subject.job}
    submitter = subject.spec.tags.get(SUBMITTER_TAG)
    return tuple(
        each
        for each in rule.exempt
        if (each.job is not None and each.job in ids and (not each.approved_by or each.external == subject.is_external))
        or (each.submitter is not None and submitter is not None and is_submitter(each.submitter, submitter))
    )


def without_pending(policy: Policy, findings: Iterable[RuleFinding]) -> Policy:
    """The policy without the rules that the job waits for an approval of: as if it were given."""
    pending = {finding.rule.name for finding in findings if finding.needs_approval}
    return (
        replace(policy, rules=tuple(rule for rule in policy.rules if rule.name not in pending)) if pending else policy
    )


def approval_text(rule: Rule, job: str | None) -> str:
    """The advice for a job that a rule with approvers holds up; empty for a rule without."""
    if not rule.approvers:
        return ""
    command = f"`stoker policy approve {job or 'JOB'} --rule {rule.name} --why …`"
    return f"; it waits for an approval by {first_names(rule.approvers)}: {command}"


def enforced_rules(policy: Policy, subject: Subject, about: str) -> tuple[Rule, ...]:
    """The rules about a subject that apply to this job and are not only audited."""
    return tuple(rule for rule in policy.about(about) if not rule.audit and applies(rule, subject))


def names_submitters(policy: Policy) -> bool:
    """Return whether any rule depends on the submitter."""
    return any(
        SUBMITTER_TAG in rule.scope
        or (rule.deny is not None and SUBMITTER_TAG in rule.deny.tags)
        or any(each.submitter is not None for each in rule.exempt)
        or any(SUBMITTER_TAG in tags_of_groups(each.by) for each in (rule.budget, rule.concurrent) if each)
        for rule in policy.rules
    )


def broken(policy: Policy, subject: Subject, offerings: Iterable[Offering] | None = None) -> tuple[RuleFinding, ...]:
    """Find the rules that the job's spec breaks. `offerings` are those that fit the spec; None: unknown, which breaks
    no rule."""
    known = None if offerings is None else tuple(offerings)
    found = []
    checked = CheckedJob(subject.spec, subject.job, subject.is_external, known)
    for rule in policy.rules:
        problems = problems_of(rule, checked) if applies(rule, subject) else ()
        if problems:
            lapsed = _lapsed(rule, subject)
            problems = tuple(replace(each, text=each.text + lapsed) for each in problems)
            found.append(RuleFinding(rule, "; ".join(each.text for each in problems), problems))
    if known and not any(finding.refuses and finding.about_machines for finding in found):
        found += _conflicting(_about_machines(policy, subject), known)
    return tuple(found)


def allowed(policy: Policy, subject: Subject, offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    """The offerings that no rule forbids."""
    rules = _about_machines(policy, subject)
    return tuple(each for each in offerings if not any(forbids(rule, each) for rule in rules))


@dataclass(frozen=True)
class PolicyJudgement:
    """The rules that a job breaks, and the offerings that no rule forbids to it."""

    findings: tuple[RuleFinding, ...]
    allowed: tuple[Offering, ...]
    # True if any rule depends on the submitter, whose name may be uncertain.
    names_submitters: bool


def judge(policy: Policy, subject: Subject, offerings: tuple[Offering, ...]) -> PolicyJudgement:
    """Judge a job by every rule. `offerings` are those that fit the spec."""
    return PolicyJudgement(
        broken(policy, subject, offerings), allowed(policy, subject, offerings), names_submitters(policy)
    )


def _about_machines(policy: Policy, subject: Subject) -> list[Rule]:
    """The rules that forbid offerings to this job."""
    return [rule for rule in policy.rules if rule.forbids_machines and applies(rule, subject)]


def _conflicting(rules: list[Rule], offerings: tuple[Offering, ...]) -> list[RuleFinding]:
    """Report rules that each allow some offerings, and together none."""
    restricting = [rule for rule in rules if any(forbids(rule, offering) for offering in offerings)]
    if not all(any(forbids(rule, offering) for rule in restricting) for offering in offerings):
        return []
    parts = "; ".join(map(allows_text, restricting))
    return [RuleFinding(restricting[0], f"together these rules allow nothing that would do: {parts}")]


def _lapsed(rule: Rule, subject: Subject) -> str:
    """Mention an exemption that was withdrawn or has expired: of several, the one that would have lasted longest."""
    found = max(exemptions(rule, subject), key=lambda each: each.until, default=None)
    if found is None:
        return ""
    return f"; {withdrawn_text(found)}" if found.withdrawn_by else f"; its exemption ended on {found.until}"


def withdrawn_text(exemption: Exemption) -> str:
    """The withdrawal of an approval, for people."""
    by, again = exemption.withdrawn_by, exemption.approved_by == exemption.withdrawn_by
    whose = "approval" if again else f"approval by {exemption.approved_by}"
    return f"its {whose} until {exemption.until} was withdrawn by {by}: {exemption.withdrawn_why}"


def reclaimed_too_often(
    policy: Policy, subject: Subject, offerings: Iterable[Offering], market: MarketHistory, now: datetime
) -> tuple[tuple[Offering, RuleFinding], ...]:
    """The spot offerings that were reclaimed too often, with the rule. Offerings without observations are not
    included."""
    found = []
    rules = [rule for rule in policy.about("market") if applies(rule, subject)]
    for offering in offerings if rules else ():
        for rule in rules:
            assert rule.market is not None
            seen = market.lately(offering, now, rule.market.over_s).reclaims if offering.spot else 0
            if seen > rule.market.most_reclaims:
                what = f"{offering.title} was taken back {seen} times in {span_text(rule.market.over_s)}"
                found.append((offering, RuleFinding(rule, what)))
    return tuple(found)


@dataclass(frozen=True)
class EffectiveLimits:
    """A spec with the policy's limits applied, and the name of the rule behind each field that the policy set.

    Usage from before the job was last opened is already subtracted from the policy's limits, so that all limits count
    from there.
    """

    spec: Spec
    by_rule: Mapping[str, str]
    used: PriorUsage = PriorUsage()

    def named(self, field: str) -> str:
        """The source of a limit for messages: `limits.max_cost`, or `policy max-cost`."""
        rule = self.by_rule.get(field)
        section = "retry" if field in ("spot_wait", "on_demand_after", "resumes") else "limits"
        return f"{section}.{field}" if rule is None else f"policy {rule}"

    def used_of(self, field: str) -> float:
        """Prior usage that counts against this limit: seconds or dollars."""
        used = {"max_runtime": self.used.trained_s, "max_cost": self.used.dollars}
        return used.get(field, 0.0) if field in self.by_rule else 0.0

    def value(self, field: str) -> float | None:
        """The limit as it was set: seconds, dollars or a count."""
        limits, retry = self.spec.limits, self.spec.retry
        found: dict[str, float | None] = {
            "max_runtime": limits.max_runtime_s,
            "max_wait": limits.max_wait_s,
            "max_cost": limits.max_cost,
            "spot_wait": retry.spot_wait_s,
            "on_demand_after": retry.on_demand_after,
            "resumes": retry.resumes,
        }
        left = found[field]
        return None if left is None else left + self.used_of(field)

    def rule(self, field: str) -> str:
        rule = self.by_rule.get(field)
        return field if rule is None else f"{PREFIX}{rule}"


def effective_limits(policy: Policy, subject: Subject) -> EffectiveLimits:
    """Combine the job's own limits with the policy's: the tightest counts, and the policy's retry rules replace the
    job's.

    The job's own limits start from zero when a person resumes it. The policy's do not, so that a resume brings no more
    time or money.
    """
    limits, retry, resources, used = subject.spec.limits, subject.spec.retry, subject.spec.resources, subject.used
    by_rule: dict[str, str] = {}
    for field, gone in (("max_runtime_s", used.trained_s), ("max_wait_s", 0.0), ("max_cost", used.dollars)):
        for rule in enforced_rules(policy, subject, field):
            most, own = getattr(rule, field) - gone, getattr(limits, field)
            if rule.action == "stop" and (own is None or most < own):
                limits = replace(limits, **{field: most})
                by_rule[field.removesuffix("_s")] = rule.name
    for rule in enforced_rules(policy, subject, "max_runtime_s"):
        if rule.action != "warn" and rule.max_runtime_s is not None:
            # A failed machine is held no longer than the policy allows training.
            retry = replace(retry, hold_on_failure_s=min(retry.hold_on_failure_s, rule.max_runtime_s))
    for rule in enforced_rules(policy, subject, "max_wait_s"):
        own = spot.spot_only_s(replace(subject.spec, retry=retry))
        if rule.action == "on-demand" and rule.max_wait_s is not None and (own is None or rule.max_wait_s < own):
            retry = replace(retry, spot_wait_s=rule.max_wait_s)
            by_rule["spot_wait"] = rule.name
    for rule in enforced_rules(policy, subject, "resume"):
        assert rule.resume is not None
        retry = replace(retry, min_runtime_s=rule.resume.min_runtime_s, resumes=rule.resume.times)
        by_rule["resumes"] = rule.name
    for rule in enforced_rules(policy, subject, "spot"):
        assert rule.spot is not None
        retry = replace(retry, on_demand_after=rule.spot.on_demand_after, spot_again_s=rule.spot.back_after_s)
        if subject.spec.resources.spot != "never":
            by_rule["on_demand_after"] = rule.name
        if resources.spot == "only" and rule.spot.on_demand_after is not None:
            # A rule that gives up spot also applies to jobs that want only spot: they wait without limit until then.
            own_s = retry.spot_wait_s
            retry = replace(retry, spot_wait_s=math.inf if own_s is None else own_s)
            resources = replace(resources, spot="prefer")
    return EffectiveLimits(replace(subject.spec, limits=limits, retry=retry, resources=resources), by_rule, used)
