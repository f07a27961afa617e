"""The whole of it with a bucket as the store: far away, with money for every call and whole seconds for a clock."""

from __future__ import annotations

import pytest
from harness import World, chain, fields, until

from stoker import sagemaker
from stoker.sagemaker import TensorFlow
from stoker.sagemaker.debugger import TensorBoardOutputConfig
from stoker.store.base import open_store
from stoker.store.checkpoint_copy import list_files
from tests.support.servers import isolated, pytest_isolated

if isolated():

    def test_a_reclaim_on_an_s3_store(world: World, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world.url = s3_url
        monkeypatch.setenv("STOKER_STORE", s3_url)
        world.script("counter.py")
        job = world.submit(params={"steps": 120, "pause": 0.1})
        world.training(job, step=20)
        world.interrupt(job, grace_s=30)
        summary = world.ended(job)

        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
        first, second = summary.attempts
        assert first.step is not None and second.first_step == first.step + 1
        assert world.journal("overlap") == []
        lines = world.lines(job)
        assert any(chain(120) in line for line in lines)
        printed = [record.text for record in world.journal("line")]
        assert [line for line in lines if line in set(printed)] == printed

    def test_a_gang_agrees_through_a_bucket(world: World, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        world.url = s3_url
        monkeypatch.setenv("STOKER_STORE", s3_url)
        world.script("counter.py")
        job = world.submit(nodes=2, params={"steps": 60, "pause": 0.1, "sharded": 1})
        until(lambda: {record.rank for record in world.journal("step")} == {0, 1}, "both ranks train")
        world.interrupt(job, grace_s=30, node=1)
        summary = world.ended(job)
        assert summary.outcome == "succeeded", world.story(job)
        assert summary.attempts[0].outcome == "reclaimed"
        assert world.journal("overlap") == []

    def test_the_guides_two_fits_with_one_checkpoint_s3_uri(
        world: World, s3_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The notebook of the guide to spot instances, with `output_path`, `job_name` and version 1's names as there.

        https://github.com/shashankprasanna/sagemaker-spot-training/blob/master/tf-keras-cifar10-spot-training.ipynb
        """
        monkeypatch.delenv("STOKER_STORE", raising=False)
        world.script("sagemaker_script.py")
        output_path = f"{s3_url}/jobs"
        job_name = "tensorflow-spot-2026-05-01-12-00-00"

        def fit(epochs: int, uri: str) -> TensorFlow:
            estimator = TensorFlow(
                entry_point="train.py",
                source_dir=str(world.code),
                output_path=f"{output_path}/",
                code_location=output_path,
                checkpoint_s3_uri=uri,
                role=sagemaker.get_execution_role(),
                train_instance_count=1,
                train_instance_type="local",
                framework_version="1.15",
                py_version="py3",
                script_mode=True,
                train_use_spot_instances=True,
                train_max_wait=7200,
                train_max_run=3600,
                sagemaker_session=sagemaker.Session(boto_session=None),
                hyperparameters={"epochs": epochs},
                tensorboard_output_config=TensorBoardOutputConfig(output_path),
                environment={"TRUTH": str(world.truth)},
                model_dir=False,
            )
            estimator.fit(job_name=job_name, wait=True, logs=False)
            return estimator

        first = fit(2, f"{output_path}/{job_name}/checkpoints")
        copies = open_store(first.checkpoint_s3_uri)
        assert list(list_files(copies)) == ["epoch-001.json", "epoch-002.json"]
        fit(4, first.checkpoint_s3_uri)
        assert [start.step for start in world.journal("start")] == [0, 2]
        assert [meta.key for meta in copies.list("") if meta.key[0] != "."] == [
            f"epoch-00{n}.json" for n in (1, 2, 3, 4)
        ]

else:

    def test_s3_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
