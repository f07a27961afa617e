"""The AWS operations that Stoker uses, with reasons: the table behind `stoker iam ec2` and `stoker check ec2`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Literal

from stoker.providers.ec2 import tags

# The resources of an operation: `anything` (read only), `made` (a new resource that carries this store's tag from its
# creation), `ours` (an existing resource that carries it).
Scope = Literal["anything", "made", "ours"]

# The resource types that an operation of EC2 makes or uses, as ARNs name them.
_LAUNCHED = ("instance", "volume", "network-interface", "spot-instances-request")
_USED = ("subnet", "security-group", "key-pair", "placement-group", "capacity-reservation")
_SHARED = ("image", "snapshot")
# The parameters in which AWS, Canonical and Debian publish the ids of their newest images.
PUBLIC_PARAMETERS = "arn:aws:ssm:*::parameter/aws/service/*"


@dataclass(frozen=True)
class Operation:
    """One operation, with the resource types that it is limited to unless its scope is `anything`."""

    action: str
    scope: Scope
    why: str
    resources: tuple[str, ...] = ()


# Everything that a governor calls, and nothing else: a test compares this with the provider's source.
GOVERNOR: tuple[Operation, ...] = (
    Operation("ec2:DescribeInstances", "anything", "which machines are there, and how they are"),
    Operation("ec2:DescribeInstanceTypes", "anything", "machine types that are newer than the table"),
    Operation("ec2:DescribeInstanceTypeOfferings", "anything", "which zones have a machine type"),
    Operation("ec2:DescribeSpotPriceHistory", "anything", "what spot costs now"),
    Operation("ec2:DescribeSubnets", "anything", "the zone of a subnet"),
    Operation("ec2:DescribeImages", "anything", "an image by its name, and its root device"),
    Operation("ec2:DescribeTags", "anything", "whether anything was left behind"),
    Operation("ec2:DescribeVolumes", "anything", "disks that were left behind"),
    Operation("ec2:DescribePlacementGroups", "anything", "placement groups that were left behind"),
    Operation("ec2:RunInstances", "made", "launch machines", _LAUNCHED),
    Operation("ec2:CreatePlacementGroup", "made", "put the nodes of a job close together", ("placement-group",)),
    Operation("ec2:CreateTags", "made", "mark what is launched as this store's", (*_LAUNCHED, "placement-group")),
    Operation("ec2:TerminateInstances", "ours", "give machines back", ("instance",)),
    Operation("ec2:DeleteVolume", "ours", "remove disks that were left behind", ("volume",)),
    Operation("ec2:DeletePlacementGroup", "ours", "remove placement groups after use", ("placement-group",)),
    Operation("ec2:GetConsoleOutput", "ours", "why a machine did not boot", ("instance",)),
)

# The operations that a user needs besides the store: for plans, logins and `stoker check`.
PLAN = tuple(
    each
    for each in GOVERNOR
    if each.action
    in {
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeSubnets",
    }
)
SHELL: tuple[Operation, ...] = (
    Operation("ec2:DescribeInstances", "anything", "where a machine is"),
    Operation("ec2:DescribeImages", "anything", "who logs in on an image"),
    Operation("ec2-instance-connect:SendSSHPublicKey", "ours", "lend a machine a key for a minute", ("instance",)),
    Operation("ssm:StartSession", "ours", "reach a machine without an open port", ("instance",)),
)
CHECK: tuple[Operation, ...] = (
    Operation("ec2:DescribeSecurityGroups", "anything", "whether nodes reach each other"),
    Operation("ec2:DescribeKeyPairs", "anything", "whether the job's key is there"),
    Operation("iam:GetInstanceProfile", "anything", "whether the machines' profile is there"),
    Operation("servicequotas:GetServiceQuota", "anything", "how many machines the account may have"),
)


def launch_statements(store: str) -> list[dict[str, Any]]:
    """Allow RunInstances and its tags. New resources must carry the store's tag; resources that it uses need not."""
    asked = {"StringEquals": {f"aws:RequestTag/{tags.STORE}": store}}
    launched = [arn(kind) for kind in _LAUNCHED]
    used = [*map(arn, _USED), *(f"arn:aws:ec2:*::{kind}/*" for kind in _SHARED)]
    return [
        allow("LaunchTagged", "ec2:RunInstances", launched, asked),
        allow("LaunchWith", "ec2:RunInstances", [*used, "arn:aws:resource-groups:*:*:group/*"]),
        allow(
            "TagWhatIsMade",
            "ec2:CreateTags",
            [*launched, arn("placement-group")],
            {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreatePlacementGroup"]}},
        ),
        allow(
            "NameNodes",
            "ec2:CreateTags",
            [arn("instance")],
            {**_carrying(store), "ForAllValues:StringEquals": {"aws:TagKeys": [tags.NAME]}},
        ),
    ]


def statements(operations: tuple[Operation, ...], store: str, sid: str) -> list[dict[str, Any]]:
    """Statements that allow these operations and no more. A launch has its own, see `launch_statements`."""
    plain = [each for each in operations if each.action not in ("ec2:RunInstances", "ec2:CreateTags")]
    found = []
    look = [each.action for each in plain if each.scope == "anything"]
    if look:
        found.append(allow(f"{sid}Look", look, "*"))
    made = [each for each in plain if each.scope == "made"]
    if made:
        asked = {"StringEquals": {f"aws:RequestTag/{tags.STORE}": store}}
        found.append(allow(f"{sid}Make", _actions(made), _arns(made), asked))
    ours = [each for each in plain if each.scope == "ours"]
    if ours:
        found.append(allow(f"{sid}Ours", _actions(ours), _arns(ours), _carrying(store)))
    if len(plain) != len(operations):
        found += launch_statements(store)
    return found


def statement_for(action: str, store: str) -> str:
    """The statements that allow one operation, for the user to paste."""
    found = [each for each in statements(GOVERNOR, store, "") if action in _listed(each["Action"])]
    if not found:
        found = [allow("", action, "*")]
    lean = [{key: value for key, value in (each | {"Action": action}).items() if key != "Sid"} for each in found]
    return ", ".join(json.dumps(each, separators=(",", ":")) for each in lean)


def allow(
    sid: str, action: str | list[str], resource: str | list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One statement, for the partition of this computer's region."""
    resources = [resource] if isinstance(resource, str) else resource
    for_region = [each.replace("arn:aws:", f"arn:{partition()}:", 1) for each in resources]
    found: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": action,
        "Resource": for_region[0] if isinstance(resource, str) else for_region,
    }
    return found | ({"Condition": condition} if condition else {})


def partition(region: str | None = None) -> str:
    """The partition of the region: China and GovCloud are separate AWSs with other ARNs."""
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def machine_service(region: str | None = None) -> str:
    """EC2's service name, which assumes the role of a machine."""
    return "ec2.amazonaws.com.cn" if partition(region) == "aws-cn" else "ec2.amazonaws.com"


def for_region(statement: dict[str, Any], region: str) -> dict[str, Any]:
    """A statement for the partition of this region, independent of this computer's."""
    text = json.dumps(statement).replace(f'"arn:{partition()}:', f'"arn:{partition(region)}:')
    converted: dict[str, Any] = json.loads(text.replace(f'"{machine_service()}"', f'"{machine_service(region)}"'))
    return converted


def arn(kind: str) -> str:
    """Every EC2 resource of a type, in any region of the policy's account."""
    return f"arn:aws:ec2:*:*:{kind}/*"


def _carrying(store: str) -> dict[str, Any]:
    return {"StringEquals": {f"aws:ResourceTag/{tags.STORE}": store}}


def _actions(operations: list[Operation]) -> list[str]:
    return [each.action for each in operations]


def _arns(operations: list[Operation]) -> list[str]:
    return list(dict.fromkeys(arn(kind) for each in operations for kind in each.resources))


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
