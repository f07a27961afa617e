"""A notice leaves 30 s, and perhaps 11: whatever hangs, the exit is written in time, and says what is so."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import checkpoint_world
import pytest
from noticing_machine import Here
from plain_store import wait_for

from stoker.agent.exit_report import TrainingRecord, make_exit
from stoker.agent.flush_after_restart import flush
from stoker.agent.node import AgentNode
from stoker.agent.notices import Notices
from stoker.agent.output_sync import OutputSync
from stoker.agent.phases import finish
from stoker.agent.phases.context import AttemptContext
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import TrainingOutcome
from stoker.model import keys
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit
from stoker.model.observed import Known
from stoker.store.base import Store
from stoker.store.node_facts import read_fact
from stoker.testing.memory_store import Fault, MemoryStore

pytestmark = pytest.mark.slow

LIMIT_S = 60.0

# A fixture that tests of checkpoints share.
memory = checkpoint_world.memory


def a_node(store: Store, root: Path, machine: Here | None = None, *, boots: int = 0) -> AgentNode:
    paths = NodePaths(root)
    paths.channel.mkdir(parents=True)
    config = NodeConfig("memory://", "gce", "job-0a1b", 2, 0, 1, "z.1")
    key_list = [keys.node("job-0a1b", 2, 0, keys.boot("z.1", n)) for n in range(boots + 1)]
    return AgentNode(config, paths, store, machine or Here(), key_list[-1], tuple(key_list[:-1]))


# ── The deadline ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shutdown_shortens_what_was_promised_and_never_lengthens_it(tmp_path: Path, memory: MemoryStore) -> None:
    machine = Here()
    notices = Notices(a_node(memory, tmp_path, machine))
    machine.give(120.0)
    first = notices.poll()
    notices.take_signal()
    second = notices.poll()
    assert first is not None and second is not None and second < first - 60
    machine.give(10.0)
    third = notices.poll()
    assert third is not None and third < second
    machine.give(100.0)
    assert notices.poll() == third


def test_the_exit_keeps_its_time() -> None:
    now_s, deadline = 0.0, [None, 30.0]
    closing = ShutdownBudget(1800.0, lambda: deadline[0], lambda: now_s)
    assert closing.flush_by_s() == closing.exit_by_s() == 1800.0 and not closing.has_deadline
    deadline[0] = deadline[1]
    assert (closing.flush_by_s(), closing.exit_by_s()) == (28.0, 30.0) and closing.has_deadline
    now_s = 29.0
    assert closing.share_s() == 0.0 and closing.exit_by_s() == 30.0
    deadline[0] = 40.0
    assert closing.exit_by_s() == 30.0, "it only moves closer"
    now_s = 31.0
    assert closing.exit_by_s() == pytest.approx(31.2)
    short = ShutdownBudget(1800.0, lambda: 1.0, lambda: 0.0)
    assert short.flush_by_s() == 0.5


# ── What hangs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def hanging(*parts: str) -> tuple[MemoryStore, threading.Event]:
    """A store in which whatever a node writes to these keys hangs."""
    release = threading.Event()

    def faults(method: str, key: str) -> Fault | None:
        if not key.startswith("jobs/") and any(part in key for part in parts):
            release.wait(LIMIT_S)
        return None

    return MemoryStore(lambda: datetime.now(timezone.utc), faults=faults), release


def the_exit(store: MemoryStore, key: str) -> Exit | None:
    found = read_fact(store.client(), keys.exit_(key), Exit)
    assert isinstance(found, Known)
    return found.value.value if found.value else None


def finished(life: AttemptContext, outcome: str = "interrupted") -> float:
    """Run the end of a life; how long it took."""
    life.paths.train_log.write_bytes(b"line\n" * 1000)
    life.pumps.logs.start()
    life.heartbeat.start()
    life.record = TrainingRecord(outcome=TrainingOutcome(0, None, 1.0), started_at=datetime.now(timezone.utc))
    began_s = time.monotonic()
    why = "finished" if outcome == "succeeded" else "notice"
    finish.finish(life, make_exit(outcome, why, "test", life.record))  # type: ignore[arg-type]
    return time.monotonic() - began_s


@pytest.mark.parametrize("parts", [("/log/",), ("heartbeat",), ("outputs/",), ("/log/", "heartbeat", "outputs/")])
def test_whatever_hangs_the_exit_is_written_in_time(tmp_path: Path, parts: tuple[str, ...]) -> None:
    store, release = hanging(*parts)
    machine = Here()
    node = a_node(store, tmp_path / "node", machine)
    life = AttemptContext(node)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").write_bytes(b"x" * 1000)
    life.syncs.outputs = OutputSync(store, "job-0a1b", 2, 0, tmp_path / "out")
    life.syncs.outputs.start()
    written: list[float] = []
    machine.give(4.0)
    began_s = time.monotonic()

    def watch() -> None:
        wait_for(lambda: store.holds(keys.exit_(node.key)))
        written.append(time.monotonic() - began_s)

    watching = threading.Thread(target=watch)
    watching.start()
    finished(life)
    watching.join(LIMIT_S)
    release.set()
    # On a busy machine a little late, but never after all that hangs.
    assert written and written[0] < 10.0
    assert the_exit(store, node.key) is not None


class Copy:
    """A copy of the log that nobody takes."""

    warning = None

    def __init__(self) -> None:
        self.drains: list[float] = []
        self.store: MemoryStore | None = None
        self.key = ""
        self.before_exit = 0

    def feed(self, data: bytes, at: float) -> None: ...

    def drain(self, seconds: float) -> bool:
        assert self.store is not None
        self.before_exit += not self.store.holds(self.key)
        self.drains.append(seconds)
        return False

    def stop(self, timeout_s: float = 1.0) -> None: ...


@pytest.mark.parametrize("grace_s", [None, 4.0])
def test_with_little_time_the_clouds_copy_of_the_log_comes_after_the_exit(
    tmp_path: Path, memory: MemoryStore, grace_s: float | None
) -> None:
    machine = Here()
    node = a_node(memory, tmp_path / "node", machine)
    life = AttemptContext(node)
    copy = Copy()
    copy.store, copy.key = memory, keys.exit_(node.key)
    life.pumps.copy = copy  # type: ignore[assignment]
    if grace_s is not None:
        machine.give(grace_s)
    finished(life)
    assert copy.before_exit == (1 if grace_s is None else 0)
    assert len(copy.drains) == (2 if grace_s is None else 1) and copy.drains[-1] <= 10.0


@pytest.mark.parametrize("safe", [True, False])
def test_a_job_has_not_succeeded_until_its_outputs_are_safe(tmp_path: Path, safe: bool) -> None:
    """The notice comes while they are sent."""
    store, release = hanging() if safe else hanging("outputs/")
    machine = Here()
    node = a_node(store, tmp_path / "node", machine)
    life = AttemptContext(node)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").write_bytes(b"x" * 1000)
    life.syncs.outputs = OutputSync(store, "job-0a1b", 2, 0, tmp_path / "out")
    if not safe:
        threading.Timer(0.5, machine.give, [3.0]).start()
    took_s = finished(life, "succeeded")
    release.set()
    left = the_exit(store, node.key)
    assert left is not None and took_s < LIMIT_S
    assert (left.outcome, left.why) == (("succeeded", "finished") if safe else ("interrupted", "notice"))


# ── An agent that was started again ───────────────────────────────────────────────────────────────────────────────────


def test_a_flush_under_notice_writes_its_exit_in_time(tmp_path: Path) -> None:
    store, release = hanging("/log/")
    machine = Here()
    node = a_node(store, tmp_path, machine, boots=1)
    node.paths.train_log.write_bytes(b"line\n" * 1000)
    machine.give(4.0)
    began_s = time.monotonic()
    flush(node)
    assert time.monotonic() - began_s < LIMIT_S
    release.set()
    left = the_exit(store, node.key)
    assert left is not None and left.why == "agent"


def test_a_flush_hears_of_a_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.agent.notices._SIGNAL_GRACE_S", 3.0)
    store, release = hanging("/log/")
    node = a_node(store, tmp_path, boots=1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
        began_s = time.monotonic()
        node.paths.train_log.write_bytes(b"line\n" * 1000)
        flush(node)
        assert time.monotonic() - began_s < LIMIT_S
    finally:
        release.set()
        signal.signal(signal.SIGTERM, before)
    assert the_exit(store, node.key) is not None


def test_a_limit_without_progress_begins_anew_with_each_byte() -> None:
    now_s, moved, deadline = [0.0], [0], [None]
    closing = ShutdownBudget(1800.0, lambda: deadline[0], lambda: now_s[0], lambda: moved[0])
    for _ in range(10):
        now_s[0] += 1700.0
        moved[0] += 1
        assert closing.flush_by_s() == closing.exit_by_s() == now_s[0] + 1800.0
    stands_still_s = now_s[0]
    now_s[0] += 1700.0
    assert closing.share_s() == 100.0 and closing.flush_by_s() == stands_still_s + 1800.0
    assert not closing.has_deadline
    # A notice counts whatever moves.
    moved[0] += 1
    deadline[0] = now_s[0] + 60.0  # type: ignore[call-overload]
    assert closing.flush_by_s() == now_s[0] + 58.0 and closing.has_deadline
    now_s[0] += 50.0
    moved[0] += 1
    assert closing.exit_by_s() == now_s[0] + 10.0
