"""What AWS has to allow for training jobs: what is needed, and no more."""

from __future__ import annotations

import json
import subprocess
from fnmatch import fnmatchcase
from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.providers.console_links import NodeIdentity
from stoker.providers.grants import Grants
from stoker.providers.sagemaker import iam, links, names

STORE = "s3://my-bucket/team"


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def may(grants: Grants, name: str, action: str, arn: str) -> bool:
    (policy,) = [grant.policy for grant in grants.grants if grant.name == name]
    return any(
        any(fnmatchcase(action, one) for one in listed(statement["Action"]))
        and any(fnmatchcase(arn, one) for one in listed(statement["Resource"]))
        for statement in policy["Statement"]
    )


def ours(job: str = "gpt-7f3k") -> str:
    return f"arn:aws:sagemaker:us-east-1:1:training-job/{names.training_job(STORE, job, 1, 1)}"


def at(key: str) -> str:
    return f"arn:aws:s3:::my-bucket/team/{key}"


def test_governors_touch_training_jobs_of_this_store_alone() -> None:
    found = iam.grants(STORE)
    for action in ("CreateTrainingJob", "StopTrainingJob", "DescribeTrainingJob", "AddTags", "ListTags"):
        assert may(found, "governor", f"sagemaker:{action}", ours())
        assert not may(found, "governor", f"sagemaker:{action}", "arn:aws:sagemaker:us-east-1:1:training-job/theirs")
    for plan in ("training-plan/mine", "reserved-capacity/mine"):
        assert may(found, "governor", "sagemaker:CreateTrainingJob", f"arn:aws:sagemaker:us-east-1:1:{plan}")
    assert may(found, "governor", "iam:PassRole", "arn:aws:iam::1:role/stoker-training")
    assert not may(found, "governor", "iam:PassRole", "arn:aws:iam::1:role/admin")
    assert not may(found, "governor", "ec2:RunInstances", "arn:aws:ec2:us-east-1:1:instance/i-1")


def test_training_jobs_write_facts_and_nothing_else() -> None:
    found = iam.grants(STORE, inputs=("s3://data/imagenet",), logs="/stoker/jobs", secrets=("aws-sm:hf/token",))
    assert may(found, "training", "s3:PutObject", at("work/gpt-7f3k/00000001/0/x.0/heartbeat"))
    assert may(found, "training", "s3:PutObject", at("work/gpt-7f3k/sagemaker/x/output/model.tar.gz"))
    assert may(found, "training", "s3:GetObject", at("bundles/0.tar.gz"))
    assert may(found, "training", "s3:GetObject", "arn:aws:s3:::data/imagenet/x")
    assert may(found, "training", "logs:PutLogEvents", "arn:aws:logs:us-east-1:1:log-group:/stoker/jobs:x")
    assert may(found, "training", "secretsmanager:GetSecretValue", "arn:aws:secretsmanager:r:1:secret:hf/token-abcdef")
    assert not may(found, "training", "s3:PutObject", at("jobs/gpt-7f3k/log/00000001.json"))
    for action in ("CreateTrainingJob", "StopTrainingJob", "AddTags"):
        assert not may(found, "training", f"sagemaker:{action}", ours())


def test_one_job_s_role_reaches_that_job() -> None:
    found = iam.grants(STORE, job="gpt")
    assert may(found, "training", "s3:PutObject", at("work/gpt-7f3k/x"))
    assert not may(found, "training", "s3:PutObject", at("work/other-7f3k/x"))
    (role,) = [grant for grant in found.grants if grant.name == "training"]
    assert "stoker-training-gpt" in role.commands[0]
    assert role.trust is not None and "sagemaker.amazonaws.com" in json.dumps(role.trust)


def test_the_script_is_one() -> None:
    for grant in iam.grants(STORE).grants:
        for command in grant.commands:
            subprocess.run(["sh", "-n"], input=command, text=True, check=True)
        assert len(json.dumps(grant.policy, separators=(",", ":"))) < 6144, "more than a managed policy takes"
    with pytest.raises(UserError):
        iam.grants("gs://bucket/x")


def test_links_lead_to_the_training_job() -> None:
    name = names.training_job(STORE, "gpt-7f3k", 3, 2)
    host = names.host(name, 1)
    assert links.name(NodeIdentity(STORE, "gpt-7f3k", 3, 1, 2, 1)) == name
    assert links.machine(host, "eu-west-1") == (
        f"https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/{name}"
    )
    assert f"{name}/algo-2" in str(links.own_logs(host, "eu-west-1"))
    assert name in str(links.own_logs_link(host, "eu-west-1"))
    assert links.machine("i-0123", "eu-west-1") is None
