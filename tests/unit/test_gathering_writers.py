"""Several processes that write one save: who waits, who is the last, and what is left by those that died."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.checkpoints import save_protocol
from stoker.agent.checkpoints.save_protocol import (
    MARKER,
    Lock,
    Save,
    SharedSave,
    numbered_saves,
    read_json,
    remove,
    write_json,
)


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Processes that are alive, by number, with their identity. The parent of all is 1."""
    alive: dict[int, list[int]] = {1: [1, 11]}
    monkeypatch.setattr(save_protocol, "_identity", lambda pid: alive.get(pid, [pid, 0]))
    monkeypatch.setattr(save_protocol, "_is_alive", lambda who: alive.get(who[0]) == who[:2])
    return alive


def writer(
    pids: dict[int, list[int]],
    folder: Path,
    pid: int,
    *,
    writers: int = 2,
    parent: int = 1,
    channel: Path | None = None,
    monkeypatch: pytest.MonkeyPatch,
) -> SharedSave:
    pids[pid] = [pid, pid * 10]
    with monkeypatch.context() as patch:
        patch.setattr(save_protocol.os, "getpid", lambda: pid)
        patch.setattr(save_protocol.os, "getppid", lambda: parent)
        return SharedSave("last", folder, channel, writers)


def waits(gathering: SharedSave, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it cannot join now."""

    class Waiting(Exception):
        pass

    def sleep(seconds: float) -> None:
        assert seconds == save_protocol.POLL_S
        raise Waiting

    with monkeypatch.context() as patch:
        patch.setattr(save_protocol.time, "sleep", sleep)
        try:
            gathering.join()
        except Waiting:
            return True
    return False


def test_all_write_into_one_folder_and_the_last_to_leave_is_told_so(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(pids, tmp_path, 2, monkeypatch=monkeypatch)
    two = writer(pids, tmp_path, 3, monkeypatch=monkeypatch)
    assert one.join() == two.join() == tmp_path / ".tmp-last-shared"
    assert one.leave(failed=False) == (False, False)
    assert two.leave(failed=False) == (True, False)


@pytest.mark.parametrize("first", [True, False])
def test_one_that_failed_fails_the_save(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    one = writer(pids, tmp_path, 2, monkeypatch=monkeypatch)
    two = writer(pids, tmp_path, 3, monkeypatch=monkeypatch)
    one.join(), two.join()
    assert one.leave(failed=first) == (False, first)
    assert two.leave(failed=not first) == (True, True)


def test_one_that_is_ahead_waits_until_the_save_before_is_over(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(pids, tmp_path, 2, monkeypatch=monkeypatch)
    two = writer(pids, tmp_path, 3, monkeypatch=monkeypatch)
    one.join()
    assert waits(one, monkeypatch), "it is inside already"
    one.leave(failed=False)
    assert waits(one, monkeypatch), "the other has not come yet"
    two.join()
    two.leave(failed=False)
    third = writer(pids, tmp_path, 4, monkeypatch=monkeypatch)
    assert waits(third, monkeypatch), "all have come"
    two.close()
    assert not waits(one, monkeypatch), "the next save of this name may begin"


def test_a_save_whose_writer_died_inside_is_begun_anew_and_the_others_are_told(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(pids, tmp_path, 2, monkeypatch=monkeypatch)
    two = writer(pids, tmp_path, 3, monkeypatch=monkeypatch)
    (one.join() / "part").write_text("torn")
    two.join()
    del pids[2]
    again = writer(pids, tmp_path, 4, monkeypatch=monkeypatch)
    folder = again.join()
    assert list(folder.iterdir()) == [], "nothing of the dead writer's is left"
    assert two.leave(failed=False) == (False, True), "its save is lost"
    assert again.leave(failed=False) == (False, False), "one more is waited for"


def test_a_number_that_is_another_process_by_now_is_dead(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(pids, tmp_path, 2, monkeypatch=monkeypatch)
    one.join()
    pids[2] = [2, 999]
    two = writer(pids, tmp_path, 3, monkeypatch=monkeypatch)
    two.join()
    state = read_json(tmp_path / ".tmp-last-shared.json")
    assert state is not None and [who[0] for who in state["inside"]] == [3]


def left_behind(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch, **of_new: Any
) -> dict[str, Any]:
    """One did its part and ended; then another comes. Answers who counts then."""
    channel = of_new.pop("channel", None)
    one = writer(pids, tmp_path, 2, channel=channel, monkeypatch=monkeypatch)
    one.join()
    one.leave(failed=False)
    if not of_new.pop("lives", False):
        del pids[2]
    age_s = of_new.pop("age_s", 0.0)
    path = tmp_path / ".tmp-last-shared.json"
    moment = path.stat().st_mtime - age_s
    os.utime(path, (moment, moment))
    two = writer(pids, tmp_path, 3, channel=channel, monkeypatch=monkeypatch, **of_new)
    two.join()
    state = read_json(path)
    assert state is not None
    return state


def test_a_sibling_that_did_its_part_and_ended_counts(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(left_behind(tmp_path, pids, monkeypatch)["left"]) == 1


def test_one_of_an_earlier_run_does_not_count(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids[7] = [7, 70]
    assert left_behind(tmp_path, pids, monkeypatch, parent=7)["left"] == []


@pytest.mark.parametrize(("age_s", "counts"), [(save_protocol._STALE_S - 60, 1), (save_protocol._STALE_S + 60, 0)])
def test_a_sibling_of_long_ago_does_not_count(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch, age_s: float, counts: int
) -> None:
    assert len(left_behind(tmp_path, pids, monkeypatch, age_s=age_s)["left"]) == counts


def test_one_that_lives_counts_whoever_its_parent_is(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids[7] = [7, 70]
    assert len(left_behind(tmp_path, pids, monkeypatch, parent=7, lives=True)["left"]) == 1


def test_under_stoker_whoever_left_counts(
    tmp_path: Path, pids: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of an attempt begins fresh: there is no earlier run."""
    channel = tmp_path / "channel"
    channel.mkdir()
    pids[7] = [7, 70]
    assert len(left_behind(tmp_path, pids, monkeypatch, parent=7, age_s=1e6, channel=channel)["left"]) == 1


def test_a_save_of_several_gets_its_name_when_the_last_leaves(tmp_path: Path) -> None:
    """Two threads stand for two processes: each has a gathering of its own."""
    inside, errors = threading.Barrier(2, timeout=30), list[BaseException]()

    def write(who: int) -> None:
        try:
            save = Save("last", tmp_path, None, step=7, sharded=False, writers=2)
            assert save._shared is not None
            save._shared._own_process = [os.getpid(), save_protocol._identity(os.getpid())[1], who, 0]
            with save as folder:
                (folder / f"part-{who}").write_text("x")
                inside.wait()
                assert not (tmp_path / "last").exists()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {path.name for path in (tmp_path / "last").iterdir()} == {"part-0", "part-1", MARKER}
    assert {path.name for path in tmp_path.iterdir()} == {"last", save_protocol.LOCK}, "nothing else is left"


# ── Processes, locks, disks ───────────────────────────────────────────────────────────────────────────────────────────


def test_this_process_is_alive_and_a_later_one_of_its_number_is_another() -> None:
    me = save_protocol._identity(os.getpid())
    assert me[0] == os.getpid() and me[1] > 0
    assert save_protocol._is_alive(me) and not save_protocol._is_alive([me[0], me[1] + 1])
    nobody = 2**22 + 1
    assert save_protocol._identity(nobody) == [nobody, 0] and not save_protocol._is_alive([nobody, 5])


def test_where_the_system_does_not_tell_a_process_that_answers_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_pid: int, _signal: int) -> None:
        raise PermissionError("another user's")

    monkeypatch.setattr(save_protocol.os, "kill", denied)
    monkeypatch.setattr(save_protocol, "_identity", lambda pid: [pid, 0])
    assert save_protocol._is_alive([5, 77])


