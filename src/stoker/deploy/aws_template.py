"""The CloudFormation template of a governor on AWS. Pure: the same plan gives the same template.

One Lambda function; EventBridge calls it for what happens to machines and training jobs, once a minute while a job is
active, and every 15 minutes for ever, so that a lost event loses nothing; CloudWatch's alarms call it through an SNS
topic. What it may do is the governor's policy of `stoker iam`, to switch its own clock, and to keep what it failed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.deploy import aws_monitoring
from stoker.deploy.aws_function import RULE, STORE, TOPIC
from stoker.external_jobs.gpu_alarms import prefix as alarm_prefix
from stoker.governor.serverless import events

RUNTIME = "python3.13"
HANDLER = "stoker.deploy.aws_function.handler"
# A share of a processor comes with it: the whole of one at 1769 MB, so more than half of one here.
_MEMORY_MB = 1024
# A pass over a thousand jobs takes seconds; one over many more has to fit in.
TIMEOUT_S = 300
_LOGS_DAYS = 14
# What is older is of no use: ticks have come since.
_EVENT_AGE_S = 300
_RETRIES = 2
# States of a machine that end something. That it starts to boot is no news.
_ENDING = ("stopping", "stopped", "shutting-down", "terminated")
_TICK = "rate(1 minute)"
_RULES = "arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:rule"


@dataclass(frozen=True)
class Plan:
    """Everything that a template is made of."""

    name: str
    store: str
    bucket: str
    key: str
    processor: str
    # What the governor may do: statements of a policy.
    statements: tuple[Mapping[str, Any], ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    # Also training jobs of SageMaker that others started.
    training: bool = False
    # Calls at once; None: as many as the account has left.
    concurrency: int | None = aws_monitoring.CONCURRENCY
    # ARNs of topics that are told when the governor itself is in trouble.
    topics: tuple[str, ...] = ()


def patterns() -> dict[str, dict[str, Any]]:
    """What of EventBridge's calls the function, by the name of the rule."""
    return {
        "Notices": {"source": ["aws.ec2"], "detail-type": list(events.NOTICES)},
        "States": {"source": ["aws.ec2"], "detail-type": [events.STATES], "detail": {"state": list(_ENDING)}},
        "Training": {"source": ["aws.sagemaker"], "detail-type": [events.TRAINING]},
    }


def alarm_pattern(store: str) -> dict[str, Any]:
    """Alarms that the governor made about training jobs."""
    return {
        "source": ["aws.cloudwatch"],
        "detail-type": [events.ALARM],
        "detail": {"alarmName": [{"prefix": alarm_prefix(store)}]},
    }


def tick_name(name: str) -> str:
    return f"{name}-tick"


def net_name(name: str) -> str:
    """The clock that never rests."""
    return f"{name}-net"


def template(plan: Plan) -> dict[str, Any]:
    """The whole stack."""
    # Those of this region come through the topic.
    others = alarm_pattern(plan.store) | {"region": [{"anything-but": [{"Ref": "AWS::Region"}]}]}
    rules = {
        kind: {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "Name": f"{plan.name}-{kind.lower()}",
                "Description": f"Wakes the governor of {plan.store}"[:512],
                "EventPattern": pattern,
                "Targets": [_target()],
            },
        }
        for kind, pattern in {**patterns(), "Elsewhere": others}.items()
    }
    rules["Tick"] = {
        "Type": "AWS::Events::Rule",
        "Properties": {
            "Name": tick_name(plan.name),
            "Description": f"Once a minute while {plan.store} has an active job; the governor switches it"[:512],
            "ScheduleExpression": _TICK,
            # The first job switches it on.
            "State": "DISABLED",
            "Targets": [_target()],
        },
    }
    rules["Net"] = {
        "Type": "AWS::Events::Rule",
        "Properties": {
            "Name": net_name(plan.name),
            "Description": f"Looks at {plan.store} every 15 minutes, always: what was lost is found by it"[:512],
            "ScheduleExpression": aws_monitoring.NET,
            "State": "ENABLED",
            "Targets": [_target()],
        },
    }
    calls = {f"{kind}Calls": _permission("events.amazonaws.com", kind) for kind in rules}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The governor of the Stoker store {plan.store}"[:1024],
        "Resources": {
            "Logs": _logs(plan),
            "Role": _role(plan),
            "Function": _function(plan),
            "Retries": _retries(),
            **rules,
            **calls,
            **_alarms(plan),
            **aws_monitoring.resources(plan.name, plan.store, plan.topics),
        },
        "Outputs": {
            "Function": {"Value": {"Ref": "Function"}},
            "Tick": {"Value": {"Ref": "Tick"}},
            "Alarms": {"Value": {"Ref": "Alarms"}},
            "Undelivered": {"Value": {"Ref": "Undelivered"}},
            "Watch": {"Value": {"Ref": "Watch"}},
            "Role": {"Value": {"Fn::GetAtt": ["Role", "Arn"]}},
        },
    }


