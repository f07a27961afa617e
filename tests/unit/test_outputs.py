"""Outputs: plain files, synced while the training runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from checkpoint_world import JOB, Clock, memory_store, write

from stoker.agent import output_sync
from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.read.outputs import highest_versions
from stoker.store.base import Store, open_store
from stoker.testing.memory_store import Fault

LIMIT_S = 60.0
PREFIX = keys.outputs(JOB, 1)
VERSIONS = keys.output_versions(JOB, 1)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory_store() if request.param == "memory" else open_store(str(tmp_path / "store"))


class Node:
    def __init__(self, folder: Path, store: Store, rank: int = 0) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.clock = Clock()
        self.sync = OutputSync(store, JOB, 1, rank, folder, monotonic=self.clock)

    def tick(self, rounds: int = 1, every_s: float = 0.5) -> None:
        for _ in range(rounds):
            self.clock.s += every_s
            self.sync.tick()


@pytest.fixture
def node(tmp_path: Path, store: Store) -> Node:
    return Node(tmp_path / "out", store)


def stored(store: Store) -> dict[str, bytes]:
    """The version of every file that counts: see `stoker.agent.output_versions`."""
    found = {}
    for path, meta in {
        **{m.key[len(PREFIX) :]: m for m in store.list(PREFIX)},
        **highest_versions(store, VERSIONS),
    }.items():
        got = store.get(meta.key)
        assert got is not None
        found[path] = got.data
    return found


def test_files_are_synced_once_they_rest(node: Node, store: Store) -> None:
    write(node.folder / "result.csv", "1")
    write(node.folder / "deep" / "plot.png", b"\x00\xff")
    node.tick()
    assert stored(store) == {}
    node.tick(rounds=6)
    assert stored(store) == {"result.csv": b"1", "deep/plot.png": b"\x00\xff"}
    status = node.sync.status()
    assert (status.files, status.unsynced_bytes, status.bytes_moved, status.error) == (2, 0, 3, None)


def test_what_changes_is_replaced_and_what_does_not_is_not_sent_again(node: Node, store: Store) -> None:
    write(node.folder / "a", "1")
    write(node.folder / "b", "1")
    node.tick(rounds=6)
    write(node.folder / "a", "22")
    node.tick(rounds=6)
    assert stored(store) == {"a": b"22", "b": b"1"}
    assert node.sync.status().bytes_moved == 4


def test_what_is_removed_stays_in_the_store(node: Node, store: Store) -> None:
    write(node.folder / "a", "1")
    node.tick(rounds=6)
    (node.folder / "a").unlink()
    node.tick(rounds=6)
    assert stored(store) == {"a": b"1"}


def test_large_files_do_not_pass_through_memory(node: Node, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 100)
    write(node.folder / "large", b"1" * 1000)
    node.tick(rounds=6)
    assert stored(store) == {"large": b"1" * 1000}
    write(node.folder / "large", b"2" * 1001)
    node.tick(rounds=6)
    assert stored(store) == {"large": b"2" * 1001}


def test_a_log_that_never_rests_is_synced_all_the_same(node: Node, store: Store) -> None:
    for number in range(200):
        write(node.folder / "log", f"{number}")
        node.tick()
        if stored(store):
            break
    assert stored(store) == {"log": f"{number}".encode()}


def test_other_ranks_have_their_own_folder(tmp_path: Path, store: Store) -> None:
    node = Node(tmp_path / "out", store, rank=3)
    write(node.folder / "a", "1")
    node.tick(rounds=6)
    assert stored(store) == {"rank-3/a": b"1"}


def test_no_node_replaces_the_files_of_another(tmp_path: Path, store: Store) -> None:
    """Scripts have folders of these names, too."""
    for rank in (0, 1):
        for name in ("a", "rank-1/a", "rank-0", "rank-12x/a"):
            write(tmp_path / f"{rank}" / name, f"{name} of {rank}")
        sync = OutputSync(store, JOB, 1, rank, tmp_path / f"{rank}", nodes=2)
        assert sync.final(60.0)
    found = {path: data.decode() for path, data in stored(store).items()}
    assert found == {
        "a": "a of 0",
        "rank-0/rank-1/a": "rank-1/a of 0",
        "rank-0/rank-0": "rank-0 of 0",
        "rank-12x/a": "rank-12x/a of 0",
        "rank-1/a": "a of 1",
        "rank-1/rank-1/a": "rank-1/a of 1",
        "rank-1/rank-0": "rank-0 of 1",
        "rank-1/rank-12x/a": "rank-12x/a of 1",
    }


def test_links_are_read_and_names_that_cannot_be_kept_are_left_out(node: Node, store: Store) -> None:
    write(node.folder / "real" / "a", "1")
    (node.folder / "link").symlink_to("real/a")
    (node.folder / "folder").symlink_to("real")
    write(node.folder / "line\nbreak", "x")
    node.tick(rounds=6)
    assert stored(store) == {"real/a": b"1", "link": b"1"}
    assert node.sync.status().unsynced_bytes == 0


def test_a_link_is_sent_again_when_the_file_that_it_leads_to_has_changed(node: Node, store: Store) -> None:
    write(node.folder / "model.pt", "1")
    (node.folder / "latest.pt").symlink_to("model.pt")
    (node.folder / "nowhere").symlink_to("gone")
    node.tick(rounds=6)
    assert stored(store) == {"model.pt": b"1", "latest.pt": b"1"}
    write(node.folder / "model.pt", "22")
    node.tick(rounds=6)
    assert stored(store) == {"model.pt": b"22", "latest.pt": b"22"}
    report = node.sync.report()
    assert (report.files, report.size, report.left_out) == (2, 4, 0)


def test_an_outage_is_waited_out(tmp_path: Path) -> None:
    memory = memory_store()
    client = memory.client()
    node = Node(tmp_path / "out", client)
    client.outage(True)
    write(node.folder / "a", "1")
    node.tick(rounds=100)
    assert node.sync.status().error is not None
    assert node.sync.status().unsynced_bytes == 1
    client.outage(False)
    node.tick(rounds=100)
    assert stored(memory) == {"a": b"1"}
    assert node.sync.status().error is None


def real_time(tmp_path: Path, store: Store) -> OutputSync:
    (tmp_path / "out").mkdir(exist_ok=True)
    return OutputSync(store, JOB, 1, 0, tmp_path / "out", settle_s=1000.0)


def test_at_the_end_everything_is_put(tmp_path: Path, store: Store) -> None:
    sync = real_time(tmp_path, store)
    sync.start()
    write(tmp_path / "out" / "a", "1")
    assert sync.final(LIMIT_S)
    assert stored(store) == {"a": b"1"}


def test_the_end_waits_for_the_store_but_not_for_ever(tmp_path: Path) -> None:
    memory = memory_store()
    client = memory.client()
    client.outage(True)
    sync = real_time(tmp_path, client)
    write(tmp_path / "out" / "a", "1")
    threading.Timer(0.3, client.outage, [False]).start()
    assert sync.final(LIMIT_S)
    assert stored(memory) == {"a": b"1"}
    client.outage(True)
    late = real_time(tmp_path, client)
    write(tmp_path / "out" / "b", "1")
    assert not late.final(0.2)


def test_it_runs_by_itself(tmp_path: Path, store: Store) -> None:
    (tmp_path / "out").mkdir()
    sync = OutputSync(store, JOB, 1, 0, tmp_path / "out", settle_s=0.05)
    sync.start()
    write(tmp_path / "out" / "a", "1")
    limit = time.monotonic() + LIMIT_S
    while stored(store) != {"a": b"1"}:
        assert time.monotonic() < limit
        time.sleep(0.01)
    sync.close()


@pytest.mark.parametrize("after", [False, True])
def test_whichever_call_fails_the_files_get_there(tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 100)
    for failing in range(50):
        memory = memory_store()
        calls = iter(range(10**9))

        def faults(method: str, key: str, calls: object = calls, failing: int = failing) -> Fault | None:
            return Fault(after=after) if next(calls) == failing else None  # type: ignore[call-overload]

        node = Node(tmp_path / f"out-{failing}", memory.client(faults))
        for text in ("1", "22"):
            write(node.folder / "small", text)
            write(node.folder / "large", text * 200)
            node.tick(rounds=20)
        assert stored(memory) == {"small": b"22", "large": b"22" * 200}
        if next(calls) <= failing:
            return
    raise AssertionError("there are more calls than were failed")
