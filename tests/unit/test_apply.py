"""Single steps of the applier: what is written down, given back and dropped, whatever the cloud answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.budget_verdict import LaunchDenied
from stoker.core.snapshot import Append, Launch, Plan, Terminate, Unmark
from stoker.governor.apply import ApplyResult
from stoker.model import keys
from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NotFound,
    SubnetFull,
    Throttled,
    Transient,
    UserError,
)
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, ResumeAsked, StopAsked
from stoker.model.offerings import Leftover, Offering
from stoker.model.spec import Retry
from stoker.model.submission import Submission
from stoker.store import job_log
from tests.support.sim_data import ON_DEMAND, SPOT_A, SPOT_B, make_spec, nodes

A = "a-aaaa"
DAY_S = 86_400.0


@pytest.fixture
def world() -> ScriptedWorld:
    return ScriptedWorld()


def remembering_dry(world: ScriptedWorld, for_s: float = 60.0) -> None:
    world.cloud.capabilities = replace(world.cloud.capabilities, dry_for_s=for_s)


def dry(world: ScriptedWorld) -> list[str]:
    return sorted(meta.key.removeprefix(keys.DRY) for meta in world.store.list(keys.DRY))


def apply(world: ScriptedWorld, *actions: object) -> ApplyResult:
    return world.applier().apply(Plan(actions=actions))  # type: ignore[arg-type]


def last_claim_of(state: JobState) -> Claim:
    assert state.last_claim is not None
    return state.last_claim


def last_claim(world: ScriptedWorld, job: str = A) -> Claim:
    return last_claim_of(world.state(job))


def test_after_a_lost_race_the_rest_of_that_job_is_dropped_and_other_jobs_go_on(world: ScriptedWorld) -> None:
    for job in (A, "b-bbbb"):
        world.submit(job, Claimed(SPOT_A, 1))
    stop = StopAsked("jane")
    lost, late = Append(A, 2, stop, "it is there already"), Append(A, 3, stop, "after that")
    applied = apply(world, lost, late, late, Append("b-bbbb", 3, stop, "enough"))
    assert [action.job for action in applied.done] == ["b-bbbb"]
    assert world.state(A).seq == 2 and world.state("b-bbbb").seq == 3


def test_markers_that_came_since_are_left_and_hide_no_others(world: ScriptedWorld) -> None:
    ended = Ended("failed", "user-error", None)
    state = world.submit(A, ended, ResumeAsked("jane"), ended)
    key_list = [keys.active(A, number) for number in (1, 2, 3, 4)]
    for key in key_list:
        world.store.put(key, b"")
    world.applier()._unmark(A, (1, 3, 4), state)
    assert [meta.key for meta in world.store.list(keys.ACTIVE)] == [key_list[1]]


def test_a_marker_stays_until_the_log_holds_the_end_of_its_opening(world: ScriptedWorld) -> None:
    world.submit(A)
    assert apply(world, Unmark(A, (1,), "by an older plan")).problems == {}
    assert world.store.holds(keys.active(A, 1))


def test_a_place_is_written_down_once_for_many_launches(world: ScriptedWorld) -> None:
    applier, created = world.applier(), list[str]()
    create = world.store.create
    world.store.create = lambda key, data: created.append(key) or create(key, data)  # type: ignore[method-assign,func-returns-value]
    for job in (A, "b-bbbb"):
        applier._record_place(last_claim_of(world.submit(job, Claimed(SPOT_A, 1))))
    assert created.count(keys.place(SPOT_A.provider, SPOT_A.region)) == 1


# ── What was dry ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("for_s", "kept"), [(60.0, [SPOT_A.key]), (0.0, [])])
def test_a_launch_without_capacity_is_remembered_for_all_jobs_where_that_means_something(
    world: ScriptedWorld, for_s: float, kept: list[str]
) -> None:
    remembering_dry(world, for_s)
    world.cloud.errors["launch"] = NoCapacity("there is none")
    world.submit(A, Claimed(SPOT_A, 1))
    applied = apply(world, Launch(A, 2, "launch"))
    closed = last_claim(world).closed
    assert closed == Closed(2, "dry", "no-capacity", restart=True)
    assert dry(world) == kept and applied.moved == {A} and applied.problems == {}


def test_a_full_subnet_says_nothing_to_other_jobs(world: ScriptedWorld) -> None:
    remembering_dry(world)
    world.cloud.errors["launch"] = SubnetFull("too few free addresses")
    world.submit(A, Claimed(SPOT_A, 1))
    apply(world, Launch(A, 2, "launch"))
    assert last_claim(world).closed == Closed(2, "dry", "subnet-full", restart=True)
    assert last_claim(world).closed_reason == "too few free addresses" and dry(world) == []


@pytest.mark.parametrize(("for_s", "kept"), [(60.0, [SPOT_A.key]), (0.0, [])])
def test_a_cloud_that_finds_no_machine_after_it_took_the_launch_is_dry_for_all_jobs(
    world: ScriptedWorld, for_s: float, kept: list[str]
) -> None:
    remembering_dry(world, for_s)
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    applied = apply(world, Append(A, 4, Closed(2, "dry", "no-capacity", restart=True), "none was found"))
    assert dry(world) == kept and len(applied.done) == 1


@pytest.mark.parametrize("rule", ["notice", "silent"])
def test_a_claim_that_closed_for_another_reason_says_nothing_of_capacity(world: ScriptedWorld, rule: str) -> None:
    remembering_dry(world)
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    apply(world, Append(A, 4, Closed(2, "reclaimed", rule, restart=True), "gone"))
    assert dry(world) == []


def test_a_lost_race_tells_nothing(world: ScriptedWorld) -> None:
    remembering_dry(world)
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), StopAsked("jane"))
    applied = apply(
        world, Append(A, 4, Closed(2, "dry", "no-capacity", restart=True), "none"), Terminate(A, "i-2-0", "sim", "end")
    )
    assert dry(world) == [] and applied.done == [] and applied.moved == {A}
    assert world.cloud.called("terminate") == [], "the rest of the job's plan is dropped"


def test_a_claim_that_nobody_knows_is_told_to_nobody(world: ScriptedWorld) -> None:
    remembering_dry(world)
    applier = world.applier()
    applier._record_dry_close("never-aaaa", 2)
    world.submit(A, Claimed(SPOT_A, 1))
    applier = world.applier()
    applier._record_dry_close(A, 3)
    assert dry(world) == []


def test_what_was_dry_for_longer_than_a_day_is_forgotten(world: ScriptedWorld) -> None:
    remembering_dry(world)
    world.submit(A, Claimed(SPOT_A, 1))
    claim, applier = last_claim(world), world.applier()
    applier._record_dry(replace(claim, offering=SPOT_B))
    world.cloud.now_s = 1.0
    applier._record_dry(replace(claim, offering=ON_DEMAND))
    world.cloud.now_s = DAY_S + 1.0
    applier._record_dry(claim)
    assert dry(world) == sorted([SPOT_A.key, ON_DEMAND.key]), "one day old is not older than a day"


# ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_launch_is_written_down_and_its_place_remembered_before(world: ScriptedWorld) -> None:
    offering = replace(SPOT_A, region="r1")
    world.submit(A, Claimed(offering, 2), spec=make_spec(2))
    world.store.delete([keys.place("sim", "r1")])
    apply(world, Launch(A, 2, "launch"))
    claim = last_claim(world)
    assert [(node.rank, node.instance) for node in claim.launched or ()] == [(0, "i-a-aaaa-2-0"), (1, "i-a-aaaa-2-1")]
    assert world.store.holds(keys.place("sim", "r1"))
    (order,) = world.cloud.called("launch")
    assert (order.attempt, order.nodes, order.claim, order.submitter) == (1, 2, 2, "jane")


def test_machines_are_named_by_rank_in_whatever_order_the_cloud_answers(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = world.cloud.launch
    monkeypatch.setattr(world.cloud, "launch", lambda requests: tuple(reversed(launch(requests))))
    world.submit(A, Claimed(SPOT_A, 3), spec=make_spec(3))
    apply(world, Launch(A, 2, "launch"))
    assert [node.rank for node in last_claim(world).launched or ()] == [0, 1, 2]


def test_later_attempts_are_counted(world: ScriptedWorld) -> None:
    world.submit(
        A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), Closed(2, "reclaimed", "notice", restart=True), Claimed(SPOT_B, 1)
    )
    apply(world, Launch(A, 5, "launch"))
    assert world.cloud.called("launch")[0].attempt == 2


@pytest.mark.parametrize(
    "events",
    [
        (),
        (Claimed(SPOT_A, 1), Launched(2, nodes(2))),
        (Claimed(SPOT_A, 1), Closed(2, "abandoned", "budget", restart=True)),
    ],
)
def test_a_claim_that_is_settled_or_absent_is_not_launched(world: ScriptedWorld, events: tuple[Event, ...]) -> None:
    world.submit(A, *events)
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("launch") == [] and world.state(A).seq == 1 + len(events)


@pytest.mark.parametrize(
    ("method", "error", "outcome"),
    [
        ("build", UserError("resources.image: none such"), "refused"),
        ("launch", AuthDenied("not allowed"), "refused"),
        ("launch", InvalidRequest("no such network"), "refused"),
    ],
)
def test_what_a_person_must_mend_closes_the_claim(
    world: ScriptedWorld, method: str, error: Exception, outcome: str
) -> None:
    world.cloud.errors[method] = error
    world.submit(A, Claimed(SPOT_A, 1))
    applied = apply(world, Launch(A, 2, "launch"))
    claim = last_claim(world)
    assert claim.closed is not None and (claim.closed.outcome, claim.closed.rule) == (outcome, type(error).__name__)
    assert claim.closed.restart and claim.closed_reason == str(error) and applied.problems == {}


def test_what_a_provider_refuses_by_its_check_is_not_built(world: ScriptedWorld) -> None:
    def check(_: object) -> None:
        raise UserError("run: takes a machine out of our hands")

    world.cloud.check = check  # type: ignore[attr-defined]
    world.submit(A, Claimed(SPOT_A, 1))
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("build") == [] and world.cloud.called("launch") == []
    assert last_claim(world).closed == Closed(2, "refused", "UserError", restart=True)


@pytest.mark.parametrize("error", [Throttled("too many calls"), Transient("connection reset"), OSError("no route")])
def test_a_launch_that_may_succeed_later_is_a_problem_and_decides_nothing(
    world: ScriptedWorld, error: Exception
) -> None:
    world.cloud.errors["launch"] = error
    world.submit(A, Claimed(SPOT_A, 1))
    applied = apply(world, Launch(A, 2, "launch"), Unmark(A, (1,), "after it"))
    assert str(error) in applied.problems[A] and last_claim(world).open
    assert applied.done == [] and world.store.holds(keys.active(A, 1)), "the rest of the job's plan is dropped"


def test_machines_of_a_claim_that_a_rival_settled_meanwhile_are_given_back(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = world.cloud.launch

    def late(requests: tuple[object, ...]) -> object:
        made = launch(requests)
        closed = Closed(2, "abandoned", "budget", restart=True)
        assert job_log.append(world.store, A, 3, Record(job_log.new_token(), "rival", "given up", closed))
        return made

    monkeypatch.setattr(world.cloud, "launch", late)
    world.submit(A, Claimed(SPOT_A, 1))
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("terminate") == ["i-a-aaaa-2-0"]


def test_machines_that_a_rival_named_stay_and_others_of_the_same_claim_go(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = world.cloud.launch

    def beside(requests: tuple[object, ...]) -> object:
        made = launch(requests)
        named = Launched(2, (replace(nodes(2)[0], instance="i-a-aaaa-2-0"),))
        assert job_log.append(world.store, A, 3, Record(job_log.new_token(), "rival", "launched", named))
        return made

    monkeypatch.setattr(world.cloud, "launch", beside)
    world.submit(A, Claimed(SPOT_A, 2), spec=make_spec(2))
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("terminate") == ["i-a-aaaa-2-1"]


@pytest.mark.parametrize("hold_s", [600.0, 0.0])
def test_machines_of_a_rival_whose_attempt_has_ended_meanwhile_are_left_to_the_passes(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, hold_s: float
) -> None:
    """They may be held for a look, or be about to end by themselves: each pass lists what the log names."""
    launch = world.cloud.launch
    named = Launched(2, (replace(nodes(2)[0], instance="i-a-aaaa-2-0"),))
    failed = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))

    def late(requests: tuple[object, ...]) -> object:
        made = launch(requests)
        for seq, event in ((3, named), (4, failed)):
            assert job_log.append(world.store, A, seq, Record(job_log.new_token(), "rival", "meanwhile", event))
        return made

    monkeypatch.setattr(world.cloud, "launch", late)
    world.submit(A, Claimed(SPOT_A, 2), spec=replace(make_spec(2), retry=Retry(hold_on_failure_s=hold_s)))
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("terminate") == ["i-a-aaaa-2-1"]


def test_what_is_gone_already_is_not_given_back(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = world.cloud.launch

    def gone(requests: tuple[object, ...]) -> object:
        made = tuple(replace(each, state="gone") for each in launch(requests))
        world.store.create(keys.removed(A), b"")
        return made

    monkeypatch.setattr(world.cloud, "launch", gone)
    world.submit(A, Claimed(SPOT_A, 1))
    apply(world, Launch(A, 2, "launch"))
    assert world.cloud.called("terminate") == []


def test_a_job_whose_spec_was_not_read_is_not_launched(world: ScriptedWorld) -> None:
    world.submit(A, Claimed(SPOT_A, 1))
    applier = world.applier()
    applier.memory.submissions.clear()
    applied = applier.apply(Plan((Launch(A, 2, "launch"),)))
    assert "its spec was not read" in applied.problems[A] and world.cloud.called("launch") == []


def test_a_job_of_another_computer_is_left_to_the_governor_there(world: ScriptedWorld) -> None:
    world.cloud.place = "here"  # type: ignore[attr-defined]
    world.submit(A, Claimed(SPOT_A, 1))
    applier = world.applier()
    applier.memory.submissions[A] = Submission(A, make_spec(), "jane", place="there")
    applied = applier.apply(Plan((Launch(A, 2, "launch"),)))
    assert "a governor has to run there" in applied.problems[A] and world.cloud.called("launch") == []


# ── The rest of a plan ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_that_cannot_be_ended_keeps_nothing_else_from_being_done(world: ScriptedWorld) -> None:
    world.cloud.errors["terminate"] = AuthDenied("not allowed to end it")
    world.submit(A, Ended("succeeded", "exit", None))
    applied = apply(world, Terminate(A, "i-1", "sim", "orphan"), Unmark(A, (1,), "it has ended"))
    assert applied.problems == {A: "not allowed to end it"}
    assert [type(each) for each in applied.done] == [Unmark] and not world.store.holds(keys.active(A, 1))


def test_an_unexpected_error_is_reported_with_its_type(world: ScriptedWorld) -> None:
    world.cloud.errors["terminate"] = KeyError("InstanceId")
    assert apply(world, Terminate(A, "i-1", "sim", "orphan")).problems == {A: "KeyError: 'InstanceId'"}


def test_a_machine_that_the_cloud_does_not_know_counts_as_ended(world: ScriptedWorld) -> None:
    world.cloud.errors["terminate"] = NotFound("no such machine")
    applied = apply(world, Terminate(A, "i-1", "sim", "orphan"))
    assert applied.problems == {} and len(applied.done) == 1


def test_a_job_is_not_forgotten_while_something_of_it_is_left(world: ScriptedWorld) -> None:
    ended = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), ended)
    world.cloud.leftovers = [Leftover("disk", "d-1", "sim", A, 2)]
    world.cloud.errors["remove"] = Transient("in use")
    applied = apply(world, Unmark(A, (1,), "it has ended"))
    assert applied.problems == {A: "in use"} and world.store.holds(keys.active(A, 1))
    world.cloud.errors.clear()
    applier = world.applier()
    applied = applier.apply(Plan((Unmark(A, (1,), "it has ended"),)))
    assert applied.problems == {} and not world.store.holds(keys.active(A, 1))
    assert A not in applier.memory.states, "what is forgotten is not remembered"


def test_a_plan_that_is_not_fresh_any_more_is_not_gone_on_with(world: ScriptedWorld) -> None:
    fresh = iter([True, False, True])
    actions = tuple(Terminate(A, machine, "sim", "orphan") for machine in ("i-1", "i-2", "i-3"))
    applied = world.applier().apply(Plan(actions), None, lambda: next(fresh))
    assert applied.stale and world.cloud.called("terminate") == ["i-1"]
    assert not apply(world, *actions).stale, "a plan that was carried out whole was fresh"


def test_a_provider_that_is_not_installed_is_not_taken_for_a_paid_one(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = world.applier()
    assert applier._is_paid("sim") is True

    def missing(_: str) -> object:
        raise UserError("there is no provider called other")

    monkeypatch.setattr(world.fleet, "_connect", missing)
    assert applier._is_paid("other") is False


# ── Budgets at the moment of a launch ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Money:
    """A budget_guard that holds back these jobs, and these claims of jobs; `told` are the claims it has heard of."""

    back: dict[str, str] = field(default_factory=dict)
    yielding: dict[str, LaunchDenied] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def launch_denied(self, job: str, offering: Offering) -> str | None:
        return self.back.get(job)

    def launch_conflict(self, job: str, number: int) -> LaunchDenied | None:
        return self.yielding.get(job)

    def count_claim(self, job: str) -> None:
        self.told.append(job)


def claim_and_launch(job: str, seq: int) -> tuple[Append, Launch]:
    return Append(job, seq, Claimed(SPOT_A, 1), "claim"), Launch(job, seq, "launch")


def test_a_claim_is_not_made_while_the_money_is_held_back(world: ScriptedWorld) -> None:
    for job in (A, "b-bbbb"):
        world.submit(job)
    budget_guard = Money(back={A: "the team has spent its money"})
    actions = (*claim_and_launch(A, 2), *claim_and_launch("b-bbbb", 2))
    applied = world.applier().apply(Plan(actions), budget_guard)
    assert applied.waiting == {A: "the team has spent its money"}
    assert applied.moved == {"b-bbbb"} and world.state(A).seq == 1
    assert [order.job for order in world.cloud.called("launch")] == ["b-bbbb"]
    assert budget_guard.told == ["b-bbbb"], "what was launched counts from then on"


def test_other_actions_of_a_job_need_no_money(world: ScriptedWorld) -> None:
    world.submit(A)
    applied = world.applier().apply(Plan((Append(A, 2, StopAsked("jane"), "enough"),)), Money(back={A: "none left"}))
    assert applied.waiting == {} and world.state(A).stop


@pytest.mark.parametrize(("waits", "told"), [("waits for others", "waits for others"), ("", "too little is left")])
def test_a_claim_that_others_leave_too_little_for_is_given_up(world: ScriptedWorld, waits: str, told: str) -> None:
    world.submit(A)
    budget_guard = Money(yielding={A: LaunchDenied("policy money", "too little is left", waits=waits)})
    applied = world.applier().apply(Plan(claim_and_launch(A, 2)), budget_guard)
    claim = last_claim(world)
    assert claim.closed is not None and world.cloud.called("launch") == []
    assert (claim.closed.outcome, claim.closed.rule, claim.closed.restart) == ("abandoned", "policy money", True)
    assert claim.closed_reason == "too little is left"
    assert applied.waiting == {A: told} and applied.moved == {A}
    assert [type(action) for action in applied.done] == [Append], "the launch was not done"
    assert budget_guard.told == [A], "what was given up counts no more"


def test_a_claim_of_another_governor_is_left_to_it_where_the_money_is_too_little(world: ScriptedWorld) -> None:
    world.submit(A, Claimed(SPOT_A, 1))
    budget_guard = Money(yielding={A: LaunchDenied("policy money", "too little is left")})
    actions = (Launch(A, 2, "launch"), Terminate(A, "i-1", "sim", "after it"))
    applied = world.applier().apply(Plan(actions), budget_guard)
    assert last_claim(world).open and world.cloud.called("launch") == []
    assert world.cloud.called("terminate") == [], "the rest of the job's plan is dropped"
    assert applied.waiting == {A: "too little is left"} and applied.moved == set() and budget_guard.told == []
