"""`stoker interrupt` on Compute Engine: a simulated maintenance event preempts a spot machine, with its notice."""

from __future__ import annotations

from stoker.errors import AuthDenied, InvalidRequest, NotFound
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api

_ACCEPTED_S = 10.0


def interrupt(api: Api, path: str, instance: str) -> str:
    """Give the machine at `path` a notice as Google does, or delete it; the answer says which.

    Raises NotFound where it is gone. How long the notice is, Google decides.
    """
    found = api.get(path)
    scheduling = found.get("scheduling") or {}
    if scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible"):
        try:
            operation = api.send("POST", f"{path}/simulateMaintenanceEvent", what=instance)
            operations.finished(api, operation, instance, _ACCEPTED_S)
            return "preempted by a simulated maintenance event"
        except operations.Unfinished:
            return "preempted by a simulated maintenance event"
        except NotFound:
            raise
        except (AuthDenied, InvalidRequest) as error:
            api.send("DELETE", path, what=instance)
            return f"deleted, since no maintenance could be simulated: {error}"
    api.send("DELETE", path, what=instance)
    return "deleted, without notice: it is no spot machine, so none could be rehearsed; the next attempt follows"
