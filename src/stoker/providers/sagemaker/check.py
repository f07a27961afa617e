"""`stoker check sagemaker`: whether an account has, and allows, what a training job needs. Makes and ends nothing.

SageMaker has no dry runs. What is only looked at is tried; of what is made or ended, IAM is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.spec import SagemakerResources, Spec
from stoker.providers.base import Finding
from stoker.providers.ec2.check import principal
from stoker.providers.ec2.client import INSTALL, installed
from stoker.providers.ec2.errors import calling as calling_aws
from stoker.providers.ec2.verdicts import LATER, said, to_learn, verdict
from stoker.providers.sagemaker.request import DEFAULT_ROLE, life_s

if TYPE_CHECKING:
    from stoker.providers.sagemaker.provider import SageMakerProvider

_POLICIES = "`stoker iam sagemaker` prints the policies"
_CREDENTIALS = "`aws configure`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# What is done, and cannot be tried.
_ACTIONS = (
    "sagemaker:CreateTrainingJob",
    "sagemaker:AddTags",
    "sagemaker:DescribeTrainingJob",
    "sagemaker:StopTrainingJob",
)
_MOST_MACHINES = 4
# Of seconds, for every training job.
_LONGEST = "Longest run time for a training job"


def examine(provider: SageMakerProvider, spec: Spec, store: str) -> Iterator[Finding]:  # noqa: ARG001 - as all providers'
    """Everything, one by one; only without boto3, credentials or a region there is nothing more to look at."""
    if not installed():
        yield Finding("boto3", False, "sagemaker needs boto3", INSTALL)
        return
    clients = provider.clients
    try:
        region = spec.resources.region or clients.default_region()
        if region is None:
            yield Finding("region", False, "none is named", "set resources.region, or AWS_REGION")
            return
        identity = calling_aws("sts", clients.get("sts", region).get_caller_identity)
    except (ProviderError, UserError) as error:
        yield Finding("credentials", False, said(error), _CREDENTIALS)
        return
    yield Finding("credentials", True, f"{identity['Arn']} in account {identity['Account']}")
    checks = _Checks(provider, replace(spec, resources=replace(spec.resources, region=region)), identity)
    for part in (checks.region, checks.bucket, checks.offers, checks.permissions, checks.role, checks.limits):
        yield from part()


class _Checks:
    """One look at one account. Each part yields what it found, and raises no ProviderError."""

    def __init__(self, provider: SageMakerProvider, spec: Spec, identity: Mapping[str, Any]) -> None:
        self._provider = provider
        self._spec = spec
        self._identity = identity
        self._offered: tuple[Offering, ...] = ()

    def _client(self, service: str) -> Any:
        return self._provider.clients.get(service, self._spec.resources.region)

    def region(self) -> Iterator[Finding]:
        where = self._spec.resources.region
        try:
            hosts = self._provider.list_instances(where)
        except ProviderError as error:
            fix = f"allow sagemaker:ListTrainingJobs; {_POLICIES}" if isinstance(error, AuthDenied) else LATER
            yield Finding("region", verdict(error), f"{where}: {said(error)}", fix)
            return
        count = len(hosts)
        yield Finding("region", True, f"{where} answers; {count} host{'' if count == 1 else 's'} of this store")

    def bucket(self) -> Iterator[Finding]:
        try:
            home = self._provider.check_bucket(self._spec.resources.region)
        except UserError as error:
            yield Finding("bucket", False, str(error))
            return
        if home is not None:
            yield Finding("bucket", True, f"it is in {home}, too")

    def offers(self) -> Iterator[Finding]:
        try:
            found = self._provider.offerings(self._spec.resources)
        except (ProviderError, UserError) as error:
            yield Finding("offers", verdict(error), said(error))
            return
        wanted = {"never": (False,), "only": (True,), "prefer": (True, False)}[self._spec.resources.spot]
        self._offered = tuple(offering for kind in wanted for offering in found if offering.spot == kind)
        if not self._offered:
            yield Finding("offers", False, self._provider.why_none(self._spec.resources), "`stoker offers` lists more")
            return
        yield Finding("offers", True, f"{len(self._offered)} offerings; first {self._offered[0].key}")
        if all(offering.on_demand_price is None for offering in self._offered):
            fix = "`stoker prices --provider sagemaker --refresh` asks AWS"
            yield Finding("prices", None, "no price of these machines is known here", fix)

    def permissions(self) -> Iterator[Finding]:
        asked = {"PolicySourceArn": principal(str(self._identity["Arn"])), "ActionNames": list(_ACTIONS)}
        try:
            answer = calling_aws("iam", lambda: self._client("iam").simulate_principal_policy(**asked))
        except ProviderError as error:
            fix = to_learn(error, "iam:SimulatePrincipalPolicy")
            yield Finding("permissions", None, f"could not be told: {said(error)}", fix)
            return
        for each in answer["EvaluationResults"]:
            action, allowed = each["EvalActionName"], each["EvalDecision"] == "allowed"
            # Policies that ask for the store's tag are not met by a question without one.
            yield Finding(action, True if allowed else None, each["EvalDecision"], "" if allowed else _POLICIES)

    def role(self) -> Iterator[Finding]:
        """The role of the training jobs, and whether SageMaker may take it on."""
        ours = self._spec.resources.sagemaker or SagemakerResources()
        name = (ours.role or DEFAULT_ROLE).rpartition("/")[2]
        fix = f"set resources.sagemaker.role to one that is there; {_POLICIES} and make one"
        try:
            found = calling_aws("role", lambda: self._client("iam").get_role(RoleName=name))["Role"]
        except NotFound:
            yield Finding("role", False, f"there is no role {name}", fix)
            return
        except ProviderError as error:
            yield Finding("role", None, said(error), to_learn(error, "iam:GetRole"))
            return
        if "sagemaker.amazonaws.com" in str(found.get("AssumeRolePolicyDocument", "")):
            yield Finding("role", True, f"{found['Arn']}")
        else:
            yield Finding("role", False, f"{name} does not trust sagemaker.amazonaws.com", _POLICIES)

    def limits(self) -> Iterator[Finding]:
        """SageMaker counts machines, for each type, spot and on-demand apart. Quotas are found by their names."""
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
            fix = to_learn(error, "servicequotas:ListServiceQuotas")
            yield Finding("quotas", None, f"could not be told: {said(error)}", fix)
            return
        for name, need in wanted.items():
            if name not in found:
                yield Finding(f"quota of {name}", None, "Service Quotas does not list it in this region")
                continue
            code, value = found[name]
            seconds = " s" if name == _LONGEST else ""
            detail = f"{value:.15g}{seconds}, and this job needs {need}{seconds}"
            # Another machine may still do.
            ok = True if value >= need else (None if machines > 1 and name != _LONGEST else False)
            fix = (
                f"aws service-quotas request-service-quota-increase --region {self._spec.resources.region}"
                f" --service-code sagemaker --quota-code {code} --desired-value {need}"
            )
            yield Finding(f"quota of {name}", ok, detail, "" if ok else fix)

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
