"""Nodes are launched on this computer: once, within its capacity, and to outlive whoever launched them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import local_nodes
import pytest
from local_nodes import STORE, folder_of, launch, make_order, process_of, run_python, supervisor_of, until, until_gone

from stoker.model.errors import NoCapacity
from stoker.model.resources import LocalResources
from stoker.providers.local.capabilities import RETAIN_GONE_S
from stoker.providers.local.provider import LocalProvider

# Fixtures that all tests of nodes on this computer share.
way, home, acting, provider = local_nodes.way, local_nodes.home, local_nodes.acting, local_nodes.provider

# The leader of a session whose terminal is about to be closed.
FROM_A_TERMINAL = """
import fcntl, os, signal, sys, termios, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Whoever runs the tests may have it ignored, as nohup does.
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path.insert(0, sys.argv[1])
from local_nodes import STORE, Context, LocalProvider, folder_of, launch, process_of
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
            from stoker.model.errors import NoCapacity
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
        for instance, age_s in ((old, RETAIN_GONE_S + 60), (young, RETAIN_GONE_S - 3600)):
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
