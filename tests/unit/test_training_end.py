"""How a training is watched, told to end, and ended: nothing of it is alive afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_store import wait_for

from stoker.agent import supervise
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.runtime import Command
from stoker.agent.supervise import EndRequest, Training, TrainingSurvived
from stoker.processes import Process

ENDING = EndRequest("notice", "the machine goes", 2.0)


class FakeRun:
    """A command whose end the test decides."""

    def __init__(self, pid: int = 2**22 + 1) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        assert self.code is not None, "it would wait for ever"
        return self.code


class FakeGroup:
    """Processes that die when they are killed, or not at the first time."""

    def __init__(self, run: FakeRun, did: list[str]) -> None:
        self._run, self._did = run, did
        self.alive: set[int] = set()
        self.stuck = False
        # So many times more a kill does not end them, whatever else is done.
        self.survives = 0
        self.dies_after_s = 0.0
        self.folder = None

    def members(self) -> set[int]:
        return set(self.alive)

    def freeze(self, timeout_s: float = 5.0) -> bool:
        self._did.append(f"freeze {timeout_s:.2f}")
        return True

    def kill(self, timeout_s: float = 10.0) -> bool:
        self._did.append("kill")
        if self.survives:
            self.survives -= 1
            return False
        if self.stuck or timeout_s < self.dies_after_s:
            return False
        self.alive = set()
        if self._run.code is None:
            self._run.code = -signal.SIGKILL
        return True


class Scene:
    """A training, and all that was done to it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.run = FakeRun()
        self.group = FakeGroup(self.run, self.did)
        self.wake = threading.Event()
        self.looks: list[tuple[float, TrainingEnd]] = []

        class Enclosure:
            group = self.group

            def spawn(enclosure, command: Command, log: Path) -> FakeRun:
                return self.run

        class Observer:
            def before_signal(observer) -> None:
                self.did.append("before signal")

            def watch_writers(observer) -> None:
                if "watch" not in self.did:
                    self.did.append("watch")

            def before_kill(observer) -> None:
                self.did.append("before kill")

        self.said: list[str] = []
        self.training = Training(Enclosure(), self.wake, self._unblock, self.said.append)  # type: ignore[arg-type]
        self.training.observer = Observer()  # type: ignore[assignment]

    def _unblock(self) -> None:
        self.did.append("unblock")
        self.group.stuck = False

    def start(self) -> Training:
        self.training.start(Command(("x",), {}, Path("/")), Path("/dev/null"))
        return self.training

    def last_look(self, seconds: float, end: TrainingEnd) -> bool:
        self.did.append("last look")
        self.looks.append((seconds, end))
        return True


# ── Watching it ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_training_counts_its_time_from_its_start_to_its_end() -> None:
    scene = Scene()
    training = scene.training
    assert (training.trained_s, training.over_s, training.running) == (0.0, 0.0, False)
    scene.start()
    assert training.running and 0.0 <= training.trained_s < 30.0 and training.over_s == 0.0
    time.sleep(0.05)
    assert training.trained_s >= 0.05
    scene.run.code = 0
    ended = training.finish()
    assert not training.running and training.trained_s == ended.trained_s
    time.sleep(0.05)
    assert training.trained_s == ended.trained_s and 0.05 <= training.over_s < 30.0


def test_a_training_that_ends_by_itself_has_no_reason_to_end() -> None:
    scene = Scene()
    training = scene.start()
    looks: list[int] = []

    def reason() -> EndRequest | None:
        looks.append(1)
        if len(looks) == 2:
            scene.run.code = 3
        return None

    assert training.wait(reason) is None and len(looks) == 2
    assert training.wait(lambda: ENDING) is None, "it has ended"


def test_a_training_is_left_alone_between_two_looks() -> None:
    scene = Scene()
    training = scene.start()
    did: list[str] = []

    def wait(_seconds: float) -> bool:
        did.append("wait")
        return False

    def reason() -> EndRequest | None:
        did.append("look")
        return ENDING if did.count("look") == 3 else None

    scene.wake.wait = wait  # type: ignore[method-assign, assignment]
    assert training.wait(reason) is ENDING and did == ["look", "wait", "look", "wait", "look"]


