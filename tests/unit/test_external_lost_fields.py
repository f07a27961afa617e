"""A clone has every field of its original, or is not made and the owner is told, whatever boto3 the runtime brings."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from external_world import CAPACITY, HOUR_S, INTERNAL, REGION, STALL, World, asked, events, idle, told

from stoker.deploy import aws_models
from stoker.external_jobs.aws_account import SageMakerAccount, TrainingJobDescription
from stoker.external_jobs.clone_chain import GaveUp, RuleWarning, Stopping
from stoker.external_jobs.clone_request import COPIED_FIELDS, EVERYTHING, REPORTED_FIELDS, build_request, lost_fields

pytestmark = pytest.mark.slow

# The members that these versions of botocore lack, of those that the installed one has, by shape: recorded from their
# wheels, as `DescribeTrainingJobResponse` reaches them.
MISSING: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "golden" / "botocore_missing_members.json").read_text("utf-8")
)
INSTALLED = Path(botocore.__file__).parent / "data" / "sagemaker"
MODEL = "2017-07-24/service-2.json.gz"
PLAIN = {
    **{key: value for key, value in asked().items() if key != "Tags"},
    "TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/bert",
    "TrainingJobStatus": "Failed",
    "CreationTime": 1793610000.0,
    "HyperParameters": {"epochs": "3"},
    "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": 1793610000.0}],
    "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/d"}}}],
}
PREFERRED = {
    "ResourceConfig": {
        "InstancePreferences": [{"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2}],
        "SelectedInstanceType": "ml.p4d.24xlarge",
        "VolumeSizeInGB": 50,
    }
}
SERVERLESS = {"ServerlessJobConfig": {"JobType": "FineTuning", "BaseModelArn": "arn:x", "SequenceLength": "8K"}}


def write_models(folder: Path, without: dict[str, list[str]], version: str) -> Path:
    """Models as an older botocore, or as a newer package, has them."""
    model = json.loads(gzip.decompress((INSTALLED / MODEL).read_bytes()))
    for shape, members in without.items():
        for name in members:
            del model["shapes"][shape]["members"][name]
    (folder / "sagemaker" / MODEL).parent.mkdir(parents=True)
    (folder / "sagemaker" / MODEL).write_bytes(gzip.compress(json.dumps(model).encode()))
    (folder / aws_models.VERSION).write_text(version)
    return folder


class Clients:
    """boto3's clients whose requests are answered here."""

    def __init__(self, description: dict[str, Any]) -> None:
        session = botocore.session.get_session()
        session.set_credentials("a", "b")
        self.client = session.create_client("sagemaker", region_name=REGION)
        self.client.meta.events.register("before-send.sagemaker", self._answer)
        self._description = description
        self.body = b""

    def get(self, _service: str, _region: str) -> Any:
        return self.client

    def _answer(self, request: Any, event_name: str, **_: Any) -> AWSResponse:
        body = json.dumps(self._description if "Describe" in event_name else {"Tags": []}).encode()
        return AWSResponse(request.url, 200, {}, Raw(self.body or body))


class Raw(BytesIO):
    """The body of a response."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def described(description: dict[str, Any], body: bytes = b"") -> TrainingJobDescription:
    clients = Clients(description)
    clients.body = body
    found = SageMakerAccount(REGION, clients).describe("bert")  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.fixture(params=sorted(MISSING))
def older(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A runtime with this version of botocore."""
    folder = write_models(tmp_path / "older", MISSING[request.param], request.param)
    monkeypatch.setenv("AWS_DATA_PATH", str(folder))
    return str(request.param)


def test_what_an_older_botocore_drops_is_noticed(older: str) -> None:
    assert described(PLAIN).lost == ()
    found = described({**PLAIN, **PREFERRED})
    assert "InstancePreferences" not in found.description["ResourceConfig"], "botocore itself says nothing"
    assert found.lost == ("ResourceConfig.InstancePreferences",), "and the selected type is no part of a request"
    lost = {"1.40.4": ("ServerlessJobConfig",)}.get(older, ("ServerlessJobConfig.SequenceLength",))
    assert described({**PLAIN, **SERVERLESS}).lost == lost
    reported = {"ProgressInfo": {"CurrentStep": 1}, "MlflowDetails": {"MlflowRunId": "r"}}
    assert described({**PLAIN, **reported}).lost == (), "what SageMaker reports is no part of a clone"


