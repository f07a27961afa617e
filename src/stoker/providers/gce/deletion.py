"""Delete a machine: through the managed instance group that it belongs to, or else by itself.

https://cloud.google.com/compute/docs/instance-groups/working-with-managed-instances: a group that does not
know of a deletion may make the machine anew. So the group of flex-start machines (`flex_group`) deletes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound
from stoker.providers.base import TerminateResult
from stoker.providers.gce import operations
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import ResourceInUse

# Where Google names a machine's group, with the project's number: projects/42/zones/ZONE/instanceGroupManagers/GROUP.
_CREATED_BY = "created-by"
_GROUP = re.compile(r"(?:.*/)?zones/([^/]+)/instanceGroupManagers/([^/]+)")
# A group answers as soon as it has noted the deletion.
_NOTED_S = 5.0


def delete(api: Api, path: str, what: str) -> TerminateResult:
    """Request the deletion of the machine at this path, which has its number. Repeating it is harmless."""
    try:
        found = api.send("GET", path, what=what)
    except NotFound:
        return "gone"
    except AuthDenied:
        found = {}  # An older role may delete machines and not read them.
    if _delete_by_group(api, path, found, what):
        return "requested"
    try:
        operation = api.send("DELETE", path, what=what)
    except NotFound:
        return "gone"
    except ResourceInUse:
        return "requested"  # Another deletion is in progress.
    return "gone" if operation.get("status") == "DONE" and not operation.get("error") else "requested"


def _delete_by_group(api: Api, path: str, found: Mapping[str, Any], what: str) -> bool:
    """Have the machine's group delete it. False: it has none, or the group does not know it, or not any more."""
    group = _group_of(found)
    if group is None:
        return False
    zone, name = group
    project = path.partition("/zones/")[0]
    body = {"instances": [f"zones/{zone}/instances/{found['name']}"]}
    try:
        operation = api.send(
            "POST", f"{project}/zones/{zone}/instanceGroupManagers/{name}/deleteInstances", body, what=what
        )
        operations.wait_until_done(api, operation, what, _NOTED_S)
    except operations.OperationUnfinished:
        return True
    except (NotFound, InvalidRequest, AuthDenied):
        # It is being deleted already, or its group is.
        return False
    return True


def _group_of(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """The zone and the name of the group that created a machine, if it is one of a claim; None for any other machine.

    The machines of a claim's group begin with its name. Metadata may be anybody's, and must not lead elsewhere.
    """
    items = (found.get("metadata") or {}).get("items") or ()
    link = next((str(item.get("value")) for item in items if item.get("key") == _CREATED_BY), "")
    match = _GROUP.fullmatch(link)
    if match is None or not str(found.get("name")).startswith(f"{match[2]}-"):
        return None
    return match[1], match[2]
