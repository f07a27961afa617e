"""Folders for results that hold code: a file of the code is never left out of the pack without a word."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker import client
from stoker.jobfile import Job
from stoker.model.errors import UserError
from stoker.store.base import Store, open_store
from stoker.submit.prepared_job import PreparedJob


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    code = tmp_path / "code"
    for name in ("main.py", "pkg/train.py", "pkg/__init__.py", "data/words.txt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("import sys\n")
    monkeypatch.chdir(code)
    return open_store(str(tmp_path / "store"))


def prepared(store: Store, *sets: str, run: str | list[str] = "python main.py") -> PreparedJob:
    with client.prepare_any(Job(run=run), store, sets) as found:
        return found


def names(found: PreparedJob) -> set[str]:
    assert found.packed is not None
    return set(found.packed.names)


@pytest.mark.parametrize("field", ["outputs", "checkpoints.dir"])
def test_a_file_of_the_code_is_refused_as_a_folder_for_results(store: Store, field: str) -> None:
    for name in ("main.py", "pkg/train.py"):
        with pytest.raises(UserError, match=rf"^{field}: {name} is a file of the code; name a folder for results"):
            prepared(store, f"{field}={name}", run="true")


@pytest.mark.parametrize("field", ["outputs", "checkpoints.dir"])
@pytest.mark.parametrize(
    "run",
    [
        "python pkg/train.py",
        "cd . && python ./pkg/train.py --lr 1",
        "python -m pkg.train",
        ["torchrun", "-m", "pkg.train"],
        ["python", "pkg/train.py"],
    ],
)
def test_a_folder_with_the_script_is_refused(store: Store, field: str, run: str | list[str]) -> None:
    with pytest.raises(UserError, match=rf"^{field}: pkg holds pkg/train.py, which `run` names, and is not packed"):
        prepared(store, f"{field}=pkg", run=run)


@pytest.mark.parametrize("field", ["outputs", "checkpoints.dir"])
def test_code_that_is_not_packed_is_told_with_the_way_to_pack_it(store: Store, field: str) -> None:
    found = prepared(store, f"{field}=pkg")
    (line,) = found.warnings
    assert line.startswith(f"{field}: pkg/ is for results and is not packed")
    assert "pkg/__init__.py, pkg/train.py" in line and "a pattern such as pkg/*.pt" in line
    assert "pkg/train.py" not in names(found)
    found = prepared(store, f"{field}=pkg/*.pt", run="python pkg/train.py")
    assert not found.warnings and "pkg/train.py" in names(found)


def test_the_default_folder_of_checkpoints_counts_too(store: Store, tmp_path: Path) -> None:
    (tmp_path / "code/checkpoints").mkdir()
    (tmp_path / "code/checkpoints/save.py").write_text("")
    assert prepared(store).warnings[0].startswith("checkpoints.dir: checkpoints/ is for results")


def test_results_of_earlier_runs_are_told_by_their_size_alone(store: Store, tmp_path: Path) -> None:
    earlier = tmp_path / "code/outputs"
    earlier.mkdir()
    (earlier / "result.json").write_text("{}")
    found = prepared(store, "outputs=outputs")
    assert not found.warnings and not found.notes and "outputs/result.json" not in names(found)
    (earlier / "model.pt").write_bytes(b"1" * 2_000_000)
    found = prepared(store, "outputs=outputs")
    assert not found.warnings
    assert found.notes == ("outputs: outputs/ is for results and is not packed (2 MB)",)


def test_the_folders_of_stoker_are_no_code(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "code/home"))
    inside = open_store(str(tmp_path / "code/a store"))
    for folder in ("home", "a store"):
        (tmp_path / "code" / folder).mkdir(exist_ok=True)
        (tmp_path / "code" / folder / "x.py").write_text("")
    found = prepared(inside)
    assert names(found) == {"main.py", "pkg/train.py", "pkg/__init__.py", "data/words.txt"} and not found.warnings


def test_files_that_git_tracks_are_code_and_ignored_ones_are_not(store: Store, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "data/.gitkeep").write_text("keep")
    (code / "data/README.md").write_text("words")
    subprocess.run(["git", "init", "-q"], cwd=code, check=True)
    assert not prepared(store, "outputs=data").warnings
    subprocess.run(["git", "add", "data"], cwd=code, check=True)
    (line,) = prepared(store, "outputs=data").warnings
    assert "the code in it: data/words.txt. " in line
    # A snapshot of the code that a run wrote into an ignored folder.
    (code / ".gitignore").write_text("pkg/\n")
    assert not prepared(store, "outputs=pkg").warnings
