"""`stoker.wait`: it governs until the job has ended and its machines are gone, with a guard beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker import client
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.model.log_entries import Ended, Record
from stoker.read.govern_while_following import RETIRE_S
from stoker.store import job_log
from stoker.store.base import Store, open_store


@dataclass
class World:
    """What the governor's passes do, one after another, and what was seen of it. Nothing is launched."""

    passes: list[Callable[[], object]] = field(default_factory=list)
    wake_in_s: float | None = None
    now: float = 100.0
    slept: list[float | None] = field(default_factory=list)
    guarded: list[str] = field(default_factory=list)

    def run_pass(self) -> World:
        if self.passes:
            self.passes.pop(0)()
        return self

    def sleep(self, wake_in_s: float | None) -> None:
        self.slept.append(wake_in_s)
        self.now += 1.0 if wake_in_s is None else wake_in_s
        assert len(self.slept) < 50, "it waits for ever"

    def job(self, job: str) -> None:
        self.guarded.append(job)

    def passed(self) -> None:
        self.guarded.append("passed")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    @contextmanager
    def guarding(_url: str) -> Iterator[World]:
        yield made

    monkeypatch.setattr(client, "Governor", lambda _store: made)
    monkeypatch.setattr(client, "guarding", guarding)
    monkeypatch.setattr(client.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def job(store: Store, world: World) -> str:
    return client.submit(Job(run="true", name="train"), store=store)


def end(store: Store, job: str) -> None:
    record = Record(token=job_log.new_token(), by="t", reason="done", event=Ended("succeeded", "finished"))
    assert job_log.append(store, job, 2, record)


def retire(store: Store, job: str) -> None:
    store.delete([keys.active(job, 1)])


def test_it_governs_until_the_job_has_ended_and_is_retired(store: Store, world: World, job: str) -> None:
    world.passes = [lambda: None, lambda: end(store, job), lambda: retire(store, job)]
    assert client.wait("train", store).phase == "succeeded"
    assert (world.passes, world.slept) == ([], [None, None]), "the governor says when it looks again"
    assert world.guarded == [job, "passed", "passed"], "the guard knows the job, and hears of each pass"


def test_machines_that_do_not_go_are_not_waited_for_for_ever(store: Store, world: World, job: str) -> None:
    end(store, job)
    assert client.wait(job, store).phase == "succeeded"
    assert world.now - 100.0 == RETIRE_S + 1.0


def test_machines_that_need_a_few_passes_to_go_are_waited_for(store: Store, world: World, job: str) -> None:
    world.passes = [lambda: end(store, job), *[lambda: None] * 4, lambda: retire(store, job)]
    assert client.wait(job, store).phase == "succeeded"
    assert world.passes == [], "it has seen that they are gone"


def test_a_time_out_is_told_and_never_slept_past(store: Store, world: World, job: str) -> None:
    with pytest.raises(TimeoutError, match=f"^{job} has not ended within 2.5 s$"):
        client.wait(job, store, 2.5)
    assert world.slept == [2.5]


def test_the_nearer_of_deadline_and_governors_look_is_slept_for(store: Store, world: World, job: str) -> None:
    world.wake_in_s = 2.0
    with pytest.raises(TimeoutError):
        client.wait(job, store, timeout=5.0)
    assert world.slept == [2.0, 2.0, 1.0]


def test_a_job_that_has_ended_in_time_is_no_time_out(store: Store, world: World, job: str) -> None:
    world.passes = [lambda: None, lambda: (end(store, job), retire(store, job))]
    assert client.wait(job, store, 1.0).phase == "succeeded"


def test_a_store_that_does_not_answer_is_asked_again(store: Store, world: World, job: str) -> None:
    def fails(error: Exception) -> Callable[[], object]:
        def fail() -> object:
            raise error

        return fail

    world.passes = [fails(StoreUnavailable("down")), lambda: (end(store, job), retire(store, job))]
    assert client.wait(job, store).phase == "succeeded"
    assert world.slept == [None] and world.guarded == [job, "passed"]
    world.passes = [fails(StoreDenied("not allowed"))]
    with pytest.raises(StoreDenied):
        client.wait(job, store)
