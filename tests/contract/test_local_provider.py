"""The local provider: the contract of all providers, and what is true of real processes on this computer."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import InvalidRequest, NoCapacity, NotFound
from stoker.model import Instance
from stoker.processes import Process
from stoker.processes.cgroup import make as make_cgroup
from stoker.providers.base import LaunchOrder, Request
from stoker.providers.local import nodes, offers
from stoker.providers.local.capabilities import KEEP_GONE_S
from stoker.providers.local.folder import NodeFolder
from stoker.providers.local.machine import LocalMachine
from stoker.providers.local.provider import LocalProvider
from stoker.providers.registry import Context
from stoker.spec import Gpus, LocalResources, Resources, Spec
from stoker.testing.provider_contract import Connect, OrderFactory, ProviderContract

# Stands in for the agent. `brood` has children of every kind that is hard to find; each writes down its pid.
AGENT = """
import json, os, subprocess, sys, time
mode, node = sys.argv[1], sys.argv[2]

def note(name):
    path = os.path.join(node, name + ".pid")
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)

def daemon(name, env):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, __file__, "child:" + name, node], env)

if mode.startswith("child:"):
    note(mode.partition(":")[2])
    time.sleep(3600)
boots = os.path.join(node, "boots")
with open(boots, "a") as file:
    file.write(f"{os.getpid()}\\n")
first = len(open(boots).read().split()) == 1
os.makedirs(os.path.join(node, "code", "deep"), exist_ok=True)
if mode == "crash":
    sys.exit(1)
if mode == "brood-once" and not first:
    import glob
    left = []
    for path in glob.glob(os.path.join(node, "*.pid")):
        try:
            text = open("/proc/" + open(path).read() + "/stat").read()
        except FileNotFoundError:
            continue
        if text.rpartition(")")[2].split()[0] not in "ZX":
            left.append(path)
    with open(os.path.join(node, "left.json"), "w") as file:
        json.dump(left, file)
    sys.exit(0)
if mode == "done":
    sys.exit(0)
if mode in ("brood", "brood-once", "brood-scrubbed"):
    subprocess.Popen([sys.executable, __file__, "child:session", node], start_new_session=True)
    daemon("daemon", dict(os.environ))
    if mode == "brood-scrubbed":
        daemon("scrubbed", {})