def test_a_reason_to_end_is_looked_for_at_once_when_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_POLL_S", 1000.0)
    scene = Scene()
    training = scene.start()
    looks: list[int] = []

    def reason() -> EndRequest | None:
        looks.append(1)
        if len(looks) == 1:
            threading.Timer(0.05, scene.wake.set).start()
        return ENDING if len(looks) > 1 else None

    assert training.wait(reason) is ENDING and not scene.wake.is_set()


@pytest.mark.parametrize(("status", "code", "number"), [(0, 0, None), (3, 3, None), (-9, None, 9)])
def test_what_a_training_forked_is_killed_when_it_has_ended(status: int, code: int | None, number: int | None) -> None:
    scene = Scene()
    training = scene.start()
    scene.group.alive = {7}
    scene.run.code = status
    ended = training.finish()
    assert scene.did == ["before kill", "kill"] and not scene.group.members()
    assert (ended.code, ended.signal, ended.request, ended.save) == (code, number, None, None)


def test_whoever_waits_in_the_kernel_dies_when_its_mount_is_cut() -> None:
    scene = Scene()
    training = scene.start()
    scene.group.stuck = True
    training.kill()
    assert scene.did == ["kill", "unblock", "kill"]
    del scene.did[:]
    training.kill()
    assert scene.did == ["kill"], "who dies at once leaves the mount as it is"


def test_a_training_that_takes_a_moment_to_die_leaves_its_mounts_as_they_are() -> None:
    scene = Scene()
    training = scene.start()
    scene.group.dies_after_s = 0.4
    training.kill()
    assert scene.did == ["kill"]


def test_a_training_that_cannot_be_ended_is_tried_again_and_reported_once() -> None:
    scene = Scene()
    training = scene.start()
    scene.group.alive, scene.group.survives = {7, 5}, 4
    training.kill()
    assert scene.did == ["kill", "unblock", "kill", "kill", "kill", "kill"]
    assert scene.said == ["warning: processes of the training cannot be ended (pid 5, 7); trying again for 60 s"]


def test_a_training_that_survives_everything_has_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_GIVE_UP_S", 0.05)
    scene = Scene()
    training = scene.start()
    scene.run.code, scene.group.alive, scene.group.survives = 0, {7}, 10**9
    with pytest.raises(TrainingSurvived, match=r"processes of the training cannot be ended \(pid 7\)"):
        training.finish()
    # Once more at the end of the attempt, without another wait.
    monkeypatch.setattr(supervise, "_GIVE_UP_S", 1000.0)
    with pytest.raises(TrainingSurvived):
        training.kill()


# ── Telling it ────────────────────────────────────────────────────────────────────────────────────────────────────────


Begin = Callable[..., int]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Begin]:
    """Processes that say in a file that they were asked to go, and stay."""
    running: list[subprocess.Popen[bytes]] = []
    script = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1]).touch())
print(flush=True)
while True:
    time.sleep(0.01)
