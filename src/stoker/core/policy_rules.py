"""Which rules of the house a job breaks. Pure: the same for whoever submits a job and for whoever governs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from fnmatch import fnmatchcase

from stoker.core import spot
from stoker.core.market import Market
from stoker.core.safe_regex import compile_pattern
from stoker.model.durations import span_text
from stoker.model.offerings import Offering
from stoker.model.policy import ANY, Channel, Exemption, House, Rule, Wanted
from stoker.model.spec import SUBMITTER, Spec

# Before the name of a rule of the house, in decisions.
PREFIX = "policy:"
_MOST_NAMED = 3


@dataclass(frozen=True)
class Used:
    """What a job used up before it was last opened: it counts against the house's bounds, and not against its own."""

    dollars: float = 0.0
    trained_s: float = 0.0


@dataclass(frozen=True)
class Subject:
    """Whom a rule is held against. `job` is None before it has an id. `others`: it was started without Stoker, which
    cannot start another like it."""

    spec: Spec
    today: date
    job: str | None = None
    used: Used = Used()
    others: bool = False


@dataclass(frozen=True)
class Finding:
    """A rule that is broken, and how, in words."""

    rule: Rule
    reason: str

    @property
    def counts(self) -> bool:
        """Whether anything happens."""
        return not self.rule.audit

    @property
    def refuses(self) -> bool:
        return self.counts and self.rule.action == "refuse"

    @property
    def code(self) -> str:
        """What decisions call it."""
        return f"{PREFIX}{self.rule.name}"

    def __str__(self) -> str:
        mode = " (audit)" if self.rule.audit else ""
        return f"policy {self.rule.name}{mode}: {self.reason}"


def applies(rule: Rule, subject: Subject) -> bool:
    """Whether the rule says anything to this job today."""
    if not in_scope(rule, subject.spec.tags):
        return False
    return not any(subject.today <= each.until for each in exemptions(rule, subject))


def in_scope(rule: Rule | Channel, tags: Mapping[str, str]) -> bool:
    """Whether the rule or channel is about jobs with these tags. The submitter is one of them."""
    return all(name in tags and fits_tag(name, wanted, tags[name]) for name, wanted in rule.scope.items())


def exemptions(rule: Rule, subject: Subject) -> tuple[Exemption, ...]:
    """What the rule says of this very job or its submitter, whether that is over or not.

    By the job's id: a name is what any submitter may choose. A training job of SageMaker is known by that of the job
    that it continues.
    """
    ids = {subject.job, subject.spec.name} if subject.others else {subject.job}
    submitter = subject.spec.tags.get(SUBMITTER)
    return tuple(
        each
        for each in rule.exempt
        if (each.job is not None and each.job in ids)
        or (each.submitter is not None and submitter is not None and is_submitter(each.submitter, submitter))
    )


def that_count(house: House, subject: Subject, about: str) -> tuple[Rule, ...]:
    """The rules about something that are about this job, and not only watched."""
    return tuple(rule for rule in house.about(about) if not rule.audit and applies(rule, subject))


def fits(wanted: Wanted, value: str) -> bool:
    """Whether a tag's value is one of those."""
    return any(each == ANY or _matches(each, value) for each in wanted)


def fits_tag(name: str, wanted: Wanted, value: str) -> bool:
    """Whether the value of this tag is one of those. Submitters may be named with `*`."""
    if name == SUBMITTER:
        return any(each == ANY or is_submitter(each, value) for each in wanted)
    return fits(wanted, value)


def is_submitter(wanted: str, value: str) -> bool:
    """Whether a submitter is meant: by name, with `*` for any characters, or by a pattern between slashes."""
    return _matches(wanted, value) or fnmatchcase(value, wanted)


def names_submitters(house: House) -> bool:
    """Whether it matters to any rule who submits."""
    return any(
        SUBMITTER in rule.scope
        or any(each.submitter is not None for each in rule.exempt)
        or (rule.budget is not None and rule.budget.by == SUBMITTER)
        for rule in house.rules
    )


def is_one_value(name: str, wanted: Wanted) -> bool:
    """Whether nothing but one value of this tag will do."""
    if len(wanted) != 1 or wanted[0] == ANY or _pattern(wanted[0]) is not None:
        return False
    return name != SUBMITTER or not set(wanted[0]) & set("*?[")


