"""The heartbeat of a node: when it is calm, what is told at once, and that it goes on whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from plain_store import wait_for

from stoker.agent import heartbeat as beat_module
from stoker.agent.heartbeat import REMOTE_INTERVAL_S, STEADY_INTERVAL_S, HeartbeatThread, is_steady
from stoker.model import codec, keys
from stoker.model.gang_messages import Ack, Rendezvous, SaveAnswer, SaveProposal
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, StopAsked, Suspected
from stoker.model.node_facts import Activity, CheckpointRef, Heartbeat
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import SPOT_A, at, make_state, nodes

T0 = at(0.0)
NODE = "work/job-1/2/0/boot"
RUNNING = (Claimed(offering=SPOT_A, nodes=2), Launched(2, nodes(2)))
STEADY = Heartbeat(
    beat=1, phase="training", at=T0, interval_s=10.0, trained_s=120.0, activity=Activity(silent_s=0.0, stepped_s=1.0)
)


def active(**changes: Any) -> Heartbeat:
    return replace(STEADY, activity=replace(STEADY.activity or Activity(silent_s=0.0), **changes))


# ── Calm ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("beat", "calm"),
    [
        (STEADY, True),
        (replace(STEADY, trained_s=119.0), False),
        (replace(STEADY, phase="saving"), False),
        (replace(STEADY, activity=None), False),
        (active(debugged_s=1.0), False),
        (active(stepped_s=60.0, silent_s=500.0), True),
        (active(stepped_s=60.5), False),
        (active(stepped_s=149.0, longest_step_s=100.0), True),
        (active(stepped_s=151.0, longest_step_s=100.0), False),
        (active(stepped_s=None, silent_s=60.0), True),
        (active(stepped_s=None, silent_s=60.5), False),
    ],
)
def test_a_node_is_calm_while_it_trains_steadily(beat: Heartbeat, calm: bool) -> None:
    assert is_steady(beat, make_state(*RUNNING), 2, 0) is calm


@pytest.mark.parametrize(
    ("event", "calm"),
    [
        (StopAsked("me"), False),
        (Draining(2, "lost", "test"), False),
        (Closed(2, "lost", "test", restart=True), False),
        (Ended("stopped", "test"), False),
        (Suspected(2, 0, "etag"), False),
        (Suspected(2, 1, "etag"), True),
    ],
)
def test_a_node_about_which_something_is_decided_is_not_calm(event: Event, calm: bool) -> None:
    assert is_steady(STEADY, make_state(*RUNNING, event), 2, 0) is calm


def test_a_node_whose_claim_is_not_known_is_not_calm() -> None:
    assert not is_steady(STEADY, None, 2, 0)
    assert not is_steady(STEADY, make_state(*RUNNING), 3, 0)


# ── News ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Far:
    """A heartbeat to a store far away, in virtual time. `told` is what its node says of itself."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.told: dict[str, Any] = {}
        self.store = MemoryStore(lambda: T0)
        self.beat = HeartbeatThread(
            self.store, NODE, lambda beat: replace(beat, **self.told), lambda _beat: True, lambda: self.now_s
        )

    def written(self) -> Heartbeat:
        found = self.store.get(keys.heartbeat(NODE))
        assert found is not None
        return codec.loads(Heartbeat, found.data)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "saving"},
        {"first_step": 1},
        {"checkpoint": CheckpointRef("key", "name")},
        {"restored_from": "key"},
        {"evidence": ("stall:2",)},
        {"rendezvous": Rendezvous(round=1, addresses=("a",), port=1, checkpoint=None)},
        {"ack": Ack(round=1, ok=True)},
        {"checkpoint_files": 1},
        {"save_proposal": SaveProposal(7, 2.0)},
        {"save_answer": SaveAnswer(7, True)},
        {"warnings": ("the disk is full",)},
        {"saves_elsewhere": ("m.pt",)},
    ],
)
def test_what_others_wait_for_is_written_with_the_next_look(changes: dict[str, Any]) -> None:
    far = Far()
    far.beat.tick()
    far.told = changes
    far.beat.tick()
    assert {name: getattr(far.written(), name) for name in changes} == changes and far.written().beat == 2


def test_another_step_is_no_news_until_the_heartbeat_is_due() -> None:
    far = Far()
    far.told = {"first_step": 1, "step": 1}
    far.beat.tick()
    far.told = {"first_step": 1, "step": 2}
    for _ in range(5):
        far.now_s += REMOTE_INTERVAL_S
        far.beat.tick()
        assert far.written().step == 1
    far.now_s += REMOTE_INTERVAL_S / 2
    far.beat.tick()
    assert far.written().step == 2 and far.written().interval_s == STEADY_INTERVAL_S, "half a look early is not late"


def test_more_files_of_a_rank_that_saves_are_no_news() -> None:
    far = Far()
    far.told = {"checkpoint_files": 1}
    far.beat.tick()
    far.told = {"checkpoint_files": 2}
    far.beat.tick()
    assert far.written().checkpoint_files == 1


def test_a_beat_counts_itself_and_tells_its_time() -> None:
    far = Far()
    before = datetime.now(timezone.utc)
    for number in (1, 2, 3):
        far.beat.write()
        assert far.written().beat == number and before <= far.written().at <= datetime.now(timezone.utc)
    assert far.beat.now == far.written()


