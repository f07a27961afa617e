"""What `stoker deploy aws` asks CloudFormation for. `STOKER_GOLDEN=1` writes the golden templates anew."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.deploy import aws, aws_region_events, package
from stoker.deploy.aws_template import AwsPlan, template
from stoker.deploy.package import Package
from stoker.governor import deployment_record
from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.store.base import open_store

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
NOTHING = Package(b"zip", "x86_64")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def planned(url: str = "s3://bucket/team") -> aws.Deployment:
    return aws.plan_deployment(open_store(url), NOTHING, "us-east-1", ("us-west-2",))


def templates() -> dict[str, dict[str, Any]]:
    # What a governor may do has goldens of its own.
    plan = replace(planned().plan, statements=({"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"},))
    return {
        "deploy-aws": template(plan),
        "deploy-aws-sagemaker": template(replace(plan, training=True)),
        "deploy-aws-elsewhere": aws_region_events.template(plan.name, plan.store, "us-east-1"),
    }


@pytest.mark.parametrize("name", ["deploy-aws", "deploy-aws-sagemaker", "deploy-aws-elsewhere"])
def test_it_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    text = json.dumps(templates()[name], indent=2) + "\n"
    if os.environ.get("STOKER_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["deploy-aws", "deploy-aws-sagemaker", "deploy-aws-elsewhere"])
def test_cfn_lint_finds_nothing(name: str, tmp_path: Path) -> None:
    file = tmp_path / "template.json"
    file.write_text(json.dumps(templates()[name]))
    program = Path(sys.executable).with_name("cfn-lint")
    linted = subprocess.run(
        [str(program), "--include-checks", "I", "--", str(file)], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")


def test_cloudformation_takes_it_in_one_piece() -> None:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html and IAM's of roles."""
    whole = template(replace(planned().plan, training=True))
    assert len(json.dumps(whole, indent=1)) < 51_200
    role = whole["Resources"]["Role"]["Properties"]
    inline = sum(len(json.dumps(each["PolicyDocument"], separators=(",", ":"))) for each in role["Policies"])
    assert inline < 10_240


