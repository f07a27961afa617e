"""Training jobs of others, from the command line: SageMaker, CloudWatch's alarms, figures and logs, and a bucket, all
of them servers that answer as AWS does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import pytest
from click.testing import CliRunner, Result

from stoker.cli import cli
from stoker.external_jobs import chain_log
from stoker.external_jobs.aws_account import LOG_GROUP, NAMESPACE, SageMakerAccount
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.policy import versions
from stoker.store.base import Store, open_store
from tests.support.sagemaker import REGION, SageMakerCloud, sagemaker_cloud
from tests.support.servers import S3Server, s3_server

RULES = """
rules:
  - max_nodes: 2
  - name: waste
    min_gpu_utilization: {value: 50%, over: 30m, after: 10m}
    then: stop
sagemaker:
  regions: [us-east-1]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server("monitoring", "logs") as running:
        yield running


@pytest.fixture(scope="module")
def sagemaker() -> Iterator[SageMakerCloud]:
    with sagemaker_cloud() as cloud:
        yield cloud


@pytest.fixture
def url(server: S3Server, sagemaker: SageMakerCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {**server.env, **sagemaker.env}.items():
        monkeypatch.setenv(name, value)
    sagemaker.clear()
    url = f"s3://{server.new_bucket()}"
    versions.write(open_store(url), RULES, "jane")
    yield url
    assert sagemaker.broken() == []


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


def stoker(url: str, *arguments: str) -> Result:
    ran = CliRunner().invoke(cli, [*arguments, "--store", url], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran


def submit(cloud: SageMakerCloud, name: str, nodes: int = 1, spot: bool = False, hours_ago: float = 3) -> None:
    """A person starts a training job, some time ago, and it trains."""
    cloud.clock.set(datetime.now(timezone.utc) - timedelta(hours=hours_ago))
    wait = {"MaxWaitTimeInSeconds": 172800} if spot else {}
    cloud.client().create_training_job(
        TrainingJobName=name,
        AlgorithmSpecification={"TrainingImage": "123.dkr.ecr/bert", "TrainingInputMode": "File"},
        RoleArn="arn:aws:iam::123456789012:role/research",
        InputDataConfig=[
            {
                "ChannelName": "train",
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://data/bert"}},
            }
        ],
        OutputDataConfig={"S3OutputPath": "s3://out/bert", "KmsKeyId": "key"},
        ResourceConfig={"InstanceType": "ml.g5.12xlarge", "InstanceCount": nodes, "VolumeSizeInGB": 100},
        VpcConfig={"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
        StoppingCondition={"MaxRuntimeInSeconds": 86400, **wait},
        EnableManagedSpotTraining=spot,
        CheckpointConfig={"S3Uri": "s3://checkpoints/bert"},
        HyperParameters={"lr": "3e-4"},
        Environment={"WANDB": "off"},
        RetryStrategy={"MaximumRetryAttempts": 2},
        Tags=[{"Key": "team", "Value": "nlp"}],
    )
    cloud.train(name)
    cloud.clock.set(None)


def alarms() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = boto3.client("cloudwatch").describe_alarms()["MetricAlarms"]
    return found


def measure(host: str, percent: float, minutes: int = 45) -> None:
    now = datetime.now(timezone.utc).replace(second=0, microsecond=0)
    boto3.client("cloudwatch").put_metric_data(
        Namespace=NAMESPACE,
        MetricData=[
            {
                "MetricName": metric,
                "Dimensions": [{"Name": "Host", "Value": host}],
                "Timestamp": now - timedelta(minutes=minute),
                "Value": percent,
            }
            for metric in ("GPUUtilization", "CPUUtilization")
            for minute in range(1, minutes)
        ],
    )


def wait_until(true: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def log(job: str, *lines: str) -> None:
    client = boto3.client("logs")
    groups = [each["logGroupName"] for each in client.describe_log_groups()["logGroups"]]
    if LOG_GROUP not in groups:
        client.create_log_group(logGroupName=LOG_GROUP)
    stream = f"{job}/algo-1-1731750000"
    client.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
    at = int(datetime.now(timezone.utc).timestamp() * 1000) - 5000
    client.put_log_events(
        logGroupName=LOG_GROUP,
        logStreamName=stream,
        logEvents=[{"timestamp": at + number, "message": line} for number, line in enumerate(lines)],
    )


def test_a_job_that_breaks_a_rule_is_stopped_and_listed(url: str, sagemaker: SageMakerCloud) -> None:
    submit(sagemaker, "too-big", nodes=3, hours_ago=0)
    planned = stoker(url, "govern", "--dry-run").output
    assert "too-big: stop: policy max-nodes: 3 nodes are more than 2" in planned
    assert sagemaker.status("too-big")[0] == "InProgress" and "too-big" not in stoker(url, "ps").output
    assert "3 nodes are more than 2" in stoker(url, "govern").output
    assert sagemaker.status("too-big")[0] == "Stopping"
    listed = stoker(url, "ps").output
    assert "too-big" in listed and "stopping" in listed and "SageMaker us-east-1, research" in listed
    for command in ("show", "explain"):
        told = stoker(url, command, "too-big").output
        assert "too-big: stopped, policy:max-nodes" in told and "3 nodes are more than 2" in told
    whole = json.loads(stoker(url, "explain", "too-big", "--json").output)
    assert whole["decisions"][1]["event"] == {"kind": "stopping", "job": "too-big", "rule": "policy:max-nodes"} | {
        "after": ""
    }
    (row,) = json.loads(stoker(url, "ps", "--json").output)
    assert (row["id"], row["provider"], row["submitter"], row["phase"]) == (
        *("too-big", "sagemaker", "research", "stopping"),
    )


def test_its_alarm_stops_a_wasteful_job(url: str, store: Store, sagemaker: SageMakerCloud) -> None:
    submit(sagemaker, "waste", nodes=2)
    topic = f"arn:aws:sns:{REGION}:123456789012:stoker"
    governor = ExternalJobGovernor(store, topic=topic)
    assert governor.wake(REGION, "waste").problems == {}
    made = alarms()
    assert [alarm["Dimensions"][0]["Value"] for alarm in made] == ["waste/algo-1", "waste/algo-2"]
    # Four GPUs of a host that are half used.
    assert {(alarm["Threshold"], alarm["Period"], alarm["TreatMissingData"]) for alarm in made} == {
        (200.0, 1800, "notBreaching")
    }
    assert all(alarm["AlarmActions"] == [topic] for alarm in made)
    # Nothing was measured yet: nobody knows.
    assert governor.wake(REGION, "waste").done == [] and sagemaker.status("waste")[0] == "InProgress"
    for host in ("waste/algo-1", "waste/algo-2"):
        measure(host, 40)
    wait_until(lambda: any(alarm["StateValue"] == "ALARM" for alarm in alarms()))
    assert "its 8 accelerators were used 10% over 30 min" in stoker(url, "govern").output
    assert sagemaker.status("waste")[0] == "Stopping" and alarms() == []


def test_a_failed_job_goes_on_as_a_clone_with_all_that_it_had(
    url: str, store: Store, sagemaker: SageMakerCloud
) -> None:
    submit(sagemaker, "bert", spot=True)
    stoker(url, "govern")
    log("bert", "step 1", "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp, unhandled system error")
    sagemaker.fail("bert", "AlgorithmError: ExecuteUserScriptError", exit=1)
    told = stoker(url, "govern").output
    (clone,) = [name for name in sagemaker.names() if name != "bert"]
    assert f"bert: cloned as {clone}: the log ends with a nccl error" in told
    before, after = sagemaker.describe("bert"), sagemaker.describe(clone)
    for name in (
        *("AlgorithmSpecification", "InputDataConfig", "OutputDataConfig", "ResourceConfig", "VpcConfig"),
        *("StoppingCondition", "EnableManagedSpotTraining", "CheckpointConfig", "HyperParameters", "Environment"),
        *("RetryStrategy", "RoleArn"),
    ):
        assert after[name] == before[name], name
    assert sagemaker.tags(clone)["team"] == "nlp" and sagemaker.tags(clone)["stoker:origin"] == "bert"
    assert "cloned as" not in stoker(url, "govern").output
    assert f"goes on as {clone}" in stoker(url, "ps").output
    # Its clone is asked for by its own name, too.
    assert f"bert: {clone} is made" in stoker(url, "explain", clone).output
    assert "bert" in stoker(url, "show", clone).output


def test_spot_that_is_taken_too_often(url: str, sagemaker: SageMakerCloud) -> None:
    submit(sagemaker, "spotty", spot=True)
    for _ in range(4):
        sagemaker.interrupt("spotty")
        sagemaker.train("spotty")
    assert "reclaimed 4 times" in stoker(url, "govern").output
    sagemaker.advance("spotty", "Stopped")
    stoker(url, "govern")
    (clone,) = [name for name in sagemaker.names() if name != "spotty"]
    assert sagemaker.describe(clone)["EnableManagedSpotTraining"] is False
    assert sagemaker.describe(clone)["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}


def test_reap_sweeps_alarms(url: str, store: Store, sagemaker: SageMakerCloud) -> None:
    submit(sagemaker, "left")
    ExternalJobGovernor(store).wake(REGION, "left")
    (alarm,) = alarms()
    sagemaker.complete("left")
    listed = stoker(url, "reap", "--dry-run").output
    assert f"sagemaker alarm {alarm['AlarmName']}: left is Completed" in listed and alarms() != []
    stoker(url, "reap")
    assert alarms() == []
    assert "nothing to end: every machine belongs to a job" in stoker(url, "reap").output


def test_every_event_twice_backwards_and_late(url: str, store: Store, sagemaker: SageMakerCloud) -> None:
    submit(sagemaker, "late", spot=True)
    sagemaker.fail("late", "InternalServerError: We encountered an internal error.")
    told = sagemaker.events(reset=True)
    governor = ExternalJobGovernor(store)
    # The first that is heard of it is how it ended.
    for event in [*reversed(told), *told, *told]:
        looked = governor.wake(event["region"], event["detail"]["TrainingJobName"])
        assert looked.problems == {}
    # The policy has been in force since before it ended.
    assert len(sagemaker.names()) == 2 and alarms() == []


@pytest.mark.parametrize("fault", ["unauthorized", "lose_replies"])
@pytest.mark.parametrize("operation", ["DescribeTrainingJob", "CreateTrainingJob", "ListTags", "StopTrainingJob"])
def test_sagemaker_that_fails_causes_nothing_and_is_asked_again(
    url: str, store: Store, sagemaker: SageMakerCloud, fault: str, operation: str
) -> None:
    submit(sagemaker, "bert", spot=True)
    for _ in range(4):
        sagemaker.interrupt("bert")
        sagemaker.train("bert")
    governor = ExternalJobGovernor(store)
    getattr(sagemaker.faults, fault)(operation, times=3)
    governor.wake(REGION, "bert")
    sagemaker.faults.clear()
    governor.wake(REGION, "bert")
    sagemaker.advance("bert", "Stopped")
    getattr(sagemaker.faults, fault)(operation, times=3)
    governor.wake(REGION, "bert")
    sagemaker.faults.clear()
    governor.wake(REGION, "bert")
    governor.wake(REGION, "bert")
    assert len(sagemaker.names()) == 2
    kinds = [entry.record.event.kind for entry in chain_log.entries(store, REGION, "bert")]
    # Whether it was taken is written down either way.
    refused = ["stop-unanswered"] if (operation, fault) == ("StopTrainingJob", "unauthorized") else []
    assert kinds == ["seen", "stopping", *refused, "stop-accepted", "ended", "cloning", "cloned"]


def test_what_is_not_there(url: str, store: Store) -> None:
    account = SageMakerAccount(REGION)
    assert account.describe("nobody") is None and account.stop("nobody") is False
    assert account.tail("nobody") == () and account.in_progress() == []
    account.remove_alarms(["stoker-nobody"])
    now = datetime.now(timezone.utc)
    found = account.readings("nobody", ["nobody/algo-1"], now - timedelta(hours=1), now)
    assert found.hosts[0].gpu == () and found.last_line_at is None
    assert ExternalJobGovernor(store).wake(REGION, "nobody").problems == {}
