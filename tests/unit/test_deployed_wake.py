"""A person's command where a governor is deployed: it is woken, and nobody else has to govern, save what only this
computer can see to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from woken_world import submit

from stoker import layout
from stoker.deploying import aws, record
from stoker.deploying.record import Deployed
from stoker.errors import AuthDenied
from stoker.governor import background
from stoker.governor.background import Governed, carry_on
from stoker.providers import registry
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.store import Store, open_store
from stoker.testing.memory import MemoryStore

DEPLOYED = Deployed("aws", "stoker-1", "us-east-1", door="stoker-1", digest="0" * 64, by="jane@desk")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stores that a governor was started for on this computer."""
    found: list[str] = []

    def start(url: str) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr(background, "ensure_governor", start)
    return found


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The jobs that the deployed governor was called for."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(record, "find", lambda _store: DEPLOYED)
    monkeypatch.setattr(aws, "wake", lambda _deployed, jobs: found.append(jobs))
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's machines are a cloud's."""
    monkeypatch.setattr(registry, "capabilities", lambda _name: replace(CAPABILITIES, here=False))


def test_the_deployed_governor_takes_it(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store, tmp_path)
    assert woken == [(job,)], "also where whoever submits means to govern: they may leave"
    elsewhere(monkeypatch)
    assert carry_on(store, [job]) == Governed(by="stoker-1 in us-east-1")
    assert woken == [(job,), (job,)] and started == []


def test_what_runs_here_is_governed_from_here(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background.Governor, "run_pass", lambda *_, **__: None)
    assert carry_on(store, [submit(store, tmp_path)]) == Governed()
    assert started == [store.url]


def test_a_governor_that_cannot_be_woken_is_told_and_replaced(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AuthDenied("lambda:InvokeFunction is not allowed")

    job = submit(store, tmp_path)
    elsewhere(monkeypatch)
    monkeypatch.setattr(aws, "wake", refuse)
    monkeypatch.setattr(background.Governor, "run_pass", lambda *_, **__: None)
    governed = carry_on(store, [job])
    assert governed.by is None and "lambda:InvokeFunction" in str(governed.problem)
    assert started == [store.url]


def test_a_record_that_makes_no_sense_is_no_governor() -> None:
    from datetime import datetime, timezone

    bucket = MemoryStore(clock=lambda: datetime.now(timezone.utc))
    for data in (b"", b"{", b"[]", b'{"cloud": "aws"}'):
        bucket.put(layout.deployed("aws"), data)
        assert record.read(bucket, "aws") is None
    record.write(bucket, DEPLOYED)
    assert record.read(bucket, "aws") == DEPLOYED
