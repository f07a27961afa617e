"""What woke the governor, from what a cloud sends. Pure, and never raises: payloads are whatever somebody sends.

Only names are taken from an event, and only such as can be names: what they stand for is then asked of the store and of
the cloud.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# The detail-type of EC2's warnings: the machine's own agent hears the same within seconds.
NOTICES = (
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation",
    "EC2 Capacity Reservation Instance Interruption Warning",
    # As AWS called the one above before.
    "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
)
STATES = "EC2 Instance State-change Notification"
TRAINING = "SageMaker Training Job State Change"
# Of alarms in other regions: a topic takes none but those of its own.
ALARM = "CloudWatch Alarm State Change"
SCHEDULED = "Scheduled Event"

_JOB = re.compile(r"[a-z][a-z0-9-]{0,99}")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]{1,2}")
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html
_TRAINING_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
_MOST_WORDS = 80


@dataclass(frozen=True)
class Tick:
    """Nothing happened; it is time to look at everything."""


@dataclass(frozen=True)
class JobWake:
    """Somebody did something about a job: submitted, stopped or resumed it, or left one of its machines."""

    job: str


@dataclass(frozen=True)
class MachineWake:
    """Something happened to a machine. `warned`: its cloud takes it back, and its agent is about to say so."""

    provider: str
    instance: str
    region: str
    warned: bool = False


@dataclass(frozen=True)
class TrainingWake:
    """A SageMaker training job went on to another state, or an alarm about it did: a job's of ours, or others'."""

    name: str
    region: str
    provider: str = "sagemaker"


@dataclass(frozen=True)
class Nothing:
    """Not for us, or not to be understood; why, for the function's own log."""

    why: str


Woken = Tick | JobWake | MachineWake | TrainingWake | Nothing


def of_aws(payload: object) -> tuple[Woken, ...]:
    """What Lambda was called with: by EventBridge, by SNS, by a person's command or by anything else."""
    if not isinstance(payload, dict):
        return (Nothing(f"{_words(payload)} is no event"),)
    if "stoker" in payload:
        return _asked(payload["stoker"])
    records = payload.get("Records")
    if isinstance(records, list):
        return tuple(_record(each) for each in records) or (Nothing("no records"),)
    return (_bus(payload),)


def of_message(payload: object) -> tuple[Woken, ...]:
    """A message of Pub/Sub's: pushed, or as the data of a CloudEvent. Its own data is JSON, in base64."""
    message = payload.get("message") if isinstance(payload, dict) else None
    if not isinstance(message, dict):
        return (Nothing(f"{_words(payload)} is no message"),)
    try:
        data = json.loads(base64.b64decode(str(message.get("data") or ""), validate=True))
    except (binascii.Error, ValueError, RecursionError):
        return (Nothing("a message whose data is no JSON"),)
    return _asked(data.get("stoker") if isinstance(data, dict) else data)


def _asked(told: object) -> tuple[Woken, ...]:
    """Our own words: `{"tick": true}` or `{"jobs": ["spirals-bcd2f"]}`."""
    if not isinstance(told, dict):
        return (Nothing(f"{_words(told)} is nothing that is asked of a governor"),)
    if told.get("tick") is True:
        return (Tick(),)
    jobs = told.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        return (Nothing(f"{_words(told)} names no jobs"),)
    return tuple(JobWake(job) if _is(_JOB, job) else Nothing(f"{_words(job)} is no job") for job in jobs)


def _record(record: object) -> Woken:
    """One of several that SNS may deliver at once; what matters of an alarm is JSON in its message."""
    message = _part(record, "Sns").get("Message")
    try:
        told = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    # AWS writes the region out in words there; the alarm's own address has it as events do.
    region = _region_of_arn(told.get("AlarmArn")) or str(told.get("Region"))
    return _alarmed(_hosts(_part(told, "Trigger")), region)


def _hosts(trigger: dict[str, Any]) -> Iterator[str]:
    """The hosts that an alarm measures: one metric, or an expression of several."""
    metrics = trigger.get("Metrics")
    several = [_part(_part(each, "MetricStat"), "Metric") for each in metrics] if isinstance(metrics, list) else []
    for metric in (trigger, *several):
        dimensions = metric.get("Dimensions")
        for each in dimensions if isinstance(dimensions, list) else ():
            named = {str(key).lower(): value for key, value in each.items()} if isinstance(each, dict) else {}
            if named.get("name") == "Host" and isinstance(named.get("value"), str):
                yield named["value"]


def _bus(event: dict[str, Any]) -> Woken:
    kind, region, detail = event.get("detail-type"), event.get("region"), _part(event, "detail")
    if kind == SCHEDULED:
        return Tick()
    if kind in NOTICES or kind == STATES:
        instance = detail.get("instance-id")
        if _is(_INSTANCE, instance) and _is(_REGION, region):
            return MachineWake("ec2", str(instance), str(region), warned=kind in NOTICES)
        return Nothing(f"{kind}: names no machine")
    if kind == TRAINING:
        name = detail.get("TrainingJobName")
        if _is(_TRAINING_NAME, name) and _is(_REGION, region):
            return TrainingWake(str(name), str(region))
        return Nothing(f"{kind}: names no training job")
    if kind == ALARM:
        return _alarmed(_bus_hosts(_part(detail, "configuration")), region)
    return Nothing(f"{_words(kind)} is no event that is known here")


def _alarmed(hosts: Iterable[str], region: object) -> Woken:
    for host in hosts:
        # A host of a training job is measured as `<job>/algo-1`.
        name, slash, _ = host.partition("/")
        if slash and _is(_TRAINING_NAME, name) and _is(_REGION, region):
            return TrainingWake(name, str(region))
    return Nothing("an alarm that is about no training job")


def _bus_hosts(configuration: dict[str, Any]) -> Iterator[str]:
    """The hosts that an alarm measures, as EventBridge tells them."""
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


def _words(value: object) -> str:
    """A glimpse of it for the log, which must not be what a stranger fills."""
    try:
        return repr(value)[:_MOST_WORDS]
    except (RecursionError, ValueError):
        return type(value).__name__
