"""Asking an engine: one that is away, and what it says about what it does not like. The engine is a script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.container.engine import Engine, EngineResult, describe_refusal
from stoker.model.errors import SetupFailed


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a docker is looked for first."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "docker"


def write(program: Path, script: str) -> None:
    draft = program.with_suffix(".draft")
    draft.write_text(f"#!/bin/sh\n{script}\n")
    draft.chmod(0o755)
    draft.replace(program)


def test_an_engine_that_is_not_there_names_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupFailed, match=r"there is no podman on this machine.*engine: docker") as failed:
        Engine("podman").run("version")
    assert failed.value.user


def test_a_command_that_is_under_way_can_be_given_up(program: Path, tmp_path: Path) -> None:
    """A pull may take an hour; a stop or the end of the set-up's time ends it, and the engine's process with it."""
    pid = tmp_path / "pid"
    write(program, f"echo $$ > {pid}.draft; mv {pid}.draft {pid}; exec sleep 20")

    def check() -> None:
        if pid.exists():
            raise SetupFailed("the job is asked to stop", user=False)

    with pytest.raises(SetupFailed, match="asked to stop"):
        Engine("docker", check).run("pull", "x")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("said", "away"),
    [
        ("Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", True),
        ("error during connect: Get http://x: EOF", True),
        ("unknown flag: --bogus\nSee 'docker create --help'.", False),
        (
            "unknown flag: --bogus\n\nUsage:  docker create\n\nCreate a new container\n\nRun 'docker create --help'",
            False,
        ),
        ("Error response from daemon: no such device\nError: failed to start containers: stoker-m-1-abc", False),
        ("invalid mount config for type bind: bind source path does not exist: /data/500", False),
        ('invalid argument "abc" for "--stop-timeout" flag: strconv.Atoi', False),
        (
            "runtime: failed to create new OS thread\nruntime stack:\n\ngoroutine 1:\nfs 0x0\nError response",
            False,
        ),
    ],
)
def test_what_the_engine_says_is_told_in_one_line(said: str, away: bool) -> None:
    answer = EngineResult(1, "", said)
    assert answer.unreachable is away
    assert "\n" not in answer.message and answer.message == said.splitlines()[0].removeprefix(
        "Error response from daemon: "
    )


@pytest.mark.parametrize("here", [True, False])
def test_a_daemon_that_goes_away_for_a_while_is_waited_for(
    program: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr("stoker.agent.container.engine._DAEMON_PAUSE_S", 0.0)
    away = "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
    write(program, f"echo >>{program.parent}/tries; echo '{away}' >&2; exit 1")

    def back() -> None:
        if len((program.parent / "tries").read_text()) >= 3:
            write(program, "exit 0")

    said: list[str] = []
    answer = Engine("docker", back, said.append, runs_locally=here).run_when_ready("image", "inspect", "repo/x:1")
    assert answer.code == 0 and said == [f"docker does not answer: {away}; waiting for it"]


@pytest.mark.parametrize("here", [True, False])
def test_a_daemon_that_stays_away_is_the_machines(program: Path, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    monkeypatch.setattr("stoker.agent.container.engine._DAEMON_WAIT_S", 0.0)
    write(program, "echo 'Cannot connect to the Docker daemon at unix:///x.' >&2; exit 1")
    with pytest.raises(SetupFailed, match="Cannot connect") as failed:
        Engine("docker", runs_locally=here).run_when_ready("image", "inspect", "x")
    assert not failed.value.user


# As docker has it, with a flag that has a short name, one that has none, and text that only looks like one.
HELP = """
Usage:  docker create [OPTIONS] IMAGE [COMMAND] [ARG...]

Options:
  -m, --memory bytes                     Memory limit
      --memory-swap bytes                Swap limit: --memory-swapp
      --shm-size bytes                   Size of /dev/shm
      --name string                      Assign a name
  -v, --volume list                      Bind mount a volume
"""


@pytest.mark.parametrize(
    ("run", "err", "told"),
    [
        (
            {"shmsize": "1g"},
            "unknown flag: --shmsize\n\nUsage:  docker create [OPTIONS] IMAGE\n",
            "environment.container.run.shmsize: docker: unknown flag: --shmsize; did you mean shm_size?",
        ),
        (
            {"gpu": 1},
            "unknown flag: --gpu",
            "environment.container.run.gpu: docker: unknown flag: --gpu; did you mean gpus?",
        ),
        (
            {"volums": "a:/b"},
            "unknown flag: --volums",
            "environment.container.run.volums: docker: unknown flag: --volums; did you mean volumes?",
        ),
        # What is Stoker's own is of no use to anybody.
        (
            {"names": "x"},
            "unknown flag: --names",
            (
                "environment.container.run.names: docker: unknown flag: --names; "
                "`docker create --help` lists the valid flags"
            ),
        ),
        (
            {"cap_add": ["X"], "memory": "much"},
            'invalid argument "much" for "-m, --memory" flag: x\nSee \'docker create --help\'.',
            'environment.container.run.memory: docker: invalid argument "much" for "-m, --memory" flag: x',
        ),
        # One that the person did not write.
        (
            {"cap_add": ["X"]},
            "unknown flag: --pull\nSee 'docker create --help'.",
            "environment.container: docker: unknown flag: --pull",
        ),
        (
            {"shm_size": "1g"},
            "Error response from daemon: Invalid container name",
            "environment.container: docker: Invalid container name",
        ),
    ],
)
def test_a_flag_that_the_engine_refuses_is_named(program: Path, run: dict[str, Any], err: str, told: str) -> None:
    write(program, f"test \"$*\" = 'create --help' && cat <<'E'\n{HELP}\nE")
    assert describe_refusal(Engine("docker"), EngineResult(125, "", err), run) == told


@pytest.mark.parametrize(
    "said",
    [
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
        "Got an error: dial unix /var/run/docker.sock: connect: permission denied",
    ],
)
def test_a_user_who_may_not_ask_the_daemon_hears_what_to_do(program: Path, said: str) -> None:
    write(program, f"echo {said!r} >&2; exit 1")
    with pytest.raises(SetupFailed) as failed:
        Engine("docker").run_when_ready("info")
    assert failed.value.user
    assert str(failed.value).startswith("environment.container: this user may not use docker: ")
    assert str(failed.value).endswith("; join the group `docker`, or set environment.container.engine: podman")
