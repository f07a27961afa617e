"""A person's command where a governor is deployed: it is woken, and nobody else has to govern, save what only this
computer can see to."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from pathlib import Path

import pytest
from woken_world import submit

from stoker import client
from stoker.cli import follow_and_govern, main
from stoker.cli.format import report_governor
from stoker.deploy import aws
from stoker.deploy.aws_entry_point import NAME as LAMBDA
from stoker.deploy.gcp_entry_point import NAME as CLOUD_RUN
from stoker.governor import background, deployment_record
from stoker.governor.background import GovernorChoice, ensure_governed, wake_deployed
from stoker.governor.deployment_record import DeploymentRecord
from stoker.governor.pass_record import record_pass
from stoker.model import keys
from stoker.model.errors import AuthDenied, StokerError, StoreUnavailable, UserError
from stoker.model.log_entries import Ended
from stoker.providers import registry
from stoker.providers.local.capabilities import CAPABILITIES
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import at

DEPLOYED = DeploymentRecord("aws", "stoker-1", "us-east-1", door="stoker-1", digest="0" * 64, by="jane@desk")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stores that a governor was started for on this computer."""
    found: list[str] = []

    def start(url: str) -> None:
        found.append(url)

    monkeypatch.setattr(background, "ensure_governor", start)
    return found


