"""moto's EC2 with what it gets wrong put right, and with machines behind its instances.

moto calls the method that is named as the operation; those below stand in front of its own. `self.params` is the
request as botocore's model reads it, and what is returned is written by the same model.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_dict_attribute_mapping
from moto.ssm.models import ssm_backends

from tests.support.ec2.faults import Failure, Fault, Faults, failure
from tests.support.ec2.fleet import CODES, Fleet, unknown_instance
from tests.support.ec2.groups import Groups
from tests.support.ec2.reservations import Reservations
from tests.support.ec2.spot import SpotPrices

_MOST_USER_DATA = 16384
_CONSOLE_BYTES = 64 * 1024
_PRODUCT = "Linux/UNIX"
_IMAGE_GIB = 8
_LISTS_OF_MACHINES = ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings")

# moto answers 500 to filters that it does not know.
filter_dict_attribute_mapping.update(
    {
        "client-token": "client_token",
        "instance-lifecycle": "lifecycle",
        "placement-group-name": "placement.group_name",
    }
)


@dataclass
class Region:
    """What this cloud knows beside moto: shared by all requests."""

    fleet: Fleet
    faults: Faults
    prices: SpotPrices
    groups: Groups
    reservations: Reservations
    # (region, zone if the request names one, token) -> (what was asked, the reservation). Tokens of requests that name
    # a zone count in that zone alone: docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
    tokens: dict[tuple[str, str, str], tuple[str, Any]] = field(default_factory=dict)
    # What a token answers once its instances are terminated: an error, or those instances.
    dead_tokens_fail: bool = True
    # How long a new instance is not seen yet by those who look.
    listing_lag_s: float = 0.0
    launching: threading.Lock = field(default_factory=threading.Lock)
    # (region, operation, what was asked) -> the whole answer.
    written: dict[tuple[str, str, str], tuple[int, dict[str, Any], Any]] = field(default_factory=dict)


class RepairedEc2(EC2Response):  # type: ignore[misc]  # moto is not read by mypy
    """The operations that moto lacks or gets wrong."""

    cloud: ClassVar[Region]

    # moto says "pending" in every answer to RunInstances; a repeated call must tell what is.
    RESPONSE_KEY_PATH_TO_TRANSFORMER: ClassVar[dict[str, Any]] = {
        key: value
        for key, value in EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
        if not key.startswith("RunInstances.")
    }

    def call_action(self) -> Any:
        try:
            return super().call_action()
        except Failure as error:
            return error.status, {"Content-Type": "text/xml;charset=UTF-8"}, error_body(error)
        except NotImplementedError as error:
            told = Failure("InvalidAction", f"The fake EC2 does not know: {error}")
            return told.status, {"Content-Type": "text/xml;charset=UTF-8"}, error_body(told)

    def serialized(self, action_result: Any) -> Any:
        """Write down once what machines there are: it never changes, and takes seconds of a processor."""
        action = self._get_action()
        if action not in _LISTS_OF_MACHINES or isinstance(action_result.result, Exception):
            return super().serialized(action_result)
        key = (self.region, action, _fingerprint(self.params))
        if key not in self.cloud.written:
            self.cloud.written[key] = super().serialized(action_result)
        status, headers, body = self.cloud.written[key]
        return status, dict(headers), body

    def error_on_dryrun(self) -> None:
        if self._get_param("DryRun", False):
            raise Failure("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)

    # ── instances ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_instances(self) -> Any:
        with self.cloud.launching:
            self._check_launch()
            zone = self._named_zone()
            token = self._get_param("ClientToken") or ""
            key, asked = (self.region, zone, token), _fingerprint(self.params)
            if not self._get_param("DryRun", False) and token and key in self.cloud.tokens:
                return self._again(key, asked)
            reservation = self._launch(zone)
            if token:
                self.cloud.tokens[key] = (asked, reservation)
            return ActionResult(reservation)

    def _check_launch(self) -> None:
        least, most = self._get_int_param("MinCount", 1), self._get_int_param("MaxCount", 1)
        if not 1 <= least <= most:
            raise Failure("InvalidParameterValue", f"minCount {least} and maxCount {most} do not fit together")
        script = self._get_param("UserData") or ""
        if len(base64.b64decode(script)) > _MOST_USER_DATA:
            raise Failure("InvalidParameterValue", f"User data is limited to {_MOST_USER_DATA} bytes")
        if len(self._get_param("ClientToken") or "") > 64:
            raise Failure("InvalidParameterValue", "The client token is longer than 64 characters")
        self._check_volumes()

    def _again(self, key: tuple[str, str, str], asked: str) -> Any:
        before, reservation = self.cloud.tokens[key]
        if before != asked:
            told = "The request uses the same client token as a previous, but non-identical request."
            raise Failure("IdempotentParameterMismatch", told)
        if self.cloud.dead_tokens_fail and all(one.state == "terminated" for one in reservation.instances):
            told = "The request uses the same client token as a previous request whose instance has been terminated."
            raise Failure("IdempotentInstanceTerminated", told)
        return ActionResult(reservation)

    def _launch(self, zone: str) -> Any:
        self.params["ImageId"] = self._resolve_image(self._get_param("ImageId") or "")
        group = self._get_param("Placement.GroupName") or self._get_param("Placement.GroupId")
        if group:
            group = self.cloud.groups.find(self.region, group).name
        self._check_named()
        reserved = self.cloud.reservations.target(
            self.region, self._get_param, self._get_param("InstanceType") or "m1.small", zone, self.params["MinCount"]
        )
        zone, count = self._find_room(reserved.zone if reserved is not None else zone)
        self.params["MinCount"] = count
        if not self._get_param("SubnetId") and not any(card.get("SubnetId") for card in self._cards()):
            self.params["Placement"] = {**(self._get_param("Placement") or {}), "AvailabilityZone": zone}
        self._keep_roots()
        reservation = super().run_instances().result
        spot = self._get_param("InstanceMarketOptions.MarketType") == "spot"
        for instance in reservation.instances:
            instance.client_token = self._get_param("ClientToken") or ""
            instance.placement.group_name = group or ""
            instance.lifecycle = "spot" if spot else "capacity-block" if reserved and reserved.block else None
            instance.capacity_reservation_id = reserved.id if reserved is not None else None
            instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}" if spot else None
            self._give_profile(instance, reservation.instances[0])
            self.cloud.fleet.launch(instance)
        return reservation

    def _resolve_image(self, image: str) -> str:
        if not image.startswith("resolve:ssm:"):
            return image
        name = image.removeprefix("resolve:ssm:")
        found = ssm_backends[self.current_account][self.region].get_parameter(name)
        if found is None:
            raise Failure("InvalidParameterValue", f"Unable to resolve the SSM parameter {name}")
        return str(found.value)

    def _cards(self) -> list[dict[str, Any]]:
        return list(self._get_param("NetworkInterfaces") or [])

    def _check_named(self) -> None:
        """What a launch names has to be there; moto takes any name. A dry run says so too."""
        groups = [*(self._get_param("SecurityGroupId") or self._get_param("SecurityGroupIds") or ())]
        groups += [group for card in self._cards() for group in card.get("Groups") or card.get("SecurityGroupId") or ()]
        for group in groups:
            if self.ec2_backend.get_security_group_from_id(group) is None:
                raise Failure("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
        key = self._get_param("KeyName")
        if key and key not in self.ec2_backend.key_pairs:
            raise Failure("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")

    def _named_zone(self) -> str:
        """The zone that the request names, itself or by a subnet; empty if EC2 may choose."""
        subnets = [self._get_param("SubnetId"), *(card.get("SubnetId") for card in self._cards())]
        for subnet in filter(None, subnets):
            return str(self.ec2_backend.get_subnet(subnet).availability_zone)
        return self._get_param("Placement.AvailabilityZone") or ""

    def _find_room(self, zone: str) -> tuple[str, int]:
        """A zone and how many machines it has for this request. Raises Failure where there are too few."""
        machine = self._get_param("InstanceType") or "m1.small"
        spot = self._get_param("InstanceMarketOptions.MarketType") == "spot"
        least, most = int(self._get_param("MinCount")), int(self._get_param("MaxCount"))
        limit = self._get_param("InstanceMarketOptions.SpotOptions.MaxPrice")
        met: Fault | None = None
        # Where nobody offers it moto's own check must say so.
        for candidate in [zone] if zone else self._zones_offering(machine) or [f"{self.region}a"]:
            found = self.cloud.faults.launching(candidate, machine, "spot" if spot else "on-demand", least, most)
            if isinstance(found, Fault):
                met = found
                if not found.zone:
                    break  # it is not about this zone: no other will do
            elif spot and limit and float(limit) < self.cloud.prices.of(machine, candidate):
                met = Fault("SpotMaxPriceTooLow")
            else:
                return candidate, found
        raise failure(met or Fault("InsufficientInstanceCapacity"))

    def _keep_roots(self) -> None:
        # What the image says of its root volume holds where the request is silent: it goes with the machine.
        for mapping in self._get_param("BlockDeviceMappings") or []:
            if "Ebs" in mapping:
                mapping["Ebs"].setdefault("DeleteOnTermination", True)
                mapping["Ebs"].setdefault("VolumeSize", _IMAGE_GIB)

    def _check_volumes(self) -> None:
        """The root volume is no smaller than the image, and gp3 has "0.25 MiB/s per provisioned IOPS"."""
        for mapping in self._get_param("BlockDeviceMappings") or []:
            ebs = mapping.get("Ebs") or {}
            size = int(ebs.get("VolumeSize", _IMAGE_GIB))
            if mapping["DeviceName"] in ("/dev/sda1", "/dev/xvda") and size < _IMAGE_GIB:
                told = f"Volume of size {size}GB is smaller than snapshot 'snap-0', expect size >= {_IMAGE_GIB}GB"
                raise Failure("InvalidBlockDeviceMapping", told)
            if int(ebs.get("Throughput", 125)) > int(ebs.get("Iops", 3000)) / 4:
                raise Failure("InvalidParameterValue", "Throughput (MiB/s) to iops ratio is too high; maximum is 0.25")

    def _give_profile(self, instance: Any, first: Any) -> None:
        # moto gives it to the first instance only.
        given = self.ec2_backend.iam_instance_profile_associations.get(first.id)
        if given is not None and instance is not first:
            self.ec2_backend.associate_iam_instance_profile(
                instance_id=instance.id, iam_instance_profile_name=given.iam_instance_profile.name
            )

    def describe_instances(self) -> Any:
        answer = super().describe_instances()
        since = datetime.now(timezone.utc) - timedelta(seconds=self.cloud.listing_lag_s)
        for reservation in answer.result["Reservations"]:
            shown = [each for each in reservation.instances if each.launch_time.replace(tzinfo=timezone.utc) <= since]
            if self._get_param("InstanceIds") and len(shown) < len(reservation.instances):
                raise unknown_instance(self._get_param("InstanceIds")[0])
            reservation.instances = shown
        answer.result["Reservations"] = [each for each in answer.result["Reservations"] if each.instances]
        return answer

    def terminate_instances(self) -> Any:
        return ActionResult({"TerminatingInstances": self._change(self.cloud.fleet.terminate)})

    def stop_instances(self) -> Any:
        return ActionResult({"StoppingInstances": self._change(self.cloud.fleet.stop)})

    def start_instances(self) -> Any:
        raise Failure("UnsupportedOperation", "The fake EC2 starts no stopped instance.")

    def _change(self, act: Any) -> list[dict[str, Any]]:
        chosen = [self._instance(instance_id) for instance_id in self._get_param("InstanceIds") or []]
        self.error_on_dryrun()
        changed = []
        for instance in chosen:
            before, now = act(instance)
            changed.append({"InstanceId": instance.id, "CurrentState": _state(now), "PreviousState": _state(before)})
        return changed

    def _instance(self, instance_id: str) -> Any:
        found = self.ec2_backend.get_instance_by_id(instance_id)
        if found is None:
            raise unknown_instance(instance_id)
        return found

    def get_console_output(self) -> Any:
        instance = self._instance(self._get_param("InstanceId") or "")
        self.error_on_dryrun()
        output = self.cloud.fleet.machine(instance.id).console()[-_CONSOLE_BYTES:]
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": instance.launch_time,
                "Output": base64.b64encode(output).decode(),
            }
        )

    def describe_images(self) -> Any:
        """Without deprecated images of others, unless they are asked for.

        "Default: No deprecated AMIs are included in the response. If you are the AMI owner, all deprecated AMIs appear
        in the response regardless of what you specify for this parameter" (DescribeImages, IncludeDeprecated).
        """
        answer = super().describe_images()
        now = datetime.now(timezone.utc).isoformat()
        wanted = self._get_bool_param("IncludeDeprecated", False)
        answer.result["Images"] = [
            ami
            for ami in answer.result["Images"]
            if wanted or ami.owner_id == self.current_account or not ami.deprecation_time or ami.deprecation_time > now
        ]
        return answer

    # ── prices and groups ────────────────────────────────────────────────────────────────────────────────────────────

    def describe_spot_price_history(self) -> Any:
        filters = {key: list(values) for key, values in self._filters_from_querystring().items()}
        machines = self._get_param("InstanceTypes") or filters.pop("instance-type", [])
        zones = [self._get_param("AvailabilityZone")] if self._get_param("AvailabilityZone") else []
        zones = zones or filters.pop("availability-zone", [])
        products = self._get_param("ProductDescriptions") or filters.pop("product-description", [])
        if filters:
            raise Failure("InvalidParameterValue", f"The filter '{next(iter(filters))}' is invalid")
        if products and not {_PRODUCT, f"{_PRODUCT} (Amazon VPC)"} & set(products):
            return ActionResult({"SpotPriceHistory": []})
        history = [
            {
                "InstanceType": machine,
                "ProductDescription": _PRODUCT,
                "SpotPrice": f"{self.cloud.prices.of(machine, zone):.6f}",
                "AvailabilityZone": zone,
                "Timestamp": self.cloud.prices.since,
            }
            for machine in machines or self.cloud.prices.machines()
            for zone in self._zones_offering(machine)
            if not zones or zone in zones
        ]
        return ActionResult({"SpotPriceHistory": history, "NextToken": ""})

    def _zones_offering(self, machine: str) -> list[str]:
        offered = self.ec2_backend.describe_instance_type_offerings("availability-zone", {"instance-type": [machine]})
        return sorted(each["Location"] for each in offered)

    def create_placement_group(self) -> Any:
        self.error_on_dryrun()
        tags: dict[str, str] = {}
        for spec in self._get_param("TagSpecifications") or []:
            if spec.get("ResourceType") != "placement-group":
                raise Failure("InvalidParameterValue", f"'{spec.get('ResourceType')}' is not a valid taggable resource")
            tags.update({tag["Key"]: tag.get("Value", "") for tag in spec.get("Tags", [])})
        name, strategy = self._get_param("GroupName") or "", self._get_param("Strategy") or ""
        made = self.cloud.groups.create(self.region, self.current_account, name, strategy, tags)
        return ActionResult({"PlacementGroup": made.answer()})

    def describe_placement_groups(self) -> Any:
        self.error_on_dryrun()
        named = [*(self._get_param("GroupNames") or []), *(self._get_param("GroupIds") or [])]
        found = [self.cloud.groups.find(self.region, name) for name in named] or self.cloud.groups.all(self.region)
        filters = self._filters_from_querystring().items()
        kept = [group.answer() for group in found if all(group.passes(name, values) for name, values in filters)]
        return ActionResult({"PlacementGroups": kept})

    def describe_capacity_reservations(self) -> Any:
        self.error_on_dryrun()
        found = self.cloud.reservations.describe(self.region, self._get_param("CapacityReservationIds") or [])
        return ActionResult({"CapacityReservations": found})

    def delete_placement_group(self) -> Any:
        self.error_on_dryrun()
        self.cloud.groups.delete(self.region, self._get_param("GroupName") or "")
        return EmptyResult()

    def describe_tags(self) -> Any:
        self.error_on_dryrun()
        filters = self._filters_from_querystring()
        found = self.ec2_backend.describe_tags(filters=filters)
        for group in self.cloud.groups.all(self.region):
            found += [row for row in group.tag_rows() if _row_passes(row, filters)]
        return ActionResult({"Tags": found})

    def create_tags(self) -> Any:
        resources = self._get_param("Resources") or []
        groups = [each for each in resources if each.startswith("pg-")]
        if not groups:
            return super().create_tags()
        self.error_on_dryrun()
        tags = {tag["Key"]: tag.get("Value", "") for tag in self._get_param("Tags") or []}
        for group in groups:
            self.cloud.groups.tag(self.region, group, tags)
        self.params["Resources"] = [each for each in resources if each not in groups]
        return super().create_tags() if self.params["Resources"] else EmptyResult()


def error_body(error: Failure) -> str:
    """An error as EC2 writes it."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
        f"</Error></Errors><RequestID>{secrets.token_hex(16)}</RequestID></Response>"
    )


def _state(name: str) -> dict[str, Any]:
    return {"Name": name, "Code": CODES[name]}


def _fingerprint(params: Any) -> str:
    asked = {key: value for key, value in params.items() if key not in ("ClientToken", "DryRun")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _row_passes(row: dict[str, str], filters: dict[str, list[str]]) -> bool:
    """Whether one tag of one thing passes the filters of DescribeTags."""
    return all(
        any(fnmatchcase(row[name.replace("-", "_")], pattern) for pattern in patterns)
        for name, patterns in filters.items()
    )
