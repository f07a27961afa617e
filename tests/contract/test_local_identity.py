"""No process, cgroup or name is mistaken for a node on this computer, and no node for another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import local_nodes
import pytest
from local_nodes import folder_of, launch, process_of, run_python, until_gone

from stoker.model.errors import InvalidRequest
from stoker.processes import Process
from stoker.processes.cgroup import make as make_cgroup
from stoker.providers.base import Request
from stoker.providers.local import nodes
from stoker.providers.local.folder import NodeFolder
from stoker.providers.local.provider import LocalProvider

# Fixtures that all tests of nodes on this computer share.
way, home, acting, provider = local_nodes.way, local_nodes.home, local_nodes.acting, local_nodes.provider


class TestNobodyIsMistaken:
    def half_made(self, provider: LocalProvider) -> NodeFolder:
        """A node as a launcher leaves it that is killed before it starts the supervisor."""
        code = """
            nodes.start_supervisor = lambda node: os.kill(os.getpid(), signal.SIGKILL)
            provider.launch(provider.build(here.make_order(store=here.STORE)))
        """
        assert run_python(code).wait() == -signal.SIGKILL
        (node,) = nodes.live_nodes(provider.root)
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
            "computer": nodes.computer_id(),
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
            second = subprocess.run([sys.executable, "-m", "stoker.providers.local.supervisor", str(node.path)])
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
