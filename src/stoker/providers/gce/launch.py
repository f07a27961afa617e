"""Launch machines: send the requests of one claim, and find the machines that they made.

A launch is idempotent by the request id. Google may forget that id; the names of the machines, which include a digest
of store and claim, then identify what an earlier request made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from stoker.model.errors import (
    InvalidRequest,
    NoCapacity,
    NoSuchResource,
    NotFound,
    QuotaExceeded,
    StillQueued,
    Throttled,
    Transient,
)
from stoker.model.offerings import Instance
from stoker.providers.base import HttpRequest
from stoker.providers.gce import (
    flex_group,
    group_launch,
    names,
    operations,
    queue_errors,
    quotas,
    read_request,
    reservations,
)
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import AlreadyExists, as_invalid_request
from stoker.providers.gce.instances import QUEUED, StoreInstances, parse_time
from stoker.providers.gce.places import ProjectRegion, instance_id
from stoker.providers.gce.verdicts import error_text

# How long one call waits for a launch. The next pass asks about a slower launch again, under the same request id.
_LAUNCH_S = 10.0
_POLICY_S = 10.0
# The same for a request in Google's queue, which may stay there for an hour: other jobs must not wait for it.
_QUEUE_S = 1.0


def launch(api: Api, instances: StoreInstances, requests: tuple[HttpRequest, ...]) -> tuple[Instance, ...]:
    """Send the requests: a placement policy where there is one, then the insert. A gang comes whole or not at all."""
    *before, insert = requests
    grouped = flex_group.is_resize(insert)
    for request in () if grouped else before:
        _create_policy(api, request)
    try:
        if grouped:
            return group_launch.launch(api, instances, requests)
        _wait_for_reservation(api, insert)
        found = _insert(api, instances, insert)
        return _left_queue(instances, insert, found) if read_request.waits_in_queue(insert) else found
    except NoSuchResource as error:
        if before and "placement_policy" in str(error):
            # The policy is the claim's own, and not visible in all of Google yet. This request id has failed for good;
            # the next claim creates another policy.
            raise NoCapacity(str(error)) from error
        raise
    except QuotaExceeded as error:
        page = quotas.console_page(_place(insert).project)
        raise QuotaExceeded(f"{error_text(error)}; ask for more at {page}") from error


def _create_policy(api: Api, request: HttpRequest) -> None:
    """Create a placement policy. An existing one belongs to the same claim: its name includes the claim's digest."""
    try:
        operation = api.send(request.method, request.path, request.body, what="placement policy")
        operations.wait_until_done(api, operation, "placement policy", _POLICY_S)
    except AlreadyExists:
        pass
    except NotFound as error:
        raise as_invalid_request(error) from error


def _wait_for_reservation(api: Api, insert: HttpRequest) -> None:
    """Raise NoCapacity while a reservation in calendar mode has not begun, and NoSuchResource once it is over."""
    for name in read_request.reservations(insert) if read_request.is_bound(insert) else ():
        window = reservations.known_window(api, _place(insert), name, read_request.zone(insert))
        if window is None:
            continue
        now = api.now()
        over = window.problem(name, now)
        if over:
            raise NoSuchResource(f"{reservations.FIELD}: {over}")
        early = window.wait(name, now)
        if early:
            raise NoCapacity(f"{reservations.FIELD}: {early}")


def _insert(api: Api, instances: StoreInstances, insert: HttpRequest) -> tuple[Instance, ...]:
    try:
        operation = api.send(insert.method, insert.path, insert.body, what=read_request.machine_type(insert))
    except AlreadyExists:
        # Google has forgotten the request id, or never knew it. The name identifies the claim.
        return _existing(instances, insert)
    except NotFound as error:
        raise as_invalid_request(error) from error
    except InvalidRequest as error:
        if "requestid" not in str(error).lower():
            raise
        # Another version of Stoker began this claim, with a slightly different request under the same id.
        return _existing(instances, insert)
    # An operation that is done in the first answer belongs to an earlier request with the same id.
    repeated = operation.get("status") == "DONE"
    try:
        found = _created(api, insert, _completed(api, insert, operation))
    except AlreadyExists:
        return _existing(instances, insert)
    if not repeated:
        return found
    states = instances.states([each.id for each in found], _place(insert))
    return tuple(replace(each, state=states[each.id]) for each in found)


