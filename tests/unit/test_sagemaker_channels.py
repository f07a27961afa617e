"""Which inputs are channels of a training job, and the copy of the checkpoints that SageMaker keeps for people."""

from __future__ import annotations

from typing import Any

import pytest
from test_sagemaker_request import order, params

from stoker.jobfile.provider_fields import check_honoured
from stoker.model.errors import UserError
from stoker.model.resources import SagemakerResources
from stoker.model.spec import Checkpoints, Environment, Input
from stoker.providers.registry import Context
from stoker.providers.sagemaker import provider, request
from stoker.providers.sagemaker.capabilities import CAPABILITIES
from stoker.providers.sagemaker.provider import SageMakerProvider

SCRIPT = Environment(contract="sagemaker")


def channels(**fields: Any) -> dict[str, dict[str, Any]]:
    """The channels of a request that are not the agents'."""
    found = params(order(**{"environment": SCRIPT} | fields)).get("InputDataConfig", [])
    return {each["ChannelName"]: each for each in found if not each["ChannelName"].startswith("stoker-")}


def uri(channel: dict[str, Any]) -> str:
    return str(channel["DataSource"]["S3DataSource"]["S3Uri"])


def test_inputs_of_a_script_of_sagemakers_are_channels() -> None:
    found = channels(
        nodes=2,
        inputs={
            "train": Input("s3://data/train"),
            "part": Input("s3://data/part/", shard=True),
            "seen": Input("s3://data/seen/", mode="mount"),
            "url": Input("s3://data/url/", mode="stream"),
        },
    )
    assert {name: each["InputMode"] for name, each in found.items()} == {
        "train": "File",
        "part": "File",
        "seen": "FastFile",
    }
    # As it was written: an object, or all whose names begin so.
    assert uri(found["train"]) == "s3://data/train"
    spread = {name: each["DataSource"]["S3DataSource"]["S3DataDistributionType"] for name, each in found.items()}
    assert spread == {"train": "FullyReplicated", "part": "ShardedByS3Key", "seen": "FullyReplicated"}


def test_an_uploaded_folder_ends_with_a_slash_and_an_uploaded_file_does_not() -> None:
    """ "SageMaker uses all objects that match the specified key name prefix" (S3DataSource): the upload `abc` must not
    bring that of `abc-2`, which is the same data sent again."""
    found = channels(
        inputs={
            "folder": Input("s3://bucket/team/inputs/abc"),
            "file": Input("s3://bucket/team/inputs/abc/one.csv"),
        }
    )
    assert uri(found["folder"]) == "s3://bucket/team/inputs/abc/"
    assert uri(found["file"]) == "s3://bucket/team/inputs/abc/one.csv"


def test_other_jobs_have_none() -> None:
    inputs = {"train": Input("s3://data/train/")}
    assert channels(inputs=inputs, environment=Environment()) == {}
    assert channels(inputs=inputs, ours=SagemakerResources(channels=False)) == {}
    assert channels(inputs={"train": Input("gs://data/train/")}) == {}


def test_what_is_too_much_for_a_training_job_goes_the_agents_way() -> None:
    """InputDataConfig: "max": 20 in botocore's model; two of them are agents. What is mounted comes first."""
    inputs = {f"a{n}": Input(f"s3://data/{n}/") for n in range(20)} | {"z": Input("s3://data/z/", mode="mount")}
    asked = params(order(environment=SCRIPT, inputs=inputs))
    assert len(asked["InputDataConfig"]) == 20
    assert "z" in channels(inputs=inputs) and "a19" not in channels(inputs=inputs)


@pytest.mark.parametrize(
    ("ours", "fields", "told"),
    [
        (None, {"environment": Environment()}, r"^inputs\.x\.mode: .*contract: sagemaker; use mode: copy"),
        (SagemakerResources(channels=False), {}, r"^inputs\.x\.mode: "),
        (None, {"inputs": {"x": Input("gs://b/x", mode="mount")}}, r"^inputs\.x\.mode: .*in S3, and this is gs://b/x"),
        (None, {"inputs": {"stoker-x": Input("s3://b/x")}}, r"^inputs\.stoker-x: .*rename it"),
        (
            SagemakerResources(overrides={"CheckpointConfig": {"S3Uri": "s3://mine/x"}}),
            {},
            r"^resources\.sagemaker\.overrides\.CheckpointConfig: .*use resume_from",
        ),
    ],
)
def test_what_no_channel_can_be_is_refused_by_name(
    ours: SagemakerResources | None, fields: dict[str, Any], told: str
) -> None:
    inputs = {"x": Input("s3://b/x", mode="mount")} if ours is None or not ours.overrides else {}
    with pytest.raises(UserError, match=told):
        request.check(order(ours=ours, **{"environment": SCRIPT, "inputs": inputs} | fields).spec)


