"""Deletions compute ages from the store's clock alone: the clock of this computer may be wrong by hours or months."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from stoker.core.summary import summarize
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import read_daily_costs
from stoker.maintenance import delete
from stoker.maintenance.before_removal import check_machines_gone, record_costs_before_removal
from stoker.maintenance.reindex import reindex
from stoker.model import codec, keys
from stoker.model.errors import StoreError, UserError
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record, Submitted
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import job_index, job_log
from stoker.submit.uploads import collect_uploads
from stoker.testing.memory_store import MemoryStore

JOB = "job-bbbb"
# How much this computer's clock is ahead of the store's, or behind it.
FAST, SLOW = timedelta(days=40), -timedelta(days=400)


@pytest.fixture(params=[FAST, SLOW], ids=["fast", "slow"])
def ahead(request: pytest.FixtureRequest) -> timedelta:
    found: timedelta = request.param
    return found


class Late:
    """A store whose clock differs from this computer's by `ahead`. `ages` are by the store's clock."""

    def __init__(self, ahead: timedelta) -> None:
        self.age = timedelta()
        self.store = MemoryStore(lambda: datetime.now(timezone.utc) - ahead - self.age)

    def put(self, key: str, age: timedelta, data: bytes = b"x") -> None:
        self.written(age, lambda: self.store.put(key, data))

    def written(self, age: timedelta, write: Callable[[], object]) -> None:
        self.age = age
        write()
        self.age = timedelta()

    def submit(self, *events: Event, age: timedelta) -> None:
        data = codec.dumps(Submission(JOB, Spec(name="job", run="true"), "jane"))
        self.put(keys.spec(JOB), age, data)
        for seq, event in enumerate((Submitted(codec.digest(data), "jane"), *events), 1):
            record = Record(job_log.new_token(), "t", "t", event)
            self.written(age, lambda seq=seq, record=record: job_log.append(self.store, JOB, seq, record))  # type: ignore[misc]


def test_jobs_are_old_by_the_stores_clock(ahead: timedelta) -> None:
    world = Late(ahead)
    world.submit(Ended("failed", "test", None), age=timedelta(days=10))
    state = job_log.read(world.store, JOB)
    assert state is not None
    short = summarize(state, job_index.read_submission(world.store, state), {}, state.updated_at)
    job_index.write_index(world.store, job_index.IndexRecord(state, short))
    assert delete.ended_before(world.store, timedelta(days=30)) == []
    assert delete.ended_before(world.store, timedelta(days=9)) == [JOB]
    assert list(world.store.list(keys.PROBES)) == []


def test_shared_objects_and_environments_are_old_by_the_stores_clock(ahead: timedelta) -> None:
    world = Late(ahead)
    manifest = keys.environment_manifest(keys.ENVIRONMENTS, "old")
    for age, kept in ((timedelta(days=2), False), (timedelta(hours=1), True)):
        world.put(keys.code("1" * 64), age)
        world.put(f"{keys.input_files('1' * 64)}file", age)
        assert delete.collect_shared(world.store, keys.CODE) == (not kept)
        assert collect_uploads(world.store) == (not kept)
        for key in (keys.code("1" * 64), f"{keys.input_files('1' * 64)}file"):
            assert world.store.holds(key) is kept
        world.store.delete([meta.key for meta in world.store.list("collected/")])
        world.put(manifest, age + (timedelta() if kept else delete.UNUSED_FOR))
        assert delete.collect_environments(world.store) == (not kept)


def test_a_machine_may_still_show_up_by_the_stores_clock(ahead: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Late(ahead)
    world.store.create(keys.place("local", None), b"")
    fleet = Fleet(world.store.url)
    newborn = timedelta(seconds=fleet.capabilities("local").newborn_s)
    monkeypatch.setattr(type(fleet.provider("local")), "list_instances", lambda *_: ())
    world.put(keys.log_entry(JOB, 1), newborn / 2, b"garbage")
    with pytest.raises(UserError, match="may still show up"):
        check_machines_gone(world.store, JOB, StoreError("garbage"))
    world.put(keys.log_entry(JOB, 1), newborn * 2, b"garbage")
    check_machines_gone(world.store, JOB, StoreError("garbage"))


def test_a_marker_is_abandoned_by_the_stores_clock(ahead: timedelta) -> None:
    world = Late(ahead)
    world.put(keys.active("new-bbbb", 1), timedelta(minutes=5))
    world.put(keys.active("old-bbbb", 1), timedelta(hours=2))
    reindex(world.store)
    assert world.store.holds(keys.active("new-bbbb", 1)) and not world.store.holds(keys.active("old-bbbb", 1))


def test_costs_before_a_removal_end_by_the_stores_clock(ahead: timedelta) -> None:
    world = Late(ahead)
    here = Offering("local", "here", "here", spot=False, price=2.0, on_demand_price=2.0)
    world.submit(Claimed(here, 1), Launched(2, (NodeRef(0, "i-1"),)), age=timedelta(hours=1))
    record_costs_before_removal(world.store, JOB, job_log.read(world.store, JOB))
    spent = sum(each.sums.spent.known for each in read_daily_costs(world.store, [keys.SPENT]))
    assert spent == pytest.approx(2.0, rel=0.01)
