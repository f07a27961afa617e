"""Launch several flex-start machines by a managed instance group: see `flex_group` for the requests.

A resize request stays in its group, whatever became of it, until the claim is closed and `leftovers` removes the group.
So it tells every governor the same: that it waits, which machines came, or that none will.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.model.errors import (
    InvalidRequest,
    NoCapacity,
    NoSuchResource,
    NotFound,
    ProviderError,
    QuotaExceeded,
    StillQueued,
    Throttled,
    Transient,
)
from stoker.model.offerings import Instance
from stoker.providers.base import HttpRequest
from stoker.providers.gce import flex_group, operations, queue_errors, read_request
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import AlreadyExists, as_invalid_request, operation_error
from stoker.providers.gce.instances import StoreInstances, read_time
from stoker.providers.gce.places import ProjectRegion

# How long one call waits for the template or the group. The next pass asks again, under the same request id.
_CREATION_S = 10.0
_CANCELLATION_S = 5.0
# States of a resize request in which machines may still come of it. Only one that is ACCEPTED can be cancelled.
_ACCEPTED = "ACCEPTED"
_ACTIVE = frozenset({"CREATING", _ACCEPTED})
_SUCCEEDED = "SUCCEEDED"
# The collections of what a launch creates before its resize request.
_OWN = ("instanceTemplates", "instanceGroupManagers")


def launch(api: Api, instances: StoreInstances, requests: tuple[HttpRequest, ...]) -> tuple[Instance, ...]:
    """Create the template, the group and the resize request where they are missing, and return its machines.

    Raises StillQueued while the request waits, and NoCapacity where no machines will come of it: also once it has
    waited for its turn, and was cancelled for that. A mistake that no wait cures is raised as what it is, and the
    request is cancelled.
    """
    template, group, resize = requests
    path, what = flex_group.resize_path(resize), read_request.machine_type(template)
    machine, nodes = read_request.machine(template), len(resize.body["instances"])
    found = look_up(api, path)
    if found is None:
        for each in (template, group, resize):
            _create(api, each, what)
        found = look_up(api, path)
    # Google clears it when the request leaves the queue.
    attempt = queue_errors.last_attempt(found or {})
    mistake = queue_errors.lasting(what, attempt, machine, nodes)
    over = mistake is not None or (found is not None and _waited_s(api, found) >= flex_group.turn_s(resize))
    if found is not None and found.get("state") == _ACCEPTED and over:
        cancel(api, path)
        found = look_up(api, path)
    if found is None:
        # Its group was removed together with it, after the claim was closed.
        raise NoCapacity(f"{what}: the flex-start request was withdrawn")
    zone = read_request.zone(resize) or ""
    if is_active(found):
        waits = f"waits in Google's queue for {nodes} × {what} in {zone} at once (flex-start)"
        raise StillQueued(waits + queue_errors.said("; when Google last tried:", attempt))
    if found.get("state") != _SUCCEEDED:
        raise mistake or _failure(found, what, machine, nodes, attempt)
    return _machines(instances, template, resize, zone)


def look_up(api: Api, path: str) -> Mapping[str, Any] | None:
    """The resize request at a path; None where there is none."""
    try:
        found: Mapping[str, Any] = api.get(path)
    except NotFound:
        return None
    return found


def is_active(found: Mapping[str, Any]) -> bool:
    """Return whether machines may still come of a resize request."""
    return found.get("state") in _ACTIVE


def has_succeeded(found: Mapping[str, Any]) -> bool:
    """Return whether the machines of a resize request have come."""
    return found.get("state") == _SUCCEEDED


def cancel(api: Api, path: str) -> None:
    """Request that a resize request leaves the queue. Its state tells whether it did: its machines may be coming."""
    with suppress(InvalidRequest, NotFound, Transient, Throttled):
        operation = api.send("POST", f"{path}/cancel", what="resize request")
        operations.wait_until_done(api, operation, "resize request", _CANCELLATION_S)


def _create(api: Api, request: HttpRequest, what: str) -> None:
    """Send one request. What exists under its name belongs to the same claim: the name includes the claim's digest."""
    try:
        operation = api.send(request.method, request.path, request.body, what=what)
    except AlreadyExists:
        return
    except NotFound as error:
        raise _not_found(error, request) from error
    except InvalidRequest as error:
        if "requestid" not in str(error).lower():
            raise
        # Another version of Stoker, or of the policy, began this claim with a slightly different request.
        return
    try:
        operations.wait_until_done(api, operation, what, _CREATION_S)
    except AlreadyExists:
        return
    except operations.OperationUnfinished:
        raise
    except NotFound as error:
        raise _not_found(error, request) from error
    except InvalidRequest as error:
        raise error if isinstance(error, NoSuchResource) else as_invalid_request(error) from error
    except (Transient, Throttled) as error:
        # Under the same request id Google reports the same failure again.
        raise NoCapacity(str(error)) from error


def _not_found(error: NotFound, request: HttpRequest) -> ProviderError:
    """The error of a request that names a resource which is not there. The claim's own template or group was created a
    moment ago, and is not visible in all of Google yet, or its creation failed: the next claim creates others."""
    is_own = any(f"/{kind}/{request.body['name']}'" in str(error) for kind in _OWN)
    return NoCapacity(str(error)) if is_own else as_invalid_request(error)


def _waited_s(api: Api, found: Mapping[str, Any]) -> float:
    """How long a request has waited, by Google's clock alone."""
    now = api.now()
    return (now - (read_time(found.get("creationTimestamp")) or now)).total_seconds()


def _failure(
    found: Mapping[str, Any], what: str, machine: str, nodes: int, attempt: Mapping[str, Any]
) -> ProviderError:
    """Why no machines came of a request. Google accepted it before it queued it, so that most failures in the queue say
    nothing against the request."""
    failed = queue_errors.errors_of(found.get("status"))
    error = operation_error(what, failed)
    if error is None:
        said = queue_errors.said("; when Google last tried:", attempt)
        return NoCapacity(f"{what}: flex-start found no machines in time{said}")
    # Google tries a request that failed never again, so that a quota in the way is not waited for.
    if isinstance(error, (NoCapacity, QuotaExceeded)):
        return error
    return queue_errors.lasting(what, failed, machine, nodes) or NoCapacity(str(error))


def _machines(instances: StoreInstances, template: HttpRequest, resize: HttpRequest, zone: str) -> tuple[Instance, ...]:
    """The machines of a request that succeeded. One that is gone again has run nothing of the job, as the log does not
    name it yet: then the others are given back, and the claim found no capacity."""
    place, owner = ProjectRegion.of(resize.region or ""), read_request.owner(template)
    listed = {each.rank: each for each in instances.list_region(place) if (each.job, each.claim) == owner.claimed}
    found = []
    for rank, one in enumerate(resize.body["instances"]):
        machine = listed.get(rank) or instances.named(one["name"], zone, place)
        if machine is None:
            raise NoCapacity(f"{one['name']}: ended before the job could use it")
        found.append(machine)
    return tuple(found)
