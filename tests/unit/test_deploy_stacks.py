"""CloudFormation as AWS documents it, without it: why a stack failed, and what leads out of where nothing goes on."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from stoker.deploy import aws_stacks
from stoker.model.errors import ProviderError
from stoker.providers.base import Request

REQUEST = Request("cloudformation", "CreateStack", {"StackName": "stoker-1", "TemplateBody": "{}"}, "us-east-1")
ID = "arn:aws:cloudformation:us-east-1:123456789012:stack/stoker-1/1"


class CloudFormation:
    """One stack. A deleted one is known by its id alone."""

    def __init__(self, *statuses: str, events: list[dict[str, Any]] | None = None) -> None:
        self.before, self.after = statuses[0], list(statuses[1:])
        self.events = events or []
        self.news: list[dict[str, Any]] = []
        self.begun = False
        self.asked: list[str] = []

    def get(self, *_: object, **__: object) -> CloudFormation:
        return self

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        status = self.before
        if self.begun:
            status = self.after.pop(0) if len(self.after) > 1 else self.after[0]
        if status == "" or (status == "DELETE_COMPLETE" and StackName != ID):
            raise absent(StackName)
        return {"Stacks": [{"StackId": ID, "StackStatus": status}]}

    def describe_stack_events(self, StackName: str) -> dict[str, Any]:
        if StackName != ID:
            raise absent(StackName)
        return {"StackEvents": [*self.news, *self.events] if self.begun else self.events}

    def create_stack(self, **_: object) -> dict[str, Any]:
        return self._change("create_stack")

    def update_stack(self, **_: object) -> dict[str, Any]:
        return self._change("update_stack")

    def delete_stack(self, **_: object) -> dict[str, Any]:
        return self._change("delete_stack")

    def _change(self, operation: str) -> dict[str, Any]:
        self.asked.append(operation)
        self.begun = True
        return {"StackId": ID}


def absent(name: str) -> ClientError:
    return ClientError({"Error": {"Code": "ValidationError", "Message": f"Stack with id {name} does not exist"}}, "X")


def event(number: int, status: str, what: str, why: str) -> dict[str, Any]:
    told = {"ResourceStatus": status, "LogicalResourceId": what, "ResourceStatusReason": why}
    return {"EventId": str(number), **told}


def test_a_stack_that_never_came_to_be_says_why() -> None:
    cloud = CloudFormation("", "CREATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "DELETE_COMPLETE")
    cloud.news = [
        event(3, "CREATE_FAILED", "Function", "Resource creation cancelled"),
        event(2, "CREATE_FAILED", "Role", "jane may not iam:CreateRole"),
    ]
    with pytest.raises(ProviderError, match="Role: jane may not iam:CreateRole"):
        aws_stacks.create_or_update(cloud, REQUEST)  # type: ignore[arg-type]


def test_the_reason_is_of_this_time() -> None:
    old = [event(2, "UPDATE_COMPLETE", "stoker-1", ""), event(1, "UPDATE_FAILED", "Role", "in March")]
    cloud = CloudFormation("UPDATE_COMPLETE", "UPDATE_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE", events=old)
    cloud.news = [event(3, "UPDATE_FAILED", "Function", "the zip is not there")]
    with pytest.raises(ProviderError, match="Function: the zip is not there"):
        aws_stacks.create_or_update(cloud, REQUEST)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["UPDATE_ROLLBACK_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS"])
def test_what_no_update_leads_out_of_names_what_does(status: str) -> None:
    cloud = CloudFormation(status, "DELETE_IN_PROGRESS", "DELETE_COMPLETE")
    with pytest.raises(ProviderError, match="--remove"):
        aws_stacks.create_or_update(cloud, REQUEST)  # type: ignore[arg-type]
    assert aws_stacks.remove(cloud, "stoker-1", "us-east-1") is True  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED"])
def test_a_stack_that_never_came_to_be_is_removed_and_made_anew(status: str) -> None:
    """No update leads out of that."""
    cloud = CloudFormation(status, "DELETE_COMPLETE", "CREATE_IN_PROGRESS", "CREATE_COMPLETE")
    assert aws_stacks.create_or_update(cloud, REQUEST) == "made"  # type: ignore[arg-type]
    assert cloud.asked == ["delete_stack", "create_stack"]


def test_a_removal_that_fails_says_why() -> None:
    cloud = CloudFormation("CREATE_COMPLETE", "DELETE_IN_PROGRESS", "DELETE_FAILED")
    cloud.news = [event(1, "DELETE_FAILED", "Alarms", "jane may not sns:DeleteTopic")]
    with pytest.raises(ProviderError, match="Alarms: jane may not sns:DeleteTopic; see to"):
        aws_stacks.remove(cloud, "stoker-1", "us-east-1")  # type: ignore[arg-type]
