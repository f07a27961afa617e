"""A machine's environments: made by one, used by many, whoever dies meanwhile."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.agent.environment import local_cache as module
from stoker.agent.environment.local_cache import EnvironmentInUse, EnvironmentLock, LocalCache

# Makes an environment as slowly as it is told to, or finds it; says which, and holds it until its input ends.
NODE = """\
import sys, time
from pathlib import Path
from stoker.agent.environment.local_cache import LocalCache
held = LocalCache(Path(sys.argv[1])).acquire("k", lambda: None, lambda text: print("said", text, flush=True))
if held.complete:
    print("found", flush=True)
else:
    print("making", flush=True)
    sys.stdin.readline()
    held.folder.mkdir()
    (held.folder / "file").write_text("whole")
    held.finish()
    print("made", flush=True)
sys.stdin.readline()
"""


class Node:
    """Another process on the same machine."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate()


def acquire(shelf: LocalCache) -> EnvironmentLock:
    return shelf.acquire("k", lambda: None, lambda _text: None)


def make(shelf: LocalCache) -> EnvironmentLock:
    held = acquire(shelf)
    assert not held.complete
    held.folder.mkdir()
    (held.folder / "file").write_text("whole")
    held.finish()
    return held


def test_of_many_nodes_one_makes_it_and_the_others_wait_for_it(tmp_path: Path) -> None:
    first, second = Node(tmp_path), None
    assert first.says() == "making"
    second = Node(tmp_path)
    assert second.says().startswith("said another node on this machine is building the same")
    first.go_on()
    assert first.says() == "made"
    # Both use it at once.
    assert second.says() == "found"
    for node in (first, second):
        node.end()


def test_who_dies_while_making_it_leaves_it_to_the_next(tmp_path: Path) -> None:
    first = Node(tmp_path)
    assert first.says() == "making"
    (tmp_path / "k").mkdir()
    (tmp_path / "k/half").touch()
    first.end(signal.SIGKILL)
    held = make(LocalCache(tmp_path))
    assert not (held.folder / "half").exists()
    held.release()


def test_whoever_waits_can_be_told_to_go(tmp_path: Path) -> None:
    class Told(Exception):
        pass

    def check() -> None:
        raise Told

    first = Node(tmp_path)
    assert first.says() == "making"
    with pytest.raises(Told):
        LocalCache(tmp_path).acquire("k", check, lambda _text: None)
    first.end()


def poison(folder: Path, how: str) -> None:
    """What a training may do to the environment that it runs in, and a disk that loses power to any."""
    match how:
        case "emptied":
            (folder / "file").write_text("")
        case "written anew in the same size":
            (folder / "file").write_text("WHOLE")
        case "replaced":
            (folder / "other").write_text("whole")
            (folder / "other").replace(folder / "file")
        case "added":
            (folder / "more").write_text("")
        case "removed":
            (folder / "file").unlink()
        case "made a link":
            (folder / "file").unlink()
            (folder / "file").symlink_to("/dev/null")
        case "made to run":
            (folder / "file").chmod(0o755)
        case "taken away":
            shutil.rmtree(folder)
        case "a new folder":
            (folder / "empty").mkdir()


@pytest.mark.parametrize(
    "how",
    [
        "emptied",
        "written anew in the same size",
        "replaced",
        "added",
        "removed",
        "made a link",
        "made to run",
        "taken away",
        "a new folder",
    ],
)
def test_what_was_changed_is_made_anew(tmp_path: Path, how: str) -> None:
    shelf = LocalCache(tmp_path)
    made = make(shelf)
    assert not made.modified, "it was never there"
    made.release()
    poison(tmp_path / "k", how)
    again = make(shelf)
    assert again.modified
    assert [path.name for path in again.folder.iterdir()] == ["file"]
    again.release()
    held = acquire(shelf)
    assert (held.complete, held.modified) == (True, False)


