"""The thread of an agent that copies checkpoints to `checkpoints.copy_to`: its warnings, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import copy_target
import pytest
from checkpoint_world import JOB, World, checkpoints
from copy_target import commit, contents, copier, thread

from stoker.agent.checkpoints import copy_thread
from stoker.agent.checkpoints.copy_thread import CheckpointCopies, CopySource
from stoker.agent.checkpoints.plain_copy import PlainCopy
from stoker.agent.checkpoints.save_protocol import Save
from stoker.model import keys
from stoker.model.errors import StoreDenied
from stoker.model.node_facts import CheckpointRef
from stoker.store.checkpoint_manifests import TRUST_ALL
from stoker.testing.memory_store import Fault, MemoryStore

memory = copy_target.memory
target = copy_target.target
world = copy_target.world


def test_the_thread_copies_what_an_earlier_attempt_committed(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "1"
    assert said == []
    assert copies.warning is None


def test_a_url_that_cannot_be_written_is_a_warning_and_no_failure(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    def faults(method: str, _key: str) -> Fault | None:
        return Fault(error=StoreDenied("AccessDenied")) if method in ("put", "put_file") else None

    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert len(said) == 1
    assert said[0].startswith(
        "checkpoints.copy_to: checkpoints are not copied: AccessDenied; the machine needs to list, "
    )
    assert copies.warning is not None


def test_a_later_job_ends_the_copies_of_an_older_one_with_one_line(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    commit(world, {"a": "1"})
    copier(tmp_path, memory, target, "later-1", hours=1).claim()
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    (line,) = said
    assert line.endswith("; this job's stay in the store")
    assert contents(target) == {}


def test_a_damaged_checkpoint_is_told_once_and_passed_over(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    damaged = commit(world, {"a": "1", "b": "lost"})
    blob = next(one for one in damaged.manifests[0].files if one.path == "save/b")
    memory.delete([keys.blob(JOB, 0, blob.name)])
    said: list[str] = []
    sent: list[str] = []
    told, idle = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    def last() -> CheckpointRef | None:
        if told.is_set():
            rounds.append(len(sent))
            if len(rounds) >= 10:
                idle.set()
        return CheckpointRef(checkpoints(memory)[-1].key, "save")

    def faults(method: str, key: str) -> Fault | None:
        sent.extend([key] if method in ("put", "put_file") else [])
        return None

    rounds: list[int] = []
    copy = copier(tmp_path, memory, target.client(faults))
    source = CopySource(memory, JOB, last, TRUST_ALL, 1)
    copies = CheckpointCopies(source, lambda check: replace(copy, check=check), say)
    copies.start()
    assert idle.wait(60)
    line = "checkpoints.copy_to: checkpoint save is not copied: save/b: its bytes are missing from the store; "
    assert said == [line + "the next one will be"]
    assert len(set(rounds)) == 1, "no try sends anything again"
    commit(world, {"a": "1", "b": "2"})
    copies.final(lambda: float("inf"))
    assert contents(target)["save/b"] == "2"
    assert sent.count("save/a") <= 1, "what the failed copy sent stays"
    assert (len(said), copies.warning) == (1, None)


def test_a_damaged_checkpoint_does_not_delay_the_end(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    for blob in commit(world, {"a": "1"}).manifests[0].files:
        memory.put(keys.blob(JOB, 0, blob.name), b"other bytes")
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    (line,) = said
    assert "its bytes in the store are not what was saved" in line
    assert copies.warning is not None
    assert f"checkpoints.copy_to: {copies.warning}" == line


def test_a_checkpoint_that_was_removed_for_a_newer_one_is_no_warning(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    older = commit(world, {"a": "1"})

    def faults(method: str, key: str) -> Fault | None:
        if (method, key) == ("list", "") and memory.holds(keys.manifest(JOB, older.key)):
            commit(world, {"a": "2"})
            memory.delete(
                [keys.manifest(JOB, older.key), *(keys.blob(JOB, 0, one.name) for one in older.manifests[0].files)]
            )
        return None

    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "2"
    assert said == []


def test_the_last_copy_is_made_whenever_the_thread_looks(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    class Watched(CheckpointCopies):
        """Its thread runs at the very moment at which it can see the end."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_final_since" and value is not None:
                self._run()

    commit(world, {"a": "1"})
    copy = copier(tmp_path, memory, target)
    copies = Watched(CopySource(memory, JOB, lambda: None, TRUST_ALL, 1), lambda _check: copy, lambda _line: None)
    copies.pause()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "1"


def test_a_last_checkpoint_whose_other_parts_never_come_is_told(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore
) -> None:
    first = World(tmp_path, memory, nodes=2).begin()
    second = World(tmp_path, memory, rank=1, nodes=2).begin()
    for node in (first, second):
        node.save("one", {f"shard-{node.rank}": "1"}, sharded=True)
        node.tick()
    first.save("two", {"shard-0": "2"}, sharded=True)
    first.tick()
    last = first.sync.status().last
    assert last is not None
    assert last.name == "two"
    clock = iter(range(0, 10**9, 50))
    said: list[str] = []
    copy = copier(tmp_path, memory, target)
    copies = CheckpointCopies(
        CopySource(memory, JOB, lambda: last, TRUST_ALL, 2),
        lambda _check: copy,
        said.append,
        monotonic=lambda: float(next(clock)),
    )
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["one/shard-1"] == "1"
    why = "the newest checkpoint is not copied: other nodes' parts are missing; no attempt resumes from it"
    assert said == [f"checkpoints.copy_to: {why}"]
    assert copies.warning == why


