"""What an answer of Google's means to somebody who only looks, and what to do about it. Pure."""

from __future__ import annotations

import re

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    StokerError,
    UserError,
)

ROLES = "`stoker iam gce` prints the roles"
LATER = "it may pass: check again in a while"
_FIXES = {
    "resources.gce.network": "set resources.gce.network to one that is there, or leave it out for the default one",
    "resources.gce.placement_policy": "leave it out: several nodes get one of their own",
    "resources.gce.project": "set resources.gce.project to the id of a project, which is not its name",
    "resources.gce.reservation": "set resources.gce.reservation to one of this project and zone, or leave it out",
    "resources.gce.service_account": "set resources.gce.service_account to one that is there; "
    "`stoker iam gce` describes one",
    "resources.gpus": "set resources.gpus to what the region has: `stoker offers`",
    "resources.image": "set resources.image to one that is there, or to an alias such as ubuntu/24.04",
    "resources.machine": "set resources.machine to what the region has: `stoker offers`",
}
# An API that nobody has switched on in the project, as the older and the newer services say it.
_SWITCHED_OFF = re.compile(
    r"accessNotConfigured|SERVICE_DISABLED|has not been used in project|it is disabled", re.IGNORECASE
)
# The permission that a refusal names.
_REQUIRED = re.compile(r"Required '([a-z]+\.[a-zA-Z.]+)' permission")
# What errors advise: the very command that is looking.
_ADVICE = re.compile(r"; (ask for more on the console's page|`stoker check gce` shows).*")


def verdict(error: StokerError) -> bool | None:
    """A silence proves nothing."""
    return False if isinstance(error, (AuthDenied, InvalidRequest, NotFound, QuotaExceeded, UserError)) else None


def said(error: StokerError) -> str:
    """What Google said, without the advice to look with the very command that is looking."""
    return _ADVICE.sub("", str(error))


def fix_of(error: StokerError, service: str = "compute", project: str = "") -> str:
    """What to do about it; nothing where the message itself says so."""
    if isinstance(error, UserError):
        return ""
    if switched_off(error):
        return enable(service, project)
    if isinstance(error, AuthDenied):
        return ROLES
    field = str(error).partition(": ")[0]
    if field in _FIXES:
        return _FIXES[field]
    if isinstance(error, QuotaExceeded):
        return "the quotas below say which, and how to ask for more"
    return "" if isinstance(error, (InvalidRequest, NotFound)) else LATER


def to_learn(error: ProviderError, permission: str, service: str = "compute", project: str = "") -> str:
    """What to do about a look that failed, where nothing is wrong with what was looked at.

    `permission` is what the look needs, where Google does not name the one that is missing.
    """
    if switched_off(error):
        return enable(service, project)
    if not isinstance(error, AuthDenied):
        return LATER
    named = _REQUIRED.search(str(error))
    return f"allow {named[1] if named else permission} to learn it"


def switched_off(error: StokerError) -> bool:
    """Whether it is the whole API that is missing."""
    return isinstance(error, AuthDenied) and _SWITCHED_OFF.search(str(error)) is not None


def enable(service: str, project: str) -> str:
    return f"gcloud services enable {service}.googleapis.com" + (f" --project {project}" if project else "")
