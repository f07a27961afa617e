"""A machine may read the secrets that were asked for, and no other."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase
from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.providers.ec2 import iam as ec2
from stoker.providers.gce import iam as gce
from stoker.providers.grants import Grants, IamModule

S3, GCS = "s3://my-bucket/team", "gs://my-bucket/team"


def node(grants: Grants) -> dict[str, Any]:
    (found,) = [grant.policy for grant in grants.grants if grant.name == "node"]
    return found


def may(secrets: tuple[str, ...], action: str, resource: str) -> bool:
    for statement in node(ec2.grants(S3, secrets=secrets))["Statement"]:
        actions, patterns = (
            [value] if isinstance(value, str) else value for value in (statement["Action"], statement["Resource"])
        )
        if action in actions and any(fnmatchcase(resource, pattern) for pattern in patterns):
            return True
    return False


HF = "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf/token-AbCdEf"


def test_nothing_is_granted_unasked() -> None:
    assert node(ec2.grants(S3)) == node(ec2.grants(S3, secrets=()))
    assert not may((), "secretsmanager:GetSecretValue", HF)
    assert "secretmanager" not in str(node(gce.grants(GCS)))


def test_secrets_of_aws_by_name_and_by_arn() -> None:
    action = "secretsmanager:GetSecretValue"
    for reference in ("aws-sm:hf/token", "aws-sm:hf/token#key", f"aws-sm:{HF}"):
        assert may((reference,), action, HF)
        assert not may((reference,), action, HF.replace("hf/token", "hf/token-of-others"))
    parameter = "arn:aws:ssm:us-east-1:123456789012:parameter/prod/token"
    for reference in ("aws-ssm:/prod/token", "aws-ssm:prod/token:3", f"aws-ssm:{parameter}"):
        assert may((reference,), "ssm:GetParameter", parameter)
        assert not may((reference,), "ssm:GetParameter", parameter + "s")
    assert any("kms:Decrypt" in note for note in ec2.grants(S3, secrets=("aws-sm:x",)).notes)


def test_tokens_of_aws_come_with_what_they_are_for() -> None:
    there = "arn:aws:codeartifact:us-east-1:123456789012:"
    for reference in ("aws-codeartifact:team", "aws-codeartifact:team@123456789012"):
        assert may((reference,), "codeartifact:GetAuthorizationToken", there + "domain/team")
        assert may((reference,), "codeartifact:ReadFromRepository", there + "repository/team/pypi")
        assert not may((reference,), "codeartifact:ReadFromRepository", there + "repository/other/pypi")
    assert not may(("aws-codeartifact:team@210987654321",), "codeartifact:GetAuthorizationToken", there + "domain/team")
    assert may(("aws-ecr",), "ecr:GetAuthorizationToken", "*")
    assert may(("aws-ecr",), "ecr:BatchGetImage", "arn:aws:ecr:us-east-1:123456789012:repository/trainer")


def test_statements_have_names_of_their_own() -> None:
    secrets = ("aws-sm:a", "aws-sm:b", "aws-ecr", "aws-codeartifact:team")
    names = [statement["Sid"] for statement in node(ec2.grants(S3, secrets=secrets))["Statement"]]
    assert len(names) == len(set(names))
    assert all(name.isalnum() for name in names)


def test_secrets_of_google_are_bound_to_one_by_one() -> None:
    secrets = ("gcp-sm:hf@3#key", "gcp-sm:projects/other-1/secrets/db/versions/2", "gcp-token")
    found = gce.grants(GCS, secrets=secrets)
    bound = [each for each in node(found)["bindings"] if each["role"] == "roles/secretmanager.secretAccessor"]
    assert [each["on"] for each in bound] == ["secrets/hf", "projects/other-1/secrets/db"]
    (commands,) = [grant.commands for grant in found.grants if grant.name == "node"]
    words = [shlex.split(command) for command in commands if "secrets add-iam-policy-binding" in command]
    assert words[0][:6] == ["gcloud", "secrets", "add-iam-policy-binding", "hf", "--project", "$PROJECT"]
    assert words[1][:6] == ["gcloud", "secrets", "add-iam-policy-binding", "db", "--project", "other-1"]
    assert all(each[each.index("--condition") + 1] == "None" for each in words)


def test_a_token_of_googles_opens_packages_and_images() -> None:
    reader = {"on": "project", "role": "roles/artifactregistry.reader"}
    assert reader in node(gce.grants(GCS, secrets=("gcp-token",)))["bindings"]
    assert reader not in node(gce.grants(GCS, secrets=("gcp-sm:hf",)))["bindings"]


@pytest.mark.parametrize(
    ("granting", "store", "wrong"),
    [(ec2, S3, "gcp-sm:x"), (ec2, S3, "env:X"), (ec2, S3, "hunter2"), (gce, GCS, "aws-sm:x"), (gce, GCS, "env")],
)
def test_what_such_machines_cannot_read_is_refused(granting: IamModule, store: str, wrong: str) -> None:
    with pytest.raises(UserError, match=r"^--secret: machines on .* read .*; give what the job file has$") as failure:
        granting.grants(store, secrets=(wrong,))
    assert "hunter2" not in str(failure.value)
