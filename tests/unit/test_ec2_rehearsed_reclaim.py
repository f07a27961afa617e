"""`stoker interrupt` on EC2: by the Fault Injection Service where it may, else by ending the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import ANY, Stubber

from stoker.model.errors import NotFound, Throttled, Transient
from stoker.providers.ec2 import rehearsed_reclaim

MACHINE = "i-0123456789abcdef0"
TEMPLATE, EXPERIMENT = "EXT1", "EXP1"


class StubbedClients:
    """boto3's own clients, whose answers are written down beforehand and whose requests are checked."""

    def __init__(self) -> None:
        self._stubs: dict[str, Stubber] = {}
        self._clients: dict[str, Any] = {}
        self.regions: list[str] = ["us-east-1"]

    def stub(self, service: str) -> Stubber:
        if service not in self._stubs:
            client = boto3.client(
                service,
                region_name="us-east-1",
                aws_access_key_id="a",
                aws_secret_access_key="b",
                config=Config(retries={"total_max_attempts": 1}),
            )
            self._clients[service], self._stubs[service] = client, Stubber(client)
            self._stubs[service].activate()
        return self._stubs[service]

    def get(self, service: str, region: str | None) -> Any:
        self.stub(service)
        return self._clients[service]

    def session(self) -> StubbedClients:
        return self

    def get_available_regions(self, _service: str) -> list[str]:
        return self.regions

    def finish(self) -> None:
        """Everything that was expected has happened."""
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()


@pytest.fixture
def clients() -> StubbedClients:
    return StubbedClients()


def describe(clients: StubbedClients, state: str = "running", lifecycle: str | None = "spot") -> None:
    machine = {"InstanceId": MACHINE, "State": {"Name": state}}
    if lifecycle:
        machine["InstanceLifecycle"] = lifecycle
    told = {"Reservations": [{"Instances": [machine]}]}
    clients.stub("ec2").add_response("describe_instances", told, {"InstanceIds": [MACHINE]})


def terminate(clients: StubbedClients) -> None:
    clients.stub("ec2").add_response("terminate_instances", {}, {"InstanceIds": [MACHINE]})


def who(clients: StubbedClients) -> None:
    told = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me", "UserId": "x"}
    clients.stub("sts").add_response("get_caller_identity", told, {})


def make_template(clients: StubbedClients, minutes: int = 2) -> None:
    asked = {
        "description": ANY,
        "roleArn": "arn:aws:iam::123456789012:role/stoker-fis-1",
        "stopConditions": [{"source": "none"}],
        "targets": {
            "machine": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [f"arn:aws:ec2:us-east-1:123456789012:instance/{MACHINE}"],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "reclaim": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": f"PT{minutes}M"},
                "targets": {"SpotInstances": "machine"},
            }
        },
    }
    told = {"experimentTemplate": {"id": TEMPLATE}}
    clients.stub("fis").add_response("create_experiment_template", told, asked)


def experiment(clients: StubbedClients, call: str, status: str, reason: str = "") -> None:
    asked = {"id": EXPERIMENT} if call == "get_experiment" else {"experimentTemplateId": TEMPLATE}
    told = {"experiment": {"id": EXPERIMENT, "state": {"status": status, "reason": reason}}}
    clients.stub("fis").add_response(call, told, asked)


def remove_template(clients: StubbedClients) -> None:
    clients.stub("fis").add_response("delete_experiment_template", {}, {"id": TEMPLATE})


def go(clients: StubbedClients, grace_s: float = 30.0, pause: Callable[[float], None] = lambda _: None) -> str:
    told = rehearsed_reclaim.interrupt(clients, MACHINE, grace_s, "us-east-1", "stoker-fis-1", pause=pause)  # type: ignore[arg-type]
    clients.finish()
    return told


@pytest.mark.parametrize(("grace_s", "minutes"), [(0.0, 2), (120.0, 2), (121.0, 3), (7200.0, 15)])
def test_the_service_takes_a_spot_machine(clients: StubbedClients, grace_s: float, minutes: int) -> None:
    describe(clients)
    who(clients)
    make_template(clients, minutes)
    experiment(clients, "start_experiment", "initiating")
    experiment(clients, "get_experiment", "pending")
    experiment(clients, "get_experiment", "running")
    remove_template(clients)
    assert f"takes {MACHINE} away in {minutes} minutes" in go(clients, grace_s)


def test_where_it_is_not_allowed_the_machine_is_ended(clients: StubbedClients) -> None:
    describe(clients)
    who(clients)
    clients.stub("fis").add_client_error("create_experiment_template", "AccessDeniedException", "no", 403)
    terminate(clients)
    told = go(clients)
    assert told.startswith(f"{MACHINE} was ended at once") and "AccessDeniedException" in told and "stoker iam" in told


def test_an_experiment_that_fails_ends_the_machine_and_leaves_no_template(clients: StubbedClients) -> None:
    describe(clients)
    who(clients)
    make_template(clients)
    experiment(clients, "start_experiment", "pending")
    experiment(clients, "get_experiment", "failed", "the role cannot be assumed")
    remove_template(clients)
    terminate(clients)
    assert "the role cannot be assumed" in go(clients)


def test_on_demand_machines_are_ended(clients: StubbedClients) -> None:
    describe(clients, lifecycle=None)
    terminate(clients)
    assert "not a spot machine" in go(clients)


def test_a_region_without_the_service(clients: StubbedClients) -> None:
    clients.regions = ["eu-west-1"]
    describe(clients)
    terminate(clients)
    assert "no Fault Injection Service in us-east-1" in go(clients)


@pytest.mark.parametrize(("code", "error"), [("ThrottlingException", Throttled), ("InternalServerError", Transient)])
def test_a_silence_ends_nothing(clients: StubbedClients, code: str, error: type[Exception]) -> None:
    describe(clients)
    who(clients)
    make_template(clients)
    clients.stub("fis").add_client_error("start_experiment", code, "later", 500)
    remove_template(clients)
    with pytest.raises(error, match="later"):
        go(clients)
    clients.finish()


@pytest.mark.parametrize("state", ["shutting-down", "terminated", "stopped"])
def test_what_is_gone_cannot_be_taken(clients: StubbedClients, state: str) -> None:
    describe(clients, state)
    with pytest.raises(NotFound):
        go(clients)
