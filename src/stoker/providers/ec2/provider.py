"""The ec2 provider: plain EC2 machines in one account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from stoker.model.errors import InvalidRequest, NotFound, ProviderError, Transient
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import (
    CheckResult,
    EndReason,
    LaunchOrder,
    Request,
    ShellCommand,
    ShellRequest,
    TerminateResult,
)
from stoker.providers.cloud_errors import first_line
from stoker.providers.ec2 import (
    catalog,
    image_lookup,
    kms,
    leftovers,
    offers,
    request,
    reservations,
    role_names,
    root_volume,
    several_regions,
    subnets,
    tags,
)
from stoker.providers.ec2.capabilities import CAPABILITIES
from stoker.providers.ec2.client import Clients, environment_region, pages
from stoker.providers.ec2.errors import call_aws
from stoker.providers.offerings import RecentOfferings
from stoker.providers.registry import Context

_STATES: dict[str, InstanceState] = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "stopping",
    # A user stopped it. Its disk costs money until it is terminated.
    "stopping": "stopping",
    "stopped": "off",
    "terminated": "gone",
}
# EC2's codes for the end of a machine: a reclaim, its own shutdown, a requested end.
_RECLAIMED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_ASKED_FOR = frozenset({"Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate"})
_PAGE = 1000
# EC2 accepts this many ids in one filter.
_IDS = 200


class Ec2Provider:
    """One store's machines in one account. Its state is the boto3 clients and the latest offerings."""

    name = "ec2"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = tags.store_tag(context.store)
        self._clients = Clients()
        self._recent = RecentOfferings()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def clients(self) -> Clients:
        return self._clients

    def check(self, spec: Spec) -> None:
        """Raise UserError for a spec that EC2 would refuse."""
        registry.check_spec(self.name, self._context.store, spec)
        request.check(spec)

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """Machine types × zones × spot or on-demand, best first. Offline, from the packaged tables."""
        if self._context.offline:
            return offers.offline(_with_region(resources, environment_region()))
        resources = _with_region(resources, resources.only_region or self._clients.default_region())
        return self._recent.get(resources, lambda: self._ask_offerings(resources))

    def _ask_offerings(self, resources: Resources) -> tuple[Offering, ...]:
        region = resources.only_region
        ec2 = self._clients.get("ec2", region)
        now, asked = datetime.now(timezone.utc), subnets.restrict(ec2, resources)
        groups = partial(self._clients.get, "resource-groups", region)
        # Spot machines use no reservation.
        reserved = () if asked.spot == "only" else reservations.find(ec2, groups, asked)
        narrowed = reservations.restrict(asked, reserved)
        offered = call_aws("offerings", lambda: offers.live(ec2, narrowed, now=now))
        return reservations.with_reservations(offered, reserved, now)

    def why_none(self, resources: Resources) -> str:
        """The reason why `offerings` is empty, in one line."""
        return offers.why_none(resources)

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """Lines about settings that are valid and may surprise."""
        resources = _with_region(spec.resources, environment_region())
        return (*offers.network_remarks(resources), *several_regions.remarks(spec))

    def check_regions(self, resources: Resources) -> None:
        """Raise UserError for a subnet or a security group that is in none of the job's regions."""
        several_regions.check_ids(lambda region: self._clients.get("ec2", region), resources)

    def disk_note(self, spec: Spec, offering: Offering, inputs_bytes: int) -> str:
        """Where the folders of a node lie on such a machine."""
        image = request.find_image(spec, offering)
        return root_volume.plan_note(spec, offering.machine, image, inputs_bytes)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """Names in these resources that no packaged table has, one line each."""
        return offers.unchecked(_with_region(resources, environment_region()))

    def architectures(self, offerings: Iterable[Offering]) -> set[str]:
        """The processor architectures of these machines, for the agents to install on them."""
        return {catalog.facts(offering.machine).arch for offering in offerings}

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        """The placement group, the look-up of the image if one is needed, and one RunInstances. Pure."""
        return request.build(order)

    # ── Launch ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        """Send the requests. Idempotent by the client token; a gang is launched completely or not at all."""
        launched: list[Any] = []
        own_group = any(each.operation == "CreatePlacementGroup" for each in requests)
        for each in self.resolved(requests):
            ec2 = self._clients.get(each.service, each.region)
            match each.operation:
                case "CreatePlacementGroup":
                    self._create_group(ec2, each.params)
                case "RunInstances":
                    # One attempt: EC2 reports "no capacity" with the status of a server error, which boto3 would retry.
                    once = self._clients.get(each.service, each.region, attempts=1)
                    launched += self._run(once, each.params, own_group=own_group)
                case other:
                    raise InvalidRequest(f"not a request to the ec2 provider: {other}")
        region = requests[-1].region
        found = tuple(i for each in launched if (i := self._instance(each, region)) is not None)
        self._name_ranks(requests[-1], found)
        return found

    def preflight(self, *launches: tuple[Request, ...]) -> None:
        """Ask EC2 by a dry run whether it would accept the launches.

        A placement group of the claim does not exist yet, and is left out of the request.
        """
        for requests in launches:
            self._dry_run(requests)

    def check_quota(self, offerings: Sequence[Offering], nodes: int) -> None:  # noqa: ARG002 - only a quota of 0 counts
        """Raise UserError if the account's quotas rule out all of these. Asks only about machines with GPUs."""
        from stoker.providers.ec2 import quotas

        quotas.check_quota(self._clients, offerings)

    def _dry_run(self, requests: tuple[Request, ...]) -> None:
        own_group = any(each.operation == "CreatePlacementGroup" for each in requests)
        for each in self.resolved(requests):
            if each.operation != "RunInstances":
                continue
            params = dict(each.params)
            if own_group:
                params["Placement"] = {key: to for key, to in params["Placement"].items() if key != "GroupName"}
            ec2 = self._clients.get("ec2", each.region, attempts=1)
            try:
                call_aws(params["InstanceType"], lambda: ec2.run_instances(**params, DryRun=True))  # noqa: B023 - called at once
            except NotFound as error:
                raise InvalidRequest(str(error)) from error
            except ProviderError as error:
                if "(DryRunOperation)" not in str(error):
                    raise

    def _create_group(self, ec2: Any, params: Mapping[str, Any]) -> None:
        try:
            call_aws("placement group", lambda: ec2.create_placement_group(**params))
        except InvalidRequest as error:
            if "Duplicate" not in str(error):
                raise

    def _run(self, ec2: Any, params: dict[str, Any], *, own_group: bool) -> list[Any]:
        try:
            answer = call_aws(params["InstanceType"], lambda: ec2.run_instances(**params))
            return list(answer["Instances"])
        except NotFound as error:
            # A placement group that was just made is not known everywhere yet. Anything else that is missing was named
            # by the user.
            ours = own_group and "(InvalidPlacementGroup" in str(error)
            raise (Transient if ours else InvalidRequest)(str(error)) from error
        except ProviderError as error:
            # Another governor launched this claim before, with a slightly different request, or its machines have ended
            # since. The token stands for those machines.
            if "(Idempotent" not in str(error):
                raise
            found = self._describe(ec2, [{"Name": "client-token", "Values": [params["ClientToken"]]}])
            if len(found) < params["MinCount"]:
                raise Transient(f"{params['InstanceType']}: was launched before and is not listed yet") from error
            return found

    def _name_ranks(self, run: Request, instances: tuple[Instance, ...]) -> None:
        """Give each machine of a gang its own name: they were launched with one.

        Names are only for people, so a failure is ignored.
        """
        if len(instances) < 2:
            return
        ec2 = self._clients.get("ec2", run.region)
        base = next(tag["Value"] for tag in run.params["TagSpecifications"][0]["Tags"] if tag["Key"] == tags.NAME)
        for instance in instances:
            named = [{"Key": tags.NAME, "Value": f"{base}-{instance.rank}"}]
            try:
                call_aws("name", lambda: ec2.create_tags(Resources=[instance.id], Tags=named))  # noqa: B023 - called at once
            except ProviderError:
                return

    # ── State ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """Every machine with this store's tag that is not gone. One call for a thousand machines."""
        ec2 = self._clients.get("ec2", region)
        alive = [state for state, meaning in _STATES.items() if meaning != "gone"]
        filters = [
            {"Name": f"tag:{tags.STORE}", "Values": [self._store]},
            {"Name": "instance-state-name", "Values": alive},
        ]
        found = (self._instance(each, region) for each in self._describe(ec2, filters))
        return tuple(instance for instance in found if instance is not None)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """The state of each id. `unheard-of` if EC2 does not know it: ended an hour ago, or launched a moment ago."""
        ec2 = self._clients.get("ec2", region)
        wanted = list(ids)
        found: dict[str, InstanceState] = dict.fromkeys(wanted, "unheard-of")
        for start in range(0, len(wanted), _IDS):
            # A filter returns the machines that exist; a request by id fails if one of them does not.
            filters = [{"Name": "instance-id", "Values": wanted[start : start + _IDS]}]
            for each in self._describe(ec2, filters):
                found[each["InstanceId"]] = _state(each)
        return found

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        """Request the end of a machine. `gone` if EC2 says that it has ended, or does not know it."""
        ec2 = self._clients.get("ec2", region)
        try:
            answer = call_aws(instance, lambda: ec2.terminate_instances(InstanceIds=[instance]))
        except NotFound:
            return "gone"
        states = [each["CurrentState"]["Name"] for each in answer["TerminatingInstances"]]
        return "gone" if states == ["terminated"] else "requested"

    # ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str:
        """Simulate a reclaim, or end the machine if that is not possible; the answer says which. NotFound: it is
        gone."""
        from stoker.providers.ec2 import rehearsed_reclaim

        role = role_names.fis_role(self._context.store)
        return rehearsed_reclaim.interrupt(self._clients, instance, grace_s, region, role)

    def shell_command(
        self, instance: str, shell_request: ShellRequest, spec: Spec, region: str | None = None
    ) -> AbstractContextManager[ShellCommand]:
        """Log in by key pair, EC2 Instance Connect or SSM, whichever is available first."""
        from stoker.providers.ec2 import ssh_login

        return ssh_login.shell_command(self._clients, instance, shell_request, spec, region)

    def check_account(self, spec: Spec) -> Iterator[CheckResult]:
        """Check credentials, permissions by dry run, profile, quotas, image and network. Makes and ends nothing."""
        from stoker.providers.ec2 import check

        return check.check_account(self, spec, self._context.store)

    def resolved(self, requests: Sequence[Request]) -> Iterator[Request]:
        """The requests that would change something, with what only EC2 knows filled in: facts of the image, the subnet,
        and the security groups. Changes nothing itself."""
        image: Mapping[str, Any] = {}
        subnet = ""
        groups: tuple[str, ...] = ()
        for each in requests:
            ec2 = self._clients.get("ec2", each.region)
            match each.operation:
                case "DescribeImages":
                    image = image_lookup.find(ec2, each.params)
                case "DescribeSubnets":
                    subnet = subnets.find(ec2, each.params, _nodes(requests))
                case "DescribeSecurityGroups":
                    groups = several_regions.find_groups(ec2, each.params)
                case "RunInstances":
                    params = several_regions.filled(subnets.filled(each.params, subnet), groups)
                    yield replace(each, params=image_lookup.filled(params, image))
                case _:
                    yield each

    # ── After the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """Disks that are attached to no machine, and placement groups. One call if there are none."""
        ec2 = self._clients.get("ec2", region)
        return leftovers.list_leftovers(ec2, self._store, region)

    def remove(self, leftover: Leftover) -> None:
        leftovers.remove(self._clients.get("ec2", leftover.region), leftover)

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        """EC2's reason: a reclaim, or a launch that failed after it was accepted."""
        ec2 = self._clients.get("ec2", region)
        for found in self._describe(ec2, [{"Name": "instance-id", "Values": [instance]}]):
            cause = found.get("StateReason") or {}
            code, message = str(cause.get("Code", "")), str(cause.get("Message", ""))
            if code in _RECLAIMED:
                return EndReason(reclaimed=True, reason="spot reclaim")
            if code == _BY_ITSELF:
                return EndReason(reclaimed=False, reason="it switched itself off", by_itself=True)
            # Causes that the user can change: a key that may not be used, a limit on disks. EC2's own problems are no
            # reason to stop.
            if code.startswith("Client.") and code not in _ASKED_FOR:
                advice = kms.LAUNCH_ADVICE if code == "Client.InternalError" else ""
                return EndReason(reclaimed=False, reason=first_line(message or code) + advice)
        return None

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        """The job in the machine's tags, which EC2 remembers for about an hour after a machine's end."""
        ec2 = self._clients.get("ec2", region)
        for each in self._describe(ec2, [{"Name": "instance-id", "Values": [instance]}]):
            found = self._instance(each, region)
            if found is not None:
                return found.job
        return None

    def console(self, instance: str, region: str | None = None) -> str | None:
        """The machine's console output. EC2 keeps it for an hour after the machine's end."""
        ec2 = self._clients.get("ec2", region)
        answer = call_aws(instance, lambda: ec2.get_console_output(InstanceId=instance))
        # boto3 has already decoded it.
        output: str | None = answer.get("Output")
        return output or None

    def _describe(self, ec2: Any, filters: list[dict[str, Any]]) -> list[Any]:
        found = pages(ec2.describe_instances, "Reservations", Filters=filters, MaxResults=_PAGE)
        reservations = call_aws("instances", lambda: list(found))
        return [each for reservation in reservations for each in reservation["Instances"]]

    def _instance(self, found: Mapping[str, Any], region: str | None) -> Instance | None:
        """The machine, or None if it is not of this store."""
        owner = tags.owner_of(found, self._store)
        if owner is None:
            return None
        job, claim = owner
        return Instance(
            id=found["InstanceId"],
            provider="ec2",
            job=job,
            claim=claim,
            rank=int(found.get("AmiLaunchIndex", 0)),
            state=_state(found),
            created_at=found["LaunchTime"],
            region=region,
            zone=found.get("Placement", {}).get("AvailabilityZone"),
        )


def _nodes(requests: Sequence[Request]) -> int:
    """The number of machines that these requests launch."""
    return sum(int(each.params["MinCount"]) for each in requests if each.operation == "RunInstances")


def _state(found: Mapping[str, Any]) -> InstanceState:
    state = _STATES.get(found["State"]["Name"], "running")
    if state in ("off", "stopping") and (found.get("HibernationOptions") or {}).get("Configured"):
        return "running"  # It may be hibernating, and continue its training later.
    return state


def _with_region(resources: Resources, region: str | None) -> Resources:
    return resources if resources.regions else replace(resources, region=region)
