"""Failures of a request in Google's queue (flex-start): which of them no further wait cures. Pure.

Google accepts a request before it tries it, and tries it again for as long as it waits. So most failures there say no
more than that there are no machines yet, also some that look like a fault of the request: one that expires leaves
various records. Only what no other reading allows ends the wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.model.errors import AuthDenied, ProviderError, QuotaExceeded
from stoker.providers.gce import catalog
from stoker.providers.gce.errors import as_invalid_request, operation_error

# https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-vm-creation: "If the following API response
# fields are present […], your API request isn't written correctly, or it uses a property that isn't supported".
_MALFORMED = re.compile(r"\((?:invalid|badRequest|INVALID_FIELD_VALUE|INVALID_USAGE|UNSUPPORTED_OPERATION)\)")
_INVALID_VALUE = re.compile("Invalid value for field")
# An organization's policy: "Constraint constraints/compute.vmExternalIpAccess violated for project 42."
_FORBIDDEN = re.compile(r"\bConstraint constraints/\S+ violated\b")
_LIMIT = re.compile(r"Quota '([^']+)' exceeded\.\s+Limit: (\d+(?:\.\d+)?)")


def errors_of(container: object) -> Mapping[str, Any]:
    """The errors of a finished operation, or of a resize request's status, as `operation_error` reads them."""
    return {"error": container.get("error")} if isinstance(container, Mapping) else {}


def lasting(what: str, failed: Mapping[str, Any], machine: str, nodes: int) -> ProviderError | None:
    """Return the failure as an error that ends the wait; None where waiting may still help.

    `machine` and `nodes` are what the request is for.
    """
    error = operation_error(what, failed)
    if error is None or isinstance(error, AuthDenied):
        return error
    if isinstance(error, QuotaExceeded):
        return error if _is_above_limit(failed, machine, nodes) else None
    return as_invalid_request(error) if is_lasting(error) else None


def is_lasting(error: ProviderError) -> bool:
    """Return whether the error is about the request itself, and not about its time in the queue."""
    text = str(error)
    # One that names a field of the job file is about a resource that is not there, or not in this zone.
    return text.startswith("resources.") or any(sign.search(text) for sign in (_MALFORMED, _INVALID_VALUE, _FORBIDDEN))


def last_attempt(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The errors that hindered a resize request when Google last tried it.

    "The value is temporary since the ResizeRequest can retry", and "may be stale and no longer show an active problem".
    """
    return errors_of((found.get("status") or {}).get("lastAttempt"))


def said(what: str, failed: Mapping[str, Any]) -> str:
    """A clause for people with Google's own words; empty without any."""
    error = operation_error("", failed)
    return f"{what} {str(error).removeprefix(': ')}" if error is not None else ""


def _is_above_limit(failed: Mapping[str, Any], machine: str, nodes: int) -> bool:
    """Return whether the request is for more than the project may ever have at once: only a person can change that.

    A quota that others use up now is waited for.
    """
    facts = catalog.facts(machine)
    for metric, limit in _limits(failed):
        each = facts.gpus if "gpu" in metric.lower() else facts.cpus if "cpu" in metric.lower() else None
        if limit <= 0 or (each is not None and limit < nodes * each):
            return True
    return False


def _limits(failed: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The quotas that these errors name, with their limits, those included that are being raised now."""
    found = []
    for each in (failed.get("error") or {}).get("errors") or ():
        details = each.get("errorDetails") or ()
        infos = [one["quotaInfo"] for one in details if isinstance(one, Mapping) and one.get("quotaInfo")]
        found += [
            (str(info.get("metricName")), max(float(info["limit"]), float(info.get("futureLimit") or 0)))
            for info in infos
            if info.get("limit") is not None
        ]
        named = _LIMIT.search(str(each.get("message")))
        if named is not None and not infos:
            found.append((named[1], float(named[2])))
    return found
