"""Check the parts of a governor on AWS: the function, its clocks, its queue and its alarms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.deploy import aws_monitoring
from stoker.deploy.aws_template import net_name, tick_name
from stoker.deploy.status import Check, State, checked, clock_text, net_text, waiting_text
from stoker.governor.deployment_record import DeploymentRecord
from stoker.model.errors import NotFound, ProviderError
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws, map_error

# Error codes of these services for a missing resource.
_GONE = ("ResourceNotFoundException", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")


def check_parts(deployed: DeploymentRecord, store_url: str) -> tuple[Check, ...]:
    """See `stoker.deploy.status.StatusModule`."""
    del store_url
    parts = _Parts(Clients(), deployed.name, deployed.region)
    return (
        checked("function", parts.function),
        checked("slow clock", lambda: net_text(parts.rule(net_name(deployed.name)))),
        checked("clock", lambda: clock_text(parts.rule(tick_name(deployed.name)))),
        checked("undelivered", parts.undelivered),
        checked("alarms", parts.alarms),
    )


class _Parts:
    def __init__(self, clients: Clients, name: str, region: str) -> None:
        self._clients = clients
        self._name = name
        self._region = region

    def function(self) -> tuple[State, str]:
        found = self._ask("lambda", lambda client: client.get_function_configuration(FunctionName=self._name))
        state, update = found.get("State", "Active"), found.get("LastUpdateStatus", "Successful")
        if state == "Failed" or update == "Failed":
            why = found.get("StateReason") or found.get("LastUpdateStatusReason") or "AWS does not say why"
            return "bad", f"failed: {why}"
        return "good", f"{state.lower()} in {self._region}"

    def rule(self, name: str) -> bool:
        return bool(self._ask("events", lambda client: client.describe_rule(Name=name)).get("State") == "ENABLED")

    def undelivered(self) -> tuple[State, str]:
        queue = aws_monitoring.queue_name(self._name)
        url = self._ask("sqs", lambda client: client.get_queue_url(QueueName=queue))["QueueUrl"]
        wanted = ["ApproximateNumberOfMessages"]
        found = self._ask("sqs", lambda client: client.get_queue_attributes(QueueUrl=url, AttributeNames=wanted))
        return waiting_text(int(found["Attributes"][wanted[0]]), f"the queue {queue}")

    def alarms(self) -> tuple[State, str]:
        names = aws_monitoring.alarm_names(self._name)
        found = self._ask("cloudwatch", lambda client: client.describe_alarms(AlarmNames=list(names)))
        states = {each["AlarmName"]: each["StateValue"] for each in found["MetricAlarms"]}
        missing = [name for name in names if name not in states]
        in_alarm = [name for name in names if states.get(name) == "ALARM"]
        if in_alarm:
            return "bad", f"in alarm: {', '.join(in_alarm)}"
        if missing:
            return "bad", f"not there: {', '.join(missing)}; deploy again"
        return "good", f"{len(names)}, none in alarm"

    def _ask(self, service: str, call: Callable[[Any], Any]) -> Any:
        client = self._clients.get(service, self._region)
        return call_aws(self._name, lambda: call(client), _means)


def _means(what: str, response: Any) -> ProviderError:
    code = str(response.get("Error", {}).get("Code", ""))
    return NotFound(f"{what}: is not there") if code in _GONE else map_error(what, response)
