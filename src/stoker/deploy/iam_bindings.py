"""Bindings on what is there, whoever made it: read, changed and put back, so that what others bound stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from stoker.deploy.gcp_resources import Bound
from stoker.model.errors import InvalidRequest, NotFound, Transient
from stoker.providers.base import HttpRequest
from stoker.providers.gce.client import Api, Service

# A new account is not known everywhere at once, and a policy may be changed by somebody else at the same time.
_PATIENCE_S = 120.0
_PAUSE_S = 2.0


def send(api: Api, request: HttpRequest) -> Any:
    service = cast("Service", request.service)
    body = request.body if request.method not in ("GET", "DELETE") else None
    return api.send(request.method, request.path, body, service=service, what=request.path.partition("?")[0])


def bind(api: Api, step: Bound) -> str:
    """Add what is missing, and say in a word what was done. What the same members had by the same role under another
    condition is of an older Stoker, and goes; others' bindings stay."""
    wanted = {(each["role"], member, _condition(each)) for each in step.bindings for member in each["members"]}
    ours = {(role, member) for role, member, _ in wanted}

    def stale(there: dict[str, Any], member: str) -> bool:
        role = str(there.get("role"))
        return (role, member) in ours and (role, member, _condition(there)) not in wanted

    def change(policy: dict[str, Any]) -> bool:
        held = policy.get("bindings", [])
        kept = _without(held, stale)
        missing = [each for each in step.bindings if not any(_covers(there, each) for there in kept)]
        policy["bindings"] = [*kept, *missing]
        return bool(missing) or kept != held

    return "bound" if _changed(api, step, change) else "as it was"


def unbind(api: Api, step: Bound) -> str:
    """Take the members away, and say in a word what was done."""
    members = {member for each in step.bindings for member in each["members"]}

    def take(policy: dict[str, Any]) -> bool:
        held = policy.get("bindings", [])
        policy["bindings"] = _without(held, lambda _there, member: _is_of(member, members))
        return bool(policy["bindings"] != held)

    try:
        return "unbound" if _changed(api, step, take) else "had no binding"
    except NotFound:
        return "is not there"


def _changed(api: Api, step: Bound, change: Callable[[dict[str, Any]], bool]) -> bool:
    """Read the policy, change it and put it back; again where somebody else has changed it in between, or does not know
    an account yet. False: there was nothing to change."""
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
    """These bindings without the members that are to go; one that has none left goes, too."""
    left = [{**each, "members": [who for who in each.get("members", ()) if not gone(each, who)]} for each in held]
    return [each for each in left if each["members"]]


def _is_of(member: str, members: set[str]) -> bool:
    """Also of an account that somebody has deleted: `deleted:serviceAccount:NAME?uid=…`."""
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


def policy_of(api: Api, step: Bound) -> dict[str, Any]:
    return dict(send(api, step.look))


def _put(api: Api, step: Bound, policy: dict[str, Any]) -> None:
    # Conditions are of version 3 alone; the etag makes a rival's change in between fail this one.
    whole = {**policy, "version": 3}
    body = {"policy": whole} if step.wrapped else whole
    send(api, HttpRequest(step.put.service, step.put.method, step.put.path, body))
