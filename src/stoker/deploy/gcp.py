"""A governor on Google Cloud: send the requests of `gcp_resources`. `stoker deploy gcp`.

Deploying again updates the existing deployment. Its roles are those of `stoker iam gce`, which must have run before.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.deploy import gcp_alerts, gcp_resources
from stoker.deploy import package as packages
from stoker.deploy.gcp_bindings import bind, policy_of, send, unbind
from stoker.deploy.gcp_entry_point import SchedulerJob
from stoker.deploy.gcp_resources import ADDRESS, CLOUD, GcpPlan, GcpResource, RoleBindings
from stoker.deploy.package import Package
from stoker.governor import deployment_record
from stoker.governor.deployment_record import DeploymentRecord
from stoker.governor.serverless.schedule import ScheduleSwitch
from stoker.model import keys
from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, Transient, UserError
from stoker.providers import registry
from stoker.providers.base import HttpRequest
from stoker.providers.gce import identity, places
from stoker.providers.gce.client import Api
from stoker.providers.gce.errors import AlreadyExists, response_error
from stoker.store.base import Store

# Building a function takes minutes.
_OPERATION_S = 900.0
_POLL_S = 3.0
# The permission to call the function is not active everywhere at once; Pub/Sub repeats a message until it is.
_TRY_S = 180.0

Say = Callable[[str], None]


def deploy(
    store: Store, plan: GcpPlan, package: Package, by: str, say: Say, *, forgotten: tuple[str, ...] = ()
) -> DeploymentRecord:
    """Deploy, wait for completion, and check that the governor runs.

    Idempotent, and safe to interrupt: everything is recorded before it is created. `forgotten` regions are skipped.
    Raises ProviderError, and UserError where roles are missing, or the region does not answer.
    """
    api = Api()
    before = deployment_record.read(store, CLOUD)
    _check_project(plan, before)
    _check_roles(api, plan)
    _check_region(api, plan)
    _check_accounts(api, plan)
    wanted = DeploymentRecord(
        cloud=CLOUD,
        name=plan.name,
        region=plan.region,
        door=plan.topic,
        digest=package.digest,
        by=by,
        project=plan.project,
        notify=plan.notify,
        identities=plan.accounts,
        alerts=plan.alerts,
    )
    begun = deployment_record.without_regions(deployment_record.record_before_change(wanted, before), forgotten)
    deployment_record.write(store, begun)
    packages.send(store, package, say)
    _make(api, plan, say)
    wanted = replace(wanted, leaving=_give_up(api, plan, begun.leaving, say))
    _unbind_others(api, plan, begun, say)
    gcp_alerts.make(api, plan, say)
    switch = ScheduleSwitch(store, SchedulerJob(plan.clock, api))
    if switch.begin():
        say("its clock is on: there may be jobs to govern")
    with deployment_record.proving(store, begun, wanted):
        _try(store, wanted)
    packages.delete_others(store, package)
    return wanted


def _check_project(plan: GcpPlan, there: DeploymentRecord | None) -> None:
    """Raise UserError where the store's governor is in another project: it would continue to tick there."""
    if there is not None and there.project != plan.project:
        raise UserError(
            f"--project: {plan.name} is in {there.project}; `stoker deploy gcp --project {there.project} --remove` "
            "removes it there"
        )


def _make(api: Api, plan: GcpPlan, say: Say) -> None:
    address = ""
    for step in gcp_resources.steps(plan):
        if isinstance(step, GcpResource):
            say(f"{step.what}: {_settle(api, step, address)}")
            if step.what == "function":
                address = _address(api, step)
        elif step.optional:
            _bind_agent(api, plan, step, say)
        else:
            say(f"{step.what}: {bind(api, step)}")


def _bind_agent(api: Api, plan: GcpPlan, step: RoleBindings, say: Say) -> None:
    """Let Pub/Sub store undelivered messages. Where that fails, only they are lost: the slow clock finds every job."""
    try:
        number = api.get(f"/v1/projects/{plan.project}", service="cloudresourcemanager")["projectNumber"]
        bindings = json.loads(json.dumps(step.bindings).replace(json.dumps(gcp_resources.NUMBER)[1:-1], str(number)))
        say(f"{step.what}: {bind(api, replace(step, bindings=tuple(bindings)))}")
    except (ProviderError, KeyError, TypeError) as error:
        say(f"{step.what}: undelivered messages are not stored ({error})")


def _check_region(api: Api, plan: GcpPlan) -> None:
    """Check the region before anything is created or recorded. For a region that does not exist Google answers 403, not
    404."""
    for made in gcp_resources.regional_resources(plan):
        try:
            _exists(api, made)
        except (AuthDenied, InvalidRequest) as error:
            if places.zones_of(plan.region):
                raise
            near = places.nearest(plan.region)
            hint = f"did you mean {near}?" if near else "name one such as us-central1"
            message = f"--region: {plan.region} does not answer, and nothing was made; {hint} ({error})"
            raise UserError(message) from error


