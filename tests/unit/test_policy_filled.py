"""The policy fills in what a job leaves open: shown in the plan, and recorded in the log."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import store

from stoker.client import prepare_any, prepare_clone
from stoker.core.policy_defaults import fill_in
from stoker.core.policy_rules import Subject
from stoker.jobfile import UNLIMITED, Job, read_layer, resolve
from stoker.model.errors import SpecError
from stoker.model.policy import Policy
from stoker.model.spec import Limits, Spec
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.providers import registry
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.submit.policy_check import policy_filled
from stoker.submit.send import send
from tests.support.sim_data import EPOCH

__all__ = ["store"]
RULES = """rules:
- name: students
  defaults: {tags: {project: thesis}, max_runtime: 2h}
  for: {stage: student}
- defaults: {tags: {project: none, team: any}, spot: prefer, max_runtime: 12h, max_cost: 50, max_wait: 6h}
- tags: {project: any, team: any}
"""


def policy(text: str = RULES) -> Policy:
    return parse_policy(text.encode(), "p.yaml")


def filled(job: str, text: str = RULES, provider: str = "ec2") -> tuple[Spec, tuple[str, ...]]:
    given = f"run: 'true'\nname: x\nresources: {{provider: {provider}, region: us-east-1}}\n" + job
    resolved = resolve((read_layer(given, "job.yaml"),), registry.capabilities)
    found = policy_filled(policy(text), resolved.spec, resolved.written)
    return found.spec, found.lines


def test_all_that_is_open_is_filled_in() -> None:
    spec, (line,) = filled("")
    assert spec.tags == {"project": "none", "team": "any"} and spec.resources.spot == "prefer"
    limits = spec.limits
    assert (limits.max_runtime_s, limits.max_cost, limits.max_wait_s) == (12 * 3600, 50, 6 * 3600)
    assert line == (
        "policy defaults: filled in tags.project=none, tags.team=any, resources.spot=prefer, limits.max_runtime=12 h, "
        "limits.max_cost=$50, limits.max_wait=6 h"
    )


def test_what_the_job_says_stays() -> None:
    job = "tags: {team: nlp}\nlimits: {max_runtime: 30h, max_cost: null, max_wait: 1h}\n"
    spec, (line,) = filled(job + "retry: {user_errors: 1}\n")
    assert spec.tags == {"team": "nlp", "project": "none"} and spec.limits.max_runtime_s == 30 * 3600
    assert spec.limits.max_cost is None, "a null is an answer"
    assert line == "policy defaults: filled in tags.project=none, resources.spot=prefer"


def test_a_false_that_is_written_is_an_answer() -> None:
    given = "run: 'true'\nname: x\nresources: {provider: ec2, region: us-east-1, spot: false}\n"
    resolved = resolve((read_layer(given, "job.yaml"),), registry.capabilities)
    found = fill_in(policy(), Subject(resolved.spec, EPOCH.date()), resolved.written)
    assert found.spec.resources.spot == "never" and "resources.spot" not in found.fields


def test_the_first_rule_that_has_a_value_counts() -> None:
    spec, lines = filled("tags: {stage: student}\n")
    assert (spec.tags["project"], spec.limits.max_runtime_s, spec.limits.max_cost) == ("thesis", 7200, 50)
    assert lines[0] == "policy students: filled in tags.project=thesis, limits.max_runtime=2 h"


def test_the_limit_of_stoker_gives_way_to_that_of_the_policy() -> None:
    spec, _ = filled("", "rules: [{defaults: {max_cost: 9}}]")
    assert (spec.limits.max_cost, spec.limits.max_runtime_s) == (9, None)
    spec, _ = filled("", "rules: [{defaults: {max_wait: 9h}}]")
    assert (spec.limits.max_wait_s, spec.limits.max_runtime_s) == (9 * 3600, 24 * 3600)


def test_a_rule_in_audit_mode_fills_in_nothing() -> None:
    spec, (line,) = filled("", "rules: [{defaults: {max_cost: 9}, audit: true}]")
    assert spec.limits.max_cost is None and spec.limits.max_runtime_s == 24 * 3600
    assert line == "policy defaults (audit): would fill in limits.max_cost=$9"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults: {}", "rules[0].defaults: fills in nothing"),
        ("defaults: {spot: often}", "rules[0].defaults.spot: expected true, false or prefer"),
        ("defaults: {max_runtime: 12}", "rules[0].defaults.max_runtime: 12 is seconds; write 12s or 12h"),
        ("defaults: {tags: {submitter: jane}}", "rules[0].defaults.tags.submitter"),
        ("defaults: {nodes: 2}", "rules[0].defaults.nodes: unknown field"),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    with pytest.raises(SpecError) as error:
        policy(f"rules:\n- {{{text}}}\n")
    assert told in str(error.value)


def test_the_plan_and_the_log_say_so_and_the_rules_are_checked_after(store: Store) -> None:
    version = versions.write(store, RULES, "jane")
    with prepare_any(Job(run="true", name="x", resources={"local": {"price": 1}}), store) as prepared:
        assert prepared.notes[0].startswith("policy defaults: filled in tags.project=none, tags.team=any")
        assert UNLIMITED not in prepared.warnings
        job = send(prepared, store)
    first = next(iter(job_log.entries(store, job)))
    assert first.reason.startswith("submitted by ") and "; policy defaults: filled in tags.project=none" in first.reason
    assert first.policy == versions.policy_digest(version)
    state = job_log.read(store, job)
    assert state is not None and job_index.read_submission(store, state).spec.tags["team"] == "any"


def test_a_complete_spec_from_python_is_filled_in_too(store: Store) -> None:
    versions.write(store, RULES, "jane")
    with prepare_any(Spec(name="x", run="true", tags={"team": "nlp"}), store) as prepared:
        assert prepared.spec.tags["team"] == "nlp" and prepared.spec.tags["project"] == "none"


def test_the_answers_of_a_complete_spec_stay_though_they_are_the_defaults(store: Store) -> None:
    versions.write(store, RULES, "jane")
    with prepare_any(Spec(name="x", run="true", tags={"team": "nlp"}), store) as prepared:
        assert (prepared.spec.resources.spot, prepared.spec.limits.max_wait_s) == ("never", None)


def test_a_clone_keeps_what_its_original_answered(store: Store) -> None:
    versions.write(store, RULES, "jane")
    limits: dict[str, Any] = {"max_wait": None, "max_runtime": "30h", "max_cost": None}
    given = Job(run="true", name="x", tags={"team": "nlp"}, resources={"spot": False}, limits=limits)
    with prepare_any(given, store) as prepared:
        original = send(prepared, store)
    with prepare_clone(original, store) as found:
        assert (found.spec.resources.spot, found.spec.limits) == ("never", Limits(max_runtime_s=30 * 3600))
        assert found.filled == ()
    with prepare_clone(original, store, ["resources.spot=prefer", "limits.max_cost=7"]) as found:
        assert (found.spec.resources.spot, found.spec.limits.max_cost) == ("prefer", 7), "a change is an answer too"


def test_a_clone_of_a_job_without_limits_gets_those_of_the_policy(store: Store) -> None:
    with prepare_any(Job(run="true", name="x", tags={"team": "nlp"}), store) as prepared:
        original = send(prepared, store)
    versions.write(store, RULES, "jane")
    with prepare_clone(original, store) as found:
        assert found.spec.limits == Limits(max_runtime_s=12 * 3600, max_cost=50)
