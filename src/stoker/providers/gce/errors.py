"""Google's errors, mapped once, by code: those of a request, and those inside an operation that has finished."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    Misnamed,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Transient,
)


class AlreadyThere(InvalidRequest):
    """Something of that name exists. Names are used again, so whose it is has to be looked at."""


class InUse(Transient):
    """It cannot be removed while something else uses it."""


# Reasons of refused requests are in camel case, codes of failed operations in capitals: one table for both.
_CODES: dict[str, type[ProviderError]] = {
    code: kind
    for kind, codes in {
        NotFound: ("NOTFOUND", "RESOURCENOTFOUND"),
        AlreadyThere: ("ALREADYEXISTS", "RESOURCEALREADYEXISTS"),
        InUse: ("RESOURCEINUSEBYANOTHERRESOURCE", "RESOURCENOTREADY", "RESOURCEINUSE"),
        NoCapacity: (
            "RESOURCEPOOLEXHAUSTED",
            "STOCKOUT",
            "VMMINCOUNTNOTREACHED",
            "ZONERESOURCEPOOLEXHAUSTED",
            "ZONERESOURCEPOOLEXHAUSTEDWITHDETAILS",
        ),
        QuotaExceeded: ("LIMITEXCEEDED", "QUOTAEXCEEDED"),
        AuthDenied: (
            "ACCESSNOTCONFIGURED",
            "FORBIDDEN",
            "INSUFFICIENTPERMISSIONS",
            "PERMISSIONDENIED",
            "PERMISSIONSERROR",
            "SERVICEACCOUNTACCESSDENIED",
        ),
        Throttled: (
            "CONCURRENTOPERATIONSQUOTAEXCEEDED",
            "DAILYLIMITEXCEEDED",
            "OPERATIONRATEEXCEEDED",
            "RATELIMITEXCEEDED",
            "RESOURCEOPERATIONRATEEXCEEDED",
            "USERRATELIMITEXCEEDED",
        ),
        Transient: ("BACKENDERROR", "INTERNALERROR", "OPERATIONCANCELEDBYUSER"),
    }.items()
    for code in codes
}
# What a person named in the job file, by what stands in Google's words where that is not there, or not to be used.
_FIELDS = (
    ("/images/", "resources.image"),
    ("/subnetworks/", "resources.gce.network"),
    ("/networks/", "resources.gce.network"),
    ("service account", "resources.gce.service_account"),
    ("serviceAccount", "resources.gce.service_account"),
    ("/resourcePolicies/", "resources.gce.placement_policy"),
)
# The same, for what another zone may have.
_ZONAL_FIELDS = (
    ("/machineTypes/", "resources.machine"),
    ("/acceleratorTypes/", "resources.gpus"),
    ("/reservations/", "resources.gce.reservation"),
)
_PROJECT = re.compile(r"'projects/[^/']+'")
# What to do about what only a person can change.
_ADVICE: dict[type[ProviderError], str] = {
    QuotaExceeded: "; ask for more on the console's page of quotas: `stoker check gce` shows which",
    AuthDenied: "; `stoker check gce` shows which permission, `stoker iam gce` prints the roles",
}


def refused(what: str, status: int, body: Any) -> ProviderError:
    """The error that an answer other than a success means. `what` begins its message, for people."""
    told = body.get("error") if isinstance(body, Mapping) else None
    told = told if isinstance(told, Mapping) else {}
    first: Mapping[str, Any] = next(iter(told.get("errors") or ()), {})
    code = str(first.get("reason") or told.get("status") or status)
    message = str(told.get("message") or first.get("message") or "no reason given")
    return _error(what, code, message, status)


def failed(what: str, operation: Mapping[str, Any]) -> ProviderError | None:
    """The error of an operation that has finished; None where it succeeded."""
    errors = [each for each in (operation.get("error") or {}).get("errors") or () if isinstance(each, Mapping)]
    if not errors:
        return None
    # A gang that came short tells that, and for each machine why: the reason is what is told, and what counts.
    deep = [each for each in errors if _key(str(each.get("code"))) != "VMMINCOUNTNOTREACHED"]
    first = (deep or errors)[0]
    status = int(operation.get("httpErrorStatusCode") or 0)
    return _error(what, str(first.get("code") or status), str(first.get("message") or "no reason given"), status)


def kind_of(code: str, status: int = 0) -> type[ProviderError]:
    key = _key(code)
    found = _CODES.get(key)
    if found is not None:
        return found
    if "POOLEXHAUSTED" in key or "STOCKOUT" in key:
        return NoCapacity
    if key.endswith("QUOTAEXCEEDED"):
        return QuotaExceeded
    by_status = {401: Transient, 403: AuthDenied, 404: NotFound, 429: Throttled}
    # A conflict, and a condition that does not hold any more: somebody else was quicker.
    by_status |= dict.fromkeys((408, 409, 412), Transient)
    if status in by_status:
        return by_status[status]
    return InvalidRequest if 400 <= status < 500 else Transient


def first_line(error: object) -> str:
    """An error's first line, short enough to be one."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:400]


def _error(what: str, code: str, message: str, status: int) -> ProviderError:
    kind = kind_of(code, status)
    field = ""
    if issubclass(kind, (NotFound, InvalidRequest, AuthDenied)) and kind is not AlreadyThere:
        field = next((field for sign, field in (*_FIELDS, *_ZONAL_FIELDS) if sign in message), "")
        # Whoever lacks a permission in a project has the right project.
        if not field and kind is not AuthDenied and _PROJECT.search(message):
            field = "resources.gce.project"
    found = kind(f"{field or what}: {first_line(message)} ({code}){_ADVICE.get(kind, '')}")
    return refusal(found) if kind is InvalidRequest else found


def refusal(error: ProviderError) -> InvalidRequest:
    """Something is at fault with the request, or not there that it names: a launch with it will never do."""
    text = str(error)
    zonal = any(text.startswith(f"{field}:") for _, field in _ZONAL_FIELDS)
    if not text.startswith("resources.") or zonal:
        return InvalidRequest(text)
    return Misnamed(text if "`stoker check" in text else f"{text}; `stoker check gce` shows what there is")


def _key(code: str) -> str:
    return code.replace("_", "").replace(" ", "").upper()
