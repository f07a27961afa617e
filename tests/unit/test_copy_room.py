"""`checkpoints.copy_to` on a node whose disk is nearly full: one large file at a time, and room for the next save."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import copy_target
import pytest
from checkpoint_world import JOB, World, checkpoints
from copy_target import NOON
from plain_store import wait_for

from stoker.agent.checkpoints import copy_room
from stoker.agent.checkpoints.copy_room import CopyRoom, NoCopyRoom
from stoker.agent.checkpoints.copy_thread import CheckpointCopies, CopySource
from stoker.agent.checkpoints.plain_copy import PlainCopy
from stoker.model.node_facts import CheckpointRef
from stoker.store.checkpoint_copy import CopyRecord, list_files, read_record
from stoker.store.checkpoint_manifests import TRUST_ALL
from stoker.testing.memory_store import Fault, MemoryStore

memory, target, world = copy_target.memory, copy_target.target, copy_target.world

LARGE = 10_000


class Disk:
    """The free bytes of the node's disk."""

    def __init__(self) -> None:
        self.free = 1_000_000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(copy_room, "TOGETHER_BYTES", 5_000)
    monkeypatch.setattr(copy_room, "shutil", SimpleNamespace(disk_usage=lambda _folder: found))
    yield found


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def save(world: World, sizes: dict[str, int]) -> None:
    world.save("save", {name: "x" * size for name, size in sizes.items()})
    world.tick()


def sizes_in(scratch: Path) -> list[int]:
    """The sizes of the files that lie there to be sent."""
    found = []
    for path in scratch.glob("*/file"):
        try:
            found.append(path.stat().st_size)
        except FileNotFoundError:
            continue  # It was sent meanwhile.
    return found


@pytest.mark.usefixtures("disk")
def test_of_large_shards_one_is_on_the_disk_at_a_time(
    scratch: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    save(world, {**{f"shard-{number}": LARGE + number for number in range(6)}, "small": 1})
    most: list[int] = []

    def watch(method: str, _key: str) -> Fault | None:
        if method == "put_file":
            most.append(sum(sizes_in(scratch)))
        return None

    copy = PlainCopy(memory, target.client(watch), CopyRecord(JOB, memory.url, NOON), scratch)
    copy.copy(checkpoints(memory)[-1])
    assert len(most) == 8, "the shards, the small one, and Stoker's own file"
    assert max(most) <= LARGE + 5, "a large file is there alone"
    assert len(list_files(target)) == 8 and not list(scratch.iterdir())


def test_small_files_are_there_together_and_a_large_one_waits_for_them(scratch: Path, disk: Disk) -> None:
    room, inside = CopyRoom(scratch, lambda: True), threading.Event()

    def large() -> None:
        with room.take("large", LARGE):
            inside.set()

    with ExitStack() as small:
        for name in "ab":
            small.enter_context(room.take(name, 2_500))
        waiting = threading.Thread(target=large)
        waiting.start()
        third = threading.Thread(target=large)
        third.start()
        assert not inside.wait(0.2)
    waiting.join(10)
    third.join(10)
    assert inside.is_set() and not waiting.is_alive() and not third.is_alive()


def test_a_file_without_room_leaves_the_older_copy_whole_and_is_told(
    scratch: Path, memory: MemoryStore, target: MemoryStore, world: World, disk: Disk
) -> None:
    copy = PlainCopy(memory, target, CopyRecord(JOB, memory.url, NOON), scratch)
    save(world, {"shard": 100})
    copy.copy(checkpoints(memory)[-1])
    before = read_record(target)
    save(world, {"shard": LARGE})
    disk.free = 2 * LARGE - 1
    with pytest.raises(NoCopyRoom) as error:
        copy.copy(checkpoints(memory)[-1])
    assert str(error.value) == (
        "save/shard takes 10.0 kB of this node's disk while it is copied, and the training may need as much for its "
        "next save; 20.0 kB are free"
    )
    assert read_record(target) == before and before is not None and before.complete
    replace(copy, trains=lambda: False).copy(checkpoints(memory)[-1])
    after = read_record(target)
    assert after is not None and after.complete, "nothing else writes once the training is over"


def test_what_had_no_room_is_copied_when_there_is_some_and_at_the_end(
    scratch: Path, memory: MemoryStore, target: MemoryStore, world: World, disk: Disk
) -> None:
    disk.free, said = LARGE + 1_000, list[str]()
    save(world, {"shard": LARGE})

    def last() -> CheckpointRef:
        newest = checkpoints(memory)[-1]
        return CheckpointRef(newest.key, newest.name)

    def make(check: Callable[[], None]) -> PlainCopy:
        return PlainCopy(memory, target, CopyRecord(JOB, memory.url, NOON), scratch, check)

    copies = CheckpointCopies(CopySource(memory, JOB, last, TRUST_ALL, 1), make, said.append)
    copies.start()
    wait_for(lambda: bool(said))
    assert said[0].startswith("checkpoints.copy_to: checkpoints are not copied: save/shard takes 10.0 kB")
    assert not list_files(target)
    copies.final(lambda: float("inf"))
    assert "save/shard" in list_files(target) and copies.warning is None


def test_the_real_disk_is_asked(scratch: Path) -> None:
    free = shutil.disk_usage(scratch).free
    with pytest.raises(NoCopyRoom):
        CopyRoom(scratch, lambda: False).check("file", 10 * free)
    CopyRoom(scratch, lambda: False).check("file", 1)
