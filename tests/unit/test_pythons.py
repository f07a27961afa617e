"""The Python of this computer that a job names: run before anything is submitted, and refused for what it is."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from stoker.model.errors import UserError
from stoker.submit import python_interpreter
from stoker.submit.python_interpreter import find_python

REAL = getattr(sys, "_base_executable", sys.executable)
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CONDA_PREFIX", "CONDA_EXE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def write(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def refusal(wanted: str, folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        find_python(wanted, folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", "is no Python"),
        ('echo "$@"', "is no Python"),
        ("echo 'pyenv: command not found' >&2; echo 'It exists in: 3.10' >&2; exit 127", "pyenv: command not found"),
        ("exit 1", "it printed nothing"),
    ],
)
def test_what_is_no_python_is_refused_with_what_it_said_first(programs: Path, script: str, problem: str) -> None:
    path = write(programs / "tool", script)
    (programs / "python3").symlink_to(REAL)
    message = refusal(str(path), programs)
    assert message.startswith(f"environment.python: {path} ")
    assert problem in message and "It exists in" not in message
    assert message.endswith(f"those that run here: {programs}/python3; name one of them")


def test_a_program_that_does_not_answer(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_interpreter, "_ASK_S", 0.2)
    path = write(programs / "tool", "exec /bin/sleep 60")
    assert refusal(str(path), programs).endswith(f"{path} does not answer within 0.2 s; give the path of one")


def test_another_version_than_was_asked_for(programs: Path) -> None:
    (programs / "python3.99").symlink_to(REAL)
    said = f"{programs}/python3.99 is Python {platform.python_version()}, and 3.99 is wanted; give the path of one"
    assert refusal("3.99", programs) == f"environment.python: {said}"
    # 3.1 is not the beginning of 3.11.
    (programs / "python3.1").symlink_to(REAL)
    assert "and 3.1 is wanted" in refusal("3.1", programs)


def test_those_that_are_there_are_listed_where_a_version_is_missing(programs: Path) -> None:
    assert refusal("3.98", programs).endswith("there is no Python '3.98' here; give the path of one")
    (programs / "python3").symlink_to(REAL)
    (programs / "python3.10").symlink_to(programs / "python3")
    write(programs / "python3.9", "exit 127")
    message = refusal("3.98", programs)
    # One of many names of the same, and nothing that does not run.
    assert message.endswith(f"'3.98' here; those that run here: {programs}/python3.10; name one of them")


def test_a_version_means_what_the_program_of_that_name_starts(programs: Path) -> None:
    """pyenv's programs choose by their names, and `python` beside them may be another one."""
    write(programs / f"python{VERSION}", f'exec {REAL} "$@"')
    assert find_python(VERSION, programs) == REAL


def test_the_path_of_a_python_stays_what_it_is(programs: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(REAL)
    assert find_python(str(tmp_path / "venv"), programs) == str(environment / "python")
    assert find_python("../venv/bin/python", programs) == str(environment / "python")
    (programs / "python3.7").symlink_to(REAL)
    assert find_python(str(programs / "python3.7"), programs) == str(programs / "python3.7")


def test_the_active_one_is_taken_as_it_is(programs: Path) -> None:
    with pytest.raises(UserError, match="there is no python on your PATH"):
        find_python(None, programs)
    write(programs / "python3", "exit 1")
    assert find_python(None, programs) == str(programs / "python3")


@pytest.mark.parametrize(
    ("variable", "value", "root"),
    [
        # In the base environment, in another one, and where only the program is known.
        ("CONDA_PREFIX", "conda", "conda"),
        ("CONDA_PREFIX", "conda/envs/other", "conda"),
        ("CONDA_EXE", "conda/bin/conda", "conda"),
    ],
)
def test_a_conda_environment_is_found_by_its_name(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, root: str
) -> None:
    python = tmp_path / root / "envs" / "mine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(REAL)
    monkeypatch.setenv(variable, str(tmp_path / value))
    assert find_python("mine", tmp_path) == str(python)
    assert "there is no Python 'yours' here" in refusal("yours", tmp_path)
    # A program of that name on the PATH comes first.
    write(programs / "mine", f'exec {REAL} "$@"')
    assert find_python("mine", tmp_path) == REAL


def test_without_conda_no_environment_is_looked_for(programs: Path, tmp_path: Path) -> None:
    assert refusal("mine", tmp_path).startswith("environment.python: there is no Python 'mine' here; ")


def test_a_file_that_the_system_cannot_run_is_no_python(programs: Path, tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF and no more")
    path.chmod(0o755)
    assert f"{path} does not run: Exec format error; " in refusal(str(path), tmp_path)
