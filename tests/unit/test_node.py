"""What every part of an agent uses: where its folders are, how the last word and a notice get to the store."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from agent_world import OFFERING, AgentWorld
from noticing_machine import Here
from plain_store import wait_for

from stoker.agent import attempt
from stoker.agent import node as node_module
from stoker.agent.node import AgentNode, retry_until, utcnow
from stoker.agent.notices import KnownEnd, Notices
from stoker.model import codec, keys
from stoker.model import node_config as config_module
from stoker.model.errors import StoreUnavailable
from stoker.model.node_config import NodePaths
from stoker.model.node_facts import Exit, NoticeFact
from stoker.model.observed import Known
from stoker.model.offerings import Reservation
from stoker.model.spec import Checkpoints
from stoker.store.node_facts import read_fact
from stoker.testing.memory_store import Fault

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Woken(Here):
    """A machine that counts how often governors are woken."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    def wake_governors(self) -> None:
        self.wakes += 1


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


# ── Folders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_folders_of_a_node_are_where_its_documentation_says() -> None:
    text = config_module.__doc__ or ""
    documented = {name.rstrip("/") for name in re.findall(r"^<node>/([\w.]+)", text, re.MULTILINE)}
    inside = re.findall(r"^    (\S+  .*)$", text, re.MULTILINE)[0].split()
    documented |= {f"channel/{name}" for name in inside}
    root = Path("/node")
    names = [name for name in vars(NodePaths) if isinstance(getattr(NodePaths, name), property)]
    told = {str(getattr(NodePaths(root), name).relative_to(root)) for name in names}
    assert told <= documented


def test_what_outlives_a_node_is_beside_it_or_where_its_machine_keeps_it(world: AgentWorld) -> None:
    node = world.node(world.claim())
    assert node.environments == node.paths.root.parent / "environments"
    assert node.inputs == node.paths.root.parent / "inputs"
    shelved = replace(node, shelf=Path("/shelf"))
    assert shelved.environments == Path("/shelf") and shelved.inputs == node.inputs

    class Keeps(Here):
        environments = Path("/kept/environments")

    kept = replace(node, machine=Keeps())
    assert (kept.environments, kept.inputs) == (Path("/kept/environments"), Path("/kept/inputs"))


# ── Patience ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_store_refuses_is_tried_again_after_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 3))
        clock[0] += seconds

    monkeypatch.setattr(node_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(node_module.time, "sleep", sleep)
    failures = [9]

    def action() -> None:
        if failures[0]:
            failures[0] -= 1
            raise StoreUnavailable("away")

    assert retry_until(action, 1000.0) is True
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0] and caplog.text.count("away") == 9
    failures[0], clock[0] = 1000, 0.0
    pauses.clear()
    assert retry_until(action, 0.5) is False
    assert pauses == [0.1, 0.2, 0.2] and clock[0] == pytest.approx(0.5), "and once more when the time has come"


def test_a_mistake_is_not_repeated() -> None:
    def action() -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        retry_until(action, time.monotonic() + 60.0)


# ── The last word ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exit_in_the_store_is_noted_on_the_disk_and_wakes_governors(world: AgentWorld) -> None:
    machine = Woken()
    node = world.node(world.claim(), machine=machine)
    left = Exit("failed", "finished", NOW, "oh", code=3)
    assert node.write_exit(left, time.monotonic() + 60.0) is True
    found = world.store.get(keys.exit_(node.key))
    assert found is not None and codec.loads(Exit, found.data) == left
    assert json.loads(node.paths.left.read_text()) == {"outcome": "failed", "code": 3, "reason": "oh"}
    assert machine.wakes == 1


def test_an_exit_that_the_store_does_not_take_is_not_noted_on_the_disk(world: AgentWorld) -> None:
    machine = Woken()
    node = world.node(world.claim(), machine=machine, faults=lambda *_: Fault())
    assert node.write_exit(Exit("failed", "finished", NOW), time.monotonic()) is False
    assert not node.paths.left.exists() and machine.wakes == 1


def test_an_exit_counts_though_the_disk_is_full(world: AgentWorld) -> None:
    node = world.node(world.claim())
    node.paths.left.mkdir()
    assert node.write_exit(Exit("failed", "finished", NOW), time.monotonic() + 60.0) is True


# ── Notices ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def told(world: AgentWorld, node: AgentNode) -> NoticeFact | None:
    found = read_fact(world.store, keys.notice(node.key), NoticeFact)
    assert isinstance(found, Known)
    return found.value.value if found.value else None


def test_a_notice_is_told_once_and_its_deadline_stands(world: AgentWorld) -> None:
    machine = Woken()
    node = world.node(world.claim(), machine=machine)
    notices = Notices(node)
    assert notices.poll() is None and notices.notice is None
    machine.give(100.0)
    began_s = time.monotonic()
    deadline_s = notices.poll()
    assert deadline_s is not None and 100.0 <= deadline_s - began_s < 160.0
    assert notices.poll() == deadline_s and notices.hints == 0
    wait_for(lambda: told(world, node) == machine.now)
    wait_for(lambda: machine.wakes == 1)


def test_hints_ask_for_a_save_each_and_are_not_heard_after_a_hard_notice(world: AgentWorld) -> None:
    machine = Woken()
    notices = Notices(world.node(world.claim(), machine=machine))
    for number in (1, 2):
        machine.now = NoticeFact(hard=False, source=f"hint {number}", at=NOW, grace_s=0.0)
        assert notices.poll() is None and notices.poll() is None and notices.hints == number
    machine.give(100.0)
    hard = machine.now
    deadline_s = notices.poll()
    machine.now = NoticeFact(hard=False, source="hint 3", at=NOW, grace_s=0.0)
    assert notices.poll() == deadline_s and notices.hints == 2 and notices.notice == hard