"""

    def begin(name: str) -> int:
        words = [sys.executable, "-S", "-c", script, str(tmp_path / name)]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        running.append(child)
        return child.pid

    yield begin
    for child in running:
        child.kill()
        child.communicate()


def test_the_command_is_asked_to_go_and_what_it_forked_is_not(tmp_path: Path, processes: Begin) -> None:
    scene = Scene()
    scene.run.pid, other = processes("root"), processes("worker")
    scene.group.alive = {scene.run.pid, other}
    training = scene.start()
    began_s = time.monotonic()
    deadline_s = training.notify(ENDING, tmp_path / "notice")
    assert began_s + 2.0 <= deadline_s <= time.monotonic() + 2.0
    told = json.loads((tmp_path / "notice").read_text())
    assert told["grace_s"] == 2.0 and told["reason"] == "the machine goes"
    assert told["deadline_monotonic"] == pytest.approx(deadline_s - 0.5), "a quarter is kept for what comes after it"
    assert scene.did == ["before signal"]
    wait_for(lambda: (tmp_path / "root").exists())
    assert not (tmp_path / "worker").exists() and training._notified_alone is False


def test_a_command_without_others_is_alone(tmp_path: Path, processes: Begin) -> None:
    scene = Scene()
    scene.run.pid = processes("root")
    scene.group.alive = {scene.run.pid}
    training = scene.start()
    training.notify(ENDING, tmp_path / "notice")
    assert training._notified_alone is True


# ── Ending it ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def leaving(scene: Scene, code: int, after_s: float = 0.2) -> None:
    def leave() -> None:
        scene.group.alive = set()
        scene.run.code = code

    threading.Timer(after_s, leave).start()


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (0, TrainingEnd("left", root=5, alone=True, succeeded=True)),
        (143, TrainingEnd("left", root=5, alone=True, succeeded=True)),
        (130, TrainingEnd("left", root=5, alone=True, succeeded=True)),
        (1, TrainingEnd("left", root=5, alone=True, failed=True)),
        (-signal.SIGTERM, TrainingEnd("left", root=5, alone=True)),
        (-signal.SIGSEGV, TrainingEnd("died")),
    ],
)
def test_a_training_that_goes_in_time_says_how_it_went(tmp_path: Path, code: int, end: TrainingEnd) -> None:
    scene = Scene()
    scene.run.pid = 5
    training = scene.start()
    ending = EndRequest("notice", "gone", 100.0)
    began_s = time.monotonic()
    training.notify(ending, tmp_path / "notice")
    leaving(scene, code)
    ended = training.end(ending, tmp_path / "notice", scene.last_look)
    assert time.monotonic() - began_s < 60.0, "it does not wait for the rest of the grace"
    [(seconds, how)] = scene.looks
    assert how == end and 75.0 < seconds <= 100.0 - 10.0 / 3, "what comes after it has a third of what is kept"
    assert scene.did == ["before signal", "watch", "last look", "kill"], "nothing is frozen or cut off"
    assert ended.request is ending and (ended.code, ended.signal) == ((code, None) if code >= 0 else (None, -code))
    save = ended.save
    assert save is not None and save.saved_s is not None and save.durable_s is not None and save.ended_s is not None
    assert 0.2 <= save.saved_s <= save.durable_s <= save.ended_s < 60.0 and save.grace_s == pytest.approx(100.0)
    assert ended.deadline_s == pytest.approx(began_s + 100.0, abs=30.0) and ended.trained_s >= 0.2


def test_a_training_whose_workers_stay_has_not_gone(tmp_path: Path) -> None:
    scene = Scene()
    training = scene.start()
    scene.run.code = 0
    scene.group.alive = {7}
    training.notify(EndRequest("notice", "gone", 1.0), tmp_path / "notice")
    ended = training.end(EndRequest("notice", "gone", 1.0), tmp_path / "notice", scene.last_look)
    assert ended.save is not None and ended.save.saved_s is None
    assert scene.looks[0][1] == TrainingEnd("died")


def test_a_training_that_stays_is_frozen_looked_at_and_killed(tmp_path: Path) -> None:
    scene = Scene()
    training = scene.start()
    scene.group.alive = {7}
    began_s = time.monotonic()
    training.notify(ENDING, tmp_path / "notice")
    ended = training.end(ENDING, tmp_path / "notice", lambda seconds, end: not scene.last_look(seconds, end))
    assert time.monotonic() - began_s >= 1.5, "it has its part of the grace"
    assert scene.did == ["before signal", "watch", "freeze 0.17", "before kill", "last look", "kill"]
    [(seconds, how)] = scene.looks
    assert how == TrainingEnd("died") and 0.1 <= seconds <= 0.5
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert ended.save is not None and (ended.save.saved_s, ended.save.durable_s) == (None, None)


def test_a_notice_that_leaves_more_time_changes_nothing(tmp_path: Path) -> None:
    scene = Scene()
    training = scene.start()
    training.notify(ENDING, tmp_path / "notice")
    before = (tmp_path / "notice").read_text()
    later_s = time.monotonic() + 1000.0
    leaving(scene, 0, 0.4)
    ended = training.end(ENDING, tmp_path / "notice", scene.last_look, lambda: later_s)
    assert ended.deadline_s is not None and ended.deadline_s < later_s - 900.0
    assert (tmp_path / "notice").read_text() == before


def test_a_notice_that_is_asked_for_again_and_again_counts_once(tmp_path: Path) -> None:
    scene = Scene()
    training = scene.start()
    ending = EndRequest("stop", "asked", 100.0)
    training.notify(ending, tmp_path / "notice")
    sooner_s = time.monotonic() + 4.0
    asked: list[float] = []

    def pressed() -> float:
        asked.append(time.monotonic())
        return sooner_s

    leaving(scene, 0, 0.5)
    ended = training.end(ending, tmp_path / "notice", scene.last_look, pressed)
    assert ended.deadline_s == sooner_s and 1 < len(asked) < 20, "not at every look"
    told = json.loads((tmp_path / "notice").read_text())
    assert told["reason"] == "asked" and 3.0 < told["grace_s"] <= 4.0
    assert told["deadline_monotonic"] == pytest.approx(sooner_s - 1.0, abs=0.3)


def test_what_is_kept_of_a_grace_is_a_quarter_within_bounds() -> None:
    assert [supervise.flush_reserve_s(grace_s) for grace_s in (0.0, 1.0, 4.0, 40.0, 100.0)] == [
        0.3,
        0.3,
        1.0,
        10.0,
        10.0,
    ]


# ── Whom to ask ───────────────────────────────────────────────────────────────────────────────────────────────────────


def targets(names: dict[int, str], parents: dict[int, int], root: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(supervise, "_name", lambda pid: names[pid])

    class Stat:
        def __init__(self, parent: int) -> None:
            self.parent = parent

    monkeypatch.setattr(supervise, "stat_of", lambda pid: Stat(parents[pid]) if pid in parents else None)
    members: Any = {pid: pid for pid in names}
    return supervise._targets(root, members)


@pytest.mark.parametrize(
    ("names", "parents", "asked"),
    [
        ({1: "python", 2: "python"}, {1: 0, 2: 1}, [1]),
        ({1: "bash", 2: "python", 3: "python"}, {1: 0, 2: 1, 3: 2}, [2, 1]),
        ({1: "sh", 2: "bash", 3: "python"}, {1: 0, 2: 1, 3: 2}, [3, 2, 1]),
        ({1: "tini", 2: "python"}, {1: 0, 2: 1}, [2]),
        ({1: "tini"}, {1: 0}, [1]),
        ({1: "bash", 2: "tee", 3: "python"}, {1: 0, 2: 1, 3: 1}, [2, 3, 1]),
    ],
)
def test_shells_and_what_they_run_are_asked_children_first(
    names: dict[int, str], parents: dict[int, int], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(targets(names, parents, 1, monkeypatch)) == sorted(asked)
    assert targets(names, parents, 1, monkeypatch)[-1] == asked[-1]


@pytest.mark.parametrize("shell", ["bash", "sh", "dash", "zsh", "ksh"])
def test_what_a_shell_runs_is_asked_beside_it(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets({1: shell, 2: "python"}, {1: 0, 2: 1}, 1, monkeypatch) == [2, 1]


@pytest.mark.parametrize("init", ["tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"])
def test_what_an_init_runs_is_asked_in_its_place(init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets({1: init, 2: "python", 3: "python"}, {1: 0, 2: 1, 3: 2}, 1, monkeypatch) == [2]


def test_a_process_that_is_not_of_the_training_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets({1: "bash", 2: "python"}, {1: 0}, 1, monkeypatch) == [1], "nothing is known of its parent"


def test_the_name_of_a_process_is_its_programs() -> None:
    assert supervise._name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert supervise._name(2**22 + 1) == ""
    own = Process.of(os.getpid())
    assert own is not None and own.alive
