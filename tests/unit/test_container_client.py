"""The client of the engine, while a command runs in a container."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from stoker.agent.container import process_group
from stoker.agent.container.process_group import ContainerRun

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes everywhere")


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen(words or ("sleep", "1000")))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


Begin = Callable[..., "subprocess.Popen[bytes]"]


def test_a_client_that_was_killed_is_not_the_end_of_its_command(processes: Begin) -> None:
    client, command = processes(), processes()
    gone: list[int] = []
    run = ContainerRun(client, command.pid, lambda code: gone.append(code))
    assert run.poll() is None and gone == []
    client.kill()
    client.wait()
    assert run.poll() is None and gone == [1], "the engine was asked, and has it"
    command.kill()
    command.wait()
    assert run.wait() == 137 and gone[-1] == 137


def test_a_client_that_was_killed_with_the_container_is_its_end(processes: Begin) -> None:
    client, command = processes(), processes()
    run = ContainerRun(client, command.pid, lambda _code: "the container was ended")
    client.kill()
    client.wait()
    assert run.poll() == 137


def test_a_client_that_does_not_hear_of_the_end_is_ended(processes: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_CLIENT_S", 0.2)
    client, command = processes(), processes("true")
    command.wait()
    run = ContainerRun(client, command.pid, lambda _code: None)
    began_s = time.monotonic()
    assert run.wait() == 137 and time.monotonic() - began_s >= 0.2
    assert ContainerRun(processes(), 0, lambda _code: None).wait() == 137


def test_a_client_tells_how_its_command_ended(processes: Begin) -> None:
    client = processes(sys.executable, "-S", "-c", "raise SystemExit(4)")
    run = ContainerRun(client, 0, lambda _code: None)
    assert run.wait() == 4 and run.pid == 0 and run.poll() == 4
