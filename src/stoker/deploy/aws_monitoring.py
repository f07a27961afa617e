"""Monitoring of the governor on AWS, as parts of its CloudFormation template. Pure.

Events that could not be delivered, or on which the function failed until the last retry, go to a queue. Alarms report
errors, throttles, events in the queue, and a function that is not called any more: a deleted rule causes no error. They
go to a topic of their own, and to the governor's notification topics: a dead governor cannot report its own death.
"""

from __future__ import annotations

from typing import Any

from stoker.providers.ec2.iam import policy_of

# The most calls at once. A burst of events waits, so that the account's other functions keep their share.
CONCURRENCY = 5
# AWS refuses to leave fewer than this to all other functions of the account:
# https://docs.aws.amazon.com/lambda/latest/dg/configuration-concurrency.html
UNRESERVED = 100
# The permanent tick, and the number of missed ticks that raises an alarm.
NET = "rate(15 minutes)"
_NET_S = 900
_MISSED = 3
_ERRORS_S = 300
_KEPT_S = 14 * 24 * 3600
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
_MOST_ACTIONS = 5


def queue_name(name: str) -> str:
    return f"{name}-undelivered"


def topic_name(name: str) -> str:
    return f"{name}-watch"


def alarm_names(name: str) -> tuple[str, ...]:
    """The alarms about the governor of this name."""
    return tuple(f"{name}-{kind}" for kind in ("errors", "throttles", "undelivered", "silent"))


def resources(name: str, store: str, topics: tuple[str, ...] = ()) -> dict[str, Any]:
    """The queue, the topic and the alarms. `topics` are ARNs of further topics in the same region to notify."""
    return {
        "Undelivered": {
            "Type": "AWS::SQS::Queue",
            "DeletionPolicy": "Delete",
            "UpdateReplacePolicy": "Delete",
            "Properties": {
                "QueueName": queue_name(name),
                "MessageRetentionPeriod": _KEPT_S,
                "SqsManagedSseEnabled": True,
            },
        },
        "UndeliveredFrom": {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": "Undelivered"}],
                "PolicyDocument": policy_of([_sent_by("events"), _sent_by("sns")]),
            },
        },
        "Watch": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": topic_name(name)}},
        "WatchFrom": {
            "Type": "AWS::SNS::TopicPolicy",
            "Properties": {"Topics": [{"Ref": "Watch"}], "PolicyDocument": policy_of([may_publish("Watch")])},
        },
        **_alarms(name, store, topics),
    }


def dead_letters() -> dict[str, Any]:
    """The ARN of the queue for undelivered events."""
    return {"Fn::GetAtt": ["Undelivered", "Arn"]}


def may_keep() -> dict[str, Any]:
    """The statement that lets the function's role send failed events to the queue."""
    return {
        "Sid": "KeepUndelivered",
        "Effect": "Allow",
        "Action": ["sqs:SendMessage"],
        "Resource": {"Fn::GetAtt": ["Undelivered", "Arn"]},
    }


def _alarms(name: str, store: str, topics: tuple[str, ...]) -> dict[str, Any]:
    function = [{"Name": "FunctionName", "Value": {"Ref": "Function"}}]
    queue = [{"Name": "QueueName", "Value": {"Fn::GetAtt": ["Undelivered", "QueueName"]}}]
    errors, throttles, undelivered, silent = alarm_names(name)
    actions = [{"Ref": "Watch"}, *topics][:_MOST_ACTIONS]
    return {
        "ErrorsAlarm": _alarm(
            errors,
            f"The governor of {store} fails: /aws/lambda/{name} tells why",
            actions,
            # One failed call is repeated. Only failures in two periods in a row raise the alarm.
            {"Namespace": "AWS/Lambda", "MetricName": "Errors", "Dimensions": function, "Statistic": "Sum"},
            {"Period": _ERRORS_S, "EvaluationPeriods": 2, "Threshold": 1},
        ),
        "ThrottlesAlarm": _alarm(
            throttles,
            f"The governor of {store} is called more often than it may run: events wait",
            actions,
            {"Namespace": "AWS/Lambda", "MetricName": "Throttles", "Dimensions": function, "Statistic": "Sum"},
            {"Period": _ERRORS_S, "EvaluationPeriods": 2, "Threshold": 1},
        ),
        "UndeliveredAlarm": _alarm(
            undelivered,
            f"Events for the governor of {store} were not delivered; its tick looks at every job all the same",
            actions,
            {
                "Namespace": "AWS/SQS",
                "MetricName": "ApproximateNumberOfMessagesVisible",
                "Dimensions": queue,
                "Statistic": "Maximum",
            },
            {"Period": _ERRORS_S, "EvaluationPeriods": 1, "Threshold": 1},
        ),
        "SilentAlarm": _alarm(
            silent,
            f"Nothing has called the governor of {store} for {_MISSED * _NET_S // 60} minutes: `stoker deploy aws` "
            "puts its clock back",
            actions,
            {"Namespace": "AWS/Lambda", "MetricName": "Invocations", "Dimensions": function, "Statistic": "Sum"},
            {"Period": _NET_S, "EvaluationPeriods": _MISSED, "Threshold": 1},
            below=True,
        ),
    }


def _alarm(
    name: str,
    about: str,
    actions: list[Any],
    metric: dict[str, Any],
    limits: dict[str, int],
    *,
    below: bool = False,
) -> dict[str, Any]:
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": name,
            "AlarmDescription": about[:1024],
            **metric,
            **limits,
            "ComparisonOperator": "LessThanThreshold" if below else "GreaterThanOrEqualToThreshold",
            # A function that is not called has no data points at all.
            "TreatMissingData": "breaching" if below else "notBreaching",
            "AlarmActions": actions,
            "OKActions": actions,
        },
    }


def _sent_by(service: str) -> dict[str, Any]:
    return {
        "Effect": "Allow",
        "Principal": {"Service": f"{service}.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": {"Fn::GetAtt": ["Undelivered", "Arn"]},
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }


def may_publish(topic: str) -> dict[str, Any]:
    """The statement that lets CloudWatch's alarms of this account publish to a topic of the template."""
    return {
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": {"Ref": topic},
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }
