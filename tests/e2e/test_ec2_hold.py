"""A failed machine that is held for a look, on EC2 machines that really boot, and its log in CloudWatch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ec2_world import Ec2World

from tests.support.ec2 import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

GROUP = "/stoker/jobs"

if isolated():

    def shown(ec2: Ec2World, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ec2.cli("show", job, "--json").stdout)
        return found

    def test_a_failed_machine_is_held_until_somebody_gives_it_back(ec2: Ec2World) -> None:
        ec2.write("print('here it breaks')\nraise SystemExit(3)\n")
        job = ec2.submit(retry={"hold_on_failure": "1h"}, logs={"cloudwatch": GROUP})
        with ec2.governed():
            ec2.until(job, lambda: shown(ec2, job)["held"], "the hold")
            (instance,) = ec2.machines()
            found = shown(ec2, job)
            assert (found["phase"], found["rule"], found["exit_code"]) == ("failed", "user-error", 3)
            assert found["held"]["instances"] == [instance] and found["held"]["price"] > 0
            (node,) = found["attempts"][0]["nodes"]
            assert node["phase"] == "held" and node["link"].endswith(f"instanceId={instance}")
            assert "held until" in ec2.cli("ps").stdout
            # Governors pass all the time, and it is there: for a person who wants to look.
            assert "train.log" in ec2.cloud.machine(instance).run("ls", "/var/lib/stoker/node")
            assert ec2.cloud.machine(instance).state() == "running"
            assert "is held" in ec2.cli("rm", "-y", job).stderr
            assert "given back" in ec2.cli("stop", job).stderr
            ec2.cloud.machine(instance).wait_gone()
            ec2.until(job, lambda: not list(ec2.store.list("active/")), "the job to be forgotten")
        over = shown(ec2, job)
        assert over["phase"] == "failed" and over["cost"] > 0
        assert logged(ec2, job) == ["here it breaks", "[stoker] the command ended with exit code 3"]

    def logged(ec2: Ec2World, job: str) -> list[str]:
        """What stands in CloudWatch of its first attempt, without what Stoker says of attempts and holds."""
        import boto3

        logs = boto3.client("logs", endpoint_url=ec2.cloud.endpoint)
        found = logs.get_log_events(logGroupName=GROUP, logStreamName=f"{job}/1/0", startFromHead=True)["events"]
        (group,) = logs.describe_log_groups()["logGroups"]
        assert group["retentionInDays"] == 30
        return [e["message"] for e in found if "attempt" not in e["message"] and "is held" not in e["message"]]

    def test_a_hold_ends_by_itself_without_anybody(ec2: Ec2World) -> None:
        """The machine keeps its own time: nobody governs from the verdict on."""
        ec2.write("raise SystemExit(3)\n")
        job = ec2.submit(retry={"hold_on_failure": "5s"})
        with ec2.governed():
            ec2.until(job, lambda: shown(ec2, job)["phase"] == "failed", "its end")
        (instance,) = ec2.machines()
        ec2.cloud.machine(instance).wait_gone(120)
        with ec2.governed():
            ec2.until(job, lambda: not list(ec2.store.list("active/")), "the job to be forgotten")
        assert shown(ec2, job)["held"] is None

else:

    def test_in_isolation() -> None:
        pytest_isolated(__file__)
