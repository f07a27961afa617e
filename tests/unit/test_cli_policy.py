"""The policy on the command line: what is refused with a reason, what is said once, and what is not said at all."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pytest
from command_line import Stoker, run
from external_world import REGION, World

from stoker.cli.run import _abridged
from stoker.model import codec, keys
from stoker.model.policy import SUBJECTS
from stoker.policy import versions
from stoker.policy.rule_table import RULES, rules_markdown
from stoker.providers import registry
from stoker.store import external_job_index
from stoker.store.base import Store, open_store
from stoker.store.external_job_index import ExternalJobRow

TOPIC = "sns:arn:aws:sns:us-east-1:111122223333:t"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-central1")
    monkeypatch.chdir(tmp_path)
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def stoker(store: Store, capsys: pytest.CaptureFixture[str]) -> Stoker:
    return partial(run, capsys)


# ── Channels and regions that have no effect ──────────────────────────────────────────────────────────────────────────

AWS = ("--store", "s3://bucket/p", "deploy", "aws", "--dry-run")
GCP = ("--store", "gs://bucket/p", "deploy", "gcp", "--dry-run")


@pytest.mark.parametrize(
    ("words", "to", "why"),
    [
        (AWS, "slack://s3cr3t", "slack://… needs no grant"),
        (AWS, "gcp-sm:x", "gcp-sm:x is not in AWS"),
        (AWS, "env:X", "env:X is a variable"),
        (GCP, "aws-sm:x", "aws-sm:x is not in Google Cloud"),
        (GCP, TOPIC, "is not in Google Cloud"),
        (("iam", "gce", "--bucket", "gs://bucket"), TOPIC, "is not in Google Cloud"),
        (("iam", "ec2", "--bucket", "s3://bucket"), "slack://s3cr3t", "slack://… needs no grant"),
    ],
)
def test_a_channel_that_the_cloud_has_nothing_to_allow_for_is_refused(
    stoker: Stoker, words: tuple[str, ...], to: str, why: str
) -> None:
    code, _, said = stoker(*words, "--notify", to)
    assert code == 2 and why in said and "s3cr3t" not in said and said.count("\n") == 1


@pytest.mark.parametrize(("words", "to"), [(AWS, TOPIC), (AWS, "aws-ssm:/x"), (GCP, "gcp-sm:x")])
def test_one_that_it_has_to_allow_is_taken(stoker: Stoker, words: tuple[str, ...], to: str) -> None:
    code, told, said = stoker(*words, "--notify", to, "--json")
    assert code == 0 and to.rpartition(":")[2] in told, said


@pytest.mark.parametrize("flag", ["--region", "--events-from"])
def test_a_region_that_is_none_is_refused(stoker: Stoker, flag: str) -> None:
    assert stoker(*AWS, flag, "moon")[::2] == (2, f"stoker: {flag}: moon is no region; write one such as us-east-1\n")


def test_bindings_are_shown_as_what_is_added_and_what_is_removed(stoker: Stoker) -> None:
    for more, change in (((), "add"), (("--remove",), "remove")):
        code, told, _ = stoker(*GCP, *more, "--json")
        bodies = [each["body"] for each in json.loads(told) if "IamPolicy" in each["path"] or "/iam" in each["path"]]
        assert code == 0 and bodies and all([*body] == [f"{change} these bindings"] for body in bodies)
        assert all(body[f"{change} these bindings"] for body in bodies)


# ── Words alone ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_of_rules_is_in_the_help(stoker: Stoker) -> None:
    said = " ".join(stoker("policy", "--help")[1].split())
    page = (Path(__file__).parents[2] / "docs" / "governance.md").read_text(encoding="utf-8")
    assert rules_markdown() in page
    for subject, row in RULES.items():
        assert row.written in said and f"(then: {', '.join(SUBJECTS[subject])})" in said.replace("- ", "-")
        assert f"| `{row.written}` |" in page
    assert "](" not in said and "`" not in said, "no marks of the page"


@pytest.mark.parametrize(("group", "commands"), [("policy", "set show test history approve"), ("deploy", "aws gcp")])
def test_a_group_alone_is_its_help(stoker: Stoker, group: str, commands: str) -> None:
    code, _, said = stoker(group)
    assert code == 2 and "\nCommands:\n" in said and all(f"\n  {name} " in said for name in commands.split())


def test_the_policy_that_is_the_policy_already(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    assert "there is no policy; `stoker policy set FILE` makes one" in stoker("policy", "history")[2]
    (tmp_path / "policy.yaml").write_text("rules: [{max_nodes: 8}]\n")
    assert stoker("policy", "set", "policy.yaml")[0] == 0
    code, _, said = stoker("policy", "set", "policy.yaml")
    assert code == 0 and "this is the policy already, as version 1" in said and versions.newest(store) == 1
    (tmp_path / "job.yaml").write_text("run: python train.py\nresources: {provider: local}\n")
    assert stoker("policy", "test", "job.yaml")[1].splitlines()[-1] == "allowed by 1 rule"


def test_what_is_only_told_is_told_beforehand(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    rules = "{name: dear, max_cost: 5, then: warn}, {max_runtime: 1h, audit: true}, {max_retries: 0, then: warn}"
    versions.write(store, f"rules: [{rules}]", "jane")
    (tmp_path / "stoker.yaml").write_text("run: 'true'\nretry: {user_errors: 1}\nresources: {provider: local}\n")
    code, told, _ = stoker("policy", "test")
    assert code == 0 and told.splitlines() == [
        "warning: policy max-retries: retry.user_errors: 1 is more than 0",
        "warning only: max_cost $5.00 by policy dear (a warning)",
        "warning only: max_runtime 1 h by policy max-runtime (audit)",
        "allowed by 3 rules",
    ]
    watched = json.loads(stoker("policy", "test", "--json")[1])["watched"]
    assert watched[0] == {"rule": "dear", "audit": False, "field": "max_cost", "value": 5.0}


def test_a_version_that_cannot_be_read_is_shown_as_it_was_written(stoker: Stoker, store: Store) -> None:
    versions.write(store, "rules: [{max_nodes: 1}]\n", "jane", "two\nlines")
    assert stoker("policy", "history")[1].splitlines()[1].endswith("jane  two lines")
    store.create(keys.rules(2), codec.dumps(versions.PolicyText("rules: [{most_fun: 1}]\n", "jane", token="t")))
    code, told, said = stoker("policy", "show")
    assert code == 0 and told == "rules: [{most_fun: 1}]\n"
    assert "most_fun: unknown field" in said and "update this one" in said


def test_a_limit_without_prices_is_told_when_it_is_set(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("sagemaker: {regions: [il-central-1]}\nrules: [{max_cost: 500}]\n")
    code, _, said = stoker("policy", "set", "policy.yaml")
    assert code == 0 and said.count("not enforced for training jobs in il-central-1") == 1
    assert "policy version 1: 1 rule" in said


def test_a_submission_names_all_the_rules_that_refuse_it(stoker: Stoker, store: Store, tmp_path: Path) -> None:
    versions.write(store, "rules: [{tags: {team: any}}, {max_nodes: 1}, {max_retries: 0}]", "jane")
    (tmp_path / "stoker.yaml").write_text("run: 'true'\nnodes: 2\nresources: {provider: local}\n")
    code, _, said = stoker("run", "--dry-run")
    assert code == 2 and said.count("\n") == 2, "one line for each"
    assert "stoker: policy tags: tags.team is missing" in said
    assert "\nstoker: policy max-nodes: 2 nodes are more than 1" in said
    assert "max-retries" not in said


def test_a_provider_without_prices_says_so(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.prices("sagemaker"), "tables", dict)
    code, told, said = stoker("prices", "--provider", "sagemaker")
    assert (code, told) == (0, "")
    assert "no prices of sagemaker yet; `stoker prices --provider sagemaker --refresh` fetches them from AWS" in said


def test_a_text_in_pieces_is_abridged_as_one() -> None:
    shown = _abridged({"ContainerArguments": ["x" * 200] * 20, "Subnets": ["subnet-1", "subnet-2"]})
    assert shown["ContainerArguments"] == "(4.0 kB of container-arguments; --json shows it)"
    assert shown["Subnets"] == ["subnet-1", "subnet-2"]


# ── Training jobs of others ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "helps"),
    [
        (("logs",), "aws logs tail /aws/sagemaker/TrainingJobs --log-stream-name-prefix bert/ --region us-east-1"),
        (("stop",), "aws sagemaker stop-training-job --training-job-name bert --region us-east-1"),
        (("ssh",), "and `stoker ssh` is not for those; `stoker show bert` and `aws sagemaker describe-training-job"),
        (("resume",), "and `stoker resume` is not for those"),
        (("rm", "-y"), "and `stoker rm` is not for those"),
    ],
)
def test_who_names_a_training_job_of_others_is_told_what_helps(
    stoker: Stoker, store: Store, words: tuple[str, ...], helps: str
) -> None:
    assert "there is no job 'bert'" in stoker(*words, "bert")[2]
    versions.write(store, f"sagemaker: {{regions: [{REGION}]}}", "jane")
    now = datetime.now(timezone.utc)
    external_job_index.write(
        store, REGION, {"bert": ExternalJobRow("bert", REGION, "bert", "InProgress", "Training", now, now)}, now
    )
    code, _, said = stoker(*words, "bert")
    assert code == 2 and said.startswith("stoker: bert is an external training job, on SageMaker in us-east-1")
    assert helps in said
    assert "there is no job 'albert'" in stoker(*words, "albert")[2]


def test_a_plan_names_the_training_job_in_every_line() -> None:
    world = World("- max_nodes: 1\n- stall: {window: 5m, windows: 3}\n")
    world.account.start(training_s=60.0)
    lines = world.governor.plan().done
    assert len(lines) > 2 and all(line.startswith("bert: ") for line in lines), lines


@pytest.mark.parametrize(
    ("resources", "code", "line"),
    [
        (
            "machine: p6-b300.48xlarge",
            1,
            "would be refused: policy max-cost needs a known price, and no fitting offering",
        ),
        (
            "machine: p6-b300.48xlarge, spot: true",
            0,
            "warning: policy max-cost needs a known price, and no fitting offer",
        ),
        ("machine: p5.48xlarge", 0, None),
    ],
)
def test_a_test_of_the_policy_names_machines_without_a_price(
    stoker: Stoker, store: Store, tmp_path: Path, resources: str, code: int, line: str | None
) -> None:
    """As a submission does. A table has no spot prices of EC2, which a submission asks for."""
    versions.write(store, "rules: [{max_cost: 500}, {budget: {dollars: 9999, period: month}}]", "jane")
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\nresources: {{provider: ec2, region: us-east-1, {resources}}}\n")
    ended, said, _ = stoker("policy", "test", str(job))
    assert ended == code and ("allowed" in said) == (code == 0)
    assert ("warning: policy budget: not enforced for this job, since no price" in said) == (line is not None)
    assert line is None or any(each.startswith(line) for each in said.splitlines())
    assert ("this job reserves nothing: no price of its machines is known" in said) == (line is not None)
