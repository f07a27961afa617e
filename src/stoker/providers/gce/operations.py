"""Operations: Compute Engine accepts most changes at once, and completes them later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from stoker.model.errors import NotFound, Throttled, Transient
from stoker.providers.gce.client import AggregatedList, Api
from stoker.providers.gce.errors import operation_error

# The most ids in one filter: more would not fit into a URL.
_MOST_IDS = 50


class OperationUnfinished(Transient):
    """The operation is not done yet. A repeated request is answered by the same operation."""


def wait_until_done(api: Api, operation: Mapping[str, Any], what: str, patience_s: float) -> Mapping[str, Any]:
    """Wait for the operation to succeed, and return it.

    Raises the error that the operation failed with, and OperationUnfinished where it takes longer than `patience_s`.
    """
    until_s = time.monotonic() + patience_s
    while operation.get("status") != "DONE":
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise OperationUnfinished(f"{what}: is still being made")
        try:
            # A long poll: it answers within two minutes, done or not.
            operation = api.send("POST", f"{path_of(operation['selfLink'])}/wait", what=what, read_s=max(1.0, left_s))
        except (Transient, Throttled, NotFound):
            # No answer in time, or this part of Google does not know the operation yet. The operation continues.
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))
    error = operation_error(what, operation)
    if error is not None:
        raise error
    return operation


def path_of(link: str) -> str:
    """The path of a resource's link, whatever the host of the API is."""
    path = urlsplit(link).path
    return path if path.startswith("/compute/") else f"/compute/v1/{path.lstrip('/')}"


def in_group(api: Api, project: str, group: str) -> list[Mapping[str, Any]]:
    """The operations of one bulk request, one for each machine."""
    found = _listed(api, project, f'operationGroupId = "{group}"')
    # Compared again here: the result must not depend on how Google evaluates a filter.
    return [each for _, each in found.items if each.get("operationGroupId") == group]


def on_instances(api: Api, project: str, machines: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """The operations on these machines. `machines` maps numbers to zones. Google deletes operations after two weeks.

    Raises Transient where one of their zones gives no answer.
    """
    wanted = list(machines)
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(wanted), _MOST_IDS):
        some = wanted[start : start + _MOST_IDS]
        listed = _listed(api, project, " OR ".join(f"(targetId = {number})" for number in some))
        items = listed.answered(*(machines[number] for number in some)).items
        found += [each for _, each in items if str(each.get("targetId")) in machines]
    return found


def _listed(api: Api, project: str, wanted: str) -> AggregatedList:
    return api.scoped(f"/compute/v1/projects/{project}/aggregated/operations", "operations", {"filter": wanted})