def _check_accounts(api: Api, plan: GcpPlan) -> None:
    for each in plan.accounts:
        try:
            api.get(identity.path(each), service="iam")
        except NotFound:
            raise UserError(
                f"--service-account {each}: is not there, and nothing was made; give the address of one, "
                "or give it up with --no-service-account"
            ) from None


def _give_up(api: Api, plan: GcpPlan, regions: tuple[str, ...], say: Say) -> tuple[str, ...]:
    """Remove the resources in regions that are not used any more. Returns the regions in which something may be left:
    the governor does not need them, so that they are no reason to fail."""
    left = []
    for region in regions:
        for made in gcp_resources.regional_resources(replace(plan, region=region)):
            try:
                say(f"{made.what} in {region}: {_delete(api, made)}")
            except ProviderError as error:
                left.append(region)
                say(f"{made.what} in {region}: perhaps still there ({error}); --forget {region} leaves it as it is")
    return tuple(dict.fromkeys(left))


def _unbind_others(api: Api, plan: GcpPlan, begun: DeploymentRecord, say: Say) -> None:
    """Remove the bindings on secrets and accounts that an earlier deployment named and this one does not.

    A binding that cannot be removed, for example in a project that was shut down, is reported and delays nothing.
    """
    # The default account is always used, named or not.
    used = (*plan.accounts, identity.email(plan.project, identity.DEFAULT_ACCOUNT))
    gone = replace(
        plan,
        notify=tuple(each for each in begun.notify if each not in plan.notify),
        accounts=tuple(each for each in begun.identities if each not in used),
    )
    for bound in gcp_resources.external_bindings(gone):
        try:
            say(f"{bound.what}: {unbind(api, bound)}")
        except ProviderError as error:
            say(f"{bound.what}: perhaps still bound ({error})")


def _try(store: Store, deployed: DeploymentRecord) -> None:
    """Make the governor tick once, through the topic that all its messages use, and wait for its pass."""
    before = deployment_record.last_pass(store, CLOUD)
    _publish(deployed, deployment_record.wake_payload(()))
    if not deployment_record.has_passed(store, CLOUD, before, _TRY_S):
        raise ProviderError(
            f"{deployed.name}: is deployed, and has done nothing for {_TRY_S:.0f} s after a message; the log of the "
            f"function in {deployed.region} tells why"
        )


def wake(deployed: DeploymentRecord, jobs: tuple[str, ...]) -> None:
    """Send a message to the topic, as agents do."""
    _publish(deployed, deployment_record.wake_payload(jobs))


def _publish(deployed: DeploymentRecord, message: dict[str, Any]) -> None:
    data = base64.b64encode(json.dumps({"stoker": message}).encode()).decode()
    Api().send("POST", f"/v1/{deployed.door}:publish", {"messages": [{"data": data}]}, service="pubsub", what="topic")


def remove(store: Store, plan: GcpPlan, say: Say, *, forgotten: tuple[str, ...] = ()) -> None:
    """Remove the deployment, and check whether anything is left. Idempotent: the record names the regions until nothing
    is left. `forgotten` regions are skipped. Raises ProviderError naming what is left, or may be."""
    api = Api()
    there = deployment_record.read(store, CLOUD)
    _check_project(plan, there)
    if there is not None:
        # First, so that no client relies on this governor any more.
        there = replace(
            deployment_record.record_before_change(replace(there, region=plan.region), there), state="removing"
        )
        deployment_record.write(store, there)
        plan = replace(
            plan,
            notify=tuple(dict.fromkeys((*plan.notify, *there.notify))),
            accounts=tuple(dict.fromkeys((*plan.accounts, *there.identities))),
        )
    recorded = (*there.elsewhere, *there.leaving) if there is not None else ()
    regions = tuple(each for each in dict.fromkeys((*recorded, plan.region)) if each not in forgotten)
    left = []
    for each in gcp_resources.removals(plan, regions):
        what = each.what if isinstance(each, RoleBindings) else each.path
        try:
            say(f"{what}: {unbind(api, each) if isinstance(each, RoleBindings) else _removed(api, each)}")
        except ProviderError as error:
            if isinstance(error, AuthDenied) and isinstance(each, RoleBindings):
                # The governor's account is deleted, so that the binding has no effect. The denied lookup is no reason
                # to fail: repeating the removal would fail the same way.
                say(f"{what}: perhaps still bound ({error})")
                continue
            left.append(f"perhaps {what} ({error})")
            say(f"{what}: not removed")
    left += _remove_alerts(api, plan, say)
    left = left or left_over(api, plan, regions)
    if left:
        raise ProviderError(
            f"left of {plan.name} in {plan.project}: {', '.join(left)}; remove it by hand, or try again; "
            "`--forget REGION` leaves as it is what is in a region"
        )
    store.delete([meta.key for meta in store.list(keys.DEPLOYED) if meta.key.endswith(".zip")])
    # The record is deleted last: it names the regions.
    store.delete([keys.deployed(CLOUD)])


