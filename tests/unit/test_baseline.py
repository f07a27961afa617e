"""The files from before the training, which are no outputs."""

from __future__ import annotations

import os
from pathlib import Path

from checkpoint_world import write
from output_node import paths, spec

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.output_files import Baseline
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints

__all__ = ["paths"]


def test_the_baseline_is_there_for_the_next_agent(paths: NodePaths) -> None:
    assert Baseline.read(paths.baseline) is None
    baseline = Baseline.take([paths.code])
    baseline.write(paths.baseline)
    assert Baseline.read(paths.baseline) == baseline
    paths.baseline.write_text("torn")
    assert Baseline.read(paths.baseline) is None


def test_the_baseline_has_the_markers_of_saves(paths: NodePaths) -> None:
    spec_ = spec(checkpoints=Checkpoints(dir="."), outputs="artifacts")
    write(paths.code / "step-1/.stoker-checkpoint.json", '{"number": 1}')
    baseline = Baseline.take([paths.code])
    assert job_folders.checkpoint_selection(paths, spec_, baseline).scan(paths.code) == {}


def test_a_baseline_with_names_that_are_no_text_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "work" / os.fsdecode(b"caf\xe9"), "1")
    baseline = Baseline.take([tmp_path / "work"])
    baseline.write(tmp_path / "baseline.json")
    assert Baseline.read(tmp_path / "baseline.json") == baseline and len(baseline.files) == 1


def test_a_baseline_knows_a_file_by_its_size_and_time(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, "1")
        os.utime(tmp_path / name, (1000, 1000))
    baseline = Baseline.take([tmp_path, tmp_path / "missing"])
    os.utime(tmp_path / "b", (1001, 1001))
    write(tmp_path / "c", "22")
    os.utime(tmp_path / "c", (1000, 1000))
    assert {path: baseline.has_file(tmp_path, file) for path, file in scan(tmp_path).items()} == {
        "a": True,
        "b": False,
        "c": False,
    }
    assert set(baseline.without([tmp_path / "a"]).files) == {str(tmp_path / "b"), str(tmp_path / "c")}
    for text in ("[]", '{"a": 1}', '{"a": [1]}', '{"a": ["x", 2]}'):
        write(tmp_path / "baseline", text)
        assert Baseline.read(tmp_path / "baseline") is None
