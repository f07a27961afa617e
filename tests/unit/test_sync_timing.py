"""When a folder is committed, looked at and told of: near and far stores, ranks, outages, the end."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import Answered, Gang, World, age, checkpoints, manifest_keys, memory_store, write
from test_sync import LIMIT_S

from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.gang_messages import SaveProposal
from stoker.testing.memory_store import Fault, MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def seconds_to_commit(world: World, *, most_s: float = 60.0) -> float:
    """From the last write to the commit of a folder that nothing writes to any more."""
    world.tick(rounds=10, every_s=0.1)
    seen, begun_s = len(checkpoints(world.store)), world.clock.s
    world.write(model=f"{begun_s}")
    while len(checkpoints(world.store)) == seen:
        world.tick(every_s=0.1)
        assert world.clock.s - begun_s < most_s
    return world.clock.s - begun_s


def test_a_folder_rests_longer_where_the_store_is_far_and_where_others_may_be_saving_too(tmp_path: Path) -> None:
    took_s = []
    for number, (is_local, nodes) in enumerate([(True, 1), (False, 1), (True, 2), (False, 2)]):
        options = {"settle_s": None, "spacing_s": None, "nodes": nodes, "gang": Answered({1: False})}
        world = World(tmp_path / str(number), memory_store(is_local=is_local), **options).begin()  # type: ignore[arg-type]
        took_s.append(seconds_to_commit(world))
    near_s, far_s, lead_s, far_lead_s = took_s
    assert 1.0 < near_s < far_s - 1.0
    assert far_s < lead_s - 1.0
    assert abs(lead_s - far_lead_s) < 1.0


def test_other_ranks_than_the_first_wait_no_longer_than_one_alone(tmp_path: Path, memory: MemoryStore) -> None:
    """They have to be ready when rank 0 commits."""
    told = Gang()
    ranks = [
        World(tmp_path, memory, rank=rank, nodes=2, settle_s=None, gang=told.link(rank)).begin() for rank in range(2)
    ]
    for world in ranks:
        world.write(**{f"shard_{world.rank}": "1"})
    while not told.proposals:
        ranks[0].tick(every_s=0.1)
    ranks[1].tick(rounds=20, every_s=0.1)
    assert not told.answered[1].token
    ranks[1].tick(rounds=8, every_s=0.1)
    assert told.answered[1].token
    # Rank 0 alone waits longer: another rank may be ahead of it.
    ranks[0].tick(rounds=120, every_s=0.1)
    ranks[1].tick(rounds=20, every_s=0.1)
    assert len(checkpoints(memory)) == 1


def test_commits_lie_further_apart_where_the_store_is_far(tmp_path: Path) -> None:
    apart_s = []
    for is_local in (True, False):
        store = memory_store(is_local=is_local)
        world = World(tmp_path / str(is_local), store, settle_s=0.2, spacing_s=None).begin()
        begun_s = []
        for number in range(2):
            world.write(model=f"{number}")
            while len(checkpoints(store)) == number:
                world.tick(every_s=0.1)
            begun_s.append(world.clock.s)
        apart_s.append(begun_s[1] - begun_s[0])
    near_s, far_s = apart_s
    assert 2.0 < near_s < far_s - 5.0


def test_commits_of_rank_0_are_looked_for_less_often_where_the_store_is_far(tmp_path: Path) -> None:
    lists = []
    for is_local in (True, False):
        store = memory_store(is_local=is_local)
        told = Gang()
        told.proposals.append(SaveProposal(7, 2.0))
        world = World(tmp_path / str(is_local), store, rank=1, nodes=2, gang=told.link(1)).begin()
        world.write(shard="1")
        world.tick(rounds=10)
        assert told.answered[1].token == 7
        before = store.counts["list"]
        world.tick(rounds=600, every_s=0.1)
        lists.append(store.counts["list"] - before)
    near_lists, far_lists = lists
    assert 30 <= near_lists <= 60
    assert 3 <= far_lists <= 6


def test_before_the_first_round_nothing_waits_and_nothing_was_sent(tmp_path: Path, memory: MemoryStore) -> None:
    status = World(tmp_path, memory).sync.status()
    assert (status.last, status.last_age_s, status.error, status.held_back) == (None, None, None, None)
    assert (status.unsynced_bytes, status.files, status.waiting, status.skipped) == (0, 0, 0, 0)
    assert (status.commits, status.bytes_moved) == (0, 0)


def test_bytes_that_wait_are_counted_until_they_are_safe(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory, settle_s=5.0).begin()
    world.tick()
    world.write(model="1")
    world.tick(rounds=5)
    status = world.sync.status()
    assert (status.unsynced_bytes, status.commits) == (1, 0)
    world.settle()
    status = world.sync.status()
    assert (status.unsynced_bytes, status.commits, status.bytes_moved) == (0, 1, 1)
    age_s = status.last_age_s
    assert age_s is not None and age_s > 0
    world.clock.s += 100.0
    assert world.sync.status().last_age_s == age_s + 100.0


def test_each_outage_is_told_once_and_waited_out_from_the_beginning(
    tmp_path: Path, memory: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, memory.client(), keep=100).begin()
    assert isinstance(world.store, MemoryStore)
    for number in (1, 2, 3):
        world.store.outage(True)
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick(every_s=0.1)
        assert world.sync.status().error is not None
        world.store.outage(False)
        world.tick(every_s=0.4)
        assert len(checkpoints(memory)) == number - 1
        world.tick(every_s=0.2)
        assert len(checkpoints(memory)) == number, "half a second after the first failure"
        assert world.sync.status().error is None
        told = [one for one in caplog.messages if one.startswith("checkpoints cannot be brought")]
        assert len(told) == number


def test_the_time_between_two_tries_doubles_up_to_half_a_minute(tmp_path: Path, memory: MemoryStore) -> None:
    tries: list[float] = []

    def faults(method: str, _key: str) -> Fault:
        tries.append(world.clock.s)
        return Fault()

    world = World(tmp_path, memory.client(faults)).begin()
    world.save("step-1", {"model": "1"})
    world.tick(rounds=2000, every_s=0.1)
    begun_s = sorted(set(tries))
    apart_s = [round(after - before, 1) for before, after in itertools.pairwise(begun_s)]
    assert [round(one) for one in apart_s[1:8]] == [1, 2, 4, 8, 16, 30, 30]


def test_a_living_agent_leaves_a_stamp_every_second(tmp_path: Path, memory: MemoryStore) -> None:
    """By which the next agent sees when this one lived last."""
    world = World(tmp_path, memory).begin()
    stamp = world.scratch / "alive"
    assert stamp.exists()
    stamp.unlink()
    world.tick(every_s=0.9)
    assert not stamp.exists()
    world.tick(every_s=0.2)
    assert stamp.exists()


def test_an_agent_without_room_for_its_stamp_commits_all_the_same(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory)
    write(world.scratch, "a file in the place of the folder")
    world.begin()
    world.write(model="1")
    world.settle()
    assert len(checkpoints(memory)) == 1


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Ends:
    """Two ranks whose training has ended. Time stands still unless the test moves it."""

    def __init__(self, root: Path, memory: MemoryStore, **options: object) -> None:
        self.memory, self.told = memory, Gang()
        self.ranks = [
            World(root, memory.client(), rank=rank, nodes=2, gang=self.told.link(rank), **options).begin()
            for rank in range(2)
        ]
        for world in self.ranks:
            world.write(**{f"shard_{world.rank}": "1"})
        self.train()
        assert len(checkpoints(memory)) == 1
        self.follower = self.ranks[1]
        self.thread = threading.Thread(target=self.follower.sync.final, args=(1000.0,), daemon=True)

    def train(self) -> None:
        for _ in range(80):
            for world in self.ranks:
                world.tick()

    def begin(self) -> None:
        """Let rank 1 begin its end."""
        self.thread.start()
        time.sleep(0.5)

    def lead(self) -> None:
        self.ranks[0].write(shard_0="2")
        self.ranks[0].sync.final(LIMIT_S)


def test_at_the_end_a_rank_that_saves_now_and_then_joins_the_last_save_of_rank_0(
    tmp_path: Path, memory: MemoryStore
) -> None:
    """It was seen twice in a row that it writes nothing at a save of rank 0."""
    ends = Ends(tmp_path, memory, keep=4)
    for number in (2, 3):
        ends.ranks[0].write(shard_0=f"1 and {number} thirds")
        ends.train()
        assert len(checkpoints(memory)) == number
    ends.begin()
    ends.lead()
    ends.follower.clock.s += 1.0
    until(lambda: len(checkpoints(memory)) == 4)
    ends.follower.clock.s += 16.0
    ends.thread.join(LIMIT_S)
    assert not ends.thread.is_alive()
    assert [set(one.manifests) for one in checkpoints(memory)] == [{0, 1}] * 4


def test_at_the_end_a_rank_that_has_not_written_the_last_save_does_not_join_it(
    tmp_path: Path, memory: MemoryStore
) -> None:
    """Its older shard beside the newer one of rank 0 would be one checkpoint of two saves."""
    ends = Ends(tmp_path, memory)
    ends.begin()
    ends.lead()
    for _ in range(16):
        ends.follower.clock.s += 1.0
        time.sleep(0.02)
    ends.thread.join(LIMIT_S)
    assert not ends.thread.is_alive()
    assert [one.complete for one in checkpoints(memory, complete=False)] == [True, False]


def test_at_the_end_a_rank_that_has_nothing_new_does_not_wait_for_ever(tmp_path: Path, memory: MemoryStore) -> None:
    ends = Ends(tmp_path, memory)
    ends.begin()
    ends.follower.clock.s += 14.0
    time.sleep(0.5)
    assert ends.thread.is_alive()
    ends.follower.clock.s += 1.5
    ends.thread.join(LIMIT_S)
    assert not ends.thread.is_alive()
    assert len(checkpoints(memory)) == 1


def test_at_the_end_a_rank_with_something_new_waits_for_rank_0(tmp_path: Path, memory: MemoryStore) -> None:
    ends = Ends(tmp_path, memory)
    ends.follower.write(shard_1="2")
    ends.begin()
    ends.follower.clock.s += 100.0
    time.sleep(0.5)
    assert ends.thread.is_alive()
    ends.lead()
    ends.follower.clock.s += 1.0
    until(lambda: len(checkpoints(memory)) == 2)
    ends.follower.sync.close()
    ends.thread.join(LIMIT_S)


def test_an_end_that_turns_up_sooner_is_kept(tmp_path: Path, memory: MemoryStore) -> None:
    """A cloud's notice may come while the last commit waits for a store that is down."""
    client = memory.client()
    client.outage(True)
    world = World(tmp_path, client, monotonic=time.monotonic).begin()
    world.write(model="1")
    sooner_s = time.monotonic() + 0.2
    arguments = (3600.0, TrainingEnd(), lambda: sooner_s)
    thread = threading.Thread(target=world.sync.final, args=arguments, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_restarted_agent_trusts_what_rested_when_the_one_before_lived_last(
    tmp_path: Path, memory: MemoryStore
) -> None:
    """By the time of its stamp, and a little before: not by the time of the restart."""
    world = World(tmp_path, memory).begin()
    world.write(step_1__model="1", step_2__model="torn?")
    for name, seconds in (("step_1", 103.0), ("step_2", 101.0)):
        age(world.folder / name, seconds=seconds)
    stamp = world.scratch / "alive"
    status = stamp.stat()
    os.utime(stamp, ns=(status.st_atime_ns, status.st_mtime_ns - 100 * 10**9))
    world.options |= {"monotonic": time.monotonic, "recovering": True, "settle_s": 2.0}
    world.sync = world.make()
    world.sync.final(LIMIT_S)
    (found,) = checkpoints(memory)
    assert [blob.path for blob in found.manifests[0].files] == ["step_1/model.pt"]
    assert found.key == manifest_keys(memory)[0] == "00000001/000002-step_1", "the number after one that may still land"


@pytest.mark.parametrize(
    ("notice", "left_s", "pruned"), [(False, 4.9, False), (False, 5.1, True), (True, 29.0, False), (True, 31.0, True)]
)
def test_at_the_end_old_checkpoints_are_removed_only_if_there_is_time_to_spare(
    tmp_path: Path, memory: MemoryStore, notice: bool, left_s: float, pruned: bool
) -> None:
    world = World(tmp_path, memory, keep=1).begin()
    world.save("old", {"model": "1"})
    world.tick()
    world.save("new", {"model": "2"})
    if notice:
        world.sync.hurry(10.0)
    last = world.sync.final(left_s)
    assert last is not None and last.name == "new"
    assert [one.name for one in checkpoints(memory)] == (["new"] if pruned else ["old", "new"])


def test_uploads_that_nothing_refers_to_are_looked_for_now_and_then(tmp_path: Path, memory: MemoryStore) -> None:
    """At first, since an agent before may have left some; a list is long, so not at every commit."""
    listed: list[str] = []

    def faults(method: str, key: str) -> None:
        listed.extend([key] if method == "list" and "/blobs/" in key else [])

    world = World(tmp_path, memory.client(faults), keep=1).begin()
    for number in range(51):
        world.save("step", {"model": f"{number}"})
        world.tick()
        assert len(listed) == (1 if number < 50 else 2), number
