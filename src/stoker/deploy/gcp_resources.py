"""All resources of a governor on Google Cloud, as requests. Pure: `--dry-run` prints them, `gcp` sends them.

There is one entrance: Cloud Scheduler's tick, agents and people publish to one topic of Pub/Sub, whose only
subscription pushes to the function. The function runs as an account of its own; the push uses another account that may
call the function and nothing else. A second clock ticks every 15 minutes permanently, so that a lost message loses
nothing. Messages on which the function failed until the last retry are stored. Alert policies report failures
(`gcp_alerts`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.deploy import gcp_alerts
from stoker.deploy.gcp_entry_point import CLOCK, STORE
from stoker.deploy.gcp_plan import GcpPlan as GcpPlan
from stoker.deploy.gcp_plan import GcpResource as GcpResource
from stoker.deploy.gcp_plan import RoleBindings as RoleBindings
from stoker.deploy.package import Package
from stoker.governor.deployment_record import wake_payload
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.providers import registry
from stoker.providers.base import HttpRequest
from stoker.providers.gce import identity
from stoker.providers.gce.client import Service
from stoker.providers.gce.identity import DEFAULT_ACCOUNT, email

CLOUD = "gcp"
RUNTIME = "python313"
ENTRY = "wake"
_MEMORY = "1Gi"
_TIMEOUT_S = 300
_MOST_INSTANCES = 5
# An older message is of no use: ticks have come since. Ten minutes is Pub/Sub's shortest retention.
_KEPT = "600s"
_PUBLISHER = "roles/pubsub.publisher"
_INVOKER = "roles/run.invoker"
_ACTOR = "roles/iam.serviceAccountUser"
# The message of the clock, and of the test call after a deployment.
_TICK = base64.b64encode(json.dumps({"stoker": wake_payload(())}).encode()).decode()
# A placeholder: known once the function exists.
ADDRESS = "(the function's address)"
# A placeholder: looked up during a deployment, because the name of Pub/Sub's own account contains it.
NUMBER = "(the project's number)"
_SUBSCRIBER = "roles/pubsub.subscriber"
# With the pauses between them, about as long as the retention.
_DELIVERIES = 10
# https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.subscriptions
_UNDELIVERED_KEPT = "604800s"


def steps(plan: GcpPlan) -> tuple[GcpResource | RoleBindings, ...]:
    """The resources to create and the roles to bind, in order."""
    return (
        _account(plan, plan.name, "The governor of a Stoker store"),
        _account(plan, f"{plan.name}-push", "Calls the governor of a Stoker store"),
        *_governing(plan),
        *_acting(plan),
        _topic(plan),
        _policy_of(
            "pubsub",
            "topic",
            plan.topic,
            tuple(_binding(_PUBLISHER, each) for each in (email(plan.project, DEFAULT_ACCOUNT), *plan.accounts)),
        ),
        _function(plan),
        _policy_of("run", "function", f"{plan.place}/services/{plan.name}", (_binding(_INVOKER, plan.pusher),)),
        *_keeping(plan),
        _subscription(plan),
        _pubsub_may("subscription", plan.subscription, _SUBSCRIBER),
        _clock(plan),
        _net(plan),
    )


def all_steps(plan: GcpPlan, package: Package) -> tuple[GcpResource | RoleBindings | HttpRequest, ...]:
    """All changes of a deployment, in order: `steps`, and the requests beside them."""
    recorded = HttpRequest("storage", "PUT", f"/{plan.bucket}/{plan.folder}{keys.deployed(CLOUD)}")
    return (
        recorded,
        HttpRequest("storage", "PUT", f"/{plan.bucket}/{plan.object}", {"bytes": package.described}),
        *steps(plan),
        *gcp_alerts.requests(plan),
        # Only where no job is active.
        HttpRequest("cloudscheduler", "POST", f"/v1/{plan.clock}:pause"),
        HttpRequest("pubsub", "POST", f"/v1/{plan.topic}:publish", {"messages": [{"data": _TICK}]}),
        recorded,
    )


def _account(plan: GcpPlan, name: str, about: str) -> GcpResource:
    body = {"accountId": name, "serviceAccount": {"displayName": about, "description": plan.store[:256]}}
    make = HttpRequest("iam", "POST", f"/v1/projects/{plan.project}/serviceAccounts", body)
    where = f"/v1/projects/{plan.project}/serviceAccounts/{email(plan.project, name)}"
    return GcpResource(f"service account {name}", make, where)


def _governing(plan: GcpPlan) -> tuple[RoleBindings, ...]:
    """The governor's bindings of `stoker iam gce`, for the function's account."""
    (grant,) = (
        each for each in registry.iam("gce").grants(plan.store, notify=plan.notify).grants if each.name == "governor"
    )
    by_place: dict[str, list[dict[str, Any]]] = {}
    for each in grant.policy["bindings"]:
        role = str(each["role"]).replace("$PROJECT", plan.project)
        by_place.setdefault(str(each["on"]), []).append(_binding(role, plan.account, each.get("condition")))
    return tuple(_guarded(plan, on, tuple(bindings)) for on, bindings in by_place.items())


def _guarded(plan: GcpPlan, on: str, bindings: tuple[dict[str, Any], ...]) -> RoleBindings:
    if on == "project":
        path = f"/v1/projects/{plan.project}"
        wake_payload = {"options": {"requestedPolicyVersion": 3}}
        look = HttpRequest("cloudresourcemanager", "POST", f"{path}:getIamPolicy", wake_payload)
        put = HttpRequest("cloudresourcemanager", "POST", f"{path}:setIamPolicy")
        return RoleBindings(f"project {plan.project}", look, put, bindings)
    if on.startswith("gs://"):
        path = f"/storage/v1/b/{on.removeprefix('gs://')}/iam"
        look = HttpRequest("storage", "GET", f"{path}?optionsRequestedPolicyVersion=3")
        return RoleBindings(f"bucket {on}", look, HttpRequest("storage", "PUT", path), bindings, wrapped=False)
    if "secrets/" in on:
        secret = on if on.startswith("projects/") else f"projects/{plan.project}/{on}"
        return replace(_policy_of("secretmanager", "secret", secret, bindings), own=False)
    return _on_account(email(plan.project, on), bindings)


def _acting(plan: GcpPlan) -> tuple[RoleBindings, ...]:
    """Let the governor act as the machines' accounts, which a launch needs."""
    return tuple(_on_account(each, (_binding(_ACTOR, plan.account),)) for each in plan.accounts)