def test_a_copy_that_takes_too_long_is_left_and_told(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def faults(method: str, _key: str) -> Fault | None:
        if method == "put_file":
            reached.set()
            go_on.wait(60)
        return None

    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    assert reached.wait(60)
    copies.final(lambda: 0.0)
    go_on.set()
    assert said == [
        "checkpoints.copy_to: the newest checkpoint is not copied: there was no time left; it is safe in the store"
    ]


def test_a_url_that_does_not_answer_delays_the_end_by_a_minute_at_most(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    clock = iter(range(0, 10**9, 50))
    commit(world, {"a": "1"})
    said: list[str] = []
    silent = target.client(lambda *_: Fault())
    source = CopySource(memory, JOB, lambda: None, TRUST_ALL, 1)
    copy = copier(tmp_path, memory, silent)
    copies = CheckpointCopies(source, lambda _check: copy, said.append, monotonic=lambda: float(next(clock)))
    copies.start()
    copies.final(lambda: float("inf"))
    assert len(said) == 1
    assert "injected fault" in said[0]


def test_an_error_that_no_one_expected_is_a_warning_and_the_next_try_copies(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    commit(world, {"a": "1"})
    copy, told, said = copier(tmp_path, memory, target), threading.Event(), list[str]()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    def make(_check: Callable[[], None]) -> PlainCopy:
        if not said:
            raise RuntimeError("a bug")
        return copy

    copies = CheckpointCopies(CopySource(memory, JOB, lambda: None, TRUST_ALL, 1), make, say)
    copies.start()
    assert told.wait(60)
    copies.final(lambda: float("inf"))
    assert len(said) == 1 and said[0].startswith("checkpoints.copy_to: checkpoints are not copied: ")
    assert "a bug" in said[0]
    assert contents(target)["save/a"] == "1"
    assert copies.warning is None


@pytest.mark.parametrize(("count", "named"), [(3, "link-0, link-1, link-2"), (5, "link-0, link-1, link-2 and 2 more")])
def test_files_that_cannot_be_copied_are_named_up_to_a_number(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World, count: int, named: str
) -> None:
    with Save("one", world.folder, world.channel, step=None, sharded=False, writers=1) as folder:
        (folder / "model").write_text("1")
        for number in range(count):
            (folder / f"link-{number}").symlink_to("nowhere")
    world.tick()
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    why = f"not copied, since they are links or have names that no bucket takes: {named.replace('link', 'one/link')}"
    assert said == [f"checkpoints.copy_to: {why}"]
    assert copies.warning == why
    assert contents(target)["one/model"] == "1"


def test_a_copy_ends_between_two_files_when_the_last_save_needs_the_bandwidth(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    paused, ended = threading.Event(), threading.Event()
    sent: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "put_file":
            sent.append(key)
            if not paused.is_set():
                copies.pause()
                paused.set()
        return None

    def last() -> CheckpointRef:
        if paused.is_set():
            ended.set()
        return CheckpointRef(newest.key, "save")

    newest = commit(world, {f"{number:02}": "x" for number in range(40)})
    said: list[str] = []
    copy = copier(tmp_path, memory, target.client(faults))
    source = CopySource(memory, JOB, last, TRUST_ALL, 1)
    copies = CheckpointCopies(source, lambda check: replace(copy, check=check), said.append)
    copies.start()
    assert ended.wait(60)
    assert len(sent) < 40, "those under way were sent"
    copies.final(lambda: float("inf"))
    assert len(contents(target)) == 41
    assert said == []


def test_a_copy_waits_for_the_other_parts_of_the_newest_checkpoint(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_thread, "_GANG_POLL_S", 0.01)
    first = World(tmp_path, memory, nodes=2).begin()
    second = World(tmp_path, memory, rank=1, nodes=2).begin()
    ending, looks = threading.Event(), list[bool]()

    def last() -> CheckpointRef | None:
        looks.extend([True] if ending.is_set() else [])
        if len(looks) == 2:
            second.save("one", {"shard-1": "1"}, sharded=True)
            second.tick()
        return first.sync.status().last

    def until_s() -> float:
        ending.set()
        return float("inf")

    first.save("one", {"shard-0": "1"}, sharded=True)
    first.tick()
    said: list[str] = []
    copy = copier(tmp_path, memory, target)
    copies = CheckpointCopies(CopySource(memory, JOB, last, TRUST_ALL, 2), lambda _check: copy, said.append)
    copies.start()
    copies.final(until_s)
    assert contents(target)["one/shard-1"] == "1"
    assert said == [] and copies.warning is None


def test_a_copy_whose_time_is_over_ends_between_two_files(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def faults(method: str, _key: str) -> Fault | None:
        if method == "put_file":
            reached.set()
            go_on.wait(60)
        return None

    before = set(threading.enumerate())
    commit(world, {f"{number:02}": "x" for number in range(40)})
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), [])
    copies.start()
    assert reached.wait(60)
    (copying,) = (one for one in set(threading.enumerate()) - before if one.name == "checkpoint-copies")
    copies.final(lambda: 0.0)
    go_on.set()
    copying.join(60)
    assert not copying.is_alive()
    assert 0 < len(contents(target)) < 40


def test_a_checkpoint_that_was_copied_is_not_looked_for_again(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_thread, "_POLL_S", 0.01)
    newest, idle = commit(world, {"a": "1"}), threading.Event()
    listed: list[int] = []

    def last() -> CheckpointRef:
        if target.holds("save/a"):
            listed.append(memory.counts["list"])
        if len(listed) >= 6:
            idle.set()
        return CheckpointRef(newest.key, "save")

    copy = copier(tmp_path, memory, target)
    copies = CheckpointCopies(CopySource(memory, JOB, last, TRUST_ALL, 1), lambda _check: copy, lambda _line: None)
    copies.start()
    assert idle.wait(60)
    copies.close()
    assert len(set(listed)) == 1
