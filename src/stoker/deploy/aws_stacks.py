"""CloudFormation's stacks, one at a time: made, updated and removed, and why that failed."""

from __future__ import annotations

import time
from typing import Any

from stoker.model.errors import ProviderError, Transient
from stoker.providers.base import Request
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling

_STACK_S = 600.0
_POLL_S = 2.0
# A stack that never came to be can only be deleted.
_STILLBORN = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")
_SILENT = "CloudFormation does not say why"
# States that no update leads out of, and what does.
_STUCK = {
    "UPDATE_ROLLBACK_FAILED": "an update of it could not be undone: `aws cloudformation continue-update-rollback` "
    "does, or `stoker deploy aws --remove`, and then deploy it again",
    "DELETE_FAILED": "removing it has failed: `stoker deploy aws --remove` tries again and tells why",
    "REVIEW_IN_PROGRESS": "it is a change set that was made and never executed: `stoker deploy aws --remove`, "
    "and then deploy it again",
}


def settle(clients: Clients, request: Request) -> str:
    """Create or update the stack that the request is for, wait, and say in a word what was done.

    Raises ProviderError with CloudFormation's own reason.
    """
    client = clients.get("cloudformation", request.region)
    name: str = request.params["StackName"]
    there = _find(client, name)
    if there is not None and there["StackStatus"] in _STILLBORN:
        _delete(client, name, there["StackId"])
        there = None
    if there is None:
        made = calling(name, lambda: client.create_stack(**request.params, OnFailure="DELETE"))
        # By its id: one that failed is gone, and not told of by name any more.
        _waited(client, name, made["StackId"], "CREATE_COMPLETE", None)
        return "made"
    status, where = there["StackStatus"], there["StackId"]
    if status in _STUCK:
        raise ProviderError(f"{name} in {request.region}: {status}: {_STUCK[status]}")
    if status.endswith("_IN_PROGRESS"):
        raise Transient(f"{name}: it is being changed at this moment; try again")
    seen = _newest_event(client, name, where)
    try:
        calling(name, lambda: client.update_stack(**request.params))
    except ProviderError as error:
        if "No updates are to be performed" not in str(error):
            raise
        return "as it was"
    _waited(client, name, where, "UPDATE_COMPLETE", seen)
    return "updated"


def look(clients: Clients, name: str, region: str) -> None:
    """See that CloudFormation answers in a region, whether the stack is there or not. Raises ProviderError."""
    _find(clients.get("cloudformation", region), name)


def remove(clients: Clients, name: str, region: str) -> bool:
    """Remove a stack and wait until it is gone. False: there is none. Raises ProviderError with the reason."""
    client = clients.get("cloudformation", region)
    there = _find(client, name)
    if there is None:
        return False
    _delete(client, name, there["StackId"])
    return True


def roles(clients: Clients, name: str, region: str) -> list[str]:
    """The roles of a stack, whose names are CloudFormation's."""
    client = clients.get("cloudformation", region)
    there = _find(client, name)
    if there is None:
        return []
    where = there["StackId"]
    listed = calling(name, lambda: client.describe_stack_resources(StackName=where))["StackResources"]
    found = (each.get("PhysicalResourceId") for each in listed if each["ResourceType"] == "AWS::IAM::Role")
    return [each for each in found if each]


def _delete(client: Any, name: str, where: str) -> None:
    seen = _newest_event(client, name, where)
    calling(name, lambda: client.delete_stack(StackName=where))
    _waited(client, name, where, "DELETE_COMPLETE", seen)


def _find(client: Any, name: str) -> dict[str, Any] | None:
    try:
        found = calling(name, lambda: client.describe_stacks(StackName=name))["Stacks"]
    except ProviderError as error:
        # CloudFormation has no error of its own for it.
        if "does not exist" not in str(error):
            raise
        return None
    alive = [stack for stack in found if stack["StackStatus"] != "DELETE_COMPLETE"]
    return alive[0] if alive else None


def _waited(client: Any, name: str, where: str, wanted: str, seen: str | None) -> None:
    """Until the stack has come to rest. Raises ProviderError with the first reason of a failure after `seen`."""
    until_s = time.monotonic() + _STACK_S
    pause_s = 0.2
    while True:
        stack = _find(client, where)
        status = stack["StackStatus"] if stack is not None else "DELETE_COMPLETE"
        if status == wanted:
            return
        if not status.endswith("_IN_PROGRESS"):
            after = "; see to what it names, then again" if status == "DELETE_FAILED" else ""
            raise ProviderError(f"{name}: {status}: {_reason(client, where, seen)}{after}")
        if time.monotonic() > until_s:
            raise Transient(f"{name}: is still {status}; look again in a while")
        time.sleep(pause_s)
        pause_s = min(_POLL_S, pause_s * 2)


def _newest_event(client: Any, name: str, where: str) -> str | None:
    """The newest event of a stack: what comes after it belongs to what is done now."""
    try:
        told = calling(name, lambda: client.describe_stack_events(StackName=where))["StackEvents"]
    except ProviderError:
        return None
    return told[0].get("EventId") if told else None


def _reason(client: Any, where: str, seen: str | None) -> str:
    try:
        told = calling(where, lambda: client.describe_stack_events(StackName=where))["StackEvents"]
    except ProviderError:
        return _SILENT
    failed = []
    # Newest first; what came first is the cause of the others.
    for each in told:
        if seen is not None and each.get("EventId") == seen:
            break
        if each["ResourceStatus"].endswith("_FAILED"):
            failed.append(each)
    if not failed:
        return _SILENT
    first = failed[-1]
    return f"{first['LogicalResourceId']}: {first.get('ResourceStatusReason', 'no reason given')}"
