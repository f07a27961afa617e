"""Outputs whose writes land late: the newest version of a file counts, whatever landed after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import JOB, Clock, memory_store, write

from stoker.agent import output_sync
from stoker.agent.output_sync import OutputSync
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Event, Launched, NodeRef, Record, Submitted
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.read.outputs import list_outputs, pull_outputs
from stoker.store import job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import SPOT_A

CLAIM = 2


class Late:
    """Requests that have yet to land. `again`: each was answered, and lands once more."""

    def __init__(self, *, again: bool) -> None:
        self.again = again
        self.catches = True
        self.waiting: list[Callable[[], object]] = []

    def fault(self, operation: str, key: str) -> Fault | None:
        if operation not in ("put", "create", "put_file") or not self.catches:
            return None
        return Fault(again=self.waiting.append) if self.again else Fault(later=self.waiting.append)

    def land(self) -> None:
        for write_now in self.waiting:
            write_now()
        self.waiting.clear()


def started_job() -> MemoryStore:
    store = memory_store()
    data = codec.dumps(Submission(JOB, Spec(name="job", run="true"), "test"))
    store.put(keys.spec(JOB), data)
    events: tuple[Event, ...] = (
        Submitted(codec.digest(data), "test"),
        Claimed(offering=SPOT_A, nodes=1),
        Launched(claim=CLAIM, nodes=(NodeRef(0, "i-1"),)),
    )
    for seq, event in enumerate(events, 1):
        assert job_log.append(store, JOB, seq, Record(job_log.new_token(), "test", "test", event))
    return store


def pulled(store: MemoryStore, target: Path) -> dict[str, str]:
    files = list_outputs(store, JOB).files
    assert pull_outputs(store, files, target)[0] == len(files)
    assert [file.size for file in files] == [(target / file.path).stat().st_size for file in files]
    return {p.relative_to(target).as_posix(): p.read_text() for p in target.rglob("*") if p.is_file()}


class Node:
    def __init__(self, store: MemoryStore, folder: Path, rank: int = 0, boot: int = 0) -> None:
        self.clock = Clock()
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.sync = OutputSync(store, JOB, CLAIM, rank, folder, boot=boot, monotonic=self.clock)

    def save(self, text: str, name: str = "a", rounds: int = 12) -> None:
        write(self.folder / name, text)
        for _ in range(rounds):
            self.clock.s += 0.5
            self.sync.tick()


@pytest.fixture(params=[True, False], ids=["small", "large"])
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(output_sync, "WHOLE_BYTES", 2)


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_write_that_lands_twice_brings_no_older_version_back(tmp_path: Path, rank: int) -> None:
    store, late = started_job(), Late(again=True)
    node = Node(store.client(late.fault), tmp_path / "out", rank)
    for text in ("first", "second", "third"):
        node.save(text)
    late.catches = False
    node.save("fourth")
    late.land()
    assert pulled(store, tmp_path / "pulled") == {"rank-1/a" if rank else "a": "fourth"}


@pytest.mark.usefixtures("_size")
@pytest.mark.parametrize("written_before", [0, 1, 2])
def test_a_write_that_was_given_up_brings_no_older_version_back(tmp_path: Path, written_before: int) -> None:
    store, late = started_job(), Late(again=False)
    node = Node(store.client(late.fault), tmp_path / "out")
    late.catches = False
    for n in range(written_before):
        node.save(f"before {n}")
    late.catches = True
    node.save("older")
    assert late.waiting
    late.catches = False
    node.save("newer!", rounds=100)
    late.land()
    assert pulled(store, tmp_path / "pulled") == {"a": "newer!"}


@pytest.mark.usefixtures("_size")
def test_what_a_dead_agent_sent_does_not_replace_what_the_next_one_saved(tmp_path: Path) -> None:
    store, late = started_job(), Late(again=False)
    late.catches = False
    dead = Node(store.client(late.fault), tmp_path / "out")
    dead.save("first")
    dead.save("second")
    late.catches = True
    dead.save("third", name="a")
    dead.save("also", name="b")
    write(tmp_path / "out" / "a", "the last words")
    write(tmp_path / "out" / "b", "of both")
    assert Node(store, tmp_path / "out", boot=1).sync.final(60.0)
    late.land()
    assert pulled(store, tmp_path / "pulled") == {"a": "the last words", "b": "of both"}


def test_a_file_that_grows_large_and_small_again_is_the_last_one_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    store = started_job()
    node = Node(store, tmp_path / "out")
    for text in ("small", "s2", "large " * 10, "small again", "s"):
        node.save(text)
        assert pulled(store, tmp_path / "pulled") == {"a": text}


def test_lower_versions_are_deleted_and_plain_names_hold_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tools read the bucket themselves."""
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    store = started_job()
    node = Node(store, tmp_path / "out")
    for text in ("1", "2", "3"):
        node.save(text, "small")
        node.save(text * 100, "large")
    assert len(list(store.list(keys.output_versions(JOB, CLAIM)))) == 2
    assert node.sync.final(60.0, publish=True)
    for name, text in (("small", "3"), ("large", "3" * 100)):
        found = store.get(keys.outputs(JOB, CLAIM) + name)
        assert found is not None and found.data == text.encode()


def test_a_file_that_is_rewritten_while_it_is_pulled_is_pulled(tmp_path: Path) -> None:
    store = started_job()
    node = Node(store, tmp_path / "out")
    node.save("first")
    node.save("second")
    files = list_outputs(store, JOB).files
    node.save("third")
    assert pull_outputs(store, files, tmp_path / "pulled")[0] == 1
    assert (tmp_path / "pulled" / "a").read_text() == "third"
