"""Requests that land late, after the job has moved on or was removed: records, markers and log entries."""

from __future__ import annotations

import importlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, Launch, Plan
from stoker.core.summary import summarize
from stoker.governor.apply import Applier
from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.governor.observe import Memory, active_jobs
from stoker.jobfile import Job
from stoker.maintenance import delete
from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.errors import NoSuchJob, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Ended, Event, Record, ResumeAsked
from stoker.model.offerings import Instance
from stoker.providers.base import Request
from stoker.read.cost_records import read_accounts
from stoker.read.job_list import list_jobs
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from stoker.store.find_job import all_jobs, find_job
from stoker.store.job_index import IndexRecord
from stoker.submit.resume import ask_to_resume, prepare_resume
from tests.support.sim_data import CAPABILITIES, SPOT_A


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


def submit(store: Store) -> str:
    return client.submit(Job(run="true"), store=store)


def append(store: Store, job: str, event: Event) -> int:
    state = read(store, job)
    assert job_log.append(store, job, state.seq + 1, Record(job_log.new_token(), "test", "test", event))
    return state.seq + 1


def read(store: Store, job: str) -> JobState:
    state = job_log.read(store, job)
    assert state is not None
    return state


def record(store: Store, job: str) -> IndexRecord:
    state = read(store, job)
    now = datetime.now(timezone.utc)
    return IndexRecord(state, summarize(state, job_index.read_submission(store, state), {}, now))


def below(store: Store, prefix: str) -> dict[str, bytes]:
    found = {meta.key: store.get(meta.key) for meta in store.list(prefix)}
    return {key: one.data for key, one in found.items() if one is not None}


def end(store: Store, job: str) -> None:
    append(store, job, Ended(outcome="failed", rule="test"))
    store.delete([keys.active(job, 1)])


# ── The index ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_record_that_lands_late_does_not_hide_the_end(store: Store) -> None:
    job = submit(store)
    job_index.write_index(store, record(store, job))
    late = below(store, keys.INDEX)
    end(store, job)
    job_index.write_index(store, record(store, job))
    assert len(below(store, keys.INDEX)) == 1, "the earlier record is deleted"
    for key, data in late.items():
        store.put(key, data)
    ((summary,), kept) = list_jobs(store).summaries, job_index.read_index(store, job)
    assert summary.phase == "failed" and kept is not None and kept.summary.phase == "failed"
    accounts = read_accounts(store, datetime.now(timezone.utc))
    assert [one.summary.phase for one in accounts.records] == ["failed"]
    assert delete.ended_before(store, timedelta(seconds=-1)) == [job]
    reindex(store)
    assert list(below(store, keys.INDEX)) == [keys.index(job, 2)]


def test_a_slower_writer_leaves_the_newer_record(store: Store) -> None:
    job = submit(store)
    slow = record(store, job)
    end(store, job)
    job_index.write_index(store, record(store, job))
    job_index.write_index(store, slow)
    assert list(below(store, keys.INDEX)) == [keys.index(job, 2)]


def test_a_record_is_read_although_it_is_replaced_between_list_and_read(store: Store) -> None:
    job = submit(store)
    job_index.write_index(store, record(store, job))
    (listed,) = job_index.list_index(store)
    end(store, job)
    job_index.write_index(store, record(store, job))
    found = job_index.read_summary(store, job, listed)
    assert found is not None and found.phase == "failed"


# ── Removal ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def everything_lands_again(store: Store, before: dict[str, bytes]) -> None:
    """Every request that was ever made for the job, once more."""
    for key, data in before.items():
        store.put(key, data)


def test_a_removed_job_does_not_come_back(store: Store) -> None:
    job = submit(store)
    job_index.write_index(store, record(store, job))
    before = below(store, "")
    end(store, job)
    job_index.write_index(store, record(store, job))
    client.remove(job, store)
    everything_lands_again(store, before)
    assert all_jobs(store) == [] and job_index.list_index(store) == [] and job_index.read_index(store, job) is None
    assert job_log.read(store, job) is None
    assert list_jobs(store).summaries == ()
    for ask in (client.summary, client.stop, client.resume, client.clone):
        with pytest.raises(UserError):
            ask(job, store=store)  # type: ignore[operator]
    Governor(store).run_pass()
    assert active_jobs(store) == {} and below(store, keys.INDEX) == {}
    everything_lands_again(store, before)
    assert reindex(store).forgotten >= 1
    assert [key for key in below(store, "") if job in key] == [keys.removed(job)]
    with pytest.raises(NoSuchJob):
        find_job(store, job)


def test_what_landed_after_a_removal_goes_with_the_next(store: Store) -> None:
    first, second = submit(store), submit(store)
    for job in (first, second):
        end(store, job)
    client.remove(first, store)
    store.put(f"work/{first}/00000002/0/i.0/heartbeat", b"late")
    assert delete.finish_removals(store) == [first]
    assert not below(store, f"work/{first}/")
    assert all_jobs(store) == [second]


def test_an_id_is_never_used_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(store)
    end(store, job)
    client.remove(job, store)
    letters = iter([*job[-4:], *"zzzz"])
    monkeypatch.setattr(importlib.import_module("stoker.submit.send").secrets, "choice", lambda _: next(letters))
    assert submit(store) == job[:-4] + "zzzz"


