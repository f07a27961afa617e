"""Collectors beside submissions: nothing that a job relies on is deleted, however late a delete lands."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from stoker import client
from stoker.agent.fetch_code import fetch_code
from stoker.jobfile import Job
from stoker.maintenance.delete import collect_shared
from stoker.model import keys
from stoker.model.errors import StokerError, StoreUnavailable
from stoker.model.log_entries import Ended, Record
from stoker.model.node_config import NodePaths
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from stoker.store.find_job import all_jobs


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("pass")
    monkeypatch.chdir(tmp_path / "code")
    return open_store(str(tmp_path / "store"))


class Watched:
    """A store that calls back before and after each call, and may let deletes land later, or once more."""

    def __init__(self, store: Store, at: Callable[[str, str], None] = lambda when, key: None) -> None:
        self.store = store
        self.at = at
        self.deletes: list[str] = []

    def create(self, key: str, data: bytes) -> bool:
        self.at("before create", key)
        made = self.store.create(key, data)
        self.at("after create", key)
        return made

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for key in wanted:
            self.at("before delete", key)
        self.deletes += wanted
        self.store.delete(wanted)

    def land_once_more(self) -> None:
        self.store.delete(self.deletes)

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)


def submit(store: object) -> str:
    return client.submit(Job(run="python train.py"), store=store)  # type: ignore[arg-type]


def age(store: Store) -> None:
    """Make all code older than a day."""
    then = time.time() - 30 * 3600
    for meta in store.list(keys.CODE):
        path = Path(store.url.removeprefix("file://")) / meta.key
        os.utime(path, (then, then))


def remove(store: Store, job: str) -> None:
    state = job_log.read(store, job)
    assert state is not None
    ended = Record(job_log.new_token(), "t", "t", Ended(outcome="failed", rule="t"))
    assert job_log.append(store, job, state.seq + 1, ended)
    store.delete([keys.active(job, 1)])
    client.remove(job, store)


def assert_has_code(store: Store, job: str, tmp_path: Path) -> int:
    """As its machines fetch it. Answers the generation."""
    state = job_log.read(store, job)
    assert state is not None
    submission = job_index.read_submission(store, state)
    paths = NodePaths(tmp_path / f"node-{job}")
    paths.root.mkdir()
    fetch_code(store, state, submission, paths)
    assert (paths.code / "train.py").exists()
    assert submission.code is not None
    return submission.code.generation


def test_a_delete_that_lands_late_removes_nothing_that_a_later_job_relies_on(store: Store, tmp_path: Path) -> None:
    remove(store, submit(store))
    age(store)
    collector = Watched(store)
    assert collect_shared(collector, keys.CODE) == 1  # type: ignore[arg-type]
    job = submit(store)
    collector.land_once_more()
    assert assert_has_code(store, job, tmp_path) == 2
    age(store)
    assert collect_shared(store, keys.CODE) == 0


def test_what_is_given_up_between_the_upload_and_the_spec_is_sent_again(store: Store, tmp_path: Path) -> None:
    """The collector has read the jobs before the spec is there, and its delete lands when the job is submitted."""
    remove(store, submit(store))
    age(store)
    collector = Watched(store)
    begun = False

    def meanwhile(when: str, key: str) -> None:
        nonlocal begun
        if when == "before create" and key.endswith("spec.json") and not begun:
            begun = True
            assert collect_shared(collector, keys.CODE) == 1  # type: ignore[arg-type]

    job = submit(Watched(store, meanwhile))
    assert begun
    collector.land_once_more()
    assert assert_has_code(store, job, tmp_path) == 2
    assert all_jobs(store) == [job], "the first try left a job"


def test_a_collector_that_is_overtaken_by_a_submission_leaves_its_code(store: Store, tmp_path: Path) -> None:
    """The submission is done before the collector gives the name up; the collector has read the jobs already."""
    remove(store, submit(store))
    age(store)
    jobs: list[str] = []

    def meanwhile(when: str, key: str) -> None:
        if when == "before create" and key.startswith(keys.COLLECTED) and not jobs:
            jobs.append(submit(store))

    assert collect_shared(Watched(store, meanwhile), keys.CODE) == 0  # type: ignore[arg-type]
    assert assert_has_code(store, jobs[0], tmp_path) == 1
    # The name is given up all the same: the next job takes another one, and the first keeps its own.
    other = submit(store)
    assert assert_has_code(store, other, tmp_path) == 2
    age(store)
    assert collect_shared(store, keys.CODE) == 0
    remove(store, jobs[0])
    assert collect_shared(store, keys.CODE) == 1
    clone = client.clone(other, store=store, detach=True)
    assert assert_has_code(store, clone, tmp_path) == 2


def test_a_clone_of_a_job_whose_name_was_given_up_copies_its_code(store: Store, tmp_path: Path) -> None:
    job = submit(store)
    state = job_log.read(store, job)
    assert state is not None and state.code_digest is not None
    store.create(keys.collected(keys.CODE, state.code_digest), b"")
    assert assert_has_code(store, client.clone(job, store=store, detach=True), tmp_path) == 2
    age(store)
    assert collect_shared(store, keys.CODE) == 0, "the first job needs its own"


def test_a_write_that_lands_after_the_collection_is_collected(store: Store) -> None:
    remove(store, submit(store))
    (found,) = [store.get(meta.key) for meta in store.list(keys.CODE)]
    assert found is not None
    age(store)
    assert collect_shared(store, keys.CODE) == 1
    store.create(found.meta.key, found.data)
    assert collect_shared(store, keys.CODE) == 1, "however young it is"
    assert list(store.list(keys.CODE)) == []


def test_a_mark_whose_reply_was_lost_deletes_nothing(store: Store, tmp_path: Path) -> None:
    remove(store, submit(store))
    age(store)

    def fails(when: str, key: str) -> None:
        if when == "before create" and key.startswith(keys.COLLECTED):
            raise StoreUnavailable("the reply was lost")

    with pytest.raises(StoreUnavailable):
        collect_shared(Watched(store, fails), keys.CODE)  # type: ignore[arg-type]
    assert assert_has_code(store, submit(store), tmp_path) == 1


def test_a_submission_that_is_always_overtaken_says_so_and_leaves_nothing(store: Store) -> None:
    def meanwhile(when: str, key: str) -> None:
        if when == "after create" and key.endswith("spec.json"):
            for meta in store.list(keys.CODE):
                store.create(keys.collected(keys.CODE, meta.key.split("/")[1].partition(".")[0]), b"")

    with pytest.raises(StokerError, match="submit it once more"):
        submit(Watched(store, meanwhile))
    assert all_jobs(store) == [] and list(store.list(keys.JOBS)) == []
