"""Statements of AWS policies, made from the tables of `permissions`. Makes no requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.providers.ec2.client import environment_region
from stoker.providers.ec2.permissions import (
    CARRYING_TAG,
    GOVERNOR,
    LAUNCH,
    REQUESTED_TAG,
    Operation,
    Operations,
    Statement,
    arn,
)

_NAME = re.compile(r"\(([A-Z]+)\)")


def fill(table: Iterable[Statement | Operations], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The statements of a table, with these names in place of those in parentheses."""
    found = []
    for row in table:
        if isinstance(row, Operations):
            found += statements(row.operations, names["TAG"], row.sid)
        else:
            condition = None if row.condition is None else _filled(row.condition, names)
            sid, actions, resources = (_filled(each, names) for each in (row.sid, row.actions, row.resources))
            found.append(allow(sid, actions, resources, condition))
    return found


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    """Fill names in. Members of a list that contain an empty name are left out, and conditions without members."""
    if isinstance(value, str):
        return _NAME.sub(lambda found: names[found[1]], value)
    if isinstance(value, Mapping):
        return {key: found for key, each in value.items() if (found := _filled(each, names))}
    return [_filled(each, names) for each in value if all(names[name] for name in _NAME.findall(each))]


def statements(operations: tuple[Operation, ...], store: str, sid: str) -> list[dict[str, Any]]:
    """Statements that allow these operations and no more. A launch has its own: see `permissions.LAUNCH`."""
    names = {"TAG": store}
    plain = [each for each in operations if each.action not in ("ec2:RunInstances", "ec2:CreateTags")]
    found = []
    look = [each.action for each in plain if each.scope == "anything"]
    if look:
        found.append(allow(f"{sid}Look", look, "*"))
    for scope, end, condition in (("made", "Make", REQUESTED_TAG), ("ours", "Ours", CARRYING_TAG)):
        limited = [each for each in plain if each.scope == scope]
        if limited:
            arns = list(dict.fromkeys(arn(kind) for each in limited for kind in each.resources))
            found.append(allow(f"{sid}{end}", [each.action for each in limited], arns, _filled(condition, names)))
    return found if len(plain) == len(operations) else [*found, *fill(LAUNCH, names)]


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
    region = region or environment_region() or ""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def machine_service(region: str | None = None) -> str:
    """EC2's service name, which assumes the role of a machine."""
    return "ec2.amazonaws.com.cn" if partition(region) == "aws-cn" else "ec2.amazonaws.com"


def for_region(statement: dict[str, Any], region: str) -> dict[str, Any]:
    """A statement for the partition of this region, independent of this computer's."""
    text = json.dumps(statement).replace(f'"arn:{partition()}:', f'"arn:{partition(region)}:')
    converted: dict[str, Any] = json.loads(text.replace(f'"{machine_service()}"', f'"{machine_service(region)}"'))
    return converted


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