def _function(plan: Plan) -> dict[str, Any]:
    environ = {
        **plan.environ,
        STORE: plan.store,
        RULE: tick_name(plan.name),
        TOPIC: {"Ref": "Alarms"},
        # The only place where a function may write.
        "STOKER_HOME": "/tmp/stoker",
    }
    return {
        "Type": "AWS::Lambda::Function",
        # Its log must be there before it writes, or Lambda makes one that is kept for ever.
        "DependsOn": ["Logs"],
        "Properties": {
            "FunctionName": plan.name,
            "Description": f"The governor of {plan.store}"[:256],
            "Runtime": RUNTIME,
            "Architectures": [plan.processor],
            "Handler": HANDLER,
            "Code": {"S3Bucket": plan.bucket, "S3Key": plan.key},
            "Role": {"Fn::GetAtt": ["Role", "Arn"]},
            "MemorySize": _MEMORY_MB,
            "Timeout": TIMEOUT_S,
            "Environment": {"Variables": environ},
            **({"ReservedConcurrentExecutions": plan.concurrency} if plan.concurrency is not None else {}),
        },
    }


def _role(plan: Plan) -> dict[str, Any]:
    own = [
        {
            "Sid": "WriteLog",
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": {"Fn::GetAtt": ["Logs", "Arn"]},
        },
        {
            "Sid": "SwitchClock",
            "Effect": "Allow",
            "Action": ["events:EnableRule", "events:DisableRule"],
            # By its name: the rule itself names the function, which needs this role.
            "Resource": {"Fn::Sub": f"{_RULES}/{tick_name(plan.name)}"},
        },
        aws_monitoring.may_keep(),
    ]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "Description": f"The governor of {plan.store}"[:1000],
            "AssumeRolePolicyDocument": _document(
                [
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": "lambda.amazonaws.com"},
                        "Action": "sts:AssumeRole",
                    }
                ]
            ),
            "Policies": [
                {"PolicyName": "governor", "PolicyDocument": _document([dict(each) for each in plan.statements])},
                {"PolicyName": "itself", "PolicyDocument": _document(own)},
                *([{"PolicyName": "training", "PolicyDocument": _document(_training(plan))}] if plan.training else ()),
            ],
        },
    }


