"""What a governor looks at, in which order, and what it makes of answers that are missing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.summary import summarize
from stoker.governor import observe as observing
from stoker.governor.observe import (
    CloudListing,
    Memory,
    Observation,
    active_jobs,
    is_idle,
    known_places,
    list_clouds,
    observe,
)
from stoker.model import codec, keys
from stoker.model.errors import AuthDenied, NoSuchResource, StoreUnavailable, Transient, UserError, describe_error
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched
from stoker.model.node_facts import Exit, NoticeFact
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.resources import Resources
from stoker.model.submission import Submission
from stoker.providers.base import EndReason
from stoker.store import job_log, node_facts
from stoker.store.job_index import IndexRecord, write_index
from stoker.store.parallel import read_each
from tests.support.sim_data import ON_DEMAND, SPOT_A, SPOT_B, at, make_beat, make_spec, nodes

A, B = "a-aaaa", "b-bbbb"
SIM = ("sim", None)
RUNNING = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))
ENDED = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))


@pytest.fixture
def world() -> ScriptedWorld:
    return ScriptedWorld()


def machine(job: str = A, claim: int = 2, state: InstanceState = "running", rank: int = 0) -> Instance:
    return Instance(f"i-{claim}-{rank}", "sim", job, claim, rank, state, at(0))


def look(world: ScriptedWorld, memory: Memory | None = None, *, more: tuple[object, ...] = (SIM,)) -> Observation:
    memory = memory or Memory()
    markers = active_jobs(world.store)
    listing = list_clouds(world.store, world.fleet, memory, markers, more)  # type: ignore[arg-type]
    return observe(world.store, world.fleet, memory, markers, listing)


# ── Markers, places, lists ────────────────────────────────────────────────────────────────────────────────────────────


def test_markers_are_told_by_job_in_order_and_strange_keys_are_none(world: ScriptedWorld) -> None:
    for key in (
        keys.active(A, 12),
        keys.active(A, 2),
        keys.active(B, 1),
        keys.ACTIVE + "00000001",
        keys.ACTIVE + "c-cccc/x",
    ):
        world.store.put(key, b"")
    assert active_jobs(world.store) == {A: (2, 12), B: (1,)}


def test_a_store_is_idle_while_no_marker_has_a_log(world: ScriptedWorld) -> None:
    assert is_idle(world.store)
    world.store.put(keys.active(B, 1), b"")
    assert is_idle(world.store)
    world.submit(A)
    assert not is_idle(world.store)


def test_places_are_those_where_something_was_launched(world: ScriptedWorld) -> None:
    world.store.put(keys.place("ec2", "us-east-1"), b"")
    world.store.put(keys.place("local", None), b"")
    assert known_places(world.store) == {("ec2", "us-east-1"), ("local", None)}


def test_a_list_is_of_its_jobs_and_a_place_that_was_not_listed_is_unknown() -> None:
    mine, other, gone = machine(), machine(B, 3), machine("c-cccc", 4, "gone")
    listing = CloudListing({SIM: Known((mine, other, gone)), ("sim", "r1"): Unknown("throttled")})
    assert listing.of(A, [SIM]) == Known((mine,)) and listing.of(A, []) == Known(())
    assert listing.of(A, [SIM, ("sim", "r1")]) == Unknown("throttled")
    assert listing.of(A, [("gce", None)]) == Unknown("gce was not listed")
    assert listing.jobs() == {A, B}, "what is gone is no reason to look at a job"
    narrowed = listing.narrowed({B})
    assert narrowed.instances == {SIM: Known((other,)), ("sim", "r1"): Unknown("throttled")}


def test_every_place_of_a_job_is_listed_once(world: ScriptedWorld) -> None:
    there = replace(SPOT_B, region="r2")
    world.submit(A, Claimed(replace(SPOT_A, region="r1"), 1), Closed(2, "dry", "no-capacity"), Claimed(there, 1))
    world.submit(B, Claimed(there, 1))
    memory = Memory(states={job: world.state(job) for job in (A, B)})
    listing = list_clouds(world.store, world.fleet, memory, [A, B])
    assert listing.instances.keys() == {("sim", "r1"), ("sim", "r2")}
    assert sorted(world.cloud.called("list_instances")) == ["r1", "r2"]


def test_a_job_without_claims_is_looked_for_where_its_spec_says(world: ScriptedWorld) -> None:
    asked = Submission(A, replace(make_spec(), resources=Resources(provider="sim", region="r9")), "jane")
    world.submit(A)
    world.submit(B, *RUNNING)
    memory = Memory(states={job: world.state(job) for job in (A, B)}, submissions={A: asked, B: replace(asked, job=B)})
    assert list_clouds(world.store, world.fleet, memory, [A, B]).instances.keys() == {("sim", "r9"), SIM}
    del memory.states[A]
    assert list_clouds(world.store, world.fleet, memory, [A]).instances.keys() == {("sim", "r9")}


def test_what_is_not_remembered_is_read_from_the_index(world: ScriptedWorld) -> None:
    state = world.submit(A, *RUNNING)
    record = IndexRecord(state, summarize(state, Submission(A, make_spec(), "jane"), {}, at(0)))
    write_index(world.store, record)
    memory = Memory()
    assert list_clouds(world.store, world.fleet, memory, [A, B]).instances.keys() == {SIM}
    assert memory.states == {A: state} and memory.indexed == {A: record}


@pytest.mark.parametrize("error", [Transient("no answer"), UserError("not installed"), OSError("no route")])
def test_a_list_that_failed_is_unknown(world: ScriptedWorld, error: Exception) -> None:
    world.cloud.errors["list_instances"] = error
    listing = list_clouds(world.store, world.fleet, Memory(), [], [SIM])
    assert listing.instances == {SIM: Unknown(describe_error(error))}


def test_what_costs_nothing_to_list_is_listed_in_every_pass(world: ScriptedWorld) -> None:
    assert list_clouds(world.store, world.fleet, Memory(), []).instances == {}
    world.fleet.provider("sim")
    assert list_clouds(world.store, world.fleet, Memory(), []).instances == {}, "it is paid for"
    world.cloud.capabilities = replace(world.cloud.capabilities, paid=False)
    assert list_clouds(world.store, world.fleet, Memory(), []).instances == {SIM: Known(())}


def test_memory_keeps_only_what_is_named(world: ScriptedWorld) -> None:
    states = {job: world.submit(job) for job in (A, B)}
    told = {job: Submission(job, make_spec(), "jane") for job in (B, "c-cccc")}
    memory = Memory(states=states, submissions=told)
    memory.retain({A})
    assert memory.states.keys() == {A} and memory.submissions == {}
    memory.indexed[A] = IndexRecord(states[A], summarize(states[A], Submission(A, make_spec(), "jane"), {}, at(0)))
    memory.forget([A, "never-aaaa"])
    assert memory == Memory()


@pytest.mark.parametrize("is_local", [True, False])
def test_things_are_looked_at_in_order_and_side_by_side_only_where_the_store_is_far(is_local: bool) -> None:
    threads: set[int] = set()
    barrier = threading.Barrier(1 if is_local else 2, timeout=10)

    def seen(thing: int) -> int:
        threads.add(threading.get_ident())
        barrier.wait()
        return thing * 10

    assert read_each(seen, [1, 2], is_local=is_local) == [10, 20]
    assert (threads == {threading.get_ident()}) is is_local
    threads.clear()
    barrier = threading.Barrier(1)
    assert read_each(seen, [3], is_local=is_local) == [30] and threads == {threading.get_ident()}, "one needs no pool"
    assert read_each(seen, [], is_local=is_local) == []


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_with_a_marker_or_a_machine_are_observed_and_machines_without_a_log_are_strays(
    world: ScriptedWorld,
) -> None:
    world.submit(A, *RUNNING)
    world.submit(B, *RUNNING)
    world.store.delete([keys.active(B, 1)])
    stray, gone = machine("never-aaaa", 7), machine("never-aaaa", 8, "gone")
    world.cloud.machines = {each.id: each for each in (machine(), stray, gone)}
    found = look(world)
    assert [job.state.job for job in found.snapshot.jobs] == [A]
    assert found.snapshot.strays == (stray, gone) and found.problems == {}
    assert found.snapshot.newborn_s == {"sim": world.cloud.capabilities.newborn_s}
    (job,) = found.snapshot.jobs
    assert job.instances == Known((machine(),)) and job.states == Known({"i-2-0": "running"})
    assert job.markers == (1,) and job.offerings is None and not job.elsewhere


def test_a_job_that_cannot_be_read_keeps_no_other_from_being_governed(world: ScriptedWorld) -> None:
    world.submit(A)
    world.submit(B)
    world.store.put(keys.spec(A), b"{}")
    found = look(world)
    assert [job.state.job for job in found.snapshot.jobs] == [B] and found.problems.keys() == {A}
    assert found.snapshot.strays == ()


def test_a_spec_is_read_once(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit(A)
    memory, read = Memory(), observing.read_submission
    reads: list[str] = []

    def reading(store: object, state: JobState) -> Submission:
        reads.append(state.job)
        return read(store, state)  # type: ignore[arg-type]

    monkeypatch.setattr(observing, "read_submission", reading)
    look(world, memory)
    look(world, memory)
    assert reads == [A] and memory.states[A].seq == 1


def test_offerings_are_asked_for_only_where_a_claim_is_wanted(world: ScriptedWorld) -> None:
    world.submit(A, *RUNNING)
    world.cloud.machines = {"i-2-0": machine()}
    look(world)
    assert world.cloud.called("offerings") == []
    world.submit(B)
    jobs = {job.state.job: job for job in look(world).snapshot.jobs}
    assert jobs[B].offerings == Known((SPOT_A, SPOT_B, ON_DEMAND)) and jobs[A].offerings is None
    world.cloud.errors["offerings"] = AuthDenied("not allowed to ask for prices")
    jobs = {job.state.job: job for job in look(world).snapshot.jobs}
    assert jobs[B].offerings == Unknown("not allowed to ask for prices") and not jobs[B].no_offerings


def test_what_the_job_names_and_the_cloud_has_no_more_leaves_no_offerings(world: ScriptedWorld) -> None:
    world.submit(B)
    world.cloud.errors["offerings"] = NoSuchResource("cr-1 is expired")
    (job,) = look(world).snapshot.jobs
    assert (job.offerings, job.no_offerings) == (Known(()), "cr-1 is expired")
    # What a person could correct, or another governor knows better, keeps no job from being governed.
    world.cloud.errors["offerings"] = UserError("resources.machine: no such type")
    seen = look(world)
    assert seen.snapshot.jobs[0].offerings == Unknown("resources.machine: no such type") and not seen.problems


def test_spot_machines_outlive_a_reservation_that_is_over(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that prefers spot goes on there, whatever became of the reservation for the rest."""

    def offerings(wanted: Resources) -> tuple[Offering, ...]:
        if wanted.spot != "only":
            raise NoSuchResource("cr-1 is expired")
        return spot

    monkeypatch.setattr(world.cloud, "offerings", offerings)
    world.submit(B)
    spot: tuple[Offering, ...] = (SPOT_A, SPOT_B)
    (job,) = look(world).snapshot.jobs
    assert job.spec.resources.spot == "prefer"
    assert (job.offerings, job.no_offerings) == (Known(spot), "")
    spot = ()
    (job,) = look(world).snapshot.jobs
    assert (job.offerings, job.no_offerings) == (Known(()), "cr-1 is expired")


