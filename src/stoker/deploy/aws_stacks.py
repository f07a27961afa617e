"""CloudFormation stacks, one at a time: create, update and remove them, and find the reason of a failure."""

from __future__ import annotations

import time
from typing import Any

from stoker.model.errors import ProviderError, Transient
from stoker.providers.base import Request
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws

_STACK_S = 600.0
_POLL_S = 2.0
# States of a stack whose creation failed: it can only be deleted.
_STILLBORN = ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED")
_SILENT = "CloudFormation does not say why"
# States that prevent an update, and how to leave them.
_STUCK = {
    "UPDATE_ROLLBACK_FAILED": "an update of it could not be undone: `aws cloudformation continue-update-rollback` "
    "does, or `stoker deploy aws --remove`, and then deploy it again",
    "DELETE_FAILED": "removing it has failed: `stoker deploy aws --remove` tries again and tells why",
    "REVIEW_IN_PROGRESS": "it is a change set that was made and never executed: `stoker deploy aws --remove`, "
    "and then deploy it again",
}


def create_or_update(clients: Clients, request: Request) -> str:
    """Create or update the stack of the request, wait, and return a word for what was done.

    Raises ProviderError with CloudFormation's own reason.
    """
    client = clients.get("cloudformation", request.region)
    name: str = request.params["StackName"]
    there = _find(client, name)
    if there is not None and there["StackStatus"] in _STILLBORN:
        _delete(client, name, there["StackId"])
        there = None
    if there is None:
        made = call_aws(name, lambda: client.create_stack(**request.params, OnFailure="DELETE"))
        # By its id: a stack whose creation failed is deleted, and cannot be described by its name any more.
        _waited(client, name, made["StackId"], "CREATE_COMPLETE", None)
        return "made"
    status, where = there["StackStatus"], there["StackId"]
    if status in _STUCK:
        raise ProviderError(f"{name} in {request.region}: {status}: {_STUCK[status]}")
    if status.endswith("_IN_PROGRESS"):
        raise Transient(f"{name}: it is being changed at this moment; try again")
    seen = _newest_event(client, name, where)
    try:
        call_aws(name, lambda: client.update_stack(**request.params))
    except ProviderError as error:
        if "No updates are to be performed" not in str(error):
            raise
        return "as it was"
    _waited(client, name, where, "UPDATE_COMPLETE", seen)
    return "updated"


def check_reachable(clients: Clients, name: str, region: str) -> None:
    """Check that CloudFormation answers in a region, whether the stack exists or not. Raises ProviderError."""
    _find(clients.get("cloudformation", region), name)


def remove(clients: Clients, name: str, region: str) -> bool:
    """Remove a stack and wait until it is gone. Returns False where there is none. Raises ProviderError with the
    reason."""
    client = clients.get("cloudformation", region)
    there = _find(client, name)
    if there is None:
        return False
    _delete(client, name, there["StackId"])
    return True


def roles(clients: Clients, name: str, region: str) -> list[str]:
    """The names of a stack's roles, which CloudFormation chooses."""
    client = clients.get("cloudformation", region)
    there = _find(client, name)
    if there is None:
        return []
    where = there["StackId"]
    listed = call_aws(name, lambda: client.describe_stack_resources(StackName=where))["StackResources"]
    found = (each.get("PhysicalResourceId") for each in listed if each["ResourceType"] == "AWS::IAM::Role")
    return [each for each in found if each]


def _delete(client: Any, name: str, where: str) -> None:
    seen = _newest_event(client, name, where)
    call_aws(name, lambda: client.delete_stack(StackName=where))
    _waited(client, name, where, "DELETE_COMPLETE", seen)


def _find(client: Any, name: str) -> dict[str, Any] | None:
    try:
        found = call_aws(name, lambda: client.describe_stacks(StackName=name))["Stacks"]
    except ProviderError as error:
        # CloudFormation has no error code for a missing stack.
        if "does not exist" not in str(error):
            raise
        return None
    alive = [stack for stack in found if stack["StackStatus"] != "DELETE_COMPLETE"]
    return alive[0] if alive else None


def _waited(client: Any, name: str, where: str, wanted: str, seen: str | None) -> None:
    """Wait until the stack is in the wanted state. Raises ProviderError with the first reason of a failure after
    `seen`."""
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
    """The newest event of a stack: later events belong to the change that follows."""
    try:
        events = call_aws(name, lambda: client.describe_stack_events(StackName=where))["StackEvents"]
    except ProviderError:
        return None
    return events[0].get("EventId") if events else None


def _reason(client: Any, where: str, seen: str | None) -> str:
    try:
        events = call_aws(where, lambda: client.describe_stack_events(StackName=where))["StackEvents"]
    except ProviderError:
        return _SILENT
    failed = []
    # Newest first; the oldest failure is the cause of the others.
    for each in events:
        if seen is not None and each.get("EventId") == seen:
            break
        if each["ResourceStatus"].endswith("_FAILED"):
            failed.append(each)
    if not failed:
        return _SILENT
    first = failed[-1]
    return f"{first['LogicalResourceId']}: {first.get('ResourceStatusReason', 'no reason given')}"
