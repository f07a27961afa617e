"""An agent starts: the first one on a machine trains, any later one saves what is there and gives the machine back."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.agent import __main__ as entry
from stoker.agent import exec_command, main
from stoker.agent.heartbeat import REMOTE_INTERVAL_S
from stoker.agent.node import AgentNode
from stoker.model import codec, keys
from stoker.model.errors import StoreError
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Heartbeat
from stoker.processes import NODE, TRAINING
from stoker.processes.container_sweep import ContainerRecord, container_name, write_record
from stoker.store.node_facts import MAX_BOOTS
from stoker.testing.memory_store import Fault, MemoryStore

JOB = "job-0a1b"
CONFIG = NodeConfig("memory://", "test", JOB, 3, 1, 2, "z.1")


class Machine:
    """A machine as its agent sees it."""

    def __init__(self, did: list[str]) -> None:
        self._did = did

    def wake_governors(self) -> None:
        self._did.append("wake governors")

    def give_back(self) -> None:
        self._did.append("power off")


class RemadeMachine(Machine):
    """One that its cloud may make anew."""

    replaced = True


class Start:
    """A node's folder, and what its agents did."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.did: list[str] = []
        self.nodes: list[AgentNode] = []
        self.machine: Machine = Machine(self.did)
        self.store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=True)
        self.store.put(keys.log_entry(JOB, 1), b"submitted")
        self.opened: list[str] = []
        paths = NodePaths(root)
        paths.config.write_bytes(codec.dumps(CONFIG))

        class FakeLife:
            def __init__(life, node: AgentNode) -> None:
                self.nodes.append(node)

            def run(life) -> None:
                self.did.append("train")

        def flush(node: AgentNode) -> None:
            self.nodes.append(node)
            self.did.append("flush")

        def open_store(url: str) -> MemoryStore:
            self.opened.append(url)
            return self.store

        monkeypatch.setattr(main, "AttemptContext", FakeLife)
        monkeypatch.setattr(main, "run_attempt", lambda life: life.run())
        monkeypatch.setattr(main, "flush", flush)
        monkeypatch.setattr(main, "sweep", lambda _root: self.did.append("sweep"))
        monkeypatch.setattr(main, "open_store", open_store)
        monkeypatch.setattr(main, "start_watchdog", lambda: self.did.append("pulse"))
        monkeypatch.setattr(main, "set_parent_death_signal", lambda number: self.did.append(f"dies by {number}"))
        monkeypatch.setattr(main.registry, "machine", lambda provider, where: self._machine(provider, where))

    def _machine(self, provider: str, where: Path) -> Machine:
        assert (provider, where) == ("test", self.root)
        return self.machine


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def node_key(boot: int) -> str:
    return keys.node(JOB, 3, 1, keys.boot("z.1", boot))


def test_the_first_agent_trains_and_gives_the_machine_back(start: Start) -> None:
    assert main.run_agent(start.root) == 0
    before = [f"dies by {signal.SIGKILL}", "pulse"]
    assert start.did == [*before, "train", "wake governors", "power off"]
    [node] = start.nodes
    assert (node.key, node.earlier, node.config) == (node_key(0), (), CONFIG) and node.store is start.store
    assert node.paths == NodePaths(start.root) and node.paths.channel.is_dir()
    assert start.opened == ["memory://"]


def test_a_later_agent_never_trains(start: Start) -> None:
    main.run_agent(start.root)
    del start.did[:]
    assert main.run_agent(start.root) == 0
    assert start.did[2:] == ["sweep", "flush", "wake governors", "power off"]
    assert (start.nodes[-1].key, start.nodes[-1].earlier) == (node_key(1), (node_key(0),))
    main.run_agent(start.root)
    assert start.nodes[-1].earlier == (node_key(0), node_key(1))


