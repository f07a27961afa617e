"""Which rules a job breaks: pure, and the same for whoever submits and whoever governs."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from stoker.core import audit
from stoker.core.policy_rules import Subject, allowed, applies, broken, effective_limits, names_submitters
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.resources import Resources
from stoker.model.spec import SUBMITTER_TAG, Container, Environment, Limits, Retry, Spec
from stoker.policy.policy_file import parse_policy

TODAY = date(2026, 11, 16)
SPEC = Spec(name="job", run="true", tags={"project": "vision", "team": "nlp"})
G5 = Offering("ec2", "g5.xlarge", "us-east-1a", spot=True, region="us-east-1", price=1.0)
P4 = Offering("ec2", "p4d.24xlarge", "eu-west-1b", spot=True, region="eu-west-1", price=30.0)
HERE = Offering("local", "local", "this-computer", spot=False)


def rules(*texts: str) -> Policy:
    return parse_policy(("rules:\n" + "".join(f"- {{{text}}}\n" for text in texts)).encode(), "p.yaml")


def subject(spec: Spec = SPEC, job: str | None = None) -> Subject:
    return Subject(spec, TODAY, job)


def told(policy: Policy, spec: Spec = SPEC, *offerings: Offering) -> list[str]:
    return [str(finding) for finding in broken(policy, subject(spec), offerings or None)]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("tags: {project: any}", None),
        ("tags: {project: [speech, vision]}", None),
        ("tags: {project: /v.*n/}", None),
        ("tags: {project: /vis/}", "tags.project: vision is not allowed; write something that matches /vis/"),
        ("tags: {project: speech}", "tags.project: vision is not allowed; write speech"),
        ("tags: {cost: any}", "tags.cost is missing; add it to the job file, or give --set tags.cost=…"),
        (
            "tags: {project: any, cost: any, who: any, ticket: any}",
            (
                "tags cost, who and ticket are missing; add them to the job file, or give "
                "--set tags.cost=… --set tags.who=… --set tags.ticket=…"
            ),
        ),
        ("max_nodes: 1", None),
        ("max_retries: 0", None),
        ("max_runtime: 1h, then: refuse", "limits.max_runtime is missing; set it to at most 1 h"),
        ("max_cost: 5, then: refuse", "limits.max_cost is missing; set it to at most $5"),
        ("max_cost: 5, then: warn", None),
        ("max_runtime: 1h, then: warn", None),
        ("max_cost: 5", None),
        ("images: [dlami/*]", None),
    ],
)
def test_what_a_job_asks_for(rule: str, reason: str | None) -> None:
    found = broken(rules(rule), subject())
    assert [finding.reason for finding in found] == ([] if reason is None else [reason])


def test_asking_for_too_much() -> None:
    spec = replace(
        SPEC,
        nodes=3,
        retry=Retry(user_errors=5),
        limits=Limits(max_runtime_s=7200, max_cost=9),
        resources=Resources(image="ami-1"),
        environment=Environment(container=Container("evil:1")),
    )
    policy = rules(
        *("max_nodes: 2", "max_retries: 4", "max_runtime: 1h, then: refuse", "max_cost: 5, then: refuse"),
        "images: [ami-*, good]",
    )
    assert told(policy, spec) == [
        "policy max-nodes: 3 nodes are more than 2; ask for fewer",
        "policy max-retries: retry.user_errors: 5 is more than 4",
        "policy max-runtime: limits.max_runtime: 2 h is more than 1 h",
        "policy max-cost: limits.max_cost: $9 is more than $5",
        "policy images: the image evil:1 is not allowed; use ami-*, good",
    ]


def test_machines_are_left_out_and_a_job_is_refused_when_none_is_left() -> None:
    policy = rules("machines: ['g5.*']", "regions: [us-*]", "providers: [ec2]")
    assert allowed(policy, subject(), (G5, P4, HERE)) == (G5,)
    assert told(policy, SPEC, G5, P4) == []
    assert told(policy, SPEC, P4) == [
        "policy machines: p4d.24xlarge may not be used; allowed is g5.*",
        "policy regions: eu-west-1 may not be used; allowed is us-*",
    ]
    assert told(rules("providers: [ec2]"), SPEC, HERE) == ["policy providers: local may not be used; allowed is ec2"]
    # What has no region is nowhere; what nobody knows breaks nothing.
    assert told(rules("regions: [us-*]"), SPEC, HERE) == told(policy, SPEC) == []
    assert allowed(rules("machines: [x], then: warn"), subject(), (G5,)) == (G5,)
    assert allowed(rules("machines: [x], audit: true"), subject(), (G5,)) == (G5,)


def test_for_whom_and_except_for_whom() -> None:
    (scoped,) = rules("max_nodes: 1, for: {team: [nlp]}").rules
    assert applies(scoped, subject())
    assert not applies(scoped, subject(replace(SPEC, tags={"team": "vision"})))
    assert not applies(scoped, subject(replace(SPEC, tags={})))
    mine = replace(SPEC, tags={SUBMITTER_TAG: "arn:aws:iam::111122223333:role/Trainers"})
    (exempted,) = rules("max_nodes: 1, except: [{submitter: '*:role/Trainers', until: 2026-11-16, why: x}]").rules
    assert not applies(exempted, subject(mine)) and applies(exempted, subject())
    assert applies(exempted, Subject(mine, date(2026, 11, 17)))
    (one,) = rules("max_nodes: 1, except: [{job: job-7f3k, until: 2026-12-01, why: x}]").rules
    assert applies(one, subject()) and applies(one, subject(job="job-8888"))
    assert not applies(one, subject(job="job-7f3k"))
    # Any submitter may call a job so.
    assert applies(one, subject(replace(SPEC, name="job-7f3k"), job="job-7f3k-8888"))


@pytest.mark.parametrize(
    ("rule", "matters"),
    [
        ("max_nodes: 1", False),
        ("max_nodes: 1, for: {submitter: jane}", True),
        ("max_nodes: 1, for: {team: nlp}", False),
        ("max_nodes: 1, except: [{submitter: jane, until: 2026-12-31, why: a demo}]", True),
        ("max_nodes: 1, except: [{job: job-1-7f3k, until: 2026-12-31, why: a demo}]", False),
        ("budget: {dollars: 10, period: day, by: submitter}", True),
        ("budget: {dollars: 10, period: day, by: team}", False),
    ],
)
def test_it_matters_which_person_submits_where_a_rule_asks_for_it(rule: str, matters: bool) -> None:
    assert names_submitters(rules(rule)) is matters
    assert names_submitters(rules("max_runtime: 1h", rule)) is matters


def test_a_rule_names_submitters() -> None:
    role = "arn:aws:iam::111122223333:role/Trainers"
    for wanted, held in (
        (role, True),
        ("arn:aws:iam::*:role/Train*", True),
        ("[nobody@example.com, '*:role/Trainers']", True),
        ("any", True),
        ("/arn:.*Trainers/", True),
        ("*:role/Others", False),
        ("Trainers", False),
    ):
        (rule,) = rules(f"max_nodes: 1, for: {{submitter: {wanted if wanted[0] == '[' else repr(wanted)}}}").rules
        assert applies(rule, subject(replace(SPEC, tags={SUBMITTER_TAG: role}))) is held, wanted
        # What has no submitter that is known, a training job of SageMaker, is not meant.
        assert not applies(rule, subject(replace(SPEC, tags={})))


def test_bounds_are_the_tightest() -> None:
    spec = replace(SPEC, limits=Limits(max_runtime_s=100, max_cost=50))
    policy = rules(
        *("max_runtime: 1h", "name: a, max_cost: 20", "name: b, max_cost: 10", "max_wait: 5m"),
        *("name: c, max_cost: 1, audit: true", "name: d, max_cost: 2, then: warn"),
        *("resume: {min_runtime: 1m, times: 1}", "spot: {on_demand_after: 1, back_after: 1h}"),
    )
    found = effective_limits(policy, subject(spec))
    assert found.spec.limits == Limits(max_runtime_s=100, max_cost=10, max_wait_s=300)
    assert found.by_rule == {"max_cost": "b", "max_wait": "max-wait", "resumes": "resume"}
    assert (found.named("max_cost"), found.rule("max_cost")) == ("policy b", "policy:b")
    assert (found.named("max_runtime"), found.rule("max_runtime")) == ("limits.max_runtime", "max_runtime")
    retry = found.spec.retry
    assert (retry.min_runtime_s, retry.resumes, retry.on_demand_after, retry.spot_again_s) == (60, 1, 1, 3600)
    told = audit.audited_limits(policy, subject(spec), "max_cost", "max_runtime_s")
    assert [(rule.name, bounds.value("max_cost")) for rule, bounds in told] == [("c", 1), ("d", 2)]
    assert effective_limits(Policy(), subject(spec)).spec == spec


def test_audit_and_warn_refuse_nothing() -> None:
    findings = broken(rules("name: a, max_nodes: 1, audit: true", "name: b, max_nodes: 1, then: warn"), big())
    assert [finding.refuses for finding in findings] == [False, False]
    assert str(findings[0]) == "policy a (audit): 2 nodes are more than 1; ask for fewer"


def big() -> Subject:
    return subject(replace(SPEC, nodes=2))


def test_rules_that_together_allow_nothing_are_told_together() -> None:
    both = rules("name: a, machines: [g5.*]", "name: b, machines: [p4d.24xlarge]", "name: c, machines: ['*']")
    found = broken(both, subject(), (P4, G5))
    assert [str(each) for each in found if each.refuses] == [
        "policy a: together these rules allow nothing that would do: a allows g5.*; b allows p4d.24xlarge"
    ]
    assert broken(rules("name: a, machines: [g5.*]", "name: b, machines: [g5.xlarge]"), subject(), (P4, G5)) == ()
    watched = rules("name: a, machines: [g5.*]", "name: b, machines: [p4d.24xlarge], audit: true")
    assert broken(watched, subject(), (P4, G5)) == ()


def test_such_rules_are_told_beside_one_that_allows_nothing_by_itself() -> None:
    """Also where that one waits for an approval: with it, the job would still get no machine."""
    texts = ("name: a, machines: [g5.*]", "name: b, machines: [p4d.24xlarge]")
    expected = "policy a: together these rules allow nothing that would do: a allows g5.*; b allows p4d.24xlarge"
    for more in ("name: d, regions: [ap-*]", "name: d, regions: [ap-*], approvers: [me]"):
        found = broken(rules(*texts, more), subject(), (P4, G5))
        assert [each.rule.name for each in found] == ["d", "a"]
        assert str(found[1]) == expected and found[1].refuses
