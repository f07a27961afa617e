"""A notice leaves 30 s, and perhaps 11: what happens in which order, and that nothing eats the time of what matters."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from checkpoint_world import World, age, checkpoints, memory_store, restored_content, write
from noticing_machine import Here
from plain_store import wait_for

from stoker import layout
from stoker.agent.closing import Closing
from stoker.agent.committing import first_to_go
from stoker.agent.config import NodeConfig, NodePaths
from stoker.agent.enclosure import Command, Host
from stoker.agent.exits import Trained, make_exit
from stoker.agent.flush import flush
from stoker.agent.life import Life
from stoker.agent.node import Node
from stoker.agent.notices import Notices
from stoker.agent.outputs import OutputSync
from stoker.agent.supervise import Ended, Ending, Training, reserve
from stoker.errors import StoreUnavailable
from stoker.facts import read_fact
from stoker.model import Exit, Known
from stoker.processes import TRAINING, make_group
from stoker.store import Sent, Store
from stoker.testing.memory import Fault, MemoryStore

LIMIT_S = 60.0
KB = 1000


# ── What is committed first ───────────────────────────────────────────────────────────────────────────────────────────


class Slow:
    """A store that takes so many bytes a second of the world's clock, until the machine dies."""

    def __init__(self, store: MemoryStore, bytes_per_s: float) -> None:
        self._store = store
        self._bytes_per_s = bytes_per_s
        self.world: World | None = None
        self.dies_at_s = float("inf")
        # Files to take before the store is away for a moment.
        self.takes: int | None = None

    def put_file(self, source: Path, key: Callable[[str], str]) -> Sent:
        if self.takes is not None:
            self.takes -= 1
            if self.takes < 0:
                raise StoreUnavailable("away for a moment")
        data = source.read_bytes()
        there = self._store.holds(key(hashlib.sha256(data).hexdigest()))
        self._pass(0.0 if there else len(data) / self._bytes_per_s)
        return self._store.put_file(source, key)

    def create(self, key: str, data: bytes) -> bool:
        self._pass(0.0)
        return self._store.create(key, data)

    def _pass(self, seconds: float) -> None:
        assert self.world is not None
        clock = self.world.clock
        clock.s += seconds
        if clock.s > self.dies_at_s:
            # Time goes on without it.
            clock.s += 1000.0
            raise StoreUnavailable("the machine is gone")

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


def slow_world(tmp_path: Path, memory: MemoryStore, bytes_per_s: float = 100 * KB, **options: object) -> World:
    store = Slow(memory, bytes_per_s)
    world = World(tmp_path, store, **options)  # type: ignore[arg-type]
    store.world = world
    return world.begin()


def notice(world: World, seconds: float, real_s: float | None = None) -> None:
    """Told `seconds`, the machine dies after `real_s`."""
    assert isinstance(world.store, Slow)
    world.store.takes = None
    world.store.dies_at_s = world.clock.s + (seconds if real_s is None else real_s)
    world.sync.press(seconds)
    world.sync.final(seconds)


