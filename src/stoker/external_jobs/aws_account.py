"""The calls to AWS for external training jobs: SageMaker, CloudWatch and its logs, in one region.

Every method raises `ProviderError` where AWS refuses or does not answer: nothing may be concluded then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from stoker.external_jobs import clone_request
from stoker.external_jobs.gpu_alarms import MINUTE_S, Alarm, Figures, HostMetrics, JobFigures, WantedAlarm
from stoker.external_jobs.training_job import ExternalJob
from stoker.model import codec
from stoker.model.errors import CodecError, InvalidRequest, NotFound
from stoker.providers.ec2.client import Clients
from stoker.providers.sagemaker import catalog, prices
from stoker.providers.sagemaker.errors import NameTaken, calling
from stoker.providers.sagemaker.links import LOG_GROUP

# https://docs.aws.amazon.com/sagemaker/latest/dg/monitoring-cloudwatch.html
NAMESPACE = "/aws/sagemaker/TrainingJobs"
_GPU, _CPU = "GPUUtilization", "CPUUtilization"
# The last lines of this many hosts are enough to diagnose a failure.
_MAX_STREAMS = 16
_TAIL_LINES = 100
# A container may log before SageMaker reports that it trains.
_EARLY_S = 60.0
# A host that trains again after an interruption has a new stream, whose name ends with its start time.
_STREAM = re.compile(r"(?P<host>.+/algo-[0-9]+)-(?P<began>[0-9]+)")
# The limits of one call.
_MAX_QUERIES = 400
_MAX_NAMES = 100
_PAGE = 100


@dataclass(frozen=True)
class TrainingJobDescription:
    """A training job as SageMaker describes it, with its tags."""

    description: dict[str, Any]
    tags: tuple[dict[str, str], ...]
    # The fields that boto3 has dropped, or that a clone would not have for another reason.
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingJobSummary:
    """An item of a list of training jobs."""

    name: str
    status: str
    secondary: str
    modified_at: datetime | None


class SageMakerAccount:
    """One region of the AWS account of the governor's credentials."""

    def __init__(self, region: str, clients: Clients | None = None) -> None:
        self.region = region
        self._clients = clients or Clients()

    # ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def describe(self, name: str) -> TrainingJobDescription | None:
        """The job with its tags; None where it does not exist."""
        client, answers = self._sagemaker(), _RawAnswers()
        try:
            with answers.kept(client):
                found = calling(
                    "sagemaker:DescribeTrainingJob", lambda: client.describe_training_job(TrainingJobName=name)
                )
            arn = found["TrainingJobArn"]
            tags = self._pages("sagemaker", "list_tags", "Tags", ResourceArn=arn)
        except NotFound:
            return None
        answer = answers.last()
        lost = clone_request.lost_fields(answer, found) if answer is not None else (clone_request.EVERYTHING,)
        return TrainingJobDescription(found, tuple(tags), lost)

    def in_progress(self) -> list[TrainingJobSummary]:
        return self._list(StatusEquals="InProgress")

    def changed_since(self, moment: datetime) -> list[TrainingJobSummary]:
        return self._list(LastModifiedTimeAfter=moment)

    def stop(self, name: str) -> bool:
        """Ask SageMaker to stop the job. False: the job is over or gone already. Safe to repeat."""
        client = self._sagemaker()
        try:
            calling("sagemaker:StopTrainingJob", lambda: client.stop_training_job(TrainingJobName=name))
        except (NotFound, InvalidRequest):
            return False
        return True

    def create(self, request: dict[str, Any]) -> bool:
        """Create a training job. False: a job of that name exists, perhaps from an earlier try. Raises InvalidRequest
        for a request that SageMaker will never accept."""
        client = self._sagemaker()
        try:
            calling("sagemaker:CreateTrainingJob", lambda: client.create_training_job(**request))
        except NameTaken:
            return False
        except NotFound as error:
            # The request names something that does not exist: a role, an experiment.
            raise InvalidRequest(str(error)) from error
        return True

    def _list(self, **wanted: Any) -> list[TrainingJobSummary]:
        items = self._pages(
            "sagemaker", "list_training_jobs", "TrainingJobSummaries", MaxResults=_PAGE, SortBy="CreationTime", **wanted
        )
        return [
            TrainingJobSummary(
                str(each["TrainingJobName"]),
                str(each.get("TrainingJobStatus", "")),
                str(each.get("SecondaryStatus", "")),
                each.get("LastModifiedTime"),
            )
            for each in items
        ]

    # ── CloudWatch's alarms ───────────────────────────────────────────────────────────────────────────────────────────

    def alarms(self, prefix: str) -> list[Alarm]:
        """The alarms with this name prefix that watch a host of a training job."""
        items = self._pages(
            "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNamePrefix=prefix, AlarmTypes=["MetricAlarm"]
        )
        found = []
        for each in items:
            hosts = [part.get("Value", "") for part in each.get("Dimensions", ()) if part.get("Name") == "Host"]
            if each.get("Namespace") == NAMESPACE and len(hosts) == 1:
                topics = tuple(str(topic) for topic in each.get("AlarmActions", ()))
                found.append(Alarm(str(each["AlarmName"]), str(hosts[0]), each.get("StateValue") == "ALARM", topics))
        return found

    def usable_topic(self, topic: str | None) -> str:
        """The topic, if alarms of this region can use it; else empty. CloudWatch accepts only topics of its own region;
        EventBridge forwards the other alarms."""
        return topic if topic and (topic.split(":") + [""] * 4)[3] == self.region else ""

    def make_alarm(self, wanted: WantedAlarm) -> None:
        """Create or replace an alarm. Missing figures do not make it ring: a host that cannot be read is not idle."""
        client = self._clients.get("cloudwatch", self.region)
        comparison = "LessThanOrEqualToThreshold" if wanted.inclusive else "LessThanThreshold"
        calling(
            "cloudwatch:PutMetricAlarm",
            lambda: client.put_metric_alarm(
                AlarmName=wanted.name,
                AlarmDescription=f"Stoker: policy {wanted.rule} for {wanted.host}",
                AlarmActions=[wanted.topic] if wanted.topic else [],
                Namespace=NAMESPACE,
                MetricName=_GPU,
                Dimensions=[{"Name": "Host", "Value": wanted.host}],
                Statistic="Average",
                Period=wanted.period_s,
                EvaluationPeriods=wanted.periods,
                DatapointsToAlarm=wanted.periods,
                Threshold=wanted.threshold,
                ComparisonOperator=comparison,
                TreatMissingData="notBreaching",
            ),
        )

    def remove_alarms(self, names: Sequence[str]) -> None:
        """Delete alarms. Missing ones are ignored."""
        client = self._clients.get("cloudwatch", self.region)
        for start in range(0, len(names), _MAX_NAMES):
            part = list(names[start : start + _MAX_NAMES])
            try:
                _delete_alarms(client, part)
            except NotFound:
                # A missing alarm may fail the whole call: then delete them one by one.
                for name in part:
                    with suppress(NotFound):
                        _delete_alarms(client, [name])

    # ── Metrics and logs ──────────────────────────────────────────────────────────────────────────────────

    def readings(self, name: str, hosts: Sequence[str], since: datetime, until: datetime) -> JobFigures:
        """CloudWatch's figures of these hosts, one for each minute, and the time of the job's last log line."""
        figures = self._figures([(host, metric) for host in hosts for metric in (_GPU, _CPU)], since, until)
        found = tuple(HostMetrics(host, figures[host, _GPU], figures[host, _CPU]) for host in hosts)
        return JobFigures(found, self._last_line_at(name))

    def tail(self, name: str, since: datetime | None = None) -> tuple[str, ...]:
        """The last log lines of the job's hosts, in the order of their times. Lines before `since` are left out: they
        belong to a training that an interruption ended. Empty where nothing was logged."""
        lines: list[tuple[int, str]] = []
        for stream in self._streams(name)[:_MAX_STREAMS]:
            lines += self._events(stream, _TAIL_LINES)
        least = -math.inf if since is None else (since.timestamp() - _EARLY_S) * 1000
        return tuple(text for at, text in sorted(lines, key=lambda line: line[0]) if at >= least)

    def _figures(
        self, wanted: list[tuple[str, str]], since: datetime, until: datetime
    ) -> dict[tuple[str, str], Figures]:
        found: dict[tuple[str, str], Figures] = {}
        for start in range(0, len(wanted), _MAX_QUERIES):
            part = wanted[start : start + _MAX_QUERIES]
            queries = [
                {
                    "Id": f"m{number}",
                    "MetricStat": {
                        "Metric": {
                            "Namespace": NAMESPACE,
                            "MetricName": metric,
                            "Dimensions": [{"Name": "Host", "Value": host}],
                        },
                        "Period": int(MINUTE_S),
                        "Stat": "Average",
                    },
                }
                for number, (host, metric) in enumerate(part)
            ]
            values: dict[str, list[tuple[datetime, float]]] = {}
            for each in self._pages(
                "cloudwatch",
                "get_metric_data",
                "MetricDataResults",
                MetricDataQueries=queries,
                StartTime=since,
                EndTime=until + timedelta(seconds=MINUTE_S),
            ):
                values.setdefault(each["Id"], []).extend(zip(each["Timestamps"], each["Values"], strict=False))
            for number, key in enumerate(part):
                found[key] = tuple(sorted(values.get(f"m{number}", ())))
        return found

    def _last_line_at(self, name: str) -> datetime | None:
        # The stream's own time of its last event may be an hour old, so the event itself is read.
        newest = [at for stream in self._streams(name) for at, _ in self._events(stream, 1)]
        return datetime.fromtimestamp(max(newest) / 1000, timezone.utc) if newest else None

    def _streams(self, name: str) -> list[str]:
        """The newest log stream of each host."""
        try:
            items = self._pages(
                "logs",
                "describe_log_streams",
                "logStreams",
                logGroupName=LOG_GROUP,
                logStreamNamePrefix=f"{name}/algo-",
            )
        except NotFound:
            return []
        newest: dict[str, tuple[int, str]] = {}
        for each in items:
            stream = str(each["logStreamName"])
            found = _STREAM.fullmatch(stream)
            host, began = (found["host"], int(found["began"])) if found else (stream, 0)
            newest[host] = max(newest.get(host, (began, stream)), (began, stream))
        return [stream for _, stream in newest.values()]

    def _events(self, stream: str, limit: int) -> list[tuple[int, str]]:
        client = self._clients.get("logs", self.region)
        try:
            items = calling(
                "logs:GetLogEvents",
                lambda: client.get_log_events(
                    logGroupName=LOG_GROUP, logStreamName=stream, limit=limit, startFromHead=False
                ),
            )
        except NotFound:
            return []
        return [(int(each["timestamp"]), str(each["message"])) for each in items["events"]]

    # ── Calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sagemaker(self) -> Any:
        return self._clients.get("sagemaker", self.region)

    def _pages(self, service: str, operation: str, key: str, **wanted: Any) -> list[Any]:
        """All items of all pages: an incomplete list is an error."""
        client = self._clients.get(service, self.region)

        def fetch() -> list[Any]:
            pages: Iterable[Any] = client.get_paginator(operation).paginate(**wanted)
            return [each for page in pages for each in page.get(key, ())]

        return calling(f"{service}:{operation}", fetch)


