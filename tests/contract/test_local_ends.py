"""However a node on this computer ends: nobody is left of it, and it says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import local_nodes
import pytest
from local_nodes import (
    PATIENCE_S,
    STORE,
    folder_of,
    launch,
    make_order,
    process_of,
    reason_of,
    supervisor_of,
    until,
    until_gone,
)

from stoker.model.spec import Spec
from stoker.processes import Process
from stoker.providers.base import ShellRequest
from stoker.providers.local.provider import LocalProvider

# Fixtures that all tests of nodes on this computer share.
way, home, acting, provider = local_nodes.way, local_nodes.home, local_nodes.acting, local_nodes.provider


# A command that leaves its session and ignores requests to end; with `scrub`, without its environment.
LASTING = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(3600)"
env = {} if sys.argv[2] == "scrub" else dict(os.environ)
os.execve(sys.executable, [sys.executable, "-S", "-c", code, sys.argv[1]], env)
"""


def exec_beside(provider: LocalProvider, instance: str, *words: object) -> subprocess.Popen[bytes]:
    """Run a command as `stoker exec` does."""
    wanted = ShellRequest(command=tuple(map(str, words)))
    with provider.shell_command(instance, wanted, Spec(name="job", run="true")) as command:
        return subprocess.Popen(command.argv, cwd=command.cwd, stderr=subprocess.PIPE)


class TestNobodyIsLeft:
    @pytest.mark.parametrize("env", ["keep", "scrub"])
    @pytest.mark.parametrize("how", ["terminate", "kill-supervisor"])
    def test_commands_beside_the_training_end_with_the_node(
        self, provider: LocalProvider, way: str, acting: Callable[[str], None], tmp_path: Path, env: str, how: str
    ) -> None:
        if env == "scrub" and way == "marks":
            pytest.skip("without cgroups the mark in the environment is all there is")
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        process_of(node, "agent")
        ran = exec_beside(provider, instance.id, sys.executable, "-c", LASTING, tmp_path / "pid", env)
        assert ran.wait(PATIENCE_S) == 0
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"), "it to run")
        process = Process.of(int((tmp_path / "pid").read_text()))
        assert process is not None and not os.environ.get("STOKER_EXEC")
        me, beside = Process.me(), subprocess.Popen(["sleep", "3600"])
        try:
            if how == "terminate":
                provider.terminate(instance.id)
            else:
                supervisor_of(node).signal(signal.SIGKILL)
            until_gone(provider, instance)
            assert not process.alive
            # The person who ran it goes on, with everything else in that session.
            assert me.alive and beside.poll() is None
        finally:
            beside.kill()
            beside.wait()

    def test_no_command_begins_beside_a_node_that_is_off(
        self, provider: LocalProvider, acting: Callable[[str], None], tmp_path: Path
    ) -> None:
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        process_of(node, "agent")
        state = node.read_state()
        assert state is not None
        node.write_state(state._replace(phase="stopping"))
        ran = exec_beside(provider, instance.id, "touch", tmp_path / "done")
        _, complaint = ran.communicate(timeout=PATIENCE_S)
        assert ran.returncode == 126 and complaint.decode() == f"stoker: {instance.id} is off\n"
        assert not (tmp_path / "done").exists()
        provider.terminate(instance.id)
        until_gone(provider, instance)

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
        self, provider: LocalProvider, way: str, acting: Callable[[str], None]
    ) -> None:
        acting("brood")
        (instance,) = launch(provider)
        node = folder_of(provider, instance)
        processes = [process_of(node, name) for name in ("agent", "session", "daemon")]
        supervisor_of(node).signal(signal.SIGKILL)
        until(lambda: not processes[0].alive, "the agent to die with its supervisor")
        if way == "marks":
            # The warden ends them at once. A look from outside could not find them all.
            until(lambda: not [each for each in processes if each.alive], "the warden to end them")
        else:
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
        assert "/nowhere/agent" in node.log.read_text() + node.agent_log.read_text()

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