def test_a_heartbeat_is_written_often_unless_its_node_is_calm() -> None:
    beat = HeartbeatThread(MemoryStore(lambda: T0), NODE, lambda found: found)
    beat.write()
    assert beat.now.interval_s == beat_module.REMOTE_INTERVAL_S


# ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HeartbeatThread]]:
    monkeypatch.setattr(beat_module, "LOCAL_INTERVAL_S", 0.01)
    made: list[HeartbeatThread] = []

    def start(store: MemoryStore, refresh: Callable[[Heartbeat], Heartbeat] = lambda beat: beat) -> HeartbeatThread:
        beat = HeartbeatThread(store, NODE, refresh)
        made.append(beat)
        beat.start()
        return beat

    yield start
    for beat in made:
        beat.stop()


def test_a_store_that_does_not_answer_is_told_of_and_written_to_again(beats: Callable[..., HeartbeatThread]) -> None:
    away = threading.Event()
    away.set()
    store = MemoryStore(
        lambda: T0, faults=lambda method, _key: Fault() if method == "put" and away.is_set() else None, is_local=True
    )
    beat = beats(store)
    wait_for(lambda: beat.error == "injected fault")
    away.clear()
    wait_for(lambda: store.holds(keys.heartbeat(NODE)))
    wait_for(lambda: beat.error is None)


def test_a_heartbeat_goes_on_after_a_mistake(
    beats: Callable[..., HeartbeatThread], caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]

    def refresh(beat: Heartbeat) -> Heartbeat:
        if failing:
            failing.clear()
            raise ValueError("a mistake")
        return beat

    store = MemoryStore(lambda: T0, is_local=True)
    beats(store, refresh)
    wait_for(lambda: store.holds(keys.heartbeat(NODE)))
    assert "the heartbeat failed" in caplog.text and "a mistake" in caplog.text


def test_a_change_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_module, "LOCAL_INTERVAL_S", 1000.0)
    store = MemoryStore(lambda: T0, is_local=True)
    beat = HeartbeatThread(store, NODE, lambda found: found)
    beat.start()
    wait_for(lambda: store.holds(keys.heartbeat(NODE)))

    def step() -> int | None:
        found = store.get(keys.heartbeat(NODE))
        assert found is not None
        return codec.loads(Heartbeat, found.data).step

    # Not news: it is written because it was changed.
    beat.change(step=5)
    wait_for(lambda: step() == 5)
    wait_for(lambda: not beat._due.is_set())
    beat.stop()
    assert not beat._thread.is_alive()


def test_a_heartbeat_that_is_stopped_writes_no_more(beats: Callable[..., HeartbeatThread]) -> None:
    store = MemoryStore(lambda: T0, is_local=True)
    beat = beats(store)
    wait_for(lambda: store.holds(keys.heartbeat(NODE)))
    beat.stop()
    before = store.get(keys.heartbeat(NODE))
    beat.change(phase="saving")
    assert not beat._thread.is_alive() and store.get(keys.heartbeat(NODE)) == before


def test_a_change_that_the_store_did_not_take_is_written_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_module, "LOCAL_INTERVAL_S", 1000.0)
    away = threading.Event()
    store = MemoryStore(
        lambda: T0, faults=lambda method, _key: Fault() if method == "put" and away.is_set() else None, is_local=True
    )
    beat = HeartbeatThread(store, NODE, lambda found: found)
    beat.start()
    wait_for(lambda: store.holds(keys.heartbeat(NODE)))
    away.set()
    beat.change(phase="saving")
    wait_for(lambda: beat.error is not None)
    away.clear()
    beat.stop(timeout_s=60.0)
    found = store.get(keys.heartbeat(NODE))
    assert found is not None and codec.loads(Heartbeat, found.data).phase == "saving"


def test_a_change_just_before_the_stop_is_written() -> None:
    entered, release = threading.Event(), threading.Event()

    def faults(_method: str, _key: str) -> None:
        entered.set()
        release.wait(60.0)

    store = MemoryStore(lambda: T0, faults=faults, is_local=True)
    beat = HeartbeatThread(store, NODE, lambda found: found)
    beat.start()
    # The first heartbeat is on its way, without the change.
    assert entered.wait(60.0)
    beat.change(checkpoint_files=3)
    beat.stop(timeout_s=0.01)
    release.set()
    beat._thread.join(60.0)
    found = store.get(keys.heartbeat(NODE))
    assert found is not None and codec.loads(Heartbeat, found.data).checkpoint_files == 3


def test_a_beat_that_hangs_is_left_behind() -> None:
    entered, release = threading.Event(), threading.Event()

    def faults(_method: str, _key: str) -> None:
        entered.set()
        release.wait(60.0)

    beat = HeartbeatThread(MemoryStore(lambda: T0, faults=faults, is_local=True), NODE, lambda found: found)
    beat.start()
    assert entered.wait(60.0)
    beat.stop(timeout_s=0.01)
    assert beat._thread.is_alive()
    release.set()
    beat._thread.join(60.0)
    assert not beat._thread.is_alive()
