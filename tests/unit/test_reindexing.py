"""What is derived can be thrown away and built again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker import client
from stoker.governor.cost_ledger import read_daily_costs
from stoker.governor.observe import active_jobs
from stoker.jobfile import Job
from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Offering
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store

OFFERING = Offering(provider="local", machine="local", zone="this-computer", spot=False, price=0.0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


def add(store: Store, *events: Event) -> str:
    job = client.submit(Job(run="true"), store=store)
    for seq, event in enumerate(events, 2):
        assert job_log.append(store, job, seq, Record(token=job_log.new_token(), by="test", reason="test", event=event))
    return job


def test_index_and_markers_come_back_from_the_logs(store: Store, tmp_path: Path) -> None:
    running = add(store, Claimed(offering=OFFERING, nodes=1))
    ended = add(store, Ended(outcome="failed", rule="test"))
    gone = add(
        store,
        Claimed(offering=OFFERING, nodes=1),
        Launched(claim=2, nodes=(NodeRef(0, "never-was"),)),
        Ended(outcome="succeeded", rule="finished", claim=2),
    )
    # The clock of a folder's files ticks slowly: it ran for a while.
    os.utime(tmp_path / "store" / keys.log_entry(gone, 3), (1.8e9, 1.8e9))
    os.utime(tmp_path / "store" / keys.log_entry(gone, 4), (1.8e9 + 60, 1.8e9 + 60))
    store.delete([meta.key for prefix in (keys.ACTIVE, keys.INDEX) for meta in store.list(prefix)])
    done = reindex(store)
    assert {each.job for each in read_daily_costs(store, [keys.SPENT])} == {gone}, "what it spent, too"
    assert (done.jobs, done.marked, done.problems) == (3, 1, {})
    assert active_jobs(store) == {running: (1,)}
    phases = {job: job_index.read_index(store, job) for job in (running, ended, gone)}
    assert {job: record.summary.phase for job, record in phases.items() if record is not None} == {
        running: "launching",
        ended: "failed",
        gone: "succeeded",
    }


def test_a_job_whose_machines_are_not_known_to_be_gone_is_marked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.model.errors import Transient
    from stoker.providers.local.provider import LocalProvider

    job = add(
        store,
        Claimed(offering=OFFERING, nodes=1),
        Launched(claim=2, nodes=(NodeRef(0, "some-machine"),)),
        Ended(outcome="succeeded", rule="finished", claim=2),
    )
    store.delete([keys.active(job, 1)])

    def unknown(*_args: object) -> dict[str, str]:
        raise Transient("nobody answers")

    monkeypatch.setattr(LocalProvider, "state", unknown)
    reindex(store)
    assert active_jobs(store) == {job: (1,)}


@pytest.mark.parametrize(
    ("states", "over"),
    [
        ({"a": "gone", "b": "gone"}, True),
        ({"a": "gone", "b": "running"}, False),
        ({"a": "gone"}, False),
    ],
)
def test_an_ended_job_is_over_once_all_its_machines_are_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch, states: dict[str, str], over: bool
) -> None:
    from stoker.providers.local.provider import LocalProvider

    there = Offering(provider="local", machine="m", zone="z", spot=False, price=0.0, region="r")
    job = add(
        store,
        # One that was asked for and never came.
        *(Claimed(offering=there, nodes=1), Closed(claim=2, outcome="dry", rule="no-capacity")),
        *(Claimed(offering=there, nodes=2), Launched(claim=4, nodes=(NodeRef(0, "a"), NodeRef(1, "b")))),
        Ended(outcome="succeeded", rule="finished", claim=4),
    )
    store.delete([keys.active(job, 1)])
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(LocalProvider, "state", lambda _self, *given: asked.append(given) or states)
    done = reindex(store)
    assert (done.jobs, done.marked, done.forgotten) == (1, int(not over), 0)
    assert active_jobs(store) == ({} if over else {job: (1,)})
    assert asked == [(["a", "b"], "r")]


def test_a_job_that_is_marked_is_left_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = add(store, Ended(outcome="failed", rule="test"))
    done = reindex(store)
    assert (done.jobs, done.marked) == (1, 0) and job in active_jobs(store), "a governor retires it"
    assert read_daily_costs(store, [keys.SPENT]) == []


def test_what_is_left_of_removed_jobs_is_counted(store: Store) -> None:
    job = add(store)
    store.put(keys.removed("gone-bbbb"), b"")
    store.put(keys.active("gone-bbbb", 1), b"")
    told: list[tuple[int, int]] = []
    done = reindex(store, lambda number, of: told.append((number, of)))
    assert (done.jobs, done.forgotten, told) == (1, 1, [(1, 1)])
    assert set(active_jobs(store)) == {job} and job_index.read_index(store, job) is not None


def test_leftovers_of_jobs_that_are_not_there_are_dropped(store: Store, tmp_path: Path) -> None:
    job = add(store)
    store.put(keys.index("ghost-bbbb", 1), b"{}")
    for name in ("old-bbbb", "young-bbbb"):
        store.put(keys.active(name, 1), b"")
    then = time.time() - 7200
    os.utime(tmp_path / "store" / keys.active("old-bbbb", 1), (then, then))
    assert reindex(store).forgotten == 2
    assert set(active_jobs(store)) == {job, "young-bbbb"}, "a submission may be under way"


def test_one_log_that_cannot_be_read_is_told_and_stops_nothing(store: Store) -> None:
    job = add(store)
    store.put(keys.log_entry("broken-bbbb", 1), b"not json")
    done = reindex(store)
    assert done.jobs == 1 and list(done.problems) == ["broken-bbbb"]
    assert job_index.read_index(store, job) is not None
