"""Monitoring of the governor on Google Cloud: alert policies of Cloud Monitoring, and their e-mail channels.

Monitoring chooses the names of its resources, so that they are found again by a label. The governor works without
them: where they cannot be created, `deploy` reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.deploy.gcp_plan import GcpPlan
from stoker.model.errors import NotFound, ProviderError
from stoker.providers.base import HttpRequest
from stoker.providers.gce.client import Api

Say = Callable[[str], None]
Json = dict[str, Any]

_WINDOW_S = 300
# Three of the slow ticks, which come every 15 minutes.
_SILENT_S = 45 * 60
# How long an incident stays open where no further data arrives.
_AUTO_CLOSE_S = 24 * 3600
_POLICIES, _CHANNELS = "alertPolicies", "notificationChannels"
# https://cloud.google.com/monitoring/api/metrics_gcp_p_z#gcp-run and …#gcp-pubsub
_CALLS = "run.googleapis.com/request_count"
_WAITING = "pubsub.googleapis.com/subscription/num_undelivered_messages"


def policies(plan: GcpPlan) -> tuple[Json, ...]:
    """The alert policies, without their channels."""
    calls = (
        f'metric.type="{_CALLS}" AND resource.type="cloud_run_revision" AND resource.labels.service_name="{plan.name}"'
    )
    waiting_in = undelivered_name(plan)
    summed = _aggregation("ALIGN_DELTA")
    return (
        _policy(
            plan,
            "errors",
            "it fails: the log of the function tells why",
            # One failed call is repeated. Only failures in two windows in a row raise the alert.
            _above(f'{calls} AND metric.labels.response_code_class="5xx"', summed, _WINDOW_S),
        ),
        _policy(
            plan,
            "refused",
            "calls are refused: too many are under way (429), or the subscription may not call the function (403)",
            _above(f'{calls} AND metric.labels.response_code_class="4xx"', summed, _WINDOW_S),
        ),
        _policy(
            plan,
            "undelivered",
            f"messages were not delivered, and wait in {waiting_in}; its tick looks at every job all the same",
            _above(waiting(plan), _aggregation("ALIGN_MAX"), 0),
        ),
        _policy(
            plan,
            "silent",
            f"it has finished no call for {_SILENT_S // 60} minutes: `stoker deploy gcp` puts its clock back",
            {
                "conditionAbsent": {
                    "filter": f'{calls} AND metric.labels.response_code_class="2xx"',
                    "aggregations": [summed],
                    "duration": f"{_SILENT_S}s",
                }
            },
        ),
    )


def undelivered_name(plan: GcpPlan) -> str:
    """The name of the subscription that holds undelivered messages."""
    return f"{plan.subscription.rpartition('/')[2]}-undelivered"


def waiting(plan: GcpPlan) -> str:
    """The filter of the time series of their number."""
    return (
        f'metric.type="{_WAITING}" AND resource.type="pubsub_subscription" '
        f'AND resource.labels.subscription_id="{undelivered_name(plan)}"'
    )


def requests(plan: GcpPlan) -> tuple[HttpRequest, ...]:
    """The requests that create all of them, for a dry run."""
    mails = [HttpRequest("monitoring", "POST", _at(plan, _CHANNELS), _channel(plan, mail)) for mail in plan.alerts]
    made = [HttpRequest("monitoring", "POST", _at(plan, _POLICIES), body) for body in policies(plan)]
    return (*mails, *made)


def removals(plan: GcpPlan) -> tuple[HttpRequest, ...]:
    """The requests that remove them, as far as they are known without a call."""
    return tuple(HttpRequest("monitoring", "DELETE", f"{_at(plan, kind)}/*") for kind in (_POLICIES, _CHANNELS))


def make(api: Api, plan: GcpPlan, say: Say) -> bool:
    """Create or update the policies. Returns False, after a message, where that failed. Raises no ProviderError."""
    try:
        channels, obsolete = _make_channels(api, plan)
        before = {each.get("displayName"): each for each in _found(api, plan, _POLICIES)}
        for body in policies(plan):
            wanted = {**body, "notificationChannels": channels}
            there = before.pop(body["displayName"], None)
            if there is None:
                api.send("POST", _at(plan, _POLICIES), wanted, service="monitoring", what="alerts")
            else:
                mask = {"updateMask": ",".join(wanted)}
                api.send("PATCH", f"/v3/{there['name']}", wanted, params=mask, service="monitoring", what="alerts")
        for each in (*before.values(), *obsolete):
            _delete(api, each)
    except ProviderError as error:
        say(f"alerts: not made, so no message comes when the governor fails ({error}); `stoker deploy status` shows it")
        return False
    where = f"mailed to {', '.join(plan.alerts)}" if plan.alerts else "shown in Cloud Monitoring; --alert mails them"
    say(f"alerts: {len(policies(plan))}, {where}")
    return True


def remove(api: Api, plan: GcpPlan) -> int:
    """Remove all policies and channels, and return their number. Raises ProviderError."""
    # Policies first: a channel that a policy uses cannot be removed.
    found = [*_found(api, plan, _POLICIES), *_found(api, plan, _CHANNELS)]
    for each in found:
        _delete(api, each)
    return len(found)


def count(api: Api, plan: GcpPlan) -> int:
    """The number of policies that exist and are enabled. Raises ProviderError."""
    return sum(each.get("enabled", True) is not False for each in _found(api, plan, _POLICIES))


def _make_channels(api: Api, plan: GcpPlan) -> tuple[list[str], list[Json]]:
    """Create missing channels. Returns the names of the wanted channels, and the channels that are obsolete."""
    there = {(each.get("labels") or {}).get("email_address"): each for each in _found(api, plan, _CHANNELS)}
    names = []
    for mail in plan.alerts:
        found = there.pop(mail, None) or api.send(
            "POST", _at(plan, _CHANNELS), _channel(plan, mail), service="monitoring", what="alerts"
        )
        names.append(str(found["name"]))
    return names, list(there.values())


def _found(api: Api, plan: GcpPlan, kind: str) -> list[Json]:
    """The policies or channels with the deployment's label."""
    asked = {"filter": f'user_labels.stoker="{plan.name}"'}
    return [each for page in api.pages(_at(plan, kind), asked, service="monitoring") for each in page.get(kind) or ()]


