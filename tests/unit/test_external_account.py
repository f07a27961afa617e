"""What CloudWatch is asked for about training jobs of others."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from external_world import REGION, TOPIC

from stoker.external_jobs.aws_account import NAMESPACE, SageMakerAccount
from stoker.external_jobs.gpu_alarms import Alarm, WantedAlarm


class CloudWatch:
    """Keeps what is put; removes all that it is asked to, or nothing where one of these is not there."""

    def __init__(self, *names: str) -> None:
        self.put: list[dict[str, Any]] = []
        self.names = set(names)
        self.asked: list[list[str]] = []
        self.told: list[dict[str, Any]] = []

    def get(self, service: str, region: str) -> CloudWatch:
        assert (service, region) == ("cloudwatch", REGION)
        return self

    def get_paginator(self, operation: str) -> CloudWatch:
        assert operation == "describe_alarms"
        return self

    def paginate(self, **_asked: Any) -> list[dict[str, Any]]:
        return [{"MetricAlarms": self.told[:1]}, {"MetricAlarms": self.told[1:]}]

    def put_metric_alarm(self, **asked: Any) -> None:
        self.put.append(asked)

    def delete_alarms(self, AlarmNames: list[str]) -> None:
        self.asked.append(AlarmNames)
        if not set(AlarmNames) <= self.names:
            raise ClientError({"Error": {"Code": "ResourceNotFound", "Message": "no such alarm"}}, "DeleteAlarms")
        self.names -= set(AlarmNames)


def account(clients: CloudWatch) -> SageMakerAccount:
    return SageMakerAccount(REGION, clients)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inclusive", "comparison"), [(True, "LessThanOrEqualToThreshold"), (False, "LessThanThreshold")]
)
def test_an_alarm_as_it_is_asked_for(inclusive: bool, comparison: str) -> None:
    clients = CloudWatch()
    account(clients).make_alarm(WantedAlarm("a", "bert/algo-1", "idle", 4.0, 300, 3, inclusive, TOPIC))
    assert clients.put == [
        {
            "AlarmName": "a",
            "AlarmDescription": "Stoker: policy idle for bert/algo-1",
            "AlarmActions": [TOPIC],
            "Namespace": "/aws/sagemaker/TrainingJobs",
            "MetricName": "GPUUtilization",
            "Dimensions": [{"Name": "Host", "Value": "bert/algo-1"}],
            # One busy minute of a window makes no busy window, and a minute that is missing is not idle.
            "Statistic": "Average",
            "TreatMissingData": "notBreaching",
            "Period": 300,
            "EvaluationPeriods": 3,
            "DatapointsToAlarm": 3,
            "Threshold": 4.0,
            "ComparisonOperator": comparison,
        }
    ]


def test_alarms_as_they_are_told() -> None:
    host = [{"Name": "Host", "Value": "bert/algo-1"}]
    clients = CloudWatch()
    clients.told = [
        {"AlarmName": "a", "Namespace": NAMESPACE, "Dimensions": host, "StateValue": "ALARM", "AlarmActions": [TOPIC]},
        {"AlarmName": "b", "Namespace": NAMESPACE, "Dimensions": host, "StateValue": "OK"},
        {"AlarmName": "c", "Namespace": "AWS/EC2", "Dimensions": host},
        {"AlarmName": "d", "Namespace": NAMESPACE},
    ]
    assert account(clients).alarms("stoker-") == [
        Alarm("a", "bert/algo-1", True, (TOPIC,)),
        Alarm("b", "bert/algo-1"),
    ]


def test_alarms_that_are_not_there_keep_no_others() -> None:
    clients = CloudWatch("a", "c")
    account(clients).remove_alarms(["a", "b", "c"])
    assert clients.names == set() and clients.asked == [["a", "b", "c"], ["a"], ["b"], ["c"]]


def test_alarms_are_removed_by_the_hundred() -> None:
    names = [f"alarm-{number}" for number in range(250)]
    clients = CloudWatch(*names)
    account(clients).remove_alarms(names)
    assert clients.names == set() and [len(part) for part in clients.asked] == [100, 100, 50]
