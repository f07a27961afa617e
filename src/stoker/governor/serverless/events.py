"""Parse payloads of clouds into events that wake the governor. Pure, and never raises: a payload may be anything.

Only names are taken from a payload, and only texts that can be names; their state is then read from the store and the
cloud.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.model import codec
from stoker.model.errors import CodecError

# The detail-types of EC2's interruption warnings. The machine's own agent receives the same within seconds.
NOTICES = (
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation",
    "EC2 Capacity Reservation Instance Interruption Warning",
    # AWS's earlier name of the one above.
    "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
)
# A capacity block begins to end its machines in ten minutes. The event names no machine, and each agent knows that end
# by the entry of its claim. Both names are in the documentation.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
BLOCK_ENDS = ("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning")
STATES = "EC2 Instance State-change Notification"
TRAINING = "SageMaker Training Job State Change"
# Alarms of other regions come through EventBridge: a topic accepts only alarms of its own region.
ALARM = "CloudWatch Alarm State Change"
SCHEDULED = "Scheduled Event"

_JOB = re.compile(r"[a-z][a-z0-9-]{0,99}")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]{1,2}")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html
_TRAINING_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
_MAX_EXCERPT = 80


@dataclass(frozen=True)
class Tick:
    """Pass over everything: the regular tick, or an event that names neither a job nor a machine."""


@dataclass(frozen=True)
class JobWake:
    """A person submitted, stopped or resumed a job, or left a shell on one of its machines."""

    job: str


@dataclass(frozen=True)
class MachineWake:
    """A machine changed. `warned`: its cloud is about to reclaim it, and its agent is about to report that."""

    provider: str
    instance: str
    region: str
    warned: bool = False


@dataclass(frozen=True)
class TrainingWake:
    """A SageMaker training job, or an alarm about it, changed its state. The job may be Stoker's own or external."""

    name: str
    region: str
    provider: str = "sagemaker"


@dataclass(frozen=True)
class IgnoredEvent:
    """A payload that is not for this governor or cannot be parsed, with the reason for the function's log."""

    why: str


WakeEvent = Tick | JobWake | MachineWake | TrainingWake | IgnoredEvent


def of_aws(payload: object) -> tuple[WakeEvent, ...]:
    """The events in a payload of Lambda: from EventBridge, from SNS, from a person's command or from anything else."""
    if not isinstance(payload, dict):
        return (IgnoredEvent(f"{_excerpt(payload)} is no event"),)
    if "stoker" in payload:
        return _from_request(payload["stoker"])
    records = payload.get("Records")
    if isinstance(records, list):
        return tuple(_from_sns_record(each) for each in records) or (IgnoredEvent("no records"),)
    return (_from_bus(payload),)


def of_message(payload: object) -> tuple[WakeEvent, ...]:
    """The events in a message of Pub/Sub: pushed, or as the data of a CloudEvent. Its own data is JSON in base64."""
    message = payload.get("message") if isinstance(payload, dict) else None
    if not isinstance(message, dict):
        return (IgnoredEvent(f"{_excerpt(payload)} is no message"),)
    try:
        data = codec.parse(base64.b64decode(str(message.get("data") or ""), validate=True))
    except (binascii.Error, ValueError, CodecError):
        return (IgnoredEvent("a message whose data is no JSON"),)
    return _from_request(data.get("stoker") if isinstance(data, dict) else data)


def _from_request(data: object) -> tuple[WakeEvent, ...]:
    """The events in a request of Stoker's own: `{"tick": true}` or `{"jobs": ["spirals-bcd2f"]}`."""
    if not isinstance(data, dict):
        return (IgnoredEvent(f"{_excerpt(data)} is nothing that is asked of a governor"),)
    if data.get("tick") is True:
        return (Tick(),)
    jobs = data.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        return (IgnoredEvent(f"{_excerpt(data)} names no jobs"),)
    return tuple(JobWake(job) if _is(_JOB, job) else IgnoredEvent(f"{_excerpt(job)} is no job") for job in jobs)


def _from_sns_record(record: object) -> WakeEvent:
    """The event in one of the records that SNS delivers together. An alarm is JSON in the record's message."""
    message = _part(record, "Sns").get("Message")
    try:
        data = codec.parse(message) if isinstance(message, str) else None
    except CodecError:
        data = None
    data = data if isinstance(data, dict) else {}
    # `Region` holds the region's long name there; the alarm's ARN has the name that events use.
    region = _region_of_arn(data.get("AlarmArn")) or str(data.get("Region"))
    return _from_alarm(_hosts(_part(data, "Trigger")), region)


def _hosts(trigger: dict[str, Any]) -> Iterator[str]:
    """The hosts that an alarm measures, in one metric or in an expression of several."""
    metrics = trigger.get("Metrics")
    several = [_part(_part(each, "MetricStat"), "Metric") for each in metrics] if isinstance(metrics, list) else []
    for metric in (trigger, *several):
        dimensions = metric.get("Dimensions")
        for each in dimensions if isinstance(dimensions, list) else ():
            named = {str(key).lower(): value for key, value in each.items()} if isinstance(each, dict) else {}
            if named.get("name") == "Host" and isinstance(named.get("value"), str):
                yield named["value"]


def _from_bus(event: dict[str, Any]) -> WakeEvent:
    kind, region, detail = event.get("detail-type"), event.get("region"), _part(event, "detail")
    if kind == SCHEDULED or kind in BLOCK_ENDS:
        return Tick()
    if kind in NOTICES or kind == STATES:
        instance = detail.get("instance-id")
        if _is(_INSTANCE, instance) and _is(_REGION, region):
            return MachineWake("ec2", str(instance), str(region), warned=kind in NOTICES)
        return IgnoredEvent(f"{kind}: names no machine")
    if kind == TRAINING:
        name = detail.get("TrainingJobName")
        if _is(_TRAINING_NAME, name) and _is(_REGION, region):
            return TrainingWake(str(name), str(region))
        return IgnoredEvent(f"{kind}: names no training job")
    if kind == ALARM:
        return _from_alarm(_bus_hosts(_part(detail, "configuration")), region)
    return IgnoredEvent(f"{_excerpt(kind)} is no event that is known here")


def _from_alarm(hosts: Iterable[str], region: object) -> WakeEvent:
    for host in hosts:
        # A host of a training job is measured as `<job>/algo-1`.
        name, slash, _ = host.partition("/")
        if slash and _is(_TRAINING_NAME, name) and _is(_REGION, region):
            return TrainingWake(name, str(region))
    return IgnoredEvent("an alarm that is about no training job")


def _bus_hosts(configuration: dict[str, Any]) -> Iterator[str]:
    """The hosts that an alarm measures, in the format of EventBridge."""
    metrics = configuration.get("metrics")
    for each in metrics if isinstance(metrics, list) else ():
        host = _part(_part(_part(each, "metricStat"), "metric"), "dimensions").get("Host")
        if isinstance(host, str):
            yield host


def _region_of_arn(arn: object) -> str:
    parts = arn.split(":") if isinstance(arn, str) else []
    return parts[3] if len(parts) > 3 else ""


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _part(value: object, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _excerpt(value: object) -> str:
    """A short excerpt for the log: a stranger must not be able to fill it."""
    try:
        return repr(value)[:_MAX_EXCERPT]
    except (RecursionError, ValueError):
        return type(value).__name__
