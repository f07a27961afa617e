"""Roles and accounts that jobs give their machines: named for a deployed governor, kept, given up, and told of."""

from __future__ import annotations

import json

import pytest
from deployed_account import HOME, Account, Stoker, account, bucket, stoker

from stoker.governor import deployment_record
from stoker.governor.deployment_record import DeploymentRecord
from stoker.model.resources import Ec2Resources, GceResources, Resources, SagemakerResources
from stoker.model.spec import Spec
from stoker.testing.memory_store import MemoryStore

__all__ = ["account", "bucket", "stoker"]

DEPLOY = ("deploy", "aws", "-y")
AWS = DeploymentRecord(
    "aws", "stoker-1", HOME, "stoker-1", "0" * 64, "me", identities=("vision", "arn:aws:iam::1:role/a/nlp")
)
VISION = "vision@vision-1.iam.gserviceaccount.com"
GCP = DeploymentRecord("gcp", "stoker-1", "us-central1", "t", "0" * 64, "me", project="vision-1", identities=(VISION,))


def passable(account: Account) -> str:
    role = account.stacks[HOME]["Template"]["Resources"]["Role"]["Properties"]
    statements = [each for policy in role["Policies"] for each in policy["PolicyDocument"]["Statement"]]
    return json.dumps([each["Resource"] for each in statements if each["Sid"] == "PassNamedRoles"])


