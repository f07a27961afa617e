"""Things that machines leave beside them are removed once no claim needs them, and no sooner."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from scripted_cloud import ScriptedWorld

from stoker.governor.leftovers import sweep
from stoker.model.errors import AuthDenied, NotFound, StoreUnavailable, Transient
from stoker.model.log_entries import Claimed, Closed, Ended, Launched, StopAsked
from stoker.model.offerings import Leftover
from stoker.model.spec import Retry
from stoker.store import job_log
from tests.support.sim_data import SPOT_A, make_spec, nodes

PLACE = ("sim", "r1")
NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def world() -> ScriptedWorld:
    return ScriptedWorld()


def store_time() -> datetime:
    """The store's clock stands at noon."""
    return NOW


def disk(job: str, claim: int = 2, age_s: float | None = 3600.0) -> Leftover:
    born = None if age_s is None else NOW - timedelta(seconds=age_s)
    return Leftover("disk", f"disk-of-{job}-{claim}", "sim", job, claim, "r1", born)


CLOSED = (Claimed(SPOT_A, 1), Launched(2, nodes(2)), Closed(2, "reclaimed", "notice"))


def test_a_disk_of_a_closed_claim_is_removed_and_is_no_orphan(world: ScriptedWorld) -> None:
    world.submit("a-aaaa", *CLOSED)
    world.cloud.leftovers = [disk("a-aaaa")]
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert world.cloud.called("list_leftovers") == ["r1"]
    assert world.cloud.called("remove") == ["disk-of-a-aaaa-2"]
    assert [(each.id, why) for each, why in swept.found] == [("disk-of-a-aaaa-2", "its claim is closed: entry 4")]
    assert swept.orphans == [] and swept.problems == {}


def test_a_disk_of_an_open_claim_stays(world: ScriptedWorld) -> None:
    world.submit("a-aaaa", *CLOSED[:2])
    world.cloud.leftovers = [disk("a-aaaa")]
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert world.cloud.called("remove") == [] and swept.found == []


def test_disks_without_a_claim_are_orphans_once_they_are_not_newborn(world: ScriptedWorld) -> None:
    world.submit("a-aaaa")
    born_s = world.cloud.capabilities.newborn_s
    old, young, unknown = disk("a-aaaa", 2, born_s), disk("a-aaaa", 3, born_s - 1), disk("b-bbbb", 2, None)
    world.cloud.leftovers = [young, old, unknown]
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert world.cloud.called("remove") == [old.id, unknown.id]
    assert swept.orphans == [(old, "its claim is not in the log"), (unknown, "its job is not in the store")]
    assert swept.found == swept.orphans


def test_a_sweep_of_one_job_leaves_the_others_alone_and_a_dry_one_all(world: ScriptedWorld) -> None:
    world.cloud.leftovers = [disk("a-aaaa"), disk("b-bbbb")]
    dry = sweep(world.store, world.fleet, PLACE, store_time, dry=True)
    assert [each.job for each, _ in dry.found] == ["a-aaaa", "b-bbbb"]
    assert dry.orphans == [] and world.cloud.called("remove") == []
    swept = sweep(world.store, world.fleet, PLACE, store_time, "b-bbbb")
    assert [each.job for each, _ in swept.found] == ["b-bbbb"]
    assert world.cloud.called("remove") == ["disk-of-b-bbbb-2"]


def test_the_log_of_a_job_is_read_once_and_after_the_list(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, listed = [], []

    def reading(store: object, job: str) -> None:
        read.append(job)
        listed.append(len(world.cloud.called("list_leftovers")))

    monkeypatch.setattr(job_log, "read", reading)
    world.cloud.leftovers = [disk("a-aaaa", 2), disk("a-aaaa", 3), disk("b-bbbb")]
    sweep(world.store, world.fleet, PLACE, store_time)
    assert (read, listed) == (["a-aaaa", "b-bbbb"], [1, 1])


def test_a_list_that_failed_is_a_problem_of_the_provider(world: ScriptedWorld) -> None:
    world.cloud.leftovers = [disk("a-aaaa")]
    world.cloud.errors["list_leftovers"] = AuthDenied("not allowed to list")
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert swept.problems == {"sim": "not allowed to list"} and swept.found == []


def test_a_provider_whose_machines_leave_nothing_is_not_asked(world: ScriptedWorld) -> None:
    class Bare:
        capabilities = world.cloud.capabilities

    world.fleet._providers["sim"] = Bare()  # type: ignore[assignment]
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert (swept.found, swept.orphans, swept.problems) == ([], [], {})


def test_what_vanished_meanwhile_is_no_problem(world: ScriptedWorld) -> None:
    world.cloud.leftovers = [disk("a-aaaa"), disk("b-bbbb")]
    world.cloud.errors["remove"] = NotFound("no such disk")
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert swept.problems == {} and swept.orphans == []
    assert len(world.cloud.called("remove")) == 2, "the next one is tried all the same"


@pytest.mark.parametrize("error", [AuthDenied("no right to delete disks"), OSError("no right to delete disks")])
def test_what_cannot_be_removed_is_told_by_job(world: ScriptedWorld, error: Exception) -> None:
    world.cloud.leftovers = [disk("a-aaaa"), disk("b-bbbb")]
    world.cloud.errors["remove"] = error
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert swept.problems.keys() == {"a-aaaa", "b-bbbb"} and swept.orphans == []
    assert all("no right to delete disks" in text for text in swept.problems.values())


def test_a_log_that_cannot_be_read_removes_nothing(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("did not answer")

    monkeypatch.setattr(job_log, "read", away)
    world.cloud.leftovers = [disk("a-aaaa")]
    swept = sweep(world.store, world.fleet, PLACE, store_time)
    assert world.cloud.called("remove") == [] and "did not answer" in swept.problems["a-aaaa"]


# ── In use ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_use(world: ScriptedWorld) -> bool:
    """Whether a disk that the cloud holds to be in use is told as a problem."""
    world.cloud.leftovers = [disk("a-aaaa")]
    world.cloud.errors["remove"] = Transient("in use")
    problems = sweep(world.store, world.fleet, PLACE, store_time).problems
    assert problems in ({}, {"a-aaaa": "in use"})
    return bool(problems)


FAILED = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))


@pytest.mark.parametrize(
    ("hold_s", "more", "told"),
    [(7200.0, (), False), (60.0, (), True), (0.0, (), True), (7200.0, (StopAsked("jane"),), True)],
)
def test_the_disk_of_a_machine_held_for_a_look_is_no_problem_until_the_hold_ends(
    world: ScriptedWorld, hold_s: float, more: tuple[StopAsked, ...], told: bool
) -> None:
    world.cloud.now_s = 11.5 * 3600  # The job ended half an hour before noon.
    spec = replace(make_spec(), retry=Retry(hold_on_failure_s=hold_s))
    world.submit("a-aaaa", *CLOSED[:2], FAILED, *more, spec=spec)
    assert in_use(world) is told


def test_a_disk_in_use_is_told_where_no_hold_is_known(world: ScriptedWorld) -> None:
    assert in_use(world), "no log"
    world.submit("a-aaaa", *CLOSED)
    assert in_use(world), "the job goes on"


def test_a_disk_in_use_is_told_where_the_spec_cannot_be_read(world: ScriptedWorld) -> None:
    world.cloud.now_s = 11.5 * 3600
    spec = replace(make_spec(), retry=Retry(hold_on_failure_s=7200.0))
    world.submit("a-aaaa", *CLOSED[:2], FAILED, spec=spec)
    world.store.put("jobs/a-aaaa/spec.json", b"{}")
    assert in_use(world)
