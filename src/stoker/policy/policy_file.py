"""Parse the policy file, as strictly as a job file: each mistake is one line with its place."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from stoker.core.costs import LONGEST_SPAN_S
from stoker.jobfile.field_table import public_name
from stoker.jobfile.parse import SectionReader
from stoker.jobfile.settings_tree import Layer, describe, read_layer, short
from stoker.model import channel_address, codec, usage_series
from stoker.model.errors import SpecError
from stoker.model.policy import SUBJECTS, DefaultsRule, NotificationChannel, Policy, Rule, SageMakerPolicy
from stoker.store.find_job import looks_like_id

# Far more than any policy needs. A governor reads the file in every pass.
MAX_BYTES = 256 * 1024
# The longest span of a market rule. Each day of it is another list to read before a job gets a machine.
MAX_MARKET_SPAN_S = 7 * 86400.0
# The evidence that agents report (`stoker.agent.health.exit_evidence`).
EVIDENCE = re.compile(r"oom|disk-full|xid:[0-9]+")
REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
# Makes the error for the section `path`, its field (empty: the section itself) and the problem.
_Wrong = Callable[[str, str, str], SpecError]


def parse_policy(data: bytes, source: str, *, version: int = 0) -> Policy:
    """Parse the text of a policy. Raises SpecError for the first mistake, with its place.

    `version` is 0 for a text that is being written, which is checked more strictly.
    """
    if len(data) > MAX_BYTES:
        raise SpecError(f"{source}: has {len(data)} bytes; a policy has at most {MAX_BYTES}")
    layer = read_layer(data, source, such_as="rules: [{max_nodes: 8}]")
    # A stored version is read as leniently as when it was written: an unreadable policy would stop all governors.
    written_now = version == 0
    if written_now and not layer.root.value:
        raise SpecError(f'{source}: is empty; to have no rules write "rules: []"')
    if written_now:
        _check_rules_not_blank(layer)
    _check_then(layer)
    reader = SectionReader(Policy, alone=True, units=written_now)
    policy: Policy = reader.section(Policy, layer.root, "")
    wrong = partial(_error_at, reader, layer)
    rules = tuple(_checked(rule, f"rules[{number}]", wrong) for number, rule in enumerate(policy.rules))
    if written_now:
        for number, rule in enumerate(rules):
            if policy.sagemaker is None:
                _check_ids(rule, f"rules[{number}]", wrong)
            _check_possible(rule, f"rules[{number}]", reader, wrong)
            _check_spans(rule, f"rules[{number}]", wrong)
    notify = _named_channels(policy.notify, wrong)
    if policy.sagemaker is not None:
        _check_regions(policy.sagemaker, wrong)
    seen: dict[str, int] = {}
    for number, rule in enumerate(rules):
        if rule.name in seen:
            problem = f"is called {rule.name}, as rules[{seen[rule.name]}] is; give it a name of its own"
            raise wrong(f"rules[{number}]", "name", problem)
        seen[rule.name] = number
    return replace(policy, rules=rules, notify=notify, digest=codec.digest(data), version=version)


def places_of_channels(text: str, source: str) -> tuple[str, ...]:
    """Where each channel's address is written, for messages: `policy.yaml:3: notify[0].to`."""
    top = read_layer(text, source).root.value
    node = top.get("notify") if isinstance(top, dict) else None
    if node is None or node.value is None:
        return ()
    found = []
    for number, each in enumerate(node.value if isinstance(node.value, tuple) else (node,)):
        to = each.value.get("to") if isinstance(each.value, dict) else None
        path = "notify" if each is node else f"notify[{number}]"
        found.append(f"{(to or each).origin}: {path}{'.to' if to else ''}")
    return tuple(found)


def _check_rules_not_blank(layer: Layer) -> None:
    """Refuse `rules:` with comments only: its author may believe that there are rules."""
    top = layer.root.value
    rules = top.get("rules") if isinstance(top, dict) else None
    if rules is not None and rules.value is None:
        raise rules.origin.error("rules", "has nothing in it; to have no rules write `rules: []`")


def _check_then(layer: Layer) -> None:
    """Check that `then` fits the rule's subject, before the generic reader lists the values of all subjects."""
    top = layer.root.value
    rules = top.get("rules") if isinstance(top, dict) else None
    for number, rule in enumerate(rules.value if rules is not None and isinstance(rules.value, tuple) else ()):
        then = rule.value.get("then") if isinstance(rule.value, dict) else None
        if then is None or then.value is None:
            continue
        subjects = [each for each in SUBJECTS if subject_key(each) in rule.value]  # type: ignore[operator]
        if len(subjects) == 1 and then.value not in SUBJECTS[subjects[0]]:
            what = short(then.value) if isinstance(then.value, str) else describe(then)
            problem = f"{what} cannot be what happens for {subject_key(subjects[0])}; write {_one_of(subjects[0])}"
            raise then.origin.error(f"rules[{number}].then", problem)


def _one_of(subject: str) -> str:
    return " or ".join(SUBJECTS[subject])


def _named_channels(channels: tuple[NotificationChannel, ...], wrong: _Wrong) -> tuple[NotificationChannel, ...]:
    """The channels, each with a unique name. Several may share an address. Raises SpecError for a repeated name."""
    taken = {channel.name for channel in channels if channel.name}
    found: list[NotificationChannel] = []
    for number, channel in enumerate(channels):
        path = f"notify[{number}]"
        if channel.name and any(channel.name == other.name for other in found):
            raise wrong(path, "name", f"{channel.name} is another's name already")
        name = channel.name or _unused_name(channel_address.default_name(channel.to), taken)
        taken.add(name)
        found.append(replace(channel, name=name))
    return tuple(found)


def _unused_name(name: str, taken: set[str]) -> str:
    numbers = itertools.chain(("",), (f"-{number}" for number in itertools.count(2)))
    return next(f"{name}{number}" for number in numbers if f"{name}{number}" not in taken)


def subject_key(subject: str) -> str:
    """The subject as written in the file, such as `max_runtime`."""
    form = next(each.metadata["form"] for each in dataclasses.fields(Rule) if each.name == subject)
    return public_name(subject, form)


def _checked(rule: Rule, path: str, wrong: _Wrong) -> Rule:
    """The rule with its name. Raises SpecError for mistakes that no single field shows."""
    found = [subject for subject in SUBJECTS if getattr(rule, subject) is not None]
    if not found:
        names = ", ".join(map(subject_key, SUBJECTS))
        raise wrong(path, "", f"says nothing; it is about one of {names}")
    if len(found) > 1:
        names = " and ".join(map(subject_key, found))
        raise wrong(path, subject_key(found[1]), f"is about {names}; make them two rules")
    (subject,) = found
    _check_parts(rule, path, wrong)
    for number, each in enumerate(rule.exempt):
        if (each.job is None) == (each.submitter is None):
            raise wrong(f"{path}.except[{number}]", "job", "has one of job and submitter")
    return rule if rule.name else replace(rule, name=subject_key(subject).replace("_", "-"))


def _check_parts(rule: Rule, path: str, wrong: _Wrong) -> None:
    """Check conditions between the fields of one subject."""
    if rule.metric is not None:
        metric = rule.metric
        ways = [metric.nan, metric.above is not None, metric.below is not None, metric.no_improvement_s is not None]
        if sum(ways) != 1:
            raise wrong(path, "metric", "has one of nan, above, below and no_improvement")
    if rule.failure is not None:
        conditions = [rule.failure.log, rule.failure.exit_code, rule.failure.evidence]
        if all(each is None for each in conditions):
            raise wrong(path, "failure", "has at least one of log, exit_code and evidence")
    if rule.deny is not None and not (rule.deny.about_machines or rule.deny.images or rule.deny.tags):
        raise wrong(path, "deny", "forbids nothing; name providers, regions, machines, images or tags")
    if rule.defaults is not None and rule.defaults == DefaultsRule():
        raise wrong(path, "defaults", "fills in nothing; name tags, spot, max_runtime, max_cost or max_wait")
    if rule.concurrent is not None and rule.concurrent.gpus is None and rule.concurrent.nodes is None:
        raise wrong(path, "concurrent", "has at least one of gpus and nodes")
    if rule.stall is not None and rule.stall.span_s > LONGEST_SPAN_S:
        raise wrong(f"{path}.stall", "windows", "together are more than 10 years; make them fewer")
    if rule.market is not None and rule.market.over_s > MAX_MARKET_SPAN_S:
        raise wrong(f"{path}.market", "over", "is more than a week, the longest span that is looked back on")
    for subject in ("providers", "regions", "machines", "images", "tags"):
        if getattr(rule, subject) is not None and not getattr(rule, subject):
            raise wrong(path, subject, "allows nothing; leave the rule out, or name what is allowed")


