"""Events of other regions: EC2 reports events in the machine's own region, so that rules there forward them to the
governor's region.

A second template, one stack for each such region. A forwarded event arrives unchanged, with the region of its origin,
and matches the governor's own rules.
"""

from __future__ import annotations

from typing import Any

from stoker.deploy.aws_monitoring import policy_document
from stoker.deploy.aws_template import alarm_pattern, patterns


def template(name: str, store: str, home: str) -> dict[str, Any]:
    """The stack for a region that is not the governor's. `home` is the region of the governor."""
    bus = {"Fn::Sub": f"arn:${{AWS::Partition}}:events:{home}:${{AWS::AccountId}}:event-bus/default"}
    trust = {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sts:AssumeRole"}
    send = {"Effect": "Allow", "Action": "events:PutEvents", "Resource": bus}
    rules = {
        kind: {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "Name": f"{name}-{kind.lower()}",
                "Description": f"For the governor of {store}, in {home}"[:512],
                "EventPattern": pattern,
                "Targets": [{"Id": "governor", "Arn": bus, "RoleArn": {"Fn::GetAtt": ["Forwarder", "Arn"]}}],
            },
        }
        for kind, pattern in {**patterns(), "Alarms": alarm_pattern(store)}.items()
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Events for the governor of the Stoker store {store}, in {home}"[:1024],
        "Resources": {
            "Forwarder": {
                "Type": "AWS::IAM::Role",
                "Properties": {
                    "AssumeRolePolicyDocument": policy_document([trust]),
                    "Policies": [{"PolicyName": "forward", "PolicyDocument": policy_document([send])}],
                },
            },
            **rules,
        },
    }
