"""What is asked of AWS about training jobs of others, and what is made of its answers, without any AWS."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stoker.external_jobs import aws_account
from stoker.external_jobs.aws_account import NAMESPACE, SageMakerAccount, TrainingJobDescription, TrainingJobSummary
from stoker.external_jobs.gpu_alarms import Alarm, WantedAlarm
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.errors import InvalidRequest, ProviderError
from stoker.providers.price_book import Price

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)
REGION = "us-east-1"


class Aws:
    """Every service at once. `answers` are by operation: a value, an error, or a list of pages."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.asked: set[tuple[str, str]] = set()
        self.meta = SimpleNamespace(events=self)
        self._keep: Any = None

    def get(self, service: str, region: str) -> Aws:
        self.asked.add((service, region))
        return self

    def register(self, _event: str, handler: Any) -> None:
        self._keep = handler

    def unregister(self, _event: str, _handler: Any) -> None:
        self._keep = None

    def __getattr__(self, operation: str) -> Any:
        def call(**wanted: Any) -> Any:
            self.calls.append((operation, wanted))
            answer = self.answers.get(operation, {})
            answer = answer(wanted) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            if operation == "describe_training_job":
                self._keep(http_response=SimpleNamespace(content=json.dumps(answer).encode()))
            return answer

        return call

    def get_paginator(self, operation: str) -> Any:
        class Pages:
            @staticmethod
            def paginate(**wanted: Any) -> Any:
                return getattr(self, operation)(**wanted) or []

        return Pages

    def called(self, operation: str) -> list[dict[str, Any]]:
        return [wanted for name, wanted in self.calls if name == operation]


def refused(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "X")


MISSING = refused("ResourceNotFound", "Requested resource not found.")
GONE = refused("ResourceNotFoundException", "The specified log group does not exist.")


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def here(aws: Aws) -> SageMakerAccount:
    return SageMakerAccount(REGION, aws)  # type: ignore[arg-type]


# ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_described_with_all_pages_of_its_tags(aws: Aws, here: SageMakerAccount) -> None:
    told = {"TrainingJobName": "bert", "TrainingJobArn": "arn:1"}
    aws.answers = {
        "describe_training_job": told,
        "list_tags": [{"Tags": [{"Key": "a", "Value": "1"}]}, {"Tags": [{"Key": "b", "Value": "2"}]}, {}],
    }
    found = here.describe("bert")
    assert found == TrainingJobDescription(told, ({"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}))
    assert aws.called("list_tags") == [{"ResourceArn": "arn:1"}] and aws.asked == {("sagemaker", REGION)}


@pytest.mark.parametrize("operation", ["describe_training_job", "list_tags"])
def test_a_job_that_there_is_not_is_none(aws: Aws, here: SageMakerAccount, operation: str) -> None:
    aws.answers = {"describe_training_job": {"TrainingJobArn": "arn:1"}, operation: MISSING}
    assert here.describe("bert") is None


def test_what_is_listed(aws: Aws, here: SageMakerAccount) -> None:
    row = {
        "TrainingJobName": "bert",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "LastModifiedTime": NOW,
    }
    aws.answers["list_training_jobs"] = [{"TrainingJobSummaries": [row, {"TrainingJobName": "bare"}]}]
    assert here.in_progress() == [
        TrainingJobSummary("bert", "InProgress", "Training", NOW),
        TrainingJobSummary("bare", "", "", None),
    ]
    here.changed_since(NOW)
    first, second = aws.called("list_training_jobs")
    assert first["StatusEquals"] == "InProgress" and second["LastModifiedTimeAfter"] == NOW
    assert all(each["SortBy"] == "CreationTime" and 1 <= each["MaxResults"] <= 100 for each in (first, second))


def test_a_stop_is_taken_or_came_too_late(aws: Aws, here: SageMakerAccount) -> None:
    assert here.stop("bert") is True and aws.called("stop_training_job") == [{"TrainingJobName": "bert"}]
    for late in (MISSING, refused("ValidationException", "it is over")):
        aws.answers["stop_training_job"] = late
        assert here.stop("bert") is False
    aws.answers["stop_training_job"] = refused("ThrottlingException")
    with pytest.raises(ProviderError):
        here.stop("bert")


def test_a_job_is_created_or_there_is_one_of_its_name(aws: Aws, here: SageMakerAccount) -> None:
    assert here.create({"TrainingJobName": "bert-r1"}) is True
    assert aws.called("create_training_job") == [{"TrainingJobName": "bert-r1"}]
    aws.answers["create_training_job"] = refused("ResourceInUse", "there is one of that name")
    assert here.create({"TrainingJobName": "bert-r1"}) is False
    aws.answers["create_training_job"] = refused("ResourceNotFound", "the role is not there")
    with pytest.raises(InvalidRequest, match="the role is not there"):
        here.create({"TrainingJobName": "bert-r1"})


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_alarms_are_those_that_watch_one_host_of_a_training_job(aws: Aws, here: SageMakerAccount) -> None:
    def row(name: str, *hosts: str, space: str = NAMESPACE, state: str = "OK") -> dict[str, Any]:
        dimensions = [{"Name": "Host", "Value": host} for host in hosts] + [{"Name": "Other", "Value": "x"}]
        return {
            "AlarmName": name,
            "Namespace": space,
            "Dimensions": dimensions,
            "StateValue": state,
            "AlarmActions": ["arn:topic"],
        }

    rows = [
        row("a", "bert/algo-1"),
        row("b", "h", state="ALARM"),
        row("c", "h", space="AWS/EC2"),
        row("d"),
        row("e", "1", "2"),
    ]
    aws.answers["describe_alarms"] = [{"MetricAlarms": rows}]
    assert here.alarms("stoker-") == [
        Alarm("a", "bert/algo-1", False, ("arn:topic",)),
        Alarm("b", "h", True, ("arn:topic",)),
    ]
    assert aws.called("describe_alarms") == [{"AlarmNamePrefix": "stoker-", "AlarmTypes": ["MetricAlarm"]}]


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("arn:aws:sns:us-east-1:1234:stoker", "arn:aws:sns:us-east-1:1234:stoker"),
        ("arn:aws:sns:eu-west-1:1234:stoker", ""),
        (None, ""),
        ("", ""),
        ("odd", ""),
    ],
)
def test_alarms_tell_only_a_topic_of_their_region(here: SageMakerAccount, topic: str | None, told: str) -> None:
    assert here.usable_topic(topic) == told


WANTED = WantedAlarm(
    name="stoker-1",
    rule="waste",
    host="bert/algo-1",
    threshold=320.0,
    inclusive=False,
    period_s=60,
    periods=5,
    topic="",
)


@pytest.mark.parametrize(
    ("inclusive", "comparison"), [(True, "LessThanOrEqualToThreshold"), (False, "LessThanThreshold")]
)
def test_an_alarm_rings_by_figures_alone(aws: Aws, here: SageMakerAccount, inclusive: bool, comparison: str) -> None:
    here.make_alarm(replace(WANTED, inclusive=inclusive, topic="arn:topic"))
    here.make_alarm(WANTED)
    first, second = aws.called("put_metric_alarm")
    assert first["ComparisonOperator"] == comparison and first["TreatMissingData"] == "notBreaching"
    assert (first["Threshold"], first["Period"]) == (320.0, 60)
    assert first["EvaluationPeriods"] == first["DatapointsToAlarm"] == 5
    assert first["AlarmActions"] == ["arn:topic"] and second["AlarmActions"] == []
    assert first["Dimensions"] == [{"Name": "Host", "Value": "bert/algo-1"}]
    assert (first["Namespace"], first["MetricName"]) == ("/aws/sagemaker/TrainingJobs", "GPUUtilization")
    assert (first["AlarmName"], first["Statistic"]) == ("stoker-1", "Average")


def test_alarms_are_removed_a_hundred_at_a_time_and_one_by_one_where_one_is_missing(
    aws: Aws, here: SageMakerAccount
) -> None:
    names = [f"a{number}" for number in range(150)]
    here.remove_alarms(names)
    assert [len(each["AlarmNames"]) for each in aws.called("delete_alarms")] == [100, 50]
    aws.calls.clear()
    aws.answers["delete_alarms"] = lambda wanted: MISSING if "a1" in wanted["AlarmNames"] else {}
    here.remove_alarms(["a0", "a1", "a2"])
    assert [each["AlarmNames"] for each in aws.called("delete_alarms")] == [["a0", "a1", "a2"], ["a0"], ["a1"], ["a2"]]


# ── Figures and lines ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_figures_are_asked_for_by_the_minute_and_put_in_order(
    aws: Aws, here: SageMakerAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws_account, "_MAX_QUERIES", 3)
    earlier = NOW - timedelta(minutes=1)

    def answer(wanted: dict[str, Any]) -> Any:
        first = wanted["MetricDataQueries"][0]
        metric = first["MetricStat"]["Metric"]
        value = 50.0 if metric["MetricName"] == "GPUUtilization" else 5.0
        page = {"Id": first["Id"], "Timestamps": [NOW], "Values": [value]}
        return [{"MetricDataResults": [page]}, {"MetricDataResults": [{**page, "Timestamps": [earlier]}]}]

    aws.answers["get_metric_data"] = answer
    aws.answers["describe_log_streams"] = GONE
    found = here.readings("bert", ["bert/algo-1", "bert/algo-2"], NOW - timedelta(hours=1), NOW)
    one, two = found.hosts
    assert one.gpu == ((earlier, 50.0), (NOW, 50.0)) and one.cpu == () and two.gpu == ()
    assert two.cpu == ((earlier, 5.0), (NOW, 5.0)) and found.last_line_at is None
    calls = aws.called("get_metric_data")
    assert [len(each["MetricDataQueries"]) for each in calls] == [3, 1]
    assert calls[0]["StartTime"] == NOW - timedelta(hours=1) and calls[0]["EndTime"] == NOW + timedelta(minutes=1)
    assert [query["MetricStat"] for query in calls[0]["MetricDataQueries"]][:2] == [
        {
            "Metric": {
                "Namespace": "/aws/sagemaker/TrainingJobs",
                "MetricName": metric,
                "Dimensions": [{"Name": "Host", "Value": "bert/algo-1"}],
            },
            "Period": 60,
            "Stat": "Average",
        }
        for metric in ("GPUUtilization", "CPUUtilization")
    ]


