"""`retry.hold_on_failure`: a failed machine is kept for a look, that long and no longer, and paid for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from plain_store import wait_for

from stoker import client
from stoker.agent import hold as staying
from stoker.cli import main
from stoker.cli.job_report import held_text, job_text
from stoker.core.costs import claim_cost, job_cost
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import LEAVE_S, hold_of, is_held
from stoker.core.longest_life import longest_life_s
from stoker.core.snapshot import JobSnapshot, Terminate, Unmark
from stoker.core.summary import Summary, summarize
from stoker.governor import background
from stoker.jobfile import check_honoured
from stoker.model import codec, keys
from stoker.model.errors import SpecError, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Ended,
    Event,
    Launched,
    Record,
    ResumeAsked,
    StopAsked,
    Submitted,
)
from stoker.model.node_facts import Exit, NodeFacts
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance, InstanceState, Offering
from stoker.model.spec import Limits, Retry, Spec
from stoker.model.submission import Submission
from stoker.providers import registry
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import (
    SPOT_A,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_instance,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

HOLD_S = 600.0
CLAIM = Claimed(SPOT_A, 1)
FAILED = Closed(2, "failed", "user-error", exit_code=1)
# Submitted at 0, claimed at 10, launched at 20, ended at 30.
END_S = 30.0


def held_spec(hold_s: float = HOLD_S, nodes: int = 1, **limits: float) -> Spec:
    return replace(make_spec(nodes, limits=Limits(**limits)), retry=Retry(hold_on_failure_s=hold_s))


def ended(outcome: str = "failed", rule: str = "user-error", claim: int | None = 2) -> Ended:
    return Ended(outcome, rule, claim, closing=replace(FAILED, rule=rule))  # type: ignore[arg-type]


def over(*more: Event, end: Ended | None = None, nodes_: int = 1, offering: Offering = SPOT_A) -> JobState:
    """A job whose only attempt ended it, and what came after."""
    return make_state(Claimed(offering, nodes_), Launched(2, nodes(2, nodes_)), end or ended(), *more)


# ── What is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_failed_attempt_is_kept_from_its_end() -> None:
    hold = hold_of(over(), held_spec())
    assert hold is not None and hold.claim == 2
    assert (hold.since, hold.until, hold.ends_at) == (at(END_S), at(END_S + HOLD_S), at(END_S + HOLD_S + LEAVE_S))


@pytest.mark.parametrize(
    "state",
    [
        make_state(CLAIM, Launched(2, nodes(2))),
        over(end=ended("succeeded", "finished")),
        over(end=ended("stopped", "stop")),
        over(end=ended("failed", "restore")),
        over(end=ended("failed", "boot-failed")),
        over(end=ended("failed", "max_runtime")),
        over(end=ended("failed", "notice")),
        over(end=ended(claim=None)),
        over(end=ended(claim=99)),
        make_state(CLAIM, ended()),
        over(StopAsked(by="jane")),
        over(ResumeAsked(by="jane")),
    ],
    ids=[
        "runs",
        "succeeded",
        "stopped",
        "unrestorable",
        "never booted",
        "at a bound",
        "reclaimed",
        "no claim",
        "an unknown claim",
        "no machine",
        "given back",
        "resumed",
    ],
)
def test_nothing_else_is(state: JobState) -> None:
    assert hold_of(state, held_spec()) is None


def test_only_where_the_spec_asks() -> None:
    assert hold_of(over(), held_spec(0.0)) is None
    assert hold_of(over(), make_spec()) is None


def test_a_hold_past_the_end_of_the_calendar_is_no_error() -> None:
    assert hold_of(over(), held_spec(1e300)) is not None


def test_only_the_machines_that_the_log_names() -> None:
    state, spec = over(), held_spec()
    assert is_held(state, spec, "i-2-0", at(100))
    assert not is_held(state, spec, "i-2-0-twin", at(100))
    assert not is_held(state, spec, "i-2-0", at(END_S + HOLD_S + LEAVE_S))


# ── Money ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cost_bound_ends_it() -> None:
    dear = replace(SPOT_A, price=3600.0)  # A dollar a second: ten were spent from launch to end.
    hold = hold_of(over(offering=dear), held_spec(max_cost=200.0))
    assert hold is not None and hold.longest_s == pytest.approx(200 - 10 - LEAVE_S)
    assert hold_of(over(offering=dear), held_spec(max_cost=70.0)) is None
    both = hold_of(over(offering=dear, nodes_=2), held_spec(max_cost=200.0))
    assert both is not None and both.longest_s == pytest.approx((200 - 20) / 2 - LEAVE_S)
    cheap = hold_of(over(offering=replace(SPOT_A, price=0.0)), held_spec(max_cost=1.0))
    assert cheap is not None and cheap.longest_s == HOLD_S


def test_what_cannot_be_bounded_is_not_held() -> None:
    assert hold_of(over(offering=replace(SPOT_A, price=None)), held_spec(max_cost=200.0)) is None
    assert hold_of(over(offering=replace(SPOT_A, price=None)), held_spec()) is not None


def test_held_hours_are_paid_for() -> None:
    state = over(offering=replace(SPOT_A, price=2.0, on_demand_price=4.0))
    (claim,) = state.claims
    before = claim_cost(claim, at(1000))
    after = claim_cost(claim, at(1000), held_h=0.5)
    assert before.spent is not None and before.on_demand is not None
    assert (after.spent, after.on_demand) == (before.spent + 1.0, before.on_demand + 2.0)
    assert job_cost(state, at(1000), held_h={2: 0.5}).spent == after.spent


def test_the_longest_life_leaves_room_for_it() -> None:
    spec = held_spec(max_runtime_s=1000.0)
    without = longest_life_s(replace(spec, retry=Retry()))
    assert without is not None and longest_life_s(spec) == without + HOLD_S
    assert longest_life_s(held_spec()) is None


# ── The governor ──────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(
    state: JobState, *instances: Instance, states: dict[str, InstanceState] | None = None, spec: Spec | None = None
) -> JobSnapshot:
    """The ended job as a governor sees it; its machine runs unless it is said otherwise."""
    listed = instances or (make_instance(2),)
    return make_snapshot(
        state,
        spec=spec or held_spec(),
        instances=Known(listed),
        states=states or {i.id: i.state for i in listed},
    )


def does(job: JobSnapshot, now_s: float) -> list[str]:
    """Whom it ends, and whether it forgets the job."""
    told = {Terminate: lambda action: action.instance, Unmark: lambda _: "forgotten"}
    return [told[type(action)](action) for action in decide_job(job, DEFAULT, at(now_s)).actions]


def test_a_held_machine_is_left_alone_until_its_time_and_ended_after() -> None:
    job = watched(over())
    for now_s in (END_S, END_S + HOLD_S, END_S + HOLD_S + LEAVE_S - 1):
        plan = decide_job(job, DEFAULT, at(now_s))
        assert plan.actions == ()
        assert plan.wake_at == at(END_S + HOLD_S + LEAVE_S)
        assert "held for a look until 2026-01-01 00:10:30 UTC" in plan.waiting["job-1"]
    assert does(job, END_S + HOLD_S + LEAVE_S) == ["i-2-0"]


def test_without_a_hold_it_is_ended_at_once() -> None:
    assert does(watched(over(), spec=make_spec()), END_S) == ["i-2-0"]


def test_a_person_gives_it_back_or_resumes() -> None:
    assert does(watched(over(StopAsked(by="jane"))), 100) == ["i-2-0"]
    resumed = watched(over(ResumeAsked(by="jane")))
    assert "i-2-0" in [a.instance for a in decide_job(resumed, DEFAULT, at(100)).actions if isinstance(a, Terminate)]


def test_once_it_is_gone_the_job_is_forgotten_whatever_time_was_left() -> None:
    assert does(watched(over(), make_instance(2, state="gone")), 100) == ["forgotten"]


def test_a_machine_that_is_gone_is_not_kept_by_a_list_that_lags() -> None:
    assert does(watched(over(), make_instance(2), states={"i-2-0": "gone"}), 100) == ["i-2-0"]


def test_unknown_keeps_and_ends_nothing() -> None:
    job = replace(watched(over()), instances=Unknown("no answer"), states=Unknown("no answer"))
    assert does(job, 100) == []
    assert does(job, END_S + 2 * HOLD_S) == []


def test_other_machines_of_the_job_are_ended_all_the_same() -> None:
    twin = replace(make_instance(2), id="i-2-0-twin")
    first = [CLAIM, Launched(2, nodes(2)), Closed(2, "lost", "gone", restart=True)]
    again = make_state(*first, CLAIM, Launched(5, nodes(5)), replace(ended(claim=5), closing=replace(FAILED, claim=5)))
    job = watched(again, make_instance(2), make_instance(5), replace(twin, id="i-5-0-twin", claim=5))
    assert does(job, 100) == ["i-2-0", "i-5-0-twin"]


def test_a_failure_that_is_tried_again_holds_nothing() -> None:
    closed = replace(FAILED, restart=True, counted=True)
    job = watched(make_state(CLAIM, Launched(2, nodes(2)), closed))
    assert does(replace(job, offerings=None), 100) == ["i-2-0"]


# ── What is told ──────────────────────────────────────────────────────────────────────────────────────────────────────


def short(state: JobState, now_s: float, *facts: NodeFacts, spec: Spec | None = None) -> Summary:
    spec = spec or held_spec()
    return summarize(state, Submission("job-1", spec, "jane"), {2: facts}, at(now_s))


def left(rank: int = 0, *, beat_s: float, outcome: str = "failed", phase: str = "held") -> NodeFacts:
    why = "finished" if outcome == "failed" else "peer"
    return make_facts(2, rank, beat=make_beat(beat_s, phase), left=make_exit(outcome, why, at_s=END_S))  # type: ignore[arg-type]


def test_show_tells_what_is_held_until_when_and_what_it_costs() -> None:
    found = short(over(nodes_=2), 330.0, left(0, beat_s=325.0), left(1, beat_s=29.0, outcome="interrupted"))
    assert found.held is not None
    assert (found.held.until, found.held.instances, found.held.price) == (at(END_S + HOLD_S), ("i-2-0",), 1.0)
    assert [node.phase for node in found.attempts[0].nodes] == ["held", "exited"]
    text = held_text(found.held, at(330.0))
    assert "i-2-0 until" in text and "(5m 00s left) at $1.00/h" in text and "stoker stop" in text
    assert "i-2-0 until" in job_text(found)


def test_the_cost_grows_while_it_is_held_and_not_after() -> None:
    ran = 10 / 3600
    assert short(over(), 330.0, left(beat_s=325.0)).cost == pytest.approx(ran + 300 / 3600)
    # Nobody was heard for a minute: it was ended when it was last heard of.
    gone = short(over(), 5000.0, left(beat_s=130.0))
    assert gone.cost == gone.attempts[0].cost == pytest.approx(ran + 100 / 3600)
    assert gone.held is None and gone.attempts[0].nodes[0].phase == "exited"
    never = short(over(), 330.0, left(beat_s=29.0, phase="flushing"))
    assert never.cost == pytest.approx(ran)


def test_nothing_is_held_that_is_over_given_back_or_silent() -> None:
    assert short(over(), END_S + HOLD_S, left(beat_s=END_S + HOLD_S - 1)).held is None
    assert short(over(StopAsked(by="jane")), 100.0, left(beat_s=99.0)).held is None
    assert short(over(), 330.0, left(beat_s=200.0)).held is None
    assert short(over(), 330.0).held is None
    assert short(over(), 100.0, left(beat_s=99.0), spec=make_spec()).held is None


# ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("exit_", "may"),
    [
        (make_exit("failed", "finished", code=1), True),
        (make_exit("failed", "setup", code=2), True),
        (make_exit("failed", "restore"), False),
        (make_exit("failed", "finished", evidence=("oom",)), False),
        (make_exit("interrupted", "notice"), False),
        (make_exit("interrupted", "stop"), False),
        (make_exit("infrastructure", "setup"), False),
        (make_exit("succeeded", "finished"), False),
    ],
    ids=lambda value: f"{value.outcome}-{value.why}" if isinstance(value, Exit) else "",
)
def test_what_may_be_worth_a_look(exit_: Exit, may: bool) -> None:
    assert staying.may_hold(exit_, held_spec()) is may
    assert not staying.may_hold(exit_, make_spec())
    assert not staying.may_hold(exit_, None)


class Stay:
    """An agent that stays, in a thread of its own, and what it reads of the log."""

    def __init__(self, spec: Spec, state: JobState | None) -> None:
        self.state = state
        self.signalled = False
        self.wake = threading.Event()
        self.over = ""
        self._thread = threading.Thread(target=self._run, args=(spec,), daemon=True)
        self._thread.start()

    def _run(self, spec: Spec) -> None:
        self.over = staying.hold_machine(spec, 2, lambda: self.state, lambda: self.signalled, self.wake)

    @property
    def there(self) -> bool:
        return self._thread.is_alive()

    def left(self) -> str:
        self.wake.set()
        self._thread.join(30)
        assert not self.there
        return self.over


RUNNING = make_state(CLAIM, Launched(2, nodes(2)))


@pytest.mark.parametrize(
    "verdict",
    [
        over(StopAsked(by="jane")),
        over(ResumeAsked(by="jane")),
        over(end=ended("failed", "max_cost")),
        over(end=ended("succeeded", "finished")),
        make_state(CLAIM, Launched(2, nodes(2)), StopAsked(by="jane")),
        make_state(CLAIM, Launched(2, nodes(2)), replace(FAILED, restart=True)),
        make_state(CLAIM, Launched(2, nodes(2)), Closed(2, "infrastructure", "killed", restart=True)),
    ],
    ids=["given back", "resumed", "at a bound", "succeeded", "stop asked", "tried again", "infrastructure"],
)
def test_it_stays_for_the_verdict_and_leaves_if_that_keeps_no_machine(verdict: JobState) -> None:
    stay = Stay(held_spec(), RUNNING)
    time.sleep(0.05)
    assert stay.there
    stay.state = over()
    time.sleep(0.05)
    stay.wake.set()
    time.sleep(0.05)
    assert stay.there, "the verdict is the one that keeps it"
    stay.state = verdict
    assert stay.left() == "no job keeps the machine"


def test_it_waits_again_after_each_look() -> None:
    stay = Stay(held_spec(), over())
    for _ in range(2):
        stay.wake.set()
        wait_for(lambda: not stay.wake.is_set())
    assert stay.there
    stay.signalled = True
    stay.left()


def test_it_leaves_when_the_machine_is_shut_down() -> None:
    stay = Stay(held_spec(), over())
    stay.signalled = True
    assert "shut down" in stay.left()


@pytest.mark.parametrize("state", [None, RUNNING, over()], ids=["nothing read", "not judged", "held"])
def test_it_stays_no_longer_than_the_spec_says(state: JobState | None) -> None:
    began = time.monotonic()
    assert "the hold is over" in Stay(held_spec(0.3), state).left()
    assert time.monotonic() - began >= 0.3


def test_its_time_begins_with_the_verdict() -> None:
    stay = Stay(held_spec(1.5), RUNNING)
    time.sleep(1.0)
    judged = time.monotonic()
    stay.state = over()
    assert stay.left() == "the hold is over"
    assert time.monotonic() - judged >= 1.4


def test_it_stays_no_longer_than_the_money_lasts() -> None:
    dear = over(offering=replace(SPOT_A, price=3600.0))
    assert Stay(held_spec(max_cost=10 + LEAVE_S + 0.2), dear).left() == "the hold is over"


# ── The person ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(background, "ensure_governed", lambda _store, _jobs: background.GovernorChoice())
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        told = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, told.out + told.err

    return run


def put_job(store: Store, spec: Spec, *events: Event) -> str:
    """A job in the store, whose machines nobody asks after."""
    spec = replace(spec, resources=replace(spec.resources, provider="ec2"))
    data = codec.dumps(Submission("sim-0001", spec, "jane"))
    store.put(keys.spec("sim-0001"), data)
    store.put(keys.active("sim-0001", 1), b"")
    for seq, event in enumerate([Submitted(codec.digest(data), "jane"), *events], 1):
        record = Record(token=job_log.new_token(), by="t", reason="it broke", event=event)
        assert job_log.append(store, "sim-0001", seq, record)
    return "sim-0001"


ENDED = (CLAIM, Launched(2, nodes(2)), ended())


@dataclass(frozen=True)
class Passed:
    """What a governor's pass answers, as far as `wait` asks."""

    wake_in_s: float | None


