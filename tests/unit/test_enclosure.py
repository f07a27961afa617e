"""Commands on the machine itself: what they see, what is shown of them, and what is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent import runtime
from stoker.agent.runtime import BindMount, Command, HostRuntime, RuntimeView
from stoker.processes import TRAINING, make_group


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostRuntime]:
    made = HostRuntime(make_group(TRAINING, f"host-{os.getpid()}", sessions=tmp_path / "sessions"))
    yield made
    made.close()


def test_secrets_are_not_shown_with_a_command() -> None:
    command = Command(("true",), {"A": "1"}, Path("/"), {"KEY": "hunter2"})
    assert "hunter2" not in repr(command) and "'A': '1'" in repr(command)
    assert not command.root and not command.main and command.mounts == ()


def test_a_mount_may_be_for_reading_alone() -> None:
    assert BindMount(Path("/a"), "/b").view == ("/a", "/b")
    assert BindMount(Path("/a"), "/b", read_only=True).view == ("/a", "/b", "ro")


def test_what_the_submitter_sent_along_wins_over_the_machines(
    host: HostRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTH", "machine")
    monkeypatch.setenv("ONE", "machine")
    found = host.environ({"BOTH": "submitter", "OTHER": "submitter"})
    assert (found["BOTH"], found["ONE"], found["OTHER"]) == ("submitter", "machine", "submitter")


def test_a_command_has_its_secrets_and_they_are_masked_in_the_log(host: HostRuntime, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    text = 'echo "$A $KEY $PWD"; echo error >&2; exit 3'
    env = {"PATH": os.environ["PATH"], "A": "1"}
    run = host.spawn(Command(("sh", "-c", text), env, tmp_path, {"KEY": "hunter2-secret"}), log)
    assert run.wait() == 3
    assert log.read_text() == f"before\n1 *** {tmp_path}\nerror\n"


def test_the_machine_itself_is_there_and_closing_it_ends_what_runs(
    host: HostRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "count_gpus", lambda: 4)
    assert (host.gpus, host.image, host.fault, host.environments) == (4, None, None, None)
    host.open(lambda _name, _remedy: pytest.fail("there is nothing to wait for"))
    host.enter(RuntimeView())
    host.hand_over(tmp_path)
    env = {"PATH": os.environ["PATH"]}
    run = host.spawn(Command(("sleep", "600"), env, tmp_path), tmp_path / "log")
    host.begin_close()
    assert run.poll() is None and run.pid in host.group.members()
    host.close()
    assert run.wait() == -9 and not host.group.members()


def test_each_command_brings_its_own_mounts(host: HostRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    class Refused(Exception):
        pass

    def spawn(_argv: object, **options: object) -> None:
        asked.update(options)
        raise Refused

    monkeypatch.setattr(host.group, "spawn", spawn)
    mounts = (BindMount(Path("/a"), "/b"), BindMount(Path("/c"), "/d", read_only=True))
    with pytest.raises(Refused):
        host.spawn(Command(("true",), {}, tmp_path, mounts=mounts), tmp_path / "log")
    assert asked["mounts"] == [("/a", "/b"), ("/c", "/d", "ro")] and asked["dies_with_parent"] is True