# ── Governors that were stalled ───────────────────────────────────────────────────────────────────────────────────────


class Cloud:
    """A provider that counts what it sells. `before` runs while a launch is under way."""

    name = "sim"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.sold: list[str] = []
        self.ended: list[str] = []
        self.before = lambda: None

    def build(self, order: object) -> tuple[Request, ...]:
        return (Request(service="sim", operation="launch", params={"order": order}),)

    def launch(self, requests: tuple[Request, ...]) -> tuple[Instance, ...]:
        self.before()
        order = requests[0].params["order"]
        self.sold.append(order.job)
        return (Instance("i-1", "sim", order.job, order.claim, 0, "running", datetime.now(timezone.utc), "a"),)

    def terminate(self, instance: str, region: str | None = None) -> str:
        self.ended.append(instance)
        return "requested"


def stalled(store: Store, job: str) -> tuple[Applier, Cloud]:
    """A governor that has read the job, and has yet to do what it decided."""
    cloud, memory = Cloud(), Memory()
    fleet = Fleet(store.url, connect=lambda _name: cloud)  # type: ignore[arg-type, return-value]
    state = read(store, job)
    memory.states[job], memory.submissions[job] = state, job_index.read_submission(store, state)
    applier = Applier(store, fleet, memory, "stalled")
    applier.settings = DEFAULT
    return applier, cloud


def test_a_governor_that_was_stalled_over_the_removal_buys_nothing(store: Store) -> None:
    job = submit(store)
    applier, cloud = stalled(store, job)
    end(store, job)
    client.remove(job, store)
    for late in (keys.active(job, 1), f"{keys.index_prefix(job)}2"):
        store.put(late, b"")
    plan = Plan((Append(job, 2, Claimed(SPOT_A, 1), "first"), Launch(job, 2, "first")))
    applied = applier.apply(plan)
    assert cloud.sold == [] and not applied.done
    assert active_jobs(store) == {} and below(store, keys.index_prefix(job)) == {}, "what landed late is deleted"
    assert job not in applier.memory.states, "its number may be another job's one day"
    assert job_log.read(store, job) is None and all_jobs(store) == [], "its entry is of no job"
    assert delete.finish_removals(store) == [job] and below(store, keys.log_prefix(job)) == {}


def test_a_claim_that_was_made_before_the_removal_is_not_launched(store: Store) -> None:
    job = submit(store)
    claim = append(store, job, Claimed(SPOT_A, 1))
    applier, cloud = stalled(store, job)
    end(store, job)
    client.remove(job, store)
    applier.apply(Plan((Launch(job, claim, "first"),)))
    assert cloud.sold == []


def test_what_was_bought_while_the_job_was_removed_is_given_back_at_once(store: Store) -> None:
    job = submit(store)
    claim = append(store, job, Claimed(SPOT_A, 1))
    applier, cloud = stalled(store, job)

    def remove() -> None:
        end(store, job)
        client.remove(job, store)

    cloud.before = remove
    applier.apply(Plan((Launch(job, claim, "first"),)))
    assert cloud.sold == [job] and cloud.ended == ["i-1"]
    assert job_log.read(store, job) is None


# ── A removal that lands after a resume ───────────────────────────────────────────────────────────────────────────────


class Holding:
    """A store that gives up creates of keys with `part` in them, and lets them land later."""

    def __init__(self, store: Store, part: str) -> None:
        self.store = store
        self.part = part
        self.late: list[tuple[str, bytes]] = []

    def create(self, key: str, data: bytes) -> bool:
        if self.part in key:
            self.late.append((key, data))
            raise StoreUnavailable("the reply was lost")
        return self.store.create(key, data)

    def land(self) -> None:
        for key, data in self.late:
            self.store.create(key, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


@pytest.mark.parametrize("part", ["/log/", keys.REMOVED])
def test_a_removal_that_lands_late_never_removes_a_job_that_was_resumed(store: Store, part: str) -> None:
    job = submit(store)
    end(store, job)
    holding = Holding(store, part)
    with pytest.raises(StoreUnavailable):
        client.remove(job, holding)  # type: ignore[arg-type]
    assert holding.late
    try:
        client.resume(job, store)
        resumed = True
    except UserError as error:
        resumed = False
        assert f"`stoker rm {job}` finishes that" in str(error)
    holding.land()
    # What was asked for first in the log counts, and nothing else.
    assert resumed == (part == "/log/") == (not job_log.is_removed(store, job))
    if resumed:
        assert read(store, job).ended is None
        assert job in all_jobs(store)
    else:
        assert job_log.read(store, job) is None


def test_a_job_that_is_resumed_just_before_its_removal_is_not_removed(store: Store) -> None:
    job = submit(store)
    end(store, job)
    append(store, job, ResumeAsked(by="jane"))
    with pytest.raises(UserError, match="is active"):
        delete.remove_job(store, job)
    assert read(store, job).ended is None and not job_log.is_removed(store, job)


def test_a_resume_that_was_overtaken_by_the_removal_is_refused(store: Store) -> None:
    """Its number is free again: create-if-absent does not remember what was deleted."""
    job = submit(store)
    end(store, job)
    plan = prepare_resume(job, store)
    client.remove(job, store)
    with pytest.raises(UserError, match="removed meanwhile"):
        ask_to_resume(plan, store)
    assert job not in all_jobs(store)
