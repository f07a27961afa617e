"""`stoker check sagemaker`: what is missing is told, with what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("botocore")

from botocore.exceptions import ClientError

from stoker.model.errors import UserError
from stoker.model.resources import Resources, SagemakerResources
from stoker.model.spec import Limits, Spec
from stoker.providers.base import CheckResult, SupportsQuotaCheck
from stoker.providers.registry import Context
from stoker.providers.sagemaker.provider import SageMakerProvider

SPEC = Spec(name="x", run="true", nodes=2, resources=Resources(provider="sagemaker", machine=("ml.g5.xlarge",)))


def refused(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "x")  # type: ignore[typeddict-item]


class Account:
    """Every client in one: `wrong` are the methods that are refused, with the code."""

    def __init__(self, **wrong: str) -> None:
        self.wrong = wrong
        self.quota = 4.0
        self.longest_s = 432000.0
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
                    {"QuotaName": "Longest run time for a training job", "QuotaCode": "L-3", "Value": self.longest_s},
                    {"QuotaName": "ml.g5.xlarge for training warm pool usage", "QuotaCode": "L-4", "Value": 0.0},
                    {"QuotaName": "something else", "QuotaCode": "L-2", "Value": 0.0},
                ]
            },
        }
        return lambda **_: answers[name]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))

    def looking(account: Account, spec: Spec = SPEC, home: str | None = "us-east-1") -> dict[str, CheckResult]:
        monkeypatch.setattr("stoker.providers.sagemaker.provider.endpoint_address", lambda: None)
        monkeypatch.setattr("stoker.providers.sagemaker.provider.bucket_region", lambda _bucket: home)
        provider = SageMakerProvider(Context("s3://bucket/team"))
        monkeypatch.setattr(provider.clients, "get", lambda *_, **__: account)
        monkeypatch.setattr(provider.clients, "default_region", lambda: "us-east-1")
        return {found.name: found for found in provider.check_account(spec)}

    return looking


def test_all_is_well(look: Any) -> None:
    found = look(Account())
    wrong = {name: each for name, each in found.items() if not each.ok}
    assert wrong == {}
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


def test_the_longest_time_is_the_accounts(look: Any) -> None:
    name = "quota of Longest run time for a training job"
    assert look(Account())[name].detail == "432000 s, and this job needs 432000 s"
    spec = replace(SPEC, limits=Limits(max_runtime_s=6 * 86400.0))
    found = look(Account(), spec)[name]
    assert found.ok is False and "--quota-code L-3 --desired-value 522000" in found.fix


def test_machines_that_are_kept_have_a_quota_of_their_own(look: Any) -> None:
    ours = SagemakerResources(keep_alive_s=600.0)
    spec = replace(SPEC, resources=replace(SPEC.resources, sagemaker=ours, spot="never"))
    found = look(Account(), spec)["quota of ml.g5.xlarge for training warm pool usage"]
    assert found.ok is False and found.detail == "0, and this job needs 2"


def test_a_bucket_in_another_region_is_told_with_both(look: Any) -> None:
    found = look(Account(), home="eu-west-1")["bucket"]
    assert found.ok is False and "us-east-1" in found.detail and "bucket is in eu-west-1" in found.detail
    assert "bucket" not in look(Account(), home=None)


def test_a_submission_compares_the_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.providers.sagemaker.provider.endpoint_address", lambda: None)
    monkeypatch.setattr("stoker.providers.sagemaker.provider.bucket_region", lambda _bucket: "eu-west-1")
    provider = SageMakerProvider(Context("s3://bucket/team"))
    assert isinstance(provider, SupportsQuotaCheck)
    offered = provider.offerings(replace(SPEC.resources, region="us-east-1"))
    with pytest.raises(
        UserError, match=r"^resources\.region: us-east-1, and the store's bucket bucket is in eu-west-1"
    ):
        provider.check_quota(offered, 1)
    provider.check_quota(provider.offerings(replace(SPEC.resources, region="eu-west-1")), 1)
