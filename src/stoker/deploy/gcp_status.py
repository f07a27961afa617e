"""Check the parts of a governor on Google Cloud: the function, its clocks, its messages and its alerts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial

from stoker.deploy import gcp_alerts, gcp_resources
from stoker.deploy.gcp_plan import GcpPlan
from stoker.deploy.status import Check, State, checked, clock_text, net_text, waiting_text
from stoker.governor.deployment_record import DeploymentRecord
from stoker.providers.gce.client import Api


def check_parts(deployed: DeploymentRecord, store_url: str) -> tuple[Check, ...]:
    """See `stoker.deploy.status.StatusModule`."""
    plan = gcp_resources.plan_deployment(
        store_url, deployed.project, deployed.region, deployed.digest, {}, alerts=deployed.alerts
    )
    api = Api()
    return (
        checked("function", partial(_function, api, plan)),
        checked("slow clock", lambda: net_text(_runs(api, plan.net))),
        checked("clock", lambda: clock_text(_runs(api, plan.clock))),
        checked("undelivered", partial(_undelivered, api, plan)),
        checked("alerts", partial(_alerts, api, plan)),
    )


def _function(api: Api, plan: GcpPlan) -> tuple[State, str]:
    found = api.get(f"/v2/{plan.place}/functions/{plan.name}", service="cloudfunctions")
    state = str(found.get("state") or "ACTIVE")
    if state != "ACTIVE":
        reasons = "; ".join(str(each.get("message")) for each in found.get("stateMessages") or ())
        return "bad", f"{state.lower()}{f': {reasons}' if reasons else ''}"
    return "good", f"active in {plan.region}"


def _runs(api: Api, clock: str) -> bool:
    return bool(api.get(f"/v1/{clock}", service="cloudscheduler").get("state") == "ENABLED")


def _undelivered(api: Api, plan: GcpPlan) -> tuple[State, str]:
    """Count undelivered messages by their metric, which is a few minutes late: reading the messages would remove
    them."""
    subscription = f"{plan.subscription}-undelivered"
    api.get(f"/v1/{subscription}", service="pubsub")
    now = datetime.now(timezone.utc)
    asked = {
        "filter": gcp_alerts.waiting(plan),
        "interval.startTime": (now - timedelta(minutes=15)).isoformat(),
        "interval.endTime": now.isoformat(),
    }
    found = api.get(f"/v3/projects/{plan.project}/timeSeries", asked, service="monitoring")
    newest = [series["points"][0]["value"] for series in found.get("timeSeries") or () if series.get("points")]
    return waiting_text(sum(int(value.get("int64Value", 0)) for value in newest), subscription.rpartition("/")[2])


def _alerts(api: Api, plan: GcpPlan) -> tuple[State, str]:
    wanted, found = len(gcp_alerts.policies(plan)), gcp_alerts.count(api, plan)
    if found < wanted:
        return "bad", f"{found} of {wanted} are there and on; deploy again"
    where = f"mailed to {', '.join(plan.alerts)}" if plan.alerts else "shown in Cloud Monitoring, and not mailed"
    return "good", f"{found}, {where}"