LOGS = "/aws/sagemaker/TrainingJobs"


def lines(aws: Aws, **by_stream: list[tuple[int, str]]) -> None:
    streams = [{"logStreamName": name.replace("_", "/", 1).replace("_", "-")} for name in by_stream]
    told = {each["logStreamName"]: events for each, events in zip(streams, by_stream.values(), strict=True)}
    aws.answers["describe_log_streams"] = [{"logStreams": streams}]

    def events(wanted: dict[str, Any]) -> dict[str, Any]:
        assert wanted["logGroupName"] == LOGS and 1 <= wanted["limit"] <= 10_000, "what CloudWatch takes"
        found = told[wanted["logStreamName"]][-wanted["limit"] :]
        return {"events": [{"timestamp": at, "message": text} for at, text in found]}

    aws.answers["get_log_events"] = events


def test_the_last_lines_of_all_hosts_are_in_order_and_of_this_training(aws: Aws, here: SageMakerAccount) -> None:
    lines(
        aws,
        bert_algo_1_100=[(1_000_000, "old")],
        bert_algo_1_200=[(2_000_000, "b"), (2_002_000, "d")],
        bert_algo_2_200=[(2_001_000, "c"), (1_900_000, "a")],
    )
    assert here.tail("bert") == ("a", "b", "c", "d"), "of each host the newest stream"
    since = datetime.fromtimestamp(2060, timezone.utc)
    assert here.tail("bert", since) == ("b", "c", "d"), "a minute before it trains counts"
    assert here.tail("bert", since + timedelta(seconds=0.5)) == ("c", "d")
    assert aws.called("get_log_events")[0]["startFromHead"] is False
    assert aws.called("describe_log_streams")[0] == {"logGroupName": LOGS, "logStreamNamePrefix": "bert/algo-"}


def test_many_lines_of_a_host_are_read(aws: Aws, here: SageMakerAccount) -> None:
    lines(aws, bert_algo_1_100=[(number, str(number)) for number in range(500)])
    assert len(here.tail("bert")) > 50 and here.tail("bert")[-1] == "499"


def test_when_the_last_line_was_logged(aws: Aws, here: SageMakerAccount) -> None:
    lines(aws, bert_algo_1_100=[(1_000_000, "x"), (1_500_000, "y")], bert_algo_2_100=[(1_400_000, "z")])
    assert here._last_line_at("bert") == datetime.fromtimestamp(1500, timezone.utc)
    aws.answers["get_log_events"] = GONE
    assert here._last_line_at("bert") is None and here.tail("bert") == ()


def test_lines_of_few_hosts_tell_enough(aws: Aws, here: SageMakerAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws_account, "_MAX_STREAMS", 1)
    lines(aws, bert_algo_1_100=[(1, "x")], bert_algo_2_100=[(2, "y")])
    assert here.tail("bert") == ("x",)


# ── Machines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("machines", "gpus"),
    [(("ml.g5.12xlarge",), 4), (("ml.g5.12xlarge", "ml.g5.xlarge"), None), ((), None), (("x",), None)],
)
def test_gpus_are_known_where_all_hosts_are_alike(machines: tuple[str, ...], gpus: int | None) -> None:
    job = ExternalJob("bert", REGION, "InProgress", "Training", machines=machines)
    assert aws_account.gpus_of(job) == gpus


def test_a_price_is_known_where_all_hosts_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def on_demand(region: str, machine: str) -> Price | None:
        asked.append((region, machine))
        return Price(7.5, "list", NOW.date()) if machine == "ml.g5.12xlarge" else None

    monkeypatch.setattr(aws_account.prices, "on_demand", on_demand)
    job = ExternalJob("bert", REGION, "InProgress", "Training", machines=("ml.g5.12xlarge",))
    assert aws_account.price_of(job) == 7.5
    assert aws_account.price_of(replace(job, machines=("x",))) is None
    assert aws_account.price_of(replace(job, machines=("ml.g5.12xlarge", "x"))) is None
    assert aws_account.price_of(replace(job, machines=())) is None
    assert asked == [(REGION, "ml.g5.12xlarge"), (REGION, "x")]
