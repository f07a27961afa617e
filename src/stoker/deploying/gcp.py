"""A governor on Google Cloud: the requests of `project`, sent. `stoker deploy gcp`.

Deploying again changes what is there. Roles are those of `stoker iam gce`, which has to have been run before.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any, cast

from stoker import layout
from stoker.deploying import project, record
from stoker.deploying.package import Package
from stoker.deploying.project import ADDRESS, Bound, Made, Plan
from stoker.deploying.record import Deployed
from stoker.errors import InvalidRequest, NotFound, ProviderError, Transient, UserError
from stoker.governor.serverless.gcp import SchedulerJob
from stoker.governor.serverless.schedule import Switch
from stoker.providers.base import HttpRequest
from stoker.providers.gce.client import Api, Service
from stoker.providers.gce.errors import AlreadyThere, refused
from stoker.store import Store

CLOUD = "gcp"
# Building a function takes minutes.
_OPERATION_S = 900.0
_POLL_S = 3.0
# A new account is not known everywhere at once, and a policy may be changed by somebody else at the same time.
_BIND_S = 120.0
_BIND_PAUSE_S = 2.0

Say = Callable[[str], None]


def deploy(store: Store, plan: Plan, package: Package, by: str, say: Say) -> Deployed:
    """Make it so, and wait until it is. Idempotent. Raises ProviderError, and UserError where roles are missing."""
    api = Api()
    _check_roles(api, plan)
    key = layout.deployed_package(package.digest)
    if store.head(key) is None:
        store.put(key, package.data)
        say(f"sent {key}")
    address = ""
    for step in project.steps(plan):
        if isinstance(step, Made):
            say(f"{step.what}: {_settle(api, step, address)}")
            if step.what == "function":
                address = _address(api, step)
        else:
            say(f"{step.what}: {_bind(api, step)}")
    deployed = Deployed(
        cloud=CLOUD,
        name=plan.name,
        region=plan.region,
        door=plan.topic,
        digest=package.digest,
        by=by,
        project=plan.project,
    )
    record.write(store, deployed)
    store.delete([meta.key for meta in store.list(layout.DEPLOYED) if meta.key.endswith(".zip") and meta.key != key])
    switch = Switch(store, SchedulerJob(plan.clock, api))
    if not switch.rest_if_idle():
        switch.wanted(surely=True)
        say("its clock is on: there are active jobs")
    return deployed


def wake(deployed: Deployed, jobs: tuple[str, ...]) -> None:
    """A message to the topic, as agents send it."""
    data = base64.b64encode(json.dumps({"stoker": {"jobs": list(jobs)}}).encode()).decode()
    Api().send("POST", f"/v1/{deployed.door}:publish", {"messages": [{"data": data}]}, service="pubsub", what="topic")


def remove(store: Store, plan: Plan, say: Say) -> None:
    """Take it away, and look whether anything is left. Idempotent. Raises ProviderError naming what is left."""
    api = Api()
    # First, so that nobody relies on it any more.
    store.delete([layout.deployed(CLOUD)])
    for each in project.removals(plan):
        if isinstance(each, Bound):
            say(f"{each.what}: {_unbind(api, each)}")
            continue
        try:
            told = _send(api, each)
            if each.service == "cloudfunctions":
                _finished(api, told)
            say(f"{each.path}: removed")
        except NotFound:
            say(f"{each.path}: was not there")
    store.delete([meta.key for meta in store.list(layout.DEPLOYED)])
    left = left_over(api, plan)
    if left:
        raise ProviderError(f"left of {plan.name} in {plan.project}: {', '.join(left)}; remove them by hand")


def left_over(api: Api, plan: Plan) -> list[str]:
    """What of a deployment is still there, as Google itself tells it."""
    found = []
    for step in project.steps(plan):
        if isinstance(step, Made):
            try:
                _send(api, HttpRequest(step.make.service, "GET", step.at))
                found.append(step.what)
            except NotFound:
                pass
        elif not step.own:
            try:
                policy = _policy(api, step)
            except NotFound:
                continue
            members = {member for each in step.bindings for member in each["members"]}
            if any(members & set(each.get("members", ())) for each in policy.get("bindings", ())):
                found.append(f"binding on {step.what}")
    return found


def _check_roles(api: Api, plan: Plan) -> None:
    """The roles that a governor needs are the project's own, and are made once."""
    start = f"projects/{plan.project}/roles/"
    bound = [each for step in project.steps(plan) if isinstance(step, Bound) for each in step.bindings]
    for role in sorted({str(each["role"]) for each in bound if str(each["role"]).startswith(start)}):
        try:
            api.get(f"/v1/{role}", service="iam")
        except NotFound:
            raise UserError(f"there is no role {role}; `stoker iam gce | sh` makes it") from None


