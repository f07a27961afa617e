"""Fill in what a job leaves open, by the rules `defaults` of the policy. Pure.

This happens once, at submission: a submitted spec never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from stoker.core.policy_rules import Subject, applies
from stoker.model.durations import span_text
from stoker.model.policy import DefaultsRule, Policy
from stoker.model.spec import Spec

LIMITS = frozenset({"limits.max_runtime", "limits.max_cost"})
_SPOT = {"only": "true", "never": "false", "prefer": "prefer"}


@dataclass(frozen=True)
class FilledSpec:
    """The spec with what the policy filled in. `fields` are dotted names; `lines` say what each rule filled in, and
    what an audited one would."""

    spec: Spec
    fields: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def fill_in(policy: Policy, subject: Subject, written: Set[str]) -> FilledSpec:
    """Fill in what the job leaves open. `written` are the dotted fields that the job, its user or the store set.

    The first rule that has a value counts. A rule in audit mode fills in nothing, and its line says what it would.
    """
    rules = [(rule, rule.defaults) for rule in policy.about("defaults") if rule.defaults and applies(rule, subject)]
    spec = subject.spec
    if not written & LIMITS and any(_limits(each) for rule, each in rules if not rule.audit):
        # The limit that Stoker gives to a job without any is not needed then.
        spec = replace(spec, limits=replace(spec.limits, max_runtime_s=None, max_cost=None))
    filled: set[str] = set()
    lines: list[str] = []
    for rule, defaults in rules:
        done = list(_filled(defaults, spec, written | filled))
        if not done:
            continue
        what = "policy {} (audit): would fill in {}" if rule.audit else "policy {}: filled in {}"
        lines.append(what.format(rule.name, ", ".join(f"{field}={text}" for field, text, _ in done)))
        if not rule.audit:
            spec = done[-1][2]
            filled |= {field for field, _, _ in done}
    return FilledSpec(spec, tuple(sorted(filled)), tuple(lines))


def _limits(defaults: DefaultsRule) -> bool:
    return defaults.max_runtime_s is not None or defaults.max_cost is not None


def _filled(defaults: DefaultsRule, spec: Spec, written: Set[str]) -> Iterator[tuple[str, str, Spec]]:
    """The fields that a rule fills in: name, text, and the spec with that field and those before it."""
    for name, value in defaults.tags.items():
        if name not in spec.tags:
            spec = replace(spec, tags={**spec.tags, name: value})
            yield f"tags.{name}", value, spec
    if defaults.spot is not None and "resources.spot" not in written:
        spec = replace(spec, resources=replace(spec.resources, spot=defaults.spot))
        yield "resources.spot", _SPOT[defaults.spot], spec
    for key in ("max_runtime_s", "max_cost", "max_wait_s"):
        value, field = getattr(defaults, key), f"limits.{key.removesuffix('_s')}"
        if value is not None and field not in written:
            spec = replace(spec, limits=replace(spec.limits, **{key: value}))
            yield field, f"${value:g}" if key == "max_cost" else span_text(value), spec
