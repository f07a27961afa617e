"""Operations: most of what Compute Engine is asked for it promises first, and does later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from stoker.model.errors import NotFound, Throttled, Transient
from stoker.providers.gce.client import Api, Scoped
from stoker.providers.gce.errors import failed

# Asked for at once in one filter: more would not fit into a URL.
_MOST_IDS = 50


class Unfinished(Transient):
    """It is still being done. Asked again, the same operation answers."""


def finished(api: Api, operation: Mapping[str, Any], what: str, patience_s: float) -> Mapping[str, Any]:
    """The operation once it is done and has succeeded.

    Raises what it failed with, and Unfinished where it takes longer than `patience_s`.
    """
    until_s = time.monotonic() + patience_s
    while operation.get("status") != "DONE":
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise Unfinished(f"{what}: is still being made")
        try:
            # A long poll: it answers within two minutes, done or not.
            operation = api.send("POST", f"{path_of(operation['selfLink'])}/wait", what=what, read_s=max(1.0, left_s))
        except (Transient, Throttled, NotFound):
            # Nobody answered in time, or knows of it here yet. What was begun goes on.
            time.sleep(min(1.0, max(0.0, until_s - time.monotonic())))
    error = failed(what, operation)
    if error is not None:
        raise error
    return operation


def path_of(link: str) -> str:
    """The path of a thing's own address, wherever the API is."""
    path = urlsplit(link).path
    return path if path.startswith("/compute/") else f"/compute/v1/{path.lstrip('/')}"


def grouped(api: Api, project: str, group: str) -> list[Mapping[str, Any]]:
    """The operations that one bulk request led to, a machine each."""
    found = _listed(api, project, f'operationGroupId = "{group}"')
    # Compared once more: what is ours must not rest on how Google reads a filter.
    return [each for _, each in found.items if each.get("operationGroupId") == group]


def about(api: Api, project: str, machines: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """What was done to these machines, their zones by their numbers. Google forgets it after two weeks.

    Raises Transient where one of their zones gives no answer.
    """
    wanted = list(machines)
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(wanted), _MOST_IDS):
        some = wanted[start : start + _MOST_IDS]
        listed = _listed(api, project, " OR ".join(f"(targetId = {number})" for number in some))
        told = listed.answered(*(machines[number] for number in some)).items
        found += [each for _, each in told if str(each.get("targetId")) in machines]
    return found


def _listed(api: Api, project: str, wanted: str) -> Scoped:
    return api.scoped(f"/compute/v1/projects/{project}/aggregated/operations", "operations", {"filter": wanted})
