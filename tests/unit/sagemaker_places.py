"""A node's place in a job, for tests of SageMaker's contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.sagemaker_machine import ToolkitMachine
from stoker.agent.training_environment import TrainingLocation
from stoker.model.node_config import NodePaths
from stoker.model.spec import Environment, Input, Spec
from stoker.model.submission import Submission

MACHINE = ToolkitMachine("ml.p4d.24xlarge", "ens5", cpus=96, gpus=8, neurons=0)
PARAMS = {
    "epochs": 3,
    "lr": 3e-4,
    "batch-size": 64,
    "name": "a b",
    "cuda": True,
    "bf16": False,
    "nothing": None,
    "k": 5,
    "layers": "json:[1, 2]",
    "betas": 'json:{"b": 2, "a": 1}',
    "text": "[not json",
    "config": '{"b": 2}',
}
SPEC = Spec(
    name="job",
    run="python train.py",
    params=PARAMS,
    inputs={"train": Input("s3://b/t"), "val-set": Input("s3://b/v", "mount"), "piped": Input("s3://b/p", "stream")},
    environment=Environment(contract="sagemaker"),
)


def submission(spec: Spec = SPEC) -> Submission:
    return Submission(job="job-x7", spec=spec, submitter="me@here")


def place(paths: NodePaths, *, rank: int = 0, nodes: int = 1, inputs: dict[str, str] | None = None) -> TrainingLocation:
    return TrainingLocation(
        attempt=1,
        rank=rank,
        names=tuple(f"vm-{n + 1}" for n in range(nodes)),
        addresses=tuple(f"10.0.0.{n + 1}" for n in range(nodes)),
        port=1,
        gpus=8,
        code=paths.code,
        checkpoints=paths.root / "checkpoints",
        channel=paths.channel,
        notice=paths.notice,
        inputs=inputs if inputs is not None else {"train": str(paths.inputs / "train")},
        outputs=paths.root / "artifacts",
        lib=paths.lib,
        environ={},
    )


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path)
    found.code.mkdir()
    (found.inputs / "train").mkdir(parents=True)
    (found.inputs / "train" / "one").write_text("first")
    found.train_log.touch()
    return found