def _on_account(address: str, bindings: tuple[dict[str, Any], ...]) -> RoleBindings:
    where = identity.path(address)
    look = HttpRequest("iam", "POST", f"{where}:getIamPolicy?options.requestedPolicyVersion=3")
    return RoleBindings(
        f"service account {address}", look, HttpRequest("iam", "POST", f"{where}:setIamPolicy"), bindings
    )


def _policy_of(service: Service, what: str, path: str, bindings: tuple[dict[str, Any], ...]) -> RoleBindings:
    version = "v2" if service == "run" else "v1"
    look = HttpRequest(service, "GET", f"/{version}/{path}:getIamPolicy?options.requestedPolicyVersion=3")
    put = HttpRequest(service, "POST", f"/{version}/{path}:setIamPolicy")
    return RoleBindings(f"{what} {path.rpartition('/')[2]}", look, put, bindings, own=True)


def _binding(role: str, account: str, condition: Mapping[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"role": role, "members": [f"serviceAccount:{account}"]}
    return found | ({"condition": dict(condition)} if condition else {})


def _topic(plan: GcpPlan) -> GcpResource:
    at = f"/v1/{plan.topic}"
    return GcpResource("topic", HttpRequest("pubsub", "PUT", at, {"labels": {"stoker": "governor"}}), at)


def _function(plan: GcpPlan) -> GcpResource:
    body = {
        "description": f"The governor of {plan.store}"[:256],
        "environment": "GEN_2",
        "labels": {"stoker": "governor"},
        "buildConfig": {
            "runtime": RUNTIME,
            "entryPoint": ENTRY,
            "source": {"storageSource": {"bucket": plan.bucket, "object": plan.object}},
        },
        "serviceConfig": {
            "serviceAccountEmail": plan.account,
            "availableMemory": _MEMORY,
            "availableCpu": "1",
            "timeoutSeconds": _TIMEOUT_S,
            # A governor is for one thread; a burst of events waits at the topic.
            "maxInstanceRequestConcurrency": 1,
            "maxInstanceCount": _MOST_INSTANCES,
            "environmentVariables": {
                **plan.environ,
                STORE: plan.store,
                CLOCK: plan.clock,
                "GOOGLE_CLOUD_PROJECT": plan.project,
                "STOKER_HOME": "/tmp/stoker",
            },
        },
    }
    at = f"/v2/{plan.place}/functions/{plan.name}"
    make = HttpRequest("cloudfunctions", "POST", f"/v2/{plan.place}/functions?functionId={plan.name}", body)
    change = HttpRequest("cloudfunctions", "PATCH", f"{at}?updateMask=buildConfig,serviceConfig,description", body)
    return GcpResource("function", make, at, change, slow=True)


def _keeping(plan: GcpPlan) -> tuple[GcpResource | RoleBindings, ...]:
    """The topic for messages on which the function failed until the last retry, and a subscription that stores them."""
    at, subscription = f"/v1/{plan.undelivered}", f"/v1/{plan.subscription}-undelivered"
    body = {
        "topic": plan.undelivered,
        "messageRetentionDuration": _UNDELIVERED_KEPT,
        "expirationPolicy": {},
        "labels": {"stoker": "governor"},
    }
    return (
        GcpResource("undelivered topic", HttpRequest("pubsub", "PUT", at, {"labels": {"stoker": "governor"}}), at),
        _pubsub_may("topic", plan.undelivered, _PUBLISHER),
        GcpResource("undelivered messages", HttpRequest("pubsub", "PUT", subscription, body), subscription),
    )


def _pubsub_may(what: str, path: str, role: str) -> RoleBindings:
    """Bind a role for Pub/Sub's own account, which moves undelivered messages:
    https://cloud.google.com/pubsub/docs/handling-failures#grant_forwarding_permissions"""
    agent = f"service-{NUMBER}@gcp-sa-pubsub.iam.gserviceaccount.com"
    return replace(_policy_of("pubsub", what, path, (_binding(role, agent),)), optional=True)


def _subscription(plan: GcpPlan) -> GcpResource:
    at = f"/v1/{plan.subscription}"
    body = {
        "topic": plan.topic,
        "pushConfig": {
            "pushEndpoint": ADDRESS,
            "oidcToken": {"serviceAccountEmail": plan.pusher, "audience": ADDRESS},
        },
        "ackDeadlineSeconds": _TIMEOUT_S,
        "messageRetentionDuration": _KEPT,
        "retryPolicy": {"minimumBackoff": "10s", "maximumBackoff": "60s"},
        "deadLetterPolicy": {"deadLetterTopic": plan.undelivered, "maxDeliveryAttempts": _DELIVERIES},
        # No expiration: a store may be idle for months.
        "expirationPolicy": {},
        "labels": {"stoker": "governor"},
    }
    changing = ("pushConfig", "ackDeadlineSeconds", "retryPolicy", "deadLetterPolicy")
    changed = {key: value for key, value in body.items() if key in changing}
    change = HttpRequest(
        "pubsub",
        "PATCH",
        at,
        {
            "subscription": {"name": at.removeprefix("/v1/"), **changed},
            "updateMask": ",".join(changing),
        },
    )
    return GcpResource("subscription", HttpRequest("pubsub", "PUT", at, body), at, change)


def _clock(plan: GcpPlan) -> GcpResource:
    """The clock. Cloud Scheduler creates it running; the deployment pauses it at once where no job is active."""
    about = f"Once a minute while {plan.store} has an active job; the governor switches it"
    return _scheduled(plan, "clock", plan.clock, about, "* * * * *")


def _net(plan: GcpPlan) -> GcpResource:
    """The slow clock, which is never paused."""
    about = f"Looks at {plan.store} every 15 minutes, always: what was lost is found by it"
    return _scheduled(plan, "slow clock", plan.net, about, "*/15 * * * *")


def _scheduled(plan: GcpPlan, what: str, name: str, about: str, schedule: str) -> GcpResource:
    body = {
        "name": name,
        "description": about[:500],
        "schedule": schedule,
        "timeZone": "Etc/UTC",
        "pubsubTarget": {"topicName": plan.topic, "data": _TICK},
    }
    return GcpResource(what, HttpRequest("cloudscheduler", "POST", f"/v1/{plan.place}/jobs", body), f"/v1/{name}")


def plan_deployment(
    store_url: str,
    project: str,
    region: str,
    digest: str,
    environ: Mapping[str, str],
    notify: tuple[str, ...] = (),
    accounts: tuple[str, ...] = (),
    alerts: tuple[str, ...] = (),
) -> GcpPlan:
    """Plan a deployment for a store. `accounts` are addresses. Raises UserError for a store not on Cloud Storage."""
    if not store_url.startswith("gs://"):
        raise UserError(
            f"a governor on Google Cloud needs a store there, not {store_url}; give --store gs://BUCKET/PREFIX"
        )
    bucket, _, prefix = store_url.removeprefix("gs://").partition("/")
    key = keys.deployed_package(digest)
    return GcpPlan(
        name=keys.deployment_name(store_url),
        project=project,
        region=region,
        store=store_url,
        bucket=bucket,
        object=f"{prefix}/{key}" if prefix else key,
        environ=environ,
        notify=notify,
        accounts=accounts,
        alerts=alerts,
    )


def regional_resources(plan: GcpPlan) -> tuple[GcpResource, ...]:
    """The resources in the plan's region; all others belong to the project."""
    return _clock(plan), _net(plan), _function(plan)


def external_bindings(plan: GcpPlan) -> tuple[RoleBindings, ...]:
    """The bindings on resources that the plan names: secrets with the addresses of channels, and machines' accounts."""
    secrets = tuple(each for each in _governing(plan) if each.put.service == "secretmanager")
    publishing = tuple(_binding(_PUBLISHER, each) for each in plan.accounts)
    topic = (_policy_of("pubsub", "topic", plan.topic, publishing),) if publishing else ()
    return (*secrets, *_acting(plan), *topic)


def all_resources(plan: GcpPlan, regions: tuple[str, ...]) -> tuple[GcpResource, ...]:
    """All resources in the order of removal: those in each of these regions, then the project's, last created first."""
    here = regional_resources(plan)
    shared = [each for each in reversed(steps(plan)) if isinstance(each, GcpResource) and each not in here]
    return (*(made for region in regions for made in regional_resources(replace(plan, region=region))), *shared)


def removals(plan: GcpPlan, regions: tuple[str, ...]) -> tuple[HttpRequest | RoleBindings, ...]:
    """The removals, in order: first the bindings on resources of other owners, then the deployment's resources."""
    # Bindings on the deployment's own resources disappear with them.
    bound = [each for each in steps(plan) if isinstance(each, RoleBindings) and not each.own]
    made = [HttpRequest(each.make.service, "DELETE", each.at) for each in all_resources(plan, regions)]
    return (*bound, *made)


def all_removals(plan: GcpPlan, regions: tuple[str, ...]) -> tuple[HttpRequest | RoleBindings, ...]:
    """All changes of a removal, in order, including the objects in the bucket."""
    objects = HttpRequest("storage", "DELETE", f"/{plan.bucket}/{plan.folder}{keys.DEPLOYED}*")
    return (*removals(plan, regions), *gcp_alerts.removals(plan), objects)
