"""A container as the place where a training runs: made, entered, and ended."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from container_yard import AROUND, Yard, timed, yard
from plain_store import wait_for

from stoker.agent.runtime import Command, RuntimeView
from stoker.model.errors import SetupFailed
from stoker.processes.container_sweep import container_name

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of processes everywhere"),
]

__all__ = ["yard"]

# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_command_runs_inside_with_its_variables_and_its_output_in_the_log(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", 'echo "$MINE in $PWD"; exit 3', env={"MINE": "it's"})
    assert run.wait() == 3 and f"it's in {yard.node.paths.code}\n" in yard.said
    assert container.fault is None and run.poll() == 3
    run = yard.run(container, "sleep", "1000")
    assert run.poll() is None and run.pid in container.group.members()
    assert Path(f"/proc/{run.pid}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink()
    assert container.group.kill() and run.wait() == 137 and container.fault is None, "the container lives on"
    assert not container.group.members()


def test_secrets_are_passed_in_and_masked(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", 'echo "key $KEY"', secrets={"KEY": "very-secret-value"})
    assert run.wait() == 0 and "key " in yard.said and "very-secret-value" not in yard.said
    assert all("very-secret-value" not in " ".join(words) for words in yard.engine.asked("exec"))


def test_the_training_alone_runs_by_the_images_entry_point(yard: Yard) -> None:
    container = yard.entered(entrypoint=True)
    assert yard.run(container, "echo", "step").wait() == 0 and "by echo" not in yard.said
    assert yard.run(container, "echo", "training", main=True).wait() == 0 and "by echo training\n" in yard.said
    container = yard.entered()
    assert yard.run(container, "echo", "plain", main=True).wait() == 0 and "by echo plain" not in yard.said


def test_a_command_of_root_is_brought_in_as_root(yard: Yard) -> None:
    container = yard.entered()
    yard.run(container, "true", root=True).wait()
    yard.run(container, "true").wait()
    assert ["--user=0" in words for words in yard.engine.asked("exec")] == [True, False]


def test_a_program_that_is_not_in_the_image_is_told_as_on_the_machine(yard: Yard) -> None:
    container = yard.entered()
    with pytest.raises(FileNotFoundError) as failed:
        yard.run(container, "no-such-program")
    assert failed.value.filename == "no-such-program"
    assert (
        list((yard.node.paths.root / "pipes").iterdir()) and len(list((yard.node.paths.root / "pipes").iterdir())) == 2
    )


def test_a_command_that_cannot_be_brought_in_is_told_with_the_engines_words(yard: Yard) -> None:
    container = yard.entered()
    command = Command(("true",), {"PATH": os.environ["PATH"]}, yard.node.paths.root / "no-such-folder")
    with pytest.raises(SetupFailed, match=r"FileNotFoundError: .*no-such-folder") as failed:
        container.spawn(command, yard.node.paths.train_log)
    assert failed.value.user and container.fault is None
    assert sorted(path.name for path in (yard.node.paths.root / "pipes").iterdir()) == ["alive", "begun"]


def test_leaving_ends_all_that_ran(yard: Yard) -> None:
    container = yard.entered()
    yard.run(container, "sleep", "1000")
    cell = container.group.container
    assert cell is not None
    (sleeper,) = container.group.members()
    container.begin_close()
    assert not Path(f"/proc/{sleeper}/cmdline").exists() or not Path(f"/proc/{sleeper}/cmdline").read_bytes()
    assert not (yard.node.paths.root / "pipes").exists()


def test_nothing_runs_in_a_container_that_is_not_there(yard: Yard) -> None:
    with pytest.raises(SetupFailed, match="the container does not exist") as failed:
        yard.run(yard.make(), "true")
    assert not failed.value.user


def test_a_container_that_is_ended_from_outside_is_no_fault_of_the_script(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sleep", "1000")
    subprocess.run(["docker", "rm", "--force", container_name(yard.node.paths.root)], check=True)
    assert run.wait() != 0 and container.fault == "the container was ended from outside"
    with pytest.raises(SetupFailed, match="the container was ended from outside") as failed:
        yard.run(container, "true")
    assert not failed.value.user


def test_an_engine_that_goes_away_is_told(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sh", "-c", "sleep 0.3; exit 3")
    yard.engine.say("away", "")
    assert run.wait() == 3 and container.fault is not None
    assert container.fault.startswith("docker stopped answering: Cannot connect")
    yard.engine.unsay("away")


def test_a_command_that_succeeds_asks_the_engine_nothing_more(yard: Yard) -> None:
    container = yard.entered()
    before = len(yard.engine.asked("inspect"))
    assert yard.run(container, "true").wait() == 0
    assert len(yard.engine.asked("inspect")) == before


# ── Making it ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_of_the_same_name_makes_room(yard: Yard) -> None:
    container = yard.make()
    container.open(timed)
    name = container_name(yard.node.paths.root)
    yard.engine.say(f"container-{name}", "{}")
    container.enter(RuntimeView())
    assert len(yard.engine.asked("create")) == 2 and len(yard.engine.asked("rm")) == 1
    assert yard.run(container, "true").wait() == 0


@pytest.mark.parametrize(
    ("said", "user", "told"),
    [
        ("unknown flag: --bogus", True, "environment.container: docker: unknown flag: --bogus"),
        (
            'exec: "sh": executable file not found in $PATH',
            True,
            "environment.container.image: there is no `sh` in repo/x:1",
        ),
        (
            "write /x: no space left on device",
            True,
            "no space left on device; ask for a larger disk with resources.disk",
        ),
        ("Cannot connect to the Docker daemon at unix:///x.", False, "Cannot connect"),
    ],
)
def test_what_the_engine_refuses_is_told_by_its_field(yard: Yard, said: str, user: bool, told: str) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("refuse", said)
    with pytest.raises(SetupFailed) as failed:
        container.enter(RuntimeView())
    assert failed.value.user is user and told in str(failed.value)
    assert yard.engine.asked("start") == []


@pytest.mark.parametrize(
    ("code", "said", "user", "told"),
    [
        (0, "", False, "environment.container: the container ended at once, but a second one did not"),
        (
            127,
            "exec sh failed: no such file",
            True,
            "environment.container.image: there is no `sh` in repo/x:1, which a training needs (exit code 127)",
        ),
        (
            137,
            "oh",
            True,
            "the container ended at once: it was killed; is there enough memory for it? (exit code 137): oh",
        ),
        (9, "oh", True, "environment.container: the container ended at once (exit code 9): oh"),
    ],
)
def test_a_container_that_ends_at_once_says_why(yard: Yard, code: int, said: str, user: bool, told: str) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("wordless", json.dumps({"code": code, "said": said}))
    with pytest.raises(SetupFailed) as failed:
        container.enter(RuntimeView())
    assert failed.value.user is user and told in str(failed.value)
    assert "exit 0" in yard.engine.asked("create")[-1], "the second one has nothing to do"
    assert [words[-1] for words in yard.engine.asked("rm")] == [container_name(yard.node.paths.root)]
    assert yard.engine.asked("start")[-1][1] == "--attach", "what it says is heard"


def test_an_engine_that_is_away_when_it_is_asked_for_the_container(yard: Yard) -> None:
    container = yard.make()
    container.open(timed)
    yard.engine.say("away", "")
    with pytest.raises(SetupFailed, match="Cannot connect") as failed:
        container._inspect()
    assert not failed.value.user
    yard.engine.unsay("away")
    assert container._inspect() is None


def test_a_daemon_of_the_users_own_is_noticed(yard: Yard) -> None:
    yard.around = replace(AROUND, uid=1000, gid=1000)
    yard.engine.say("options", "[name=rootless]")
    container = yard.make()
    container._detect_rootless()
    assert container._host.rootless
    yard.engine.say("options", "[name=seccomp]")
    container._detect_rootless()
    assert not container._host.rootless


def test_a_container_of_another_user_can_only_be_root_s(yard: Yard) -> None:
    yard.around = replace(AROUND, uid=1000, gid=1000)
    container = yard.make()
    container.open(timed)
    with pytest.raises(SetupFailed, match=r"run\.user: only root could save") as failed:
        container.enter(RuntimeView())
    assert failed.value.user and "this agent is the user 1000" in str(failed.value)
    assert (yard.node.paths.root / "home").is_dir()
    assert yard.engine.asked("info"), "its daemon may be the user's own"
    assert "--user=1000:1000" in yard.engine.asked("create")[-1]


def test_a_container_whose_processes_are_not_here(yard: Yard) -> None:
    container = yard.make()
    with pytest.raises(SetupFailed, match="docker does not run on this machine") as failed:
        container._user.adopt(2**22 + 1, container._host, None)
    assert failed.value.user


def test_another_user_of_the_container_is_given_what_it_writes(yard: Yard, tmp_path: Path) -> None:
    yard.engine.say("user", "12345")
    for name in ("out", "environments"):
        (tmp_path / name).mkdir()
    # The folders above it are the test's own.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    idle = tmp_path / "environments" / "of-777"
    idle.mkdir()
    os.utime(idle, (0, 0))
    container = yard.entered(RuntimeView(written=(tmp_path / "out",), environments=tmp_path / "environments"))
    assert not idle.exists(), "what no user used for long is removed"
    assert container.environments == tmp_path / "environments" / "of-12345"
    assert container.environments.stat().st_uid == 12345
    container.environments.joinpath("tools").mkdir()
    yard.run(container, "true").wait()
    given = (tmp_path / "out", yard.node.paths.code, container.environments / "tools")
    assert [path.stat().st_uid for path in given] == [12345] * 3
    assert (yard.node.paths.root / "pipes").stat().st_uid == 0, "the door is the agent's"
    own, others = container.environments / "e1", tmp_path / "environments" / "e2"
    for folder in (own, others):
        folder.mkdir()
        container.hand_over(folder)
    assert (own.stat().st_uid, others.stat().st_uid) == (12345, 0)


def test_the_agents_own_user_is_given_nothing(yard: Yard, tmp_path: Path) -> None:
    container = yard.entered()
    assert container.environments is None and container._user._transfer is None
    container.hand_over(tmp_path)


def test_what_cannot_be_given_is_named(yard: Yard, tmp_path: Path) -> None:
    container = yard.make()

    class Refusing:
        def give(self, _top: Path, _but: object) -> None:
            raise PermissionError(1, "Operation not permitted", "/the/file")

    container._user._transfer = Refusing()  # type: ignore[assignment]
    with pytest.raises(
        SetupFailed, match="/the/file cannot be given to the user of the container: Operation not"
    ) as failed:
        container._user.give(tmp_path)
    assert failed.value.user


def test_what_is_left_of_a_container_ends_with_it(yard: Yard) -> None:
    container = yard.entered()
    run = yard.run(container, "sleep", "1000")
    cell = container.group.container
    assert cell is not None and Path(f"/proc/{cell.init}").exists()
    container.begin_close()
    wait_for(lambda: not Path(f"/proc/{cell.init}/root").exists())
    assert run.wait() == 137 and not (yard.node.paths.root / "pipes").exists()
    container.close()
