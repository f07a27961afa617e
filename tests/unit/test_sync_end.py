"""The last commit: when the training is over, and when an agent was started again."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import (
    Clock,
    Gang,
    World,
    age,
    assert_sound,
    checkpoints,
    manifest_keys,
    restored_content,
    write,
)
from test_sync import LIMIT_S, Meddling
from test_sync_requested import answers

from stoker.agent.checkpoints import commit_schedule
from stoker.agent.checkpoints import sync as sync_module
from stoker.agent.checkpoints.blobs import BlobSender
from stoker.agent.checkpoints.commit_rounds import WRITEBACK_S
from stoker.agent.checkpoints.commit_schedule import LastAlive
from stoker.agent.checkpoints.folder_snapshot import IGNORED_NAMES
from stoker.agent.checkpoints.format_check import check_format
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.errors import StoreUnavailable
from stoker.store.base import Store
from stoker.testing.memory_store import Fault, MemoryStore

# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# Fixtures that all tests of checkpoints share.
store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


def final_world(tmp_path: Path, store: Store, **options: object) -> World:
    """With real time: `final` waits."""
    return World(tmp_path, store, **{"monotonic": time.monotonic, "settle_s": 1000.0} | options)  # type: ignore[arg-type]


def test_the_last_commit_takes_what_is_there(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    world.write(model="1")
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.key == manifest_keys(store)[-1]
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"1"}
    assert world.sync.status().unsynced_bytes == 0


def test_the_last_commit_of_nothing_is_none(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    assert world.sync.final(LIMIT_S) is None


def test_the_last_commit_leaves_out_what_is_half_written(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(step_1__model="1")
    world.tick(rounds=4)
    world.write(step_2__model="2", step_2__optimizer="half", flat="half")
    world.open = {"step_2/optimizer.pt", "flat.pt"}
    world.tick()
    world.sync.final(LIMIT_S, TrainingEnd("died"))
    assert restored_content(store, tmp_path / "back") == {"step_1/model.pt": b"1"}


def test_a_file_overwritten_in_place_and_half_done_stays_as_it_was(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store).begin()
    first.write(model="1", optimizer="1")
    first.settle()
    world = World(tmp_path, store, claim=2).restore_newest().begin()
    world.write(sub__new="n")
    world.tick(rounds=10)
    world.write(model="2", optimizer="half")
    world.open = {"optimizer.pt"}
    world.sync.final(LIMIT_S, TrainingEnd("died"))
    assert restored_content(store, tmp_path / "back") == {
        "model.pt": b"1",
        "optimizer.pt": b"1",
        "sub/new.pt": b"n",
    }
    assert_sound(store)


def test_the_last_save_is_committed_at_the_end(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    for number in range(4):
        world.save(f"step-{number}", {"model": f"{number}"})
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.name == "step-3"
    assert [one.name for one in checkpoints(store)] == ["step-3"]
    assert set(answers(world)) == {1, 2, 3, 4}


def test_at_the_end_older_shards_follow_since_other_ranks_may_have_no_newer(tmp_path: Path, store: Store) -> None:
    ranks = [final_world(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    for number in range(3):
        ranks[0].save(f"step-{number}", {"shard-0": f"{number}"}, sharded=True)
        if number < 2:
            ranks[1].save(f"step-{number}", {"shard-1": f"{number}"}, sharded=True)
    for world in ranks:
        world.sync.final(LIMIT_S)
    assert [one.name for one in checkpoints(store)] == ["step-0", "step-1"]
    last = ranks[0].sync.status().last
    assert last is not None and last.name == "step-2"


def test_the_last_commit_waits_out_a_short_outage(tmp_path: Path, memory: MemoryStore) -> None:
    client = memory.client()
    world = final_world(tmp_path, client).begin()
    world.write(model="1")
    client.outage(True)
    threading.Timer(0.3, client.outage, [False]).start()
    assert world.sync.final(LIMIT_S) is not None


def test_the_last_commit_gives_up_at_the_deadline(tmp_path: Path, memory: MemoryStore) -> None:
    client = memory.client()
    world = final_world(tmp_path, client).begin()
    world.write(model="1")
    client.outage(True)
    assert world.sync.final(0.2) is None
    assert world.sync.status().unsynced_bytes == 1


def test_a_store_that_hangs_does_not_hold_up_the_end(tmp_path: Path, memory: MemoryStore) -> None:
    release = threading.Event()
    world = final_world(tmp_path, Meddling(memory, lambda _: release.wait(LIMIT_S) and None)).begin()  # type: ignore[arg-type]
    world.write(model="1")
    assert world.sync.final(0.2) is None
    release.set()


def test_at_the_end_all_ranks_commit_the_same_save(tmp_path: Path, store: Store) -> None:
    ranks: list[World] = []
    finished, told = threading.Event(), Gang()
    for rank in range(2):
        options = {"gang": told.link(rank), "lead_finished": finished.is_set}
        world = final_world(tmp_path, store, rank=rank, nodes=2, **options)
        ranks.append(world.begin())
        world.write(**{f"shard_{rank}": "1"})
    following = threading.Thread(target=ranks[1].sync.final, args=(LIMIT_S,))
    following.start()
    ranks[0].sync.final(LIMIT_S)
    finished.set()
    following.join(LIMIT_S)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0, 1}


def test_a_rank_does_not_wait_for_a_lead_that_has_finished(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store, rank=1, nodes=2, lead_finished=lambda: True).begin()
    world.write(shard="1")
    began = threading.Event()
    thread = threading.Thread(target=lambda: (began.set(), world.sync.final(3600.0)))
    thread.daemon = True
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_it_runs_by_itself(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, monotonic=time.monotonic, settle_s=0.05)
    world.sync.start()
    world.write(model="1")
    limit = time.monotonic() + LIMIT_S
    while not checkpoints(store):
        assert time.monotonic() < limit
        time.sleep(0.01)
    world.save("step-1", {"model": "2"})
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.name == "step-1"


def test_an_error_nobody_foresaw_does_not_end_the_saving(tmp_path: Path, memory: MemoryStore) -> None:
    failures = iter([RuntimeError("what?")])

    def faults(method: str, key: str) -> Fault | None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return None

    world = World(tmp_path, memory.client(faults), monotonic=time.monotonic, settle_s=0.05)
    world.sync.start()
    world.write(model="1")
    limit = time.monotonic() + LIMIT_S
    while not checkpoints(memory):
        assert time.monotonic() < limit
        time.sleep(0.01)
    world.sync.close()


def test_once_it_is_closed_it_ends_without_a_last_commit(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store)
    world.sync.start()
    world.write(model="1")
    world.sync.close()
    thread = world.sync._thread
    assert thread is not None
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert world.sync.final(LIMIT_S) is None
    assert checkpoints(store) == []


# ── A restarted agent ─────────────────────────────────────────────────────────────────────────────────────────────────


def recovering(world: World) -> World:
    world.options |= {"monotonic": time.monotonic, "recovering": True, "settle_s": 2.0}
    world.restored = None
    world.sync = world.make()
    return world


def test_a_restarted_agent_commits_what_is_there(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(old="1")
    world.settle()
    world.write(new="2")
    age(world.folder, seconds=60)
    last = recovering(world).sync.final(LIMIT_S)
    assert last is not None and last.key == manifest_keys(store)[-1]
    assert restored_content(store, tmp_path / "back") == {"old.pt": b"1", "new.pt": b"2"}


def test_a_restarted_agent_leaves_out_what_was_written_when_all_died(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(step_1__model="1", step_2__model="torn?")
    age(world.folder / "step_1", seconds=60)
    recovering(world).sync.final(LIMIT_S)
    assert restored_content(store, tmp_path / "back") == {"step_1/model.pt": b"1"}


def test_a_restarted_agent_commits_nothing_twice(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="1")
    world.settle()
    age(world.folder, seconds=60)
    recovering(world).sync.final(LIMIT_S)
    assert len(checkpoints(store)) == 1


def test_a_restarted_agent_commits_the_saves_that_wait_and_prunes_nothing(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1).begin()
    world.save("step-0", {"model": "0"})
    world.tick()
    world.save("step-1", {"model": "1"})
    recovering(world).sync.final(LIMIT_S)
    assert [one.name for one in checkpoints(store)] == ["step-0", "step-1"]


def test_a_restarted_agent_where_no_training_began_commits_nothing(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store)
    world.write(half="restored")
    age(world.folder)
    assert recovering(world).sync.final(LIMIT_S) is None
    assert world.sync.status().error is None
    assert checkpoints(store) == []


def test_a_restarted_agent_commits_nothing_of_what_was_only_restored(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store).begin()
    first.write(model="1")
    first.settle()
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    age(second.folder, seconds=60)
    assert recovering(second).sync.final(LIMIT_S) is None
    assert len(checkpoints(store)) == 1


def test_a_restarted_agent_waits_for_a_store_that_does_not_say_what_it_has(tmp_path: Path, memory: MemoryStore) -> None:
    client = memory.client()
    world = World(tmp_path, client).begin()
    world.write(model="1")
    age(world.folder, seconds=60)
    client.outage(True)
    assert recovering(world).sync.final(0.2) is None
    assert "StoreUnavailable" in (world.sync.status().error or "")
    threading.Timer(0.3, client.outage, [False]).start()
    assert recovering(world).sync.final(LIMIT_S) is not None


# ── A machine that was started anew ───────────────────────────────────────────────────────────────────────────────────


def rebooted(world: World, monkeypatch: pytest.MonkeyPatch, *, after_s: float = 0.0) -> World:
    """As if the machine had crashed, so long after the last write, and the agent were started again on its disk."""
    stamp = world.scratch / "alive"
    last_ns = time.time_ns() + int(after_s * 1e9)
    os.utime(stamp, ns=(last_ns, last_ns))
    monkeypatch.setattr(commit_schedule, "boot_id", lambda: "another boot")
    return recovering(world)


@pytest.mark.parametrize("after_s", [0.0, 20.0, 50.0])
@pytest.mark.parametrize(
    "left", [b"", b"9" * 300, b"9" * 300 + bytes(700), bytes(1000)], ids=["empty", "short", "end lost", "zeros"]
)
def test_bytes_that_a_crash_of_the_machine_lost_are_no_checkpoint(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, after_s: float, left: bytes
) -> None:
    """Name and time of the file reached the disk, its bytes in part, or as zeros."""
    world = World(tmp_path, store).begin()
    world.write(model=b"1" * 1000)
    world.settle()
    age(world.folder, 300.0)
    world.write(model=left)
    assert rebooted(world, monkeypatch, after_s=after_s).sync.final(LIMIT_S) is None
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"1" * 1000}
    held_back = world.sync.status().held_back
    assert held_back is not None and held_back.endswith("just before its machine crashed, and bytes may be lost")


def test_what_was_written_a_minute_before_the_machine_crashed_is_committed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, store).begin()
    world.write(step_1__model="1")
    assert rebooted(world, monkeypatch, after_s=WRITEBACK_S + 1.0).sync.final(LIMIT_S) is not None
    assert restored_content(store, tmp_path / "back") == {"step_1/model.pt": b"1"}


def test_the_time_that_a_program_gives_a_file_does_not_make_it_older_than_the_crash(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cp -p` and `tar` do."""
    world = World(tmp_path, store).begin()
    world.write(model="1")
    age(world.folder, 3600.0)
    assert rebooted(world, monkeypatch).sync.final(LIMIT_S) is None
    assert checkpoints(store) == []


