"""Which files of a node are kept as outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write
from output_node import LIMIT_S, began, kept, paths, spec

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource, without_caches
from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Environment

__all__ = ["paths"]


def test_without_a_word_everything_new_is_kept(paths: NodePaths) -> None:
    job = spec()
    baseline = began(paths, job)
    write(paths.code / "out/ckpt.pt", "model")
    write(paths.code / "config.json", "changed")
    write(paths.code / "outputs/loss.csv", "1")
    write(paths.code / "checkpoints/step-1/model", "is safe already")
    for name in ("__pycache__/a.pyc", ".git/x", "venv/pyvenv.cfg", "venv/lib/a.py", "half.tmp"):
        write(paths.code / name, "x")
    assert kept(paths, job, baseline) == {"out/ckpt.pt": "model", "config.json": "changed", "loss.csv": "1"}


def test_what_the_setup_made_is_no_result(paths: NodePaths) -> None:
    job = spec(outputs="artifacts")
    write(paths.code / "data/train.bin", "made by setup")
    baseline = began(paths, job)
    write(paths.code / "artifacts/a", "1")
    assert kept(paths, job, baseline) == {"a": "1"}


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ("artifacts", {"a", "plot.png", "runs/x", "cache/y"}),
        (["artifacts", "*.png"], {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
        (["artifacts", "!cache"], {"artifacts/a", "plot.png", "runs/x"}),
        (["!**", "runs"], {"runs/x"}),
        (".", {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
        ("runs/*", {"artifacts/a", "plot.png", "runs/x", "cache/y"}),
    ],
)
def test_patterns(paths: NodePaths, outputs: str | list[str], expected: set[str]) -> None:
    job = spec(outputs=outputs if isinstance(outputs, str) else tuple(outputs))
    baseline = began(paths, job)
    for name in ("artifacts/a", "plot.png", "runs/x", "cache/y", "checkpoints/z"):
        write(paths.code / name, "1")
    assert set(kept(paths, job, baseline)) == expected


def test_declared_files_are_synced_while_it_trains_and_others_are_not(paths: NodePaths) -> None:
    job = spec(outputs=("*.png", "runs"))
    files = job_folders.output_files(paths, job, began(paths, job))
    for name in ("plot.png", "runs/x", "other"):
        write(paths.code / name, "1")
    assert set(files.declared()) == {"plot.png", "runs/x"}


def test_an_absolute_folder_keeps_what_others_had_in_it_to_itself(paths: NodePaths, tmp_path: Path) -> None:
    write(tmp_path / "mine/old.txt", "private")
    job = spec(outputs=str(tmp_path / "mine"))
    baseline = began(paths, job)
    write(tmp_path / "mine/new.txt", "result")
    assert kept(paths, job, baseline) == {"new.txt": "result"}


def test_two_files_of_one_name(paths: NodePaths) -> None:
    job = spec(outputs="artifacts")
    baseline = began(paths, job)
    write(paths.code / "artifacts/model.txt", "declared")
    write(paths.code / "model.txt", "beside")
    assert kept(paths, job, baseline) == {"model.txt": "declared", "work/model.txt": "beside"}


def test_code_that_has_a_file_called_outputs(paths: NodePaths) -> None:
    write(paths.code / "outputs", "a file of the code")
    job = spec()
    baseline = began(paths, job)
    top = job_folders.output_folder(paths, job)
    assert top.is_dir()
    write(top / "a", "1")
    assert kept(paths, job, baseline) == {"a": "1"}
    assert (paths.code / "outputs").read_text() == "a file of the code"


def test_checkpoints_beside_the_code(paths: NodePaths) -> None:
    """A pattern's files are safe in checkpoints; the code is in neither."""
    job = spec(checkpoints=Checkpoints(dir=("*.pt", "state.json")))
    baseline = began(paths, job)
    write(paths.code / "model.pt", "1")
    write(paths.code / "state.json", "1")
    write(paths.code / "plot.png", "1")
    selection = job_folders.checkpoint_selection(paths, job, baseline)
    assert set(selection.scan(paths.code)) == {"model.pt", "state.json"}
    assert kept(paths, job, baseline) == {"plot.png": "1"}
    everything = spec(checkpoints=Checkpoints(dir="."), outputs="artifacts")
    baseline = Baseline.take([paths.code]).without([paths.code / name for name in ("model.pt", "plot.png")])
    write(paths.code / "artifacts/result", "1")
    selection = job_folders.checkpoint_selection(paths, everything, baseline)
    assert set(selection.scan(paths.code)) == {"model.pt", "plot.png"}