@pytest.fixture
def woken(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The jobs that the deployed governor was called for."""
    found: list[tuple[str, ...]] = []

    def call(_deployed: DeploymentRecord, jobs: tuple[str, ...]) -> None:
        found.append(jobs)
        record_pass(store, LAMBDA, 0, time.monotonic)

    monkeypatch.setattr(deployment_record, "find", lambda _store: DEPLOYED)
    monkeypatch.setattr(aws, "wake", call)
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's machines are a cloud's."""
    monkeypatch.setattr(registry, "capabilities", lambda _name: replace(CAPABILITIES, runs_locally=False))


def test_the_deployed_governor_takes_it(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store, tmp_path)
    assert woken == [(job,)], "also where whoever submits means to govern: they may leave"
    elsewhere(monkeypatch)
    assert ensure_governed(store, [job]) == GovernorChoice(by="stoker-1 in us-east-1")
    assert woken == [(job,), (job,)] and started == []


def test_where_others_govern_too_the_deployed_governor_is_called_and_not_waited_for(
    store: Store, tmp_path: Path, woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store, tmp_path)
    monkeypatch.setattr(deployment_record, "has_passed", lambda *_: pytest.fail("it is waited for"))
    assert wake_deployed(store, [job]) == GovernorChoice(by="stoker-1 in us-east-1")
    monkeypatch.setattr(deployment_record, "has_passed", lambda *_: False)
    assert "has done nothing" in str(wake_deployed(store, [job], relied_on=True).problem)


def test_what_runs_here_is_governed_from_here(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background.Governor, "run_pass", lambda *_, **__: None)
    assert ensure_governed(store, [submit(store, tmp_path)]) == GovernorChoice()
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
    governed = ensure_governed(store, [job])
    assert governed.by is None and "lambda:InvokeFunction" in str(governed.problem)
    assert started == [store.url]


def test_a_governor_that_is_called_and_does_nothing_is_told_and_replaced(
    store: Store, tmp_path: Path, started: list[str], woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cloud takes every call, and nothing comes of it."""
    job = submit(store, tmp_path)
    elsewhere(monkeypatch)
    monkeypatch.setattr(aws, "wake", lambda _deployed, _jobs: None)
    monkeypatch.setattr(deployment_record, "ANSWERS_WITHIN_S", 0.1)
    monkeypatch.setattr(background.Governor, "run_pass", lambda *_, **__: None)
    governed = ensure_governed(store, [job])
    assert governed.by is None and "stoker-1 in us-east-1 was called and has done nothing" in str(governed.problem)
    assert started == [store.url]


def test_what_it_may_not_pass_is_told_with_the_command(
    store: Store,
    tmp_path: Path,
    woken: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(deployment_record, "role_warning", lambda by, spec: f"{by.name} may not, for {spec.name}")
    elsewhere(monkeypatch)
    job = submit(store, tmp_path)
    name = job.rpartition("-")[0]
    governed = ensure_governed(store, [job])
    assert governed == GovernorChoice(by="stoker-1 in us-east-1", warning=f"stoker-1 may not, for {name}")
    report_governor(governed)
    assert capsys.readouterr().err == f"warning: stoker-1 may not, for {name}\n"


@pytest.mark.parametrize("error", [UserError, AuthDenied])
def test_a_persons_mistake_stays_one(
    store: Store, woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, error: type[StokerError]
) -> None:
    def refuse(*_: object) -> None:
        raise error("no profile is set")

    monkeypatch.setattr(aws, "wake", refuse)
    with pytest.raises(StokerError, match="stoker-1 could not be woken: no profile is set") as raised:
        deployment_record.wake(store, ["a-aaaa"])
    assert isinstance(raised.value, UserError) is issubclass(error, UserError)


@pytest.mark.parametrize("passes_after", [0, 2, 99])
def test_a_pass_is_waited_for_until_it_is_there_or_the_time_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch, passes_after: int
) -> None:
    record_pass(store, LAMBDA, 0, time.monotonic)
    before, slept = deployment_record.last_pass(store, "aws"), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == passes_after:
            record_pass(store, LAMBDA, 1, time.monotonic)

    if passes_after == 0:
        before = None
    monkeypatch.setattr(deployment_record.time, "sleep", sleep)
    monkeypatch.setattr(deployment_record.time, "monotonic", lambda: 1000.0 + sum(slept))
    assert deployment_record.has_passed(store, "aws", before, within_s=3.0) is (passes_after < 99)
    assert len(slept) == passes_after if passes_after < 99 else sum(slept) > 2.5


def test_a_store_that_does_not_answer_is_no_store_without_a_governor() -> None:
    bucket = MemoryStore(clock=lambda: at(0))
    deployment_record.write(bucket, DEPLOYED)
    away = bucket.client(lambda _operation, _key: Fault())
    with pytest.raises(StoreUnavailable):
        deployment_record.read(away, "aws")


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_each_cloud_has_a_module_that_wakes(cloud: str) -> None:
    facts = deployment_record.CLOUDS[cloud]
    assert callable(importlib.import_module(facts.module).wake)
    assert facts.external_jobs == facts.regional_events == (cloud == "aws"), "what Google's has no part of"
    assert facts.scheme == {"aws": "s3", "gcp": "gs"}[cloud]


def test_passes_are_looked_for_where_they_are_written() -> None:
    assert {cloud: each.governor for cloud, each in deployment_record.CLOUDS.items()} == {
        "aws": LAMBDA,
        "gcp": CLOUD_RUN,
    }


def test_stopping_and_resuming_from_python_wake_it(
    store: Store, tmp_path: Path, woken: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store, tmp_path)
    elsewhere(monkeypatch)
    client.stop(job, store)
    assert woken == [(job,)] * 2
    state = job_log.read(store, job)
    job_log.append_next(store, job, state, lambda _state: (Ended("stopped", "stop-asked"), "test"), "test")
    client.resume(job, store)
    assert woken == [(job,)] * 3


@pytest.mark.parametrize("words", [("stop",), ("resume",), ("resume", "-f")])
def test_commands_tell_that_it_could_not_be_woken(
    words: tuple[str, ...],
    store: Store,
    tmp_path: Path,
    started: list[str],
    woken: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = submit(store, tmp_path)
    if words[0] == "resume":
        state = job_log.read(store, job)
        job_log.append_next(store, job, state, lambda _state: (Ended("stopped", "stop-asked"), "test"), "test")

    def refuse(*_: object) -> None:
        raise AuthDenied("lambda:InvokeFunction is not allowed")

    monkeypatch.setattr(aws, "wake", refuse)
    monkeypatch.setattr(background.Governor, "run_pass", lambda *_, **__: None)
    monkeypatch.setattr(follow_and_govern, "follow_job", lambda *_, **__: 0)
    with pytest.raises(SystemExit) as left:
        main(["--store", store.url, words[0], job, *words[1:]])
    assert left.value.code == 0
    assert "stoker-1 could not be woken: lambda:InvokeFunction is not allowed" in capsys.readouterr().err


def test_a_record_that_makes_no_sense_is_no_governor() -> None:
    from datetime import datetime, timezone

    bucket = MemoryStore(clock=lambda: datetime.now(timezone.utc))
    for data in (b"", b"{", b"[]", b'{"cloud": "aws"}'):
        bucket.put(keys.deployed("aws"), data)
        assert deployment_record.read(bucket, "aws") is None
    deployment_record.write(bucket, DEPLOYED)
    assert deployment_record.read(bucket, "aws") == DEPLOYED