def _delete(api: Api, thing: Json) -> None:
    try:
        api.send("DELETE", f"/v3/{thing['name']}", service="monitoring", what="alerts")
    except NotFound:
        pass


def _at(plan: GcpPlan, kind: str) -> str:
    return f"/v3/projects/{plan.project}/{kind}"


def _channel(plan: GcpPlan, mail: str) -> Json:
    return {
        "type": "email",
        "displayName": f"{plan.name}: {mail}",
        "labels": {"email_address": mail},
        "userLabels": {"stoker": plan.name},
    }


def _policy(plan: GcpPlan, kind: str, about: str, condition: Json) -> Json:
    return {
        "displayName": f"{plan.name}-{kind}",
        "documentation": {"content": f"The governor of {plan.store}: {about}", "mimeType": "text/markdown"},
        "userLabels": {"stoker": plan.name},
        "combiner": "OR",
        "conditions": [{"displayName": kind, **condition}],
        "alertStrategy": {"autoClose": f"{_AUTO_CLOSE_S}s"},
        "enabled": True,
    }


def _above(series: str, aggregation: Json, duration_s: int) -> Json:
    """The condition that a series is above zero for this long."""
    return {
        "conditionThreshold": {
            "filter": series,
            "aggregations": [aggregation],
            "comparison": "COMPARISON_GT",
            "thresholdValue": 0,
            "duration": f"{duration_s}s",
            # A function that is not called has no data points at all.
            "evaluationMissingData": "EVALUATION_MISSING_DATA_INACTIVE",
        }
    }


def _aggregation(aligner: str) -> Json:
    reducer = "REDUCE_MAX" if aligner == "ALIGN_MAX" else "REDUCE_SUM"
    return {"alignmentPeriod": f"{_WINDOW_S}s", "perSeriesAligner": aligner, "crossSeriesReducer": reducer}