def test_files_of_a_script_for_sagemaker(paths: NodePaths) -> None:
    job = spec(environment=Environment(contract="sagemaker"))
    baseline = began(paths, job)
    write(job_folders.artifacts(paths) / "model/weights", "1")
    write(paths.code / "beside.txt", "2")
    assert kept(paths, job, baseline) == {"model/weights": "1", "code/beside.txt": "2"}


def test_of_an_output_folder_everything_but_what_cannot_be_is_kept(paths: NodePaths) -> None:
    baseline = began(paths, spec())
    write(paths.code / "outputs/env/pyvenv.cfg", "x")
    write(paths.code / "outputs/.git/config", "x")
    os.mkfifo(paths.code / "outputs/pipe")
    sync = OutputSync(memory_store(), JOB, 1, 0, job_folders.output_files(paths, spec(), baseline))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert report.files == 2 and [one.path for one in report.named] == ["pipe"]


@pytest.mark.parametrize(
    ("saves", "outputs", "expected"),
    [
        ("checkpoints", "checkpoints/best.pt", {"checkpoints/best.pt"}),
        ("checkpoints", "checkpoints/*.pt", {"checkpoints/best.pt", "checkpoints/last.pt"}),
        ("checkpoints", ["checkpoints/*.pt", "!checkpoints/last*"], {"checkpoints/best.pt"}),
        ("checkpoints", "**/*.pt", set()),
        ("checkpoints", "**", set()),
        (["*.ckpt", "checkpoints/**"], "model.ckpt", {"model.ckpt"}),
        (["*.ckpt", "checkpoints/**"], "*.ckpt", set()),
    ],
)
def test_a_checkpoint_that_outputs_names_is_kept_as_an_output_too(
    paths: NodePaths, saves: str | list[str], outputs: str | list[str], expected: set[str]
) -> None:
    job = spec(
        outputs=outputs if isinstance(outputs, str) else tuple(outputs),
        checkpoints=Checkpoints(dir=saves if isinstance(saves, str) else tuple(saves)),
    )
    baseline = began(paths, job)
    for name in ("checkpoints/best.pt", "checkpoints/last.pt", "checkpoints/log", "model.ckpt"):
        write(paths.code / name, name)
    found = set(kept(paths, job, baseline)) - ({"model.ckpt"} if saves == "checkpoints" else set())
    assert found == expected


@pytest.mark.parametrize(
    ("saves", "expected"),
    [("checkpoints", "checkpoints/last.bin"), (".", "last.bin"), ("/absolute", "absolute/last.bin")],
)
def test_saves_that_no_commit_has_can_be_kept(paths: NodePaths, tmp_path: Path, saves: str, expected: str) -> None:
    job = spec(checkpoints=Checkpoints(dir=saves.replace("/absolute", str(tmp_path / "absolute"))))
    baseline, folder = began(paths, job), job_folders.checkpoint_folder(paths, job)
    write(folder / "last.bin", "the model")
    files = job_folders.output_files(paths, job, baseline)
    assert files.beside({}) == ({}, [])
    files.keep_saves(folder, {"last.bin": scan(folder)["last.bin"]})
    found, left_out = files.beside({})
    assert {path: output.source for path, output in found.items()} == {keys.UNFINISHED + expected: folder / "last.bin"}
    assert left_out == []


