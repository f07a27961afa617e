"""`fit` runs the job; the examples run as they are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from harness import EXAMPLES, World, until

from stoker.model.errors import UserError
from stoker.model.spec import SUBMITTER_TAG
from stoker.sagemaker import PyTorch, UnexpectedStatusException
from stoker.sagemaker.train import InputData, Mode, ModelTrainer, SourceCode
from stoker.sagemaker.train.configs import CheckpointConfig


def written(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags that a person wrote, without the recorded submitter."""
    return {name: value for name, value in tags.items() if name != SUBMITTER_TAG}


def estimator(world: World, **arguments: object) -> PyTorch:
    world.script("sagemaker_script.py")
    usual = {"entry_point": "train.py", "source_dir": str(world.code), "instance_type": "local"}
    return PyTorch(**{**usual, "environment": {"TRUTH": str(world.truth)}, **arguments})  # type: ignore[arg-type]


def test_fit_runs_the_job_and_follows_it(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    (world.root / "data").mkdir()
    (world.root / "data" / "one").write_text("first")
    made = estimator(
        world,
        role="arn:x",
        hyperparameters={"epochs": 2, "name": "fit"},
        tags=[{"Key": "team", "Value": "vision"}],
        metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    )
    made.fit({"train": f"file://{world.root}/data"}, job_name="My Job")
    said = capfd.readouterr()
    assert "epoch=2 loss=0.5000" in said.out
    assert "[stoker] role: not honoured: " in said.err
    job = made.latest_training_job
    assert job is not None and made.jobs == [job]
    assert job.name.startswith("my-job-")
    summary = world.summary(job.name)
    assert summary.outcome == "succeeded"
    assert written(summary.tags) == {"team": "vision"}
    assert summary.metrics["loss"] == 0.5
    assert made.model_data is not None
    model = Path(unquote(urlsplit(made.model_data).path))
    assert json.loads((model / "model.json").read_text()) == {"epochs": 2, "name": "fit"}
    assert job.describe() == {
        "TrainingJobName": job.name,
        "TrainingJobStatus": "Completed",
        "SecondaryStatus": "succeeded",
        "ModelArtifacts": {"S3ModelArtifacts": made.model_data},
    }
    made.logs()
    assert "epoch=1 loss=1.0000" in capfd.readouterr().out


def test_a_job_that_fails_is_an_error_with_its_reason(world: World) -> None:
    made = estimator(world, hyperparameters={"epochs": 3, "fail-at": 1})
    with pytest.raises(UnexpectedStatusException, match="the loss is not a number: epoch 1") as failed:
        made.fit(logs=False)
    assert failed.value.actual_status == "Failed"
    job = made.latest_training_job
    assert job is not None
    assert "the loss is not a number" in job.describe()["FailureReason"]


def test_fit_may_leave_it_to_itself_and_be_waited_for_elsewhere(world: World) -> None:
    """In a thread, as a notebook may: there nobody follows the signals of a terminal."""
    made = estimator(world, hyperparameters={"epochs": 3, "wait-at": 2})
    made.fit(wait=False)
    job = made.latest_training_job
    assert job is not None
    world.training(job.name, step=2)
    assert job.describe()["TrainingJobStatus"] == "InProgress"
    assert made.model_data is None
    waited = threading.Thread(target=job.wait)
    waited.start()
    job.stop()
    waited.join(60)
    assert not waited.is_alive()
    assert job.describe()["TrainingJobStatus"] == "Stopped"
    world.ended(job.name)


def test_fit_goes_on_from_what_lies_at_checkpoint_s3_uri(world: World) -> None:
    saved = world.root / "saved"
    saved.mkdir()
    (saved / "epoch-001.json").write_text(json.dumps({"learnt": 1}))
    made = estimator(world, hyperparameters={"epochs": 2}, checkpoint_s3_uri=saved.as_uri())
    made.fit(logs=False)
    (start,) = world.journal("start")
    assert start.step == 1
    assert plain_files(saved) == {"epoch-001.json": 1, "epoch-002.json": 2}


def plain_files(folder: Path) -> dict[str, int]:
    """The checkpoints at a URL as any program finds them."""
    return {path.name: json.loads(path.read_text())["learnt"] for path in folder.iterdir() if path.name[0] != "."}


def test_a_second_fit_goes_on_where_the_first_one_stopped(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """The guide's way to try an interruption: "provide the checkpoint location of the first job to checkpoint_s3_uri",
    `checkpoint_s3_uri = tf_estimator.checkpoint_s3_uri`.

    https://towardsdatascience.com/a-quick-guide-to-using-spot-instances-with-amazon-sagemaker-b9cfb3a44a68
    """
    uri = (world.root / "bucket" / "checkpoints").as_uri()
    first = estimator(world, hyperparameters={"epochs": 2}, checkpoint_s3_uri=uri)
    first.fit(logs=False)
    place = world.root / "bucket" / "checkpoints"
    assert plain_files(place) == {"epoch-001.json": 1, "epoch-002.json": 2}
    (place / "notes.txt").write_text("mine")
    (place / "notes.txt").unlink()
    second = estimator(world, hyperparameters={"epochs": 4}, checkpoint_s3_uri=first.checkpoint_s3_uri)
    second.fit(logs=False)
    assert [start.step for start in world.journal("start")] == [0, 2]
    assert [step.step for step in world.journal("step")] == [1, 2, 3, 4]
    assert plain_files(place) == {f"epoch-00{epoch}.json": epoch for epoch in (1, 2, 3, 4)}
    assert first.latest_training_job is not None
    said = capfd.readouterr().err
    assert f"going on from the newest checkpoint of {first.latest_training_job.name}, which copied" in said


def test_the_uri_is_kept_up_to_date_while_the_job_trains_and_after_a_stop(world: World) -> None:
    place = world.root / "saved"
    first = estimator(world, hyperparameters={"epochs": 9, "wait-at": 2}, checkpoint_s3_uri=place.as_uri())
    first.fit(wait=False)
    job = first.latest_training_job
    assert job is not None
    world.training(job.name, step=2)
    until(lambda: place.is_dir() and plain_files(place) == {"epoch-001.json": 1, "epoch-002.json": 2}, "it is copied")
    job.stop()
    world.ended(job.name)
    second = estimator(world, hyperparameters={"epochs": 3}, checkpoint_s3_uri=place.as_uri())
    second.fit(logs=False)
    assert [start.step for start in world.journal("start")] == [0, 2]


def test_a_half_written_copy_is_not_taken_for_a_checkpoint(world: World) -> None:
    """The machine was lost while it copied: the files are of two checkpoints, and the store has a whole one."""
    place = world.root / "saved"
    first = estimator(world, hyperparameters={"epochs": 2}, checkpoint_s3_uri=place.as_uri())
    first.fit(logs=False)
    record = place / ".stoker-copy.json"
    (place / "epoch-002.json").write_text('{"lear')
    record.write_text(record.read_text().replace('"complete":true', '"complete":false'))
    second = estimator(world, hyperparameters={"epochs": 3}, checkpoint_s3_uri=place.as_uri())
    second.fit(logs=False)
    assert [start.step for start in world.journal("start")] == [0, 2]
    assert plain_files(place) == {f"epoch-00{epoch}.json": epoch for epoch in (1, 2, 3)}


def test_a_model_trainer_goes_on_from_its_checkpoint_config(world: World) -> None:
    """Version 3 of the SDK, with the same checkpoints."""
    world.script("sagemaker_script.py")
    (world.root / "data").mkdir()
    (world.root / "data" / "one").write_text("first")
    place = world.root / "saved"

    def train(epochs: int) -> ModelTrainer:
        made = ModelTrainer(
            source_code=SourceCode(source_dir=str(world.code), entry_script="train.py"),
            training_mode=Mode.LOCAL_CONTAINER,
            hyperparameters={"epochs": epochs, "name": "a b"},
            environment={"TRUTH": str(world.truth)},
            checkpoint_config=CheckpointConfig(s3_uri=place.as_uri()),
            base_job_name="trainer",
        )
        made.train([InputData(channel_name="train", data_source=str(world.root / "data"))], logs=False)
        return made

    train(1)
    second = train(2)
    assert [start.step for start in world.journal("start")] == [0, 1]
    assert plain_files(place) == {"epoch-001.json": 1, "epoch-002.json": 2}
    job = second._latest_training_job
    assert job.training_job_name.startswith("trainer-")
    assert job.training_job_status == "Completed"
    model = Path(unquote(urlsplit(job.model_data).path))
    assert json.loads((model / "model.json").read_text()) == {"epochs": 2, "name": "a b"}


def test_stokers_own_words_come_last(world: World) -> None:
    made = estimator(world, hyperparameters={"epochs": 1}, stoker={"tags": {"own": "yes"}, "checkpoints": {"keep": 7}})
    made.fit(logs=False)
    job = made.latest_training_job
    assert job is not None
    assert written(world.summary(job.name).tags) == {"own": "yes"}


def test_nothing_is_written_for_a_mistake(world: World) -> None:
    with pytest.raises(UserError, match=r"^inputs\.x: "):
        estimator(world).fit({"x": str(world.root / "nowhere")})
    assert not list(world.folder.glob("jobs/*"))


# ── The examples ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_through_a_reclaim(world: World) -> None:
    shutil.copytree(EXAMPLES / "sagemaker", world.code, dirs_exist_ok=True)
    started = world.start("run", "--set", "params.epochs=60", "--set", "params.pause=0.05")
    logs = lambda: world.folder.glob("jobs/*/log/*")  # noqa: E731
    job = until(lambda: next((path.parts[-3] for path in logs()), None), "it is submitted")
    until(lambda: any("epoch=5 " in line for line in world.lines(job)), "it trains")
    world.interrupt(job, grace_s=10)
    assert started.wait(120) == 0
    summary = world.ended(job)
    assert [attempt.outcome for attempt in summary.attempts] == ["reclaimed", "succeeded"], world.story(job)
    assert any(line.startswith("going on after epoch") for line in world.lines(job))
    assert json.loads((world.outputs(job) / "model" / "line.json").read_text()).keys() == {"slope", "offset"}


def test_the_example_with_the_call(world: World) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "sagemaker" / "fit.py"],
        env=world.environ(),
        cwd=world.root,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    model = next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith("model: "))
    line = json.loads((Path(unquote(urlsplit(model).path)) / "line.json").read_text())
    assert line["slope"] == pytest.approx(2, abs=0.01)
    assert line["offset"] == pytest.approx(1, abs=0.01)
