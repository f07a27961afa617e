"""Everything that a governor on Google Cloud is made of, as requests. Pure: `--dry-run` prints it, `gcp` sends it.

One door: Cloud Scheduler's tick, agents and people publish to one topic of Pub/Sub's, whose only subscription pushes to
the function. The function runs as an account of its own, and the push as another that may call the function and nothing
else. A second clock ticks every 15 minutes for ever, so that a lost message loses nothing; messages that the function
failed on until the last try are kept. Alert policies tell when it is in trouble (`gcp_alerts`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.deploy import gcp_alerts
from stoker.deploy.gcp_function import CLOCK, STORE
from stoker.deploy.gcp_plan import Bound as Bound
from stoker.deploy.gcp_plan import Made as Made
from stoker.deploy.gcp_plan import Plan as Plan
from stoker.deploy.package import Package
from stoker.governor.deployment_record import asked
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
# Older than this a message is of no use: ticks have come since. Pub/Sub keeps none for less than ten minutes.
_KEPT = "600s"
_PUBLISHER = "roles/pubsub.publisher"
_INVOKER = "roles/run.invoker"
_ACTOR = "roles/iam.serviceAccountUser"
# What the clock says, and whoever tries the function.
_TICK = base64.b64encode(json.dumps({"stoker": asked(())}).encode()).decode()
# Known once the function is there.
ADDRESS = "(the function's address)"
# Asked when it is deployed: Pub/Sub's own account has it in its name.
NUMBER = "(the project's number)"
_SUBSCRIBER = "roles/pubsub.subscriber"
# With the pauses between them, as long as messages are kept.
_DELIVERIES = 10
# https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.subscriptions
_UNDELIVERED_KEPT = "604800s"


def steps(plan: Plan) -> tuple[Made | Bound, ...]:
    """What is made and bound, in order."""
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


def everything(plan: Plan, package: Package) -> tuple[Made | Bound | HttpRequest, ...]:
    """All that deploying changes, in order: what is made and bound, and what is done beside."""
    recorded = HttpRequest("storage", "PUT", f"/{plan.bucket}/{plan.folder}{keys.deployed(CLOUD)}")
    return (
        recorded,
        HttpRequest("storage", "PUT", f"/{plan.bucket}/{plan.object}", {"bytes": package.described}),
        *steps(plan),
        *gcp_alerts.requests(plan),
        # Where no job is active.
        HttpRequest("cloudscheduler", "POST", f"/v1/{plan.clock}:pause"),
        HttpRequest("pubsub", "POST", f"/v1/{plan.topic}:publish", {"messages": [{"data": _TICK}]}),
        recorded,
    )


def _account(plan: Plan, name: str, about: str) -> Made:
    body = {"accountId": name, "serviceAccount": {"displayName": about, "description": plan.store[:256]}}
    make = HttpRequest("iam", "POST", f"/v1/projects/{plan.project}/serviceAccounts", body)
    where = f"/v1/projects/{plan.project}/serviceAccounts/{email(plan.project, name)}"
    return Made(f"service account {name}", make, where)


def _governing(plan: Plan) -> tuple[Bound, ...]:
    """What `stoker iam gce` describes for a governor, for the function's account."""
    (grant,) = (
        each for each in registry.iam("gce").grants(plan.store, notify=plan.notify).grants if each.name == "governor"
    )
    by_place: dict[str, list[dict[str, Any]]] = {}
    for each in grant.policy["bindings"]:
        role = str(each["role"]).replace("$PROJECT", plan.project)
        by_place.setdefault(str(each["on"]), []).append(_binding(role, plan.account, each.get("condition")))
    return tuple(_guarded(plan, on, tuple(bindings)) for on, bindings in by_place.items())


def _guarded(plan: Plan, on: str, bindings: tuple[dict[str, Any], ...]) -> Bound:
    if on == "project":
        path = f"/v1/projects/{plan.project}"
        asked = {"options": {"requestedPolicyVersion": 3}}
        look = HttpRequest("cloudresourcemanager", "POST", f"{path}:getIamPolicy", asked)
        put = HttpRequest("cloudresourcemanager", "POST", f"{path}:setIamPolicy")
        return Bound(f"project {plan.project}", look, put, bindings)
    if on.startswith("gs://"):
        path = f"/storage/v1/b/{on.removeprefix('gs://')}/iam"
        look = HttpRequest("storage", "GET", f"{path}?optionsRequestedPolicyVersion=3")
        return Bound(f"bucket {on}", look, HttpRequest("storage", "PUT", path), bindings, wrapped=False)
    if "secrets/" in on:
        secret = on if on.startswith("projects/") else f"projects/{plan.project}/{on}"
        return replace(_policy_of("secretmanager", "secret", secret, bindings), own=False)
    return _on_account(email(plan.project, on), bindings)


def _acting(plan: Plan) -> tuple[Bound, ...]:
    """Who launches a machine acts as its account."""
    return tuple(_on_account(each, (_binding(_ACTOR, plan.account),)) for each in plan.accounts)


def _on_account(address: str, bindings: tuple[dict[str, Any], ...]) -> Bound:
    where = identity.path(address)
    look = HttpRequest("iam", "POST", f"{where}:getIamPolicy?options.requestedPolicyVersion=3")
    return Bound(f"service account {address}", look, HttpRequest("iam", "POST", f"{where}:setIamPolicy"), bindings)


def _policy_of(service: Service, what: str, path: str, bindings: tuple[dict[str, Any], ...]) -> Bound:
    version = "v2" if service == "run" else "v1"
    look = HttpRequest(service, "GET", f"/{version}/{path}:getIamPolicy?options.requestedPolicyVersion=3")
    put = HttpRequest(service, "POST", f"/{version}/{path}:setIamPolicy")
    return Bound(f"{what} {path.rpartition('/')[2]}", look, put, bindings, own=True)