def test_stop_gives_a_held_machine_back(store: Store, stoker: Callable[..., tuple[int, str]]) -> None:
    job = put_job(store, held_spec(), *ENDED)
    code, told = stoker("stop", job)
    assert code == 0 and "had ended already; its machine is given back" in told
    state = job_log.read(store, job)
    assert state is not None and state.stop is not None and state.ended is not None
    assert "given back by" in state.stop.reason
    assert client.summary(job, store).phase == "failed"
    # Once is enough.
    code, told = stoker("stop", job)
    assert code == 0 and told.strip() == f"{job} had ended already"
    newer = job_log.read(store, job)
    assert newer is not None and newer.seq == state.seq


def test_stop_leaves_an_ended_job_alone_that_holds_nothing(store: Store) -> None:
    job = put_job(store, make_spec(), *ENDED)
    assert not client.stop(job, store)
    state = job_log.read(store, job)
    assert state is not None and state.stop is None


def test_stop_leaves_a_job_alone_whose_machine_is_gone(store: Store) -> None:
    job = put_job(store, held_spec(), *ENDED)
    store.delete([keys.active(job, 1)])
    assert not client.stop(job, store)


def test_rm_says_why_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = put_job(store, held_spec(), *ENDED)
    monkeypatch.setattr(client.Governor, "run_pass", lambda self, only=None: None)
    with pytest.raises(UserError, match=f"its machine is held; `stoker stop {job}` gives it back"):
        client.remove(job, store)