def test_what_is_on_offer_for_a_job_of_another_computer_is_unknown_here(world: ScriptedWorld) -> None:
    world.cloud.place = "here"  # type: ignore[attr-defined]
    world.submit(A)
    memory = Memory()
    memory.submissions[A] = Submission(A, make_spec(), "jane", place="there")
    (job,) = look(world, memory).snapshot.jobs
    assert isinstance(job.offerings, Unknown) and "a governor has to run there" in str(job.offerings)
    assert world.cloud.called("offerings") == []


@pytest.mark.parametrize(("for_s", "known"), [(60.0, {SPOT_A.key: at(5)}), (0.0, {})])
def test_what_any_job_found_dry_counts_where_that_means_something(
    world: ScriptedWorld, for_s: float, known: dict[str, object]
) -> None:
    world.cloud.capabilities = replace(world.cloud.capabilities, dry_for_s=for_s)
    world.cloud.now_s = 5.0
    world.store.put(keys.dry(SPOT_A.key), b"")
    world.store.put(keys.dry(replace(SPOT_A, provider="other").key), b"")
    world.submit(A)
    assert look(world).snapshot.jobs[0].dry == known


def test_markers_beyond_the_end_are_told_with_their_time(world: ScriptedWorld) -> None:
    world.submit(A, *RUNNING, ENDED)
    world.cloud.machines = {"i-2-0": machine(state="gone")}
    world.cloud.now_s = 30.0
    for marker in (3, 4, 5):
        world.store.put(keys.announcement(A, marker, "ab"), b"")
    assert look(world).snapshot.jobs[0].announced == {5: at(30)}, "the job ended with entry 4"
    assert observing._announced(world.store, world.state(A), (5, 9)) == {5: at(30)}, "9 is not there any more"
    world.submit(B)
    assert observing._announced(world.store, world.state(B), (1,)) == {}


