"""A machine's environments: made by one, used by many, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.agent.environment import shelf as module
from stoker.agent.environment.archive import take_listing
from stoker.agent.environment.shelf import Held, Shelf

# Makes an environment as slowly as it is told to, or finds it; says which, and holds it until its input ends.
NODE = """\
import sys, time
from pathlib import Path
from stoker.agent.environment.archive import take_listing
from stoker.agent.environment.shelf import Shelf
held = Shelf(Path(sys.argv[1])).hold("k", lambda: None, lambda text: print("said", text, flush=True))
if held.complete:
    print("found", flush=True)
else:
    print("making", flush=True)
    sys.stdin.readline()
    held.folder.mkdir()
    (held.folder / "file").write_text("whole")
    held.finish(take_listing(held.folder))
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


def hold(shelf: Shelf) -> Held:
    return shelf.hold("k", lambda: None, lambda _text: None)


def make(shelf: Shelf) -> Held:
    held = hold(shelf)
    assert not held.complete
    held.folder.mkdir()
    (held.folder / "file").write_text("whole")
    held.finish(take_listing(held.folder))
    return held


def test_of_many_nodes_one_makes_it_and_the_others_wait_for_it(tmp_path: Path) -> None:
    first, second = Node(tmp_path), None
    assert first.says() == "making"
    second = Node(tmp_path)
    assert second.says().startswith("said another node on this machine is making the same")
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
    held = make(Shelf(tmp_path))
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
        Shelf(tmp_path).hold("k", check, lambda _text: None)
    first.end()


def test_a_disk_that_lost_power_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(tmp_path)
    make(shelf).release()
    (tmp_path / "k/file").write_text("")
    # In the same boot it is whoever uses it that changed it.
    held = hold(shelf)
    assert held.complete
    held.release()
    monkeypatch.setattr(module, "boot_id", lambda: "another boot")
    make(shelf).release()
    # What is whole is believed in every boot.
    monkeypatch.setattr(module, "boot_id", lambda: "a third boot")
    held = hold(shelf)
    assert held.complete
    held.release()


def test_what_nobody_used_for_long_is_removed_and_nothing_that_is_used(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
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