def _binding(role: str, account: str, condition: Mapping[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"role": role, "members": [f"serviceAccount:{account}"]}
    return found | ({"condition": dict(condition)} if condition else {})


def _topic(plan: Plan) -> Made:
    at = f"/v1/{plan.topic}"
    return Made("topic", HttpRequest("pubsub", "PUT", at, {"labels": {"stoker": "governor"}}), at)


def _function(plan: Plan) -> Made:
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
    return Made("function", make, at, change, slow=True)


def _keeping(plan: Plan) -> tuple[Made | Bound, ...]:
    """Where messages go that the function failed on until the last try, and where people find them."""
    at, kept = f"/v1/{plan.undelivered}", f"/v1/{plan.subscription}-undelivered"
    body = {
        "topic": plan.undelivered,
        "messageRetentionDuration": _UNDELIVERED_KEPT,
        "expirationPolicy": {},
        "labels": {"stoker": "governor"},
    }
    return (
        Made("undelivered topic", HttpRequest("pubsub", "PUT", at, {"labels": {"stoker": "governor"}}), at),
        _pubsub_may("topic", plan.undelivered, _PUBLISHER),
        Made("undelivered messages", HttpRequest("pubsub", "PUT", kept, body), kept),
    )


def _pubsub_may(what: str, path: str, role: str) -> Bound:
    """Pub/Sub moves undelivered messages as an account of its own:
    https://cloud.google.com/pubsub/docs/handling-failures#grant_forwarding_permissions"""
    agent = f"service-{NUMBER}@gcp-sa-pubsub.iam.gserviceaccount.com"
    return replace(_policy_of("pubsub", what, path, (_binding(role, agent),)), optional=True)


def _subscription(plan: Plan) -> Made:
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
        # Never: a store may rest for months.
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
    return Made("subscription", HttpRequest("pubsub", "PUT", at, body), at, change)


def _clock(plan: Plan) -> Made:
    """Made running, for Scheduler knows no other way; whoever deploys pauses it at once where no job is active."""
    body = {
        "name": plan.clock,
        "description": f"Once a minute while {plan.store} has an active job; the governor switches it"[:500],
        "schedule": "* * * * *",
        "timeZone": "Etc/UTC",
        "pubsubTarget": {"topicName": plan.topic, "data": _TICK},
    }
    return Made("clock", HttpRequest("cloudscheduler", "POST", f"/v1/{plan.place}/jobs", body), f"/v1/{plan.clock}")


def _net(plan: Plan) -> Made:
    """The slow tick, which nothing pauses."""
    body = {
        "name": plan.net,
        "description": f"Looks at {plan.store} every 15 minutes, always: what was lost is found by it"[:500],
        "schedule": "*/15 * * * *",
        "timeZone": "Etc/UTC",
        "pubsubTarget": {"topicName": plan.topic, "data": _TICK},
    }
    return Made("slow clock", HttpRequest("cloudscheduler", "POST", f"/v1/{plan.place}/jobs", body), f"/v1/{plan.net}")


def planned(
    store_url: str,
    project: str,
    region: str,
    digest: str,
    environ: Mapping[str, str],
    notify: tuple[str, ...] = (),
    accounts: tuple[str, ...] = (),
    alerts: tuple[str, ...] = (),
) -> Plan:
    """The plan for a store. `accounts` are addresses. Raises UserError for a store that is not on Cloud Storage."""
    if not store_url.startswith("gs://"):
        raise UserError(
            f"a governor on Google Cloud needs a store there, not {store_url}; give --store gs://BUCKET/PREFIX"
        )
    bucket, _, prefix = store_url.removeprefix("gs://").partition("/")
    key = keys.deployed_package(digest)
    return Plan(
        name=keys.deployment(store_url),
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


def regional(plan: Plan) -> tuple[Made, ...]:
    """What of it is in its region; all else is the project's."""
    return _clock(plan), _net(plan), _function(plan)


def on_others(plan: Plan) -> tuple[Bound, ...]:
    """Bindings on what a plan names besides: secrets that are addresses of channels, and accounts of machines."""
    secrets = tuple(each for each in _governing(plan) if each.put.service == "secretmanager")
    publishing = tuple(_binding(_PUBLISHER, each) for each in plan.accounts)
    topic = (_policy_of("pubsub", "topic", plan.topic, publishing),) if publishing else ()
    return (*secrets, *_acting(plan), *topic)


def things(plan: Plan, regions: tuple[str, ...]) -> tuple[Made, ...]:
    """What is made of it, last first: what is the project's, and what is in each of these regions."""
    here = regional(plan)
    shared = [each for each in reversed(steps(plan)) if isinstance(each, Made) and each not in here]
    return (*(made for region in regions for made in regional(replace(plan, region=region))), *shared)


def removals(plan: Plan, regions: tuple[str, ...]) -> tuple[HttpRequest | Bound, ...]:
    """What takes it away again, in order: bindings on what is not ours first, then what is ours."""
    # What is bound to things of ours goes with them.
    bound = [each for each in steps(plan) if isinstance(each, Bound) and not each.own]
    made = [HttpRequest(each.make.service, "DELETE", each.at) for each in things(plan, regions)]
    return (*bound, *made)


def all_removals(plan: Plan, regions: tuple[str, ...]) -> tuple[HttpRequest | Bound, ...]:
    """All that removing changes, in order: also what is in the bucket."""
    objects = HttpRequest("storage", "DELETE", f"/{plan.bucket}/{plan.folder}{keys.DEPLOYED}*")
    return (*removals(plan, regions), *gcp_alerts.removals(plan), objects)