def test_rm_waits_for_machines_that_may_be_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = put_job(store, make_spec(), *ENDED)
    looked: list[object] = []
    monkeypatch.setattr(client.Governor, "run_pass", lambda self, only=None: looked.append(only))
    with pytest.raises(UserError, match=f"{job} has ended, but its machines are not known to be gone yet"):
        client.remove(job, store)
    assert looked == [{job}], "only this job is looked after"
    store.delete([keys.active(job, 1)])
    assert client.remove(job, store) == job and len(looked) == 1


def test_a_held_machine_is_found_only_where_it_is_asked_for(store: Store) -> None:
    offering = replace(SPOT_A, provider="local")
    job = put_job(store, held_spec(), Claimed(offering, 1), Launched(2, nodes(2)), ended())
    found = client.find_node(job, store, held=True)
    assert (found.job, found.instance, found.offering) == (job, nodes(2)[0].instance, offering)
    with pytest.raises(UserError, match=r"has ended \(failed\), and has no machine any more"):
        client.find_node(job, store)


def test_waiting_for_a_job_whose_machine_is_held_ends_with_the_job(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = put_job(store, held_spec(), *ENDED)
    monkeypatch.setattr(client.Governor, "run_pass", lambda self: Passed(None))
    monkeypatch.setattr(client.Governor, "sleep", lambda self, _: pytest.fail("there is nothing to wait for"))
    assert client.wait(job, store).phase == "failed"


def test_ps_tells_of_it_while_the_job_is_active(store: Store, stoker: Callable[..., tuple[int, str]]) -> None:
    job = put_job(store, held_spec(), *ENDED)
    state = job_log.read(store, job)
    assert state is not None and state.ended is not None
    now = state.ended.at + timedelta(seconds=5)
    from stoker.store.job_index import IndexRecord, read_submission, write_index

    beat = replace(make_beat(0, "held"), modified=now)
    facts = replace(make_facts(2, left=make_exit("failed")), heartbeat=Known(beat))
    summary = summarize(state, read_submission(store, state), {2: (facts,)}, now)
    assert summary.held is not None
    write_index(store, IndexRecord(state, summary))
    assert "held until" in stoker("ps")[1] and "at $1.00/h" in stoker("ps")[1]
    store.delete([keys.active(job, 1)])
    assert "held until" not in stoker("ps")[1]


def test_who_honours_it() -> None:
    spec = held_spec(300.0)
    check_honoured(spec, "ec2", registry.capabilities("ec2"))
    with pytest.raises(SpecError, match=r"retry\.hold_on_failure: local cannot honour this"):
        check_honoured(spec, "local", registry.capabilities("local"))
