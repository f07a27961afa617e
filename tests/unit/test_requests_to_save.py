"""The agent's end of `stoker.train.checkpoint`: requests, answers, and which save goes on when time is short."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import World, checkpoints, memory_store, write

from stoker.agent.checkpoints import save_protocol
from stoker.agent.checkpoints.commit_queue import CommitQueue, CommitRequest
from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.save_protocol import Save
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.checkpoints.write_history import PreSignalState
from stoker.agent.output_files import Baseline
from stoker.model.errors import StoreUnavailable
from stoker.store.base import StoredFile
from stoker.testing.memory_store import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def queue(tmp_path: Path) -> CommitQueue:
    for name in ("channel", "folder"):
        (tmp_path / name).mkdir()
    return CommitQueue(tmp_path / "channel", tmp_path / "folder")


def ask(tmp_path: Path, name: str, *, step: int | None = None, sharded: bool = False) -> None:
    with Save(name, tmp_path / "folder", tmp_path / "channel", step=step, sharded=sharded, writers=1) as staging:
        write(staging / "model", name)


def test_requests_are_read_in_their_order_with_what_they_say(tmp_path: Path, queue: CommitQueue) -> None:
    assert queue.used is False and queue.waiting() == []
    ask(tmp_path, "a", step=5)
    ask(tmp_path, "b", sharded=True)
    assert queue.used is True
    first, second = queue.waiting()
    assert first == CommitRequest(1, "a", 1, 5, 0, files=2) and not first.sharded
    assert second == CommitRequest(2, "b", 2, None, 1, files=2) and second.sharded


def test_requests_go_by_their_number_whatever_their_files_are_called(tmp_path: Path, queue: CommitQueue) -> None:
    """Nine digits sort before eight."""
    for sequence in (99_999_999, 100_000_000):
        tree = {"sequence": sequence, "name": "a", "number": 1}
        write(tmp_path / "channel/commits" / f"{sequence:08d}.json", json.dumps(tree))
    write(tmp_path / "channel/commits/notes.txt", "left alone")
    assert [one.sequence for one in queue.waiting()] == [99_999_999, 100_000_000]
    assert (tmp_path / "channel/commits/notes.txt").exists()


@pytest.mark.parametrize(
    "tree",
    [
        {"sequence": 2, "name": "a", "number": 1},
        {"sequence": 1, "name": "../a", "number": 1},
        {"sequence": 1, "name": "a", "number": 1, "note": "x" * 65_536},
        {"sequence": 1, "name": "a", "number": 1, "generation": 10**18 + 1},
        {"sequence": 1, "name": "a", "number": 1, "generation": -(10**18) - 1},
    ],
)
def test_a_request_that_cannot_be_is_removed(tmp_path: Path, queue: CommitQueue, tree: dict[str, object]) -> None:
    write(tmp_path / "channel/commits/00000001.json", json.dumps(tree))
    assert queue.waiting() == []
    assert not (tmp_path / "channel/commits/00000001.json").exists()


def test_an_answer_takes_the_request_away_and_the_newest_hundred_are_kept(tmp_path: Path, queue: CommitQueue) -> None:
    ask(tmp_path, "a")
    (request,) = queue.waiting()
    queue.answer(request, key="00000001/000001-a", note="done")
    assert queue.waiting() == []
    answers = tmp_path / "channel/commits.done"
    told = json.loads((answers / "00000001.json").read_text())
    assert told == {"sequence": 1, "key": "00000001/000001-a", "note": "done"}
    for sequence in range(2, 103):
        queue.answer(CommitRequest(sequence, "a", 1), key=None)
    names = sorted(path.name for path in answers.iterdir())
    assert (len(names), names[0], names[-1]) == (100, "00000003.json", "00000102.json")


def test_a_save_that_was_replaced_or_removed_is_not_held_any_more(tmp_path: Path, queue: CommitQueue) -> None:
    ask(tmp_path, "a")
    (request,) = queue.waiting()
    assert queue.in_folder(request) is True
    ask(tmp_path, "a")
    assert queue.in_folder(request) is False
    assert queue.in_folder(CommitRequest(7, "unheard-of", 1)) is False


def test_while_the_script_holds_the_lock_nothing_is_known_of_a_save_in_the_making(
    tmp_path: Path, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.agent.checkpoints.commit_queue._LOCK_S", 0.0)
    handle = os.open(tmp_path / "channel/.stoker-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert queue.in_folder(CommitRequest(1, "a", 1)) is None
    ask_dir = tmp_path / "folder/a"
    write(ask_dir / ".stoker-checkpoint.json", json.dumps({"number": 1}))
    assert queue.in_folder(CommitRequest(1, "a", 1)) is True
    queue.remove_old_saves(1)
    os.close(handle)
    assert queue.in_folder(CommitRequest(1, "a", 2)) is False


def test_a_save_is_not_gone_while_the_script_holds_the_lock(
    tmp_path: Path, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request comes before the folder has its name."""
    monkeypatch.setattr("stoker.agent.checkpoints.commit_queue._LOCK_S", 0.0)
    ask(tmp_path, "a")
    (there,) = queue.waiting()
    coming = CommitRequest(2, "b", 2)
    handle = os.open(tmp_path / "channel/.stoker-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert queue.gone([there, coming]) == []
    os.close(handle)
    assert queue.gone([there, coming]) == [coming]


def test_a_save_that_lost_a_file_or_is_gone_has_not_all_its_files(tmp_path: Path, queue: CommitQueue) -> None:
    ask(tmp_path, "a")
    (request,) = queue.waiting()
    assert queue.has_all_files(request) is True and queue.saves() == {"a": 1}
    (tmp_path / "folder/a/model").unlink()
    assert queue.has_all_files(request) is False
    shutil.rmtree(tmp_path / "folder/a")
    assert queue.has_all_files(request) is False and queue.saves() == {}
    (tmp_path / "folder").rmdir()
    assert queue.has_all_files(request) is False and queue.saves() == {}, "the script removed the folder"


def test_only_old_saves_that_do_not_wait_are_tidied_away(tmp_path: Path, queue: CommitQueue) -> None:
    for name in "abcd":
        ask(tmp_path, name)
    for request in queue.waiting():
        if request.name != "b":
            queue.answer(request, key="k")
    queue.remove_old_saves(1)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["b", "d"]


def test_saves_from_before_the_training_stay_and_those_that_it_restored_go(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("folder", "channel"):
        (tmp_path / name).mkdir()
    old = [*(f"mine-{number}" for number in range(5)), "saved-again", "with-notes", "restored"]
    for number, name in enumerate(old, 1):
        marker = json.dumps({"name": name, "number": number})
        write(folder / name / ".stoker-checkpoint.json", marker)
        write(folder / name / "model", name)
    write(folder / "with-notes/notes", "mine")
    restored = [folder / name / file for name in old[-2:] for file in (".stoker-checkpoint.json", "model")]
    baseline = Baseline.take([folder]).without(restored)
    queue = CommitQueue(tmp_path / "channel", folder, Selection(was_there=baseline.has_file))
    for name in ("saved-again", "job-1", "job-2", "job-3"):
        ask(tmp_path, name)
    for request in queue.waiting():
        queue.answer(request, key="k")
    queue.remove_old_saves(2)
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["job-2", "job-3", *(f"mine-{number}" for number in range(5)), "with-notes"]
    assert all((folder / name / "model").read_text() == name for name in left)


@pytest.mark.parametrize("kind", ["folder", "marker"])
def test_what_is_behind_a_link_is_no_save(tmp_path: Path, queue: CommitQueue, kind: str) -> None:
    for name in "abc":
        ask(tmp_path, name)
    for request in queue.waiting():
        queue.answer(request, key="k")
    (tmp_path / "folder/a").rename(tmp_path / "elsewhere")
    if kind == "folder":
        (tmp_path / "folder/a").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "folder/a").mkdir()
        (tmp_path / "folder/a/.stoker-checkpoint.json").symlink_to(tmp_path / "elsewhere/.stoker-checkpoint.json")
    queue.remove_old_saves(1)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["a", "c"]
    assert (tmp_path / "elsewhere/.stoker-checkpoint.json").exists()


# ── Time is short ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Saving:
    """A store during whose first upload the script makes another save."""

    is_local = True

    def __init__(self, store: MemoryStore, then: Callable[[], None]) -> None:
        self._store, self._then, self.sent = store, then, 0
        self._lock = threading.Lock()

    def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
        # No other file is sent meanwhile.
        with self._lock:
            self.sent += 1
            found = self._store.put_file(source, key)
            if self.sent == 1:
                self._then()
            return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def names(memory: MemoryStore) -> list[str]:
    return [one.name for one in checkpoints(memory)]


@pytest.mark.parametrize("pressed", [False, True])
def test_of_sharded_saves_the_newest_goes_first_once_seconds_count(
    tmp_path: Path, memory: MemoryStore, pressed: bool
) -> None:
    """Ranks decide alike: so sizes do not matter, but one that is more than half sent goes on."""
    world = World(tmp_path, memory, keep=100)
    parts = {f"{number}": f"{number}" * 100 for number in range(10)}
    then = lambda: world.save("second", parts | {"0": "new"}, sharded=True)  # noqa: E731
    world.store = Saving(memory, then)  # type: ignore[assignment]
    world.begin()
    world.save("first", parts, sharded=True)
    if pressed:
        world.sync.hurry(1000.0)
    world.tick(rounds=2)
    assert names(memory) == (["second"] if pressed else ["first", "second"])


def test_a_sharded_save_that_is_more_than_half_sent_goes_on(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One file after another: the oldest goes first, and is most of it.
    monkeypatch.setattr("stoker.agent.checkpoints.sync_options.LOCAL_WORKERS", 1)
    world = World(tmp_path, memory, keep=100)
    parts = {"0": "x" * 10_000, "1": "1"}
    world.store = Saving(memory, lambda: world.save("second", {"0": "new"}, sharded=True))  # type: ignore[assignment]
    world.begin()
    world.save("first", parts, sharded=True)
    for number, name in enumerate(("0", "1", ".stoker-checkpoint.json")):
        os.utime(world.folder / "first" / name, ns=(number, number))
    world.sync.hurry(1000.0)
    world.tick(rounds=2)
    assert names(memory) == ["first", "second"]


def test_a_store_that_fails_after_the_notice_is_tried_again_within_seconds(tmp_path: Path, memory: MemoryStore) -> None:
    tries: list[float] = []

    class Down:
        is_local = True

        def put_file(self, _source: Path, _key: Callable[[str], str]) -> StoredFile:
            tries.append(world.clock.s)
            raise StoreUnavailable("down")

        def __getattr__(self, name: str) -> object:
            return getattr(memory, name)

    world = World(tmp_path, Down()).begin()  # type: ignore[arg-type]
    world.sync.hurry(1000.0)
    world.save("a", {"model": "1"})
    world.tick(rounds=400, every_s=0.1)
    apart_s = [after - before for before, after in itertools.pairwise(sorted(set(tries)))]
    assert 1.5 < max(apart_s) < 2.5


def test_the_writer_of_a_file_ended_by_itself_if_it_was_alone_or_the_command_itself() -> None:
    mark = PreSignalState(0.0, {}, set(), set(), set(), frozenset({1, 2}), frozenset(), True)
    mark.writers = {"root": frozenset({1}), "both": frozenset({1, 2}), "other": frozenset({2})}
    paths = ("root", "both", "other", "unseen")
    end = TrainingEnd("left", root=1, succeeded=True)
    assert [end.exited(mark, path) for path in paths] == [True, False, False, False]
    assert not any(end.gave_up(mark, path) for path in paths)
    end = TrainingEnd("left", root=1, failed=True)
    assert [end.gave_up(mark, path) for path in paths] == [True, False, False, False]
    assert not any(end.exited(mark, path) for path in paths)
    assert all(TrainingEnd("left", root=1, alone=True, succeeded=True).exited(mark, path) for path in paths)
    assert all(TrainingEnd("left", root=1, alone=True, failed=True).gave_up(mark, path) for path in paths)


# ── The script's end ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_where_two_names_cannot_be_exchanged_a_save_is_replaced_all_the_same(
    tmp_path: Path, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as with a C library that lacks the call."""
    monkeypatch.setattr(save_protocol.ctypes, "CDLL", lambda *_, **__: object())
    for text in ("1", "2"):
        with Save("a", tmp_path / "folder", tmp_path / "channel", step=None, sharded=False, writers=1) as staging:
            write(staging / "model", text)
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["a"]
    assert (tmp_path / "folder/a/model").read_text() == "2"


def test_a_disk_that_gives_a_save_no_name_fails_it(
    tmp_path: Path, queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path, "a")

    def fail(_source: Path, _target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failed:
        failed.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="Input/output error"):
            ask(tmp_path, "a")
    assert (tmp_path / "folder/a/model").read_text() == "a"