def test_a_lock_that_is_held_is_waited_for_no_longer_than_its_time(tmp_path: Path) -> None:
    with Lock(tmp_path, None):
        with pytest.raises(TimeoutError, match="is held"), Lock(tmp_path, None, timeout_s=0.0):
            pytest.fail("it is held")
        with pytest.raises(TimeoutError), Lock(tmp_path, None, timeout_s=0.05):
            pytest.fail("it is held")
    with Lock(tmp_path, None, timeout_s=0.0):
        assert (tmp_path / save_protocol.LOCK).exists()


def test_the_lock_is_in_the_channel_where_there_is_one(tmp_path: Path) -> None:
    channel = tmp_path / "channel"
    channel.mkdir()
    with Lock(tmp_path, channel), Lock(tmp_path, None, timeout_s=0.0):
        assert (channel / save_protocol.LOCK).exists() and (tmp_path / save_protocol.LOCK).exists()


@pytest.mark.parametrize(("number", "raises"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_disk_that_fails_is_told_and_one_that_cannot_flush_is_let_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool
) -> None:
    opened: list[int] = []

    def fail(file: int) -> None:
        opened.append(file)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(save_protocol.os, "fsync", fail)
    if raises:
        with pytest.raises(OSError, match="Input/output error"):
            save_protocol._sync(tmp_path)
    else:
        save_protocol._sync(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_save_whose_files_cannot_be_flushed_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(save_protocol, "_sync_tree", fail)
    with pytest.raises(OSError), Save("last", tmp_path, None, step=1, sharded=False, writers=1) as folder:
        (folder / "weights").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_every_file_and_folder_of_a_save_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "weights").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(save_protocol, "_sync", flushed.append)
    save_protocol._sync_tree(tmp_path)
    assert sorted(flushed) == [tmp_path, tmp_path / "below", tmp_path / "below" / "weights"]


def test_saves_are_numbered_and_strange_folders_are_none(tmp_path: Path) -> None:
    for name, tree in {"a": {"number": 3}, "b": {"number": "x"}, ".hidden": {"number": 9}, "c": {}}.items():
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / MARKER, tree)
    (tmp_path / "d").mkdir()
    assert numbered_saves(tmp_path) == [(3, "a")]
    assert numbered_saves(tmp_path / "never") == []