def test_a_script_and_its_mounts_are_honoured() -> None:
    spec = order(environment=SCRIPT, inputs={"x": Input("s3://b/x/", mode="mount")}).spec
    check_honoured(spec, "sagemaker", CAPABILITIES)
    request.check(spec)


def test_a_bucket_of_another_region_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "Your input bucket must be located in same Amazon Web Services region as your training job" (S3DataSource)."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    homes = {"data": "us-east-1", "ours": "eu-west-1"}
    monkeypatch.setattr(provider, "bucket_region", homes.get)
    checked = SageMakerProvider(Context(store="s3://ours/team"))
    there = {"environment": SCRIPT, "resources": {"region": "eu-west-1"}}
    far = {"train": Input("s3://data/train/")}
    with pytest.raises(UserError, match=r"^inputs\.train: the bucket data is in us-east-1, .*channels to false"):
        checked.check(order(inputs=far, **there).spec)
    checked.check(order(inputs={"train": Input("s3://ours/train/")}, **there).spec)
    checked.check(order(inputs=far, ours=SagemakerResources(channels=False), **there).spec)


@pytest.mark.parametrize(
    ("folder", "copied"),
    [
        ("checkpoints", True),
        ("/opt/ml/checkpoints", True),
        ("/opt/ml/checkpoints/run", True),
        ("saves", False),
        ("/opt/ml/checkpoints-2", False),
    ],
)
def test_the_copy_of_the_checkpoints_is_in_the_jobs_folder_and_never_shared(folder: str, copied: bool) -> None:
    """ "Existing checkpoints in S3 are written to the SageMaker container at the start of the job"
    (docs.aws.amazon.com/sagemaker/latest/dg/model-checkpoints.html): a new training job must find none."""
    asked = params(order(environment=SCRIPT, checkpoints=Checkpoints(dir=folder)))
    if not copied:
        assert "CheckpointConfig" not in asked
        return
    name = asked["TrainingJobName"]
    assert asked["CheckpointConfig"] == {
        "S3Uri": f"s3://bucket/team/work/gpt-7f3k/sagemaker/{name}/checkpoints",
        "LocalPath": "/opt/ml/checkpoints",
    }


def test_no_copy_of_the_checkpoints_where_none_is_wanted_or_the_script_is_not_sagemakers() -> None:
    assert "CheckpointConfig" not in params(order())
    without = SagemakerResources(checkpoint_copy=False)
    assert "CheckpointConfig" not in params(order(environment=SCRIPT, ours=without))
    mine = SagemakerResources(checkpoint_copy=False, overrides={"CheckpointConfig": {"S3Uri": "s3://mine/x"}})
    assert params(order(environment=SCRIPT, ours=mine))["CheckpointConfig"] == {"S3Uri": "s3://mine/x"}


def test_hyperparameters_are_in_the_form_of_the_sdk() -> None:
    """The SDK's estimators send each value as JSON, so that the console shows the same."""
    asked = params(order(environment=SCRIPT, params={"lr": 0.1, "name": "a b", "flag": True, "layers": "json:[1]"}))
    assert asked["HyperParameters"] == {"lr": "0.1", "name": '"a b"', "flag": "true", "layers": "[1]"}


def test_a_folder_without_its_slash_is_told() -> None:
    """Objects beside it would be in the channel, which they are not on other providers."""
    sources = ("s3://bkt/data/train", "s3://bkt/data/train/", "s3://bkt/data/train.csv", "s3://bkt", "./here")
    inputs = {f"i{number}": Input(source) for number, source in enumerate(sources)}
    inputs["url"] = Input("s3://bkt/data/train", mode="stream")
    made = SageMakerProvider(Context(store="s3://bucket/team", offline=True))
    found = made.remarks(order(environment=SCRIPT, inputs=inputs).spec)
    assert found == (
        "inputs.i0: SageMaker brings all objects whose names begin with s3://bkt/data/train; end a folder with /",
    )
    assert made.remarks(order(inputs=inputs).spec) == (), "the agent brings folders"