def test_roles_are_kept_until_they_are_given_up(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--pass-role", "vision", "--pass-role", "nlp")[0] == 0
    assert stoker(*DEPLOY)[0] == 0
    found = deployment_record.find(bucket)
    assert found is not None and found.identities == ("vision", "nlp")
    assert passable(account) == '[["arn:aws:iam::*:role/vision", "arn:aws:iam::*:role/nlp"]]'
    code, _, said = stoker(*DEPLOY, "--no-pass-role", "--pass-role", "nlp")
    assert code == 0 and "dropped: vision\n" in said and passable(account) == '[["arn:aws:iam::*:role/nlp"]]'


@pytest.mark.parametrize("named", ["*", "a b", "arn:aws:iam::123456789012:user/x", "arn:aws:s3:::bucket", ""])
def test_what_is_no_role_is_refused(named: str, account: Account, stoker: Stoker) -> None:
    code, _, said = stoker(*DEPLOY, "--pass-role", named)
    assert (code, said) == (2, f"stoker: --pass-role: {named!r} is no role; give its name, or its ARN\n")
    assert account.asked == []


KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def test_keys_are_kept_until_they_are_given_up(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    assert stoker(*DEPLOY, "--kms-key", KEY)[0] == 0
    assert stoker(*DEPLOY)[0] == 0
    found = deployment_record.find(bucket)
    assert found is not None and found.keys == (KEY,) and KEY in json.dumps(account.stacks[HOME])
    code, _, said = stoker(*DEPLOY, "--no-kms-key")
    assert code == 0 and f"dropped: {KEY}\n" in said and KEY not in json.dumps(account.stacks[HOME])


@pytest.mark.parametrize("named", ["*", "1234abcd", "arn:aws:kms:us-east-1:123456789012:alias/team", f"{KEY}*"])
def test_what_is_no_key_is_refused(named: str, account: Account, stoker: Stoker) -> None:
    code, _, said = stoker(*DEPLOY, "--kms-key", named)
    assert code == 2 and said.startswith(f"stoker: --kms-key: {named!r} is no key; give its ARN, such as arn:aws:kms:")
    assert account.asked == []


def ec2(profile: str | None) -> Spec:
    return Spec("x", "true", resources=Resources(provider="ec2", ec2=Ec2Resources(profile=profile)))


def sagemaker(role: str | None) -> Spec:
    return Spec("x", "true", resources=Resources(provider="sagemaker", sagemaker=SagemakerResources(role=role)))


def gce(account: str | None) -> Spec:
    return Spec("x", "true", resources=Resources(provider="gce", gce=GceResources(service_account=account)))


@pytest.mark.parametrize(
    ("deployed", "spec"),
    [
        (AWS, ec2(None)),
        (AWS, ec2("stoker-node-1")),
        (AWS, ec2("arn:aws:iam::1:instance-profile/stoker-node-1-x")),
        (AWS, ec2("arn:aws:iam::1:instance-profile/team/vision")),
        (AWS, sagemaker("nlp")),
        (AWS, sagemaker(None)),
        (AWS, sagemaker("stoker-training-x")),
        (AWS, Spec("x", "true", resources=Resources(provider="local"))),
        (GCP, gce(None)),
        (GCP, gce("stoker-node")),
        (GCP, gce("vision")),
        (GCP, gce(VISION)),
    ],
)
def test_nothing_is_said_of_what_it_may_pass(deployed: DeploymentRecord, spec: Spec) -> None:
    assert deployment_record.role_warning(deployed, spec) is None


@pytest.mark.parametrize(
    ("deployed", "spec", "told"),
    [
        (AWS, ec2("stoker-node-2"), "`stoker deploy aws --pass-role stoker-node-2` allows it"),
        (AWS, ec2("stoker-nodes"), "resources.ec2.profile: the governor stoker-1 may not pass the role stoker-nodes, "),
        (AWS, ec2("arn:aws:iam::1:instance-profile/gpu"), "`stoker deploy aws --pass-role gpu` allows it"),
        (AWS, sagemaker("gpu"), "resources.sagemaker.role: the governor stoker-1 may not pass the role gpu"),
        (GCP, gce("stoker-node-x"), "stoker deploy gcp --service-account stoker-node-x@vision-1.iam.gserviceaccount"),
        (
            GCP,
            gce("gpu"),
            "resources.gce.service_account: the governor stoker-1 may not act as gpu@vision-1.iam.gservice",
        ),
        (
            GCP,
            gce("default"),
            "`stoker deploy gcp --service-account NUMBER-compute@developer.gserviceaccount.com` allows",
        ),
    ],
)
def test_what_it_may_not_pass_is_one_line_with_the_option(deployed: DeploymentRecord, spec: Spec, told: str) -> None:
    said = deployment_record.role_warning(deployed, spec)
    assert said is not None and told in said and "\n" not in said


def test_limits_of_clones_are_kept_and_can_be_given_up(account: Account, bucket: MemoryStore, stoker: Stoker) -> None:
    limits = ("--sagemaker", "--clone-role", "team-*", "--clone-machine", "ml.g5.*")
    assert stoker(*DEPLOY, *limits)[0] == 0 and stoker(*DEPLOY)[0] == 0
    found = deployment_record.read(bucket, "aws")
    assert found is not None and (found.clone_roles, found.clone_machines) == (("team-*",), ("ml.g5.*",))
    code, _, said = stoker(*DEPLOY, "--no-clone-role", "--no-clone-machine")
    assert code == 0 and "dropped: team-*" in said and "dropped: ml.g5.*" in said
    found = deployment_record.read(bucket, "aws")
    assert found is not None and (found.clone_roles, found.clone_machines) == ((), ())


@pytest.mark.parametrize("more", [(), ("--no-sagemaker",)])
def test_limits_of_clones_need_clones(account: Account, stoker: Stoker, more: tuple[str, ...]) -> None:
    code, _, said = stoker(*DEPLOY, "--clone-machine", "ml.g5.*", *more)
    assert code == 2 and said.startswith("stoker: --clone-role and --clone-machine: no clones are made without ")
    assert account.asked == []


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--clone-role", "arn:aws:s3:::bucket", "is no role; give its name or its ARN, with * for any text"),
        ("--clone-machine", "g5.xlarge", "is no machine type; write one such as ml.g5.xlarge or ml.g5.*"),
    ],
)
def test_a_limit_of_clones_in_a_wrong_form(
    account: Account, stoker: Stoker, flag: str, value: str, message: str
) -> None:
    code, _, said = stoker(*DEPLOY, flag, value)
    assert code == 2 and said == f"stoker: {flag}: {value!r} {message}\n" and account.asked == []
