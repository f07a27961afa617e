"""A script of SageMaker's on a machine that has `/opt/ml` itself: what the agent writes there, and what it leaves."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_world import AgentWorld
from output_node import kept
from sagemaker_places import MACHINE, place, submission

from stoker.agent import job_folders, sagemaker_scripts
from stoker.agent.fetch_code import _merge, fetch_code
from stoker.agent.inputs.service import Inputs
from stoker.agent.output_files import Baseline
from stoker.agent.runtime import Command
from stoker.model import keys
from stoker.model.log_entries import Submitted
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Checkpoints, Environment, Input, Spec
from stoker.model.submission import Code
from stoker.providers.sagemaker.machine import CHANNELS, SageMakerMachine
from stoker.store.safe_extraction import Extraction
from stoker.submit.pack_code import pack

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


@pytest.mark.parametrize("packed", [True, False])
def test_the_code_is_fetched_beside_the_files_of_the_image(paths: NodePaths, tmp_path: Path, packed: bool) -> None:
    world = AgentWorld(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train.py").write_text("job")
    archive = pack(tmp_path / "source", into=tmp_path)
    world.store.put(keys.code(keys.shared_name(archive.digest, 1)), archive.path.read_bytes())
    code = Code(archive.digest, 1, 1, generation=1) if packed else None
    world.append(Submitted(spec_digest="0" * 64, submitter="me", code_digest=archive.digest if packed else None))
    image = tmp_path / "ml/code"
    image.mkdir()
    for name in ("train.py", "helper.py"):
        (image / name).write_text("image")
    (paths.root / "unpacked").mkdir()
    (paths.root / "unpacked/old.py").write_text("of a try before")
    for _ in range(2):  # A set-up that failed does it again.
        fetch_code(world.store, world.state, replace(submission(SPEC), code=code), paths)
    assert (image / "train.py").read_text() == ("job" if packed else "image")
    assert sorted(path.name for path in image.iterdir()) == ["helper.py", "train.py"]
    if packed:
        assert not (paths.root / "unpacked").exists() and not (paths.root / "code.tar.gz").exists()


def test_results_are_stored_as_if_they_were_in_one_folder(paths: NodePaths, tmp_path: Path) -> None:
    spec = replace(SPEC, outputs="/opt/ml/results")
    sagemaker_scripts.mounts(paths, spec)
    ml = tmp_path / "ml"
    assert (ml / "results").is_dir()
    for name in ("model/m.bin", "output/data/d.csv", "output/intermediate/i.csv", "results/r.csv"):
        (ml / name).parent.mkdir(parents=True, exist_ok=True)
        (ml / name).write_text(name)
    four = {"model/m.bin", "data/d.csv", "intermediate/i.csv", "outputs/r.csv"}
    assert set(kept(paths, spec, Baseline())) == four
    assert set(kept(paths, replace(spec, outputs=None), Baseline())) == four - {"outputs/r.csv"}


def test_a_path_elsewhere_is_the_machines_own(paths: NodePaths, tmp_path: Path) -> None:
    assert job_folders.outside(paths, "/mnt/results") == Path("/mnt/results")
    assert job_folders.outside(paths, "/opt/mlx") == Path("/opt/mlx")
    assert job_folders.outside(paths, "/opt/ml/results") == tmp_path / "ml/results"


def test_inputs_are_linked_where_sagemaker_has_channels(
    paths: NodePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "ml/input/data"
    for name in ("file/words.txt", "folder/sub/a.txt"):
        (tmp_path / "copied" / name).parent.mkdir(parents=True)
        (tmp_path / "copied" / name).write_text(name)
    (data / "channel").mkdir(parents=True)
    inputs = {
        "stream": "s3://b/p",
        "channel": str(data / "channel"),
        "file": str(tmp_path / "copied/file/words.txt"),
        "folder": str(tmp_path / "copied/folder"),
    }
    for _ in range(2):
        sagemaker_scripts.mounts(paths, SPEC, inputs)
    assert sorted(path.name for path in data.iterdir()) == ["channel", "file", "folder"]
    assert (data / "file/words.txt").stat().st_nlink == 2, "a link, and no copy"
    assert (data / "folder/sub/a.txt").stat().st_nlink == 2

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    sagemaker_scripts.mounts(paths, SPEC, {"other": inputs["file"]})
    assert (data / "other/words.txt").read_text() == "file/words.txt"
    assert (data / "other/words.txt").stat().st_nlink == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_tree_that_allows_no_changes_stays(
    paths: NodePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tried: list[str] = []

    def refuse(_tree: object, path: str, _data: bytes) -> None:
        tried.append(path)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Extraction, "write", refuse)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            sagemaker_scripts.write_tree(paths, SPEC, place(paths), MACHINE, "job-x7")
    else:
        sagemaker_scripts.write_tree(paths, SPEC, place(paths), MACHINE, "job-x7")
        assert tried == ["input/config/hyperparameters.json", "input/config/inputdataconfig.json"]


@pytest.mark.parametrize(("source", "used"), [("s3://b/train/", "train"), ("s3://b/words.txt", "train/words.txt")])
def test_a_channel_of_the_training_job_is_the_input(paths: NodePaths, tmp_path: Path, source: str, used: str) -> None:
    (paths.root / CHANNELS).write_text('{"train": {"TrainingInputMode": "File"}}')
    said: list[str] = []
    node = SimpleNamespace(
        machine=SageMakerMachine(paths.root),
        paths=paths,
        inputs=paths.inputs,
        config=NodeConfig("memory://", "sagemaker", "job-x7", 1, 0, 1, "m-1"),
        say=said.append,
    )
    channel = tmp_path / "ml/input/data/train"
    channel.mkdir(parents=True)
    (channel / "words.txt").write_text("a")
    inputs = Inputs(node, lambda: None, cache_root=tmp_path / "cache")  # type: ignore[arg-type]
    assert inputs.provide({"train": Input(source)}) == {"train": str(channel.parent / used)}
    assert said == [f"inputs.train: {source} is a channel of the training job, at {channel}"]
