"""How the parts of a governor on Google Cloud are: the function, its clocks, its messages and its alerts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial

from stoker.deploy import gcp_alerts, gcp_resources
from stoker.deploy.gcp_plan import Plan
from stoker.deploy.status import Check, State, checked, clock_text, net_text, waiting_text
from stoker.governor.deployment_record import Deployed
from stoker.providers.gce.client import Api


def look(deployed: Deployed, store_url: str) -> tuple[Check, ...]:
    """As of `stoker.deploy.status.Cloud`."""
    plan = gcp_resources.planned(
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


def _function(api: Api, plan: Plan) -> tuple[State, str]:
    found = api.get(f"/v2/{plan.place}/functions/{plan.name}", service="cloudfunctions")
    state = str(found.get("state") or "ACTIVE")
    if state != "ACTIVE":
        told = "; ".join(str(each.get("message")) for each in found.get("stateMessages") or ())
        return "bad", f"{state.lower()}{f': {told}' if told else ''}"
    return "good", f"active in {plan.region}"


def _runs(api: Api, clock: str) -> bool:
    return bool(api.get(f"/v1/{clock}", service="cloudscheduler").get("state") == "ENABLED")


def _undelivered(api: Api, plan: Plan) -> tuple[State, str]:
    """By its metric, which is a few minutes late: to look at the messages themselves would take them away."""
    kept = f"{plan.subscription}-undelivered"
    api.get(f"/v1/{kept}", service="pubsub")
    now = datetime.now(timezone.utc)
    asked = {
        "filter": gcp_alerts.waiting(plan),
        "interval.startTime": (now - timedelta(minutes=15)).isoformat(),
        "interval.endTime": now.isoformat(),
    }
    told = api.get(f"/v3/projects/{plan.project}/timeSeries", asked, service="monitoring")
    newest = [series["points"][0]["value"] for series in told.get("timeSeries") or () if series.get("points")]
    return waiting_text(sum(int(value.get("int64Value", 0)) for value in newest), kept.rpartition("/")[2])


def _alerts(api: Api, plan: Plan) -> tuple[State, str]:
    wanted, found = len(gcp_alerts.policies(plan)), gcp_alerts.count(api, plan)
    if found < wanted:
        return "bad", f"{found} of {wanted} are there and on; deploy again"
    told = f"mailed to {', '.join(plan.alerts)}" if plan.alerts else "shown in Cloud Monitoring, and not mailed"
    return "good", f"{found}, {told}"
