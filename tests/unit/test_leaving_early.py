"""A notice that comes before the training: while code, inputs or a checkpoint are still on their way."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from checkpoint_world import write
from noticing_machine import Here

from stoker.agent.attempt import run_attempt
from stoker.agent.checkpoints.blobs import BlobSender, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.node import AgentNode
from stoker.agent.phases.context import AttemptContext
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Closed, Event, Launched, NodeRef, Record, Submitted
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit, Manifest
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.store.checkpoint_manifests import encode
from stoker.store.checkpoints import list_checkpoints
from stoker.store.node_facts import read_fact
from stoker.store.parallel import run_watched
from stoker.testing.memory_store import Fault, MemoryStore

JOB = "job-0a1b"
LIMIT_S = 60.0
# Shows which checkpoint it found.
SCRIPT = "import pathlib; print('found', pathlib.Path('checkpoints/a.pt').read_text())"


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    """An agent takes SIGTERM for itself, and here it lives in the process of the tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def append(store: MemoryStore, event: Event) -> None:
    state = job_log.read(store, JOB)
    record = Record(job_log.new_token(), "test", "for the test", event)
    assert job_log.append(store, JOB, state.seq + 1 if state else 1, record)


def submit(store: MemoryStore, run: tuple[str, ...], **more: str) -> None:
    data = codec.dumps(Submission(JOB, Spec(name="job", run=run, **more), "test"))  # type: ignore[arg-type]
    store.put(keys.spec(JOB), data)
    append(store, Submitted(spec_digest=codec.digest(data), submitter="test"))


def attempt(store: MemoryStore, root: Path, machine: Here, instance: str) -> AttemptContext:
    """The agent of the next attempt."""
    append(store, Claimed(Offering("gce", "n2-standard-2", "us-central1-a", spot=True), nodes=1))
    state = job_log.read(store, JOB)
    assert state is not None
    append(store, Launched(claim=state.seq, nodes=(NodeRef(0, instance),)))
    paths = NodePaths(root / instance)
    paths.channel.mkdir(parents=True)
    config = NodeConfig("memory://", "gce", JOB, state.seq, 0, 1, instance)
    key = keys.node(JOB, state.seq, 0, keys.boot(instance, 0))
    return AttemptContext(AgentNode(config, paths, store, machine, key))


def commit(store: MemoryStore, root: Path, files: dict[str, str]) -> str:
    """A checkpoint of an attempt before."""
    for name, text in files.items():
        write(root / "saved" / name, text)
    sender = BlobSender(store, JOB, 0, scratch=root, workers=1)
    outgoing = [OutgoingFile(file, root / "saved" / file.path) for file in scan(root / "saved").values()]
    blobs = sender.send(outgoing)
    now = datetime.now(timezone.utc)
    append(store, Claimed(Offering("gce", "n2-standard-2", "us-central1-a", spot=True), nodes=1))
    append(store, Closed(claim=2, outcome="reclaimed", rule="reclaimed"))
    manifest = Manifest("step-1", JOB, 2, 0, 0, now, tuple(blobs.values()))
    key = keys.checkpoint_key(2, 0, "step-1")
    assert store.create(keys.manifest(JOB, key), encode(manifest))
    return key


def the_exit(store: MemoryStore, life: AttemptContext) -> Exit:
    found = read_fact(store.client(), keys.exit_(life.node.key), Exit)
    assert isinstance(found, Known) and found.value is not None
    return found.value.value


def test_a_notice_ends_the_restoring_and_the_next_attempt_resumes_from_the_same_checkpoint(tmp_path: Path) -> None:
    machine, release, fetched = Here(), threading.Event(), []

    def faults(method: str, key: str) -> Fault | None:
        if method == "get_file" and "/blobs/" in key:
            fetched.append(key)
            machine.give(30.0)
            release.wait(LIMIT_S)
        return None

    store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=True)
    submit(store, (sys.executable, "-c", SCRIPT))
    many = {f"{letter}.pt": letter for letter in "abcdefghijklmnopqrstuvwxyz"}
    key = commit(store, tmp_path, many)
    life = attempt(store.client(faults), tmp_path, machine, "z.1")
    began_s = time.monotonic()
    try:
        run_attempt(life)
        took_s = time.monotonic() - began_s
        left = the_exit(store, life)
        before = len(fetched)
    finally:
        release.set()
    assert (left.outcome, left.why, left.started) == ("interrupted", "notice", False)
    assert took_s < 20, "well inside the grace, however long the download takes"
    # What had begun may end; nothing more is fetched for a node that has left.
    for thread in threading.enumerate():
        if thread.name in ("watched", "transfer"):
            thread.join(LIMIT_S)
    assert len(fetched) == before < len(many)
    assert not (life.paths.code / "checkpoints" / "a.pt").exists(), "all of it or nothing"
    assert [one.key for one in list_checkpoints(store, JOB)] == [key]

    reclaimed = Closed(claim=life.config.claim, outcome="reclaimed", rule="reclaimed")
    append(store, reclaimed)
    following = attempt(store, tmp_path, Here(), "z.2")
    run_attempt(following)
    end = the_exit(store, following)
    assert (end.outcome, end.restored_from) == ("succeeded", key) and "found a" in end.tail


def test_a_notice_ends_the_fetching_of_the_job_itself(tmp_path: Path) -> None:
    machine, release = Here(), threading.Event()

    def faults(method: str, key: str) -> Fault | None:
        if key == keys.spec(JOB):
            machine.give(30.0)
            release.wait(LIMIT_S)
        return None

    store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=True)
    submit(store, ("true",))
    life = attempt(store.client(faults), tmp_path, machine, "z.1")
    began_s = time.monotonic()
    try:
        run_attempt(life)
        assert time.monotonic() - began_s < 20
    finally:
        release.set()
    assert (the_exit(store, life).outcome, the_exit(store, life).why) == ("interrupted", "notice")


def test_nothing_is_imported_behind_the_exit(tmp_path: Path) -> None:
    machine, release = Here(), threading.Event()

    def faults(method: str, key: str) -> Fault | None:
        if method == "put_file":
            machine.give(30.0)
            release.wait(LIMIT_S)
        return None

    store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=True)
    write(tmp_path / "before" / "a.pt", "a")
    submit(store, ("true",), resume_from=str(tmp_path / "before"))
    life = attempt(store.client(faults), tmp_path, machine, "z.1")
    try:
        run_attempt(life)
        assert (the_exit(store, life).outcome, the_exit(store, life).why) == ("interrupted", "notice")
    finally:
        release.set()
    for thread in threading.enumerate():
        if thread.name in ("watched", "transfer"):
            thread.join(LIMIT_S)
    assert list_checkpoints(store, JOB) == []
    # The next attempt imports it.
    append(store, Closed(claim=life.config.claim, outcome="reclaimed", rule="reclaimed"))
    run_attempt(attempt(store, tmp_path, Here(), "z.2"))
    assert "00000000/000005-before" in [one.key for one in list_checkpoints(store, JOB)]


def test_who_waits_gets_the_answer_the_error_or_the_reason_to_go() -> None:
    release = threading.Event()

    def go() -> None:
        raise LookupError("told to go")

    def fail() -> None:
        raise ValueError("the call's own")

    assert run_watched(lambda: 7, lambda: None) == 7
    with pytest.raises(ValueError, match="the call's own"):
        run_watched(fail, lambda: None)
    with pytest.raises(LookupError, match="told to go"):
        run_watched(lambda: release.wait(LIMIT_S), go)
    release.set()