class _RawAnswers:
    """The answers to DescribeTrainingJob as they came, before boto3 drops what its model does not know."""

    _EVENT = "after-call.sagemaker.DescribeTrainingJob"

    def __init__(self) -> None:
        self._bodies: list[bytes] = []

    @contextmanager
    def kept(self, client: Any) -> Iterator[None]:
        """Keep the answers to the calls of this block."""
        events = client.meta.events
        events.register(self._EVENT, self._keep)
        try:
            yield
        finally:
            events.unregister(self._EVENT, self._keep)

    def _keep(self, http_response: Any, **_: Any) -> None:
        self._bodies.append(bytes(http_response.content))

    def last(self) -> dict[str, Any] | None:
        """The last answer; None where it is no object in JSON, so that it is not known what boto3 has dropped."""
        try:
            found = codec.parse(self._bodies[-1], nonfinite=True)
        except (IndexError, CodecError):
            return None
        return found if isinstance(found, dict) else None


def _delete_alarms(client: Any, names: list[str]) -> None:
    calling("cloudwatch:DeleteAlarms", lambda: client.delete_alarms(AlarmNames=names))


def gpus_of(job: ExternalJob) -> int | None:
    """The GPUs of each host whose load can be read; None for others. With several machine types it is unknown which
    host has which."""
    machine = catalog.table().get(job.machines[0]) if len(job.machines) == 1 else None
    return machine.gpus if machine is not None and machine.maker == "nvidia" else None


def accelerators_of(job: ExternalJob) -> int:
    """The accelerators of all hosts, of any maker. Where the groups are unknown, each host may be the largest."""
    if job.groups:
        return sum(count * catalog.facts(machine).gpus for machine, count in job.groups)
    return job.nodes * max((catalog.facts(machine).gpus for machine in job.machines), default=0)


def price_of(job: ExternalJob) -> float | None:
    """Dollars an hour of one host, on demand; None where the price is unknown, or hosts differ."""
    found = prices.on_demand(job.region, job.machines[0]) if len(job.machines) == 1 else None
    return found.amount if found is not None else None