def test_what_was_asked_for_is_counted_and_strange_counters_are_none(tmp_path: Path) -> None:
    assert save_protocol.request_counters(tmp_path) == (0, 0)
    write_json(tmp_path / "commits.next", {"sequence": 4, "sharded": 2})
    assert save_protocol.request_counters(tmp_path) == (4, 2)
    write_json(tmp_path / "commits.next", {"sequence": "x", "sharded": None})
    assert save_protocol.request_counters(tmp_path) == (0, 0)
    assert save_protocol.newest_answer(tmp_path) == 0
    (tmp_path / "commits.done").mkdir()
    for name in ("00000002.json", "00000010.json", "x.json", "00000099.tmp"):
        (tmp_path / "commits.done" / name).touch()
    assert save_protocol.newest_answer(tmp_path) == 10


@pytest.mark.parametrize("sharded", [True, False])
def test_each_save_asks_for_a_commit_with_its_number(tmp_path: Path, sharded: bool) -> None:
    folder, channel = tmp_path / "saves", tmp_path / "channel"
    folder.mkdir()
    channel.mkdir()
    for number in (1, 2):
        save = Save("last", folder, channel, step=10 * number, sharded=sharded, writers=1)
        with save as staging:
            (staging / "weights").write_text(str(number))
        assert save.requested == number
        assert read_json(channel / "commits" / f"{number:08d}.json") == {
            "sequence": number,
            "name": "last",
            "number": number,
            "step": 10 * number,
            "generation": number if sharded else 0,
            "files": 2,  # The weights and the marker.
        }
    assert save_protocol.request_counters(channel) == (2, 2 if sharded else 0)
    assert read_json(folder / "last" / MARKER) == {"name": "last", "number": 2, "step": 20}


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "x" * 101])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        Save(name, tmp_path, None, step=None, sharded=False, writers=1)
    with pytest.raises(ValueError, match="at least one writer"):
        Save("last", tmp_path, None, step=None, sharded=False, writers=0)


def test_a_save_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Save("last", tmp_path, None, step=1, sharded=False, writers=1) as folder:
        (folder / "weights").write_text("x")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, link, file = tmp_path / "folder", tmp_path / "link", tmp_path / "file"
    (folder / "inner").mkdir(parents=True)
    link.symlink_to(folder)
    file.write_text("1")
    remove(link)
    remove(file)
    remove(file)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        remove(folder)
    assert folder.is_dir()
    remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_a_save_is_as_readable_as_anything_else_that_the_script_makes(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with Save("step-1", tmp_path, None, step=None, sharded=False, writers=1) as staging:
            (staging / "model").write_text("1")
        assert os.umask(mask) == mask, "the script's own is left alone"
    finally:
        os.umask(before)
    assert (tmp_path / "step-1").stat().st_mode & 0o777 == 0o777 & ~mask
