"""What a node does on its way to its training: everybody who works for it is seen, and nobody is called idle unseen."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from noticing_machine import Here
from plain_store import wait_for

from stoker.agent.environment.build import EnvironmentBuilder, Recipe
from stoker.agent.environment.local_cache import LocalCache
from stoker.agent.health import setup_activity
from stoker.agent.health.activity_probe import ActivityProbe
from stoker.agent.health.setup_activity import SetupActivity, descendants
from stoker.agent.inputs.cache import CacheEntry
from stoker.agent.inputs.service import Inputs
from stoker.agent.node import AgentNode
from stoker.model import keys
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.processes import Stat, process_table
from stoker.testing.memory_store import MemoryStore

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def family() -> Iterator[set[int]]:
    """A process of ours, and one of its own."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        yield {parent.pid, int(parent.stdout.readline())}
        parent.kill()


def watch(*, pulling: bool = False, shared: bool = True, group: set[int] | None = None) -> SetupActivity:
    return SetupActivity(lambda: set(group or ()), lambda: pulling, shared=shared)


def test_everybody_counts_whom_the_agent_has_started(family: set[int]) -> None:
    found = watch(group={1}).members()
    assert family | {1} <= found and os.getpid() not in found


def test_those_below_and_nobody_else() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 3, 5: 1, 6: 0}
    table = {pid: Stat(pid, "S", parent, pid, 1, 0) for pid, parent in parents.items()}
    assert (
        descendants(table, {2}) == {3, 4}
        and descendants(table, {4}) == set()
        and descendants(table, {1, 3}) == {2, 4, 5}
    )


def test_a_daemon_that_pulls_an_image_works_for_it(family: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it may be looked into: on somebody's own computer nobody knows what it does for whom."""
    monkeypatch.setattr(setup_activity, "_DAEMONS", {Path(f"/proc/{os.getppid()}/comm").read_text().strip()})
    around = descendants(process_table(), {os.getppid()}) | {os.getppid()}
    assert around & family == family
    assert watch(pulling=True).workers() is None
    alone = watch(pulling=True, shared=False).workers()
    assert alone is not None and {os.getppid(), *family} <= alone
    for shared in (True, False):
        others = watch(shared=shared).workers()
        assert others is not None and os.getppid() not in others and family <= others


def test_what_this_process_writes_is_what_an_agent_carries(tmp_path: Path) -> None:
    sight = ActivityProbe(lambda: (), set, shared=True, agent=os.getpid())
    before = sight()
    (tmp_path / "fetched").write_bytes(bytes(1_000_000))
    after = sight()
    assert before.carried is not None and after.carried is not None and after.carried - before.carried >= 1_000_000
    assert (after.cpu_s, after.moved) == (0.0, 0.0)


def test_it_tells_from_the_beginning_and_looks_once() -> None:
    looking = watch()
    assert looking.report() is None
    before = sum(thread.name == "activity" for thread in threading.enumerate())
    for _ in range(3):
        looking.begin()
    told = looking.report()
    assert told is not None and told.silent_s < 60 and told.devices == 0 and not told.waits
    assert sum(thread.name == "activity" for thread in threading.enumerate()) == before + 1
    looking.note_waiting()
    told = looking.report()
    assert told is not None and told.waits
    looking.stop()
    wait_for(lambda: sum(thread.name == "activity" for thread in threading.enumerate()) <= before)


# ── Others of the same machine ────────────────────────────────────────────────────────────────────────────────────────


class Left(Exception):
    """Whoever waits is told to go."""


class Turns:
    """Counts how often somebody says that it waits; lets it go after a few."""

    def __init__(self) -> None:
        self.waited = 0

    def waits(self) -> None:
        self.waited += 1

    def check(self) -> None:
        if self.waited >= 3:
            raise Left


def make_node(root: Path) -> AgentNode:
    store = MemoryStore(lambda: datetime.now(timezone.utc))
    config = NodeConfig("memory://", "sim", "job", 2, 0, 1, "i-1")
    return AgentNode(config, NodePaths(root / "node"), store, Here(), keys.node("job", 2, 0, "i-1.0"))


def test_a_node_that_another_makes_the_environment_for_says_that_it_waits(tmp_path: Path) -> None:
    node, turns = make_node(tmp_path), Turns()
    other = LocalCache(node.environments).acquire("key", lambda: None, lambda _: None)
    assert not other.complete
    anything: Any = cast(Any, None)
    submission: Any = type("Submission", (), {"job": "job", "spec": anything})
    making = EnvironmentBuilder(node, submission, anything, anything, turns.check, turns.waits)
    recipe = Recipe("packages", "key", "any", lambda _: True, lambda _: pytest.fail("it is not its turn"))
    with pytest.raises(Left):
        making.get_or_build(recipe)
    other.abandon()


def test_a_node_that_another_fetches_an_input_for_says_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, turns = make_node(tmp_path), Turns()

    def taken(_kept: CacheEntry, check: Callable[[], None], waits: Callable[[], None]) -> bool:
        waits()
        while True:
            check()

    monkeypatch.setattr(CacheEntry, "acquire", taken)
    monkeypatch.setattr(CacheEntry, "__init__", lambda *_: None)
    said: list[str] = []
    with pytest.raises(Left):
        Inputs(node, turns.check, on_wait=turns.waits)._copy("data", cast(Any, None), said.append)
    assert said == ["another node of this machine is fetching it; waiting"]


def test_where_no_daemon_pulls_nobody_else_works_for_it(family: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_activity, "_DAEMONS", {"no-such-daemon"})
    alone = watch(pulling=True, shared=False).workers()
    assert alone is not None and family <= alone and not {1, os.getpid(), os.getppid()} & alone
    assert setup_activity._name(2**22 + 1) == ""


def test_the_daemons_of_docker_pull_images_for_a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {50: "dockerd", 51: "docker-proxy", 60: "containerd", 61: "containerd-shim", 70: "sshd"}
    parents = {50: 1, 51: 50, 60: 1, 61: 60, 70: 1}
    table = {pid: Stat(pid, "S", parent, pid, 1, 0) for pid, parent in parents.items()}
    monkeypatch.setattr(setup_activity, "process_table", lambda: table)
    monkeypatch.setattr(setup_activity, "_name", lambda pid: names[pid])
    assert watch(pulling=True, shared=False, group={7}).workers() == {7, 50, 51, 60, 61}
    assert watch(pulling=False, shared=False, group={7}).workers() == {7}
