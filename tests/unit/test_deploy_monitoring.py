"""The governor on AWS is watched: nothing that calls it is lost in silence, and its own trouble reaches people."""

from __future__ import annotations

from typing import Any

import pytest
from deployed_account import HOME, Account, Stoker, account, bucket, stoker

from stoker.deploy import aws, aws_monitoring
from stoker.deploy.aws_template import template
from stoker.deploy.package import Package
from stoker.store.base import open_store

__all__ = ["account", "bucket", "stoker"]

QUEUE = {"Fn::GetAtt": ["Undelivered", "Arn"]}
TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"
DEPLOY = ("deploy", "aws", "--region", HOME, "-y")


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("AWS_REGION", HOME)
    elsewhere = TOPIC.replace(HOME, "eu-west-1")
    notify = (f"sns:{TOPIC}", f"sns:{elsewhere}", "aws-sm:stoker/slack", f"sns:{TOPIC}")
    plan = aws.plan_deployment(open_store("s3://bucket/team"), Package(b"zip", "x86_64"), HOME, notify=notify).plan
    found: dict[str, Any] = template(plan)["Resources"]
    return {name: {"Type": each["Type"], **each["Properties"]} for name, each in found.items()}


def of(resources: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in resources.values() if each["Type"] == f"AWS::{kind}"]


def test_what_cannot_be_delivered_is_kept(resources: dict[str, Any]) -> None:
    for rule in of(resources, "Events::Rule"):
        assert [target["DeadLetterConfig"] for target in rule["Targets"]] == [{"Arn": QUEUE}], rule["Name"]
    (retries,) = of(resources, "Lambda::EventInvokeConfig")
    assert retries["DestinationConfig"] == {"OnFailure": {"Destination": QUEUE}}
    (subscription,) = of(resources, "SNS::Subscription")
    assert subscription["RedrivePolicy"] == {"deadLetterTargetArn": QUEUE}
    senders = [each["Principal"]["Service"] for each in resources["UndeliveredFrom"]["PolicyDocument"]["Statement"]]
    assert senders == ["events.amazonaws.com", "sns.amazonaws.com"]
    own = resources["Role"]["Policies"][1]["PolicyDocument"]["Statement"]
    assert {"Action": ["sqs:SendMessage"], "Resource": QUEUE}.items() <= next(
        each for each in own if each["Sid"] == "KeepUndelivered"
    ).items()


def test_errors_throttles_lost_events_and_silence_are_told(resources: dict[str, Any]) -> None:
    alarms = {each["MetricName"]: each for each in of(resources, "CloudWatch::Alarm")}
    assert set(alarms) == {"Errors", "Throttles", "ApproximateNumberOfMessagesVisible", "Invocations"}
    for each in alarms.values():
        assert each["AlarmActions"] == each["OKActions"] == [{"Ref": "Watch"}, TOPIC], "those that it can reach"
    silent = alarms["Invocations"]
    assert (silent["ComparisonOperator"], silent["TreatMissingData"]) == ("LessThanThreshold", "breaching")
    assert silent["Period"] * silent["EvaluationPeriods"] > 2 * 15 * 60, "a tick may be late"


def test_a_slow_tick_never_rests(resources: dict[str, Any]) -> None:
    net = resources["Net"]
    assert (net["State"], net["ScheduleExpression"]) == ("ENABLED", "rate(15 minutes)")
    assert resources["NetCalls"]["SourceArn"] == {"Fn::GetAtt": ["Net", "Arn"]}
    own = resources["Role"]["Policies"][1]["PolicyDocument"]["Statement"]
    (switched,) = (each["Resource"] for each in own if each["Sid"] == "SwitchClock")
    assert not switched["Fn::Sub"].endswith(net["Name"]), "nor can the function switch it off"


@pytest.mark.parametrize(("unreserved", "reserved"), [(1000, aws_monitoring.CONCURRENCY), (10, None), (104, None)])
def test_concurrency_is_reserved_where_the_account_has_enough(
    unreserved: int, reserved: int | None, account: Account, stoker: Stoker
) -> None:
    account.unreserved = unreserved
    code, _, said = stoker(*DEPLOY)
    assert code == 0, said
    function = account.stacks[HOME]["Template"]["Resources"]["Function"]["Properties"]
    assert function.get("ReservedConcurrentExecutions") == reserved
    assert ("no concurrency is reserved" in said) is (reserved is None)
    assert "4 alarms watch it" in said
