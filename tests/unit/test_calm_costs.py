"""What calm costs: heartbeats and index records are written when they tell something, and rarely otherwise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from bench.fabricate import Machines, active_objects, name_of

from stoker.agent.heartbeat import REMOTE_INTERVAL_S, STEADY_INTERVAL_S, HeartbeatThread, is_steady
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, Terminate
from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.model import codec, keys
from stoker.model.errors import StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Launched, StopAsked, Suspected, Warned
from stoker.model.node_facts import Activity, CheckpointRef, Heartbeat
from stoker.providers.ec2.capabilities import CAPABILITIES as EC2
from stoker.providers.gce.capabilities import CAPABILITIES as GCE
from stoker.providers.sagemaker.capabilities import CAPABILITIES as SAGEMAKER
from stoker.read.job_list import list_jobs
from stoker.store import job_index, job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import SPOT_A, at, make_beat, make_facts, make_snapshot, make_state, nodes

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
RUNNING = (Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)))
HOUR_S = 3600.0


# ── Heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Node:
    """A node that trains, in virtual time, and its heartbeat."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.now_s = 0.0
        self.state: JobState = make_state(*RUNNING)
        self.trained_s = 1000.0
        self.stepped_s: float | None = 1.0
        self.longest_step_s = 1.0
        self.checkpoint: CheckpointRef | None = None
        self.puts: list[float] = []
        self.failing = False
        self.store = MemoryStore(lambda: T0 + timedelta(seconds=self.now_s), faults=self._count, is_local=is_local)
        self.beat = HeartbeatThread(self.store, "work/job-1/2/0/boot", self._refresh, self._calm, lambda: self.now_s)
        self.beat.change(phase="training")

    def pass_time(self, seconds: float) -> int:
        """Let the heartbeat's thread look as often as it does. Answers how often it wrote."""
        before, until_s = len(self.puts), self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += REMOTE_INTERVAL_S
            self.beat.tick()
        return len(self.puts) - before

    def written(self) -> Heartbeat:
        found = self.store.get(keys.heartbeat("work/job-1/2/0/boot"))
        assert found is not None
        return codec.loads(Heartbeat, found.data)

    def _calm(self, beat: Heartbeat) -> bool:
        return is_steady(beat, self.state, 2, 0)

    def _refresh(self, beat: Heartbeat) -> Heartbeat:
        activity = Activity(silent_s=0.0, stepped_s=self.stepped_s, longest_step_s=self.longest_step_s)
        told = {"step": int(self.now_s), "trained_s": self.trained_s, "checkpoint": self.checkpoint}
        return replace(beat, activity=activity, **told)  # type: ignore[arg-type]

    def _count(self, operation: str, _key: str) -> Fault | None:
        if operation == "put":
            self.puts.append(self.now_s)
        return Fault(error=StoreUnavailable("no answer")) if self.failing else None


@pytest.fixture
def node() -> Node:
    made = Node()
    made.pass_time(120)
    return made


def test_steady_training_writes_once_a_minute(node: Node) -> None:
    assert node.pass_time(HOUR_S) == 60
    gaps = [after - before for before, after in zip(node.puts, node.puts[1:], strict=False)]
    assert max(gaps) <= node.written().interval_s == STEADY_INTERVAL_S, "never later than it says"


def test_the_first_minutes_and_what_comes_before_are_told_often(node: Node) -> None:
    for changes in ({"phase": "setup"}, {"phase": "restoring"}, {"phase": "saving"}, {"phase": "training"}):
        node.beat.change(**changes)
        node.trained_s = 10.0
        assert node.pass_time(600) >= 59, changes


@pytest.mark.parametrize("event", [StopAsked(by="jane"), Suspected(claim=2, rank=0, etag="x")])
def test_what_is_decided_about_a_node_wakes_its_heartbeat(event: StopAsked | Suspected, node: Node) -> None:
    node.state = make_state(*RUNNING, event)
    assert node.pass_time(REMOTE_INTERVAL_S) == 1
    assert node.written().interval_s == REMOTE_INTERVAL_S
    assert node.pass_time(600) >= 59


def test_a_standstill_is_told_often_and_slow_steps_are_none(node: Node) -> None:
    node.stepped_s = 400.0
    assert node.pass_time(600) >= 59, "the stall rules see it as finely as ever"
    node.longest_step_s = 300.0
    assert node.pass_time(600) <= 11, "its steps always took so long"


def test_a_checkpoint_is_told_at_once(node: Node) -> None:
    node.checkpoint = CheckpointRef(key="00000002/000001-a", name="a")
    assert node.pass_time(REMOTE_INTERVAL_S) == 1
    assert node.written().checkpoint == node.checkpoint


def test_a_lost_write_is_repeated_with_the_next_look(node: Node) -> None:
    node.failing = True
    with pytest.raises(StoreUnavailable):
        node.pass_time(120)
    node.failing = False
    assert node.pass_time(REMOTE_INTERVAL_S) == 1