def test_the_model_in_the_package_keeps_it(older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    for name, data in aws_models.files().items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(data)
    monkeypatch.setattr(aws_models.metadata, "version", lambda _name: older)
    assert aws_models.use_newer(package) and aws_models.use_newer(package)
    assert os.environ["AWS_DATA_PATH"].count(str(package)) == 1
    found = described({**PLAIN, **PREFERRED, **SERVERLESS})
    assert found.lost == ()
    request = build_request(found.description, (), name="bert-r1", origin="bert", number=1, spot=True)
    assert request["ResourceConfig"]["InstancePreferences"] == PREFERRED["ResourceConfig"]["InstancePreferences"]
    assert request["ServerlessJobConfig"] == SERVERLESS["ServerlessJobConfig"]
    assert list(Clients({}).client.get_paginator("list_tags").paginate(ResourceArn="arn:aws:x:y:z:1:2" + "3" * 9))


def test_the_runtimes_model_is_used_where_it_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DATA_PATH", raising=False)
    for version in (metadata.version("botocore"), "1.2.3", "no version"):
        folder = tmp_path / version / aws_models.FOLDER
        write_models(folder, {}, version)
        assert not aws_models.use_newer(tmp_path / version)
    assert not aws_models.use_newer(tmp_path / "nothing") and "AWS_DATA_PATH" not in os.environ


def test_fields_that_no_boto3_knows_yet_are_noticed() -> None:
    found = described({**PLAIN, "QuantumConfig": {"Qubits": 4}, "VpcConfig": {"Subnets": ["s"], "Ipv8": True}})
    assert found.lost == ("QuantumConfig", "VpcConfig.Ipv8")
    channels = [{**PLAIN["InputDataConfig"][0], "Prefetch": "All"}]
    assert described({**PLAIN, "InputDataConfig": channels}).lost == ("InputDataConfig[0].Prefetch",)
    assert described({**PLAIN, "QuantumConfig": None, "OtherConfig": {}}).lost == ()


def test_an_answer_that_is_no_json_is_not_cloned_from() -> None:
    assert lost_fields({}, {}) == ()
    account = SageMakerAccount(REGION, Clients(PLAIN))  # type: ignore[arg-type]
    account._sagemaker().meta.events.register_first("after-call.sagemaker.DescribeTrainingJob", _spoil)
    found = account.describe("bert")
    assert found is not None and found.lost == (EVERYTHING,)


def _spoil(http_response: Any, **_: Any) -> None:
    http_response._content = b"\xa1cbor"


def test_the_lists_of_fields_are_complete() -> None:
    session = botocore.session.get_session()
    output = session.get_service_model("sagemaker").operation_model("DescribeTrainingJob").output_shape
    assert set(output.members) == {*COPIED_FIELDS, *REPORTED_FIELDS}


# ── What follows ──────────────────────────────────────────────────────────────────────────────────────────────────────


def lose(world: World, *fields: str) -> None:
    """Let the account answer fields that the governor's boto3 does not know."""
    describe = world.account.describe

    def without(name: str) -> TrainingJobDescription | None:
        found = describe(name)
        return None if found is None else replace(found, lost=fields)

    world.account.describe = without  # type: ignore[method-assign]


@pytest.mark.parametrize("reason", [INTERNAL, CAPACITY, "AlgorithmError: , exit code: 1"])
def test_a_clone_that_would_lack_something_is_refused_and_that_is_said(reason: str) -> None:
    world = World()
    lose(world, "ResourceConfig.InstancePreferences")
    world.account.start(training_s=3 * HOUR_S)
    world.wake()
    world.account.fail(reason=reason)
    assert world.wake() == [] and world.wake() == [] and world.clones == []
    last = told(world)[-1]
    assert isinstance(last.event, GaveUp) and last.event.rule == "lost-fields"
    assert last.reason.startswith("its clone would lack ResourceConfig.InstancePreferences, which the boto3 of this ")


def test_a_job_is_not_stopped_to_leave_spot_where_its_clone_would_lack_something() -> None:
    world = World("- spot: {on_demand_after: 1}")
    lose(world, "QuantumConfig")
    world.account.start(training_s=HOUR_S)
    world.account.interrupt(times=5)
    world.wake()
    world.wake()
    assert world.account.statuses() == {"bert": "InProgress"}
    (warning,) = [each for each in told(world) if isinstance(each.event, RuleWarning)]
    assert "it stays on spot: its clone would lack QuantumConfig" in warning.reason
    assert not [each for each in events(world) if isinstance(each, Stopping)]


def test_a_job_that_hangs_is_stopped_without_a_restart() -> None:
    world = World(STALL)
    lose(world, "QuantumConfig")
    idle(world)
    world.wake()
    (stop,) = [each for each in events(world) if isinstance(each, Stopping)]
    assert stop.after == "" and not [each for each in events(world) if isinstance(each, RuleWarning)]