def test_a_signal_is_a_notice_of_half_a_minute_though_a_hint_is_in_force(world: AgentWorld) -> None:
    machine = Woken()
    node = world.node(world.claim(), machine=machine)
    notices = Notices(node)
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    notices.poll()
    notices.take_signal()
    began_s = time.monotonic()
    deadline_s = notices.poll()
    assert deadline_s is not None and 30.0 <= deadline_s - began_s < 90.0
    assert notices.notice is not None and (notices.notice.hard, notices.notice.source) == (True, "shutdown")
    assert notices.notice.grace_s == 30.0 and abs((utcnow() - notices.notice.at).total_seconds()) < 60.0
    assert notices.poll() == deadline_s and notices.hints == 1
    wait_for(lambda: (told(world, node) or NoticeFact(False, "", NOW, 0.0)).source == "shutdown")


def test_of_two_hard_notices_the_earlier_deadline_counts_and_both_are_told(world: AgentWorld) -> None:
    machine = Woken()
    node = world.node(world.claim(), machine=machine)
    notices = Notices(node)
    machine.give(100.0)
    first = notices.poll()
    machine.give(500.0)
    assert notices.poll() == first
    wait_for(lambda: told(world, node) == machine.now)
    machine.give(5.0)
    second = notices.poll()
    assert first is not None and second is not None and second < first
    wait_for(lambda: told(world, node) == machine.now)


def test_the_known_end_of_a_machine_is_a_notice_unless_its_cloud_gives_one(world: AgentWorld) -> None:
    machine = Woken()
    notices = Notices(world.node(world.claim(), machine=machine))
    notices.known_end = KnownEnd(utcnow() + timedelta(seconds=300), 120.0, "ec2: the end of cr-1")
    assert notices.poll() is None and notices.poll() is None and notices.hints == 1
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    assert notices.poll() is None and notices.hints == 1
    began_s = time.monotonic()
    notices.known_end = KnownEnd(utcnow() + timedelta(seconds=100), 120.0, "ec2: the end of cr-1")
    first = notices.poll()
    assert first is not None and 90.0 < first - began_s < 160.0
    assert notices.notice is not None and notices.notice.source == "ec2: the end of cr-1"
    machine.give(5.0)
    second = notices.poll()
    assert second is not None and second < first and notices.notice == machine.now


def test_a_notice_is_passed_on_in_a_thread_that_keeps_nothing_waiting(world: AgentWorld) -> None:
    release = threading.Event()

    def faults(_method: str, _key: str) -> None:
        release.wait(60.0)

    node = world.node(world.claim(), faults=faults)
    thread = node.write_notice(NoticeFact(True, "cloud", NOW, 60.0))
    assert thread.daemon and thread.is_alive()
    release.set()
    thread.join(60.0)
    assert told(world, node) == NoticeFact(True, "cloud", NOW, 60.0)


def test_a_shutdown_leaves_less_than_an_earlier_notice_promised(world: AgentWorld) -> None:
    machine = Woken()
    notices = Notices(world.node(world.claim(), machine=machine))
    machine.give(1000.0)
    notices.poll()
    notices.take_signal()
    before_s = time.monotonic()
    deadline_s = notices.poll()
    assert deadline_s is not None and before_s + 30.0 <= deadline_s <= time.monotonic() + 30.0
    assert notices.poll() == deadline_s, "the time that is left does not begin anew"


def test_a_notice_that_is_slow_to_get_to_the_store_does_not_hide_the_next_one(world: AgentWorld) -> None:
    release, slow = threading.Event(), [True]
    machine = Woken()

    def faults(method: str, _key: str) -> None:
        if method == "put" and slow:
            slow.clear()
            release.wait(60.0)

    node = world.node(world.claim(), machine=machine, faults=faults)
    hint, notice = NoticeFact(False, "cloud", NOW, 60.0), NoticeFact(True, "cloud", NOW, 60.0)
    first = node.write_notice(hint)
    wait_for(lambda: not slow)
    second = node.write_notice(notice, after=first)
    wait_for(lambda: told(world, node) == notice)
    release.set()
    second.join(60.0)
    assert not first.is_alive() and told(world, node) == notice and machine.wakes == 3


@pytest.mark.parametrize("ends", [True, False])
def test_an_attempt_in_a_reservation_expects_its_end(world: AgentWorld, ends: bool) -> None:
    over = utcnow() + timedelta(seconds=300)
    reservation = Reservation("cr-1", None, over, over if ends else None)
    submission = world.submit("true")
    life = world.life(world.claim(offering=replace(OFFERING, reservation=reservation)))
    attempt._expect_end(life, world.state, submission)
    life.notices.poll()
    assert life.notices.hints == (1 if ends else 0)
    if ends:
        assert life.notices.notice is not None and life.notices.notice.source == "gce: the end of cr-1"
        # With as much grace, the same end gives notice at once.
        patient = replace(submission, spec=replace(submission.spec, checkpoints=Checkpoints(grace_s=300.0)))
        attempt._expect_end(life, world.state, patient)
        deadline_s = life.notices.poll()
        assert deadline_s is not None and 200.0 < deadline_s - time.monotonic() <= 300.0
