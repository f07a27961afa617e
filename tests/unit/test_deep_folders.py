"""A program that makes folders in folders without end costs no more than a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write

from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.output_files import OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.processes.tree_removal import remove_tree

LEVELS = 3000


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Deeper than Python calls functions, and longer than a path may be."""
    folder, here = tmp_path / "deep", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        for _ in range(LEVELS):
            Path("d").mkdir()
            os.chdir("d")
        Path("bottom").write_text("x")
    finally:
        os.chdir(here)
    write(folder / "result", "1")
    write(folder / "also/result", "1")
    return folder


def test_the_rest_is_kept_and_what_is_too_deep_is_told(deep: Path) -> None:
    found = scan(deep)
    assert sorted(path for path, file in found.items() if not file.problem) == ["also/result", "result"]
    (told,) = [file for file in found.values() if file.problem]
    assert told == found["d/" * 100] and told.problem == "it lies deeper than 99 folders; save it higher up"
    for files in (OutputFiles([OutputSource(deep, takes_all=True)]), OutputFiles([], OutputSource(deep))):
        sync = OutputSync(memory_store(), JOB, 1, 0, files)
        assert sync.final(60.0)
        report = sync.report()
        assert report.files == 2
        assert [one.why for one in report.named] == ["lies deeper than 99 folders"]
    remove_tree(deep)
    assert not deep.exists()


def test_a_mistake_of_ours_does_not_hold_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: OutputFiles) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(OutputFiles, "declared", fail)
    sync = OutputSync(memory_store(), JOB, 1, 0, tmp_path)
    sync.final(600.0)
    (told,) = sync.report().named
    assert told.why == "the rest cannot be kept: RecursionError: maximum recursion depth exceeded"
