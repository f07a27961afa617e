"""`stoker check ec2`: whether an account has, and allows, what a job needs. Makes nothing and ends nothing.

EC2 tells what is allowed by dry runs: `DryRunOperation` is a yes, `UnauthorizedOperation` a no. What can only be tried
on a thing that exists is tried on a machine of this store, else IAM is asked, else it stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.spec import Ec2Resources, Spec, master_port
from stoker.providers.base import Finding, LaunchOrder, Request
from stoker.providers.ec2 import firewall, images, permissions, quotas, request, tags
from stoker.providers.ec2.client import INSTALL, installed
from stoker.providers.ec2.errors import calling, first_line
from stoker.providers.ec2.verdicts import LATER, POLICIES, Tried, answer_of, fix_of, judged, said, to_learn, verdict

if TYPE_CHECKING:
    from stoker.providers.ec2.provider import Ec2Provider

_CREDENTIALS = "`aws configure`, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
# A machine that can be in a placement group, whatever the job asks for.
_CLUSTERED = "m5.large"


def examine(provider: Ec2Provider, spec: Spec, store: str) -> Iterator[Finding]:
    """Everything, one by one; only without boto3, credentials or a region there is nothing more to look at."""
    if not installed():
        yield Finding("boto3", False, "ec2 needs boto3", INSTALL)
        return
    from botocore.exceptions import NoCredentialsError

    clients = provider.clients
    try:
        region = spec.resources.region or clients.default_region()
        if region is None:
            yield Finding("region", False, "none is named", "set resources.region, or AWS_REGION")
            return
        identity = calling("sts", clients.get("sts", region).get_caller_identity)
    except (ProviderError, UserError) as error:
        detail = "there are none here" if isinstance(error.__cause__, NoCredentialsError) else said(error)
        yield Finding("credentials", False, detail, _CREDENTIALS)
        return
    yield Finding("credentials", True, f"{identity['Arn']} in account {identity['Account']}")
    checks = _Checks(provider, replace(spec, resources=replace(spec.resources, region=region)), store, identity)
    for part in (
        checks.region,
        checks.offers,
        checks.launching,
        checks.looking,
        checks.keeping,
        checks.profile,
        checks.key,
        checks.limits,
        checks.image,
        checks.network,
    ):
        yield from part()


class _Checks:
    """One look at one account. Each part yields what it found, and raises no ProviderError."""

    def __init__(self, provider: Ec2Provider, spec: Spec, store: str, identity: Mapping[str, Any]) -> None:
        self._provider = provider
        self._spec = spec
        self._ec2_resources = spec.resources.ec2 or Ec2Resources()
        self._store = store
        self._tag = tags.store_tag(store)
        self._identity = identity
        self._offered: tuple[Offering, ...] = ()

    def _client(self, service: str) -> Any:
        return self._provider.clients.get(service, self._spec.resources.region)

    # ── Where, and what ───────────────────────────────────────────────────────────────────────────────────────────────

    def region(self) -> Iterator[Finding]:
        try:
            machines = self._provider.list_instances(self._spec.resources.region)
        except ProviderError as error:
            denied = answer_of(error).get("Error", {}).get("Code") == "UnauthorizedOperation"
            fix = self._fix("ec2:DescribeInstances") if denied else "is it a region, and enabled in this account?"
            yield Finding("region", verdict(error), f"{self._spec.resources.region}: {said(error)}", fix)
            return
        count = len(machines)
        there = f"{count} machine{'' if count == 1 else 's'} of this store"
        yield Finding("region", True, f"{self._spec.resources.region} answers; {there}")

    def offers(self) -> Iterator[Finding]:
        try:
            found = self._provider.offerings(self._spec.resources)
        except (ProviderError, UserError) as error:
            yield Finding("offers", verdict(error), said(error), fix_of(error))
            return
        wanted = {"never": (False,), "only": (True,), "prefer": (True, False)}[self._spec.resources.spot]
        self._offered = tuple(offering for kind in wanted for offering in found if offering.spot == kind)
        if self._offered:
            yield Finding("offers", True, f"{len(self._offered)} offerings; first {self._offered[0].key}")
        else:
            yield Finding("offers", False, self._provider.why_none(self._spec.resources), "`stoker offers` lists more")

    # ── Permissions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def launching(self) -> Iterator[Finding]:
        """The very request that a job would make, dry. It needs CreateTags and PassRole as well."""
        if not self._offered:
            yield Finding("ec2:RunInstances", None, "not tried: nothing is offered", "see offers")
            return
        try:
            requests = tuple(self._provider.resolved(self._requests()))
        except (ProviderError, UserError) as error:
            yield Finding("ec2:RunInstances", verdict(error), said(error), fix_of(error))
            return
        for each in requests:
            tried = self._dry(each.operation, each.params)
            action = f"ec2:{each.operation}"
            if tried.denied and each.operation == "RunInstances":
                action = self._what_was_denied(each.params)
            yield self._told(action, tried)

    def _requests(self) -> tuple[Request, ...]:
        """A machine of its own, and the placement group of a gang."""
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

    def _what_was_denied(self, params: Mapping[str, Any]) -> str:
        """RunInstances itself, or the role or the tags that come with it."""
        for part, action in (("IamInstanceProfile", "iam:PassRole"), ("TagSpecifications", "ec2:CreateTags")):
            if self._dry("RunInstances", {key: value for key, value in params.items() if key != part}).ok:
                return action
        return "ec2:RunInstances"

    def looking(self) -> Iterator[Finding]:
        for operation in permissions.GOVERNOR:
            if operation.scope == "anything":
                yield self._told(operation.action, self._dry(operation.action.removeprefix("ec2:"), {}))

    def keeping(self) -> Iterator[Finding]:
        """What is done to machines that exist."""
        machine = self._some_machine()
        left = []
        for action in (operation.action for operation in permissions.GOVERNOR if operation.scope == "ours"):
            params = _ON_MACHINES.get(action)
            if machine is None or params is None:
                left.append(action)
            else:
                yield self._told(action, self._dry(action.removeprefix("ec2:"), params(machine)))
        yield from self._simulated(left)

    def _some_machine(self) -> str | None:
        try:
            found = self._provider.list_instances(self._spec.resources.region)
        except ProviderError:
            return None
        return next((each.id for each in found if each.state == "running"), None)

    def _simulated(self, actions: list[str]) -> Iterator[Finding]:
        """As IAM would decide about a thing that carries this store's tag."""
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
            answer = calling("iam", lambda: self._client("iam").simulate_principal_policy(**asked))
        except ProviderError:
            why = "cannot be tried before this store has a machine, and IAM may not be asked"
            for action in actions:
                yield Finding(action, None, why, "allow iam:SimulatePrincipalPolicy to learn it now")
            return
        for result in answer["EvaluationResults"]:
            ok = result["EvalDecision"] == "allowed"
            detail = "allowed, says IAM" if ok else f"denied, says IAM ({result['EvalDecision']})"
            yield self._told(result["EvalActionName"], Tried(ok, detail, denied=not ok))

    def _dry(self, operation: str, params: Mapping[str, Any]) -> Tried:
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        method: Callable[..., Any] = getattr(self._client("ec2"), xform_name(operation))
        try:
            method(**params, DryRun=True)
        except ClientError as error:
            told = error.response.get("Error", {})
            return judged(str(told.get("Code", "")), str(told.get("Message", "")), _status(error.response))
        except (BotoCoreError, ResponseParserError) as error:
            return Tried(None, first_line(error), fix=LATER)
        return Tried(True, "allowed")

    def _told(self, action: str, tried: Tried) -> Finding:
        return Finding(action, tried.ok, tried.detail, self._fix(action) if tried.denied else tried.fix)

    def _fix(self, action: str) -> str:
        if action == "iam:PassRole":
            return f"allow iam:PassRole for the role of {self._profile()}; {POLICIES}"
        return f"add {permissions.statement_for(action, self._tag)}"

    # ── What has to be there ──────────────────────────────────────────────────────────────────────────────────────────

    def _profile(self) -> str:
        return self._ec2_resources.profile or request.DEFAULT_PROFILE

    def profile(self) -> Iterator[Finding]:
        name = self._profile().rpartition("/")[2]
        try:
            answer = calling(name, lambda: self._client("iam").get_instance_profile(InstanceProfileName=name))
        except NotFound:
            fix = f"{POLICIES} and the commands that make it; resources.ec2.profile names another"
            yield Finding("instance profile", False, f"there is no {name}", fix)
            return
        except ProviderError as error:
            yield Finding("instance profile", None, said(error), to_learn(error, "iam:GetInstanceProfile"))
            return
        roles = [role["RoleName"] for role in answer["InstanceProfile"]["Roles"]]
        fix = f"aws iam add-role-to-instance-profile --instance-profile-name {name} --role-name {name}"
        if roles:
            yield Finding("instance profile", True, f"{name}, with the role {roles[0]}")
        else:
            yield Finding("instance profile", False, f"{name} has no role", fix)

    def key(self) -> Iterator[Finding]:
        """Nothing is wrong with a job that names none: there are other ways onto its machines."""
        name = self._ec2_resources.key
        if name is None:
            return
        try:
            calling("resources.ec2.key", lambda: self._client("ec2").describe_key_pairs(KeyNames=[name]))
        except (InvalidRequest, NotFound) as error:
            yield Finding("key", False, said(error), fix_of(error))
        except ProviderError as error:
            yield Finding("key", None, said(error), to_learn(error, "ec2:DescribeKeyPairs"))
        else:
            yield Finding("key", True, f"{name} is there")

    def limits(self) -> Iterator[Finding]:
        needs = quotas.needed(self._offered, self._spec.nodes)
        client = self._client("service-quotas")
        for quota in quotas.QUOTAS:
            name = f"quota of {quota.name}"
            asked = {"ServiceCode": quotas.SERVICE, "QuotaCode": quota.code}
            try:
                answer = calling("quota", lambda: client.get_service_quota(**asked))  # noqa: B023 - called at once
            except NotFound:
                yield Finding(name, None, "could not be told: Service Quotas does not list it in this region")
                continue
            except ProviderError as error:
                fix = to_learn(error, "servicequotas:GetServiceQuota")
                yield Finding(name, None, f"could not be told: {said(error)}", fix)
                continue
            yield self._judged_quota(quota, name, float(answer["Quota"]["Value"]), needs.get(quota.code))

    def _judged_quota(self, quota: quotas.Quota, name: str, value: float, need: int | None) -> Finding:
        detail = f"{value:g} vCPUs" + (f", and this job needs {need}" if need else "")
        raise_it = quotas.raising(quota, self._spec.resources.region, need)
        if need is not None and value < need:
            # Another family, or on-demand, may still do.
            others = {quotas.quota_of(each.machine, each.spot) for each in self._offered} - {quota}
            return Finding(name, None if others else False, detail, raise_it)
        return Finding(name, True, detail) if value > 0 else Finding(name, None, f"{detail}: none can be had", raise_it)

    def image(self) -> Iterator[Finding]:
        """The image's public parameter, which EC2 looks up with the rights of whoever launches."""
        arch = "x86_64" if not self._offered else next(iter(self._provider.architectures(self._offered[:1])))
        wanted, gpus = self._spec.resources.image, self._offered[0].gpus if self._offered else 0
        image = images.find(wanted, arch) if wanted else images.default(arch, gpus)  # type: ignore[arg-type]
        if image.id is None or not image.id.startswith("resolve:ssm:"):
            return  # Looked up by the dry run above.
        parameter = image.id.removeprefix("resolve:ssm:")
        try:
            answer = calling("image", lambda: self._client("ssm").get_parameters(Names=[parameter]))
        except AuthDenied as error:
            yield Finding("image", False, said(error), f"allow ssm:GetParameters for {permissions.PUBLIC_PARAMETERS}")
            return
        except ProviderError as error:
            yield Finding("image", None, said(error), LATER)
            return
        found = [each["Value"] for each in answer["Parameters"]]
        if found:
            yield Finding("image", True, f"{wanted or 'the default'} is {found[0]}")
        else:
            yield Finding("image", False, f"there is no {parameter} in this region", "choose another resources.image")

    # ── The network ───────────────────────────────────────────────────────────────────────────────────────────────────

    def network(self) -> Iterator[Finding]:
        subnet = self._ec2_resources.subnet
        asked: dict[str, Any] = (
            {"SubnetIds": [subnet]} if subnet else {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        )
        try:
            answer = calling("resources.ec2.subnet", lambda: self._client("ec2").describe_subnets(**asked))
        except ProviderError as error:
            yield Finding("subnet", verdict(error), said(error), fix_of(error))
            return
        found = answer["Subnets"]
        if not found:
            fix = f"aws ec2 create-default-vpc --region {self._spec.resources.region}, or set resources.ec2.subnet"
            yield Finding("subnet", False, "there is no default subnet in this region", fix)
            return
        what = subnet or f"{len(found)} default subnets"
        yield Finding("subnet", True, f"{what} in {found[0]['VpcId']}")
        yield from self._between_nodes(found)

    def _between_nodes(self, subnets: list[Mapping[str, Any]]) -> Iterator[Finding]:
        """Only nodes of one job need it; for one alone it is no more than a hint."""
        groups, port = list(self._ec2_resources.security_groups), master_port(self._spec)
        asked: dict[str, Any] = {"GroupIds": groups}
        if not groups:
            filters = {"vpc-id": subnets[0]["VpcId"], "group-name": "default"}
            asked = {"Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()]}
        try:
            answer = calling(
                "resources.ec2.security_groups", lambda: self._client("ec2").describe_security_groups(**asked)
            )
            found = answer["SecurityGroups"]
            firewall.check_home(found, subnets[0]["VpcId"])
        except (InvalidRequest, NotFound) as error:
            yield Finding("security groups", False, said(error), fix_of(error))
            return
        except ProviderError as error:
            yield Finding("between nodes", None, said(error), to_learn(error, "ec2:DescribeSecurityGroups"))
            return
        # All nodes of a job are in one zone, so whichever subnet it is, it must be let in.
        networks = {subnet.get("CidrBlock") for subnet in subnets}
        worst = min((firewall.openness(found, port, each) for each in networks), key=_WORST_FIRST.index)
        name = found[0]["GroupId"] if found else "sg-…"
        fix = (
            f"aws ec2 authorize-security-group-ingress --region {self._spec.resources.region}"
            f" --group-id {name} --protocol all --source-group {name}"
        )
        several = self._spec.nodes > 1
        if worst == "all":
            yield Finding(
                "between nodes", True, f"{name} lets nodes reach each other on MASTER_PORT {port} and all else"
            )
        elif worst == "port":
            detail = f"{name} lets nodes reach each other on MASTER_PORT {port} alone; NCCL and gloo use further ports"
            yield Finding("between nodes", None, detail, fix)
        else:
            detail = f"{name} does not let nodes reach each other on MASTER_PORT {port}"
            yield Finding("between nodes", False if several else None, detail, fix)


_WORST_FIRST: list[firewall.Open] = ["closed", "port", "all"]
# What is tried on a machine that exists. Disks and groups come and go with machines: for those IAM is asked.
_ON_MACHINES: dict[str, Callable[[str], dict[str, Any]]] = {
    "ec2:TerminateInstances": lambda machine: {"InstanceIds": [machine]},
    "ec2:GetConsoleOutput": lambda machine: {"InstanceId": machine},
}


def principal(caller: str) -> str:
    """The user or role behind a session, as IAM knows it. A role's path is not in the session's name."""
    start, colon, rest = caller.partition(":assumed-role/")
    if not colon:
        return caller
    return f"{start.replace(':sts:', ':iam:')}:role/{rest.partition('/')[0]}"


def _status(response: Mapping[str, Any]) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
