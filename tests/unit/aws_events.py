"""What AWS sends to a function, in the forms that its documentation shows. The names in them are made up."""

from __future__ import annotations

import json
from typing import Any

ACCOUNT = "123456789012"
REGION = "us-east-1"
INSTANCE = "i-0123456789abcdef0"
TRAINING = "fraud-2026-11-16-01"


def _event(kind: str, source: str, detail: dict[str, Any], *resources: str) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": kind,
        "source": source,
        "account": ACCOUNT,
        "time": "2026-11-16T21:29:54Z",
        "region": REGION,
        "resources": list(resources),
        "detail": detail,
    }


def spot_warning(instance: str = INSTANCE) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    detail = {"instance-id": instance, "instance-action": "terminate"}
    arn = f"arn:aws:ec2:us-east-1b:instance/{instance}"
    return _event("EC2 Spot Instance Interruption Warning", "aws.ec2", detail, arn)


def rebalance(instance: str = INSTANCE) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html"""
    arn = f"arn:aws:ec2:us-east-1b:instance/{instance}"
    return _event("EC2 Instance Rebalance Recommendation", "aws.ec2", {"instance-id": instance}, arn)


def state_change(state: str, instance: str = INSTANCE) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html"""
    arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{instance}"
    return _event("EC2 Instance State-change Notification", "aws.ec2", {"instance-id": instance, "state": state}, arn)


def interruptible(instance: str = INSTANCE, *, formerly: bool = False) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html"""
    detail = {
        "instance-id": instance,
        "instance-action": "terminate",
        "instance-termination-time": "2026-11-16T21:31:54Z",
        "azId": "use1-az1",
    }
    kind = f"EC2 {'Interruptible ' if formerly else ''}Capacity Reservation Instance Interruption Warning"
    return _event(kind, "aws.ec2", detail, f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{instance}")


def block_ends(*, formerly: bool = False) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html"""
    detail = {"capacity-reservation-id": "cr-0123456789abcdef0", "end-date": "2026-11-16T22:00:00Z"}
    kind = f"Capacity Block {'Reservation ' if formerly else ''}Expiration Warning"
    return _event(kind, "aws.ec2", detail, f"arn:aws:ec2:{REGION}:{ACCOUNT}:capacity-reservation/cr-0123456789abcdef0")


def training(name: str = TRAINING, status: str = "Failed") -> dict[str, Any]:
    """https://docs.aws.amazon.com/sagemaker/latest/dg/automating-sagemaker-with-eventbridge.html"""
    arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
    detail = {
        "TrainingJobName": name,
        "TrainingJobArn": arn,
        "TrainingJobStatus": status,
        "SecondaryStatus": status,
        "HyperParameters": {"lr": "0.1"},
        "ResourceConfig": {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50},
        "CreationTime": 1583831889050,
        "TrainingStartTime": 1583831889050,
        "TrainingEndTime": 1583831889050,
        "LastModifiedTime": 1583831889050,
        "SecondaryStatusTransitions": [{"StartTime": 1583831889050, "EndTime": 1583831889050, "Status": status}],
        "Tags": {},
    }
    return _event("SageMaker Training Job State Change", "aws.sagemaker", detail, arn)


def tick() -> dict[str, Any]:
    """https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-rule-schedule-legacy.html"""
    return _event("Scheduled Event", "aws.events", {}, f"arn:aws:events:{REGION}:{ACCOUNT}:rule/stoker-tick")


def alarm(name: str = TRAINING, *, expression: bool = False) -> dict[str, Any]:
    """https://docs.aws.amazon.com/lambda/latest/dg/with-sns.html, around what CloudWatch writes into a message"""
    dimensions = [{"value": f"{name}/algo-1", "name": "Host"}]
    plain = {
        "MetricName": "GPUUtilization",
        "Namespace": "/aws/sagemaker/TrainingJobs",
        "StatisticType": "Statistic",
        "Statistic": "AVERAGE",
        "Unit": None,
        "Dimensions": dimensions,
        "Period": 300,
        "EvaluationPeriods": 3,
        "ComparisonOperator": "LessThanOrEqualToThreshold",
        "Threshold": 1.0,
        "TreatMissingData": "missing",
    }
    metric = {"MetricName": "GPUUtilization", "Namespace": "/aws/sagemaker/TrainingJobs", "Dimensions": dimensions}
    several = {"Metrics": [{"Id": "m1", "MetricStat": {"Metric": metric, "Period": 300, "Stat": "Average"}}]}
    message = {
        "AlarmName": f"stoker-{name}-algo-1",
        "AlarmDescription": None,
        "AWSAccountId": ACCOUNT,
        "NewStateValue": "ALARM",
        "NewStateReason": "Threshold Crossed: 3 datapoints were less than or equal to the threshold (1.0).",
        "StateChangeTime": "2026-11-16T21:29:54.000+0000",
        "Region": "US East (N. Virginia)",
        "AlarmArn": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:stoker-{name}-algo-1",
        "OldStateValue": "OK",
        "Trigger": several if expression else plain,
    }
    sns = {
        "SignatureVersion": "1",
        "Timestamp": "2026-11-16T21:29:54.516Z",
        "Signature": "EXAMPLE",
        "SigningCertUrl": "EXAMPLE",
        "MessageId": "95df01b4-ee98-5cb9-9903-4c221d41eb5e",
        "Message": json.dumps(message),
        "MessageAttributes": {},
        "Type": "Notification",
        "UnsubscribeUrl": "EXAMPLE",
        "TopicArn": f"arn:aws:sns:{REGION}:{ACCOUNT}:stoker-alarms",
        "Subject": "ALARM",
    }
    subscription = f"arn:aws:sns:{REGION}:{ACCOUNT}:stoker-alarms:21be56ed-a058-49f5-8c98-aedd2564c486"
    record = {"EventVersion": "1.0", "EventSubscriptionArn": subscription, "EventSource": "aws:sns", "Sns": sns}
    return {"Records": [record]}


def alarm_elsewhere(alarm: str, name: str = TRAINING) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-and-eventbridge.html"""
    metric = {
        "namespace": "/aws/sagemaker/TrainingJobs",
        "name": "GPUUtilization",
        "dimensions": {"Host": f"{name}/algo-1"},
    }
    stat = {"metric": metric, "period": 300, "stat": "Average"}
    detail = {
        "alarmName": alarm,
        "configuration": {"description": "", "metrics": [{"id": "m1", "metricStat": stat, "returnData": True}]},
        "previousState": {"value": "OK", "timestamp": "2026-11-16T21:24:54.000+0000"},
        "state": {"value": "ALARM", "reason": "Threshold Crossed", "timestamp": "2026-11-16T21:29:54.000+0000"},
    }
    arn = f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{alarm}"
    return _event("CloudWatch Alarm State Change", "aws.cloudwatch", detail, arn)


EC2 = (
    *(spot_warning(), rebalance(), interruptible(), interruptible(formerly=True)),
    *(block_ends(), block_ends(formerly=True)),
    *(state_change("terminated"), state_change("shutting-down")),
)
ALL = (*EC2, training(), tick(), alarm(), alarm(expression=True), alarm_elsewhere("stoker-any"))