# ── Machines ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def states(world: ScriptedWorld, *events: Event, listed: tuple[Instance, ...] = ()) -> object:
    return observing._states(world.fleet, world.submit(A, *events), CloudListing({SIM: Known(listed)}))


def test_machines_that_were_just_listed_as_running_are_not_asked_after(world: ScriptedWorld) -> None:
    two = (Claimed(SPOT_A, 2), Launched(2, nodes(2, 2)))
    world.cloud.machines = {"i-2-1": machine(rank=1, state="off")}
    listed = (machine(state="pending"), machine(rank=1, state="stopping"))
    assert states(world, *two, listed=listed) == Known({"i-2-0": "pending", "i-2-1": "off"})
    assert world.cloud.called("state") == [["i-2-1"]]


def test_nothing_is_asked_where_all_were_listed(world: ScriptedWorld) -> None:
    assert states(world, *RUNNING, listed=(machine(),)) == Known({"i-2-0": "running"})
    assert world.cloud.called("state") == []


def test_machines_of_closed_claims_are_asked_after_once_the_job_has_ended(world: ScriptedWorld) -> None:
    closed = (*RUNNING, Closed(2, "reclaimed", "notice", restart=True))
    assert states(world, *closed) == Known({})
    assert world.cloud.called("state") == []
    over = (*closed, Ended("stopped", "asked", None))
    found = observing._states(world.fleet, ScriptedWorld().submit(A, *over), CloudListing({SIM: Known(())}))
    assert found == Known({"i-2-0": "unheard-of"})


