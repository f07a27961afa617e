"""Interpret AWS's answers to checks, and suggest fixes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    StokerError,
    UserError,
)
from stoker.providers.check_results import TRY_LATER, check_ok
from stoker.providers.cloud_errors import first_line
from stoker.providers.ec2.errors import map_error

POLICIES = "`stoker iam ec2` prints the policies"

_FIXES = {
    "resources.image": "set resources.image to an image of this region, or to an alias such as ubuntu/24.04",
    "resources.ec2.key": "set resources.ec2.key to one that `aws ec2 describe-key-pairs` lists in this region",
    "resources.ec2.placement_group": "set resources.ec2.placement_group to one that is there, or leave it out",
    "resources.ec2.profile": f"set resources.ec2.profile to one that is there; {POLICIES} and make one",
    "resources.ec2.reservation": "set resources.ec2.reservation to one of this region, or leave it out",
    "resources.ec2.security_groups": "set resources.ec2.security_groups to groups in the VPC of the subnet, in this "
    "region, or leave it out for the default group",
    "resources.ec2.subnet": "set resources.ec2.subnet to one that is there in this region, or leave it out for the "
    "default one",
}
# Codes for a job that names no subnet in a region without a default one.
_NO_SUBNET = frozenset({"MissingInput", "VPCIdNotSpecified"})
_REQUEST = (
    "`stoker run --dry-run` prints the request; it is made of resources.machine, zones and image, and of resources.ec2 "
    "with its overrides"
)


@dataclass(frozen=True)
class DryRunResult:
    """The result of a dry run. `denied`: a permission is missing."""

    ok: bool | None
    detail: str
    denied: bool = False
    fix: str = ""


def dry_run_result(code: str, message: str, status: int = 400) -> DryRunResult:
    """Interpret the answer to a dry run."""
    if code == "DryRunOperation":
        return DryRunResult(True, "allowed")
    error = map_error("", {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}})
    if isinstance(error, AuthDenied):
        return DryRunResult(False, f"denied: {_plain(message)}", denied=True)
    subnet = _FIXES["resources.ec2.subnet"] if code in _NO_SUBNET else ""
    return DryRunResult(check_ok(error), f"{message} ({code})", fix=subnet or fix_of(error))


def aws_message(error: StokerError) -> str:
    """AWS's message, without the advice to run the check that is running."""
    details = answer_of(error).get("Error", {})
    if details and isinstance(error, (AuthDenied, QuotaExceeded)):
        return f"{_plain(str(details.get('Message', '')))} ({details.get('Code', '')})"
    return str(error)


def fix_of(error: StokerError) -> str:
    """The fix for an error; empty if the message itself contains it."""
    if isinstance(error, UserError):
        return ""
    if isinstance(error, AuthDenied):
        return POLICIES
    if isinstance(error, QuotaExceeded):
        return "the quotas below say which, and how to ask for more"
    field = str(error).partition(": ")[0]
    if field.startswith("resources."):
        return _FIXES.get(field, f"set {field} to what this region has")
    return _REQUEST if isinstance(error, (InvalidRequest, NotFound)) else TRY_LATER


def permission_fix(error: ProviderError, action: str) -> str:
    """The fix for a check that itself failed, if nothing is known to be wrong with its subject."""
    return f"allow {action} to learn it" if isinstance(error, AuthDenied) else TRY_LATER


def answer_of(error: StokerError) -> Mapping[str, Any]:
    """AWS's own answer, if there was one."""
    found: Mapping[str, Any] = getattr(error.__cause__, "response", {})
    return found


def _plain(message: str) -> str:
    """The readable part: the rest is an encoded message that only an administrator can decode."""
    return first_line(message.partition(" Encoded authorization")[0])
