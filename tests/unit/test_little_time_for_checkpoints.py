"""A notice leaves 30 s, and perhaps 11: which checkpoints are safe first, and that nothing takes the line from them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import Answered, World, age, checkpoints, restored_content, write

from stoker.agent.checkpoints.requested_commits import first_to_go
from stoker.agent.output_sync import OutputSync
from stoker.model.errors import StoreUnavailable
from stoker.store.base import StoredFile
from stoker.testing.memory_store import MemoryStore

LIMIT_S = 60.0
KB = 1000

# A fixture that tests of checkpoints share.
memory = checkpoint_world.memory


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

    def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
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
    world.sync.hurry(seconds)
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
    world.sync.hurry(11.0)
    world.tick(every_s=0.1)
    assert names(memory) == ["step-1"]


@pytest.mark.parametrize("pressed", [False, True])
def test_between_the_notice_and_the_end_nothing_is_pruned(tmp_path: Path, memory: MemoryStore, pressed: bool) -> None:
    world = World(tmp_path, memory, keep=1).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    if pressed:
        world.sync.hurry(11.0)
    world.save("step-2", {"model": "2"})
    world.tick()
    assert names(memory) == (["step-1", "step-2"] if pressed else ["step-2"])


def test_after_the_notice_a_folder_is_not_made_to_wait_for_the_last_commit(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory, spacing_s=1000.0).begin()
    for number in (1, 2):
        write(world.folder / f"checkpoint-{number}" / "model", f"{number}")
        world.settle()
    assert len(checkpoints(memory)) == 1
    world.sync.hurry(11.0)
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


def test_from_the_notice_on_the_line_is_for_the_checkpoints(tmp_path: Path, memory: MemoryStore) -> None:
    clock_s = 0.0
    outputs = OutputSync(memory, "job-0a1b", 2, 0, tmp_path, monotonic=lambda: clock_s)
    (tmp_path / "model").write_bytes(b"x")
    outputs.tick()
    outputs.pause()
    clock_s = 100.0
    outputs.tick()
    assert "create" not in memory.counts
    assert outputs.final(LIMIT_S)
    assert memory.counts["create"] == 1


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


@pytest.mark.parametrize("saves", [False, True])
def test_the_earlier_state_goes_first_only_where_no_other_rank_would_have_to_join_it(
    tmp_path: Path, memory: MemoryStore, saves: bool
) -> None:
    world = slow_world(tmp_path, memory, nodes=2, gang=Answered({1: saves}))
    numbered(world, 50, 10 * KB, ago_s=1000.0)
    world.settle()
    numbered(world, 100, 100 * KB, ago_s=60.0)
    numbered(world, 200, 100 * KB)
    notice(world, 30.0)
    made = [one.name for one in checkpoints(memory, complete=False)]
    assert made == ["checkpoint-50", *([] if saves else ["checkpoint-100"]), "checkpoint-200"]


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
