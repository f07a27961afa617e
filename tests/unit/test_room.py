"""Jobs queue for a place that holds a bounded number of nodes: in submission order, without a claim that finds none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker import client
from stoker.core.decide import decide
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, JobSnapshot, Plan, Snapshot
from stoker.governor import background
from stoker.jobfile import Job
from stoker.model.errors import UserError
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, NodeRef, Submitted
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.resources import LocalResources, Resources
from stoker.providers.local.provider import LocalProvider
from stoker.providers.registry import Context
from stoker.store import job_log
from stoker.store.base import open_store
from tests.support.sim_data import at, make_snapshot, make_spec

HERE = Offering("sim", "m1", "a", spot=False, price=0.0, on_demand_price=0.0, most_nodes=1)
TWO = replace(HERE, most_nodes=2)


def state_of(job: str, submitted_s: float, *events: Event, after_s: float = 100.0) -> JobState:
    all_events = [Submitted(spec_digest="0" * 64, submitter="jane"), *events]
    log = [
        Entry(seq=n, at=at(submitted_s if n == 1 else after_s), reason="because", event=event)
        for n, event in enumerate(all_events, start=1)
    ]
    state = fold(job, log)
    assert state is not None
    return state


def waits(job: str, submitted_s: float, *events: Event, nodes: int = 1, offering: Offering = HERE) -> JobSnapshot:
    spec = replace(make_spec(nodes), resources=Resources(provider="sim", spot="never"))
    return make_snapshot(state_of(job, submitted_s, *events), spec=spec, offerings=Known((offering,)))


def machine(job: str, claim: int = 2, state: InstanceState = "running") -> Instance:
    return Instance(f"{job}-{claim}-0", "sim", job, claim, 0, state, at(0), zone="a")


def runs(job: str, submitted_s: float = 0.0, *, listed: bool = True) -> JobSnapshot:
    claimed = (Claimed(offering=HERE, nodes=1), Launched(2, (NodeRef(0, f"{job}-2-0"),)))
    found: Observed[tuple[Instance, ...]] = Known((machine(job),) if listed else ())
    return make_snapshot(
        state_of(job, submitted_s, *claimed),
        spec=make_spec(1),
        instances=found,
        states={f"{job}-2-0": "running"},
        offerings=None,
    )


def claimed_by(plan: Plan) -> list[str]:
    return [action.job for action in plan.actions if isinstance(action, Append) and isinstance(action.event, Claimed)]


def test_the_first_that_was_submitted_is_the_first_to_be_claimed() -> None:
    jobs = (waits("a", 30.0), waits("b", 10.0), waits("c", 20.0))
    plan = decide(Snapshot(jobs), DEFAULT, at(100))
    assert claimed_by(plan) == ["b"]
    assert plan.waiting == {
        "c": "no room yet: 1 of at most 1 node is in use by b (resources.sim.capacity)",
        "a": "no room yet: 1 of at most 1 node is in use by b (resources.sim.capacity); 1 job is ahead of it",
    }


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "named by the log alone"])
def test_a_full_place_is_not_asked(listed: bool) -> None:
    plan = decide(Snapshot((runs("first", listed=listed), waits("b", 10.0))), DEFAULT, at(100))
    assert claimed_by(plan) == []
    assert "in use by first" in plan.waiting["b"]


def test_a_claim_whose_launch_is_under_way_takes_room() -> None:
    launching = make_snapshot(
        state_of("first", 0.0, Claimed(offering=HERE, nodes=1), after_s=99.0), spec=make_spec(1), offerings=None
    )
    assert claimed_by(decide(Snapshot((launching, waits("b", 10.0))), DEFAULT, at(100))) == []


def test_a_machine_that_still_stops_takes_room_and_one_that_is_gone_does_not() -> None:
    for state, expected in (("stopping", []), ("gone", ["b"])):
        over = state_of("first", 0.0, Claimed(offering=HERE, nodes=1), Launched(2, (NodeRef(0, "first-2-0"),)))
        ended = make_snapshot(
            replace(over, ended=None),
            spec=make_spec(1),
            instances=Known((machine("first", state="stopping"),)),
            states={"first-2-0": state},  # type: ignore[dict-item]
            offerings=None,
        )
        plan = decide(Snapshot((ended, waits("b", 10.0))), DEFAULT, at(100))
        assert [job for job in claimed_by(plan) if job == "b"] == expected, state


def test_nothing_overtakes_a_job_that_needs_more_nodes() -> None:
    jobs = (runs("first"), waits("pair", 10.0, nodes=2, offering=TWO), waits("single", 20.0, offering=TWO))
    assert claimed_by(decide(Snapshot(jobs), DEFAULT, at(100))) == []


def test_a_launch_that_found_no_room_keeps_its_place_and_is_tried_again_soon() -> None:
    lost = (Claimed(offering=HERE, nodes=1), Closed(claim=2, outcome="dry", rule="no-capacity", restart=True))
    again = (Claimed(offering=HERE, nodes=1), Closed(claim=4, outcome="dry", rule="no-capacity", restart=True))
    many = (Claimed(offering=HERE, nodes=1), Closed(claim=6, outcome="dry", rule="no-capacity", restart=True))
    jobs = (waits("first", 0.0, *lost, *again, *many), waits("b", 10.0))
    plan = decide(Snapshot(jobs), DEFAULT, at(101))
    assert claimed_by(plan) == []
    assert plan.wake_at == at(102), "the pause does not double"
    assert claimed_by(decide(Snapshot(jobs), DEFAULT, at(102))) == ["first"]


def test_a_second_look_at_one_job_of_a_pass_knows_the_queue() -> None:
    first, later = waits("first", 0.0), waits("later", 10.0)
    assert claimed_by(decide(Snapshot((later,), partial=True, others=(first, later)), DEFAULT, at(100))) == []
    # Nothing is decided about the others.
    plan = decide(Snapshot((first,), partial=True, others=(first, later)), DEFAULT, at(100))
    assert (claimed_by(plan), plan.waiting) == (["first"], {})


def test_a_look_that_does_not_know_the_queue_claims_nothing_bounded() -> None:
    plan = decide(Snapshot((waits("b", 10.0),), partial=True, others=None), DEFAULT, at(100))
    assert claimed_by(plan) == []
    unbounded = waits("c", 10.0, offering=replace(HERE, most_nodes=None))
    assert claimed_by(decide(Snapshot((unbounded,), partial=True, others=None), DEFAULT, at(100))) == ["c"]


def test_a_job_that_cannot_be_placed_for_another_reason_is_in_nobodys_way() -> None:
    blocked = replace(waits("first", 0.0), offerings=Unknown("no answer"))
    assert claimed_by(decide(Snapshot((blocked, waits("b", 10.0))), DEFAULT, at(100))) == ["b"]


def test_claims_at_another_computer_take_no_room_here() -> None:
    elsewhere = replace(runs("far", listed=False), elsewhere=True, states=Unknown("another computer"))
    assert claimed_by(decide(Snapshot((elsewhere, waits("b", 10.0))), DEFAULT, at(100))) == ["b"]


def test_an_ended_job_takes_no_room() -> None:
    over = state_of("first", 0.0, Ended(outcome="stopped", rule="stop", claim=None))
    assert claimed_by(decide(Snapshot((make_snapshot(over), waits("b", 10.0))), DEFAULT, at(100))) == ["b"]


def test_nodes_that_never_fit_are_refused() -> None:
    local = Resources(provider="local", local=LocalResources(capacity=2))
    provider = LocalProvider(Context("file:///nowhere"))
    provider.check(replace(make_spec(2), resources=local))
    with pytest.raises(UserError, match=r"nodes: 3 never fit into resources.local.capacity, which is 2"):
        provider.check(replace(make_spec(3), resources=local))


def test_a_detached_job_with_room_is_launched_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the next tick of a governor that sleeps."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(background, "ensure_governor", lambda _url: None)
    monkeypatch.setattr(LocalProvider, "launch", lambda _self, _requests: ())
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    store = open_store(str(tmp_path / "store"))
    spec = Job(run="python train.py", resources={"local": {"capacity": 1}})
    first, second = (client.submit(spec, store=store, detach=True) for _ in range(2))
    states = [job_log.read(store, job) for job in (first, second)]
    assert [len(state.claims) if state is not None else None for state in states] == [1, 0]
