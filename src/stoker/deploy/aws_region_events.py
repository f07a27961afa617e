"""Events of other regions: EC2 reports events in the machine's own region, so that rules there forward them to the
governor's region.

A second template, one stack for each such region. A forwarded event arrives unchanged, with the region of its origin,
and matches the governor's own rules.
"""

from __future__ import annotations

from typing import Any

from stoker.deploy.aws_template import alarm_pattern, event_rule, patterns
from stoker.providers.ec2.iam import policy_of, trust_policy


def template(name: str, store: str, home: str) -> dict[str, Any]:
    """The stack for a region that is not the governor's. `home` is the region of the governor."""
    bus = {"Fn::Sub": f"arn:${{AWS::Partition}}:events:{home}:${{AWS::AccountId}}:event-bus/default"}
    send = {"Effect": "Allow", "Action": "events:PutEvents", "Resource": bus}
    target = {"Id": "governor", "Arn": bus, "RoleArn": {"Fn::GetAtt": ["Forwarder", "Arn"]}}
    rules = {
        kind: event_rule(
            f"{name}-{kind.lower()}", f"For the governor of {store}, in {home}", {"EventPattern": pattern}, target
        )
        for kind, pattern in {**patterns(), "Alarms": alarm_pattern(store)}.items()
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Events for the governor of the Stoker store {store}, in {home}"[:1024],
        "Resources": {
            "Forwarder": {
                "Type": "AWS::IAM::Role",
                "Properties": {
                    "AssumeRolePolicyDocument": trust_policy("events.amazonaws.com"),
                    "Policies": [{"PolicyName": "forward", "PolicyDocument": policy_of([send])}],
                },
            },
            **rules,
        },
    }