def broken(house: House, subject: Subject, offerings: Iterable[Offering] | None = None) -> tuple[Finding, ...]:
    """The rules that the job breaks by what it asks for. `offerings` are those that would do; None: they are not
    known, which breaks nothing."""
    known = None if offerings is None else tuple(offerings)
    found = []
    for rule in house.rules:
        if applies(rule, subject):
            reason = _reason(rule, subject, known)
            if reason is not None:
                found.append(Finding(rule, reason + _lapsed(rule, subject)))
    if known and not any(finding.refuses and finding.rule.about_machines for finding in found):
        found += _at_odds(_about_machines(house, subject), known)
    return tuple(found)


def allowed(house: House, subject: Subject, offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    """The offerings that no rule forbids."""
    rules = _about_machines(house, subject)
    return tuple(each for each in offerings if not any(_forbids(rule, each) for rule in rules))


def _about_machines(house: House, subject: Subject) -> list[Rule]:
    """The rules that forbid machines to this job."""
    return [rule for rule in house.rules if rule.forbids_machines and applies(rule, subject)]


def _at_odds(rules: list[Rule], offerings: tuple[Offering, ...]) -> list[Finding]:
    """What rules come to that each allow something, and together nothing."""
    at_work = [rule for rule in rules if any(_forbids(rule, offering) for offering in offerings)]
    if not all(any(_forbids(rule, offering) for rule in at_work) for offering in offerings):
        return []
    told = [f"{rule.name} allows {_few(rule.providers or rule.regions or rule.machines or ())}" for rule in at_work]
    return [Finding(at_work[0], f"together these rules allow nothing that would do: {'; '.join(told)}")]


def taken_too_often(
    house: House, subject: Subject, offerings: Iterable[Offering], market: Market, now: datetime
) -> tuple[tuple[Offering, Finding], ...]:
    """The spot offerings that were taken back too often, and by which rule. What nobody saw was not taken back."""
    found = []
    rules = [rule for rule in house.about("market") if applies(rule, subject)]
    for offering in offerings if rules else ():
        for rule in rules:
            assert rule.market is not None
            seen = market.lately(offering, now, rule.market.over_s).reclaims if offering.spot else 0
            if seen > rule.market.most_reclaims:
                what = f"{offering.title} was taken back {seen} times in {span_text(rule.market.over_s)}"
                found.append((offering, Finding(rule, what)))
    return tuple(found)


@dataclass(frozen=True)
class Bounded:
    """A spec with the house's bounds in it, and which of them are the house's: the name of the rule by the field's.

    What was `used` before the job was last opened is taken off the house's, so that all count from there.
    """

    spec: Spec
    by_rule: Mapping[str, str]
    used: Used = Used()

    def named(self, field: str) -> str:
        """Whose bound it is, in words: `limits.max_cost`, or `policy max-cost`."""
        rule = self.by_rule.get(field)
        section = "retry" if field in ("spot_wait", "on_demand_after", "resumes") else "limits"
        return f"{section}.{field}" if rule is None else f"policy {rule}"

    def used_of(self, field: str) -> float:
        """What counts against this bound from before the job was last opened: seconds or dollars."""
        used = {"max_runtime": self.used.trained_s, "max_cost": self.used.dollars}
        return used.get(field, 0.0) if field in self.by_rule else 0.0

    def value(self, field: str) -> float | None:
        """The bound itself, as it was set: seconds, dollars or a count."""
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


def bounded(house: House, subject: Subject) -> Bounded:
    """The tightest of the job's own bounds and the house's; how it is retried is the house's where that says so.

    The job's own time and money count anew when a person resumes it. The house's do not: nobody gets more of them by
    asking again.
    """
    limits, retry, resources, used = subject.spec.limits, subject.spec.retry, subject.spec.resources, subject.used
    by_rule: dict[str, str] = {}
    for field, gone in (("max_runtime_s", used.trained_s), ("max_wait_s", 0.0), ("max_cost", used.dollars)):
        for rule in that_count(house, subject, field):
            most, own = getattr(rule, field) - gone, getattr(limits, field)
            if rule.action == "stop" and (own is None or most < own):
                limits = replace(limits, **{field: most})
                by_rule[field.removesuffix("_s")] = rule.name
    for rule in that_count(house, subject, "max_runtime_s"):
        if rule.action != "warn" and rule.max_runtime_s is not None:
            # A failed machine is held for a look, not for longer than the house lets anybody train.
            retry = replace(retry, hold_on_failure_s=min(retry.hold_on_failure_s, rule.max_runtime_s))
    for rule in that_count(house, subject, "max_wait_s"):
        own = spot.alone_s(replace(subject.spec, retry=retry))
        if rule.action == "on-demand" and rule.max_wait_s is not None and (own is None or rule.max_wait_s < own):
            retry = replace(retry, spot_wait_s=rule.max_wait_s)
            by_rule["spot_wait"] = rule.name
    for rule in that_count(house, subject, "resume"):
        assert rule.resume is not None
        retry = replace(retry, min_runtime_s=rule.resume.min_runtime_s, resumes=rule.resume.times)
        by_rule["resumes"] = rule.name
    for rule in that_count(house, subject, "spot"):
        assert rule.spot is not None
        retry = replace(retry, on_demand_after=rule.spot.on_demand_after, spot_again_s=rule.spot.back_after_s)
        if subject.spec.resources.spot != "never":
            by_rule["on_demand_after"] = rule.name
        if resources.spot == "only" and rule.spot.on_demand_after is not None:
            # A house that gives spot up does so for whoever wants nothing else, too: it waits for ever, until then.
            own_s = retry.spot_wait_s
            retry = replace(retry, spot_wait_s=math.inf if own_s is None else own_s)
            resources = replace(resources, spot="prefer")
    return Bounded(replace(subject.spec, limits=limits, retry=retry, resources=resources), by_rule, used)


# ── Rule by rule ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _lapsed(rule: Rule, subject: Subject) -> str:
    """A word for those who had an exemption, and wonder."""
    ended = [each.until for each in exemptions(rule, subject)]
    return f"; its exemption ended on {max(ended)}" if ended else ""


def _reason(rule: Rule, subject: Subject, offerings: tuple[Offering, ...] | None) -> str | None:
    """How the rule is broken; None where it is not, or nobody can know yet."""
    spec = subject.spec
    if rule.tags is not None:
        return _tags(rule.tags, subject)
    if rule.images is not None:
        container = spec.environment.container
        named = [name for name in (spec.resources.image, container.image if container else None) if name is not None]
        other = [name for name in named if not _any(rule.images, name)]
        return f"the image {other[0]} is not allowed; use {_few(rule.images)}" if other else None
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
            names = _few(sorted({_told(rule, offering) for offering in other_than}))
            may = rule.providers or rule.regions or rule.machines or ()
            return f"{names} may not be used; allowed is {_few(may)}"
    return None


def _tags(wanted: Mapping[str, Wanted], subject: Subject) -> str | None:
    tags, job = subject.spec.tags, subject.job
    missing = [name for name in wanted if not tags.get(name)]
    if missing:
        given = " ".join(f"--set tags.{name}=…" for name in missing)
        what, them = f"tags.{missing[0]} is missing", "it"
        if len(missing) > 1:
            what, them = f"tags {', '.join(missing[:-1])} and {missing[-1]} are missing", "them"
        if subject.others:
            return f"{what}; start it with {'that tag' if len(missing) == 1 else 'those tags'}"
        if job is not None:
            return f"{what}; `stoker clone {job} {given}` has {them}"  # What was submitted never changes.
        return f"{what}; add {them} to the job file, or give {given}"
    for name, values in wanted.items():
        if not fits(values, tags[name]):
            return f"tags.{name}: {tags[name]} is not allowed; write {' or '.join(map(_written, values))}"
    return None


def _written(wanted: str) -> str:
    """What to write, in words."""
    return f"something that matches {wanted}" if _pattern(wanted) is not None else wanted


def _too_much(field: str, own: float | None, most: float, told: Callable[[float], str]) -> str | None:
    if own is None:
        return f"{field} is missing; set it to at most {told(most)}"
    return f"{field}: {told(own)} is more than {told(most)}" if own > most else None


def _forbids(rule: Rule, offering: Offering) -> bool:
    told = _told(rule, offering)
    patterns = rule.providers or rule.regions or rule.machines
    # A provider without regions is nowhere that a rule could forbid.
    return patterns is not None and told != "" and not _any(patterns, told)


def _told(rule: Rule, offering: Offering) -> str:
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
    """What stands between slashes."""
    return wanted[1:-1] if len(wanted) > 1 and wanted[0] == wanted[-1] == "/" else None


def _few(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more
