"""An AWS account as far as deploying goes: stacks by region, the function, alarms. Regions may be closed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from command_line import Stoker, run

from stoker.cli import deploy as command
from stoker.deploy import aws, aws_remove, package
from stoker.deploy.aws_entry_point import NAME
from stoker.deploy.package import Package
from stoker.governor.pass_record import record_pass
from stoker.model import keys
from stoker.testing.memory_store import MemoryStore

URL = "s3://bucket/team"
HOME = "us-east-1"


@dataclass
class Account:
    """What there is, what was asked, and what answers in its place: an error for each region that is closed."""

    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    roles: set[str] = field(default_factory=set)
    alarms: dict[str, list[str]] = field(default_factory=dict)
    closed: dict[str, Exception] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    # How often the function's log is made again by a call that is under way.
    logs_again: int = 0
    logs: int = 0
    # What was told to the function, and how.
    invoked: list[tuple[str, Any]] = field(default_factory=list)
    read_timeouts: list[float | None] = field(default_factory=list)
    # Calls at once that no function of the account has reserved.
    unreserved: int = 1000
    # Alarms that ring, rules that somebody switched off, and events that wait in the queue.
    ringing: set[str] = field(default_factory=set)
    disabled: set[str] = field(default_factory=set)
    undelivered: int = 0
    # What comes of a call: the error that the function ends with, if any.
    answers: Callable[[Any], dict[str, str] | None] = lambda _told: None

    def get(self, service: str, region: str | None, **settings: Any) -> Client:
        if service == "lambda":
            self.read_timeouts.append(settings.get("read_timeout_s"))
        return Client(self, service, str(region))

    def changes(self) -> list[tuple[str, str, str]]:
        """What was asked that is no mere look."""
        looks = ("describe", "get", "list")
        return [each for each in self.asked if not each[2].startswith(looks)]


@dataclass(frozen=True)
class Client:
    """A service in a region."""

    account: Account
    service: str
    region: str

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**params: Any) -> Any:
            self.account.asked.append((self.service, self.region, operation))
            if self.region in self.account.closed:
                raise self.account.closed[self.region]
            return getattr(self, f"_{operation}")(**params)

        if not hasattr(type(self), f"_{operation}"):
            raise AttributeError(operation)
        return call

    def get_paginator(self, operation: str) -> Paged:
        return Paged(self, operation)

    # ── CloudFormation ────────────────────────────────────────────────────────────────────────────────────────────────

    def _describe_stacks(self, StackName: str) -> Any:
        if self.region not in self.account.stacks:
            raise refused("ValidationError", f"Stack with id {StackName} does not exist")
        return {"Stacks": [self.account.stacks[self.region]]}

    def _describe_stack_resources(self, StackName: str) -> Any:
        role = {"ResourceType": "AWS::IAM::Role", "PhysicalResourceId": f"role-{self.region}"}
        return {"StackResources": [role]}

    def _describe_stack_events(self, StackName: str) -> Any:
        return {"StackEvents": []}

    def _create_stack(self, **params: Any) -> Any:
        self.account.stacks[self.region] = {
            "StackId": f"stack/{self.region}",
            "StackStatus": "CREATE_COMPLETE",
            "Template": json.loads(params["TemplateBody"]),
        }
        self.account.roles.add(f"role-{self.region}")
        return {"StackId": f"stack/{self.region}"}

    def _update_stack(self, **params: Any) -> Any:
        there = self.account.stacks[self.region]
        new = json.loads(params["TemplateBody"])
        if there["Template"] == new:
            raise refused("ValidationError", "No updates are to be performed.")
        there |= {"Template": new, "StackStatus": "UPDATE_COMPLETE"}

    def _delete_stack(self, StackName: str) -> None:
        del self.account.stacks[self.region]
        self.account.roles.discard(f"role-{self.region}")

    # ── What else there is ────────────────────────────────────────────────────────────────────────────────────────────

    def _invoke(self, FunctionName: str, InvocationType: str, Payload: bytes) -> Any:
        told = json.loads(Payload)
        self.account.invoked.append((InvocationType, told))
        error = self.account.answers(told)
        found = {"Payload": io.BytesIO(json.dumps(error or {}).encode())}
        return found | ({"FunctionError": "Unhandled"} if error else {})

    def _resources(self, kind: str, name: str) -> dict[str, Any]:
        """What the stack of this region has of a kind, by its name."""
        stack = self.account.stacks.get(self.region)
        resources = stack["Template"]["Resources"].values() if stack else ()
        made = [each["Properties"] for each in resources if each["Type"] == kind]
        return {each[name]: each for each in made if name in each}

    def _get_function_configuration(self, FunctionName: str) -> Any:
        if FunctionName not in self._resources("AWS::Lambda::Function", "FunctionName"):
            raise refused("ResourceNotFoundException", "no such function")
        return {"State": "Active", "LastUpdateStatus": "Successful"}

    def _describe_rule(self, Name: str) -> Any:
        rules = self._resources("AWS::Events::Rule", "Name")
        if Name not in rules:
            raise refused("ResourceNotFoundException", "no such rule")
        return {"State": "DISABLED" if Name in self.account.disabled else rules[Name].get("State", "ENABLED")}

    def _get_queue_url(self, QueueName: str) -> Any:
        if QueueName not in self._resources("AWS::SQS::Queue", "QueueName"):
            raise refused("AWS.SimpleQueueService.NonExistentQueue", "no such queue")
        return {"QueueUrl": f"https://sqs/{QueueName}"}

    def _get_queue_attributes(self, QueueUrl: str, AttributeNames: list[str]) -> Any:
        assert AttributeNames == ["ApproximateNumberOfMessages"]
        return {"Attributes": {"ApproximateNumberOfMessages": str(self.account.undelivered)}}

    def _get_account_settings(self) -> Any:
        return {"AccountLimit": {"UnreservedConcurrentExecutions": self.account.unreserved}}

    def _get_function_concurrency(self, FunctionName: str) -> Any:
        return {}

    def _enable_rule(self, Name: str) -> None: ...

    _disable_rule = _enable_rule

    def _list_rules(self, NamePrefix: str) -> Any:
        return {"Rules": []}

    def _get_function(self, FunctionName: str) -> None:
        raise refused("ResourceNotFoundException", "no such function")

    def _delete_log_group(self, logGroupName: str) -> None:
        self.account.logs = min(1, self.account.logs_again)
        self.account.logs_again -= self.account.logs

    def _describe_log_groups(self, logGroupNamePrefix: str) -> Any:
        return {"logGroups": [{"logGroupName": logGroupNamePrefix}] * self.account.logs}

    def _list_topics(self) -> Any:
        return {"Topics": []}

    def _describe_alarms(self, AlarmNames: list[str] | None = None) -> Any:
        if AlarmNames is not None:
            made = self._resources("AWS::CloudWatch::Alarm", "AlarmName")
            found = [name for name in AlarmNames if name in made]
            ringing = self.account.ringing
            return {
                "MetricAlarms": [
                    {"AlarmName": name, "StateValue": "ALARM" if name in ringing else "OK"} for name in found
                ]
            }
        names = self.account.alarms.get(self.region, [])
        return {"MetricAlarms": [{"AlarmName": name, "AlarmActions": []} for name in names]}

    def _delete_alarms(self, AlarmNames: list[str]) -> None:
        del self.account.alarms[self.region]

    def _get_role(self, RoleName: str) -> None:
        if RoleName not in self.account.roles:
            raise refused("NoSuchEntity", "no such role")


@dataclass(frozen=True)
class Paged:
    """One page is all there is."""

    client: Client
    operation: str

    def paginate(self) -> Iterator[Any]:
        yield getattr(self.client, self.operation)()


def refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "X")


# A region that is not enabled, one that an organisation has closed, and one that is not there at all.
NOT_ENABLED = refused("InvalidClientTokenId", "The security token included in the request is invalid")
DENIED = refused("AccessDenied", "with an explicit deny in a service control policy")
NOWHERE = EndpointConnectionError(endpoint_url="https://cloudformation.us-wset-2.amazonaws.com/")


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore(clock=lambda: datetime.now(timezone.utc), url=URL)


@pytest.fixture
def account(bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Account:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", HOME)
    made = Account()
    for module in (aws, aws_remove):
        monkeypatch.setattr(module, "Clients", lambda: made)
    monkeypatch.setattr(command, "opened_store", lambda: bucket)
    monkeypatch.setattr(command, "aws_region", lambda _store, _named, *, offline: HOME)
    monkeypatch.setattr(package, "for_lambda", lambda *, offline=False: Package(b"zip", "x86_64"))
    monkeypatch.setattr(aws, "_POLL_S", 0.0)

    def passing(_told: Any) -> None:
        record_pass(bucket, NAME, 0, lambda: 0.0)

    made.answers = passing
    return made


@pytest.fixture
def stoker(account: Account, capsys: pytest.CaptureFixture[str]) -> Stoker:
    """The command line, with this account and this bucket."""
    return partial(run, capsys)


def governor_name() -> str:
    return keys.deployment_name(URL)
