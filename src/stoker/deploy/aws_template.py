"""The CloudFormation template of a governor on AWS. Pure: the same plan gives the same template.

One Lambda function. EventBridge calls it for events of machines and training jobs, once a minute while a job is active,
and every 15 minutes permanently, so that a lost event loses nothing. CloudWatch's alarms call it through an SNS topic.
It has the governor's policy of `stoker iam`, and may switch its own clock and send failed events to a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.deploy import aws_monitoring
from stoker.deploy.aws_entry_point import RULE, STORE, TOPIC
from stoker.deploy.aws_monitoring import may_publish
from stoker.external_jobs.gpu_alarms import alarm_prefix as alarm_prefix
from stoker.governor.serverless import events
from stoker.providers.ec2.iam import policy_of, trust_policy
from stoker.providers.ec2.permissions import Statement

RUNTIME = "python3.13"
HANDLER = "stoker.deploy.aws_entry_point.handler"
# The memory determines the share of a processor: all of one at 1769 MB, so more than half of one here.
_MEMORY_MB = 1024
# A pass over a thousand jobs takes seconds; a pass over many more must fit as well.
TIMEOUT_S = 300
_LOGS_DAYS = 14
# Older events are of no use: ticks have come since.
_EVENT_AGE_S = 300
_RETRIES = 2
# States of an ending machine. Other states need no reaction.
_ENDING = ("stopping", "stopped", "shutting-down", "terminated")
_TICK = "rate(1 minute)"
_RULES = "arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}:rule"


@dataclass(frozen=True)
class AwsPlan:
    """All inputs of the template."""

    name: str
    store: str
    bucket: str
    key: str
    processor: str
    # The statements of the governor's policy.
    statements: tuple[Mapping[str, Any], ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    # Set where the governor also governs external jobs: training jobs of SageMaker that Stoker did not start.
    training: bool = False
    # The most calls at once; None: as many as the account allows.
    concurrency: int | None = aws_monitoring.CONCURRENCY
    # ARNs of topics to notify when the governor itself fails.
    topics: tuple[str, ...] = ()
    # Roles that clones of external jobs may have, by name or ARN, and their machine types; each may contain `*`.
    # Empty: any.
    clone_roles: tuple[str, ...] = ()
    clone_machines: tuple[str, ...] = ()


def patterns() -> dict[str, dict[str, Any]]:
    """The event patterns that call the function, by the name of the rule."""
    return {
        "Notices": {"source": ["aws.ec2"], "detail-type": [*events.NOTICES, *events.BLOCK_ENDS]},
        "States": {"source": ["aws.ec2"], "detail-type": [events.STATES], "detail": {"state": list(_ENDING)}},
        "Training": {"source": ["aws.sagemaker"], "detail-type": [events.TRAINING]},
    }


def alarm_pattern(store: str) -> dict[str, Any]:
    """The event pattern of the alarms that the governor created about training jobs."""
    return {
        "source": ["aws.cloudwatch"],
        "detail-type": [events.ALARM],
        "detail": {"alarmName": [{"prefix": alarm_prefix(store)}]},
    }


def tick_name(name: str) -> str:
    return f"{name}-tick"


def net_name(name: str) -> str:
    """The name of the slow clock, which is never switched off."""
    return f"{name}-net"


def event_rule(name: str, about: str, when: Mapping[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """A rule that sends events, or ticks of a schedule, to one target."""
    return {
        "Type": "AWS::Events::Rule",
        "Properties": {"Name": name, "Description": about[:512], **when, "Targets": [target]},
    }


def template(plan: AwsPlan) -> dict[str, Any]:
    """The whole stack."""
    # Alarms of this region come through the topic.
    others = alarm_pattern(plan.store) | {"region": [{"anything-but": [{"Ref": "AWS::Region"}]}]}
    rules = {
        kind: event_rule(
            f"{plan.name}-{kind.lower()}", f"Wakes the governor of {plan.store}", {"EventPattern": pattern}, _target()
        )
        for kind, pattern in {**patterns(), "Elsewhere": others}.items()
    }
    rules["Tick"] = event_rule(
        tick_name(plan.name),
        f"Once a minute while {plan.store} has an active job; the governor switches it",
        # The first job switches the rule on.
        {"ScheduleExpression": _TICK, "State": "DISABLED"},
        _target(),
    )
    rules["Net"] = event_rule(
        net_name(plan.name),
        f"Looks at {plan.store} every 15 minutes, always: what was lost is found by it",
        {"ScheduleExpression": aws_monitoring.NET, "State": "ENABLED"},
        _target(),
    )
    calls = {f"{kind}Calls": _permission("events.amazonaws.com", {"Fn::GetAtt": [kind, "Arn"]}) for kind in rules}
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


def _function(plan: AwsPlan) -> dict[str, Any]:
    environ = {
        **plan.environ,
        STORE: plan.store,
        RULE: tick_name(plan.name),
        TOPIC: {"Ref": "Alarms"},
        # The only folder in which a function may write.
        "STOKER_HOME": "/tmp/stoker",
    }
    return {
        "Type": "AWS::Lambda::Function",
        # The log group must exist before the function writes, or Lambda creates one without a retention limit.
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


def _role(plan: AwsPlan) -> dict[str, Any]:
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
            # By name, since a reference would be circular: rule → function → role.
            "Resource": {"Fn::Sub": f"{_RULES}/{tick_name(plan.name)}"},
        },
        aws_monitoring.may_keep(),
    ]
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "Description": f"The governor of {plan.store}"[:1000],
            "AssumeRolePolicyDocument": trust_policy("lambda.amazonaws.com"),
            "Policies": [
                {"PolicyName": "governor", "PolicyDocument": policy_of([dict(each) for each in plan.statements])},
                {"PolicyName": "itself", "PolicyDocument": policy_of(own)},
                *([{"PolicyName": "training", "PolicyDocument": policy_of(_training(plan))}] if plan.training else ()),
            ],
        },
    }


_JOBS, _CLONE_ROLES, _CREATE = "Jobs", "CloneRoles", "sagemaker:CreateTrainingJob"
# Read, stop and clone external training jobs, and create alarms about them. The ARNs are those of the stack's partition
# and account; (ALARMS) begins the names of the store's alarms.
_TRAINING = (
    Statement(
        "Look",
        "training jobs, and alarms and metrics about them",
        ("sagemaker:ListTrainingJobs", "cloudwatch:DescribeAlarms", "cloudwatch:GetMetricData"),
        "*",
    ),
    Statement(
        _JOBS,
        "stop them, and make clones",
        (
            "sagemaker:DescribeTrainingJob",
            "sagemaker:ListTags",
            "sagemaker:StopTrainingJob",
            _CREATE,
            "sagemaker:AddTags",
        ),
        "sagemaker:*:ACCOUNT:training-job/*",
    ),
    Statement(
        "Plans",
        "creating a training job in reserved capacity needs the permission on these as well",
        "sagemaker:CreateTrainingJob",
        ("sagemaker:*:ACCOUNT:training-plan/*", "sagemaker:*:ACCOUNT:reserved-capacity/*"),
    ),
    Statement(
        "Alarms",
        "alarms about them",
        ("cloudwatch:PutMetricAlarm", "cloudwatch:DeleteAlarms", "cloudwatch:TagResource"),
        "cloudwatch:*:ACCOUNT:alarm:(ALARMS)*",
    ),
    Statement(
        "Logs",
        "why one failed",
        ("logs:DescribeLogStreams", "logs:GetLogEvents"),
        "logs:*:ACCOUNT:log-group:/aws/sagemaker/TrainingJobs*",
    ),
    Statement(
        _CLONE_ROLES,
        "a clone has the role of its original, which may be any role",
        "iam:PassRole",
        "iam::ACCOUNT:role/*",
        {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
    ),
)


def _training(plan: AwsPlan) -> list[dict[str, Any]]:
    def substituted(resource: str) -> Any:
        named = resource.replace("ACCOUNT", "${AWS::AccountId}").replace("(ALARMS)", alarm_prefix(plan.store))
        return named if named == "*" else {"Fn::Sub": f"arn:${{AWS::Partition}}:{named}"}

    found = [
        {
            "Sid": each.sid,
            "Effect": "Allow",
            "Action": each.actions if isinstance(each.actions, str) else list(each.actions),
            "Resource": substituted(each.resources)
            if isinstance(each.resources, str)
            else [substituted(resource) for resource in each.resources],
            **({} if each.condition is None else {"Condition": each.condition}),
        }
        for each in _TRAINING
    ]
    return [narrowed for each in found for narrowed in _narrowed(plan, each)]


def _narrowed(plan: AwsPlan, statement: dict[str, Any]) -> list[dict[str, Any]]:
    """The statement as the deployment narrows it. The limit on machine types needs a statement of its own."""
    if statement["Sid"] == _CLONE_ROLES and plan.clone_roles:
        own = "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/"
        arns = [role if role.startswith("arn:") else {"Fn::Sub": f"{own}{role}"} for role in plan.clone_roles]
        return [{**statement, "Resource": arns}]
    if statement["Sid"] == _JOBS and plan.clone_machines:
        # Without the second condition, a request that names no machine type would meet the first.
        # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsagemaker.html
        condition = {
            "ForAllValues:StringLike": {"sagemaker:InstanceTypes": list(plan.clone_machines)},
            "Null": {"sagemaker:InstanceTypes": "false"},
        }
        others = [action for action in statement["Action"] if action != _CREATE]
        clones = {**statement, "Sid": "Clones", "Action": _CREATE, "Condition": condition}
        return [{**statement, "Action": others}, clones]
    return [statement]


def _logs(plan: AwsPlan) -> dict[str, Any]:
    return {
        "Type": "AWS::Logs::LogGroup",
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {"LogGroupName": f"/aws/lambda/{plan.name}", "RetentionInDays": _LOGS_DAYS},
    }


def _retries() -> dict[str, Any]:
    """Retry an event that failed because the store did not answer, but not for hours; then send it to the queue."""
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


def _alarms(plan: AwsPlan) -> dict[str, Any]:
    """The topic for alarms about training jobs. Only CloudWatch, and only for this account, may publish there."""
    return {
        "Alarms": {"Type": "AWS::SNS::Topic", "Properties": {"TopicName": f"{plan.name}-alarms"}},
        "AlarmsFrom": {
            "Type": "AWS::SNS::TopicPolicy",
            "Properties": {"Topics": [{"Ref": "Alarms"}], "PolicyDocument": policy_of([may_publish("Alarms")])},
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
        "AlarmsCall": _permission("sns.amazonaws.com", {"Ref": "Alarms"}),
    }


def _permission(service: str, source: dict[str, Any]) -> dict[str, Any]:
    return {
        "Type": "AWS::Lambda::Permission",
        "Properties": {
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": "Function"},
            "Principal": service,
            "SourceArn": source,
        },
    }


def _target() -> dict[str, Any]:
    return {
        "Id": "governor",
        "Arn": {"Fn::GetAtt": ["Function", "Arn"]},
        "DeadLetterConfig": {"Arn": aws_monitoring.dead_letters()},
    }