# ── Things ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle(api: Api, step: Made, address: str) -> str:
    try:
        told = _send(api, _addressed(step.make, address))
        if step.slow:
            _finished(api, told)
        return "made"
    except AlreadyThere:
        pass
    if step.change is None:
        return "as it was"
    told = _send(api, _addressed(step.change, address))
    if step.slow:
        _finished(api, told)
    return "updated"


def _addressed(request: HttpRequest, address: str) -> HttpRequest:
    body = json.loads(json.dumps(request.body).replace(json.dumps(ADDRESS), json.dumps(address)))
    return HttpRequest(request.service, request.method, request.path, body)


def _address(api: Api, step: Made) -> str:
    found = _send(api, HttpRequest(step.make.service, "GET", step.at))
    address = (found.get("serviceConfig") or {}).get("uri") or found.get("url")
    if not address:
        raise Transient(f"{step.what}: has no address yet; deploy it again in a while")
    return str(address)


def _finished(api: Api, operation: Any) -> None:
    """Wait for a long-running operation. Raises the error that it ended with."""
    until_s = time.monotonic() + _OPERATION_S
    pause_s = 0.1
    while not operation.get("done"):
        if time.monotonic() > until_s:
            raise Transient(f"{operation.get('name')}: is still under way; look again in a while")
        time.sleep(pause_s)
        pause_s = min(_POLL_S, pause_s * 2)
        operation = api.get(f"/v2/{operation['name']}", service="cloudfunctions")
    error = operation.get("error")
    if error:
        raise refused("function", 400, {"error": {"message": error.get("message"), "status": "FAILED"}})


# ── Bindings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bind(api: Api, step: Bound) -> str:
    until_s = time.monotonic() + _BIND_S
    while True:
        policy = _policy(api, step)
        held = policy.setdefault("bindings", [])
        missing = [each for each in step.bindings if not any(_covers(there, each) for there in held)]
        if not missing:
            return "as it was"
        held += missing
        try:
            _put(api, step, policy)
            return "bound"
        except (InvalidRequest, Transient) as error:
            # An account that is not known yet, or a rival's change in between.
            if time.monotonic() > until_s or ("exist" not in str(error) and not isinstance(error, Transient)):
                raise
        time.sleep(_BIND_PAUSE_S)


def _unbind(api: Api, step: Bound) -> str:
    members = {member for each in step.bindings for member in each["members"]}
    try:
        policy = _policy(api, step)
    except NotFound:
        return "is not there"
    kept, changed = [], False
    for each in policy.get("bindings", ()):
        left = [member for member in each.get("members", ()) if not _is_of(member, members)]
        changed = changed or left != each.get("members")
        if left:
            kept.append({**each, "members": left})
    if not changed:
        return "had no binding"
    _put(api, step, {**policy, "bindings": kept})
    return "unbound"


def _is_of(member: str, members: set[str]) -> bool:
    """Also of an account that somebody has deleted: `deleted:serviceAccount:NAME?uid=…`."""
    return member.removeprefix("deleted:").partition("?")[0] in members


def _covers(there: dict[str, Any], wanted: dict[str, Any]) -> bool:
    condition = (there.get("condition") or {}).get("expression")
    return (
        there.get("role") == wanted["role"]
        and condition == (wanted.get("condition") or {}).get("expression")
        and set(wanted["members"]) <= set(there.get("members", ()))
    )


def _policy(api: Api, step: Bound) -> dict[str, Any]:
    return dict(_send(api, step.look))


def _put(api: Api, step: Bound, policy: dict[str, Any]) -> None:
    # Conditions are of version 3 alone; the etag makes a rival's change in between fail this one.
    whole = {**policy, "version": 3}
    body = {"policy": whole} if step.wrapped else whole
    _send(api, HttpRequest(step.put.service, step.put.method, step.put.path, body))


def _send(api: Api, request: HttpRequest) -> Any:
    service = cast("Service", request.service)
    body = request.body if request.method not in ("GET", "DELETE") else None
    return api.send(request.method, request.path, body, service=service, what=request.path.partition("?")[0])
