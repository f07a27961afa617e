"""`stoker check ec2`: check whether an account has, and allows, what a job needs. Makes nothing and ends nothing.

EC2 reveals permissions by dry runs: `DryRunOperation` means allowed, `UnauthorizedOperation` denied. An operation that
needs an existing resource is tried on a machine of this store; without one, IAM is asked; otherwise the result stays
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult, LaunchOrder, Request
from stoker.providers.check_results import TRY_LATER, check_offers, check_ok
from stoker.providers.cloud_errors import first_line
from stoker.providers.ec2 import images, permissions, quotas, request, reservations, role_names, statements, tags
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.identity_check import check_identity
from stoker.providers.ec2.network_check import check_network
from stoker.providers.ec2.verdicts import (
    POLICIES,
    DryRunResult,
    answer_of,
    aws_message,
    dry_run_result,
    fix_of,
    permission_fix,
)

if TYPE_CHECKING:
    from stoker.providers.ec2.provider import Ec2Provider

# A machine type that can be in a placement group, whatever the job requests.
_CLUSTERED = "m5.large"


def check_account(provider: Ec2Provider, spec: Spec, store: str) -> Iterator[CheckResult]:
    """Run every check, one by one; without boto3, credentials or a region the checks end there."""
    found = yield from check_identity(provider.name, provider.clients, spec.resources.only_region)
    if found is None:
        return
    region, identity = found
    checks = _AccountChecks(
        provider,
        spec if spec.resources.region else replace(spec, resources=replace(spec.resources, region=region)),
        store,
        identity,
    )
    for part in (
        checks.region,
        checks.offers,
        checks.launch,
        checks.read_actions,
        checks.machine_actions,
        checks.profile,
        checks.key,
        checks.limits,
        checks.image,
        checks.network,
    ):
        yield from part()


class _AccountChecks:
    """The checks of one account. Each part yields its results and raises no ProviderError."""

    def __init__(self, provider: Ec2Provider, spec: Spec, store: str, identity: Mapping[str, Any]) -> None:
        self._provider = provider
        self._spec = spec
        self._ec2_resources = spec.resources.ec2 or Ec2Resources()
        self._store = store
        self._tag = tags.store_tag(store)
        self._identity = identity
        self._offered: tuple[Offering, ...] = ()

    def _client(self, service: str) -> Any:
        return self._provider.clients.get(service, self._spec.resources.only_region)

    # ── Where, and what ───────────────────────────────────────────────────────────────────────────────────────────────

    def region(self) -> Iterator[CheckResult]:
        try:
            machines = self._provider.list_instances(self._spec.resources.only_region)
        except ProviderError as error:
            denied = answer_of(error).get("Error", {}).get("Code") == "UnauthorizedOperation"
            fix = self._fix("ec2:DescribeInstances") if denied else "is it a region, and enabled in this account?"
            yield CheckResult(
                "region", check_ok(error), f"{self._spec.resources.only_region}: {aws_message(error)}", fix
            )
            return
        count = len(machines)
        there = f"{count} machine{'' if count == 1 else 's'} of this store"
        yield CheckResult("region", True, f"{self._spec.resources.only_region} answers; {there}")

    def offers(self) -> Iterator[CheckResult]:
        self._offered, result = check_offers(
            self._provider, self._spec.resources, lambda error: (aws_message(error), fix_of(error))
        )
        yield result

    # ── Permissions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self) -> Iterator[CheckResult]:
        """Dry-run exactly the request that a job would send. It needs CreateTags and PassRole as well."""
        if not self._offered:
            yield CheckResult("ec2:RunInstances", None, "not tried: there are no offerings", "see offers")
            return
        try:
            requests = tuple(self._provider.resolved(self._requests()))
        except (ProviderError, UserError) as error:
            yield CheckResult("ec2:RunInstances", check_ok(error), aws_message(error), fix_of(error))
            return
        for each in requests:
            result = self._dry_run(each.operation, each.params)
            action = f"ec2:{each.operation}"
            if result.denied and each.operation == "RunInstances":
                action = self._denied_action(each.params)
            yield self._result(action, result)

    def _requests(self) -> tuple[Request, ...]:
        """The requests for one machine, and for the placement group of a gang."""
        order = LaunchOrder(
            job="check",
            name="check",
            claim=1,
            nodes=1,
            attempt=1,
            store=self._store,
            spec=self._spec,
            submitter="stoker check",
            offering=self._offered[0],
        )
        gang = request.build(replace(order, nodes=2, offering=replace(order.offering, machine=_CLUSTERED)))
        groups = [each for each in gang if each.operation == "CreatePlacementGroup"]
        return (*groups, *request.build(order))

    def _denied_action(self, params: Mapping[str, Any]) -> str:
        """Find out which action was denied: RunInstances itself, or passing the role or setting the tags with it."""
        for part, action in (("IamInstanceProfile", "iam:PassRole"), ("TagSpecifications", "ec2:CreateTags")):
            if self._dry_run("RunInstances", {key: value for key, value in params.items() if key != part}).ok:
                return action
        return "ec2:RunInstances"

    def read_actions(self) -> Iterator[CheckResult]:
        for operation in permissions.GOVERNOR:
            service, _, name = operation.action.partition(":")
            if operation.scope == "anything" and service == "ec2":
                yield self._result(operation.action, self._dry_run(name, {}))
        yield from self._list_group()

    def _list_group(self) -> Iterator[CheckResult]:
        """List the resource group of reservations that the job names: no other job asks this service."""
        group = reservations.group_of(self._spec.resources)
        if group is None:
            return
        action = "resource-groups:ListGroupResources"
        try:
            count = len(reservations.list_group(self._client("resource-groups"), group))
        except ProviderError as error:
            denied = isinstance(error, AuthDenied)
            yield CheckResult(
                action, check_ok(error), aws_message(error), self._fix(action) if denied else fix_of(error)
            )
        else:
            yield CheckResult(action, True, f"allowed; {group} holds {count} reservation{'' if count == 1 else 's'}")

    def machine_actions(self) -> Iterator[CheckResult]:
        """Check the actions on existing machines."""
        machine = self._running_machine()
        left = []
        for action in (operation.action for operation in permissions.GOVERNOR if operation.scope == "ours"):
            params = _ON_MACHINES.get(action)
            if machine is None or params is None:
                left.append(action)
            else:
                yield self._result(action, self._dry_run(action.removeprefix("ec2:"), params(machine)))
        yield from self._simulate(left)

    def _running_machine(self) -> str | None:
        try:
            found = self._provider.list_instances(self._spec.resources.only_region)
        except ProviderError:
            return None
        return next((each.id for each in found if each.state == "running"), None)

    def _simulate(self, actions: list[str]) -> Iterator[CheckResult]:
        """Ask IAM how it would decide about a resource that carries this store's tag."""
        if not actions:
            return
        source = principal(str(self._identity["Arn"]))
        entry = {
            "ContextKeyName": f"aws:ResourceTag/{tags.STORE}",
            "ContextKeyValues": [self._tag],
            "ContextKeyType": "string",
        }
        asked = {"PolicySourceArn": source, "ActionNames": actions, "ContextEntries": [entry]}
        try:
            answer = call_aws("iam", lambda: self._client("iam").simulate_principal_policy(**asked))
        except ProviderError:
            why = "cannot be tried before this store has a machine, and IAM may not be asked"
            for action in actions:
                yield CheckResult(action, None, why, "allow iam:SimulatePrincipalPolicy to learn it now")
            return
        for result in answer["EvaluationResults"]:
            ok = result["EvalDecision"] == "allowed"
            detail = "allowed, says IAM" if ok else f"denied, says IAM ({result['EvalDecision']})"
            yield self._result(result["EvalActionName"], DryRunResult(ok, detail, denied=not ok))

    def _dry_run(self, operation: str, params: Mapping[str, Any]) -> DryRunResult:
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        method: Callable[..., Any] = getattr(self._client("ec2"), xform_name(operation))
        try:
            method(**params, DryRun=True)
        except ClientError as error:
            details = error.response.get("Error", {})
            return dry_run_result(
                str(details.get("Code", "")), str(details.get("Message", "")), _status(error.response)
            )
        except (BotoCoreError, ResponseParserError) as error:
            return DryRunResult(None, first_line(error), fix=TRY_LATER)
        return DryRunResult(True, "allowed")

    def _result(self, action: str, result: DryRunResult) -> CheckResult:
        return CheckResult(action, result.ok, result.detail, self._fix(action) if result.denied else result.fix)

    def _fix(self, action: str) -> str:
        if action == "iam:PassRole":
            return f"allow iam:PassRole for the role of {self._profile()}; {POLICIES}"
        return f"add {statements.statement_for(action, self._tag)}"

    # ── What has to be there ──────────────────────────────────────────────────────────────────────────────────────────

    def _profile(self) -> str:
        return self._ec2_resources.profile or role_names.node_role(self._store)

    def profile(self) -> Iterator[CheckResult]:
        name = self._profile().rpartition("/")[2]
        try:
            answer = call_aws(name, lambda: self._client("iam").get_instance_profile(InstanceProfileName=name))
        except NotFound:
            fix = f"{POLICIES} and the commands that make it; resources.ec2.profile names another"
            yield CheckResult("instance profile", False, f"there is no {name}", fix)
            return
        except ProviderError as error:
            yield CheckResult(
                "instance profile", None, aws_message(error), permission_fix(error, "iam:GetInstanceProfile")
            )
            return
        roles = [role["RoleName"] for role in answer["InstanceProfile"]["Roles"]]
        fix = f"aws iam add-role-to-instance-profile --instance-profile-name {name} --role-name {name}"
        if roles:
            yield CheckResult("instance profile", True, f"{name}, with the role {roles[0]}")
        else:
            yield CheckResult("instance profile", False, f"{name} has no role", fix)

    def key(self) -> Iterator[CheckResult]:
        """Check the key pair. A job need not name one: there are other ways to log in to its machines."""
        name = self._ec2_resources.key
        if name is None:
            return
        try:
            call_aws("resources.ec2.key", lambda: self._client("ec2").describe_key_pairs(KeyNames=[name]))
        except (InvalidRequest, NotFound) as error:
            yield CheckResult("key", False, aws_message(error), fix_of(error))
        except ProviderError as error:
            yield CheckResult("key", None, aws_message(error), permission_fix(error, "ec2:DescribeKeyPairs"))
        else:
            yield CheckResult("key", True, f"{name} is there")

    def limits(self) -> Iterator[CheckResult]:
        needs = quotas.needed(self._offered, self._spec.nodes)
        client = self._client("service-quotas")
        for quota in (quota for quota in quotas.QUOTAS if not quota.rare or quota.code in needs):
            name = f"quota of {quota.name}"
            asked = {"ServiceCode": quotas.SERVICE, "QuotaCode": quota.code}
            try:
                answer = call_aws("quota", lambda: client.get_service_quota(**asked))  # noqa: B023 - called at once
            except NotFound:
                yield CheckResult(name, None, "unknown: Service Quotas does not list it in this region")
                continue
            except ProviderError as error:
                fix = permission_fix(error, "servicequotas:GetServiceQuota")
                yield CheckResult(name, None, f"unknown: {aws_message(error)}", fix)
                continue
            yield self._quota_result(quota, name, float(answer["Quota"]["Value"]), needs.get(quota.code))

    def _quota_result(self, quota: quotas.Quota, name: str, value: float, need: int | None) -> CheckResult:
        detail = f"{value:g} vCPUs" + (f", and this job needs {need}" if need else "")
        increase = quotas.increase_command(quota, self._spec.resources.only_region, need)
        if need is not None and value < need:
            # Another family, or on-demand, may still be possible.
            others = {quotas.quota_of(each.machine, each.spot) for each in self._offered} - {quota}
            return CheckResult(name, None if others else False, detail, increase)
        return (
            CheckResult(name, True, detail)
            if value > 0
            else CheckResult(name, None, f"{detail}: no machine can be launched", increase)
        )

    def image(self) -> Iterator[CheckResult]:
        """Check the image's public parameter, which EC2 resolves with the permissions of the launching account."""
        arch = "x86_64" if not self._offered else next(iter(self._provider.architectures(self._offered[:1])))
        first = self._offered[0] if self._offered else None
        wanted = self._spec.resources.image or (
            images.default_alias(first.gpus, first.gpu) if first else images.DEFAULT
        )
        image = images.find(wanted, arch)  # type: ignore[arg-type]
        if image.id is None or not image.id.startswith("resolve:ssm:"):
            return  # The dry run above has resolved it.
        parameter = image.id.removeprefix("resolve:ssm:")
        try:
            answer = call_aws("image", lambda: self._client("ssm").get_parameters(Names=[parameter]))
        except AuthDenied as error:
            yield CheckResult(
                "image", False, aws_message(error), f"allow ssm:GetParameters for {permissions.PUBLIC_PARAMETERS}"
            )
            return
        except ProviderError as error:
            yield CheckResult("image", None, aws_message(error), TRY_LATER)
            return
        found = [each["Value"] for each in answer["Parameters"]]
        if found:
            yield CheckResult("image", True, f"{wanted} is {found[0]}")
        else:
            yield CheckResult(
                "image", False, f"there is no {parameter} in this region", "choose another resources.image"
            )

    def network(self) -> Iterator[CheckResult]:
        return check_network(self._client("ec2"), self._spec, self._offered)


# Actions that are tried on an existing machine. Disks and groups come and go with machines: for those IAM is asked.
_ON_MACHINES: dict[str, Callable[[str], dict[str, Any]]] = {
    "ec2:TerminateInstances": lambda machine: {"InstanceIds": [machine]},
    "ec2:GetConsoleOutput": lambda machine: {"InstanceId": machine},
}


def principal(caller: str) -> str:
    """The user or role behind a session, as IAM names it. The path of a role is not part of the session's name."""
    start, colon, rest = caller.partition(":assumed-role/")
    if not colon:
        return caller
    return f"{start.replace(':sts:', ':iam:')}:role/{rest.partition('/')[0]}"


def _status(response: Mapping[str, Any]) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