def _remove_alerts(api: Api, plan: GcpPlan, say: Say) -> list[str]:
    """Remove the alert policies. Returns what may be left."""
    try:
        say(f"alerts: {'removed' if gcp_alerts.remove(api, plan) else 'were not there'}")
    except AuthDenied as error:
        # An older Stoker created none, and its deployers may lack the permission to list them.
        say(f"alerts: perhaps still there ({error})")
    except ProviderError as error:
        return [f"perhaps alerts ({error})"]
    return []


def _delete(api: Api, made: GcpResource) -> str:
    return _removed(api, HttpRequest(made.make.service, "DELETE", made.at))


def _removed(api: Api, request: HttpRequest) -> str:
    try:
        operation = send(api, request)
        if request.service == "cloudfunctions":
            _finished(api, operation)
    except NotFound:
        return "was not there"
    return "removed"


def _exists(api: Api, made: GcpResource) -> bool:
    try:
        send(api, HttpRequest(made.make.service, "GET", made.at))
    except NotFound:
        return False
    return True


def left_over(api: Api, plan: GcpPlan, regions: tuple[str, ...] | None = None) -> list[str]:
    """List the parts of a deployment that still exist; by default in the plan's own region."""
    things = gcp_resources.all_resources(plan, (plan.region,) if regions is None else regions)
    found = [f"{made.what} at {made.at}" for made in things if _exists(api, made)]
    for step in gcp_resources.steps(plan):
        if isinstance(step, RoleBindings) and not step.own:
            try:
                policy = policy_of(api, step)
            except (NotFound, AuthDenied):
                continue
            members = {member for each in step.bindings for member in each["members"]}
            if any(members & set(each.get("members", ())) for each in policy.get("bindings", ())):
                found.append(f"binding on {step.what}")
    return found


def _check_roles(api: Api, plan: GcpPlan) -> None:
    """Raise UserError for a missing role of the project, and for one of an older Stoker that lacks a permission."""
    grants = registry.iam("gce").grants(plan.store, notify=plan.notify).grants
    needed = {name: role for each in grants if each.name == "governor" for name, role in each.policy["roles"].items()}
    start = f"projects/{plan.project}/roles/"
    bound = [each for step in gcp_resources.steps(plan) if isinstance(step, RoleBindings) for each in step.bindings]
    for role in sorted({str(each["role"]) for each in bound if str(each["role"]).startswith(start)}):
        try:
            there = api.get(f"/v1/{role}", service="iam")
        except NotFound:
            there = {"deleted": True}
        if there.get("deleted"):
            raise UserError(f"there is no role {role}; `stoker iam gce | sh` makes it")
        wanted = needed.get(role.removeprefix(start), {}).get("includedPermissions", ())
        lacking = sorted(set(wanted) - set(there.get("includedPermissions", ())))
        if lacking:
            raise UserError(f"the role {role} lacks {', '.join(lacking)}; `stoker iam gce | sh` adds it")


# ── Things ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settle(api: Api, step: GcpResource, address: str) -> str:
    try:
        operation = send(api, _addressed(step.make, address))
        if step.slow:
            _finished(api, operation)
        return "made"
    except AlreadyExists:
        pass
    if step.change is None:
        return "as it was"
    operation = send(api, _addressed(step.change, address))
    if step.slow:
        _finished(api, operation)
    return "updated"


def _addressed(request: HttpRequest, address: str) -> HttpRequest:
    body = json.loads(json.dumps(request.body).replace(json.dumps(ADDRESS), json.dumps(address)))
    return HttpRequest(request.service, request.method, request.path, body)


def _address(api: Api, step: GcpResource) -> str:
    found = send(api, HttpRequest(step.make.service, "GET", step.at))
    address = (found.get("serviceConfig") or {}).get("uri") or found.get("url")
    if not address:
        raise Transient(f"{step.what}: has no address yet; deploy it again in a while")
    return str(address)


def _finished(api: Api, operation: Any) -> None:
    """Wait for a long-running operation. Raises the error that it failed with."""
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
        raise response_error("function", 400, {"error": {"message": error.get("message"), "status": "FAILED"}})