def test_what_python_compiles_is_no_change(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    make(shelf).release()
    (tmp_path / "k/__pycache__").mkdir()
    (tmp_path / "k/__pycache__/file.cpython-311.pyc").write_text("")
    (tmp_path / "k/old.pyc").write_text("")
    assert acquire(shelf).complete


def test_what_somebody_trains_with_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IN_USE_AFTER_S", 0.2)
    shelf = LocalCache(tmp_path)
    make(shelf).release()
    user = Node(tmp_path)
    assert user.says() == "found"
    poison(tmp_path / "k", "added")
    with pytest.raises(EnvironmentInUse):
        acquire(shelf)
    assert (tmp_path / "k/more").exists()
    user.end()
    again = acquire(shelf)
    assert (again.complete, again.modified) == (False, True)


def test_what_could_not_be_made_is_not_on_the_disk(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    held = acquire(shelf)
    held.folder.mkdir()
    (held.folder / "half").touch()
    held.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["k.lock"]
    make(shelf).release()


def test_what_nobody_used_for_long_is_removed_and_nothing_that_is_used(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    make(shelf).release()
    assert shelf.prune() == []
    long_ago = time.time() - module.UNUSED_FOR_S - 60
    for path in (tmp_path / "k.lock", tmp_path / "k.ready"):
        os.utime(path, (long_ago, long_ago))
    user = Node(tmp_path)
    assert user.says() == "found"
    for path in (tmp_path / "k.lock", tmp_path / "k.ready"):
        os.utime(path, (long_ago, long_ago))
    assert shelf.prune() == [], "somebody trains with it"
    user.end()
    assert shelf.prune() == ["k"]
    assert list(tmp_path.iterdir()) == []
    make(shelf).release()


def test_finding_it_is_using_it(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    make(shelf).release()
    long_ago = time.time() - module.UNUSED_FOR_S - 60
    for path in (tmp_path / "k.lock", tmp_path / "k.ready"):
        os.utime(path, (long_ago, long_ago))
    acquire(shelf).release()
    assert shelf.prune() == [], "it was used just now"
    assert shelf.contains("k") and not shelf.contains("other")


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    keys = ("a", "b", "c", "d")
    for key in keys:
        held = shelf.acquire(key, lambda: None, lambda _text: None)
        held.folder.mkdir()
        held.finish()
        held.release()
    # In the place of each of two there is something else by now.
    for key in ("b", "c"):
        (tmp_path / f"{key}.ready").unlink()
        (tmp_path / f"{key}.ready").mkdir()
    assert sorted(shelf.prune(-1.0)) == ["a", "d"]
    assert not list(tmp_path.glob("[ad]*"))


def test_the_young_are_kept_among_the_old(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    for key in ("a", "b", "c"):
        held = shelf.acquire(key, lambda: None, lambda _text: None)
        held.folder.mkdir()
        held.finish()
        held.release()
    long_ago = time.time() - module.UNUSED_FOR_S - 60
    for key in ("a", "c"):
        for suffix in ("lock", "ready"):
            os.utime(tmp_path / f"{key}.{suffix}", (long_ago, long_ago))
    assert sorted(shelf.prune()) == ["a", "c"]
    assert hold_named(shelf, "b").complete


def hold_named(shelf: LocalCache, key: str) -> EnvironmentLock:
    return shelf.acquire(key, lambda: None, lambda _text: None)


def test_one_that_is_made_between_two_looks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(LocalCache(tmp_path)).release()
    shelf = LocalCache(tmp_path)
    lock = shelf._flock
    # At the first look it was still being made.
    monkeypatch.setattr(shelf, "_flock", lambda key, handle, how: how == fcntl.LOCK_EX and lock(key, handle, how))
    held = acquire(shelf)
    assert held.complete and (held.folder / "file").read_text() == "whole"
    monkeypatch.undo()
    other = acquire(LocalCache(tmp_path))
    assert other.complete, "others may use it as well"
    held.release()
    held.release()
    other.release()


def test_a_lock_that_was_removed_meanwhile_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1, 2]
    flock = fcntl.flock

    def late(handle: int, how: int) -> None:
        """Twice the file is removed, and once made again, before this process has locked it."""
        if how & fcntl.LOCK_NB and left:
            (tmp_path / "k.lock").unlink()
            if left.pop() == 2:
                (tmp_path / "k.lock").touch()
        flock(handle, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    held = acquire(LocalCache(tmp_path))
    assert not held.complete and not left
    monkeypatch.undo()
    with (tmp_path / "k.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    held.release()


def test_a_node_that_waits_is_told_once_what_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_WAIT_AFTER_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.0)
    shelf, said, looks = LocalCache(tmp_path / "deep/shelf"), [], []
    making = acquire(shelf)
    making.folder.mkdir()

    def check() -> None:
        looks.append(None)
        if len(looks) == 3:
            making.finish()

    assert shelf.acquire("k", check, said.append).complete
    assert said == ["another node on this machine is building the same environment; waiting for it"]


def test_a_node_that_cannot_make_room_or_has_to_wait_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Exception):
        pass

    def refuse(_key: str) -> None:
        raise PermissionError

    def go() -> None:
        raise Told

    shelf = LocalCache(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(shelf, "clear", refuse)
    with pytest.raises(PermissionError):
        acquire(shelf)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    monkeypatch.undo()
    making = acquire(shelf)
    with pytest.raises(Told):
        shelf.acquire("k", go, lambda _text: None)
    making.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    make(shelf).release()
    long = LocalCache(tmp_path)
    monkeypatch.setattr(long, "clear", refuse)
    assert long.prune(-1.0) == [] and len(list(Path("/proc/self/fd").iterdir())) == before
