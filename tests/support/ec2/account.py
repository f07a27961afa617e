"""The account of a cloud: moto with its repairs, what stands in it from the start, and the orders of the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import moto.ec2.urls
import moto.resourcegroups.urls
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import AmiBackend
from moto.fis.models import FISBackend
from moto.iam.models import iam_backends
from moto.resourcegroups.responses import ResourceGroupsResponse
from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.ssm.models import Parameter, ParameterDict

from tests.support.ec2 import faults as faults_data
from tests.support.ec2.cloud import PROFILE, REGION
from tests.support.ec2.faults import Faults
from tests.support.ec2.fleet import Fleet
from tests.support.ec2.groups import Groups
from tests.support.ec2.images import DEBIAN_ACCOUNT, IMAGES, RECORDS
from tests.support.ec2.repairs import Region, RepairedEc2
from tests.support.ec2.reservations import Reservations
from tests.support.ec2.spot import SpotPrices
from tests.support.machines.serving import obey_about
from tests.support.machines.store_door import StoreDoor


class Account:
    """Everything that a test may order the cloud to do, beside the APIs."""

    def __init__(self, fleet: Fleet, faults: Faults, prices: SpotPrices, door: StoreDoor) -> None:
        self.faults = faults
        self._fleet = fleet
        self._prices = prices
        self._door = door
        self._groups = Groups(in_use=self._stands_in)
        self._reservations = Reservations(fleet.used, fleet.end_block)
        self._region = Region(fleet, faults, prices, self._groups, self._reservations)
        RepairedEc2.cloud = self._region
        moto.ec2.urls.url_paths["{0}/"] = RepairedEc2.dispatch
        _name_images()
        _own_images()
        _connect_default_vpc()
        _make_profile(PROFILE)
        _interrupt_for_real(fleet)
        _list_groups(self._reservations)

    def obey(self, order: dict[str, Any], calls: Callable[[bool], dict[str, int]]) -> Any:
        """Do what is ordered. Raises LookupError if there is no such machine."""
        match order["do"]:
            case "states":
                return self._fleet.states()
            case "left":
                return self._left()
            case "calls":
                return calls(order["reset"])
            case "fault":
                return self.faults.add(faults_data.load(order["fault"]))
            case "clear":
                return self.faults.clear(order["number"])
            case "price":
                return self._prices.put(order["machine"], order["zone"], order["price"])
            case "dead_tokens":
                self._region.dead_tokens_fail = order["fail"]
                return None
            case "listing_lag":
                self._region.listing_lag_s = order["lag_s"]
                return None
            case "profile":
                return _make_profile(order["name"])
            case "reserve":
                return self._reservations.reserve(REGION, DEFAULT_ACCOUNT_ID, order)
            case "schedule":
                return self._reservations.schedule(order["name"], order["starts_in_s"], order["ends_in_s"])
            case "remove_groups":
                self._reservations.clear()
                return self._remove_groups()
            case "shut_store":
                return self._door.shut(order["who"])
            case _:
                return self._obey_about_machine(order)

    def _obey_about_machine(self, order: dict[str, Any]) -> Any:
        instance = order["instance"]
        match order["do"]:
            case "kill":
                return self._fleet.kill(instance)
            case "notice":
                return self._fleet.notice(instance, order["action"], order["in_s"])
            case "rebalance":
                return self._fleet.rebalance(instance)
            case "maintenance":
                return self._fleet.maintenance(instance, order["code"], order["in_s"])
            case _:
                return obey_about(self._fleet.machine(instance), order)

    def _remove_groups(self) -> None:
        for group in self._groups.all():
            self._groups.delete(group.region, group.name)

    def _left(self) -> dict[str, list[str]]:
        return {
            "instances": [each for each, state in self._fleet.states().items() if state != "terminated"],
            "volumes": [volume for backend in _regions() for volume in backend.volumes],
            "placement_groups": [group.name for group in self._groups.all()],
        }

    def _stands_in(self, region: str, group: str) -> bool:
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
        return any(
            each.placement.group_name == group and each.state != "terminated" for each in backend.all_instances()
        )


def moto_app() -> Any:
    """moto's own application."""
    return DomainDispatcherApplication(create_backend_app)


