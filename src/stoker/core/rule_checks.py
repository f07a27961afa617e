"""Check a job against one rule: each problem is one line that says what is wrong and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from stoker.core.name_list import first_names
from stoker.core.policy_patterns import matches_any, matches_tag, matches_value, regex_of
from stoker.model.durations import span_text
from stoker.model.offerings import Offering
from stoker.model.policy import DenyRule, Rule, TagValues
from stoker.model.spec import Spec


@dataclass(frozen=True)
class Problem:
    """One thing that a rule forbids. `field` is the job file's field, where the text does not begin with it.
    `about_machines`: it also concerns later attempts of a job that runs."""

    text: str
    field: str = ""
    about_machines: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.text}" if self.field else self.text


@dataclass(frozen=True)
class CheckedJob:
    """A job to check. `job` is None before it has an id. `offerings` fit the spec; None: unknown, which breaks no rule.
    `is_external`: an external job, which Stoker cannot submit again."""

    spec: Spec
    job: str | None
    is_external: bool
    offerings: tuple[Offering, ...] | None


def problems_of(rule: Rule, checked: CheckedJob) -> tuple[Problem, ...]:
    """Everything by which the job breaks the rule."""
    return tuple(_problems(rule, checked))


def forbids(rule: Rule, offering: Offering) -> bool:
    """Return whether a rule about machines forbids this offering."""
    if rule.deny is not None:
        return any(_is_one_of(denied, name) for denied, name, _ in _denied(rule.deny, offering))
    name, patterns = _restricted_name(rule, offering), _allowed(rule)
    # A provider without regions breaks no rule about regions.
    return patterns is not None and name != "" and not _is_one_of(patterns, name)


def allows_text(rule: Rule) -> str:
    """The names that a rule about machines allows or forbids, for people."""
    if rule.deny is not None:
        names = (*rule.deny.providers, *rule.deny.regions, *rule.deny.machines)
        return f"{rule.name} forbids {first_names(names)}"
    return f"{rule.name} allows {first_names(_allowed(rule) or ())}"


# ── Rule by rule ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _problems(rule: Rule, checked: CheckedJob) -> Iterator[Problem]:
    spec = checked.spec
    if rule.tags is not None:
        yield from _tags(rule.tags, checked)
    if rule.images is not None:
        for field, name in _images(spec):
            if not matches_any(rule.images, name):
                yield Problem(f"the image {name} is not allowed; use {first_names(rule.images)}", field)
    if rule.deny is not None:
        yield from _denials(rule.deny, checked)
    if rule.max_nodes is not None and spec.nodes > rule.max_nodes:
        yield Problem(f"{spec.nodes} nodes are more than {rule.max_nodes}; ask for fewer")
    if rule.max_retries is not None and spec.retry.user_errors > rule.max_retries:
        yield Problem(f"retry.user_errors: {spec.retry.user_errors} is more than {rule.max_retries}")
    if rule.max_runtime_s is not None and rule.action == "refuse":
        yield from _too_much("limits.max_runtime", spec.limits.max_runtime_s, rule.max_runtime_s, span_text)
    if rule.max_cost is not None and rule.action == "refuse":
        yield from _too_much("limits.max_cost", spec.limits.max_cost, rule.max_cost, lambda amount: f"${amount:g}")
    if checked.offerings and rule.about_machines:
        yield from _machines(rule, checked.offerings, "" if checked.is_external else "resources.")


def _machines(rule: Rule, offerings: tuple[Offering, ...], prefix: str) -> Iterator[Problem]:
    """The problem where a rule leaves no offering."""
    if not all(forbids(rule, offering) for offering in offerings):
        return
    if rule.deny is None:
        names = first_names(sorted({_restricted_name(rule, offering) for offering in offerings}))
        may = first_names(_allowed(rule) or ())
        yield Problem(f"{names} may not be used; allowed is {may}", f"{prefix}{_about(rule)}" if prefix else "", True)
        return
    found: dict[str, set[str]] = {}
    for offering in offerings:
        # The first list that forbids it says why.
        denied = _denied(rule.deny, offering)
        name, field = next((name, field) for words, name, field in denied if _is_one_of(words, name))
        found.setdefault(field, set()).add(name)
    for field, these in found.items():
        text = f"{first_names(sorted(these))} {'is' if len(these) == 1 else 'are'} forbidden; choose another"
        yield Problem(text, f"{prefix}{field}" if prefix else "", True)


def _denials(deny: DenyRule, checked: CheckedJob) -> Iterator[Problem]:
    """The images and tags that are forbidden."""
    for field, name in _images(checked.spec):
        if matches_any(deny.images, name):
            yield Problem(f"the image {name} is forbidden; use another", field)
    for tag, values in deny.tags.items():
        value = checked.spec.tags.get(tag)
        if value is not None and matches_tag(tag, values, value):
            yield Problem(f"tags.{tag}: {value} is forbidden; write another")


def _images(spec: Spec) -> Iterator[tuple[str, str]]:
    """The images that a job names, with their fields."""
    container = spec.environment.container
    if spec.resources.image is not None:
        yield "resources.image", spec.resources.image
    if container is not None:
        yield "environment.container.image", container.image


def _tags(wanted: Mapping[str, TagValues], checked: CheckedJob) -> Iterator[Problem]:
    tags, job = checked.spec.tags, checked.job
    missing = [name for name in wanted if not tags.get(name)]
    if missing:
        given = " ".join(f"--set tags.{name}=…" for name in missing)
        what, them = f"tags.{missing[0]} is missing", "it"
        if len(missing) > 1:
            what, them = f"tags {', '.join(missing[:-1])} and {missing[-1]} are missing", "them"
        if checked.is_external:
            yield Problem(f"{what}; start it with {'that tag' if len(missing) == 1 else 'those tags'}")
        elif job is not None:
            # A submitted spec never changes.
            yield Problem(f"{what}; `stoker clone {job} {given}` has {them}")
        else:
            yield Problem(f"{what}; add {them} to the job file, or give {given}")
    for name, values in wanted.items():
        if name not in missing and not matches_value(values, tags[name]):
            yield Problem(f"tags.{name}: {tags[name]} is not allowed; write {' or '.join(map(_advice, values))}")


def _advice(wanted: str) -> str:
    """The text to write for a wanted value."""
    return f"something that matches {wanted}" if regex_of(wanted) is not None else wanted


def _too_much(field: str, own: float | None, most: float, text: Callable[[float], str]) -> Iterator[Problem]:
    if own is None:
        yield Problem(f"{field} is missing; set it to at most {text(most)}")
    elif own > most:
        yield Problem(f"{field}: {text(own)} is more than {text(most)}")


def _allowed(rule: Rule) -> tuple[str, ...] | None:
    return rule.providers or rule.regions or rule.machines


def _about(rule: Rule) -> str:
    """The field below `resources` that the rule is about."""
    return "provider" if rule.providers is not None else "region" if rule.regions is not None else "machine"


def _restricted_name(rule: Rule, offering: Offering) -> str:
    if rule.providers is not None:
        return offering.provider
    if rule.regions is not None:
        return offering.region or ""
    return offering.machine if rule.machines is not None else ""


def _is_one_of(patterns: tuple[str, ...], name: str) -> bool:
    """Return whether a name matches. A region with its project (`vision-1/us-central1`) also matches without it."""
    return name != "" and (matches_any(patterns, name) or matches_any(patterns, name.rpartition("/")[2]))


def _denied(deny: DenyRule, offering: Offering) -> tuple[tuple[tuple[str, ...], str, str], ...]:
    """The lists of what is forbidden, each with the name of this offering that it is about, and the field."""
    return (
        (deny.providers, offering.provider, "provider"),
        (deny.regions, offering.region or "", "region"),
        (deny.machines, offering.machine, "machine"),
    )