def _check_ids(rule: Rule, path: str, wrong: _Wrong) -> None:
    """Refuse job names in `except`, which must be ids. Not called where SageMaker's training jobs are governed: their
    names are their ids, and look the same."""
    for number, each in enumerate(rule.exempt):
        if each.job is not None and not looks_like_id(each.job):
            problem = (
                f"{short(each.job)} is a name, which any submitter can give to a job; write the id, such as "
                f"{short(each.job)}-7f3k, or name the submitter"
            )
            raise wrong(f"{path}.except[{number}]", "job", problem)


def _check_possible(rule: Rule, path: str, reader: SectionReader, wrong: _Wrong) -> None:
    """Refuse conditions that are valid and can never be true."""
    failure = rule.failure
    if failure is not None and failure.exit_code is not None and not 1 <= failure.exit_code <= 255:
        problem = f"{failure.exit_code} is no exit code of a failure; write one from 1 to 255"
        raise wrong(f"{path}.failure", "exit_code", problem)
    if failure is not None and failure.evidence is not None and EVIDENCE.fullmatch(failure.evidence) is None:
        problem = f"{short(failure.evidence)} is nothing that machines report; write oom, disk-full, or xid:79"
        raise wrong(f"{path}.failure", "evidence", problem)
    if rule.metric is not None and rule.metric.no_improvement_s is None and f"{path}.metric.goal" in reader.origins:
        raise wrong(f"{path}.metric", "goal", "is for no_improvement alone; leave it out")


def _check_spans(rule: Rule, path: str, wrong: _Wrong) -> None:
    """Refuse spans that machines do not record: such a rule could never take effect."""
    if rule.stall is not None:
        stall, path = rule.stall, f"{path}.stall"
        if stall.window_s < usage_series.FINEST_S:
            raise wrong(path, "window", "is less than a second, and governors do not look so often")
        if stall.windows > usage_series.MOST_WINDOWS:
            raise wrong(path, "windows", f"are more than {usage_series.MOST_WINDOWS}; make them longer")
        if stall.span_s > usage_series.LONGEST_S:
            raise wrong(path, "windows", "together are more than 24 h, which no machine remembers")
        _check_warning(stall.warn_before_s, path, wrong)
    if rule.min_gpu_utilization is not None:
        over_s, path = rule.min_gpu_utilization.over_s, f"{path}.min_gpu_utilization"
        if over_s < usage_series.FINEST_S:
            raise wrong(path, "over", "is less than a second, and governors do not look so often")
        if over_s > usage_series.LONGEST_S:
            raise wrong(path, "over", "is more than 24 h, which no machine remembers")
        _check_warning(rule.min_gpu_utilization.warn_before_s, path, wrong)


def _check_warning(warn_before_s: float, path: str, wrong: _Wrong) -> None:
    if warn_before_s > usage_series.LONGEST_S:
        raise wrong(path, "warn_before", "is more than 24 h; with `then: warn` nothing is ever ended")


def _check_regions(wanted: SageMakerPolicy, wrong: _Wrong) -> None:
    """Check that the regions are names, not patterns: each is queried by name."""
    if not wanted.regions:
        raise wrong("sagemaker", "regions", "names none; leave `sagemaker` out, or name some")
    for region in wanted.regions:
        if REGION.fullmatch(region) is None:
            raise wrong("sagemaker", "regions", f"{region} is no region; write one such as us-east-1")


def _error_at(reader: SectionReader, layer: Layer, path: str, key: str, problem: str) -> SpecError:
    dotted = f"{path}.{key}" if key else path
    near = [origin for name, origin in reader.origins.items() if name == dotted or name.startswith(f"{path}.")]
    exact = reader.origins.get(dotted)
    origin = exact or (near[0] if near else layer.root.origin)
    return origin.error(dotted, problem)
