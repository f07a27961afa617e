"""Google's errors, mapped once, by code: those of a response, and those inside a finished operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NoSuchResource,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Transient,
)
from stoker.providers.cloud_errors import by_code, first_line


class AlreadyExists(InvalidRequest):
    """A resource of that name exists. Names are reused, so its owner has to be checked."""


class ResourceInUse(Transient):
    """The resource cannot be removed while another one uses it."""


# Reasons of failed requests are in camel case, codes of failed operations in capitals: one table serves both.
_CODES = by_code(
    {
        NotFound: ("NOTFOUND", "RESOURCENOTFOUND"),
        AlreadyExists: ("ALREADYEXISTS", "RESOURCEALREADYEXISTS"),
        ResourceInUse: ("RESOURCEINUSEBYANOTHERRESOURCE", "RESOURCENOTREADY", "RESOURCEINUSE"),
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
    }
)
# Fields of the job file, by the text in Google's message that a resource does not exist or may not be used.
_FIELDS = (
    ("/images/", "resources.image"),
    ("/subnetworks/", "resources.gce.network"),
    ("/networks/", "resources.gce.network"),
    ("service account", "resources.gce.service_account"),
    ("serviceAccount", "resources.gce.service_account"),
    ("/resourcePolicies/", "resources.gce.placement_policy"),
)
# The same, for resources that another zone may have.
_ZONAL_FIELDS = (
    ("/machineTypes/", "resources.machine"),
    ("/acceleratorTypes/", "resources.gpus"),
    ("/reservations/", "resources.gce.reservation"),
)
_PROJECT = re.compile(r"'projects/[^/']+'")
# Advice for errors that only a person can resolve.
_ADVICE: dict[type[ProviderError], str] = {
    QuotaExceeded: "; ask for more on the console's page of quotas: `stoker check gce` shows which",
    AuthDenied: "; `stoker check gce` shows which permission, `stoker iam gce` prints the roles",
}


def response_error(what: str, status: int, body: Any) -> ProviderError:
    """The error of an unsuccessful response. `what` begins its message."""
    found = body.get("error") if isinstance(body, Mapping) else None
    content = found if isinstance(found, Mapping) else {}
    first: Mapping[str, Any] = next(iter(content.get("errors") or ()), {})
    code = str(first.get("reason") or content.get("status") or status)
    message = str(content.get("message") or first.get("message") or "no reason given")
    return _error(what, code, message, status)


def operation_error(what: str, operation: Mapping[str, Any]) -> ProviderError | None:
    """The error of a finished operation; None where it succeeded."""
    errors = [each for each in (operation.get("error") or {}).get("errors") or () if isinstance(each, Mapping)]
    if not errors:
        return None
    # An incomplete gang reports that it is incomplete, and the reason for each machine: the reason is what counts.
    reasons = [each for each in errors if _key(str(each.get("code"))) != "VMMINCOUNTNOTREACHED"]
    first = (reasons or errors)[0]
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
    # A timeout, a conflict, and a precondition that another change has broken.
    by_status |= dict.fromkeys((408, 409, 412), Transient)
    if status in by_status:
        return by_status[status]
    return InvalidRequest if 400 <= status < 500 else Transient


def _error(what: str, code: str, message: str, status: int) -> ProviderError:
    kind = kind_of(code, status)
    field = ""
    if issubclass(kind, (NotFound, InvalidRequest, AuthDenied)) and kind is not AlreadyExists:
        field = next((field for sign, field in (*_FIELDS, *_ZONAL_FIELDS) if sign in message), "")
        # A missing permission in a project does not mean that the project is the wrong one.
        if not field and kind is not AuthDenied and _PROJECT.search(message):
            field = "resources.gce.project"
    found = kind(f"{field or what}: {first_line(message)} ({code}){_ADVICE.get(kind, '')}")
    return as_invalid_request(found) if kind is InvalidRequest else found


def as_invalid_request(error: ProviderError) -> InvalidRequest:
    """The error as a fault of the request itself, which no repetition of the launch can cure."""
    text = str(error)
    zonal = any(text.startswith(f"{field}:") for _, field in _ZONAL_FIELDS)
    if not text.startswith("resources.") or zonal:
        return InvalidRequest(text)
    return NoSuchResource(text if "`stoker check" in text else f"{text}; `stoker check gce` shows what there is")


def _key(code: str) -> str:
    return code.replace("_", "").replace(" ", "").upper()