def test_a_later_agent_writes_no_exit_while_processes_of_the_training_live(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    main.run_agent(start.root)
    del start.did[:]
    asked: list[tuple[object, ...]] = []

    def fail(*words: object, **more: object) -> bool:
        asked.append((*words, *more.values()))
        return False

    monkeypatch.setattr(main, "end_remains", fail)
    assert main.run_agent(start.root) == 0
    assert start.did[2:] == ["sweep", "wake governors", "power off"]
    assert asked == [(TRAINING, "z.1", start.root / "training.sessions")]
    assert "processes of the training outlived their agent" in NodePaths(start.root).train_log.read_text()


def test_each_start_is_counted_before_anything_else(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    boots = NodePaths(start.root).boots
    assert main._count_boot(boots) == 0 and boots.read_text() == "1"
    assert main._count_boot(boots) == 1 and boots.read_text() == "2"
    boots.write_text("")
    assert main._count_boot(boots) == 1, "torn by a power cut: an agent was here"
    assert boots.read_text() == "2" and sorted(path.name for path in boots.parent.iterdir()) == ["boots", "node.json"]


def test_the_count_is_on_the_disk_when_it_is_known(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    boots, synced = NodePaths(start.root).boots, []

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").read_bytes())
        assert not boots.exists()

    monkeypatch.setattr(main.os, "fsync", fsync)
    main._count_boot(boots)
    assert synced == [b"1"]


def test_an_agent_whose_store_is_away_is_started_again(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "_STORE_LIMIT_S", 0.2)
    start.store.delete([keys.log_entry(JOB, 1)])
    began_s = time.monotonic()
    assert main.run_agent(start.root) == 1
    assert time.monotonic() - began_s >= 0.2 and "train" not in start.did and "power off" not in start.did
    assert len(start.opened) >= 2, "opened anew each time"
    assert f"the log of {JOB} is not there" in caplog.text


def test_a_store_that_comes_back_is_waited_for(start: Start) -> None:
    def faults(_method: str, _key: str) -> Fault | None:
        return Fault() if len(start.opened) < 3 else None

    start.store.faults = faults
    assert main.run_agent(start.root) == 0 and len(start.opened) == 3 and "train" in start.did


def test_the_pauses_between_two_questions_grow_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def fail(_url: str) -> None:
        raise StoreError("away")

    monkeypatch.setattr(main.time, "sleep", sleep)
    monkeypatch.setattr(main.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(main, "open_store", fail)
    assert main._open_store(CONFIG, 900.0) is None
    assert pauses[:3] == [0.1, 0.2, 0.4] and max(pauses) == 5.0 and pauses == sorted(pauses)
    assert 900.0 <= now[0] < 906.0 and caplog.text.count("away") == len(pauses) + 1


# ── A machine that may be made anew ───────────────────────────────────────────────────────────────────────────────────


def test_an_agent_of_a_machine_that_was_made_anew_finds_the_one_before(start: Start) -> None:
    start.machine = RemadeMachine(start.did)
    assert main.run_agent(start.root) == 0
    announced = start.store.get(keys.heartbeat(node_key(0)))
    assert announced is not None and start.nodes[-1].key == node_key(0)
    beat = codec.loads(Heartbeat, announced.data, where="test")
    assert (beat.beat, beat.phase, beat.interval_s) == (0, "booting", REMOTE_INTERVAL_S)
    # Nothing on its disk tells of the first one.
    NodePaths(start.root).boots.unlink()
    assert main.run_agent(start.root) == 0
    assert start.did.count("train") == 1 and start.did.count("flush") == 1
    assert (start.nodes[-1].key, start.nodes[-1].earlier) == (node_key(1), (node_key(0),))


def test_an_agent_that_cannot_announce_itself_is_started_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    start.machine = RemadeMachine(start.did)
    monkeypatch.setattr(main, "_STORE_LIMIT_S", 0.2)
    start.store.faults = lambda method, _key: Fault() if method == "create" else None
    began_s = time.monotonic()
    assert main.run_agent(start.root) == 1 and "train" not in start.did and "flush" not in start.did
    assert 0.2 <= time.monotonic() - began_s < 30.0


def announce(store: MemoryStore, boot: int = 0) -> int | None:
    return main._announce(store, CONFIG, boot, time.monotonic() + 30.0)


def test_an_announcement_whose_reply_was_lost_is_known_by_its_bytes(start: Start) -> None:
    lost: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "create" and not lost:
            lost.append(key)
            return Fault(after=True)
        return None

    assert announce(start.store.client(faults)) == 0 and lost == [keys.heartbeat(node_key(0))]


def test_announcements_begin_at_the_boot_that_the_disk_tells(start: Start) -> None:
    assert announce(start.store, 2) == 2 and announce(start.store, 2) == 3
    assert not start.store.holds(keys.heartbeat(node_key(0)))


def test_boots_beyond_those_that_readers_look_at_are_not_announced(start: Start) -> None:
    assert [announce(start.store) for _ in range(MAX_BOOTS + 2)] == [*range(MAX_BOOTS), MAX_BOOTS, MAX_BOOTS]
    assert not start.store.holds(keys.heartbeat(node_key(MAX_BOOTS)))


# ── The command line ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["node"], ["agent node"]),
        (["node", "--", "ls", "-l"], ["command node ls -l"]),
        (["node", "--"], []),
        (["node", "x"], []),
        (["node", "x", "y"], []),
        ([], []),
    ],
)
def test_an_agent_is_started_with_its_folder_and_nothing_else(
    words: list[str],
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    did: list[str] = []

    def run_agent(root: Path) -> int:
        did.append(f"agent {root.relative_to(tmp_path)}")
        return 7

    def run_command(root: Path, command: list[str]) -> int:
        did.append(f"command {root.relative_to(tmp_path)} {' '.join(command)}")
        return 7

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stoker.agent", *words])
    monkeypatch.setattr(main, "run_agent", run_agent)
    monkeypatch.setattr(exec_command, "run_command", run_command)
    assert entry.main() == (7 if called else 2)
    assert did == called and ("usage: " in capsys.readouterr().err) == (not called)


# ── A person's command beside the training ────────────────────────────────────────────────────────────────────────────


class Replaced(Exception):
    """The process became another program."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str], dict[str, str], Path]]:
    found: list[tuple[str, list[str], dict[str, str], Path]] = []

    def execvpe(file: str, words: list[str], environ: dict[str, str]) -> None:
        found.append((file, words, environ, Path.cwd()))
        raise Replaced

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exec_command.os, "execvpe", execvpe)
    return found


Training = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """A process with the mark by which a training is found."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(**environ: str) -> subprocess.Popen[bytes]:
        env = {"STOKER_CHANNEL": str(NodePaths(tmp_path).channel), "PATH": os.environ["PATH"], **environ}
        process = subprocess.Popen(["sh", "-c", "echo; exec sleep 1000"], env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_a_command_sees_what_the_training_sees(
    training: Training, became: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NodePaths(tmp_path).code.mkdir()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("SSH_TTY", raising=False)
    training(MINE="first=1", TERM="other", **{NODE: "z.1", TRAINING: "z.1"})
    with pytest.raises(Replaced):
        exec_command.run_command(tmp_path, ["ls", "-l"])
    [(file, words, environ, folder)] = became
    assert (file, words, folder) == ("ls", ["ls", "-l"], tmp_path / "code")
    assert environ["MINE"] == "first=1" and environ["TERM"] == "dumb", "the visitor's own terminal"
    # Without the marks by which it would be killed with the training.
    assert NODE not in environ and TRAINING not in environ and "HOME" not in environ and "SSH_TTY" not in environ


def test_the_oldest_process_of_the_training_counts(training: Training, tmp_path: Path) -> None:
    for number in ("first", "second", "third"):
        training(NUMBER=number)
        time.sleep(0.03)  # Starts are told apart by ticks of the kernel.
    found = exec_command.training_environ(NodePaths(tmp_path))
    assert found is not None and found["NUMBER"] == "first"


def test_the_training_of_another_node_is_not_taken_for_ones_own(training: Training, tmp_path: Path) -> None:
    training(STOKER_CHANNEL=str(NodePaths(tmp_path).channel) + "2")
    assert exec_command.training_environ(NodePaths(tmp_path)) is None


def test_a_command_without_a_training_is_told_so_and_runs(
    became: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    with pytest.raises(Replaced):
        exec_command.run_command(tmp_path, ["ls"])
    [(_, _, environ, folder)] = became
    assert environ["MINE"] == "1" and folder == tmp_path, "there is no code folder yet"
    assert "the training does not run now" in capsys.readouterr().err


def test_a_command_that_cannot_be_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path.cwd()
    try:
        assert exec_command.run_command(tmp_path, ["no-such-program"]) == 127
        assert "stoker: there is no program 'no-such-program' on this machine" in capsys.readouterr().err
        (tmp_path / "plain").write_text("text")
        assert exec_command.run_command(tmp_path, [str(tmp_path / "plain")]) == 126
        assert f"stoker: {tmp_path / 'plain'}: " in capsys.readouterr().err
    finally:
        os.chdir(before)


def test_a_command_goes_into_the_container_of_the_training(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(tmp_path, ContainerRecord("docker", f"/private/{container_name(tmp_path)}"))
    visited: list[tuple[object, ...]] = []

    def into(*words: object) -> None:
        visited.append(words)
        raise Replaced

    monkeypatch.setattr(exec_command, "exec_in_container", into)
    training(MINE="1", **{NODE: "z.1"})
    with pytest.raises(Replaced):
        exec_command.run_command(tmp_path, ["ls"])
    [(engine, root, command, folder, environ)] = visited
    assert (engine, root, command, folder) == ("docker", tmp_path, ["ls"], tmp_path / "code")
    assert isinstance(environ, dict) and environ["MINE"] == "1" and NODE not in environ


def test_the_module_runs_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["stoker.agent"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(entry.__file__, run_name="__main__")
    assert left.value.code == 2
    assert "usage: python -m stoker.agent NODE_DIR" in capsys.readouterr().err
