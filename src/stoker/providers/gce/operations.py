"""Operations: most of what Compute Engine is asked for it promises first, and does later."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from stoker.errors import Transient
from stoker.providers.gce.client import Api
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
        if time.monotonic() >= until_s:
            raise Unfinished(f"{what}: is still being made")
        operation = api.send("POST", f"{path_of(operation['selfLink'])}/wait", what=what, polls=True)
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
    return _listed(api, project, f'operationGroupId = "{group}"')


def about(api: Api, project: str, numbers: Iterable[str]) -> list[Mapping[str, Any]]:
    """What was done to these machines, by whomever. Google forgets it after two weeks."""
    wanted = list(numbers)
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(wanted), _MOST_IDS):
        some = wanted[start : start + _MOST_IDS]
        found += _listed(api, project, " OR ".join(f"(targetId = {number})" for number in some))
    return found


def _listed(api: Api, project: str, wanted: str) -> list[Mapping[str, Any]]:
    path = f"/compute/v1/projects/{project}/aggregated/operations"
    pages = api.pages(path, {"filter": wanted, "returnPartialSuccess": "true"})
    return [
        each for page in pages for scope in (page.get("items") or {}).values() for each in scope.get("operations") or ()
    ]
