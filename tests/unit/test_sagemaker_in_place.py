"""A script of SageMaker's on a machine that has `/opt/ml` itself: what the agent writes there, and what it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sagemaker_places import MACHINE, place, submission

from stoker.agent import job_folders, sagemaker_scripts
from stoker.agent.fetch_code import _merge
from stoker.agent.runtime import Command
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Environment, Spec
from stoker.providers.sagemaker.machine import CHANNELS, SageMakerMachine

SPEC = Spec(name="job", run="python train.py", params={"lr": 0.5}, environment=Environment(contract="sagemaker"))


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    ml = tmp_path / "ml"
    found = NodePaths(ml / "stoker/node", ml)
    found.root.mkdir(parents=True)
    (ml / "input/config").mkdir(parents=True)
    (ml / "input/config/resourceconfig.json").write_text('{"current_host": "algo-1", "theirs": true}')
    return found


def test_the_tree_is_used_in_place_and_nothing_is_mounted(paths: NodePaths, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    (copied / "sub").mkdir(parents=True)
    (copied / "sub/a.txt").write_text("a")
    location = place(paths, inputs={"train": str(copied)})
    for _ in range(2):  # Each command of the set-up does it again.
        made = sagemaker_scripts.apply_contract(Command((), {}, paths.code), submission(SPEC), location, paths, MACHINE)
    assert made.mounts == () and made.cwd == tmp_path / "ml/code"
    ml = tmp_path / "ml"
    assert (ml / "input/data/train/sub/a.txt").read_text() == "a"
    assert json.loads((ml / "input/config/hyperparameters.json").read_text())["lr"] == "0.5"
    assert json.loads((ml / "input/config/resourceconfig.json").read_text())["theirs"], "SageMaker's own stays"
    assert not (paths.root / "hosts").exists()
    for folder in ("model", "output/data", "checkpoints", "code"):
        assert (ml / folder).is_dir()


def test_the_folders_are_the_nodes_own(paths: NodePaths) -> None:
    assert job_folders.checkpoint_folder(paths, SPEC) == paths.ml / "checkpoints"  # type: ignore[operator]
    assert not job_folders.is_shared(paths, SPEC)
    elsewhere = Spec(name="job", run="x", environment=SPEC.environment, checkpoints=Checkpoints(dir="/mnt/saves"))
    assert job_folders.is_shared(paths, elsewhere)


def test_files_of_the_image_stay_beside_the_jobs_code(tmp_path: Path) -> None:
    source, target = tmp_path / "new", tmp_path / "code"
    (source / "deep").mkdir(parents=True)
    target.mkdir()
    (source / "deep/own.py").write_text("job")
    (source / "train.py").write_text("job")
    (source / "link").symlink_to("train.py")
    (target / "train.py").write_text("image")
    (target / "helper.py").write_text("image")
    for _ in range(2):
        _merge(source, target)
    assert (target / "train.py").read_text() == "job" and (target / "helper.py").read_text() == "image"
    assert (target / "deep/own.py").read_text() == "job" and (target / "link").is_symlink()


def test_the_machine_knows_its_channels_only_for_scripts_of_sagemakers(tmp_path: Path) -> None:
    node = tmp_path / "ml/stoker/node"
    node.mkdir(parents=True)
    machine = SageMakerMachine(node)
    assert machine.ml is None and machine.channel("train") is None
    (node / CHANNELS).write_text('{"train": {"TrainingInputMode": "File"}}')
    assert machine.ml == tmp_path / "ml"
    assert machine.channel("train") == tmp_path / "ml/input/data/train" and machine.channel("other") is None
