"""What a dry run of `stoker deploy` shows: all that would be done, on any computer, and what it cannot know."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import Stoker, run

from stoker.deploy import package
from stoker.model.errors import UserError
from stoker.submit.agent_bundle import NoAgentAvailable

pytestmark = pytest.mark.slow

AWS = ("--store", "s3://bucket/p", "deploy", "aws", "--dry-run")
GCP = ("--store", "gs://bucket/p", "deploy", "gcp", "--dry-run")


@pytest.fixture
def stoker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Stoker:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme-1")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-central1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)

    return partial(run, capsys)


def unserved(tag: str, _offline: bool) -> dict[str, bytes]:
    raise NoAgentAvailable(f"{tag} cannot be served yet; choose another resources.machine")


def test_it_shows_the_template_where_the_package_cannot_be_built_yet(
    stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Mac, or with Python 3.10."""
    monkeypatch.setattr(package, "obstore_files", unserved)
    code, told, said = stoker(*AWS, "--json")
    assert code == 0 and "resources.machine" not in said
    (function,) = (
        each["params"]["TemplateBody"]["Resources"]["Function"]["Properties"]
        for each in json.loads(told)
        if each["operation"] == "CreateStack"
    )
    assert function["Code"] == {"S3Bucket": "bucket", "S3Key": "p/deployed/(digest).zip"}
    with pytest.raises(UserError, match=r"the function's package: cp311-.* cannot be served yet; see that pip reaches"):
        package.for_lambda()


def test_all_that_is_done_beside_the_stack_is_shown(stoker: Stoker) -> None:
    code, told, said = stoker(*AWS, "--events-from", "eu-west-1", "--json")
    done = [f"{each['service']} {each['operation']} {each['region']}" for each in json.loads(told)]
    assert code == 0 and done == [
        "s3 PutObject us-east-1",
        "s3 PutObject us-east-1",
        "cloudformation CreateStack us-east-1",
        "cloudformation CreateStack eu-west-1",
        "events DisableRule us-east-1",
        "events EnableRule us-east-1",
        "lambda Invoke us-east-1",
        "s3 PutObject us-east-1",
    ]
    assert "the cloud was not asked" in said and "--sagemaker" in said and "secrets and regions of the policy" in said
    assert "cloudformation CreateStack in eu-west-1\n" in stoker(*AWS, "--events-from", "eu-west-1")[1]


def test_all_that_is_removed_is_shown(stoker: Stoker) -> None:
    code, told, said = stoker(*AWS, "--remove", "--events-from", "eu-west-1", "--json")
    done = [f"{each['operation']} {each['region']}" for each in json.loads(told)]
    assert code == 0 and done == [
        "DeleteStack eu-west-1",
        "DeleteStack us-east-1",
        "DeleteAlarms us-east-1",
        "DeleteAlarms eu-west-1",
        "DeleteLogGroup us-east-1",
        "DeleteObject us-east-1",
    ]
    assert "the cloud was not asked: regions," in said


def test_google_is_asked_for_more_than_things_and_bindings(stoker: Stoker) -> None:
    code, told, said = stoker(*GCP, "--json")
    done = [f"{each['method']} {each['path']}" for each in json.loads(told)]
    assert code == 0 and "earlier deployments (--notify, --alert, --service-account)" in said
    assert "--events-from" not in said and "--sagemaker" not in said
    assert done[0] == done[-1] == "PUT /bucket/p/deployed/gcp.json"
    assert done[1].startswith("PUT /bucket/p/deployed/") and done[1].endswith(".zip")
    assert done[-3].endswith(":pause") and done[-2].endswith(":publish")
    code, told, said = stoker(*GCP, "--remove", "--json")
    assert code == 0 and "the cloud was not asked: regions" in said
    assert json.loads(told)[-1]["path"] == "/bucket/p/deployed/*"