def test_a_folder_costs_nothing_and_is_told_as_often_as_ever() -> None:
    node = Node(is_local=True)
    node.pass_time(120)
    assert node.pass_time(600) >= 59


# ── Silence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_providers_wait_for_three_calm_heartbeats() -> None:
    assert all(each.silence_s >= 3 * STEADY_INTERVAL_S for each in (EC2, GCE, SAGEMAKER))


@pytest.mark.parametrize(("interval_s", "limit_s"), [(10.0, 60.0), (60.0, 180.0), (1e9, 1800.0), (float("nan"), 60.0)])
def test_both_steps_of_silence_go_by_the_interval_that_the_heartbeat_told(interval_s: float, limit_s: float) -> None:
    """The provider's own bound is 60 s here. What a node tells is bounded."""
    spoken = make_beat(100.0)
    beat = replace(spoken, value=replace(spoken.value, interval_s=interval_s))

    def done(events: tuple[object, ...], now_s: float) -> list[object]:
        job = make_snapshot(make_state(*events), make_facts(2, beat=beat))  # type: ignore[arg-type]
        actions = decide_job(job, DEFAULT, at(now_s)).actions
        found = [action.event if isinstance(action, Append) else action for action in actions]
        return [each for each in found if isinstance(each, (Suspected, Terminate))]

    assert done(RUNNING, 100 + limit_s - 1) == []
    (suspected,) = done(RUNNING, 100 + limit_s + 1)
    assert isinstance(suspected, Suspected)
    later = (*RUNNING, (suspected, 100 + limit_s + 1))
    assert done(later, 100 + 2 * limit_s - 1) == []
    (ended,) = done(later, 100 + 2 * limit_s + 2)
    assert isinstance(ended, Terminate)


# ── The index ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Fleetful:
    """A bucket with jobs in training whose nodes beat, and governors that tick, in virtual time."""

    def __init__(self, count: int) -> None:
        self.now_s = 0.0
        self.records: Counter[str] = Counter()
        self.jobs = [name_of(n) for n in range(count)]
        self.store = MemoryStore(self._clock, faults=self._count)
        self._objects = active_objects(self.jobs)
        for key, data in self._objects.items():
            self.store.put(key, data)
        self.records.clear()

    def governor(self) -> Governor:
        machines = Machines(self.jobs)
        return Governor(self.store, Fleet(self.store.url, connect=lambda _name: machines), monotonic=lambda: self.now_s)

    def tick(self, governor: Governor, *, beats: bool = True) -> int:
        """Answers how many records were written."""
        self.now_s += 60.0
        for key, data in self._objects.items():
            if beats and "/heartbeat" in key:
                told = codec.loads(Heartbeat, data)
                fresh = replace(told, beat=int(self.now_s), step=int(self.now_s), at=self._clock(), interval_s=60.0)
                self.store.put(key, codec.dumps(fresh))
        before = self.records.total()
        done = governor.run_pass()
        assert done.actions == () and done.problems == {}, done
        return self.records.total() - before

    def _clock(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=timezone.utc) + timedelta(seconds=self.now_s)

    def _count(self, operation: str, key: str) -> None:
        if operation == "put" and key.startswith(keys.INDEX):
            self.records[key] += 1


def test_a_tick_writes_what_changed_and_refreshes_a_few() -> None:
    world = Fleetful(100)
    governor = world.governor()
    world.tick(governor)
    written = [world.tick(governor) for _ in range(30)]
    # At most one in five seconds, however many jobs there are: 360 in half an hour, not 3,000.
    assert 0 < sum(written) <= 360
    assert written.count(0) > 20


def test_few_jobs_are_refreshed_every_minute_or_two() -> None:
    world = Fleetful(2)
    governor = world.governor()
    world.tick(governor)
    assert sum(world.tick(governor) for _ in range(10)) >= 10


def test_nothing_new_writes_nothing() -> None:
    world = Fleetful(3)
    governor = world.governor()
    world.tick(governor)
    assert [world.tick(governor, beats=False) for _ in range(2)] == [0, 0]


def test_what_was_decided_is_written_at_once() -> None:
    world = Fleetful(30)
    governor = world.governor()
    world.tick(governor)
    job_log.append_next(
        world.store, world.jobs[7], None, lambda _state: (Warned(code="x", evidence=False), "test"), "test"
    )
    assert world.tick(governor) == 1
    record = job_index.read_index(world.store, world.jobs[7])
    assert record is not None and "x" in record.state.warned


def test_governors_of_a_single_pass_do_not_rewrite_what_others_wrote() -> None:
    world = Fleetful(50)
    world.tick(world.governor())
    assert world.tick(world.governor()) == 0


@pytest.mark.parametrize(("count", "fresh"), [(20, True), (21, False)])
def test_ps_reads_the_heartbeats_of_few_jobs_whose_records_are_old(count: int, fresh: bool) -> None:
    world = Fleetful(count)
    governor = world.governor()
    world.tick(governor)
    world.tick(governor)
    summaries = list_jobs(world.store).summaries
    assert {each.step for each in summaries} == ({120} if fresh else {60})
