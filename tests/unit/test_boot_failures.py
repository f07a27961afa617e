"""A machine that could not start an agent: what it said is the exit, and it is not paid for again and again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from stoker.core.attempt_evidence import evidence_of
from stoker.core.attempt_verdict import judge
from stoker.core.governor_settings import DEFAULT
from stoker.model import keys
from stoker.model.log_entries import Claimed, Closed, Launched
from stoker.model.node_facts import Exit
from stoker.model.observed import Known, Stamped
from stoker.store.node_facts import BOOT_FAILED, boot_exit, read_node
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import SPOT_A, make_facts, make_snapshot, make_state, nodes

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SAID = f"cloud-init runs\n+ looking for Python\n{BOOT_FAILED}Python 3.9.2 is too old; choose an image with 3.10\n"


def told(output: str) -> Exit | None:
    store = MemoryStore(lambda: NOW)
    key = keys.node("job-1", 2, 0, keys.boot("i-7", 0))
    store.put(keys.boot_output(key), output.encode())
    found = read_node(store, "job-1", 2, 0, "i-7").exit
    assert isinstance(found, Known)
    return found.value.value if found.value else None


def test_what_the_boot_said_is_the_exit() -> None:
    left = told(SAID)
    assert left is not None
    assert (left.outcome, left.why) == ("infrastructure", "boot")
    assert left.reason == "boot failed: Python 3.9.2 is too old; choose an image with 3.10"
    assert left.tail[-1].endswith("choose an image with 3.10") and "looking for Python" in left.tail[1]


def test_a_boot_that_tells_of_no_failure_is_none() -> None:
    assert told("cloud-init runs\nall is well\n") is None
    assert boot_exit("", NOW) is None


def test_an_agents_own_word_counts_more() -> None:
    store = MemoryStore(lambda: NOW)
    key = keys.node("job-1", 2, 0, keys.boot("i-7", 0))
    store.put(keys.boot_output(key), SAID.encode())
    store.put(keys.heartbeat(key), b"{}")
    found = read_node(store, "job-1", 2, 0, "i-7")
    assert found.exit == Known(None)


def failing(*before: Closed) -> tuple[str, bool]:
    """The verdict on an attempt whose boot failed, after these."""
    events = []
    for closed in before:
        number = len(events) + 2
        events += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), replace(closed, claim=number)]
    number = len(events) + 2
    state = make_state(*events, Claimed(SPOT_A, 1), Launched(number, nodes(number)))
    left = boot_exit(SAID, NOW)
    assert left is not None
    facts = replace(make_facts(number), exit=Known(Stamped(left, modified=NOW, etag="x")))
    job = make_snapshot(state, facts)
    claim = state.claim(number)
    assert claim is not None
    found = judge(evidence_of(job, claim, DEFAULT))
    assert found.rule == "boot-failed"
    return found.outcome, found.restart


def test_once_may_be_an_accident_twice_is_not() -> None:
    assert failing() == ("infrastructure", True)
    assert failing(Closed(0, "infrastructure", "boot-failed")) == ("failed", False)
    assert failing(Closed(0, "infrastructure", "boot-failed"), Closed(0, "lost", "gone")) == ("infrastructure", True)
