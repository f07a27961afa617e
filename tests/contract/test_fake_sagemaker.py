"""The SageMaker of tests: as strict as botocore's model, and with a memory."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.sagemaker import ACCOUNT, DETAIL_TYPE, REGION, SageMakerCloud, sagemaker_cloud, why_no_hosts
from tests.support.sagemaker.shapes import check_answer
from tests.support.servers import S3Server, isolated, pytest_isolated

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/trainer"


def asked(name: str = "one", **more: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingImage": "registry.example/train:1", "TrainingInputMode": "File"},
        "RoleArn": ROLE,
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        **more,
    }


def spot(name: str = "one", **more: Any) -> dict[str, Any]:
    bounds = {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    return asked(name, EnableManagedSpotTraining=True, StoppingCondition=bounds, **more)


if not isolated():

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)

else:
    from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

    @pytest.fixture
    def sm(sagemaker: SageMakerCloud) -> Any:
        sagemaker.clock.set(NOON)
        return sagemaker.client()

    def code(error: pytest.ExceptionInfo[ClientError]) -> str:
        return str(error.value.response["Error"]["Code"])

    def describe(sm: Any, name: str = "one") -> dict[str, Any]:
        told: dict[str, Any] = sm.describe_training_job(TrainingJobName=name)
        return told

    # ── A life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_job_lives_and_all_of_it_is_told(sm: Any, sagemaker: SageMakerCloud) -> None:
        arn = sm.create_training_job(**asked(Tags=[{"Key": "team", "Value": "vision"}]))["TrainingJobArn"]
        assert arn == f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/one"
        told = describe(sm)
        assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("InProgress", "Starting")
        assert told["CreationTime"] == NOON and "TrainingStartTime" not in told
        sagemaker.clock.move(60)
        sagemaker.advance("one", "Training")
        sagemaker.clock.move(600)
        sagemaker.complete("one", loss=0.25)
        told = describe(sm)
        assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Completed", "Completed")
        gone_through = [each["Status"] for each in told["SecondaryStatusTransitions"]]
        assert gone_through == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
        assert all(each["EndTime"] >= each["StartTime"] for each in told["SecondaryStatusTransitions"])
        assert told["TrainingEndTime"] - told["TrainingStartTime"] == timedelta(seconds=600)
        assert told["BillableTimeInSeconds"] == told["TrainingTimeInSeconds"] == 600
        assert told["ModelArtifacts"]["S3ModelArtifacts"] == "s3://bucket/out/one/output/model.tar.gz"
        assert [(m["MetricName"], m["Value"]) for m in told["FinalMetricDataList"]] == [("loss", 0.25)]
        assert check_answer("DescribeTrainingJob", sagemaker.describe("one")) == []

    def test_a_name_is_taken_for_ever(sm: Any, sagemaker: SageMakerCloud) -> None:
        sm.create_training_job(**asked())
        sagemaker.fail("one", "AlgorithmError: no", exit=1)
        with pytest.raises(ClientError) as refused:
            sm.create_training_job(**asked())
        assert code(refused) == "ResourceInUse"
        assert describe(sm)["FailureReason"] == "AlgorithmError: no, exit code: 1"
        # In another region it is free.
        sagemaker.client("eu-west-1").create_training_job(**asked())

    def test_who_is_unknown_has_no_code_of_its_own(sm: Any) -> None:
        for call in (sm.describe_training_job, sm.stop_training_job):
            with pytest.raises(ClientError) as refused:
                call(TrainingJobName="nobody")
            assert code(refused) == "ValidationException" and "not found" in str(refused.value)

    def test_stopping_takes_its_time_and_ended_jobs_are_not_stopped(sm: Any, sagemaker: SageMakerCloud) -> None:
        sm.create_training_job(**asked())
        sagemaker.train("one")
        sm.stop_training_job(TrainingJobName="one")
        sm.stop_training_job(TrainingJobName="one")
        assert describe(sm)["TrainingJobStatus"] == "Stopping"
        sagemaker.advance("one")
        told = describe(sm)
        assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Stopped", "Stopped")
        with pytest.raises(ClientError) as refused:
            sm.stop_training_job(TrainingJobName="one")
        assert code(refused) == "ValidationException"

    def test_spot_is_interrupted_and_goes_on(sm: Any, sagemaker: SageMakerCloud) -> None:
        sm.create_training_job(**spot())
        with pytest.raises(ValueError, match="Starting"):
            sagemaker.interrupt("one")
        for _ in range(2):
            sagemaker.train("one")
            sagemaker.clock.move(100)
            sagemaker.interrupt("one")
            sagemaker.clock.move(1000)
        sagemaker.exceed_wait("one")
        told = describe(sm)
        assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")
        assert [each["Status"] for each in told["SecondaryStatusTransitions"]].count("Interrupted") == 2
        assert told["BillableTimeInSeconds"] < 200 < told["TrainingTimeInSeconds"]

    # ── What is refused ───────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        ("changed", "named"),
        [
            ({"TrainingJobName": "under_score"}, "trainingJobName"),
            ({"TrainingJobName": "x" * 64}, "trainingJobName"),
            ({"RoleArn": "arn:aws:iam::1:role/x-and-more"}, "roleArn"),
            ({"ResourceConfig": {"InstanceType": "g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}}, "enum"),
            ({"ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}}, "VolumeSizeInGB"),
            ({"OutputDataConfig": {"S3OutputPath": "gs://bucket/out"}}, "s3OutputPath"),
            ({"Tags": [{"Key": "aws:x", "Value": "y"}]}, "aws:"),
            ({"Tags": [{"Key": "a", "Value": "y"}] * 2}, "Duplicate"),
            ({"AlgorithmSpecification": {"TrainingInputMode": "File"}}, "TrainingImage"),
            ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds"),
            ({"StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9}}, "MaxWaitTimeInSeconds"),
            ({"RetryStrategy": {"MaximumRetryAttempts": 31}}, "maximumRetryAttempts"),
        ],
    )
    def test_what_the_service_refuses_is_refused(sagemaker: SageMakerCloud, changed: Any, named: str) -> None:
        # Without botocore's own checks, as another client would ask.
        sm = sagemaker.client(parameter_validation=False)
        with pytest.raises(ClientError, match=named) as refused:
            sm.create_training_job(**{**asked(), **changed})
        assert code(refused) == "ValidationException"
        assert sagemaker.names() == []

    def test_what_the_model_does_not_know_is_refused_and_remembered(sagemaker: SageMakerCloud) -> None:
        import urllib.error

        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260301/us-east-1/sagemaker/aws4_request, x"}
        headers = {**signed, "X-Amz-Target": "SageMaker.CreateTrainingJob"}
        body = json.dumps(asked(Colour="blue")).encode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(sagemaker.endpoint, body, headers))
        assert b"colour" in refused.value.read()
        (told,) = sagemaker.broken()
        assert told.startswith("CreateTrainingJob: ") and "colour" in told

    # ── Lists and tags ────────────────────────────────────────────────────────────────────────────────────────────────

    def test_lists_are_filtered_sorted_and_paged(sm: Any, sagemaker: SageMakerCloud) -> None:
        for n in range(25):
            sm.create_training_job(**asked(f"job-{n:02}"))
            sagemaker.clock.move(1)
        sagemaker.fail("job-03")
        first = sm.list_training_jobs()
        assert [each["TrainingJobName"] for each in first["TrainingJobSummaries"]] == [f"job-{n:02}" for n in range(10)]
        pages = sm.get_paginator("list_training_jobs").paginate(SortBy="Name", SortOrder="Descending", MaxResults=7)
        names = [each["TrainingJobName"] for page in pages for each in page["TrainingJobSummaries"]]
        assert names == [f"job-{n:02}" for n in reversed(range(25))]

        def found(**filters: Any) -> list[str]:
            told = sm.list_training_jobs(MaxResults=100, **filters)["TrainingJobSummaries"]
            return [each["TrainingJobName"] for each in told]

        assert found(StatusEquals="Failed") == ["job-03"]
        assert found(NameContains="b-1") == [f"job-{n}" for n in range(10, 20)]
        assert found(CreationTimeAfter=NOON + timedelta(seconds=22)) == ["job-23", "job-24"]
        assert found(CreationTimeBefore=NOON + timedelta(seconds=1)) == ["job-00"]
        assert found(LastModifiedTimeAfter=NOON + timedelta(seconds=24)) == ["job-03"]

    def test_a_list_may_lag(sm: Any, sagemaker: SageMakerCloud) -> None:
        sagemaker.listing_lag(5)
        sm.create_training_job(**asked())
        assert sm.list_training_jobs()["TrainingJobSummaries"] == []
        sagemaker.clock.move(5)
        assert len(sm.list_training_jobs()["TrainingJobSummaries"]) == 1

    def test_tags(sm: Any, sagemaker: SageMakerCloud) -> None:
        arn = sm.create_training_job(**asked(Tags=[{"Key": "a", "Value": "1"}]))["TrainingJobArn"]
        sm.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
        sm.delete_tags(ResourceArn=arn, TagKeys=["b"])
        assert sm.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "3"}]
        assert sagemaker.tags("one") == {"a": "3"}

    def test_a_warm_pool_is_reused_or_ends(sm: Any, sagemaker: SageMakerCloud) -> None:
        machines = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30}
        for name in ("one", "two"):
            sm.create_training_job(**asked(name, ResourceConfig={**machines, "KeepAlivePeriodInSeconds": 600}))
            assert describe(sm, name)["WarmPoolStatus"]["Status"] == "InUse"
            sagemaker.train(name)
            sagemaker.complete(name)
            assert describe(sm, name)["WarmPoolStatus"]["Status"] == "Available"
        assert describe(sm)["WarmPoolStatus"]["ReusedByJob"] == "two"
        sm.update_training_job(TrainingJobName="two", ResourceConfig={"KeepAlivePeriodInSeconds": 60})
        sagemaker.clock.move(60)
        assert describe(sm, "two")["WarmPoolStatus"]["Status"] == "Terminated"

    # ── Faults ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_lost_reply_is_a_job_all_the_same(sm: Any, sagemaker: SageMakerCloud) -> None:
        sagemaker.faults.lose_replies("CreateTrainingJob")
        with pytest.raises((ConnectionClosedError, EndpointConnectionError)):
            sm.create_training_job(**asked())
        assert sagemaker.names() == ["one"]
        assert sagemaker.calls() == {"CreateTrainingJob": 1}

    def test_limits_throttling_and_permissions(sm: Any, sagemaker: SageMakerCloud) -> None:
        sagemaker.faults.limit("ml.g5.xlarge", times=1)
        with pytest.raises(ClientError, match=r"ml\.g5\.xlarge for training job usage") as refused:
            sm.create_training_job(**asked())
        assert code(refused) == "ResourceLimitExceeded"
        sm.create_training_job(**asked())
        for number, wanted in (
            (sagemaker.faults.throttle("ListTrainingJobs"), "ThrottlingException"),
            (sagemaker.faults.unauthorized(), "AccessDeniedException"),
            (sagemaker.faults.internal_error(), "InternalFailure"),
        ):
            with pytest.raises(ClientError) as refused:
                sm.list_training_jobs()
            assert code(refused) == wanted
            sagemaker.faults.clear(number)

    # ── Jobs that really run ──────────────────────────────────────────────────────────────────────────────────────────

    @pytest.fixture
    def really(s3: S3Server) -> Iterator[SageMakerCloud]:
        if why_no_hosts() is not None:
            pytest.skip(str(why_no_hosts()))
        with sagemaker_cloud(s3, grace_s=0.3) as made:
            yield made

    def running(cloud: SageMakerCloud, script: str, **more: Any) -> str:
        """A training job whose containers run this."""
        entry = ["/bin/sh", "-c", script]
        algorithm = {"TrainingImage": "x", "TrainingInputMode": "File", "ContainerEntrypoint": entry}
        cloud.client().create_training_job(**(asked() | {"AlgorithmSpecification": algorithm} | more))
        return "one"

    def wait_for(cloud: SageMakerCloud, *statuses: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while cloud.status("one")[0] not in statuses and cloud.status("one")[1] not in statuses:
            assert time.monotonic() < deadline, cloud.status("one")
            time.sleep(0.01)
        return cloud.describe("one")

    def printed(cloud: SageMakerCloud, text: str) -> None:
        deadline = time.monotonic() + 60
        assert cloud.hosts is not None
        while text not in cloud.hosts.output("one"):
            assert time.monotonic() < deadline, cloud.hosts.output("one")
            time.sleep(0.01)

    def test_a_container_finds_what_sagemaker_gives_it(really: SageMakerCloud, s3: S3Server) -> None:
        bucket = s3.new_bucket()
        urllib.request.urlopen(urllib.request.Request(f"{s3.endpoint}/{bucket}/data/a/b.txt", b"hello", method="PUT"))
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/data/"}
        channel = {"ChannelName": "train", "DataSource": {"S3DataSource": source}}
        script = "cat /opt/ml/input/data/train/a/b.txt /opt/ml/input/config/*.json; echo $$ $TRAINING_JOB_NAME"
        machines = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
        more = {"InputDataConfig": [channel], "HyperParameters": {"lr": "0.1"}, "ResourceConfig": machines}
        running(really, script, **more)
        assert wait_for(really, "Completed", "Failed")["TrainingJobStatus"] == "Completed"
        assert really.hosts is not None
        said = really.hosts.output("one")
        # It is the first process of its container, and one of two hosts.
        assert said.count("hello") == 2 and said.count("1 one") == 2
        for told in ('"lr": "0.1"', '"current_host": "algo-2"', '"hosts": ["algo-1", "algo-2"]', '"TrainingInputMode"'):
            assert told in said

    def test_a_container_that_fails_says_why(really: SageMakerCloud) -> None:
        running(really, "echo no data >/opt/ml/output/failure; exit 3")
        told = wait_for(really, "Failed", "Completed")
        assert told["FailureReason"] == "AlgorithmError: no data\n, exit code: 3"

    def test_a_stop_is_sigterm_a_grace_and_sigkill(really: SageMakerCloud) -> None:
        running(really, "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done")
        printed(really, "up")
        really.client().stop_training_job(TrainingJobName="one")
        assert wait_for(really, "Stopped")["SecondaryStatus"] == "Stopped"
        printed(really, "asked")

    def test_a_reclaim_starts_the_container_anew_on_an_empty_disk(really: SageMakerCloud) -> None:
        script = "ls /opt/ml; touch /opt/ml/mine; echo up; while :; do sleep 0.05; done"
        bounds = {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60}
        running(really, script, EnableManagedSpotTraining=True, StoppingCondition=bounds)
        printed(really, "up")
        really.interrupt("one")
        printed(really, "up\ninput")
        gone_through = [each["Status"] for each in really.describe("one")["SecondaryStatusTransitions"]]
        assert gone_through[2:5] == ["Training", "Interrupted", "Restarting"]
        assert really.hosts is not None and "mine" not in really.hosts.output("one")

    # ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_every_change_is_told_as_documented(sm: Any, sagemaker: SageMakerCloud) -> None:
        heard: list[Any] = []
        sagemaker.on_event(heard.append)
        sm.create_training_job(**spot(Tags=[{"Key": "team", "Value": "vision"}]))
        sagemaker.train("one")
        sagemaker.interrupt("one")
        sagemaker.fail("one", "InternalServerError: We encountered an internal error.")
        events = sagemaker.events()
        statuses = [each["detail"]["SecondaryStatus"] for each in events]
        assert statuses == ["Starting", "Downloading", "Training", "Interrupted", "Failed"]
        assert heard[-5:] == events
        last = events[-1]
        assert last["detail-type"] == DETAIL_TYPE and last["source"] == "aws.sagemaker"
        assert last["resources"] == [last["detail"]["TrainingJobArn"]] and last["region"] == REGION
        assert last["time"] == "2026-03-01T12:00:00Z"
        detail = last["detail"]
        assert detail["TrainingJobStatus"] == "Failed" and detail["FailureReason"].startswith("InternalServerError")
        assert detail["CreationTime"] == str(round(NOON.timestamp() * 1000))
        assert detail["Tags"] == {"team": "vision"}
        assert detail["SecondaryStatusTransitions"][0]["Status"] == "Starting"
        json.dumps(events)
        numbers = sagemaker.events(numbers=True)
        assert numbers[-1]["detail"]["CreationTime"] == round(NOON.timestamp() * 1000)
        assert numbers[-1]["id"] == last["id"]
