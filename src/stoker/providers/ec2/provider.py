"""The ec2 provider."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stoker.model import codec
from stoker.model.errors import InvalidRequest, NotFound, ProviderError, Transient, UserError
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.spec import Resources, Spec, is_port
from stoker.providers import registry
from stoker.providers.base import Finding, Gone, LaunchOrder, Request, Terminated, Visit, Way
from stoker.providers.ec2 import catalog, leftovers, offers, request, tags
from stoker.providers.ec2.capabilities import CAPABILITIES
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling, first_line
from stoker.providers.registry import Context

_STATES: dict[str, InstanceState] = {
    "pending": "pending",
    "running": "running",
    "shutting-down": "stopping",
    # Somebody stopped it. Its disk costs money until it is terminated.
    "stopping": "stopping",
    "stopped": "off",
    "terminated": "gone",
}
# Why a machine ended, in EC2's words: it was taken back, or it itself or somebody else asked for its end.
_RECLAIMED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_ASKED_FOR = frozenset({"Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate"})
_PAGE = 1000
# EC2 takes this many ids in one filter.
_IDS = 200
# Prices and zones change slowly; a job that tries one dry zone after another need not ask each time.
_OFFERS_FOR_S = 120.0


class Ec2Provider:
    """One store's machines in one account. Holds clients, and what was offered a moment ago."""

    name = "ec2"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = tags.store_tag(context.store)
        self._clients = Clients()
        self._offered: dict[bytes, tuple[float, tuple[Offering, ...]]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def clients(self) -> Clients:
        return self._clients

    def check(self, spec: Spec) -> None:
        """Raise UserError for what EC2 would refuse."""
        registry.check_store(self.name, self._context.store)
        port = spec.env.get("MASTER_PORT")
        if port is not None and not is_port(port):
            raise UserError(f"env.MASTER_PORT: {port!r} is no port; give a number from 1 to 65535")
        request.check(spec)

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """Machine types × zones × spot or on-demand, best first. Offline, from the project's own tables."""
        if self._context.offline:
            return offers.offline(_placed(resources, _environment_region()))
        resources = _placed(resources, resources.region or self._clients.default_region())
        key = codec.dumps(resources)
        kept = self._offered.get(key)
        if kept is not None and time.monotonic() - kept[0] < _OFFERS_FOR_S:
            return kept[1]
        ec2 = self._clients.get("ec2", resources.region)
        narrowed = self._in_subnet(ec2, resources)
        found = calling("offerings", lambda: offers.live(ec2, narrowed, now=datetime.now(timezone.utc)))
        self._offered[key] = (time.monotonic(), found)
        return found

    def why_none(self, resources: Resources) -> str:
        """Why `offerings` is empty, in one line."""
        return offers.why_none(resources)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """What these resources name and no table of the project's has, a line each."""
        return offers.unchecked(_placed(resources, _environment_region()))

    def architectures(self, offerings: Iterable[Offering]) -> set[str]:
        """The processors of these machines, for the agents to install on them."""
        return {catalog.facts(offering.machine).arch for offering in offerings}

    def build(self, order: LaunchOrder) -> tuple[Request, ...]:
        """The placement group, the look-up of the image where one is needed, and one RunInstances. Pure."""
        return request.build(order)

    # ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        """Send the requests. Idempotent by the client token; a gang comes whole or not at all."""
        launched: list[Any] = []
        image: Mapping[str, Any] = {}
        own_group = any(each.operation == "CreatePlacementGroup" for each in requests)
        for each in requests:
            ec2 = self._clients.get(each.service, each.region)
            match each.operation:
                case "CreatePlacementGroup":
                    self._make_group(ec2, each.params)
                case "DescribeImages":
                    image = _newest_image(ec2, each.params)
                case "RunInstances":
                    # Once: EC2 says "no capacity" with the status of a server's error, which boto3 would try again.
                    once = self._clients.get(each.service, each.region, attempts=1)
                    launched += self._run(once, _filled(each.params, image), own_group=own_group)
                case other:
                    raise InvalidRequest(f"not a request to the ec2 provider: {other}")
        region = requests[-1].region
        found = tuple(i for each in launched if (i := self._instance(each, region)) is not None)
        self._name_ranks(requests[-1], found)
        return found

    def rehearse(self, *launches: tuple[Request, ...]) -> None:
        """Ask EC2 whether it would, by a dry run. A placement group of ours is not there yet, and left out."""
        for requests in launches:
            self._rehearse(requests)

    def check_limits(self, offerings: Sequence[Offering], nodes: int) -> None:  # noqa: ARG002 - of nothing there is none
        """Raise UserError where the account's quotas forbid all of these. Asks only about GPUs."""
        from stoker.providers.ec2 import quotas

        quotas.check_limits(self._clients, offerings)

    def _rehearse(self, requests: tuple[Request, ...]) -> None:
        own_group = any(each.operation == "CreatePlacementGroup" for each in requests)
        for each in self.resolved(requests):
            if each.operation != "RunInstances":
                continue
            params = dict(each.params)
            if own_group:
                params["Placement"] = {key: to for key, to in params["Placement"].items() if key != "GroupName"}
            ec2 = self._clients.get("ec2", each.region, attempts=1)
            try:
                calling(params["InstanceType"], lambda: ec2.run_instances(**params, DryRun=True))  # noqa: B023 - called at once
            except NotFound as error:
                raise InvalidRequest(str(error)) from error
            except ProviderError as error:
                if "(DryRunOperation)" not in str(error):
                    raise

    def _make_group(self, ec2: Any, params: Mapping[str, Any]) -> None:
        try:
            calling("placement group", lambda: ec2.create_placement_group(**params))
        except InvalidRequest as error:
            if "Duplicate" not in str(error):
                raise

    def _run(self, ec2: Any, params: dict[str, Any], *, own_group: bool) -> list[Any]:
        try:
            answer = calling(params["InstanceType"], lambda: ec2.run_instances(**params))
            return list(answer["Instances"])
        except NotFound as error:
            # A placement group of ours is not known everywhere yet; whatever a person named is not there.
            ours = own_group and "(InvalidPlacementGroup" in str(error)
            raise (Transient if ours else InvalidRequest)(str(error)) from error
        except ProviderError as error:
            # Somebody finished this claim before, with a request that reads a little differently, or its machines have
            # ended since. They are what this token stands for.
            if "(Idempotent" not in str(error):
                raise
            found = self._described(ec2, [{"Name": "client-token", "Values": [params["ClientToken"]]}])
            if len(found) < params["MinCount"]:
                raise Transient(f"{params['InstanceType']}: launched before, and not listed yet") from error
            return found

    def _name_ranks(self, run: Request, instances: tuple[Instance, ...]) -> None:
        """The machines of a gang came with one name; give each its own. Only for people, so a failure is nothing."""
        if len(instances) < 2:
            return
        ec2 = self._clients.get("ec2", run.region)
        base = next(tag["Value"] for tag in run.params["TagSpecifications"][0]["Tags"] if tag["Key"] == tags.NAME)
        for instance in instances:
            named = [{"Key": tags.NAME, "Value": f"{base}-{instance.rank}"}]
            try:
                calling("name", lambda: ec2.create_tags(Resources=[instance.id], Tags=named))  # noqa: B023 - called at once
            except ProviderError:
                return

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """Everything with this store's tag that is not gone. One call for a thousand machines."""
        ec2 = self._clients.get("ec2", region)
        alive = [state for state, meaning in _STATES.items() if meaning != "gone"]
        filters = [
            {"Name": f"tag:{tags.STORE}", "Values": [self._store]},
            {"Name": "instance-state-name", "Values": alive},
        ]
        found = (self._instance(each, region) for each in self._described(ec2, filters))
        return tuple(instance for instance in found if instance is not None)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """The state of each id. `unheard-of` where EC2 does not know it: dead for an hour, or born a moment ago."""
        ec2 = self._clients.get("ec2", region)
        wanted = list(ids)
        found: dict[str, InstanceState] = dict.fromkeys(wanted, "unheard-of")
        for start in range(0, len(wanted), _IDS):
            # A filter answers those that are there; asking by id would answer nothing if one of them is not.
            filters = [{"Name": "instance-id", "Values": wanted[start : start + _IDS]}]
            for each in self._described(ec2, filters):
                found[each["InstanceId"]] = _state(each)
        return found

    def terminate(self, instance: str, region: str | None = None) -> Terminated:
        """Ask for its end. `gone` when EC2 says that it has ended, or never heard of it."""
        ec2 = self._clients.get("ec2", region)
        try:
            answer = calling(instance, lambda: ec2.terminate_instances(InstanceIds=[instance]))
        except NotFound:
            return "gone"
        states = [each["CurrentState"]["Name"] for each in answer["TerminatingInstances"]]
        return "gone" if states == ["terminated"] else "requested"

    # ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str:
        """Rehearse a reclaim, or end the machine where that cannot be; the answer says which. NotFound: it is gone."""
        from stoker.providers.ec2 import reclaim

        return reclaim.interrupt(self._clients, instance, grace_s, region)

    def way(self, instance: str, visit: Visit, spec: Spec, region: str | None = None) -> AbstractContextManager[Way]:
        """By key pair, EC2 Instance Connect or SSM, whichever is open."""
        from stoker.providers.ec2 import access

        return access.way(self._clients, instance, visit, spec, region)

    def checkup(self, spec: Spec) -> Iterator[Finding]:
        """Credentials, permissions by dry run, profile, quotas, image and network. Makes and ends nothing."""
        from stoker.providers.ec2.check import examine

        return examine(self, spec, self._context.store)

    def resolved(self, requests: Iterable[Request]) -> Iterator[Request]:
        """The requests that would change something, with what only EC2 knew filled in. Changes nothing itself."""
        image: Mapping[str, Any] = {}
        for each in requests:
            if each.operation == "DescribeImages":
                image = _newest_image(self._clients.get("ec2", each.region), each.params)
            else:
                yield replace(each, params=_filled(each.params, image)) if "ImageId" in each.params else each

    # ── What is left ──────────────────────────────────────────────────────────────────────────────────────────────────

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """Disks that hang on no machine, and placement groups. One call where there are none."""
        ec2 = self._clients.get("ec2", region)
        return leftovers.listed(ec2, self._store, region)

    def remove(self, leftover: Leftover) -> None:
        leftovers.remove(self._clients.get("ec2", leftover.region), leftover)

    def why_gone(self, instance: str, region: str | None = None) -> Gone | None:
        """EC2's own word: a reclaim, or a launch that failed after it was accepted."""
        ec2 = self._clients.get("ec2", region)
        for found in self._described(ec2, [{"Name": "instance-id", "Values": [instance]}]):
            told = found.get("StateReason") or {}
            code, message = str(told.get("Code", "")), str(told.get("Message", ""))
            if code in _RECLAIMED:
                return Gone(reclaimed=True, reason="spot reclaim")
            if code == _BY_ITSELF:
                return Gone(reclaimed=False, reason="it switched itself off", by_itself=True)
            # Ours to change: a key that it may not use, a limit on disks. EC2's own trouble is no reason to stop.
            if code.startswith("Client.") and code not in _ASKED_FOR:
                return Gone(reclaimed=False, reason=first_line(message or code))
        return None

    def job_of(self, instance: str, region: str | None = None) -> str | None:
        """By its tags, which EC2 remembers for about an hour after a machine's end."""
        ec2 = self._clients.get("ec2", region)
        for each in self._described(ec2, [{"Name": "instance-id", "Values": [instance]}]):
            found = self._instance(each, region)
            if found is not None:
                return found.job
        return None

    def console(self, instance: str, region: str | None = None) -> str | None:
        """What the machine's console showed. EC2 keeps it for an hour after the machine's end."""
        ec2 = self._clients.get("ec2", region)
        answer = calling(instance, lambda: ec2.get_console_output(InstanceId=instance))
        # boto3 has decoded it already.
        output: str | None = answer.get("Output")
        return output or None

    def _described(self, ec2: Any, filters: list[dict[str, Any]]) -> list[Any]:
        found: list[Any] = []
        asked: dict[str, Any] = {"Filters": filters, "MaxResults": _PAGE}
        while True:
            answer = calling("instances", lambda: ec2.describe_instances(**asked))
            found += [each for reservation in answer["Reservations"] for each in reservation["Instances"]]
            if not answer.get("NextToken"):
                return found
            asked["NextToken"] = answer["NextToken"]

    def _instance(self, found: Mapping[str, Any], region: str | None) -> Instance | None:
        """None for what is not a machine of ours: filters take wildcards, so the tag is compared once more."""
        told = tags.read(found.get("Tags", ()))
        job, claim = told.get(tags.JOB), told.get(tags.CLAIM, "")
        if not job or not claim.isdigit() or told.get(tags.STORE) != self._store:
            return None
        return Instance(
            id=found["InstanceId"],
            provider="ec2",
            job=job,
            claim=int(claim),
            rank=int(found.get("AmiLaunchIndex", 0)),
            state=_state(found),
            created_at=found["LaunchTime"],
            region=region,
            zone=found.get("Placement", {}).get("AvailabilityZone"),
        )

    def _in_subnet(self, ec2: Any, resources: Resources) -> Resources:
        """A subnet is in one zone: nothing else can be had."""
        subnet = resources.ec2.subnet if resources.ec2 else None
        if subnet is None:
            return resources
        answer = calling("resources.ec2.subnet", lambda: ec2.describe_subnets(SubnetIds=[subnet]))
        zone = answer["Subnets"][0]["AvailabilityZone"]
        if resources.zones and zone not in resources.zones:
            raise UserError(f"resources.zones: {subnet} is in {zone}; name that zone, or another subnet")
        return replace(resources, zones=(zone,))


def _state(found: Mapping[str, Any]) -> InstanceState:
    state = _STATES.get(found["State"]["Name"], "running")
    if state in ("off", "stopping") and (found.get("HibernationOptions") or {}).get("Configured"):
        return "running"  # It may only sleep, and go on with its training one day.
    return state


def _environment_region() -> str | None:
    """The region by the variables that every SDK reads; its files are not read where nothing may be asked."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _placed(resources: Resources, region: str | None) -> Resources:
    return resources if resources.region else replace(resources, region=region)


def _newest_image(ec2: Any, params: Mapping[str, Any]) -> Mapping[str, Any]:
    answer = calling("resources.image", lambda: ec2.describe_images(**params))
    found = sorted(answer["Images"], key=lambda image: str(image.get("CreationDate", "")))
    if not found:
        wanted = " ".join(params.get("ImageIds") or [value for one in params["Filters"][:1] for value in one["Values"]])
        raise InvalidRequest(f"resources.image: there is no image {wanted} in this region")
    newest: Mapping[str, Any] = found[-1]
    return newest


def _filled(params: dict[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """The request with what only EC2 knew."""
    if not image:
        return params
    filled = dict(params)
    if filled["ImageId"] == request.IMAGE_ID:
        filled["ImageId"] = image["ImageId"]
    disks = [
        each | {"DeviceName": image["RootDeviceName"]} if each.get("DeviceName") == request.ROOT_DEVICE else each
        for each in filled.get("BlockDeviceMappings", ())
    ]
    # An override may have named the root device before anybody knew that it is the root device.
    return filled | request.merged({"BlockDeviceMappings": []}, {"BlockDeviceMappings": disks})
