"""`stoker interrupt` on Compute Engine: a simulated maintenance event preempts a spot machine, with its notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api

_ACCEPTED_S = 10.0
# Nobody can take away what is on its way out already.
_ENDING = frozenset({"PENDING_STOP", "STOPPING", "DEPROVISIONING", "TERMINATED"})
# Of a machine that was launched without another wish: https://cloud.google.com/compute/docs/instances/spot
_NOTICE_S = 30


def interrupt(api: Api, path: str, instance: str) -> str:
    """Give the machine at `path` a notice as Google does, or delete it; the answer says which.

    Raises NotFound where it is gone, or going. How long the notice is, Google decides.
    """
    found = api.send("GET", path, what=instance)
    if found.get("status") in _ENDING:
        raise NotFound(f"{instance} is on its way out")
    scheduling = found.get("scheduling") or {}
    if scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible"):
        try:
            operation = api.send("POST", f"{path}/simulateMaintenanceEvent", what=instance)
            operations.finished(api, operation, instance, _ACCEPTED_S)
            return _preempted(scheduling)
        except operations.Unfinished:
            return _preempted(scheduling)
        except NotFound:
            raise
        except (AuthDenied, InvalidRequest) as error:
            api.send("DELETE", path, what=instance)
            return f"deleted, since no maintenance could be simulated: {error}"
    api.send("DELETE", path, what=instance)
    return "deleted, without notice: it is no spot machine, so none could be rehearsed; the next attempt follows"


def _preempted(scheduling: Mapping[str, Any]) -> str:
    notice_s = int((scheduling.get("preemptionNoticeDuration") or {}).get("seconds") or _NOTICE_S)
    notice = f"Google's notice is {notice_s} s, as the machine was launched with, and --grace is not used"
    return f"preempted by a simulated maintenance event: {notice}"
