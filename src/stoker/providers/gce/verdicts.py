"""Meaning of Google's errors for a check, and how to fix their causes. Pure."""

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
from stoker.providers.base import CheckResult
from stoker.providers.check_results import TRY_LATER

SEE_ROLES = "`stoker iam gce` prints the roles"
_FIXES = {
    "resources.gce.gpu_networks": "set resources.gce.gpu_networks to networks that are there, or leave them out",
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
# An API that is not enabled in the project, in the wording of the older and the newer services.
_SWITCHED_OFF = re.compile(
    r"accessNotConfigured|SERVICE_DISABLED|has not been used in project|it is disabled", re.IGNORECASE
)
# The permission that an error names.
_REQUIRED = re.compile(r"Required '([a-z]+\.[a-zA-Z.]+)' permission")
# Advice in errors to run `stoker check`, which is the command that is running.
_ADVICE = re.compile(r"; (ask for more on the console's page|`stoker check gce` shows).*")


def error_text(error: StokerError) -> str:
    """The error's message, without the advice to run `stoker check`."""
    return _ADVICE.sub("", str(error))


def fix_of(error: StokerError, service: str = "compute", project: str = "") -> str:
    """How to fix the cause of an error; empty where the message itself says so."""
    if isinstance(error, UserError):
        return ""
    if api_disabled(error):
        return enable_command(service, project)
    if isinstance(error, AuthDenied):
        return SEE_ROLES
    field = str(error).partition(": ")[0]
    if field in _FIXES:
        return _FIXES[field]
    if isinstance(error, QuotaExceeded):
        return "the quotas below say which, and how to ask for more"
    return "" if isinstance(error, (InvalidRequest, NotFound)) else TRY_LATER


def lookup_fix(error: ProviderError, permission: str, service: str = "compute", project: str = "") -> str:
    """How to make a lookup possible that failed, where nothing is known to be wrong with the resource itself.

    `permission` is the one that the lookup needs, for errors that do not name the missing one.
    """
    if api_disabled(error):
        return enable_command(service, project)
    if not isinstance(error, AuthDenied):
        return TRY_LATER
    named = _REQUIRED.search(str(error))
    return f"allow {named[1] if named else permission} to learn it"


def api_disabled(error: StokerError) -> bool:
    """Return whether the API as a whole is disabled in the project."""
    return isinstance(error, AuthDenied) and _SWITCHED_OFF.search(str(error)) is not None


def enable_command(service: str, project: str) -> str:
    return f"gcloud services enable {service}.googleapis.com" + (f" --project {project}" if project else "")


def missing_result(name: str, error: ProviderError, permission: str) -> CheckResult:
    """The result of a failed lookup of a resource that the job names."""
    if isinstance(error, (NotFound, InvalidRequest)):
        return CheckResult(name, False, error_text(error), fix_of(error))
    return CheckResult(name, None, error_text(error), lookup_fix(error, permission))
