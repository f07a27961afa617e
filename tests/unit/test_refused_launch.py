"""What goes wrong with a launch is told: by the job's end where it can never succeed, by its reason while it may."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker import Job, client
from stoker.cli import cli
from stoker.governor.loop import Governor
from stoker.model import keys
from stoker.model.errors import NoCapacity, QuotaExceeded, StoreDenied, Transient, UserError
from stoker.model.log_entries import Claimed, Closed, Launched, NodeRef, Record
from stoker.model.offerings import Instance
from stoker.model.resources import Resources
from stoker.policy import versions
from stoker.providers import registry
from stoker.providers.local.provider import LocalProvider
from stoker.store import job_log
from stoker.store.base import open_store

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that nobody has looked at yet."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.chdir(tmp_path)
    return client.submit(Job(name="x", run="true", code=str(tmp_path)), detach=False)


def test_a_request_that_cannot_be_built_is_told_and_not_looped_on(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("resources.image: there is no such image; choose another")

    monkeypatch.setattr(LocalProvider, "build", refuse)
    store = open_store(os.environ["STOKER_STORE"])
    for _ in range(2):
        Governor(store).run_pass()
    state = job_log.read(store, job)
    assert state is not None and state.ended is not None
    assert state.ended.outcome == "failed"
    assert "there is no such image" in client.summary(job).reason
    assert len(state.claims) == 1


def test_what_comes_of_a_launch_tells_the_rules_it_was_decided_by(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise NoCapacity("there is none")

    store = open_store(os.environ["STOKER_STORE"])
    kept = versions.write(store, "rules: [{max_nodes: 4}]", "jane")
    monkeypatch.setattr(LocalProvider, "launch", none)
    Governor(store).run_pass()
    closed = next(entry for entry in job_log.entries(store, job) if isinstance(entry.event, Closed))
    assert closed.policy == versions.policy_digest(kept)
    told = CliRunner().invoke(cli, ["explain", job]).stdout
    assert f"policy: version 1 ({closed.policy[:12]}), entries 2 to {closed.seq}" in told
    decisions = json.loads(CliRunner().invoke(cli, ["explain", job, "--json"]).stdout)["decisions"]
    assert (decisions[0]["policy"], decisions[0]["rule"]) == (None, None)
    last = next(each for each in decisions if each["seq"] == closed.seq)
    assert (last["rule"], last["policy"]) == ("no-capacity", closed.policy)


def test_what_may_pass_is_told_meanwhile(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Transient("no AWS credentials here")

    store = open_store(os.environ["STOKER_STORE"])
    with monkeypatch.context() as patch:
        patch.setattr(LocalProvider, "launch", fail)
        Governor(store).run_pass()
    assert client.summary(job).phase == "launching"
    assert "no AWS credentials here" in client.summary(job).reason


def test_a_quota_is_a_persons_at_first_and_its_own_machines_later(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an attempt hands over, its machines use what the next one needs."""

    def full(*_: object) -> None:
        raise QuotaExceeded("no more than 8 vCPUs")

    store = open_store(os.environ["STOKER_STORE"])
    offering = LocalProvider(registry.Context(store.url)).offerings(Resources())[0]
    events = [Claimed(offering, 1), Launched(2, (NodeRef(0, "i-2-0"),)), Closed(2, "reclaimed", "notice")]
    for seq, event in enumerate(events, start=2):
        assert job_log.append(store, job, seq, Record(job_log.new_token(), "test", "for the test", event))
    monkeypatch.setattr(LocalProvider, "launch", full)
    Governor(store).run_pass()
    state = job_log.read(store, job)
    assert state is not None and state.ended is None
    last = state.last_claim
    assert last is not None and last.closed is not None
    assert (last.closed.outcome, last.closed.rule) == ("dry", "QuotaExceeded")


def test_machines_of_a_job_removed_during_the_launch_are_given_back_where_deletes_are_refused(
    job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployed governor may not delete everything: its machines must not wait for that."""
    store = open_store(os.environ["STOKER_STORE"])
    terminated: list[str] = []

    def launch(_: object, requests: object) -> tuple[Instance, ...]:
        store.create(keys.removed(job), b"")
        return (Instance(id="i-1", provider="local", job=job, claim=2, rank=0, state="running", created_at=NOW),)

    def refuse(keys: object) -> None:
        raise StoreDenied("no permission to delete")

    monkeypatch.setattr(LocalProvider, "launch", launch)
    monkeypatch.setattr(LocalProvider, "terminate", lambda _self, instance, _region=None: terminated.append(instance))
    monkeypatch.setattr(store, "delete", refuse)
    Governor(store).run_pass()
    assert terminated == ["i-1"]
