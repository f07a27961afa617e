"""An agent that was started again: the exit is the last word, after all that the training had said and saved."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.agent.flush_after_restart import flush
from stoker.agent.node import AgentNode
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Closed, Launched, NodeRef, Record, Submitted
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.node_facts import Exit, NoticeFact
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.processes import boot_id
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.log_chunks import parse_segments
from stoker.store.node_facts import read_fact
from stoker.testing.memory_store import Fault, MemoryStore

JOB, CLAIM, RANK, MACHINE = "job-0a1b", 2, 0, "m-1"
OFFERING = Offering("local", "here", "here", False)


class Here:
    """The machine of a test: nobody watches it."""

    def notice(self) -> NoticeFact | None:
        return None

    def master_port(self, preferred: int) -> int:
        return preferred

    def address(self) -> str:
        return "127.0.0.1"

    def wake_governors(self) -> None:
        pass

    def give_back(self) -> None:
        raise AssertionError("only `main` switches the machine off")


def second_boot(store: Store, root: Path) -> AgentNode:
    paths = NodePaths(root)
    paths.channel.mkdir(parents=True)
    config = NodeConfig("memory://", "local", JOB, CLAIM, RANK, 1, MACHINE)
    first, second = (keys.node(JOB, CLAIM, RANK, keys.boot(MACHINE, n)) for n in (1, 2))
    return AgentNode(config, paths, store, Here(), second, (first,))


def logged(store: Store, key: str) -> bytes:
    chunks = sorted(meta.key for meta in store.list(f"{key}/log/"))
    segments = [segment for chunk in chunks for segment in parse_segments(store.get_from(chunk, 0) or b"").segments]
    return b"".join(segment.data for segment in segments)


def test_the_whole_log_is_there_before_the_exit(tmp_path: Path) -> None:
    """Also when the store takes nothing of the log for a while, and there is more of it than fits one chunk."""
    refused: list[str] = []
    exit_came_first: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "put" and key.endswith("/exit.json") and len(refused) < 5:
            exit_came_first.append(key)
        if "/log/" in key and method != "list" and len(refused) < 5:
            refused.append(key)
            return Fault()
        return None

    store = MemoryStore(lambda: datetime.now(timezone.utc), faults=faults)
    node = second_boot(store, tmp_path)
    said = b"".join(b"line %d of what it said before the agent died\n" % n for n in range(60_000))
    node.paths.train_log.write_bytes(said)
    flush(node)
    assert not exit_came_first, "the exit was written while the log was not"
    # The agent's own line follows what the training said.
    assert logged(store, node.key).startswith(said)
    found = read_fact(store, keys.exit_(node.key), Exit)
    assert isinstance(found, Known) and found.value is not None
    assert (found.value.value.outcome, found.value.value.why) == ("infrastructure", "agent")
    assert node.paths.left.exists()


@pytest.mark.parametrize("closed", [False, True])
def test_a_checkpoint_is_saved_only_where_the_job_still_waits_for_it(closed: bool, tmp_path: Path) -> None:
    """A machine that was off, and that somebody starts again, has been replaced: another attempt trains."""
    store = MemoryStore(lambda: datetime.now(timezone.utc))
    submission = codec.dumps(Submission(job=JOB, spec=Spec(name="job", run="true"), submitter="jane"))
    store.put(keys.spec(JOB), submission)
    events = [
        Submitted(spec_digest=codec.digest(submission), submitter="jane", code_digest=None),
        Claimed(OFFERING, 1),
        Launched(CLAIM, (NodeRef(RANK, MACHINE),)),
        *([Closed(CLAIM, "lost", "gone", restart=True)] if closed else []),
    ]
    for seq, event in enumerate(events, start=1):
        assert job_log.append(store, JOB, seq, Record(job_log.new_token(), "test", "for the test", event))
    node = second_boot(store, tmp_path)
    checkpoint = node.paths.code / "checkpoints" / "step-7"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"w")
    # Written long before the agent was last seen alive.
    node.paths.scratch.mkdir(parents=True)
    (node.paths.scratch / "alive").write_text(json.dumps({"boot": boot_id(), "maybe_half_written": []}))
    for path in (checkpoint / "weights", checkpoint, checkpoint.parent):
        os.utime(path, (1e9, 1e9))
    flush(node)
    assert bool(list(store.list(f"{keys.WORK}{JOB}/checkpoints/"))) is not closed
