"""Scripts written for SageMaker, as training jobs of SageMaker: `/opt/ml` is the container's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import fields
from sagemaker_world import SageMakerWorld

from tests.support.sagemaker import why_no_hosts
from tests.support.servers import isolated, pytest_isolated

if why_no_hosts() is not None:
    pytest.skip(str(why_no_hosts()), allow_module_level=True)

CONTRACT = {"contract": "sagemaker"}

if isolated():

    def put(world: SageMakerWorld, name: str, text: str) -> str:
        """An object of the user's beside the store, by its URL."""
        bucket = world.url.removeprefix("s3://").partition("/")[0]
        client(world).put_object(Bucket=bucket, Key=f"data/{name}", Body=text.encode())
        return f"s3://{bucket}/data/{name}"

    def objects(world: SageMakerWorld, url: str) -> dict[str, bytes]:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        s3 = client(world)
        keys = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())]
        return {key.removeprefix(prefix): s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def outputs(world: SageMakerWorld, job: str) -> dict[str, bytes]:
        ended = world.state(job).ended
        assert ended is not None and ended.claim is not None
        return objects(world, f"{world.url}/work/{job}/outputs/{ended.claim:08d}/")

    def client(world: SageMakerWorld) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=world.cloud.env["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def test_a_script_runs_through_a_reclaim(training_jobs: SageMakerWorld) -> None:
        """Its data are channels, its saves are commits, and SageMaker's copy of them disturbs no restore."""
        world = training_jobs
        world.script("sagemaker_script.py")
        url = put(world, "train/one.txt", "first")
        job = world.submit(
            params={"epochs": 6, "wait-at": 3, "name": "a b"},
            inputs={"train": url.rpartition("/")[0]},
            environment=CONTRACT,
            resources={"spot": True},
            metrics={"loss": "loss=([0-9.]+)"},
        )
        with world.governed():
            world.until(job, lambda: any(each.step == 3 for each in world.journal("step")), "epoch 3")
            world.cloud.interrupt(world.training_job(job))
            summary = world.ended(job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        first, second = (json.loads(each.text) for each in world.journal("start"))
        assert first["cwd"] == "/opt/ml/code" and first["saved"] == []
        assert second["saved"] == ["epoch-001.json", "epoch-002.json", "epoch-003.json"]
        # As the toolkit gives them: a value is text, and arguments are sorted.
        assert first["argv"] == ["--epochs", "6", "--name", "a b", "--wait-at", "3"]
        kept = outputs(world, job)
        assert json.loads(kept["model/model.json"]) == {"epochs": 6, "name": "a b"}
        assert kept["data/report-algo-1.txt"] == b"done"
        for name in world.cloud.names():
            told = world.cloud.describe(name)
            assert [each["ChannelName"] for each in told["InputDataConfig"]][-1] == "train"
            copy = objects(world, f"{told['CheckpointConfig']['S3Uri']}/")
            saved = {path: data for path, data in copy.items() if path.startswith("epoch-")}
            assert json.loads(saved["epoch-003.json"]) == {"learnt": 3, "data": ["first"]}, sorted(copy)
        assert world.cloud.describe(world.cloud.names()[-1])["HyperParameters"]["name"] == '"a b"'

    def test_what_a_script_sees_is_what_it_sees_on_sagemaker(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.write(
            "import json, os, pathlib, socket\n"
            "tree = pathlib.Path('/opt/ml')\n"
            "files = [p for p in (tree / 'input/data').rglob('*') if p.is_file()]\n"
            "data = {str(p.relative_to(tree)): p.read_text() for p in files}\n"
            "config = {p.name: json.loads(p.read_text()) for p in (tree / 'input/config').iterdir()}\n"
            "hosts = {host: socket.gethostbyname(host) for host in json.loads(os.environ['SM_HOSTS'])}\n"
            "seen = {'data': data, 'config': config, 'hosts': hosts, 'cwd': os.getcwd(),\n"
            "        'env': {n: v for n, v in os.environ.items() if n.startswith('SM_') or n == 'TRAINING_JOB_NAME'},\n"
            "        'channels': os.listdir(tree / 'input/data')}\n"
            "here = os.environ['SM_CURRENT_HOST']\n"
            "pathlib.Path(os.environ['TRUTH'], here).write_text(json.dumps(seen))\n"
            "pathlib.Path('results').mkdir(exist_ok=True)\n"
            "pathlib.Path('results', here).write_text('kept once')\n"
            "(tree / 'model' / here).write_text('weights')\n"
        )
        mine = world.root / "mine"
        mine.mkdir()
        (mine / "local.txt").write_text("sent by the submitter")
        url = put(world, "parts/a.txt", "a")
        put(world, "parts/b.txt", "b")
        job = world.submit(
            nodes=2,
            params={"lr": 0.5},
            outputs="results",
            inputs={
                "parts": {"from": url.rpartition("/")[0], "shard": True},
                "single": put(world, "single.txt", "one object"),
                "seen": {"from": url.rpartition("/")[0] + "/", "mode": "mount"},
                "mine": str(mine),
                "url": {"from": "s3://elsewhere/x", "mode": "stream"},
            },
            environment=CONTRACT,
        )
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "succeeded", world.story(job)
        (name,) = world.cloud.names()
        first, second = (json.loads((world.truth / f"algo-{n}").read_text()) for n in (1, 2))
        both = {
            "input/data/single/single.txt": "one object",
            "input/data/mine/local.txt": "sent by the submitter",
            "input/data/seen/a.txt": "a",
            "input/data/seen/b.txt": "b",
        }
        assert first["data"] == both | {"input/data/parts/a.txt": "a"}
        assert second["data"] == both | {"input/data/parts/b.txt": "b"}
        assert sorted(first["channels"]) == ["mine", "parts", "seen", "single"], "no channel of Stoker's is left"
        assert first["hosts"] == {"algo-1": "127.0.1.1", "algo-2": "127.0.1.2"} and first["cwd"] == "/opt/ml/code"
        assert first["config"]["hyperparameters.json"]["lr"] == "0.5"
        assert sorted(first["config"]["inputdataconfig.json"]) == ["mine", "parts", "seen", "single", "url"]
        assert second["config"]["resourceconfig.json"]["current_host"] == "algo-2"
        env = first["env"]
        assert env["TRAINING_JOB_NAME"] == name and env["SM_CURRENT_INSTANCE_TYPE"] == "ml.c5.xlarge"
        assert env["SM_CHANNEL_SINGLE"] == "/opt/ml/input/data/single" and env["SM_CHANNEL_URL"] == "s3://elsewhere/x"
        assert env["SM_MODULE_DIR"] == "/opt/ml/code" and env["SM_MODEL_DIR"] == "/opt/ml/model"
        assert sorted(outputs(world, job)) == [
            "model/algo-1",
            "outputs/algo-1",
            "rank-1/model/algo-2",
            "rank-1/outputs/algo-2",
        ]

    def test_inputs_that_are_no_channels_are_where_channels_are(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.write(
            "import os, pathlib\n"
            "found = [os.path.join(top, one) for top, _, files in os.walk('/opt/ml/input/data') for one in files]\n"
            "pathlib.Path(os.environ['TRUTH'], 'found').write_text(' '.join(sorted(found)))\n"
        )
        put(world, "deep/sub/a.txt", "a")
        job = world.submit(
            inputs={"train": put(world, "deep/b.txt", "b").rpartition("/")[0], "one": put(world, "one.csv", "1")},
            environment=CONTRACT,
            resources={"sagemaker": {**world.resources["sagemaker"], "channels": False}},
        )
        with world.governed():
            summary = world.ended(job)
        assert summary.phase == "succeeded", world.story(job)
        data = "/opt/ml/input/data"
        found = f"{data}/one/one.csv {data}/train/b.txt {data}/train/sub/a.txt"
        assert Path(world.truth, "found").read_text() == found

    def test_a_failure_that_the_script_wrote_is_the_reason(training_jobs: SageMakerWorld) -> None:
        world = training_jobs
        world.script("sagemaker_script.py")
        job = world.submit(params={"epochs": 3, "fail-at": 2}, environment=CONTRACT)
        with world.governed():
            summary = world.ended(job)
        told = "the command ended with exit code 3: the loss is not a number: epoch 2"
        assert summary.attempts[0].reason == told, world.story(job)
        (name,) = world.cloud.names()
        assert told in world.cloud.describe(name)["FailureReason"] and world.cloud.status(name)[0] == "Failed"

else:

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
