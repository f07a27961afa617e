"""`stoker check sagemaker`: check that an account has, and allows, what a training job needs. Changes nothing.

SageMaker has no dry runs. Calls that only read are tried; for calls that create or end something, IAM is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import SagemakerResources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult
from stoker.providers.check_results import TRY_LATER, check_offers, check_ok
from stoker.providers.ec2.check import principal
from stoker.providers.ec2.errors import call_aws as calling_aws
from stoker.providers.ec2.identity_check import check_identity
from stoker.providers.ec2.verdicts import aws_message, permission_fix
from stoker.providers.sagemaker.request import DEFAULT_ROLE, life_s

if TYPE_CHECKING:
    from stoker.providers.sagemaker.provider import SageMakerProvider

_POLICIES = "`stoker iam sagemaker` prints the policies"
# Calls that cannot be tried without an effect.
_ACTIONS = (
    "sagemaker:CreateTrainingJob",
    "sagemaker:AddTags",
    "sagemaker:DescribeTrainingJob",
    "sagemaker:StopTrainingJob",
)
_MOST_MACHINES = 4
# The name of the quota of seconds for any training job.
_LONGEST = "Longest run time for a training job"


def check_account(provider: SageMakerProvider, spec: Spec, store: str) -> Iterator[CheckResult]:  # noqa: ARG001 - as all providers'
    """Yield the result of each check. Stops early only without boto3, credentials or a region."""
    found = yield from check_identity(provider.name, provider.clients, spec.resources.only_region)
    if found is None:
        return
    region, identity = found
    checks = _Checks(
        provider,
        spec if spec.resources.region else replace(spec, resources=replace(spec.resources, region=region)),
        identity,
    )
    for part in (checks.region, checks.bucket, checks.offers, checks.permissions, checks.role, checks.limits):
        yield from part()


class _Checks:
    """The checks of one account. Each part yields its results, and raises no ProviderError."""

    def __init__(self, provider: SageMakerProvider, spec: Spec, identity: Mapping[str, Any]) -> None:
        self._provider = provider
        self._spec = spec
        self._identity = identity
        self._offered: tuple[Offering, ...] = ()

    def _client(self, service: str) -> Any:
        return self._provider.clients.get(service, self._spec.resources.only_region)

    def region(self) -> Iterator[CheckResult]:
        where = self._spec.resources.only_region
        try:
            hosts = self._provider.list_instances(where)
        except ProviderError as error:
            fix = f"allow sagemaker:ListTrainingJobs; {_POLICIES}" if isinstance(error, AuthDenied) else TRY_LATER
            yield CheckResult("region", check_ok(error), f"{where}: {aws_message(error)}", fix)
            return
        count = len(hosts)
        yield CheckResult("region", True, f"{where} answers; {count} host{'' if count == 1 else 's'} of this store")

    def bucket(self) -> Iterator[CheckResult]:
        try:
            home = self._provider.check_bucket(self._spec.resources.only_region)
        except UserError as error:
            yield CheckResult("bucket", False, str(error))
            return
        if home is not None:
            yield CheckResult("bucket", True, f"it is in {home}, too")

    def offers(self) -> Iterator[CheckResult]:
        self._offered, result = check_offers(
            self._provider, self._spec.resources, lambda error: (aws_message(error), "")
        )
        yield result
        if self._offered and all(offering.on_demand_price is None for offering in self._offered):
            fix = "`stoker prices --provider sagemaker --refresh` asks AWS"
            yield CheckResult("prices", None, "no price of these machines is known here", fix)

    def permissions(self) -> Iterator[CheckResult]:
        asked = {"PolicySourceArn": principal(str(self._identity["Arn"])), "ActionNames": list(_ACTIONS)}
        try:
            answer = calling_aws("iam", lambda: self._client("iam").simulate_principal_policy(**asked))
        except ProviderError as error:
            fix = permission_fix(error, "iam:SimulatePrincipalPolicy")
            yield CheckResult("permissions", None, f"not known: {aws_message(error)}", fix)
            return
        for each in answer["EvaluationResults"]:
            action, allowed = each["EvalActionName"], each["EvalDecision"] == "allowed"
            # A denial is no proof: policies with a condition on the store's tag are not met by a simulation without it.
            yield CheckResult(action, True if allowed else None, each["EvalDecision"], "" if allowed else _POLICIES)

    def role(self) -> Iterator[CheckResult]:
        """The role of the training jobs, which must exist and trust SageMaker."""
        ours = self._spec.resources.sagemaker or SagemakerResources()
        name = (ours.role or DEFAULT_ROLE).rpartition("/")[2]
        fix = f"set resources.sagemaker.role to one that is there; {_POLICIES} and make one"
        try:
            found = calling_aws("role", lambda: self._client("iam").get_role(RoleName=name))["Role"]
        except NotFound:
            yield CheckResult("role", False, f"there is no role {name}", fix)
            return
        except ProviderError as error:
            yield CheckResult("role", None, aws_message(error), permission_fix(error, "iam:GetRole"))
            return
        if "sagemaker.amazonaws.com" in str(found.get("AssumeRolePolicyDocument", "")):
            yield CheckResult("role", True, f"{found['Arn']}")
        else:
            yield CheckResult("role", False, f"{name} does not trust sagemaker.amazonaws.com", _POLICIES)

    def limits(self) -> Iterator[CheckResult]:
        """The quotas. SageMaker counts machines by type, spot and on-demand separately. Quotas are found by name."""
        wanted = {_quota(each): self._spec.nodes for each in self._offered[:_MOST_MACHINES]}
        if not wanted:
            return
        ours = self._spec.resources.sagemaker or SagemakerResources()
        machines = len(wanted)
        if ours.keep_alive_s is not None:
            wanted |= {_pool(each): self._spec.nodes for each in self._offered[:_MOST_MACHINES] if not each.spot}
        wanted[_LONGEST] = life_s(self._spec)
        try:
            found = self._quotas(set(wanted))
        except ProviderError as error:
            fix = permission_fix(error, "servicequotas:ListServiceQuotas")
            yield CheckResult("quotas", None, f"not known: {aws_message(error)}", fix)
            return
        for name, need in wanted.items():
            if name not in found:
                yield CheckResult(f"quota of {name}", None, "Service Quotas does not list it in this region")
                continue
            code, value = found[name]
            seconds = " s" if name == _LONGEST else ""
            detail = f"{value:.15g}{seconds}, and this job needs {need}{seconds}"
            # Another machine type may still fit.
            ok = True if value >= need else (None if machines > 1 and name != _LONGEST else False)
            fix = (
                f"aws service-quotas request-service-quota-increase --region {self._spec.resources.only_region}"
                f" --service-code sagemaker --quota-code {code} --desired-value {need}"
            )
            yield CheckResult(f"quota of {name}", ok, detail, "" if ok else fix)

    def _quotas(self, wanted: set[str]) -> dict[str, tuple[str, float]]:
        client = self._client("service-quotas")
        found: dict[str, tuple[str, float]] = {}
        asked: dict[str, Any] = {"ServiceCode": "sagemaker", "MaxResults": 100}
        while wanted - set(found):
            answer = calling_aws("quotas", lambda: client.list_service_quotas(**asked))
            found |= {
                each["QuotaName"]: (each["QuotaCode"], float(each["Value"]))
                for each in answer["Quotas"]
                if each["QuotaName"] in wanted
            }
            if not answer.get("NextToken"):
                break
            asked["NextToken"] = answer["NextToken"]
        return found


def _pool(offering: Offering) -> str:
    return f"{offering.machine} for training warm pool usage"


def _quota(offering: Offering) -> str:
    return f"{offering.machine} for {'spot training' if offering.spot else 'training'} job usage"