def _left_queue(instances: StoreInstances, insert: HttpRequest, found: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The machines of a flex-start request that is over. Raises StillQueued while it waits, and NoCapacity where it
    found no machine.

    A successful operation proves no machine: "When the request expires, the pending instance disappears". Neither does
    a deletion on record, which may be Google's own of an expired request. A machine that came and is gone already has
    run nothing of the job: the log does not name it yet.
    """
    place = _place(insert)
    for each in found:
        status = instances.status(each.id, place)
        if status == QUEUED:
            raise _still_queued(insert)
        if status is None:
            raise NoCapacity(f"{read_request.machine_type(insert)}: flex-start found no machine in time")
    return found


def _still_queued(insert: HttpRequest) -> StillQueued:
    zone = read_request.zone(insert) or "its zone"
    return StillQueued(f"waits in Google's queue for {read_request.machine_type(insert)} in {zone} (flex-start)")


def _completed(api: Api, insert: HttpRequest, operation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Wait for the launch operation to succeed. Its failure is final: under the same request id Google reports the same
    failure again.

    Google accepted a request before it queued it, so that most failures in the queue say nothing against the request.
    """
    queued = read_request.waits_in_queue(insert)
    try:
        what, patience_s = read_request.machine_type(insert), _QUEUE_S if queued else _LAUNCH_S
        return operations.wait_until_done(api, operation, what, patience_s)
    except operations.OperationUnfinished as error:
        if queued:
            raise _still_queued(insert) from error
        raise
    except (AlreadyExists, NoSuchResource):
        raise
    except (NotFound, InvalidRequest) as error:
        if queued and not queue_errors.is_lasting(error):
            raise NoCapacity(str(error)) from error
        raise as_invalid_request(error) from error
    except (Transient, Throttled) as error:
        raise NoCapacity(str(error)) from error


def _created(api: Api, insert: HttpRequest, operation: Mapping[str, Any]) -> tuple[Instance, ...]:
    """The machines that an operation created, of which some may have ended since."""
    place = _place(insert)
    done = [operation]
    if operation.get("operationGroupId"):
        done = operations.in_group(api, place.project, operation["operationGroupId"])
    owner, wanted = read_request.owner(insert), read_request.names(insert)
    found = []
    for each in done:
        if each.get("operationType") != "insert" or not each.get("targetId") or each.get("error"):
            continue
        zone, name = _zone_and_name(each["targetLink"])
        if name not in wanted:
            continue
        found.append(
            Instance(
                id=instance_id(zone, str(each["targetId"])),
                provider="gce",
                job=owner.job,
                claim=owner.claim,
                rank=names.rank(name) or 0,
                state="pending",
                created_at=parse_time(each.get("insertTime")),
                region=insert.region,
                zone=zone,
            )
        )
    if len(found) < len(wanted):
        # The operation succeeded, so the machines exist: the list lags behind, or a zone gave no answer.
        raise Transient(f"{read_request.machine_type(insert)}: launched, and not listed yet")
    return tuple(sorted(found, key=lambda instance: instance.rank))


def _existing(instances: StoreInstances, insert: HttpRequest) -> tuple[Instance, ...]:
    """The machines that an earlier request for the same claim created."""
    owner, wanted = read_request.owner(insert), read_request.names(insert)
    listed = instances.list_region(_place(insert))
    found = [each for each in listed if (each.job, each.claim) == (owner.job, owner.claim)]
    if len(found) < len(wanted):
        # Not listed yet. A machine of another owner under this name is no realistic case: the name has our digest.
        raise Transient(f"{read_request.machine_type(insert)}: launched before, and not listed yet")
    return tuple(found)


def _place(request: HttpRequest) -> ProjectRegion:
    return ProjectRegion.of(request.region or "")


def _zone_and_name(link: str) -> tuple[str, str]:
    """The zone and the name of a machine, from its link."""
    parts = urlsplit(link).path.split("/")
    return parts[parts.index("zones") + 1], parts[-1]
