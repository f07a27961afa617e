"""`stoker check sagemaker`: what is missing is told, with what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("botocore")

from botocore.exceptions import ClientError

from stoker.providers.base import Finding
from stoker.providers.registry import Context
from stoker.providers.sagemaker.provider import SageMakerProvider
from stoker.spec import Resources, Spec

SPEC = Spec(name="x", run="true", nodes=2, resources=Resources(provider="sagemaker", machine=("ml.g5.xlarge",)))


def refused(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "x")  # type: ignore[typeddict-item]


class Account:
    """Every client in one: `wrong` are the methods that are refused, with the code."""

    def __init__(self, **wrong: str) -> None:
        self.wrong = wrong
        self.quota = 4.0
        self.trust: dict[str, Any] = {"Statement": [{"Principal": {"Service": "sagemaker.amazonaws.com"}}]}

    def __getattr__(self, name: str) -> Any:
        if name in self.wrong:

            def refuse(**_: Any) -> None:
                raise refused(self.wrong[name])

            return refuse
        answers = {
            "get_caller_identity": {"Arn": "arn:aws:iam::1:user/jane", "Account": "1"},
            "list_training_jobs": {"TrainingJobSummaries": []},
            "get_role": {
                "Role": {"Arn": "arn:aws:iam::1:role/stoker-training", "AssumeRolePolicyDocument": self.trust}
            },
            "simulate_principal_policy": {
                "EvaluationResults": [{"EvalActionName": "sagemaker:CreateTrainingJob", "EvalDecision": "allowed"}]
            },
            "list_service_quotas": {
                "Quotas": [
                    {"QuotaName": "ml.g5.xlarge for training job usage", "QuotaCode": "L-1", "Value": self.quota},
                    {"QuotaName": "something else", "QuotaCode": "L-2", "Value": 0.0},
                ]
            },
        }
        return lambda **_: answers[name]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))

    def looking(account: Account) -> dict[str, Finding]:
        provider = SageMakerProvider(Context("s3://bucket/team"))
        monkeypatch.setattr(provider.clients, "get", lambda *_, **__: account)
        monkeypatch.setattr(provider.clients, "default_region", lambda: "us-east-1")
        return {found.name: found for found in provider.checkup(SPEC)}

    return looking


def test_all_is_well(look: Any) -> None:
    found = look(Account())
    wrong = {name: each for name, each in found.items() if not each.ok}
    # No price is known until somebody asks for it.
    assert list(wrong) == ["prices"] and "--refresh" in wrong["prices"].fix
    assert found["quota of ml.g5.xlarge for training job usage"].detail == "4, and this job needs 2"


def test_each_thing_that_is_missing_says_what_to_do(look: Any) -> None:
    account = Account()
    account.quota = 1.0
    quota = look(account)["quota of ml.g5.xlarge for training job usage"]
    assert quota.ok is False and "--quota-code L-1 --desired-value 2" in quota.fix
    assert look(Account(get_role="NoSuchEntity"))["role"].ok is False
    account = Account()
    account.trust = {"Statement": [{"Principal": {"Service": "ec2.amazonaws.com"}}]}
    assert "does not trust" in look(account)["role"].detail
    denied = look(Account(list_training_jobs="AccessDeniedException"))["region"]
    assert denied.ok is False and "sagemaker:ListTrainingJobs" in denied.fix


def test_what_cannot_be_told_is_not_wrong(look: Any) -> None:
    found = look(
        Account(
            get_role="AccessDenied",
            simulate_principal_policy="AccessDenied",
            list_service_quotas="AccessDeniedException",
            list_training_jobs="ThrottlingException",
        )
    )
    assert {found[name].ok for name in ("role", "permissions", "quotas", "region")} == {None}


def test_without_credentials_there_is_nothing_more_to_look_at(look: Any) -> None:
    found = look(Account(get_caller_identity="InvalidClientTokenId"))
    assert list(found) == ["credentials"] and found["credentials"].ok is False
