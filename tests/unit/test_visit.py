"""A person's command runs where the training runs, as the training sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stoker.agent import exec_command
from stoker.model.node_config import NodePaths
from stoker.processes import NODE, TRAINING
from stoker.processes.container_sweep import ContainerRecord, container_name, write_record

Begin = Callable[..., subprocess.Popen[bytes]]


class Become(Exception):
    """Instead of becoming a program."""


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts processes that wait, with nothing but these variables."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        waits = "import sys; print(flush=True); sys.stdin.read()"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-S", "-c", waits], env=variables, **pipes)  # type: ignore[call-overload]
        begun.append(process)
        # Its environment is to be seen once it runs.
        process.stdout.readline()
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = NodePaths(tmp_path / "node")
    found.code.mkdir(parents=True)
    return found


@pytest.fixture
def becomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[list[tuple[str, list[str], dict[str, str], str]]]:
    """What this process would have become, and where."""
    found: list[tuple[str, list[str], dict[str, str], str]] = []

    def become(program: str, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        found.append((program, list(argv), dict(environ), str(Path.cwd())))
        raise Become

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execvpe", become)
    yield found


def test_the_environment_is_that_of_the_oldest_process_of_this_node(begin: Begin, paths: NodePaths) -> None:
    assert exec_command.training_environ(paths) is None
    begin(STOKER_CHANNEL="/another/node/channel", WHICH="another")
    begin(STOKER_CHANNEL=str(paths.channel), WHICH="training", EQUALS="a=b=c")
    begin(STOKER_CHANNEL=str(paths.channel), WHICH="child of the training")
    found = exec_command.training_environ(paths)
    assert found is not None
    assert (found["WHICH"], found["EQUALS"], found["STOKER_CHANNEL"]) == ("training", "a=b=c", str(paths.channel))


def test_a_visitor_is_not_taken_for_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in exec_command._USER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "mine")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/mine")
    training = {NODE: "1", TRAINING: "2", "TERM": "theirs", "LANG": "C", "LR": "0.1"}
    assert exec_command.shell_environ(training) == {
        "TERM": "mine",
        "SSH_AUTH_SOCK": "/mine",
        "LANG": "C",
        "LR": "0.1",
    }


@pytest.mark.parametrize("name", ["TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK"])
def test_what_belongs_to_the_persons_terminal_is_the_persons(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "mine")
    assert exec_command.shell_environ({name: "theirs"})[name] == "mine"


def test_the_command_runs_in_the_code_with_the_trainings_variables(
    begin: Begin,
    paths: NodePaths,
    becomes: list[tuple[str, list[str], dict[str, str], str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    begin(STOKER_CHANNEL=str(paths.channel), LR="0.1")
    with pytest.raises(Become):
        exec_command.run_command(paths.root, ["nvidia-smi", "-L"])
    ((program, argv, environ, cwd),) = becomes
    assert (program, argv, cwd) == ("nvidia-smi", ["nvidia-smi", "-L"], str(paths.code))
    assert environ["LR"] == "0.1" and "HOME" not in environ
    assert capsys.readouterr().err == ""


def test_without_a_training_the_command_runs_with_the_visitors_variables(
    paths: NodePaths,
    becomes: list[tuple[str, list[str], dict[str, str], str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OF_THE_VISITOR", "1")
    paths.code.rmdir()
    with pytest.raises(Become):
        exec_command.run_command(paths.root, ["ls"])
    ((_, _, environ, cwd),) = becomes
    assert environ["OF_THE_VISITOR"] == "1" and cwd == str(paths.root)
    assert capsys.readouterr().err == "[stoker] the training does not run now: its environment is not there\n"


def test_a_command_that_cannot_be_run_is_told_as_a_shell_tells_it(
    paths: NodePaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exec_command.run_command(paths.root, ["no-such-program"]) == 127
    assert "stoker: there is no program 'no-such-program' on this machine\n" in capsys.readouterr().err
    (paths.code / "data").write_text("no program")
    assert exec_command.run_command(paths.root, ["./data"]) == 126
    assert "stoker: ./data: Permission denied\n" in capsys.readouterr().err


@pytest.mark.parametrize("runs", [True, False])
def test_the_command_of_a_job_in_a_container_is_taken_in_there(
    begin: Begin, paths: NodePaths, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    write_record(paths.root, ContainerRecord("podman", f"/dev/shm/{container_name(paths.root)}"))
    if runs:
        begin(STOKER_CHANNEL=str(paths.channel), LR="0.1")
    asked: list[tuple[object, ...]] = []

    def take_in(*arguments: object) -> NoReturn:
        asked.append(arguments)
        raise Become

    monkeypatch.setattr(exec_command, "exec_in_container", take_in)
    monkeypatch.setenv("OF_THE_VISITOR", "1")
    with pytest.raises(Become):
        exec_command.run_command(paths.root, ["ls", "-l"])
    ((engine, root, command, cwd, variables),) = asked
    assert (engine, root, command, cwd) == ("podman", paths.root, ["ls", "-l"], paths.code)
    assert isinstance(variables, dict) and variables.get("LR") == ("0.1" if runs else None)
    # The machine's own variables mean nothing in there.
    assert "OF_THE_VISITOR" not in variables