note("agent")
time.sleep(3600)
"""

PATIENCE_S = 60.0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.01)


def has_cgroups() -> bool:
    folder = make_cgroup(f"stoker-probe-{uuid.uuid4().hex}")
    if folder is not None:
        Path(folder).rmdir()
    return folder is not None


def make_order(
    *, store: str, claim: int = 1, nodes: int = 1, spot: bool = False, local: LocalResources | None = None
) -> LaunchOrder:
    resources = Resources(local=local)
    (offering,) = [offering for offering in offers.offerings(resources) if offering.spot == spot]
    spec = Spec(name="job", run="true", nodes=nodes, resources=resources)
    return LaunchOrder(
        job="job-1",
        name="job",
        claim=claim,
        nodes=nodes,
        attempt=1,
        store=store,
        spec=spec,
        submitter="me",
        offering=offering,
    )


@pytest.fixture(params=["cgroup", "marks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of holding a node's processes together."""
    way = str(request.param)
    if way == "cgroup" and not has_cgroups():
        pytest.skip("no cgroup can be made here")
    monkeypatch.setenv("STOKER_NO_CGROUP", "1" if way == "marks" else "0")
    return way


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def acting(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Chooses what the agents of nodes launched from now on do."""
    script = tmp_path / "agent.py"
    script.write_text(AGENT)

    def act(mode: str) -> None:
        monkeypatch.setenv("STOKER_AGENT_COMMAND", shlex.join([sys.executable, str(script), mode]))

    act("stay")
    return act


class TestLocalContract(ProviderContract):
    @pytest.fixture
    def connect(self, way: str, acting: Callable[[str], None]) -> Connect:
        return lambda store: LocalProvider(Context(store))

    @pytest.fixture
    def order(self) -> OrderFactory:
        return lambda *, store, claim=1, nodes=1: make_order(store=store, claim=claim, nodes=nodes)


STORE = "file:///somewhere"


@pytest.fixture
def provider(way: str, acting: Callable[[str], None]) -> Iterator[LocalProvider]:
    provider = LocalProvider(Context(STORE))
    yield provider
    for instance in provider.list_instances():
        until(lambda i=instance: provider.terminate(i.id) == "gone", "the node to be gone")  # type: ignore[misc]


def launch(provider: LocalProvider, order: LaunchOrder | None = None) -> tuple[Instance, ...]:
    return provider.launch(provider.build(order or make_order(store=STORE)))


def folder_of(provider: LocalProvider, instance: Instance) -> NodeFolder:
    return NodeFolder(provider.root / instance.id)


def process_of(node: NodeFolder, name: str) -> Process:
    """The process that wrote down its pid under this name."""
    path = node.path / f"{name}.pid"
    until(path.exists, f"{name} to be there")
    process = Process.of(int(path.read_text()))
    assert process is not None
    return process


def supervisor_of(node: NodeFolder) -> Process:
    until(lambda: node.read_state() is not None, "the supervisor to be there")
    state = node.read_state()
    assert state is not None
    return state.process


def until_gone(provider: LocalProvider, instance: Instance) -> None:
    until(lambda: provider.state([instance.id])[instance.id] == "gone", f"{instance.id} to be gone")


def reason_of(node: NodeFolder) -> str:
    state = node.read_state()
    assert state is not None
    assert state.phase == "gone"
    return state.reason


def run_python(code: str, **names: object) -> subprocess.Popen[bytes]:
    """Another process, in which `provider` and `order` are there."""
    prelude = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_local_provider as here
        from stoker.providers.local import nodes
        provider = here.LocalProvider(here.Context(here.STORE))
    """
    values = "\n".join(f"{name} = {value!r}" for name, value in names.items())
    text = textwrap.dedent(prelude) + values + "\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)


# ── nobody is left ────────────────────────────────────────────────────────────────────────────────────────────────────


class TestNobodyIsLeft:
    @pytest.mark.parametrize("mode", ["brood", "brood-scrubbed"])
    def test_termination_ends_every_descendant(
        self, provider: LocalProvider, acting: Callable[[str], None], mode: str
    ) -> None:
        acting(mode)
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        names = ["agent", "session", "daemon"] + (["scrubbed"] if mode == "brood-scrubbed" else [])
        processes = [process_of(node, name) for name in names] + [supervisor_of(node)]
        provider.terminate(instance.id)
        until_gone(provider, instance)
        assert [process for process in processes[:-1] if process.alive] == []
        until(lambda: not processes[-1].alive, "the supervisor to end")
        assert reason_of(node) == "terminated"
        assert provider.list_instances() == ()

    def test_a_killed_supervisor_takes_the_node_with_it(
        self, provider: LocalProvider, acting: Callable[[str], None]
    ) -> None:
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        processes = [process_of(node, name) for name in ("agent", "session", "daemon")]
        supervisor_of(node).signal(signal.SIGKILL)
        until(lambda: not processes[0].alive, "the agent to die with its supervisor")
        assert processes[1].alive  # Else there would be nothing to clean up.
        until_gone(provider, instance)
        assert [process for process in processes if process.alive] == []
        assert reason_of(node) == "its supervisor died"
        (again,) = launch(provider)
        assert again.state == "gone"
        assert len(node.path.joinpath("boots").read_text().split()) == 1

    @pytest.mark.parametrize("look", ["list", "terminate"])
    def test_anybody_who_looks_cleans_up(
        self, provider: LocalProvider, acting: Callable[[str], None], look: str
    ) -> None:
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        processes = [process_of(node, name) for name in ("agent", "session", "daemon")]
        supervisor_of(node).signal(signal.SIGKILL)
        if look == "list":
            until(lambda: provider.list_instances() == (), "the list to be empty")
        else:
            until(lambda: provider.terminate(instance.id) == "gone", "the node to be gone")
        assert [process for process in processes if process.alive] == []

    def test_a_killed_agent_takes_everything_with_it_and_is_started_again(
        self, provider: LocalProvider, acting: Callable[[str], None]
    ) -> None:
        acting("brood-once")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        processes = [process_of(node, name) for name in ("agent", "session", "daemon")]
        processes[0].signal(signal.SIGKILL)
        until_gone(provider, instance)
        assert [process for process in processes if process.alive] == []
        # The second agent found nobody: not a moment of training without an agent.
        assert json.loads((node.path / "left.json").read_text()) == []
        assert len(node.path.joinpath("boots").read_text().split()) == 2
        assert reason_of(node) == "the agent was done"

    def test_an_agent_that_always_crashes_is_given_up(
        self, provider: LocalProvider, acting: Callable[[str], None]
    ) -> None:
        acting("crash")
        (instance,) = launch(provider)
        until_gone(provider, instance)
        node = folder_of(provider, instance)
        assert len(node.path.joinpath("boots").read_text().split()) == 4
        assert reason_of(node) == "the agent failed 4 times"
        assert node.path.joinpath("code").exists()  # Kept: somebody will want to see why.

    def test_an_agent_that_cannot_be_started_is_given_up(
        self, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STOKER_AGENT_COMMAND", "/nowhere/agent")
        (instance,) = launch(provider)
        until_gone(provider, instance)
        node = folder_of(provider, instance)
        assert reason_of(node) == "the agent failed 4 times"
        assert "/nowhere/agent" in node.log.read_text()

    def test_a_node_that_is_done_keeps_its_logs_only(
        self, provider: LocalProvider, acting: Callable[[str], None]
    ) -> None:
        acting("done")
        (instance,) = launch(provider)
        until_gone(provider, instance)
        node = folder_of(provider, instance)
        names = {entry.name for entry in node.path.iterdir()}
        assert {"node.json", "state.json", "agent.log", "node.log", "boots"} <= names
        assert "code" not in names

    @pytest.mark.parametrize("said", [True, False])
    def test_one_that_was_ended_with_everything_in_the_store_keeps_them_only_too(
        self, provider: LocalProvider, said: bool
    ) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        process_of(node, "agent")
        if said:
            node.left.touch()
        provider.terminate(instance.id)
        until_gone(provider, instance)
        assert (node.path / "code").exists() is not said

    def test_cgroups_are_given_back(self, provider: LocalProvider, way: str, acting: Callable[[str], None]) -> None:
        if way != "cgroup":
            pytest.skip("only where there are cgroups")
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        process_of(node, "daemon")
        supervisor_of(node)
        state = node.read_state()
        assert state is not None
        assert state.cgroup is not None
        assert Path(state.cgroup).is_dir()
        provider.terminate(instance.id)
        until_gone(provider, instance)
        assert not Path(state.cgroup).exists()

    def test_the_power_switch(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        agent = process_of(node, "agent")
        supervisor_of(node).signal(signal.SIGTERM)
        until_gone(provider, instance)
        assert not agent.alive
        assert reason_of(node) == "switched off"

    def test_a_node_lives_no_longer_than_it_may(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider, replace(make_order(store=STORE), max_life_s=0.3))
        until_gone(provider, instance)
        assert reason_of(folder_of(provider, instance)) == "reached its longest life"


# ── nobody is mistaken ────────────────────────────────────────────────────────────────────────────────────────────────


class TestNobodyIsMistaken:
    def half_made(self, provider: LocalProvider) -> NodeFolder:
        """A node as a launcher leaves it that is killed before it starts the supervisor."""
        code = """
            nodes.start = lambda node: os.kill(os.getpid(), signal.SIGKILL)
            provider.launch(provider.build(here.make_order(store=here.STORE)))
        """
        assert run_python(code).wait() == -signal.SIGKILL
        (node,) = nodes.live(provider.root)
        assert not node.state.exists()
        return node

    def pretend(self, node: NodeFolder, **changes: object) -> None:
        """Write a supervisor's state as if it had been there."""
        me = Process.me()
        text = {
            "phase": "running",
            "pid": me.pid,
            "started": me.started,
            "boot": me.boot,
            "cgroup": None,
            "computer": nodes.computer(),
            "at": time.time(),
            "reason": "",
        }
        node.state.write_text(json.dumps({**text, **changes}))

    def test_a_reused_pid_is_not_the_supervisor(self, provider: LocalProvider) -> None:
        stranger = subprocess.Popen(["sleep", "3600"])
        try:
            node = self.half_made(provider)
            who = Process.of(stranger.pid)
            assert who is not None
            self.pretend(node, pid=who.pid, started=who.started - 1)
            assert provider.terminate(node.instance) == "gone"
            assert provider.state([node.instance]) == {node.instance: "gone"}
            assert stranger.poll() is None
            assert who.alive
        finally:
            stranger.kill()
            stranger.wait()

    def test_another_boots_supervisor_is_gone(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        self.pretend(node, boot="another")
        assert provider.state([node.instance]) == {node.instance: "gone"}

    def test_a_cgroup_of_somebody_else_is_left_alone(self, provider: LocalProvider) -> None:
        folder = make_cgroup(f"stoker-node-stranger-{uuid.uuid4().hex}")
        if folder is None:
            pytest.skip("no cgroup can be made here")
        stranger = subprocess.Popen(["sleep", "3600"])
        try:
            Path(folder, "cgroup.procs").write_text(str(stranger.pid))
            node = self.half_made(provider)
            self.pretend(node, started=1, cgroup=folder)
            assert provider.state([node.instance]) == {node.instance: "gone"}
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()
            Path(folder).rmdir()

    def test_a_node_of_another_computer_is_unknown_not_gone(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        self.pretend(node, started=1, computer="another")
        with pytest.raises(nodes.Transient, match="another computer"):
            provider.state([node.instance])
        assert [instance.state for instance in provider.list_instances()] == ["running"]
        self.pretend(node, phase="gone")

    def test_a_lost_state_is_a_dead_supervisor(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        node.state.write_text("")
        assert provider.state([node.instance]) == {node.instance: "gone"}

    def test_a_node_is_started_once(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        process_of(node, "agent")
        for _ in range(2):
            second = subprocess.run([sys.executable, "-m", "stoker.providers.local.node", str(node.path)])
            assert second.returncode == 1
            provider.terminate(instance.id)
            until_gone(provider, instance)
        assert len(node.path.joinpath("boots").read_text().split()) == 1

    def test_a_launch_that_was_cut_short_is_finished_by_anybody(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        assert provider.state([node.instance]) == {node.instance: "pending"}
        assert [instance.state for instance in provider.list_instances()] == ["pending"]
        (instance,) = launch(provider)
        assert instance.id == node.instance
        assert process_of(node, "agent").alive

    def test_a_supervisor_that_died_at_birth_is_not_waited_for(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        node.log.touch()  # What the launcher opens for it, and all that there is of it.
        assert provider.state([node.instance]) == {node.instance: "gone"}
        assert provider.list_instances() == ()

    def test_a_launch_that_was_cut_short_can_be_called_off(self, provider: LocalProvider) -> None:
        node = self.half_made(provider)
        assert provider.terminate(node.instance) == "gone"
        (instance,) = launch(provider)
        assert instance.state == "gone"
        assert not node.path.joinpath("boots").exists()

    def test_names_that_are_paths_are_nobody(self, provider: LocalProvider) -> None:
        launch(provider)
        for name in ("..", ".", "", "../..", "live/x", "/etc"):
            assert provider.state([name]) == {name: "gone"}
            assert provider.terminate(name) == "gone"

    def test_a_foreign_request_is_refused(self, provider: LocalProvider) -> None:
        with pytest.raises(InvalidRequest):
            provider.launch((Request("ec2", "run_instances", {}),))

    def test_the_launchers_own_training_is_not_the_nodes(
        self, provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("STOKER_JOB", "STOKER_INPUT_DATA", "STOKER_NODE", "STOKER_TRAINING"):
            monkeypatch.setenv(name, "outer")
        monkeypatch.setenv("MINE", "kept")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        words = Path(f"/proc/{process_of(node, 'agent').pid}/environ").read_bytes().decode().split("\0")
        environ = dict(word.split("=", 1) for word in words if word)
        assert environ["MINE"] == "kept"
        assert environ["STOKER_NODE"] == node.owner
        assert not {"STOKER_JOB", "STOKER_INPUT_DATA", "STOKER_TRAINING"} & environ.keys()


# ── launching ─────────────────────────────────────────────────────────────────────────────────────────────────────────


# The leader of a session whose terminal is about to be closed.
FROM_A_TERMINAL = """
import fcntl, os, signal, sys, termios, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Whoever runs the tests may have it ignored, as nohup does.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path.insert(0, sys.argv[1])
from test_local_provider import STORE, Context, LocalProvider, folder_of, launch, process_of
provider = LocalProvider(Context(STORE))
(instance,) = launch(provider)
process_of(folder_of(provider, instance), "agent")
os.write(1, b"launched\\n")
time.sleep(3600)
"""


class TestLaunching:
    def test_eight_processes_launch_one_gang(self, provider: LocalProvider, tmp_path: Path) -> None:
        go = tmp_path / "go"
        code = """
            requests = provider.build(here.make_order(store=here.STORE, nodes=3))
            print("ready", flush=True)
            while not os.path.exists(go):
                time.sleep(0.001)
            print(sorted(instance.id for instance in provider.launch(requests)), flush=True)
        """
        launchers = [run_python(code, go=str(go)) for _ in range(8)]
        for launcher in launchers:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"ready\n"
        go.touch()
        answers = {launcher.communicate()[0] for launcher in launchers}
        assert [launcher.returncode for launcher in launchers] == [0] * 8
        assert len(answers) == 1
        listed = provider.list_instances()
        assert len(listed) == 3
        for instance in listed:
            node = folder_of(provider, instance)
            process_of(node, "agent")
            assert len(node.path.joinpath("boots").read_text().split()) == 1

    def test_capacity_is_all_or_nothing(self, provider: LocalProvider) -> None:
        room = LocalResources(capacity=2)
        (first,) = launch(provider, make_order(store=STORE, claim=1, local=room))
        with pytest.raises(NoCapacity, match="1 of at most 2"):
            launch(provider, make_order(store=STORE, claim=2, nodes=2, local=room))
        assert [instance.id for instance in provider.list_instances()] == [first.id]
        launch(provider, make_order(store=STORE, claim=3, local=room))
        # What is there already needs no room.
        assert [each.id for each in launch(provider, make_order(store=STORE, claim=1, local=room))] == [first.id]
        until(lambda: provider.terminate(first.id) == "gone", "room")
        launch(provider, make_order(store=STORE, claim=4, local=room))
        with pytest.raises(NoCapacity):
            launch(provider, make_order(store=STORE, claim=5, local=room))

    def test_racing_launchers_do_not_overshoot(self, provider: LocalProvider, tmp_path: Path) -> None:
        go = tmp_path / "go"
        code = """
            from stoker.errors import NoCapacity
            room = here.LocalResources(capacity=4)
            requests = provider.build(here.make_order(store=here.STORE, claim=claim, nodes=2, local=room))
            print("ready", flush=True)
            while not os.path.exists(go):
                time.sleep(0.001)
            try:
                print(len(provider.launch(requests)))
            except NoCapacity:
                print("dry")
        """
        launchers = [run_python(code, go=str(go), claim=claim) for claim in range(1, 6)]
        for launcher in launchers:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"ready\n"
        go.touch()
        answers = sorted(launcher.communicate()[0].strip() for launcher in launchers)
        assert answers == [b"2", b"2", b"dry", b"dry", b"dry"]
        assert len(provider.list_instances()) == 4

    def test_build_touches_nothing(self, provider: LocalProvider, home: Path) -> None:
        assert len(provider.build(make_order(store=STORE, nodes=3))) == 3
        assert not home.exists()

    def test_looking_makes_nothing(self, provider: LocalProvider, home: Path) -> None:
        assert provider.list_instances() == ()
        assert provider.state(["x"]) == {"x": "gone"}
        assert not provider.wait(0.0)
        assert not home.exists()

    def test_old_folders_are_collected(self, provider: LocalProvider, acting: Callable[[str], None]) -> None:
        acting("done")
        old, young, kept = (launch(provider, make_order(store=STORE, claim=claim))[0] for claim in (1, 2, 3))
        acting("stay")
        (running,) = launch(provider, make_order(store=STORE, claim=4))
        for instance in (old, young, kept):
            until_gone(provider, instance)
        for instance, age_s in ((old, KEEP_GONE_S + 60), (young, KEEP_GONE_S - 3600)):
            node = folder_of(provider, instance)
            state = node.read_state()
            assert state is not None
            node.write_state(state._replace(at=time.time() - age_s))
        stale = provider.root / ".new-half"
        stale.mkdir()
        os.utime(provider.root / "collected", (0, 0))
        launch(provider, make_order(store=STORE, claim=5))
        there = {entry.name for entry in provider.root.iterdir()}
        assert {young.id, kept.id, running.id} <= there
        assert old.id not in there
        assert not [name for name in there if name.startswith(".")]
        assert provider.state([old.id])[old.id] == "gone"
        assert provider.state([running.id])[running.id] != "gone"

    def test_a_node_outlives_its_terminal(self, provider: LocalProvider) -> None:
        # A program of its own, not a fork: this process has threads, and a fork would inherit their locks.
        master, slave = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-c", FROM_A_TERMINAL, str(Path(__file__).parent)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        text = b""
        while b"launched" not in text:
            text += os.read(master, 1024)
        os.close(master)
        assert child.wait(timeout=60) == -signal.SIGHUP
        (instance,) = provider.list_instances()
        node = folder_of(provider, instance)
        agent, supervisor = process_of(node, "agent"), supervisor_of(node)
        assert os.getsid(supervisor.pid) == supervisor.pid
        assert os.getsid(agent.pid) == agent.pid
        # Even a hang-up sent to it by name is no reason to go.
        supervisor.signal(signal.SIGHUP)
        provider.interrupt(instance.id, 3600.0)
        until(node.notice.exists, "the supervisor to go on")
        assert agent.alive
        assert provider.state([instance.id])[instance.id] == "running"


# ── notices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class TestNotices:
    def test_a_notice_reaches_the_agents_side_and_its_deadline_is_hard(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        agent = process_of(node, "agent")
        machine = LocalMachine(node.path)
        assert machine.notice() is None
        provider.interrupt(instance.id, 2.0)
        until(lambda: machine.notice() is not None, "the notice")
        notice = machine.notice()
        assert notice is not None
        assert notice.hard
        assert notice.source == "stoker interrupt"
        assert 0.0 <= notice.grace_s <= 2.0
        assert machine.notice() is notice  # Not read again, and not changed.
        until_gone(provider, instance)
        assert not agent.alive
        assert reason_of(node) == "reclaimed"

    def test_a_second_notice_can_only_be_sooner(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        provider.interrupt(instance.id, 600.0)
        until(node.notice.exists, "the notice")
        provider.interrupt(instance.id, 3600.0)
        until(lambda: not node.interrupt.exists(), "the second notice to be taken")
        assert json.loads(node.notice.read_text())["grace_s"] == 600.0
        machine = LocalMachine(node.path)
        first = machine.notice()
        assert first is not None
        provider.interrupt(instance.id, 0.2)
        until_gone(provider, instance)
        sooner = machine.notice()
        assert sooner is not None
        assert sooner.grace_s < first.grace_s

    def test_a_notice_before_the_node_is_up_is_given(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        provider.interrupt(instance.id, 0.2)
        until_gone(provider, instance)
        assert reason_of(folder_of(provider, instance)) == "reclaimed"

    def test_impossible_notices(self, provider: LocalProvider) -> None:
        (instance,) = launch(provider)
        with pytest.raises(InvalidRequest):
            provider.interrupt(instance.id, -1.0)
        with pytest.raises(NotFound):
            provider.interrupt("never-there", 1.0)

    def test_the_market_takes_spot_nodes_back(self, provider: LocalProvider) -> None:
        market = LocalResources(reclaim_mean_s=0.1, grace_s=0.1)
        (instance,) = launch(provider, make_order(store=STORE, spot=True, local=market))
        until_gone(provider, instance)
        node = folder_of(provider, instance)
        assert reason_of(node) == "reclaimed"
        assert json.loads(node.notice.read_text())["source"] == "the simulated spot market"

    def test_the_market_repeats_itself(self, provider: LocalProvider) -> None:
        def drawn(*, spot: bool = True, attempt: int = 1, seed: int = 7, job: str = "job-1") -> list[float | None]:
            market = LocalResources(reclaim_mean_s=30.0, seed=seed)
            order = make_order(store=STORE, nodes=3, spot=spot, local=market)
            order = replace(order, attempt=attempt, job=job)
            return [request.params.get("reclaim_after_s") for request in provider.build(order)]

        # Another job of the same name is another rehearsal of the same piece.
        assert drawn() == drawn(job="job-2")
        assert len({*drawn(), *drawn(attempt=2), *drawn(seed=8)}) == 9
        assert drawn(spot=False) == [None, None, None]


# ── the node's own side, and offerings ────────────────────────────────────────────────────────────────────────────────


class TestMachine:
    def test_ports_differ_between_nodes_and_are_free(self, tmp_path: Path) -> None:
        import socket

        first, second = LocalMachine(tmp_path / "job-1-1-0-aa"), LocalMachine(tmp_path / "job-1-2-0-bb")
        port = first.master_port(29500)
        assert port != second.master_port(29500)
        assert first.address() == "127.0.0.1"
        with socket.socket() as taken:
            taken.bind((first.address(), port))
            taken.listen()
            assert first.master_port(29500) != port

    def test_waking_reaches_a_waiting_provider(self, provider: LocalProvider) -> None:
        provider.root.mkdir(parents=True)
        machine = LocalMachine(provider.root / "node")
        assert not provider.wait(0.0)
        machine.wake_governors()
        machine.wake_governors()
        assert provider.wait(PATIENCE_S)
        assert not provider.wait(0.0)
        machine.wake_governors()
        assert provider.wait(0.0)

    def test_waking_never_raises(self, tmp_path: Path) -> None:
        LocalMachine(tmp_path / "nowhere" / "node").wake_governors()

    def test_power_off_ends_the_process_from_any_thread(self, tmp_path: Path) -> None:
        code = """
            import sys, threading, time
            from pathlib import Path
            from stoker.providers.local.machine import LocalMachine
            print("last words")
            threading.Thread(target=LocalMachine(Path(sys.argv[1])).power_off).start()
            time.sleep(3600)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"last words\n")


class TestOfferings:
    def test_prices(self) -> None:
        spot, on_demand = offers.offerings(Resources(local=LocalResources(price=2.0)))
        assert (spot.spot, spot.price, spot.on_demand_price) == (True, 0.64, 2.0)
        assert (on_demand.spot, on_demand.price, on_demand.on_demand_price) == (False, 2.0, 2.0)
        assert spot.price_source == on_demand.price_source == "job file"
        named, _ = offers.offerings(Resources(local=LocalResources(price=2.0, spot_price=0.5)))
        assert named.price == 0.5

    def test_free_by_default_and_not_taken_away_first(self) -> None:
        first, second = offers.offerings(Resources())
        assert (first.spot, first.price) == (False, 0.0)
        assert (second.spot, second.price) == (True, 0.0)
        assert first.cpus == len(os.sched_getaffinity(0))

    @pytest.mark.parametrize(
        ("resources", "field"),
        [
            (Resources(cpus=100_000), "resources.cpus"),
            (Resources(memory_bytes=10**18), "resources.memory"),
            (Resources(machine=("p4d.24xlarge",)), "resources.machine"),
            (Resources(zones=("us-east-1a",)), "resources.zones"),
            (Resources(gpus=Gpus("no such", 1)), "resources.gpus"),
            (Resources(gpus=Gpus("", 10_000)), "resources.gpus"),
        ],
    )
    def test_what_this_computer_does_not_have(self, resources: Resources, field: str) -> None:
        assert offers.offerings(resources) == ()
        assert offers.why_none(resources).startswith(field)

    def test_what_it_has(self) -> None:
        fitting = Resources(cpus=1, memory_bytes=1, machine=("other", "local"), zones=("this-computer",))
        assert offers.why_none(fitting) == ""
        assert len(offers.offerings(fitting)) == 2

    def test_gpu_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offers, "gpu_names", lambda: ("NVIDIA A100-SXM4-40GB",) * 2)
        assert offers.why_none(Resources(gpus=Gpus("a100", 2))) == ""
        assert offers.why_none(Resources(gpus=Gpus("", 1))) == ""
        assert offers.why_none(Resources(gpus=Gpus("A100", 3)))
        assert offers.why_none(Resources(gpus=Gpus("A10", 1)))
        (offering, _) = offers.offerings(Resources())
        assert (offering.gpu, offering.gpus) == ("NVIDIA A100-SXM4-40GB", 2)
