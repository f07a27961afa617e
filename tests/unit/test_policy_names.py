"""Deny lists, one pattern language for all fields, and names that are checked when the policy is set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Stoker, stoker, store

from stoker.core.policy_patterns import matches
from stoker.core.policy_rules import Subject, allowed, broken
from stoker.model.errors import SpecError
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store.base import Store
from tests.support.sim_data import EPOCH

__all__ = ["stoker", "store"]
TODAY = EPOCH.date()
G5 = Offering("ec2", "g5.xlarge", "us-east-1a", False, region="us-east-1")
P5 = Offering("ec2", "p5.48xlarge", "us-east-1a", False, region="us-east-1")
N1 = Offering("gce", "n1-standard-4", "us-central1-a", False, region="vision-1/us-central1")
ALL = (G5, P5, N1)


def policy(text: str) -> Policy:
    return parse_policy(f"rules:\n- {{{text}}}\n".encode(), "p.yaml")


def spec(**tags: str) -> Spec:
    return replace(Spec(name="x", run="true", resources=Resources(provider="ec2", image="evil:1")), tags=tags)


def left(text: str) -> tuple[Offering, ...]:
    return allowed(policy(text), Subject(spec(), TODAY), ALL)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("deny: {machines: [p5.*]}", (G5, N1)),
        ("deny: {machines: '/p5[.].*|g5[.]x.*/'}", (N1,)),
        ("deny: {providers: [ec2]}", (N1,)),
        ("deny: {regions: [us-central1]}", (G5, P5)),
        ("deny: {regions: ['vision-1/*']}", (G5, P5)),
        ("deny: {providers: [gce], machines: [p5.48xlarge]}", (G5,)),
        ("deny: {machines: [p5.*]}, then: warn", ALL),
        ("deny: {machines: [p5.*]}, audit: true", ALL),
        ("machines: ['/[gp]5[.].*/']", (G5, P5)),
        ("machines: any", ALL),
        ("regions: [us-central1]", (N1,)),
    ],
)
def test_what_is_denied_and_allowed(text: str, found: tuple[Offering, ...]) -> None:
    assert left(text) == found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "name: no, deny: {machines: ['*']}",
            "policy no: resources.machine: g5.xlarge, n1-standard-4, p5.48xlarge are forbidden; choose another",
        ),
        ("deny: {images: ['evil:*']}", "policy deny: resources.image: the image evil:1 is forbidden; use another"),
        ("deny: {tags: {team: 'n*'}}", "policy deny: tags.team: nlp is forbidden; write another"),
        ("deny: {tags: {submitter: 'os:*'}}", "policy deny: tags.submitter: os:jane@host is forbidden; write another"),
    ],
)
def test_what_is_denied_is_told_with_the_field(text: str, line: str) -> None:
    subject = Subject(spec(team="nlp", submitter="os:jane@host"), TODAY)
    assert [each for found in broken(policy(text), subject, ALL) for each in found.lines] == [line]


def test_a_denied_image_ends_no_job_that_has_run_and_a_denied_machine_does() -> None:
    text = "deny: {images: ['evil:*'], machines: ['*']}"
    (both,) = broken(policy(text), Subject(spec(), TODAY), ALL)
    (image,) = broken(policy(text), Subject(spec(), TODAY))
    assert both.about_machines and not image.about_machines


@pytest.mark.parametrize(
    ("wanted", "value", "found"),
    [
        ("any", "x", True),
        ("g5.*", "g5.xlarge", True),
        ("g5.*", "g6.xlarge", False),
        ("g[56].*", "g6.xlarge", True),
        ("us-?ast-1", "us-east-1", True),
        ("/[A-Z]+-[0-9]+/", "AB-12", True),
        ("/[A-Z]+-[0-9]+/", "AB-12x", False),
        ("[x]", "[x]", True),
        ("a*b", "a*b", True),
        ("G5.*", "g5.xlarge", False),
    ],
)
def test_one_language(wanted: str, value: str, found: bool) -> None:
    assert matches(wanted, value) is found
    as_tag = broken(policy(f'tags: {{t: "{wanted}"}}'), Subject(spec(t=value), TODAY))
    assert (not as_tag) is found
    offering = replace(G5, machine=value)
    assert bool(allowed(policy(f'machines: ["{wanted}"]'), Subject(spec(), TODAY), (offering,))) is found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("deny: {}", "rules[0].deny: forbids nothing; name providers, regions, machines, images or tags"),
        ("deny: {machines: ['/[/']}", "rules[0].deny.machines"),
        ("deny: {zones: [a]}", "rules[0].deny.zones: unknown field"),
        ("machines: ['/(/']", "rules[0].machines"),
    ],
)
def test_mistakes_in_patterns_are_told(text: str, told: str) -> None:
    with pytest.raises(SpecError, match="rules") as error:
        policy(text)
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (
            "machines: [g5.xlrge]",
            "policy machines: machines: there is no machine type g5.xlrge; did you mean g5.xlarge?",
        ),
        (
            "deny: {machines: [p4d.24xlrge]}",
            "policy deny: deny.machines: there is no machine type p4d.24xlrge; did you",
        ),
        ("machines: [n1-standrad-4]", "there is no machine type n1-standrad-4; did you mean n1-standard-4?"),
        ("regions: [us-esat-1]", "policy regions: regions: there is no region us-esat-1; did you mean us-east-1?"),
        ("deny: {regions: [europe-wset4]}", "there is no region europe-wset4; did you mean europe-west4?"),
    ],
)
def test_a_misspelt_name_is_refused_when_the_policy_is_set(
    stoker: Stoker,
    store: Store,
    tmp_path: Path,
    rule: str,
    line: str,
) -> None:
    (tmp_path / "policy.yaml").write_text(f"rules: [{{{rule}}}]\n")
    code, _, said = stoker("policy", "set", str(tmp_path / "policy.yaml"))
    assert code == 2 and line in said and "write a pattern" in said and versions.newest(store) == 0
    versions.write(store, f"rules: [{{{rule}}}]\n", "jane")
    (tmp_path / "job.yaml").write_text("run: 'true'\nresources: {provider: local}\n")
    tested = stoker("policy", "test", str(tmp_path / "job.yaml"))[2]
    assert line in tested, "one that was set earlier is told as a warning"


@pytest.mark.usefixtures("store")
def test_all_misspelt_names_are_told_at_once(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{machines: [g5.xlrge, g6.xlrge]}, {regions: [us-esat-1]}]\n")
    code, _, said = stoker("policy", "set", str(tmp_path / "policy.yaml"))
    assert code == 2 and len(said.splitlines()) == 3 and all(line.startswith("stoker: ") for line in said.splitlines())


@pytest.mark.parametrize(
    "name", ["g5.xlarge", "ml.g5.xlarge", "n2-custom-4-8192", "local", "n1-standard-8+nvidia-tesla-t4:1"]
)
@pytest.mark.usefixtures("store")
def test_real_names_are_not_told(stoker: Stoker, tmp_path: Path, name: str) -> None:
    (tmp_path / "policy.yaml").write_text(
        f"rules: [{{machines: ['{name}']}}, {{regions: [us-east-1, us-central1, 'p/us-*']}}]\n"
    )
    code, _, said = stoker("policy", "set", str(tmp_path / "policy.yaml"))
    assert code == 0 and "warning" not in said


@pytest.mark.usefixtures("store")
def test_newer_names_are_written_as_patterns_and_told_as_warnings(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: [{machines: ['g5.xlrge*', zzz]}]\n")
    code, _, said = stoker("policy", "set", str(tmp_path / "policy.yaml"))
    assert code == 0
    assert "warning: policy machines: machines: no machine type that is known here matches g5.xlrge*" in said
    assert "warning: policy machines: machines: no machine type that is known here is called zzz" in said


def test_a_region_of_external_jobs_that_no_table_has_is_told(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    """No governor would look at training jobs in the region that was meant."""
    file = tmp_path / "policy.yaml"
    file.write_text("rules: []\nsagemaker: {regions: [us-east-1, us-est-2]}\n")
    code, _, said = stoker("policy", "set", str(file))
    assert code == 0 and versions.current_policy(store).sagemaker is not None
    told = [line for line in said.splitlines() if "sagemaker.regions" in line]
    assert told == [
        "warning: sagemaker.regions: no region that is known here is called us-est-2; did you mean us-west-2?"
    ]


def test_a_name_that_is_no_identity_is_told(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    """A job would wait for such an approver for ever."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        "rules:\n"
        "- {max_nodes: 1, approvers: [jane, any, '*', '/jane/', 'os:jane@*', jane@example.com, 'arn:aws:iam::1:x']}\n"
        "- {max_retries: 1, for: {submitter: [any, joe]}, except: [{submitter: ann, until: 2099-01-01, why: x}]}\n"
    )
    code, _, said = stoker("policy", "set", str(file))
    assert code == 0 and store is not None
    told = [
        line.partition(" is no identity; write an ARN, ")[0] for line in said.splitlines() if "is no identity" in line
    ]
    assert told == [
        "warning: policy max-nodes: approvers: jane",
        "warning: policy max-nodes: approvers: any",
        "warning: policy max-retries: except.submitter: ann",
        "warning: policy max-retries: for.submitter: joe",
    ]


def test_approvers_that_are_never_asked_are_told(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "rules:\n"
        "- {max_nodes: 1, approvers: []}\n"
        "- {max_retries: 1, then: warn, approvers: [jane@example.com]}\n"
        "- {name: watched, regions: [us-east-1], audit: true, approvers: [jane@example.com]}\n"
        "- {name: asked, regions: [us-east-1], approvers: [jane@example.com]}\n"
        "- {name: silent, images: ['a:*'], then: warn}\n"
    )
    code, _, said = stoker("policy", "set", str(file))
    assert code == 0 and versions.newest(store) == 1
    assert [line.partition(";")[0] for line in said.splitlines() if "approvers" in line] == [
        "warning: policy max-nodes: approvers: there are none, so no job may break the rule",
        "warning: policy max-retries: approvers: are never asked, because the rule holds no job up (then: warn)",
        "warning: policy watched: approvers: are never asked, because the rule holds no job up (audit)",
    ]
