"""Jobs whose log makes no sense: the others are listed, and people can get rid of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker import client
from stoker.cli import main
from stoker.core.summary import summarize
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import read_daily_costs
from stoker.governor.observe import active_jobs
from stoker.jobfile import Job
from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.durations import span_text
from stoker.model.errors import Transient, UserError
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record
from stoker.model.offerings import Instance, Offering
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from stoker.store.job_index import IndexRecord

OFFERING = Offering("local", "here", "here", spot=False, price=2.0, on_demand_price=2.0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


def age(store: Store, job: str, hours: float) -> None:
    """Make what is there of a job's log that old."""
    for meta in store.list(keys.log_prefix(job)):
        path = Path(os.environ["STOKER_STORE"]) / meta.key
        then = datetime.now(timezone.utc).timestamp() - hours * 3600
        os.utime(path, (then, then))


def add(store: Store, *events: Event, name: str = "x") -> str:
    job = client.submit(Job(run="true", name=name), store=store)
    age(store, job, 4.0)
    for seq, event in enumerate(events, 2):
        assert job_log.append(store, job, seq, Record(token=job_log.new_token(), by="test", reason="test", event=event))
        path = Path(os.environ["STOKER_STORE"]) / keys.log_entry(job, seq)
        then = datetime.now(timezone.utc).timestamp() - (4 - seq * 0.5) * 3600
        os.utime(path, (then, then))
    return job


def spoil(store: Store, job: str, seq: int) -> None:
    store.put(keys.log_entry(job, seq), b"garbage")
    age(store, job, 3.0)


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0


def ran(*more: Event) -> tuple[Event, ...]:
    return (Claimed(offering=OFFERING, nodes=1), Launched(2, (NodeRef(0, "never-was"),)), *more)


def test_the_others_are_listed_and_the_bad_one_is_named(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = add(store, name="good"), add(store, name="bad")
    spoil(store, bad, 2)
    command("ps")
    told = capsys.readouterr()
    assert good in told.out and f"{bad} cannot be read" in told.err and "not a log entry" in told.err
    command("ps", "--json")
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == [good]


def test_it_can_be_removed_and_no_money_is_forgotten(store: Store) -> None:
    bad = add(store, *ran())
    state = job_log.read(store, bad)
    assert state is not None
    record = summarize(state, job_index.read_submission(store, state), {}, state.updated_at + timedelta(hours=1))
    job_index.write_index(store, IndexRecord(state, record))
    spoil(store, bad, 4)
    assert client.remove(bad, store) == bad
    assert bad not in active_jobs(store) and job_log.read(store, bad) is None
    assert sum(each.sums.spent.known for each in read_daily_costs(store, [keys.SPENT])) == pytest.approx(2.0)


def test_not_while_it_may_have_machines(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = add(store, *ran())
    store.create(keys.place("local", None), b"")
    spoil(store, bad, 4)
    provider = type(Fleet(store.url).provider("local"))
    alive = Instance("i-1", "local", bad, 2, 0, "running", datetime.now(timezone.utc))
    monkeypatch.setattr(provider, "list_instances", lambda *_: (alive,))
    with pytest.raises(UserError, match="has machines on local: i-1"):
        client.remove(bad, store)

    def silent(*_: object) -> None:
        raise Transient("no answer")

    monkeypatch.setattr(provider, "list_instances", silent)
    with pytest.raises(UserError, match="and its machines on local cannot be listed: no answer"):
        client.remove(bad, store)
    assert bad in active_jobs(store)
    monkeypatch.setattr(provider, "list_instances", lambda *_: ())
    store.put(keys.log_entry(bad, 4), b"garbage of just now")
    seconds = Fleet(store.url).capabilities("local").newborn_s
    assert seconds > 0
    with pytest.raises(UserError, match=f"may still show up; wait {span_text(seconds)}$"):
        client.remove(bad, store)
    age(store, bad, 3.0)
    assert client.remove(bad, store) == bad


def test_machines_of_others_and_those_that_are_gone_are_not_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = add(store, *ran())
    store.create(keys.place("local", None), b"")
    spoil(store, bad, 4)
    now = datetime.now(timezone.utc)
    listed = (
        Instance("i-1", "local", "another-bbbb", 2, 0, "running", now),
        Instance("i-2", "local", bad, 2, 0, "gone", now),
    )
    monkeypatch.setattr(type(Fleet(store.url).provider("local")), "list_instances", lambda *_: listed)
    assert client.remove(bad, store) == bad


def test_the_regions_of_its_last_record_are_looked_through_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Offering("local", "here", "here", spot=False, price=2.0, region="far")
    bad = add(store, Claimed(offering=there, nodes=1))
    state = job_log.read(store, bad)
    assert state is not None
    short = summarize(state, job_index.read_submission(store, state), {}, state.updated_at)
    job_index.write_index(store, IndexRecord(state, short))
    spoil(store, bad, 3)
    alive = Instance("i-1", "local", bad, 2, 0, "running", datetime.now(timezone.utc))
    asked: list[str | None] = []

    def listed(_self: object, region: str | None = None) -> tuple[Instance, ...]:
        asked.append(region)
        return (alive,) if region == "far" else ()

    monkeypatch.setattr(type(Fleet(store.url).provider("local")), "list_instances", listed)
    with pytest.raises(UserError, match="has machines on local far: i-1; end them"):
        client.remove(bad, store)
    assert "far" in asked


def test_one_that_left_no_record_and_one_without_a_spec_count_for_nothing(store: Store) -> None:
    for spec in (True, False):
        bad = add(store, *ran())
        if not spec:
            state = job_log.read(store, bad)
            assert state is not None
            short = summarize(state, job_index.read_submission(store, state), {}, state.updated_at)
            job_index.write_index(store, IndexRecord(state, short))
            store.delete([keys.spec(bad)])
        spoil(store, bad, 4)
        assert client.remove(bad, store) == bad
    assert read_daily_costs(store, [keys.SPENT]) == []


def test_the_index_is_rebuilt_for_the_others(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = add(store, name="good"), add(store, name="bad")
    spoil(store, bad, 1)
    done = reindex(store)
    assert set(done.problems) == {bad} and done.jobs == 1
    command("reindex")
    assert bad in capsys.readouterr().err
    assert job_index.read_index(store, good) is not None


def test_what_a_job_spent_is_written_before_it_is_removed(store: Store) -> None:
    closing = Closed(claim=2, outcome="succeeded", rule="finished")
    job = add(store, *ran(Ended(outcome="succeeded", rule="finished", claim=2, closing=closing)))
    store.delete([keys.active(job, marker) for marker in active_jobs(store)[job]])
    assert read_daily_costs(store, [keys.SPENT]) == []
    client.remove(job, store)
    assert sum(each.sums.spent.known for each in read_daily_costs(store, [keys.SPENT])) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("ask", [client.stop, client.resume])
def test_who_wants_something_of_it_hears_what_can_be_done(store: Store, ask: Callable[[str, Store], object]) -> None:
    bad = add(store)
    spoil(store, bad, 2)
    with pytest.raises(UserError, match=f"{bad} cannot be read: .*; `stoker rm {bad}` removes it"):
        ask(bad, store)
