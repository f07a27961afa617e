"""The two example policies do what the page says of them."""

from __future__ import annotations

from datetime import date

from pages import DOCS, all_blocks

from stoker.core import policy_rules
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.resources import Resources
from stoker.model.spec import SUBMITTER_TAG, Limits, Spec
from stoker.policy.policy_file import parse_policy

TODAY = date(2026, 11, 16)
VISION = {"team": "vision", "project": "maps", "ticket": "ML-7"}


def example_policies() -> tuple[Policy, Policy]:
    page = (DOCS / "governance.md").name
    small, company = (
        parse_policy(block.text.encode(), str(block))
        for block in all_blocks()
        if page in str(block) and block.language == "yaml" and "\nnotify:" in block.text
    )
    return small, company


def refused(policy: Policy, spec: Spec, *offerings: Offering) -> list[str]:
    subject = policy_rules.Subject(spec, TODAY)
    return [found.rule.name for found in policy_rules.broken(policy, subject, offerings) if found.refuses]


def job(tags: dict[str, str], *, nodes: int = 1, name: str = "job") -> Spec:
    return Spec(name=name, run="train", nodes=nodes, tags=tags, resources=Resources(provider="ec2"), limits=Limits())


def machine(name: str, region: str = "eu-west-1") -> Offering:
    return Offering("ec2", name, f"{region}a", spot=True, region=region, price=1.0)


def test_the_small_team_asks_whose_it_is_and_bounds_the_rest() -> None:
    small, _ = example_policies()
    assert refused(small, job({})) == ["tags"]
    mine = job({"user": "jane", "project": "maps"})
    assert refused(small, mine, machine("p5.48xlarge", "us-east-1")) == []
    bounds = policy_rules.effective_limits(small, policy_rules.Subject(mine, TODAY))
    assert (bounds.spec.limits.max_runtime_s, bounds.spec.limits.max_cost) == (72 * 3600, 400)


def test_the_company_asks_for_a_ticket_and_keeps_its_regions() -> None:
    _, company = example_policies()
    assert refused(company, job(VISION), machine("g5.xlarge")) == []
    assert refused(company, job(VISION | {"ticket": "none"}), machine("g5.xlarge")) == ["who-pays"]
    assert refused(company, job(VISION), machine("g5.xlarge", "us-east-1")) == ["regions"]
    assert refused(company, job(VISION), machine("c7i.large")) == ["machines"]


def test_students_get_small_machines_and_short_runs() -> None:
    _, company = example_policies()
    student = job(VISION | {"stage": "student"})
    assert refused(company, student, machine("p4d.24xlarge")) == ["machines-of-students"]
    bounds = policy_rules.effective_limits(company, policy_rules.Subject(student, TODAY))
    assert bounds.spec.limits.max_runtime_s == 12 * 3600 and bounds.by_rule["max_runtime"] == "sweeps"


def test_the_big_one_is_exempt_until_its_day() -> None:
    _, company = example_policies()
    assert refused(company, job(VISION, nodes=32), machine("p5.48xlarge")) == ["max-nodes"]
    trainers = {SUBMITTER_TAG: "arn:aws:iam::111122223333:role/Foundation"}
    assert refused(company, job(VISION | trainers, nodes=32), machine("p5.48xlarge")) == []


def test_a_new_rule_is_only_watched() -> None:
    _, company = example_policies()
    (idle,) = [rule for rule in company.rules if rule.name == "idle"]
    assert idle.audit and idle.action == "stop"