def quiet_handler() -> Any:
    """moto's request handler, that writes no line for each request."""
    return type("QuietHandler", (MotoRequestHandler,), {"log_request": lambda *_: None})


def _regions() -> list[Any]:
    return list(ec2_backends[DEFAULT_ACCOUNT_ID].values())


def _name_images() -> None:
    """Public parameters that name this cloud's images, in every region."""
    aliases = {alias: image.ami for image in IMAGES for alias in image.aliases}
    load = ParameterDict._check_loading_status

    def load_ours(held: Any, key: str) -> None:
        # moto's own latest images do not exist here.
        held.latest_amis_loaded = True
        ami = aliases.get(str(key or ""))
        if ami is not None and not dict.__contains__(held, key):
            parameter = Parameter(
                account_id=held.account_id,
                name=key,
                value=ami,
                parameter_type="String",
                description=None,
                allowed_pattern=None,
                keyid=None,
                last_modified_date=datetime.now(timezone.utc),
                version=1,
                data_type="aws:ec2:image",
            )
            dict.__setitem__(held, key, [parameter])
        load(held, key)

    ParameterDict._check_loading_status = load_ours


def _own_images() -> None:
    """moto takes all images that it begins with for Amazon's, and deprecates none."""
    theirs = ("amazon", DEBIAN_ACCOUNT)
    load = AmiBackend._load_amis
    deprecated = {record.ami: record.deprecated for record in RECORDS}

    def load_owned(backend: Any) -> None:
        load(backend)
        for ami in backend.amis.values():
            ami.owner_alias = "amazon" if ami.owner_id in theirs else None
            ami.deprecation_time = deprecated.get(ami.id) or None

    AmiBackend._load_amis = load_owned


def _connect_default_vpc() -> None:
    """A default VPC has "an internet gateway" and "a route to it in the main route table" (VPC user guide)."""
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][REGION]
    (vpc,) = [each for each in backend.vpcs.values() if each.is_default == "true" or each.is_default is True]
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    (table,) = [each for each in backend.route_tables.values() if each.vpc_id == vpc.id]
    backend.create_route(table.id, "0.0.0.0/0", None, gateway_id=gateway.id)


def _interrupt_for_real(fleet: Fleet) -> None:
    """An experiment of the Fault Injection Service that interrupts spot machines gives them the notice."""
    start = FISBackend.start_experiment

    def start_and_interrupt(backend: Any, *args: Any, **named: Any) -> Any:
        begun = start(backend, *args, **named)
        for action in begun["actions"].values():
            if action["actionId"] == "aws:ec2:send-spot-instance-interruptions":
                minutes = action["parameters"]["durationBeforeInterruption"].removeprefix("PT").removesuffix("M")
                for instance in _targets(begun["targets"][action["targets"]["SpotInstances"]], backend.region_name):
                    fleet.notice(instance.id, "terminate", 60.0 * int(minutes))
        return begun

    FISBackend.start_experiment = start_and_interrupt


def _list_groups(reservations: Reservations) -> None:
    """ListGroupResources, which moto does not know."""

    def list_resources(response: Any) -> str:
        arns = reservations.members(json.loads(response.body)["Group"])
        kind = "AWS::EC2::CapacityReservation"
        return json.dumps({"Resources": [{"Identifier": {"ResourceArn": arn, "ResourceType": kind}} for arn in arns]})

    ResourceGroupsResponse.list_group_resources = list_resources
    moto.resourcegroups.urls.url_paths["{0}/list-group-resources$"] = ResourceGroupsResponse.dispatch


def _targets(target: dict[str, Any], region: str) -> list[Any]:
    arns, wanted = target.get("resourceArns") or (), (target.get("resourceTags") or {}).items()
    found = []
    for instance in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_instances():
        named = any(arn.endswith(f":instance/{instance.id}") for arn in arns)
        tagged = bool(wanted) and wanted <= {(tag["key"], tag["value"]) for tag in instance.get_tags()}
        if (named or tagged) and instance.lifecycle == "spot" and instance.state == "running":
            found.append(instance)
    return found


def _make_profile(name: str) -> None:
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    iam.create_role(name, document, "/", None, "", [], "3600")
    iam.create_instance_profile(name, "/", [])
    iam.add_role_to_instance_profile(name, name)