@pytest.mark.parametrize(
    ("data", "rescued"),
    [
        (b'{"step": 3}', True),
        (struct.pack("<Q", 31) + b'{"a": {"data_offsets": [0, 8]}}' + bytes(8), False),
    ],
    ids=["json", "safetensors"],
)
def test_only_a_format_of_which_every_byte_is_read_shows_that_a_crash_of_the_machine_lost_none(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, data: bytes, rescued: bool
) -> None:
    """A header that is there and a size that is right say nothing about what lies between."""
    world = World(tmp_path, store).begin()
    for number in (1, 2, 3):
        path = world.folder / f"step-{number}" / "state.json"
        write(path, data)
        if number < 3:
            world.settle()
            age(world.folder, 300.0 - number)
    assert check_format(path).state == "whole"
    last = rebooted(world, monkeypatch).sync.final(LIMIT_S)
    assert (last is not None) is rescued
    assert ("step-3/state.json" in restored_content(store, tmp_path / "back")) is rescued


def test_a_file_that_has_the_bytes_of_the_last_commit_lost_none_in_the_crash(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed in the minute before. What lies beside it, and is older, is part of no commit yet."""
    world = World(tmp_path, store).begin()
    world.write(run__model="1")
    world.settle()
    watch = rebooted(world, monkeypatch).sync._rounds.watch
    assert world.sync.final(LIMIT_S) is None
    assert watch.history.maybe_lost == set()
    assert world.sync.status().held_back is None


@pytest.mark.parametrize("stamp", ["", "\0" * 36], ids=["empty", "zeros"])
def test_a_stamp_that_the_crash_emptied_is_one_of_another_boot(tmp_path: Path, store: Store, stamp: str) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="1")
    (world.scratch / "alive").write_text(stamp)
    later_ns = time.time_ns() + 20 * 10**9
    os.utime(world.scratch / "alive", ns=(later_ns, later_ns))
    assert recovering(world).sync.final(LIMIT_S) is None
    assert checkpoints(store) == []


# ── A store that is away when the training ends ───────────────────────────────────────────────────────────────────────


def test_half_written_files_do_not_come_to_rest_while_the_store_is_away(tmp_path: Path, memory: MemoryStore) -> None:
    """A manifest in doubt goes before everything else, and is asked about until the store answers."""
    clock, out = [1000.0], [False]

    def faults(method: str, key: str) -> Fault | None:
        away = out[0] and "/checkpoints/" in key and method != "list"
        clock[0] += 3.0 * away
        return Fault(after=True) if away else None

    world = World(tmp_path, memory.client(faults), monotonic=lambda: clock[0]).begin()
    rounds = world.sync._rounds
    world.write(step_1__model="1")
    out[0] = True
    for _ in range(4):
        clock[0] += 1.0
        world.sync.tick()
    assert rounds.manifests.in_doubt
    world.write(step_2__model="torn?")
    clock[0] += 0.1
    rounds.watch.scan()
    rounds.training_end = TrainingEnd("died")
    for _ in range(3):
        rounds.backoff.reset()
        rounds.attempt(final=True)
    out[0] = False
    for _ in range(3):
        rounds.backoff.reset()
        rounds.attempt(final=True)
    assert restored_content(memory, tmp_path / "back") == {"step_1/model.pt": b"1"}


@pytest.mark.parametrize("nodes", [1, 2])
def test_after_a_restart_files_do_not_come_to_rest_while_the_store_is_away(
    tmp_path: Path, memory: MemoryStore, nodes: int
) -> None:
    clock = [1000.0]
    world = World(tmp_path, memory, rank=nodes - 1, nodes=nodes).begin()
    world.write(model="torn?")
    world.sync = world.make(recovering=True, monotonic=lambda: clock[0])
    rounds = world.sync._rounds
    rounds.recall(LastAlive(time.time_ns(), same_boot=True))
    clock[0] += 100.0
    rounds.watch.scan()
    assert "model.pt" in rounds.watch.history.changed_lately()


def test_what_is_left_out_at_the_end_is_told(tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    world = final_world(tmp_path, store).begin()
    (world.folder / "state.json").write_text('{"step": 1')
    assert world.sync.final(LIMIT_S) is None
    held_back = world.sync.status().held_back
    assert held_back is not None and held_back.startswith("state.json is not part of the checkpoint: ")
    assert held_back in [record.getMessage() for record in caplog.records]


def test_patterns_are_what_the_docs_say() -> None:
    assert set(IGNORED_NAMES) == {"*.tmp", ".tmp-*", "*.partial", ".stoker-lock", ".stoker-folder.*"}


def test_the_outage_error_is_what_the_store_raises() -> None:
    assert issubclass(type(Fault().error), StoreUnavailable)


def test_a_file_that_can_never_be_read_ends_the_last_commit_after_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: BlobSender, _path: Path) -> tuple[str, str, int]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(BlobSender, "_put", broken)
    monkeypatch.setattr(sync_module, "_DEADLINE_CHECK_S", 0.001)
    clock = world.clock = Clock()
    world.options = {"monotonic": clock}
    world.begin()
    world.write(a="1")
    began_s = clock()

    def until() -> float:
        clock.advance(0.05)
        return float("inf")

    assert world.sync.final(None, TrainingEnd("finished"), until) is None
    assert clock() - began_s >= sync_module._READ_FOR_S
    assert world.sync.uncommitted().keys() == {"a.pt"}, "its files may be kept as outputs"


def test_a_last_commit_goes_on_while_its_end_moves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_module, "_DEADLINE_CHECK_S", 0.001)
    clock = world.clock = Clock()
    world.options = {"monotonic": clock}
    world.begin()
    world.write(a="1")
    release, put = threading.Event(), BlobSender._put

    def slow(self: BlobSender, path: Path) -> tuple[str, str, int]:
        release.wait(LIMIT_S)
        return put(self, path)

    monkeypatch.setattr(BlobSender, "_put", slow)

    def until() -> float:
        clock.advance(10.0)
        if clock() > 5000.0:
            release.set()
        return clock() + 1800.0

    last = world.sync.final(None, TrainingEnd("finished"), until)
    assert last is not None and clock() > 5000.0
