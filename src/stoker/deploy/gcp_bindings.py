"""Role bindings on existing resources: the policy is read, changed and written back, so that other bindings stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from stoker.deploy.gcp_resources import RoleBindings
from stoker.model.errors import InvalidRequest, NotFound, Transient
from stoker.providers.base import HttpRequest
from stoker.providers.gce.client import Api, Service

# A new account is not visible everywhere at once, and another change of the policy may come in between.
_PATIENCE_S = 120.0
_PAUSE_S = 2.0


def send(api: Api, request: HttpRequest) -> Any:
    service = cast("Service", request.service)
    body = request.body if request.method not in ("GET", "DELETE") else None
    return api.send(request.method, request.path, body, service=service, what=request.path.partition("?")[0])


def bind(api: Api, step: RoleBindings) -> str:
    """Add missing bindings, and return a word for what was done. Bindings of the same members and role under another
    condition are of an older Stoker, and are removed; bindings of other members stay."""
    wanted = {(each["role"], member, _condition(each)) for each in step.bindings for member in each["members"]}
    ours = {(role, member) for role, member, _ in wanted}

    def stale(there: dict[str, Any], member: str) -> bool:
        role = str(there.get("role"))
        return (role, member) in ours and (role, member, _condition(there)) not in wanted

    def change(policy: dict[str, Any]) -> bool:
        held = policy.get("bindings", [])
        current = _without(held, stale)
        missing = [each for each in step.bindings if not any(_covers(there, each) for there in current)]
        policy["bindings"] = [*current, *missing]
        return bool(missing) or current != held

    return "bound" if _changed(api, step, change) else "as it was"


def unbind(api: Api, step: RoleBindings) -> str:
    """Remove the members, and return a word for what was done."""
    members = {member for each in step.bindings for member in each["members"]}

    def take(policy: dict[str, Any]) -> bool:
        held = policy.get("bindings", [])
        policy["bindings"] = _without(held, lambda _there, member: _is_of(member, members))
        return bool(policy["bindings"] != held)

    try:
        return "unbound" if _changed(api, step, take) else "had no binding"
    except NotFound:
        return "is not there"


def _changed(api: Api, step: RoleBindings, change: Callable[[dict[str, Any]], bool]) -> bool:
    """Read the policy, change it and write it back. Repeated where another change came in between, or an account is not
    visible yet. Returns False where there was nothing to change."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        policy = policy_of(api, step)
        if not change(policy):
            return False
        try:
            _put(api, step, policy)
            return True
        except (InvalidRequest, Transient) as error:
            if time.monotonic() > until_s or ("exist" not in str(error) and not isinstance(error, Transient)):
                raise
        time.sleep(_PAUSE_S)


def _without(held: list[dict[str, Any]], gone: Callable[[dict[str, Any], str], bool]) -> list[dict[str, Any]]:
    """These bindings without the members for which `gone` is true, and without bindings that have no member left."""
    left = [{**each, "members": [one for one in each.get("members", ()) if not gone(each, one)]} for each in held]
    return [each for each in left if each["members"]]


def _is_of(member: str, members: set[str]) -> bool:
    """Return whether a member is one of these, also as a deleted account: `deleted:serviceAccount:NAME?uid=…`."""
    return member.removeprefix("deleted:").partition("?")[0] in members


def _covers(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return (
        there.get("role") == wanted["role"]
        and _condition(there) == _condition(wanted)
        and set(wanted["members"]) <= set(there.get("members", ()))
    )


def _condition(binding: dict[str, Any]) -> str | None:
    found: str | None = (binding.get("condition") or {}).get("expression")
    return found


def policy_of(api: Api, step: RoleBindings) -> dict[str, Any]:
    return dict(send(api, step.look))


def _put(api: Api, step: RoleBindings, policy: dict[str, Any]) -> None:
    # Conditions need version 3. The policy's etag makes this write fail where another change came in between.
    whole = {**policy, "version": 3}
    body = {"policy": whole} if step.wrapped else whole
    send(api, HttpRequest(step.put.service, step.put.method, step.put.path, body))
