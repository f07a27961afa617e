"""The folders of a node, and what is kept of them as outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_world import write

from stoker.agent import job_folders
from stoker.agent.output_files import Baseline
from stoker.model.node_config import NodePaths
from stoker.model.spec import Spec

LIMIT_S = 60.0


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path / "node")
    write(found.code / "train.py", "code")
    write(found.code / "config.json", "as packed")
    return found


def spec(**fields: object) -> Spec:
    return Spec(name="job", run="python train.py", **fields)  # type: ignore[arg-type]


def kept(paths: NodePaths, job: Spec, baseline: Baseline) -> dict[str, str]:
    files = job_folders.output_files(paths, job, baseline)
    declared = files.declared()
    beside, _ = files.beside(declared)
    return {path: output.source.read_text() for path, output in {**declared, **beside}.items()}


def began(paths: NodePaths, job: Spec) -> Baseline:
    for folder in job_folders.written(paths, job):
        folder.mkdir(parents=True, exist_ok=True)
    return Baseline.take(job_folders.watched(paths, job))


def touch_later(path: Path, text: str, at: float) -> None:
    write(path, text)
    os.utime(path, (at, at))