def test_machines_that_cannot_be_asked_after_are_unknown(world: ScriptedWorld) -> None:
    world.cloud.errors["state"] = Transient("no answer")
    assert states(world, *RUNNING) == Unknown("no answer")


def test_each_place_is_asked_after_its_own_machines(world: ScriptedWorld) -> None:
    here, there = replace(SPOT_A, region="r1"), replace(SPOT_A, region="r2")
    state = world.submit(
        A, Claimed(here, 1), Launched(2, nodes(2)), Claimed(there, 1), Launched(4, nodes(4)), spec=make_spec()
    )
    observing._states(world.fleet, state, CloudListing({}))
    assert world.cloud.called("state") == [["i-2-0"], ["i-4-0"]]


# ── Last words ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_states_are_asked_for_before_facts_are_read(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is gone by then has said its last word."""
    order: list[str] = []
    read, ask = node_facts.read_claim, world.cloud.state

    def reading(*args: object) -> object:
        order.append("facts")
        return read(*args)  # type: ignore[arg-type]

    def asking(*args: object) -> object:
        order.append("states")
        return ask(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(node_facts, "read_claim", reading)
    monkeypatch.setattr(world.cloud, "state", asking)
    world.submit(A, *RUNNING)
    look(world)
    assert order == ["states", "facts"]


def node_of(world: ScriptedWorld, state: InstanceState, why: EndReason | None = None, console: str = "") -> object:
    """The facts of a job's only machine, in this state."""
    world.submit(A, *RUNNING)
    world.cloud.machines = {"i-2-0": machine(state=state)}
    if why is not None:
        world.cloud.endings["i-2-0"] = why
    world.cloud.consoles["i-2-0"] = console
    ((found,),) = look(world).snapshot.jobs[0].facts.values()
    return found


RECLAIMED = EndReason(reclaimed=True, reason="spot reclaim")


@pytest.mark.parametrize(
    ("state", "asked"),
    [("gone", True), ("off", True), ("running", False), ("stopping", False), ("unheard-of", False)],
)
def test_a_cloud_is_asked_only_why_a_machine_is_off_or_gone(
    world: ScriptedWorld, state: InstanceState, asked: bool
) -> None:
    found = node_of(world, state, RECLAIMED)
    assert bool(world.cloud.called("end_reason")) is asked
    assert (found.notice != Known(None)) is asked  # type: ignore[attr-defined]


def test_a_machine_that_was_taken_away_quicker_than_its_agent_could_tell_has_a_hard_notice(
    world: ScriptedWorld,
) -> None:
    found = node_of(world, "gone", RECLAIMED)
    notice = found.notice.value.value  # type: ignore[attr-defined]
    assert isinstance(notice, NoticeFact) and notice.hard and notice.grace_s == 0.0 and notice.source == "spot reclaim"
    assert found.exit == Known(None)  # type: ignore[attr-defined]


def test_a_cloud_that_does_not_tell_why_leaves_the_console_to_tell(world: ScriptedWorld) -> None:
    world.cloud.errors["end_reason"] = Transient("no answer")
    found = node_of(world, "gone", RECLAIMED, "stoker: boot failed: no Python here\n")
    left = found.exit.value.value  # type: ignore[attr-defined]
    assert isinstance(left, Exit) and left.why == "boot" and "no Python here" in left.reason
    assert found.notice == Known(None)  # type: ignore[attr-defined]


def test_a_console_that_cannot_be_read_says_nothing(world: ScriptedWorld) -> None:
    world.cloud.errors["console"] = AuthDenied("not allowed to read it")
    assert node_of(world, "gone").exit == Known(None)  # type: ignore[attr-defined]
    world = ScriptedWorld()
    assert node_of(world, "gone", console="a long boot, and no failure").exit == Known(None)  # type: ignore[attr-defined]


def test_a_machine_that_left_its_exit_or_a_notice_needs_no_cloud_to_tell(world: ScriptedWorld) -> None:
    node = keys.node(A, 2, 0, keys.boot("i-2-0", 0))
    world.store.put(keys.heartbeat(node), codec.dumps(make_beat(1).value))
    world.store.put(keys.exit_(node), codec.dumps(Exit(outcome="succeeded", why="finished", at=at(3))))
    found = node_of(world, "gone", RECLAIMED, "stoker: boot failed: x")
    assert world.cloud.called("end_reason") == [] and world.cloud.called("console") == []
    assert found.exit.value.value.outcome == "succeeded"  # type: ignore[attr-defined]


def test_facts_are_as_they_are_where_no_state_is_known(world: ScriptedWorld) -> None:
    world.cloud.errors["state"] = Transient("no answer")
    world.submit(A, *RUNNING)
    (job,) = look(world).snapshot.jobs
    assert isinstance(job.states, Unknown) and world.cloud.called("end_reason") == []
    assert len(job.facts[2]) == 1


def test_a_store_that_does_not_answer_for_one_job_is_its_problem(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(A)
    read = job_log.read

    def reading(store: object, job: str, known: object = None) -> object:
        if job == A:
            raise StoreUnavailable("did not answer")
        return read(store, job, known)  # type: ignore[arg-type]

    monkeypatch.setattr(job_log, "read", reading)
    world.cloud.machines = {"i-2-0": machine()}
    found = look(world)
    assert "did not answer" in found.problems[A] and found.snapshot.strays == (), "nothing is known of its machines"