def save(world: World, name: str, size: int, parts: int = 10) -> None:
    world.save(name, {f"part-{n}": os.urandom(size // parts) for n in range(parts)})


def names(memory: MemoryStore) -> list[str]:
    return [one.name for one in checkpoints(memory)]


def test_the_newest_goes_first_if_there_is_time_for_it(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    save(world, "step-1", 800 * KB)
    save(world, "step-2", 800 * KB)
    notice(world, 11.0)
    assert names(memory) == ["step-2"]


def test_one_that_is_nearly_there_is_a_place_to_resume_from_at_once(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    assert isinstance(world.store, Slow)
    world.store.takes = 9
    save(world, "step-1", 1000 * KB)
    world.tick()
    save(world, "step-2", 1000 * KB)
    # Promised 30 s, and dead after 8: the newest would not have made it.
    notice(world, 30.0, real_s=8.0)
    assert names(memory) == ["step-1"]


def test_and_the_newest_follows_it(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    assert isinstance(world.store, Slow)
    world.store.takes = 9
    save(world, "step-1", 1000 * KB)
    world.tick()
    save(world, "step-2", 1000 * KB)
    notice(world, 30.0)
    assert names(memory) == ["step-1", "step-2"]


def test_without_time_for_the_newest_the_one_before_it_is_saved(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    save(world, "step-1", 500 * KB)
    world.tick()
    assert names(memory) == ["step-1"]
    save(world, "step-2", 800 * KB)
    save(world, "step-3", 5000 * KB)
    notice(world, 11.0)
    assert names(memory) == ["step-1", "step-2"]


def test_a_failure_before_the_notice_is_not_waited_out(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    assert isinstance(world.store, Slow)
    world.store.takes = 0
    save(world, "step-1", 100 * KB)
    # Again and again, until half a minute lies between two attempts.
    for _ in range(12):
        world.tick(every_s=40.0)
    world.store.takes = None
    world.sync.press(11.0)
    world.tick(every_s=0.1)
    assert names(memory) == ["step-1"]


@pytest.mark.parametrize("pressed", [False, True])
def test_between_the_notice_and_the_end_nothing_is_pruned(tmp_path: Path, memory: MemoryStore, pressed: bool) -> None:
    world = World(tmp_path, memory, keep=1).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    if pressed:
        world.sync.press(11.0)
    world.save("step-2", {"model": "2"})
    world.tick()
    assert names(memory) == (["step-1", "step-2"] if pressed else ["step-2"])


def test_after_the_notice_a_folder_is_not_made_to_wait_for_the_last_commit(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory, spacing_s=1000.0).begin()
    for number in (1, 2):
        write(world.folder / f"checkpoint-{number}" / "model", f"{number}")
        world.settle()
    assert len(checkpoints(memory)) == 1
    world.sync.press(11.0)
    world.tick(rounds=8)
    assert len(checkpoints(memory)) == 2


@pytest.mark.parametrize(
    ("left", "bytes_per_s", "seconds", "first"),
    [
        ([100], None, 10, 0),
        ([100, 100], None, 10, 1),
        ([25, 100], None, 10, 0),
        ([26, 100], None, 10, 1),
        ([1, 25, 100], None, 10, 1),
        ([100, 100], 10, 10, 1),
        ([25, 100], 10, 20, 0),
        ([25, 100], 10, 11, 1),
        ([25, 100], 10, 9, 0),
        ([10, 50, 200], 10, 9, 1),
        ([80, 40, 200], 10, 1, 1),
        ([50, 50, 200], 10, 1, 1),
        ([100, 0], 10, 0, 1),
    ],
)
def test_which_goes_first(left: list[int], bytes_per_s: float | None, seconds: float, first: int) -> None:
    assert first_to_go(left, bytes_per_s, seconds) == first


# ── A script that knows nothing ───────────────────────────────────────────────────────────────────────────────────────


def numbered(world: World, number: int, size: int, *, kind: str = "checkpoint-", ago_s: float = 0.0) -> None:
    for part in ("model", "optimizer"):
        write(world.folder / f"{kind}{number}" / part, os.urandom(size // 2))
    if ago_s:
        age(world.folder / f"{kind}{number}", ago_s)


def half_of_it(tmp_path: Path, memory: MemoryStore, prepare: Callable[[World], None]) -> list[str]:
    """What there is to resume from when the machine dies after half of what is new was sent."""
    world = slow_world(tmp_path, memory)
    numbered(world, 50, 10 * KB, ago_s=1000.0)
    world.settle()
    prepare(world)
    notice(world, 30.0, real_s=6.0)
    newest = restored_content(memory, tmp_path / "back")
    return sorted({path.partition("/")[0] for path in newest})


def test_a_save_that_was_whole_is_safe_before_the_one_after_it(tmp_path: Path, memory: MemoryStore) -> None:
    def prepare(world: World) -> None:
        numbered(world, 100, 500 * KB, ago_s=60.0)
        numbered(world, 200, 500 * KB)

    assert half_of_it(tmp_path, memory, prepare) == ["checkpoint-100", "checkpoint-50"]


def test_all_of_it_is_one_checkpoint_in_the_end(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    numbered(world, 50, 10 * KB, ago_s=1000.0)
    world.settle()
    for number, ago_s in ((100, 60.0), (200, 30.0), (300, 0.0)):
        numbered(world, number, 100 * KB, ago_s=ago_s)
    notice(world, 30.0)
    assert names(memory) == ["checkpoint-50", "checkpoint-100", "checkpoint-200", "checkpoint-300"]
    whole = {path.partition("/")[0] for path in restored_content(memory, tmp_path / "back")}
    assert whole == {"checkpoint-50", "checkpoint-100", "checkpoint-200", "checkpoint-300"}


def test_without_a_notice_the_end_is_one_commit(tmp_path: Path, memory: MemoryStore) -> None:
    world = slow_world(tmp_path, memory)
    numbered(world, 50, 10 * KB, ago_s=1000.0)
    world.settle()
    numbered(world, 100, 100 * KB, ago_s=60.0)
    numbered(world, 200, 100 * KB)
    world.sync.final(1800.0)
    assert names(memory) == ["checkpoint-50", "checkpoint-200"]


def _shards(world: World) -> None:
    """Written one after the other, and one save together."""
    numbered(world, 0, 500 * KB, kind="rank", ago_s=60.0)
    numbered(world, 1, 500 * KB, kind="rank")


def _two_numbers(world: World) -> None:
    numbered(world, 0, 500 * KB, kind="checkpoint-100-part", ago_s=60.0)
    numbered(world, 1, 500 * KB, kind="checkpoint-100-part")


def _two_kinds(world: World) -> None:
    """Both are known, and each may be a part of one save."""
    numbered(world, 50, 10 * KB, kind="adapter-", ago_s=900.0)
    world.settle()
    numbered(world, 100, 500 * KB, ago_s=60.0)
    numbered(world, 101, 500 * KB, kind="adapter-")


def _beside(world: World) -> None:
    """What names the newest save would name one that is not there."""
    numbered(world, 100, 500 * KB, ago_s=60.0)
    numbered(world, 200, 500 * KB)
    write(world.folder / "latest", "checkpoint-200")


def _mixed(world: World) -> None:
    """The older one was touched while the newer one was written."""
    numbered(world, 200, 500 * KB, ago_s=60.0)
    numbered(world, 100, 500 * KB)


def _rewritten(world: World) -> None:
    numbered(world, 50, 500 * KB, ago_s=60.0)
    numbered(world, 100, 500 * KB)


@pytest.mark.parametrize("prepare", [_shards, _two_numbers, _two_kinds, _beside, _mixed, _rewritten])
def test_half_a_save_is_never_a_checkpoint(
    tmp_path: Path, memory: MemoryStore, prepare: Callable[[World], None]
) -> None:
    assert set(half_of_it(tmp_path, memory, prepare)) <= {"checkpoint-50", "adapter-50"}


# ── The deadline ──────────────────────────────────────────────────────────────────────────────────────────────────────


def a_node(store: Store, root: Path, machine: Here | None = None, *, boots: int = 0) -> Node:
    paths = NodePaths(root)
    paths.channel.mkdir(parents=True)
    config = NodeConfig("memory://", "gce", "job-0a1b", 2, 0, 1, "z.1")
    keys = [layout.node("job-0a1b", 2, 0, layout.boot("z.1", n)) for n in range(boots + 1)]
    return Node(config, paths, store, machine or Here(), keys[-1], tuple(keys[:-1]))


def test_a_shutdown_shortens_what_was_promised_and_never_lengthens_it(tmp_path: Path, memory: MemoryStore) -> None:
    machine = Here()
    notices = Notices(a_node(memory, tmp_path, machine))
    machine.give(120.0)
    first = notices.look()
    notices.take_signal()
    second = notices.look()
    assert first is not None and second is not None and second < first - 60
    machine.give(10.0)
    third = notices.look()
    assert third is not None and third < second
    machine.give(100.0)
    assert notices.look() == third


def test_the_exit_keeps_its_time() -> None:
    now_s, deadline = 0.0, [None, 30.0]
    closing = Closing(1800.0, lambda: deadline[0], lambda: now_s)
    assert closing.rest_by_s() == closing.exit_by_s() == 1800.0 and not closing.pressing
    deadline[0] = deadline[1]
    assert (closing.rest_by_s(), closing.exit_by_s()) == (28.0, 30.0) and closing.pressing
    now_s = 29.0
    assert closing.share_s() == 0.0 and closing.exit_by_s() == 30.0
    deadline[0] = 40.0
    assert closing.exit_by_s() == 30.0, "it only moves closer"
    now_s = 31.0
    assert closing.exit_by_s() == pytest.approx(31.2)
    short = Closing(1800.0, lambda: 1.0, lambda: 0.0)
    assert short.rest_by_s() == 0.5


# ── The training ──────────────────────────────────────────────────────────────────────────────────────────────────────

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def a_training(tmp_path: Path, script: str = STUBBORN) -> Training:
    (tmp_path / "train.py").write_text(script)
    group = make_group(TRAINING, f"t-{os.getpid()}-{tmp_path.name}", sessions=tmp_path / "sessions")
    training = Training(Host(group), threading.Event())
    log = tmp_path / "log"
    command = Command((sys.executable, str(tmp_path / "train.py")), dict(os.environ), tmp_path)
    training.start(command, log)
    wait_for(lambda: "ready" in log.read_text())
    return training


def test_a_notice_during_a_longer_grace_cuts_it(tmp_path: Path) -> None:
    """A job that is stopped has a minute to save. Then its machine is reclaimed."""
    training = a_training(tmp_path)
    ending = Ending("stop", "somebody asked", 600.0)
    began_s = time.monotonic()
    given: list[float] = []
    training.tell(ending, tmp_path / "notice")
    ended = training.end(ending, tmp_path / "notice", lambda s, _: bool(given.append(s)), lambda: began_s + 4.0)
    assert time.monotonic() - began_s < LIMIT_S, "it would have had 440 s"
    assert ended.deadline_s == began_s + 4.0 and ended.signal == signal.SIGKILL
    assert len(given) == 1 and given[0] <= 1.0
    told = json.loads((tmp_path / "notice").read_text())["deadline_monotonic"]
    assert told == pytest.approx(began_s + 3.0, abs=0.5)


def test_the_training_is_told_before_anything_else_can_hang(tmp_path: Path) -> None:
    training = a_training(tmp_path)
    # A file that cannot be written, as on a full disk.
    ending = Ending("notice", "gone", 0.5)
    training.tell(ending, tmp_path / "nowhere" / "notice")
    wait_for(lambda: "heard" in (tmp_path / "log").read_text())
    training.end(ending, tmp_path / "nowhere" / "notice", lambda *_: True)


def test_of_eleven_seconds_the_training_has_eight() -> None:
    assert 11.0 - reserve(11.0) == pytest.approx(8.25)
    assert 30.0 - reserve(30.0) == pytest.approx(22.5)
    assert 600.0 - reserve(600.0) == 590.0


# ── The rest ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hanging(*parts: str) -> tuple[MemoryStore, threading.Event]:
    """A store in which whatever a node writes to these keys hangs."""
    release = threading.Event()

    def faults(method: str, key: str) -> Fault | None:
        if not key.startswith("jobs/") and any(part in key for part in parts):
            release.wait(LIMIT_S)
        return None

    return MemoryStore(lambda: datetime.now(timezone.utc), faults=faults), release


def the_exit(store: MemoryStore, key: str) -> Exit | None:
    found = read_fact(store.client(), layout.exit_(key), Exit)
    assert isinstance(found, Known)
    return found.value.value if found.value else None


def finished(life: Life, outcome: str = "interrupted") -> float:
    """Run the end of a life; how long it took."""
    life.paths.train_log.write_bytes(b"line\n" * 1000)
    life.logs.start()
    life.beat.start()
    life.trained = Trained(ended=Ended(0, None, 1.0), started_at=datetime.now(timezone.utc))
    began_s = time.monotonic()
    why = "finished" if outcome == "succeeded" else "notice"
    life._finish(make_exit(outcome, why, "test", life.trained))  # type: ignore[arg-type]
    return time.monotonic() - began_s


@pytest.mark.parametrize("parts", [("/log/",), ("heartbeat",), ("outputs/",), ("/log/", "heartbeat", "outputs/")])
def test_whatever_hangs_the_exit_is_written_in_time(tmp_path: Path, parts: tuple[str, ...]) -> None:
    store, release = hanging(*parts)
    machine = Here()
    node = a_node(store, tmp_path / "node", machine)
    life = Life(node)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").write_bytes(b"x" * 1000)
    life.outputs = OutputSync(store, "job-0a1b", 2, 0, tmp_path / "out")
    life.outputs.start()
    written: list[float] = []
    machine.give(4.0)
    began_s = time.monotonic()

    def watch() -> None:
        wait_for(lambda: store.holds(layout.exit_(node.key)))
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
    life = Life(node)
    copy = Copy()
    copy.store, copy.key = memory, layout.exit_(node.key)
    life.copy = copy  # type: ignore[assignment]
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
    life = Life(node)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").write_bytes(b"x" * 1000)
    life.outputs = OutputSync(store, "job-0a1b", 2, 0, tmp_path / "out")
    if not safe:
        threading.Timer(0.5, machine.give, [3.0]).start()
    took_s = finished(life, "succeeded")
    release.set()
    left = the_exit(store, node.key)
    assert left is not None and took_s < LIMIT_S
    assert (left.outcome, left.why) == (("succeeded", "finished") if safe else ("interrupted", "notice"))


def test_from_the_notice_on_the_line_is_for_the_checkpoints(tmp_path: Path, memory: MemoryStore) -> None:
    clock_s = 0.0
    outputs = OutputSync(memory, "job-0a1b", 2, 0, tmp_path, monotonic=lambda: clock_s)
    (tmp_path / "model").write_bytes(b"x")
    outputs.tick()
    outputs.hold()
    clock_s = 100.0
    outputs.tick()
    assert memory.counts.get("put", 0) == 0
    assert outputs.final(LIMIT_S)
    assert memory.counts["put"] == 1


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


def test_the_share_of_the_machine_is_what_it_was_told(tmp_path: Path, memory: MemoryStore) -> None:
    """The exit tells the grace that counted, not the one that was promised first."""
    training = a_training(tmp_path)
    ending = Ending("notice", "gone", 60.0)
    training.tell(ending, tmp_path / "notice")
    ended = training.end(ending, tmp_path / "notice", lambda *_: True, lambda: time.monotonic() + 1.0)
    assert ended.save is not None and ended.save.grace_s is not None and ended.save.grace_s < 60.0
    assert replace(ended.save).ended_s is not None