def test_a_file_whose_name_is_a_folder_of_declared_ones_moves_aside(tmp_path: Path) -> None:
    for name in ("out/a", "out/sub/b"):
        write(tmp_path / name, "declared")
    for name in ("work/a/x", "work/sub", "work/c/sub"):
        write(tmp_path / name, "beside")
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)], OutputSource(tmp_path / "work"))
    found, left_out = files.beside(files.declared())
    assert {path: output.source.relative_to(tmp_path).as_posix() for path, output in found.items()} == {
        "work/a/x": "work/a/x",
        "work/sub": "work/sub",
        "c/sub": "work/c/sub",
    }
    assert {output.file.path for output in found.values()} == set(found) and left_out == []


def test_what_programs_make_again_is_no_output(tmp_path: Path) -> None:
    for name in (
        *("a", "__pycache__/b", "sub/.git/c", "d.pyc", "env/pyvenv.cfg", "env/lib/e", "conda/conda-meta/history"),
        *("conda/bin/f", "environment/g", "sub/node_modules/h/i"),
    ):
        write(tmp_path / name, "1")
    assert set(without_caches(scan(tmp_path))) == {"a", "environment/g"}
    assert set(OutputFiles([OutputSource(tmp_path)]).declared()) == {"a", "environment/g"}
    found, _ = OutputFiles([], OutputSource(tmp_path)).beside({})
    assert set(found) == {"a", "environment/g"}
    assert len(OutputFiles([OutputSource(tmp_path, takes_all=True)]).declared()) == 10, (
        "an output folder is kept as it is"
    )


@pytest.mark.parametrize(
    "made",
    [
        *("__pycache__/a", ".git/HEAD", ".stoker/a", ".mypy_cache/a", ".pytest_cache/a", ".ruff_cache/a"),
        *(".hypothesis/a", ".ipynb_checkpoints/a.ipynb", ".tox/a", ".nox/a", ".triton/a", ".nv/a", "node_modules/a"),
        *(".DS_Store", "module.pyc", "env/pyvenv.cfg", "env/conda-meta/history"),
    ],
)
def test_caches_of_usual_tools_are_neither_declared_nor_kept_beside_the_code(tmp_path: Path, made: str) -> None:
    for name in ("result", made, f"below/{made}", f"not-{made}"):
        write(tmp_path / name, "1")
    expected = {"result", f"not-{made}"} if "env/" not in made and not made.endswith(".pyc") else {"result"}
    assert set(OutputFiles([OutputSource(tmp_path)]).declared()) == expected
    found, left_out = OutputFiles([], OutputSource(tmp_path)).beside({})
    assert set(found) == expected
    told = {"env", "below/env", "not-env"} if "env/" in made else set()
    assert {one.path for one in left_out} == told, "only an environment is told: a person may miss it"


def test_a_saved_file_that_is_declared_is_not_kept_twice(tmp_path: Path) -> None:
    write(tmp_path / "work/saves/last", "1")
    write(tmp_path / "work/saves/best", "1")
    files = OutputFiles(
        [OutputSource(tmp_path / "work", takes=lambda path: path == "saves/best")],
        OutputSource(tmp_path / "work", takes=lambda path: not path.startswith("saves/")),
    )
    files.keep_saves(tmp_path / "work/saves", scan(tmp_path / "work/saves"))
    found, _ = files.beside(files.declared())
    assert set(found) == {"perhaps-unfinished/saves/last"}
    files.keep_saves(tmp_path / "work/saves", scan(tmp_path / "work/saves"), {"best"})
    assert files.declared() == {}, "a torn file never looks like a result"
    found, _ = files.beside({})
    assert set(found) == {"perhaps-unfinished/saves/last", "perhaps-unfinished/saves/best"}
