"""Descriptions of training jobs, as SageMaker gives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from external_world import asked
from stopped_job import NOW, STOPPED, ago

from stoker.external_jobs.training_job import ExternalJob, parse_description


def described(**changes: Any) -> ExternalJob:
    return parse_description({**asked(), "TrainingJobStatus": "InProgress", **changes}, [], "us-east-1")


def test_when_its_last_training_began() -> None:
    steps = [
        {"Status": "Starting", "StartTime": ago(900), "EndTime": ago(800)},
        {"Status": "Training", "StartTime": ago(800), "EndTime": ago(600)},
        {"Status": "Interrupted", "StartTime": ago(600), "EndTime": ago(500)},
        {"Status": "Training", "StartTime": ago(500), "EndTime": ago(400)},
        {"Status": "Stopping", "StartTime": ago(400)},
    ]
    job = described(SecondaryStatusTransitions=steps)
    assert job.last_training_at == ago(500) and job.stop_asked_at == ago(400) and job.interruptions == 1
    assert described(SecondaryStatusTransitions=steps[:1]).last_training_at is None
    assert described(SecondaryStatusTransitions=steps[:1]).stop_asked_at is None


@pytest.mark.parametrize("status", ["Starting", "Pending", "Interrupted", "Restarting", "LaunchingMLInstances"])
def test_while_no_machine_is_there_it_waits(status: str) -> None:
    steps = [{"Status": status, "StartTime": ago(900)}]
    assert described(SecondaryStatusTransitions=steps).waiting_since == ago(900)


def test_an_end_is_told_only_of_what_is_over() -> None:
    modified = {"LastModifiedTime": ago(60)}
    assert described(**modified).ended_at is None and described(**modified).modified_at == ago(60)
    assert described(TrainingJobStatus="Failed", **modified).ended_at == ago(60)
    assert described(TrainingJobStatus="Failed", TrainingEndTime=ago(70), **modified).ended_at == ago(70)


def test_times_without_a_zone_are_utc_and_other_things_are_no_times() -> None:
    assert described(CreationTime=NOW.replace(tzinfo=None)).created_at == NOW
    assert described(CreationTime="yesterday").created_at is None


def test_numbers_and_names_that_make_no_sense_are_left_open() -> None:
    assert described(BillableTimeInSeconds=True).billable_s is None
    assert described(BillableTimeInSeconds=60).billable_s == 60.0
    assert described(ResourceConfig={"InstanceType": "", "InstanceCount": -1}).machines == ()
    assert described(ResourceConfig={"InstanceType": "ml.g5", "InstanceCount": 0}).nodes == 1
    chosen = described(ResourceConfig={"SelectedInstanceType": "ml.p4", "SelectedInstanceCount": 3})
    assert (chosen.machines, chosen.nodes) == (("ml.p4",), 3)
    told = [{"MetricName": "loss", "Value": 2}, {"MetricName": "", "Value": 1.0}, {"MetricName": "x", "Value": "y"}]
    assert described(FinalMetricDataList=told).metrics == {"loss": 2.0}
    assert described(AlgorithmSpecification={}).image is None and described().image == "1234.dkr.ecr/bert:1"


def test_what_is_known_of_a_job_that_says_little() -> None:
    job = parse_description({"TrainingJobName": "x"}, [], "us-east-1")
    assert (job.status, job.secondary, job.role, job.failure, job.parent, job.checkpoints) == ("",) * 6
    assert (job.clone, job.interruptions, job.nodes, job.spot, job.trained_before_s) == (0, 0, 1, False, 0.0)
    assert not job.training and not job.over and job.offerings()[0].machine == ""


def test_what_it_has_is_offered_with_its_price_and_accelerators() -> None:
    (found,) = described().offerings(2.0, 4)
    assert (found.provider, found.machine, found.spot, found.region) == (
        "sagemaker",
        "ml.g5.12xlarge",
        True,
        "us-east-1",
    )
    assert (found.price, found.gpus) == (2.0, 4) and described().offerings()[0].gpus == 0


def test_all_that_counts_of_a_description_is_read() -> None:
    job = parse_description(
        {
            **asked(),
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "CreationTime": ago(900),
            "LastModifiedTime": ago(60),
            "BillableTimeInSeconds": 300,
            "FailureReason": "AlgorithmError: no",
            "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints/"},
            "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": ago(800), "EndTime": ago(100)}],
        },
        [
            {"Key": "team", "Value": "nlp"},
            {"Key": "aws:x", "Value": "y"},
            {"Key": "submitter", "Value": "jane"},
            {"Key": "stoker:clone", "Value": "2"},
        ],
        "us-east-1",
    )
    assert (job.name, job.region, job.status, job.secondary) == ("bert", "us-east-1", "Failed", "Failed")
    assert (job.created_at, job.modified_at, job.ended_at) == (ago(900), ago(60), ago(60))
    assert (job.role, job.max_runtime_s, job.billable_s, job.nodes) == ("jane", 432000.0, 300.0, 2)
    assert (job.failure, job.checkpoints, job.clone) == ("AlgorithmError: no", "s3://bucket/checkpoints", 2)
    assert (job.trained_before_s, job.training_since, job.waiting_since) == (700.0, None, None)
    assert "team" in job.tags and not {"aws:x", "submitter"} & set(job.tags)
    held_against = job.spec()
    assert held_against.resources.provider == "sagemaker" and held_against.resources.machine == ("ml.g5.12xlarge",)
    assert (held_against.resources.spot, held_against.resources.region) == ("only", "us-east-1")
    assert held_against.environment.container is not None and held_against.nodes == 2
    assert held_against.limits.max_runtime_s == 432000.0 and held_against.limits.max_wait_s is None
    assert replace(job, spot=False, image=None).spec().resources.spot == "never"
    assert replace(job, image=None).spec().environment.container is None
    assert job.hosts == ("bert/algo-1", "bert/algo-2")


@pytest.mark.parametrize(
    ("changes", "tags", "parent"),
    [
        ({"TuningJobArn": "arn:x/tune-1"}, {}, "tuning job tune-1"),
        ({"AutoMLJobArn": "arn:x/auto-1"}, {}, "AutoML job auto-1"),
        ({"LabelingJobArn": "arn:x/label-1"}, {}, "labelling job label-1"),
        ({}, {"sagemaker:pipeline-execution-arn": "arn:x/p-1"}, "pipeline p-1"),
        ({}, {"aws:sagemaker:pipeline": "arn:x/p-1"}, "pipeline p-1"),
        ({}, {"AWS_STEP_FUNCTIONS_EXECUTION_ARN": "arn:aws:states:e:1"}, "Step Functions 1"),
        ({}, {"MANAGED_BY_AWS": "STARTED_BY_STEP_FUNCTIONS"}, "Step Functions"),
        ({"TrainingJobName": "pipelines-abc-train"}, {}, "pipeline"),
        ({"TrainingJobName": "AWSBatchabc"}, {}, "AWS Batch"),
        ({}, {"team": "nlp"}, ""),
    ],
)
def test_what_started_it_and_waits_for_it(changes: dict[str, str], tags: dict[str, str], parent: str) -> None:
    told = [{"Key": key, "Value": value} for key, value in tags.items()]
    assert parse_description({**asked(), **changes}, told, "us-east-1").parent == parent


@pytest.mark.parametrize(
    ("status", "secondary", "bound"),
    [
        ("Stopped", "MaxWaitTimeExceeded", "MaxWaitTimeInSeconds"),
        ("Stopped", "MaxRuntimeExceeded", "MaxRuntimeInSeconds"),
        ("Stopped", "Stopped", ""),
        ("Failed", "MaxRuntimeExceeded", ""),
    ],
)
def test_at_which_bound_of_its_own_it_was_ended(status: str, secondary: str, bound: str) -> None:
    assert replace(STOPPED, status=status, secondary=secondary).exceeded == bound
