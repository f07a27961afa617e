"""What an answer of AWS's means to somebody who only looks, and what to do about it. Pure."""

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
from stoker.providers.ec2.errors import first_line, mapped

POLICIES = "`stoker iam ec2` prints the policies"
LATER = "it may pass: check again in a while"

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
# Said where a job names no subnet, and there is no default one.
_NO_SUBNET = frozenset({"MissingInput", "VPCIdNotSpecified"})
_REQUEST = (
    "`stoker run --dry-run` prints the request; it is made of resources.machine, zones and image, and of resources.ec2 "
    "with its overrides"
)


@dataclass(frozen=True)
class Tried:
    """How a dry run ended. `denied`: a permission is what is missing."""

    ok: bool | None
    detail: str
    denied: bool = False
    fix: str = ""


def judged(code: str, message: str, status: int = 400) -> Tried:
    """What an answer to a dry run means."""
    if code == "DryRunOperation":
        return Tried(True, "allowed")
    error = mapped("", {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}})
    if isinstance(error, AuthDenied):
        return Tried(False, f"denied: {_plain(message)}", denied=True)
    subnet = _FIXES["resources.ec2.subnet"] if code in _NO_SUBNET else ""
    return Tried(verdict(error), f"{message} ({code})", fix=subnet or fix_of(error))


def verdict(error: StokerError) -> bool | None:
    """A silence proves nothing."""
    return False if isinstance(error, (AuthDenied, InvalidRequest, NotFound, QuotaExceeded, UserError)) else None


def said(error: StokerError) -> str:
    """What AWS said, without the advice to look with the very command that is looking."""
    told = answer_of(error).get("Error", {})
    if told and isinstance(error, (AuthDenied, QuotaExceeded)):
        return f"{_plain(str(told.get('Message', '')))} ({told.get('Code', '')})"
    return str(error)


def fix_of(error: StokerError) -> str:
    """What to do about it; nothing where the message itself says so."""
    if isinstance(error, UserError):
        return ""
    if isinstance(error, AuthDenied):
        return POLICIES
    if isinstance(error, QuotaExceeded):
        return "the quotas below say which, and how to ask for more"
    field = str(error).partition(": ")[0]
    if field.startswith("resources."):
        return _FIXES.get(field, f"set {field} to what this region has")
    return _REQUEST if isinstance(error, (InvalidRequest, NotFound)) else LATER


def to_learn(error: ProviderError, action: str) -> str:
    """What to do about a look that failed, where nothing is wrong with what was looked at."""
    return f"allow {action} to learn it" if isinstance(error, AuthDenied) else LATER


def answer_of(error: StokerError) -> Mapping[str, Any]:
    """AWS's own answer, where there was one."""
    found: Mapping[str, Any] = getattr(error.__cause__, "response", {})
    return found


def _plain(message: str) -> str:
    """The rest is an encoded message that only an administrator can decode."""
    return first_line(message.partition(" Encoded authorization")[0])