def test_clones_can_be_narrowed_to_roles_and_machine_types() -> None:
    """The condition keys of CreateTrainingJob: "sagemaker:InstanceTypes: Filters access by the list of all instance
    types associated with the resource in the request", ArrayOfString; and `ForAllValues` is also true without the key:
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsagemaker.html
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
    """
    roles = ("team-*", "arn:aws:iam::123456789012:role/ml/jane")
    narrow = replace(planned().plan, training=True, clone_roles=roles, clone_machines=("ml.g5.*",))
    whole = replace(narrow, clone_roles=(), clone_machines=())
    narrowed, open_to_all = ({each["Sid"]: each for each in _training_statements(plan)} for plan in (narrow, whole))
    assert narrowed["CloneRoles"]["Resource"] == [
        {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/team-*"},
        "arn:aws:iam::123456789012:role/ml/jane",
    ]
    assert narrowed["CloneRoles"]["Condition"] == open_to_all["CloneRoles"]["Condition"]
    assert narrowed["Clones"]["Condition"] == {
        "ForAllValues:StringLike": {"sagemaker:InstanceTypes": ["ml.g5.*"]},
        "Null": {"sagemaker:InstanceTypes": "false"},
    }
    assert "Clones" not in open_to_all and "Condition" not in open_to_all["Jobs"]
    assert {*narrowed["Jobs"]["Action"], narrowed["Clones"]["Action"]} == set(open_to_all["Jobs"]["Action"])
    other = {"CloneRoles", "Clones", "Jobs"}
    assert all(narrowed[sid] == open_to_all[sid] for sid in narrowed if sid not in other)
    creating = [sid for sid, each in narrowed.items() if "sagemaker:CreateTrainingJob" in each["Action"]]
    assert creating == ["Clones", "Plans"]


def _training_statements(plan: AwsPlan) -> list[dict[str, Any]]:
    policies = {each["PolicyName"]: each for each in template(plan)["Resources"]["Role"]["Properties"]["Policies"]}
    found: list[dict[str, Any]] = policies["training"]["PolicyDocument"]["Statement"]
    return found


def test_forty_channels_fit_into_one_role() -> None:
    secrets = tuple(f"aws-sm:stoker/teams/computer-vision/channel-{number:02d}" for number in range(40))
    more = (*secrets, "aws-ssm:/stoker/pager", "sns:arn:aws:sns:us-east-1:123456789012:alerts", secrets[0])
    plan = aws.plan_deployment(open_store("s3://bucket/team"), NOTHING, "us-east-1", training=True, notify=more).plan
    policies = template(plan)["Resources"]["Role"]["Properties"]["Policies"]
    assert sum(len(json.dumps(each["PolicyDocument"], separators=(",", ":"))) for each in policies) < 10_240
    found = {each["Sid"]: each for each in plan.statements}
    assert len(found["ReadChannelSecrets"]["Resource"]) == 40
    assert found["ReadChannelParameters"]["Resource"] == ["arn:aws:ssm:*:*:parameter/stoker/pager"]
    assert found["Tell"]["Resource"] == ["arn:aws:sns:us-east-1:123456789012:alerts"]


def test_what_does_not_fit_is_told_before_anything_is_made() -> None:
    secrets = tuple(f"aws-sm:stoker/teams/computer-vision/channel-{number:03d}" for number in range(100))
    with pytest.raises(
        UserError, match=r"--notify, --pass-role, --clone-role and --kms-key: .* characters, and IAM takes 10240"
    ):
        aws.plan_deployment(open_store("s3://bucket/team"), NOTHING, "us-east-1", notify=secrets)


def test_it_may_do_what_a_governor_may_and_switch_its_own_clock() -> None:
    role = template(planned().plan)["Resources"]["Role"]["Properties"]
    governor, itself = (each["PolicyDocument"]["Statement"] for each in role["Policies"])
    granted = [grant for grant in registry.iam("ec2").grants("s3://bucket/team").grants if grant.name == "governor"]
    assert all(each in governor for each in granted[0].policy["Statement"])
    sids = [each["Sid"] for each in (*governor, *itself)]
    assert len(set(sids)) == len(sids)
    actions = {action for each in itself for action in each["Action"]}
    clock = {"events:EnableRule", "events:DisableRule"}
    assert actions == {"logs:CreateLogStream", "logs:PutLogEvents", "sqs:SendMessage", *clock}
    assert all("*" not in json.dumps(each["Resource"]) for each in itself)
    # No action by a pattern, and none that could give it more.
    everything = [
        a for each in governor for a in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    ]
    assert not [action for action in everything if "*" in action]
    assert [action for action in everything if action.startswith("iam:")] in (["iam:PassRole"], ["iam:PassRole"] * 2)


@pytest.mark.parametrize(
    ("region", "start", "service"),
    [("us-east-1", "arn:aws:", "ec2.amazonaws.com"), ("cn-north-1", "arn:aws-cn:", "ec2.amazonaws.com.cn")],
)
def test_it_may_pass_the_roles_that_were_named_and_to_machines_alone(region: str, start: str, service: str) -> None:
    whole = f"{start}iam::123456789012:role/team/vision"
    plan = aws.plan_deployment(open_store("s3://bucket/team"), NOTHING, region, roles=("vision", whole)).plan
    (named,) = (each for each in plan.statements if each["Sid"] == "PassNamedRoles")
    assert named["Action"] == "iam:PassRole" and named["Resource"] == [f"{start}iam::*:role/vision", whole]
    passed_to = [service, "sagemaker.amazonaws.com"]
    assert named["Condition"] == {"StringEquals": {"iam:PassedToService": passed_to}}
    assert not [each for each in planned().plan.statements if each["Sid"] == "PassNamedRoles"]


def test_it_may_use_the_keys_that_were_named_and_lend_them_to_aws_alone() -> None:
    keys = tuple(f"arn:aws:kms:{region}:123456789012:key/1234abcd" for region in ("us-east-1", "eu-west-1"))
    plan = aws.plan_deployment(open_store("s3://bucket/team"), NOTHING, "us-east-1", kms_keys=keys).plan
    about = [each for each in plan.statements if "kms:" in json.dumps(each["Action"])]
    use, lend = about
    assert use["Resource"] == lend["Resource"] == list(keys)
    assert {"kms:Decrypt", "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext"} <= set(use["Action"])
    assert lend["Action"] == "kms:CreateGrant"
    assert lend["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    assert "kms:" not in json.dumps(planned().plan.statements)


def test_its_clock_is_off_at_first() -> None:
    tick = templates()["deploy-aws"]["Resources"]["Tick"]["Properties"]
    assert (tick["State"], tick["ScheduleExpression"]) == ("DISABLED", "rate(1 minute)")


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_what_it_may_do_is_said_in_the_words_of_its_region(region: str, partition: str) -> None:
    """This computer works elsewhere."""
    plan = aws.plan_deployment(open_store("s3://bucket/team"), NOTHING, region).plan
    text = json.dumps(plan.statements)
    assert f"arn:{partition}:s3:::bucket" in text and '"arn:aws:' not in text
    assert ('"ec2.amazonaws.com.cn"' in text) is (partition == "aws-cn")


def test_two_stores_never_meet() -> None:
    names = {planned(url).name for url in ("s3://bucket", "s3://bucket/team", "s3://other/team")}
    assert len(names) == 3


def test_a_folder_has_no_governor_on_aws(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="s3://BUCKET/PREFIX"):
        aws.plan_deployment(open_store(tmp_path.as_uri()), NOTHING, "us-east-1")
    assert deployment_record.find(open_store(tmp_path.as_uri())) is None


def test_endpoints_of_a_bucket_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.com")
    environ = planned().plan.environ
    assert environ == {"AWS_ENDPOINT_URL_S3": "https://s3.example.com"}, "Lambda sets AWS_REGION itself, and refuses it"


# ── The package ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_package_is_the_same_each_time_and_small() -> None:
    first, second = package.for_lambda(), package.for_lambda()
    assert first.digest == second.digest
    assert len(first.data) < 20_000_000
    assert first.lacking == ()


def test_the_package_runs_by_itself(tmp_path: Path) -> None:
    """With nothing but Lambda's own boto3 beside it."""
    with zipfile.ZipFile(io.BytesIO(package.for_lambda().data)) as archive:
        archive.extractall(tmp_path)
    import boto3

    beside = tmp_path.with_name("beside")
    beside.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "six.py"):
        (beside / name).symlink_to(Path(boto3.__file__).parents[1] / name)
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]];"
        "import stoker.deploy.aws_entry_point, obstore, apprise, yaml, requests;"
        "import stoker.providers.ec2.provider, stoker.providers.ec2.request, stoker.providers.registry as r;"
        "[r.connect(n, r.Context('s3://b')) for n in ('ec2', 'local')];"
        "print([m.__file__ for m in (stoker, obstore, apprise, yaml, requests)])"
    )
    ran = subprocess.run(
        # Neither the environment's packages nor the folder that this runs in.
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path), str(beside)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(str(tmp_path)) == 5


def test_the_function_of_google_names_what_it_needs() -> None:
    with zipfile.ZipFile(io.BytesIO(package.for_cloud_run().data)) as archive:
        names = archive.namelist()
        wanted = archive.read("requirements.txt").decode()
    assert "main.py" in names and "stoker/governor/loop.py" in names
    assert not [name for name in names if name.startswith(("stoker/testing/", "stoker/cli/"))]
    assert [line.split("=")[0].split(">")[0] for line in wanted.splitlines()] == [
        "functions-framework",
        "obstore",
        "PyYAML",
        "httpx",
        "google-auth",
        "apprise",
    ]