def _training(plan: Plan) -> list[dict[str, Any]]:
    """Look at training jobs of others, stop them, clone them, and have alarms about them. A clone keeps the role of the
    job that it is of, whichever that is."""
    start = "arn:${AWS::Partition}"
    jobs = {"Fn::Sub": f"{start}:sagemaker:*:${{AWS::AccountId}}:training-job/*"}
    # What is in reserved capacity is made in that, too.
    plans = [
        {"Fn::Sub": f"{start}:sagemaker:*:${{AWS::AccountId}}:{kind}/*"}
        for kind in ("training-plan", "reserved-capacity")
    ]
    alarms = {"Fn::Sub": f"{start}:cloudwatch:*:${{AWS::AccountId}}:alarm:{alarm_prefix(plan.store)}*"}
    log = {"Fn::Sub": f"{start}:logs:*:${{AWS::AccountId}}:log-group:/aws/sagemaker/TrainingJobs*"}
    return [
        {
            "Sid": "Look",
            "Effect": "Allow",
            "Action": ["sagemaker:ListTrainingJobs", "cloudwatch:DescribeAlarms", "cloudwatch:GetMetricData"],
            "Resource": "*",
        },
        {
            "Sid": "Jobs",
            "Effect": "Allow",
            "Action": [
                "sagemaker:DescribeTrainingJob",
                "sagemaker:ListTags",
                "sagemaker:StopTrainingJob",
                "sagemaker:CreateTrainingJob",
                "sagemaker:AddTags",
            ],
            "Resource": jobs,
        },
        {
            "Sid": "Plans",
            "Effect": "Allow",
            "Action": "sagemaker:CreateTrainingJob",
            "Resource": plans,
        },
        {
            "Sid": "Alarms",
            "Effect": "Allow",
            "Action": ["cloudwatch:PutMetricAlarm", "cloudwatch:DeleteAlarms", "cloudwatch:TagResource"],
            "Resource": alarms,
        },
        {
            "Sid": "Logs",
            "Effect": "Allow",
            "Action": ["logs:DescribeLogStreams", "logs:GetLogEvents"],
            "Resource": log,
        },
        {
            "Sid": "CloneRoles",
            "Effect": "Allow",
            "Action": "iam:PassRole",
            "Resource": {"Fn::Sub": f"{start}:iam::${{AWS::AccountId}}:role/*"},
            "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        },
    ]


def _logs(plan: Plan) -> dict[str, Any]:
    return {
        "Type": "AWS::Logs::LogGroup",
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {"LogGroupName": f"/aws/lambda/{plan.name}", "RetentionInDays": _LOGS_DAYS},
    }


def _retries() -> dict[str, Any]:
    """An event that fails because the store does not answer is tried again, but not for hours; then it is kept."""
    return {
        "Type": "AWS::Lambda::EventInvokeConfig",
        "Properties": {
            "FunctionName": {"Ref": "Function"},
            "Qualifier": "$LATEST",
            "MaximumEventAgeInSeconds": _EVENT_AGE_S,
            "MaximumRetryAttempts": _RETRIES,
            "DestinationConfig": {"OnFailure": {"Destination": aws_monitoring.dead_letters()}},
        },
    }


def _alarms(plan: Plan) -> dict[str, Any]:
    """Where alarms about training jobs go. Only CloudWatch, and only for this account, may write there."""
    publish = {
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": {"Ref": "Alarms"},
        "Condition": {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}},
    }
    return {
        "Alarms": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": f"{plan.name}-alarms"}},
        "AlarmsFrom": {
            "Type": "AWS::SNS::TopicPolicy",
            "Properties": {"Topics": [{"Ref": "Alarms"}], "PolicyDocument": _document([publish])},
        },
        "AlarmsTo": {
            "Type": "AWS::SNS::Subscription",
            "Properties": {
                "TopicArn": {"Ref": "Alarms"},
                "Protocol": "lambda",
                "Endpoint": {"Fn::GetAtt": ["Function", "Arn"]},
                "RedrivePolicy": {"deadLetterTargetArn": aws_monitoring.dead_letters()},
            },
        },
        "AlarmsCall": {
            "Type": "AWS::Lambda::Permission",
            "Properties": {
                "Action": "lambda:InvokeFunction",
                "FunctionName": {"Ref": "Function"},
                "Principal": "sns.amazonaws.com",
                "SourceArn": {"Ref": "Alarms"},
            },
        },
    }


def _permission(service: str, rule: str) -> dict[str, Any]:
    return {
        "Type": "AWS::Lambda::Permission",
        "Properties": {
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": "Function"},
            "Principal": service,
            "SourceArn": {"Fn::GetAtt": [rule, "Arn"]},
        },
    }


def _target() -> dict[str, Any]:
    return {
        "Id": "governor",
        "Arn": {"Fn::GetAtt": ["Function", "Arn"]},
        "DeadLetterConfig": {"Arn": aws_monitoring.dead_letters()},
    }


def _document(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}
