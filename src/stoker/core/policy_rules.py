"""Find the policy rules that a job breaks, and its effective limits. Pure: clients and governors get the same
answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from fnmatch import fnmatchcase

from stoker.core import spot
from stoker.core.market import MarketHistory
from stoker.core.name_list import first_names
from stoker.core.safe_regex import compile_pattern
from stoker.core.tag_groups import tags_of_groups
from stoker.model.durations import span_text
from stoker.model.offerings import Offering
from stoker.model.policy import ANY, Channel, Exemption, Policy, Rule, TagValues
from stoker.model.spec import LOCAL_SUBMITTER, SUBMITTER_TAG, Spec

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
    """A broken rule, and how it is broken."""

    rule: Rule
    reason: str

    @property
    def enforced(self) -> bool:
        """True if the rule is enforced, and not only audited."""
        return not self.rule.audit

    @property
    def refuses(self) -> bool:
        return self.enforced and self.rule.action == "refuse"

    @property
    def code(self) -> str:
        """Name of the rule in decisions."""
        return f"{PREFIX}{self.rule.name}"

    def __str__(self) -> str:
        mode = " (audit)" if self.rule.audit else ""
        return f"policy {self.rule.name}{mode}: {self.reason}"


def applies(rule: Rule, subject: Subject) -> bool:
    """Return whether the rule applies to this job today."""
    if not in_scope(rule, subject.spec.tags):
        return False
    return not any(subject.today <= each.until for each in exemptions(rule, subject))


def in_scope(rule: Rule | Channel, tags: Mapping[str, str]) -> bool:
    """Return whether the rule or channel covers jobs with these tags. The submitter is one of the tags."""
    return all(name in tags and matches_tag(name, wanted, tags[name]) for name, wanted in rule.scope.items())


def exemptions(rule: Rule, subject: Subject) -> tuple[Exemption, ...]:
    """The rule's exemptions for this job or its submitter, expired or not.

    Matched by the job's id, because any submitter may choose any name. A clone of an external job is matched by the
    name of the job that it continues.
    """
    ids = {subject.job, subject.spec.name} if subject.is_external else {subject.job}
    submitter = subject.spec.tags.get(SUBMITTER_TAG)
    return tuple(
        each
        for each in rule.exempt
        if (each.job is not None and each.job in ids)
        or (each.submitter is not None and submitter is not None and is_submitter(each.submitter, submitter))
    )


def enforced_rules(policy: Policy, subject: Subject, about: str) -> tuple[Rule, ...]:
    """The rules about a subject that apply to this job and are not only audited."""
    return tuple(rule for rule in policy.about(about) if not rule.audit and applies(rule, subject))


def matches_value(wanted: TagValues, value: str) -> bool:
    """Return whether a tag's value is one of the wanted ones."""
    return any(each == ANY or _matches(each, value) for each in wanted)


def matches_tag(name: str, wanted: TagValues, value: str) -> bool:
    """Return whether the value of this tag is one of the wanted ones. Submitters may be named with `*`."""
    if name == SUBMITTER_TAG:
        return any(each == ANY or is_submitter(each, value) for each in wanted)
    return matches_value(wanted, value)


def is_submitter(wanted: str, value: str) -> bool:
    """Return whether a submitter matches: by name, with `*` for any characters, or by a pattern between slashes.

    `*@corp.com` is not the user of a computer that is called so: only `*` alone and names that begin with `os:` are.
    """
    if value.startswith(LOCAL_SUBMITTER) and wanted != "*" and not wanted.lstrip("/^").startswith(LOCAL_SUBMITTER):
        return False
    return _matches(wanted, value) or fnmatchcase(value, wanted)


def names_submitters(policy: Policy) -> bool:
    """Return whether any rule depends on the submitter."""
    return any(
        SUBMITTER_TAG in rule.scope
        or any(each.submitter is not None for each in rule.exempt)
        or any(SUBMITTER_TAG in tags_of_groups(each.by) for each in (rule.budget, rule.concurrent) if each)
        for rule in policy.rules
    )


def is_one_value(name: str, wanted: TagValues) -> bool:
    """Return whether exactly one value of this tag matches."""
    if len(wanted) != 1 or wanted[0] == ANY or _pattern(wanted[0]) is not None:
        return False
    return name != SUBMITTER_TAG or not set(wanted[0]) & set("*?[")


def broken(policy: Policy, subject: Subject, offerings: Iterable[Offering] | None = None) -> tuple[RuleFinding, ...]:
    """Find the rules that the job's spec breaks. `offerings` are those that fit the spec; None: unknown, which breaks
    no rule."""
    known = None if offerings is None else tuple(offerings)
    found = []
    for rule in policy.rules:
        if applies(rule, subject):
            reason = _reason(rule, subject, known)
            if reason is not None:
                found.append(RuleFinding(rule, reason + _lapsed(rule, subject)))
    if known and not any(finding.refuses and finding.rule.about_machines for finding in found):
        found += _conflicting(_about_machines(policy, subject), known)
    return tuple(found)


def allowed(policy: Policy, subject: Subject, offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    """The offerings that no rule forbids."""
    rules = _about_machines(policy, subject)
    return tuple(each for each in offerings if not any(_forbids(rule, each) for rule in rules))


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
    restricting = [rule for rule in rules if any(_forbids(rule, offering) for offering in offerings)]
    if not all(any(_forbids(rule, offering) for rule in restricting) for offering in offerings):
        return []
    parts = []
    for rule in restricting:
        names = rule.providers or rule.regions or rule.machines or ()
        parts.append(f"{rule.name} allows {first_names(names)}")
    return [RuleFinding(restricting[0], f"together these rules allow nothing that would do: {'; '.join(parts)}")]


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


# ── Rule by rule ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _lapsed(rule: Rule, subject: Subject) -> str:
    """Mention an expired exemption."""
    ended = [each.until for each in exemptions(rule, subject)]
    return f"; its exemption ended on {max(ended)}" if ended else ""


def _reason(rule: Rule, subject: Subject, offerings: tuple[Offering, ...] | None) -> str | None:
    """How the rule is broken; None if it is not, or that is not known yet."""
    spec = subject.spec
    if rule.tags is not None:
        return _tags(rule.tags, subject)
    if rule.images is not None:
        container = spec.environment.container
        named = [name for name in (spec.resources.image, container.image if container else None) if name is not None]
        other = [name for name in named if not _any(rule.images, name)]
        return f"the image {other[0]} is not allowed; use {first_names(rule.images)}" if other else None
    if rule.max_nodes is not None and spec.nodes > rule.max_nodes:
        return f"{spec.nodes} nodes are more than {rule.max_nodes}; ask for fewer"
    if rule.max_retries is not None and spec.retry.user_errors > rule.max_retries:
        return f"retry.user_errors: {spec.retry.user_errors} is more than {rule.max_retries}"
    if rule.max_runtime_s is not None and rule.action == "refuse":
        return _too_much("limits.max_runtime", spec.limits.max_runtime_s, rule.max_runtime_s, span_text)
    if rule.max_cost is not None and rule.action == "refuse":
        return _too_much("limits.max_cost", spec.limits.max_cost, rule.max_cost, lambda amount: f"${amount:g}")
    if offerings:
        other_than = [offering for offering in offerings if _forbids(rule, offering)]
        if len(other_than) == len(offerings):
            names = first_names(sorted({_restricted_name(rule, offering) for offering in other_than}))
            may = rule.providers or rule.regions or rule.machines or ()
            return f"{names} may not be used; allowed is {first_names(may)}"
    return None


def _tags(wanted: Mapping[str, TagValues], subject: Subject) -> str | None:
    tags, job = subject.spec.tags, subject.job
    missing = [name for name in wanted if not tags.get(name)]
    if missing:
        given = " ".join(f"--set tags.{name}=…" for name in missing)
        what, them = f"tags.{missing[0]} is missing", "it"
        if len(missing) > 1:
            what, them = f"tags {', '.join(missing[:-1])} and {missing[-1]} are missing", "them"
        if subject.is_external:
            return f"{what}; start it with {'that tag' if len(missing) == 1 else 'those tags'}"
        if job is not None:
            return f"{what}; `stoker clone {job} {given}` has {them}"  # A submitted spec never changes.
        return f"{what}; add {them} to the job file, or give {given}"
    for name, values in wanted.items():
        if not matches_value(values, tags[name]):
            return f"tags.{name}: {tags[name]} is not allowed; write {' or '.join(map(_advice, values))}"
    return None


def _advice(wanted: str) -> str:
    """The text to write for a wanted value."""
    return f"something that matches {wanted}" if _pattern(wanted) is not None else wanted


def _too_much(field: str, own: float | None, most: float, text: Callable[[float], str]) -> str | None:
    if own is None:
        return f"{field} is missing; set it to at most {text(most)}"
    return f"{field}: {text(own)} is more than {text(most)}" if own > most else None


def _forbids(rule: Rule, offering: Offering) -> bool:
    name = _restricted_name(rule, offering)
    patterns = rule.providers or rule.regions or rule.machines
    # A provider without regions breaks no rule about regions.
    return patterns is not None and name != "" and not _any(patterns, name)


def _restricted_name(rule: Rule, offering: Offering) -> str:
    if rule.providers is not None:
        return offering.provider
    if rule.regions is not None:
        return offering.region or ""
    return offering.machine if rule.machines is not None else ""


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _matches(wanted: str, value: str) -> bool:
    pattern = _pattern(wanted)
    return wanted == value if pattern is None else compile_pattern(pattern).fullmatch(value) is not None


def _pattern(wanted: str) -> str | None:
    """The pattern between slashes, if the text is one."""
    return wanted[1:-1] if len(wanted) > 1 and wanted[0] == wanted[-1] == "/" else None
