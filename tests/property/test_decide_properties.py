"""What `decide` never does, whatever it sees."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from perfect_world import everyone_leaves, later, rest, revealed, step
from snapshots import MOMENTS, snapshots

from stoker.core import gate
from stoker.core.costs import valid_span_s
from stoker.core.decide import decide, decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import LEAVE_S
from stoker.core.snapshot import Action, Append, JobSnapshot, Launch, Plan, Snapshot, Terminate, Unmark
from stoker.model.job_state import Claim
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Suspected
from stoker.model.node_facts import Exit
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance
from tests.support.sim_data import at

pytestmark = pytest.mark.slow

SEARCH = settings(
    max_examples=250,
    deadline=None,  # The machine may be busy; nothing here is about time.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

AGES = MOMENTS


def _plan(job: JobSnapshot, age_s: float, silence_inconclusive: bool = False) -> tuple[Plan, datetime]:
    now = job.state.updated_at + timedelta(seconds=age_s)
    return decide_job(job, DEFAULT, now, silence_inconclusive=silence_inconclusive), now


def _appended(actions: tuple[Action, ...]) -> list[object]:
    return [action.event for action in actions if isinstance(action, Append)]


def _irreversible(actions: list[Action] | tuple[Action, ...]) -> set[tuple[object, ...]]:
    """What a look does that no later look can take back, told apart by what it is done to."""
    found: set[tuple[object, ...]] = set()
    for action in actions:
        match action:
            case Terminate(instance=instance):
                found.add(("terminate", instance))
            case Append(event=Claimed()):
                found.add(("claim",))
            case Append(event=Closed(claim=claim)) | Append(event=Ended(closing=Closed(claim=claim))):
                found.add(("close", claim))
            case Append(event=Ended()):
                found.add(("end",))
            case Append(event=Draining(claim=claim)):
                found.add(("drain", claim))
            case Unmark():
                found.add(("unmark",))
    return found


@SEARCH
@given(snapshots(last="stop"), AGES, st.booleans())
def test_a_stopped_or_ended_job_never_launches_or_claims(
    job: JobSnapshot, age_s: float, silence_inconclusive: bool
) -> None:
    assert job.state.stop is not None or job.state.ended is not None
    plan, _ = _plan(job, age_s, silence_inconclusive)
    assert not any(isinstance(action, Launch) for action in plan.actions)
    assert not any(isinstance(event, Claimed) for event in _appended(plan.actions))


@SEARCH
@given(snapshots(), AGES, st.booleans())
def test_at_most_one_entry_and_it_is_the_next(job: JobSnapshot, age_s: float, silence_inconclusive: bool) -> None:
    plan, _ = _plan(job, age_s, silence_inconclusive)
    appends = [action for action in plan.actions if isinstance(action, Append)]
    launches = [action for action in plan.actions if isinstance(action, Launch)]
    assert len(appends) <= 1
    assert all(action.seq == job.state.seq + 1 for action in appends)
    assert all(action.reason for action in plan.actions)
    for launch in launches:
        claim = job.state.claim(launch.claim)
        new = [action for action in appends if isinstance(action.event, Claimed) and action.seq == launch.claim]
        assert new or (claim is not None and claim.open and claim.launched is None)


@SEARCH
@given(snapshots(), AGES)
def test_a_newer_protocol_is_left_alone(job: JobSnapshot, age_s: float) -> None:
    plan, _ = _plan(replace(job, state=replace(job.state, min_version=99)), age_s)
    assert plan.actions == ()


@SEARCH
@given(snapshots(), AGES, st.booleans())
def test_closing_rests_on_facts_that_cannot_reverse(job: JobSnapshot, age_s: float, silence_inconclusive: bool) -> None:
    plan, now = _plan(job, age_s, silence_inconclusive)
    for event in _appended(plan.actions):
        closing = event.closing if isinstance(event, Ended) else event if isinstance(event, Closed) else None
        if closing is None:
            continue
        claim = job.state.claim(closing.claim)
        assert claim is not None and claim.open
        if claim.launched is None:
            expired = now >= claim.at + timedelta(seconds=job.capabilities.token_lifetime_s)
            assert expired or job.state.stop is not None or closing.outcome == "limit"
            continue
        for rank in range(claim.nodes):
            _assert_over(job, claim, rank)


def _assert_over(job: JobSnapshot, claim: Claim, rank: int) -> None:
    instance = claim.instance(rank)
    if instance is None:
        return
    facts = job.facts_of(claim, rank)
    assert facts is not None and isinstance(facts.exit, Known), "an unread exit may be a success"
    assert isinstance(facts.notice, Known), "an unread notice may excuse a failure"
    gone = isinstance(job.states, Known) and job.states.value.get(instance) == "gone"
    assert facts.exit.value is not None or gone


@SEARCH
@given(snapshots(), AGES)
def test_the_end_leaves_nobody_training(job: JobSnapshot, age_s: float) -> None:
    """An end closes every open claim: so none of the others may be allowed to train at that moment."""
    plan, _ = _plan(job, age_s)
    for event in _appended(plan.actions):
        if not isinstance(event, Ended):
            continue
        others = [c for c in job.state.open_claims if event.closing is None or c.number != event.closing.claim]
        if event.closing is None:
            assert not others
            continue
        closing = job.state.claim(event.closing.claim)
        assert closing is not None
        for other in others:
            # An older one may be training, or saving; a younger one only waits unless the exits release it.
            assert other.number > closing.number
            if other.launched:
                exits = tuple(job.exit_of(closing, rank) for rank in range(closing.nodes))
                assert not all(e and e.outcome == "interrupted" and e.why in gate.RELEASING for e in exits)


@SEARCH
@given(snapshots(), AGES, st.booleans())
def test_nobody_is_terminated_without_a_positive_reason(
    job: JobSnapshot, age_s: float, silence_inconclusive: bool
) -> None:
    plan, now = _plan(job, age_s, silence_inconclusive)
    named = {node.instance: (claim, node.rank) for claim in job.state.open_claims for node in claim.launched or ()}
    for action in plan.actions:
        if not isinstance(action, Terminate):
            continue
        if action.instance in named and job.state.ended is None:
            claim, rank = named[action.instance]
            assert job.exit_of(claim, rank) is None
            _assert_may_end(job, claim, rank, now, silence_inconclusive)
        else:
            assert isinstance(job.instances, Known), "a list that failed proves nothing"
            (instance,) = [i for i in job.instances.value if i.id == action.instance]
            assert instance.state in ("pending", "running")
            _assert_nobody_keeps(job, instance, now)


def _assert_may_end(job: JobSnapshot, claim: Claim, rank: int, now: datetime, silence_inconclusive: bool) -> None:
    assert not job.exit_unread(claim, rank), "it may have left already"
    asked = [claim.drain.at] if claim.drain else []
    asked += [job.state.stop.at] if job.state.stop else []
    save_s = job.spec.checkpoints.grace_s + DEFAULT.leave_s
    if any(now - moment >= timedelta(seconds=save_s) for moment in asked):
        return
    facts = job.facts_of(claim, rank)
    assert facts is not None and isinstance(facts.heartbeat, Known) and isinstance(facts.exit, Known)
    assert not silence_inconclusive or facts.heartbeat.value is None
    etag = facts.heartbeat.value.etag if facts.heartbeat.value else ""
    suspicion = claim.suspicions[str(rank)]
    assert suspicion.etag == etag
    assert now - suspicion.at >= timedelta(seconds=job.capabilities.silence_s)


def _assert_nobody_keeps(job: JobSnapshot, instance: Instance, now: datetime) -> None:
    claim = job.state.claim(instance.claim)
    if claim is None:
        assert now - instance.created_at >= timedelta(seconds=job.capabilities.newborn_s), "newborn"
    elif job.state.ended is None and claim.open:
        assert claim.launched is not None
        assert instance.id not in [node.instance for node in claim.launched]


@settings(SEARCH, max_examples=500)
@given(snapshots(last="end"), AGES)
def test_an_ended_job_keeps_no_machine_but_a_held_one(job: JobSnapshot, age_s: float) -> None:
    """Held are only machines that the log names, of the attempt by whose own failure the job ended, for their time."""
    plan, now = _plan(job, age_s)
    ended = {action.instance for action in plan.actions if isinstance(action, Terminate)}
    assert isinstance(job.instances, Known) and job.state.ended is not None
    for instance in job.instances.value:
        claim = job.state.claim(instance.claim)
        if instance.state not in ("pending", "running") or claim is None or instance.id in ended:
            continue
        assert instance.id in [node.instance for node in claim.launched or ()]
        assert (job.state.ended.rule, job.state.ended.outcome) == ("user-error", "failed")
        assert job.state.ended.claim == claim.number and job.state.stop is None
        assert claim.closed_at is not None
        assert (now - claim.closed_at).total_seconds() < job.spec.retry.hold_on_failure_s + LEAVE_S


@SEARCH
@given(snapshots(), AGES)
def test_new_claims_rest_on_what_is_known(job: JobSnapshot, age_s: float) -> None:
    plan, _ = _plan(job, age_s)
    for event in _appended(plan.actions):
        if isinstance(event, Claimed):
            assert isinstance(job.offerings, Known)
            assert event.offering in job.offerings.value
            assert event.nodes == job.spec.nodes
            waiting = [c for c in job.state.open_claims if c.number != event.successor_of]
            assert not waiting, "at most one attempt waits"
            if job.state.open_claims:
                (claim,) = job.state.open_claims
                assert job.noticed(claim) and claim.launched is not None and claim.drain is None


def _blinded(job: JobSnapshot, part: int) -> tuple[JobSnapshot, int | None] | None:
    """The same job with one known part unknown, and the claim that part was about."""
    unknown = Unknown("nobody answered")
    choices: list[tuple[JobSnapshot, int | None]] = [
        (replace(job, instances=unknown), None),
        (replace(job, states=unknown), None),
    ]
    if job.offerings is not None:
        choices.append((replace(job, offerings=unknown), None))
    for number, told in job.facts.items():
        for index, fact in enumerate(told):
            for name in ("heartbeat", "notice", "exit"):
                changed = (*told[:index], replace(fact, **{name: unknown}), *told[index + 1 :])
                choices.append((replace(job, facts={**job.facts, number: changed}), number))
    return choices[part % len(choices)]


@settings(SEARCH, max_examples=500)
@given(snapshots(), AGES, st.integers(0, 1000))
def test_knowing_less_never_does_more(job: JobSnapshot, age_s: float, part: int) -> None:
    """Monotonicity. Make one known part unknown; then whatever irreversible is done is something that the seeing
    governor would do too, now or in its next looks at the same facts. But for three things that do not rest on the
    part: what is done about other claims once this one is no longer the first to be settled; the end of a machine that
    the seeing governor knows to be gone already, which touches nothing; and draining a gang of which a rank has left
    for certain, where the seeing governor knows that there is nobody left to drain.
    """
    found = _blinded(job, part)
    assert found is not None
    less, about = found
    plan, now = _plan(less, age_s)
    did = _irreversible(plan.actions)
    _, wide = rest(job, now, most=60)
    would = _irreversible(wide) | {
        ("close", c.number) for c in job.state.open_claims if ("end",) in _irreversible(wide)
    }
    gone = (
        {name for name, state in job.states.value.items() if state == "gone"}
        if isinstance(job.states, Known)
        else set()
    )
    extra = {
        what
        for what in did - would
        if not (what[0] == "terminate" and what[1] in gone)
        and (about is None or what[0] in ("end", "claim") or _claim_of(what) == about)
        and not (what[0] == "drain" and _lost_a_rank(less, _claim_of(what)))
    }
    if any(isinstance(event, Ended) for event in _appended(tuple(wide))):
        # The seeing governor ends the whole job: what is asked of one of its claims is less than that.
        extra = {what for what in extra if what[0] in ("end", "claim", "unmark")}
    assert not extra


def _lost_a_rank(job: JobSnapshot, number: int) -> bool:
    """Whether a rank is gone for certain, or has left without having finished."""
    claim = job.state.claim(number)
    if claim is None:
        return False
    for rank in range(claim.nodes):
        left = job.exit_of(claim, rank)
        if left is not None and left.outcome != "succeeded":
            return True
        if job.rank_gone(claim, rank) and left is None and not job.exit_unread(claim, rank):
            return True
    return False


def _claim_of(what: tuple[object, ...]) -> int:
    return int(str(what[1]).split("-")[1]) if what[0] == "terminate" else int(str(what[1]))


@SEARCH
@given(snapshots(), AGES)
def test_what_nobody_answered_changes_nothing(job: JobSnapshot, age_s: float) -> None:
    """All of it unknown: only what the log alone demands is left."""
    unknown = Unknown("nobody answered")
    dark = replace(
        job,
        instances=unknown,
        states=unknown,
        offerings=unknown,
        facts={
            number: tuple(replace(fact, heartbeat=unknown, notice=unknown, exit=unknown) for fact in told)
            for number, told in job.facts.items()
        },
    )
    plan, _ = _plan(dark, age_s)
    for event in _appended(plan.actions):
        assert not isinstance(event, Claimed | Suspected)
        if isinstance(event, Draining):
            assert event.outcome == "limit" or job.spec.nodes > 1  # A partial gang is in the log itself.
        if isinstance(event, Closed):
            claim = job.state.claim(event.claim)
            assert claim is not None and len(claim.launched or ()) < claim.nodes
    assert not any(isinstance(action, Unmark) for action in plan.actions) or not any(
        claim.launched for claim in job.state.claims
    )


@SEARCH
@given(st.lists(st.sampled_from(["a", "b", "c"]), unique=True), st.data(), AGES, st.randoms(use_true_random=False))
def test_the_order_of_things_does_not_matter(
    names: list[str], data: st.DataObject, age_s: float, shuffler: random.Random
) -> None:
    jobs = [data.draw(snapshots(job=f"job-{name}")) for name in names]
    strays = data.draw(st.lists(st.integers(0, 500), unique=True, max_size=4))
    lost = [Instance(f"s-{n}", "sim", "job-x", 2, 0, "running", at(n)) for n in strays]
    now = max((job.state.updated_at for job in jobs), default=at(0)) + timedelta(seconds=age_s)
    plan = decide(Snapshot(tuple(jobs), tuple(lost), {"sim": 60.0}), DEFAULT, now)
    shuffled = [_shuffled(job, shuffler) for job in jobs]
    shuffler.shuffle(shuffled)
    shuffler.shuffle(lost)
    assert decide(Snapshot(tuple(shuffled), tuple(lost), {"sim": 60.0}), DEFAULT, now) == plan


def _shuffled(job: JobSnapshot, shuffler: random.Random) -> JobSnapshot:
    def mixed(items: list[object]) -> list[object]:
        shuffler.shuffle(items)
        return items

    instances = job.instances
    if isinstance(instances, Known):
        instances = Known(tuple(mixed(list(instances.value))))  # type: ignore[arg-type]
    states = Known(dict(mixed(list(job.states.value.items())))) if isinstance(job.states, Known) else job.states  # type: ignore[arg-type]
    facts = {number: tuple(mixed(list(told))) for number, told in mixed(list(job.facts.items()))}  # type: ignore
    return replace(job, instances=instances, states=states, facts=facts)  # type: ignore[arg-type]


@SEARCH
@given(st.lists(st.integers(0, 500), unique=True, max_size=4), AGES, st.booleans())
def test_strays_are_spared_while_newborn(born: list[int], age_s: float, listed: bool) -> None:
    strays = tuple(Instance(f"s-{n}", "sim", "job-x", 2, 0, "running", at(n)) for n in born)
    now = at(age_s)
    plan = decide(Snapshot((), strays, {"sim": 60.0} if listed else {}), DEFAULT, now)
    ended = {action.instance for action in plan.actions if isinstance(action, Terminate)}
    assert ended == {i.id for i in strays if listed and now - i.created_at >= timedelta(seconds=60)}


@SEARCH
@given(snapshots(), AGES)
def test_a_plan_that_is_carried_out_comes_to_rest(job: JobSnapshot, age_s: float) -> None:
    now = job.state.updated_at + timedelta(seconds=age_s)
    settled, _ = rest(job, now, most=60)
    assert decide_job(settled, DEFAULT, now).actions == ()


@SEARCH
@given(snapshots(), AGES, st.sampled_from(["succeeded", "interrupted", "failed"]), st.booleans())
def test_every_job_ends_when_everybody_answers(job: JobSnapshot, age_s: float, outcome: str, vanish: bool) -> None:
    """From anything that was seen: the machines leave in one way or another, and the job ends and is forgotten."""
    job = replace(revealed(job), markers=(1,))
    assume(job.state.min_version == 1)
    now = job.state.updated_at + timedelta(seconds=age_s)
    for _ in range(200):
        plan = decide_job(job, DEFAULT, now)
        if job.state.ended is not None and not job.markers:
            assert plan.actions == ()
            return
        if plan.actions:
            job = step(job, plan.actions, now)
            continue
        left = Exit(outcome=outcome, why="finished" if outcome != "interrupted" else "drain", at=now)  # type: ignore[arg-type]
        if job.state.ended is not None:
            gone = {node.instance: "gone" for claim in job.state.claims for node in claim.launched or ()}
            # What was asked to end is gone some day, also what no claim names.
            listed = job.instances.value if isinstance(job.instances, Known) else ()
            left_over = tuple(replace(i, state="gone") if i.state == "stopping" else i for i in listed)
            job = replace(job, states=Known(gone), instances=Known(left_over))  # type: ignore[arg-type]
        else:
            job = everyone_leaves(job, now, left)
        now = later(now, plan.wake_at)
    pytest.fail(f"still not over: {decide_job(job, DEFAULT, now)}")


@SEARCH
@given(snapshots(), AGES)
def test_bounds_hold(job: JobSnapshot, age_s: float) -> None:
    """A plan never claims when a bound is reached, nor counts more user errors than were allowed."""
    plan, now = _plan(job, age_s)
    limits = job.spec.limits
    for event in _appended(plan.actions):
        if isinstance(event, Claimed):
            closed = [c.closed for c in job.state.since_opened() if c.closed]
            assert limits.max_wait_s is None or job.state.open_claims or _waited_s(job, now) < limits.max_wait_s
            if limits.max_runtime_s is not None:
                assert sum(valid_span_s(c.trained_s) for c in closed) < limits.max_runtime_s
            if limits.max_cost is not None:
                assert event.offering.price is not None
        if isinstance(event, Closed) and event.counted and event.restart:
            spent = sum(1 for c in job.state.since_opened() if c.closed and c.closed.counted)
            assert spent < job.spec.retry.user_errors


def _waited_s(job: JobSnapshot, now: datetime) -> float:
    moments = [job.state.opened_at or job.state.submitted_at]
    moments += [
        c.closed_at
        for c in job.state.since_opened()
        if c.attempt and c.closed_at and c.closed and c.closed.outcome != "dry"
    ]
    return (now - max(moments)).total_seconds()


@SEARCH
@given(st.lists(snapshots(), max_size=3), AGES)
def test_decide_never_raises(jobs: list[JobSnapshot], age_s: float) -> None:
    jobs = [replace(job, state=replace(job.state, job=f"job-{n}")) for n, job in enumerate(jobs)]
    now = max((job.state.updated_at for job in jobs), default=at(0)) + timedelta(seconds=age_s)
    plan = decide(Snapshot(tuple(jobs)), DEFAULT, now)
    assert plan.wake_at is None or plan.wake_at.tzinfo is not None
