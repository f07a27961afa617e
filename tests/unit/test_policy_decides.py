"""Governors check every job against the policy, by any submitter."""

from __future__ import annotations

from dataclasses import replace

from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.snapshot import Append, JobSnapshot, Launch
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, ResumeAsked, Warned
from stoker.model.node_facts import Activity, CheckpointRef, NodeFacts
from stoker.model.observed import Known
from stoker.model.spec import Limits
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    NO_WORK,
    ON_DEMAND,
    SPOT_A,
    SPOT_B,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

RUNNING = (Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)))


def settings(*texts: str, policy_error: str = "") -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"), policy_error=policy_error)


def decided(job: JobSnapshot, by: GovernorSettings, now_s: float = 100.0) -> list[tuple[Event, str]]:
    plan = decide_job(job, by, at(now_s))
    return [(action.event, action.reason) for action in plan.actions if isinstance(action, Append)]


def test_a_job_that_was_submitted_past_the_rules_gets_no_machine() -> None:
    job = make_snapshot(make_state(), offerings=Known((SPOT_A,)))
    ((event, reason),) = decided(job, settings("name: who-pays, tags: {project: any}"))
    assert event == Ended(outcome="failed", rule="policy:who-pays")
    assert reason.startswith("policy who-pays: tags.project is missing")
    again = make_snapshot(
        make_state(Ended(outcome="stopped", rule="stop"), ResumeAsked(by="jane")), offerings=Known((SPOT_A,))
    )
    ((event, _),) = decided(again, settings("name: who-pays, tags: {project: any}"))
    assert event == Ended(outcome="failed", rule="policy:who-pays"), "to resume is to ask again"


def test_what_is_only_told_is_told_once() -> None:
    by = settings("name: a, tags: {project: any}, then: warn", "name: b, max_retries: 0, audit: true")
    job = make_snapshot(make_state(), spec=make_spec(user_errors=1), offerings=Known((SPOT_A,)))
    ((first, _),) = decided(job, by)
    assert first == Warned(code="policy:a")
    told = make_snapshot(make_state(first), spec=make_spec(user_errors=1), offerings=Known((SPOT_A,)))
    ((second, reason),) = decided(told, by)
    assert second == Warned(code="policy:b") and "(audit)" in reason
    done = make_snapshot(make_state(first, second), spec=make_spec(user_errors=1), offerings=Known((SPOT_A,)))
    ((third, _),) = decided(done, by)
    assert isinstance(third, Claimed)


def test_machines_that_are_not_allowed_are_not_taken() -> None:
    other = replace(SPOT_B, machine="m2")
    job = make_snapshot(make_state(), offerings=Known((SPOT_A, other, ON_DEMAND)))
    ((event, _),) = decided(job, settings("machines: [m2]"))
    assert isinstance(event, Claimed) and event.offering == other
    ((event, reason),) = decided(job, settings("machines: [m3]"))
    assert event == Ended(outcome="failed", rule="policy:machines")
    assert reason == "policy machines: m1, m2 may not be used; allowed is m3"


def test_a_job_that_has_run_goes_on_past_a_new_rule_unless_it_leaves_no_machine() -> None:
    lost = Closed(claim=2, outcome="lost", rule="gone", restart=True)
    job = make_snapshot(make_state(*RUNNING, lost), offerings=Known((SPOT_A,)))
    ((event, reason),) = decided(job, settings("machines: [m2]"))
    assert event == Ended(outcome="failed", rule="policy:machines", claim=2)
    assert reason == "policy machines: m1 may not be used; allowed is m2"
    ((event, _),) = decided(job, settings("tags: {project: any}"))
    assert isinstance(event, Claimed), "what it was submitted with is no reason to end what runs"


def test_rules_that_cannot_be_read_keep_everybody_waiting_and_end_nobody() -> None:
    by = settings("max_nodes: 1", policy_error="policy version 9 is not for me")
    plan = decide_job(make_snapshot(make_state(), offerings=Known((SPOT_A,))), by, at(10))
    assert plan.actions == ()
    assert list(plan.waiting.values()) == ["the policy cannot be read: policy version 9 is not for me"]
    running = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(95)))
    assert decide_job(running, by, at(100)).actions == ()


def test_a_failure_waits_for_rules_that_may_know_better() -> None:
    job = make_snapshot(make_state(*RUNNING), failed(2, "EFA device is down"))
    unread = replace(DEFAULT, policy_error="policy version 9 is not for me")
    assert decided(job, unread) == []
    assert "cannot be read" in decide_job(job, unread, at(100)).waiting["job-1"]
    finished = make_snapshot(make_state(*RUNNING), make_facts(2, left=make_exit("succeeded")))
    ((event, _),) = decided(finished, unread)
    assert isinstance(event, Ended) and event.outcome == "succeeded"
    waits = make_snapshot(make_state(), spec=make_spec(limits=Limits(max_wait_s=1)), offerings=Known((SPOT_A,)))
    assert decided(waits, unread, now_s=1000.0) == [], "it waits for the rules, and for no machine"


def test_the_bound_of_the_policy_ends_a_job_that_has_none() -> None:
    facts = make_facts(2, beat=make_beat(95, trained_s=700.0, checkpoint_files=1))
    job = make_snapshot(make_state(*RUNNING), facts)
    ((event, reason),) = decided(job, settings("max_runtime: 10m"))
    assert event == Draining(claim=2, outcome="limit", rule="policy:max-runtime")
    assert reason == "policy max-runtime (10 min of training) is reached"
    assert decided(job, settings("max_runtime: 20m")) == []
    own = make_snapshot(make_state(*RUNNING), facts, spec=make_spec(limits=Limits(max_runtime_s=100)))
    ((event, _),) = decided(own, settings("max_runtime: 10m"))
    assert event == Draining(claim=2, outcome="limit", rule="max_runtime"), "the tighter one is the job's own"


def test_one_that_is_watched_only_is_told_and_ends_nothing() -> None:
    facts = make_facts(2, beat=make_beat(95, trained_s=700.0, checkpoint_files=1))
    job = make_snapshot(make_state(*RUNNING), facts)
    by = settings("max_runtime: 10m, audit: true")
    ((event, reason),) = decided(job, by)
    assert event == Warned(code="policy:max-runtime") and reason.endswith("audit: nothing is done")
    told = make_snapshot(make_state(*RUNNING, event), facts)
    assert decided(told, by) == []


def failed(claim: int, *tail: str, trained_s: float = 10.0, checkpoint: bool = True) -> NodeFacts:
    saved = CheckpointRef("00000002/000001-step-1", "step-1") if checkpoint else None
    left = make_exit("failed", code=1, tail=tail, trained_s=trained_s, checkpoint=saved, started=True)
    return make_facts(claim, left=left)


def test_the_policy_knows_what_a_failure_means() -> None:
    by = settings(
        "name: efa, failure: {log: 'EFA .* down'}", "name: ours, failure: {log: NCCL, exit_code: 1}, then: stop"
    )
    job = make_snapshot(make_state(*RUNNING), failed(2, "EFA device is down"))
    ((event, reason),) = decided(job, by)
    assert isinstance(event, Closed) and (event.rule, event.outcome, event.restart) == (
        *("policy:efa", "infrastructure", True),
    )
    assert reason.startswith("policy efa: ")
    nccl = make_snapshot(make_state(*RUNNING), failed(2, "NCCL error"))
    ((event, _),) = decided(nccl, by)
    assert isinstance(event, Ended) and event.rule == "policy:ours"
    told = replace(nccl, state=make_state(*RUNNING, Warned(code="policy:ours")))
    ((event, _),) = decided(told, settings("name: ours, failure: {log: NCCL}, then: stop, audit: true"))
    assert isinstance(event, Closed) and event.rule == "nccl"


def test_a_long_training_that_fails_without_a_reason_goes_on_from_its_checkpoint() -> None:
    long = make_snapshot(make_state(*RUNNING), failed(2, trained_s=7200.0))
    ((event, reason),) = decided(long, DEFAULT)
    assert isinstance(event, Closed) and (event.rule, event.restart, event.counted) == ("resumed", True, False)
    assert reason.endswith("it had trained for long: resume 1 of 3")
    short = make_snapshot(make_state(*RUNNING), failed(2, trained_s=7199.0))
    bare = make_snapshot(make_state(*RUNNING), failed(2, trained_s=7200.0, checkpoint=False))
    for job, by in ((short, DEFAULT), (bare, DEFAULT), (long, settings("resume: {times: 0}"))):
        ((event, _),) = decided(job, by)
        assert isinstance(event, Ended) and event.rule == "user-error"
    ((event, reason),) = decided(short, settings("resume: {min_runtime: 1h}"))
    assert isinstance(event, Closed) and event.rule == "resumed"
    assert reason.endswith("resume 1 of 3 (policy resume)")


def test_it_is_resumed_a_few_times_only() -> None:
    events: list[Event] = []
    for number in (2, 5, 8):
        events += [Claimed(offering=SPOT_A, nodes=1), Launched(number, nodes(number))]
        events.append(Closed(claim=number, outcome="failed", rule="resumed", restart=True, progressed=True))
    events += [Claimed(offering=SPOT_A, nodes=1), Launched(11, nodes(11))]
    job = make_snapshot(make_state(*events), failed(11, trained_s=9000.0))
    for by, whose in ((DEFAULT, ""), (settings("name: thrice, resume: {times: 3}"), " (policy thrice)")):
        ((event, reason),) = decided(job, by)
        assert isinstance(event, Ended) and event.rule == "user-error"
        assert reason.endswith(f"; it was resumed 3 of 3 times{whose}")


def test_a_policy_gives_spot_up_also_for_who_wants_nothing_else() -> None:
    taken: list[Event | tuple[Event, float]] = []
    for number in (2, 5):
        taken += [Claimed(offering=SPOT_A, nodes=1), Launched(number, nodes(number))]
        taken.append(Closed(claim=number, outcome="reclaimed", rule="notice", restart=True, progressed=True))
    alone = make_spec(spot="only")
    by = settings("spot: {on_demand_after: 1}")
    often = make_snapshot(make_state(*taken), spec=alone, offerings=Known((SPOT_A, ON_DEMAND)))
    ((event, reason),) = decided(often, by)
    assert isinstance(event, Claimed) and event.offering == ON_DEMAND
    assert reason.endswith("on-demand after 2 reclaims (policy spot)")
    for rules in (DEFAULT, settings("spot: {on_demand_after: 2}"), settings("spot: {on_demand_after: null}")):
        ((event, _),) = decided(often, rules)
        assert isinstance(event, Claimed) and event.offering == SPOT_A
    # Until then nothing else will do, however long there is none.
    once = make_snapshot(make_state(*taken[:3]), spec=alone, offerings=Known((ON_DEMAND,)))
    plan = decide_job(once, by, at(1e6))
    assert not any(isinstance(action, Launch) for action in plan.actions)


def test_reclaims_are_forgotten_where_the_policy_says_so() -> None:
    taken: list[Event | tuple[Event, float]] = []
    for number, moment in ((2, 10.0), (5, 20.0), (8, 30.0)):
        taken += [(Claimed(offering=SPOT_A, nodes=1), moment), (Launched(number, nodes(number)), moment)]
        closed = Closed(claim=number, outcome="reclaimed", rule="notice", restart=True, progressed=True)
        taken.append((closed, moment + 5))
    job = make_snapshot(make_state(*taken), offerings=Known((SPOT_A, ON_DEMAND)))
    by = settings("spot: {on_demand_after: 2, back_after: 1h}")
    for now_s, spot in ((100.0, False), (4000.0, True)):
        plan = decide_job(job, by, at(now_s))
        claims = [action.event for action in plan.actions if isinstance(action, Append)]
        assert [event.offering.spot for event in claims if isinstance(event, Claimed)] == [spot]
        assert any(isinstance(action, Launch) for action in plan.actions)
    ((event, _),) = decided(job, settings("spot: {on_demand_after: 3}"))
    assert isinstance(event, Claimed) and event.offering.spot


def test_a_bound_that_only_warns_is_told_when_it_is_reached_and_ends_nothing() -> None:
    by = settings("name: long, max_runtime: 10m, then: warn", "name: dear, max_cost: 0.1, then: warn")
    young = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(100.0, trained_s=90.0)))
    assert decided(young, by) == []
    old = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(4000.0, trained_s=3900.0)))
    ((event, reason),) = decided(old, by, 4000.0)
    assert event == Warned(code="policy:long") and reason == "policy long (10 min of training) is reached"
    told = replace(old, state=make_state(*RUNNING, event))
    ((event, reason),) = decided(told, by, 4000.0)
    assert event == Warned(code="policy:dear") and reason == "policy dear ($0.1) is reached: $1.11 spent"
    both = replace(old, state=make_state(*RUNNING, Warned("no-checkpoint:2"), Warned("policy:long"), event))
    assert decided(both, by, 4000.0) == []


def test_one_that_stands_still_is_looked_at_before_it_is_ended() -> None:
    by = settings("name: hangs, stall: {}")
    still = Activity(silent_s=1000.0, work=NO_WORK)

    def job(*events: Event | tuple[Event, float], evidence: tuple[str, ...] = ()) -> JobSnapshot:
        # Long enough for the rule, and too short for the warning about checkpoints.
        beat = make_beat(995, trained_s=1000.0, checkpoint_files=1, activity=still, evidence=evidence)
        return make_snapshot(make_state(*RUNNING, *events), make_facts(2, beat=beat))

    ((warned, reason),) = decided(job(), by, 1000.0)
    assert warned == Warned(code="policy:hangs:2", evidence=True) and reason.startswith("policy hangs: no step")
    told = (warned, 990.0)
    assert decided(job(told), by, 1000.0) == [], "its ranks are still collecting what they were doing"
    ended = Draining(claim=2, outcome="infrastructure", rule="policy:hangs")
    assert [event for event, _ in decided(job(told, evidence=("policy:hangs:2",)), by, 1000.0)] == [ended]
    late = (warned, 990.0 - DEFAULT.evidence_s)
    assert [event for event, _ in decided(job(late), by, 1000.0)] == [ended], "and are not waited for without end"
    seen = ("policy:hangs:2",)
    assert [event for event, _ in decided(job((warned, 50.0), evidence=seen), by, 1000.0)] == [ended], (
        "looked at seldom"
    )


def test_one_that_stands_still_another_time_is_looked_at_again() -> None:
    by = settings("name: hangs, stall: {}")
    still = Activity(silent_s=1000.0, work=NO_WORK)
    first, second = (Warned(code=f"policy:hangs:{number}2", evidence=True) for number in ("", "2:"))

    def job(*events: Event | tuple[Event, float], evidence: tuple[str, ...] = ()) -> JobSnapshot:
        beat = make_beat(4995, trained_s=1000.0, checkpoint_files=1, activity=still, evidence=evidence)
        return make_snapshot(make_state(*RUNNING, *events), make_facts(2, beat=beat))

    assert decided(job((first, 3900.0), evidence=(first.code,)), by, 5000.0)[0][0] == second
    assert decided(job((first, 3900.0), (second, 4995.0), evidence=(first.code,)), by, 5000.0) == []
    both = job((first, 3900.0), (second, 4995.0), evidence=(first.code, second.code))
    ((event, _),) = decided(both, by, 5000.0)
    assert event == Draining(claim=2, outcome="infrastructure", rule="policy:hangs")


def test_a_rule_that_counts_from_now_on_begins_with_a_word() -> None:
    """Whatever it said while it was only watched, or only warned."""
    idle = Activity(silent_s=1000.0, work=NO_WORK)
    beat = make_beat(995, trained_s=1000.0, checkpoint_files=1, activity=idle)
    audit = Warned(code="policy:hangs:audit:2")
    watched = make_snapshot(make_state(*RUNNING), make_facts(2, beat=beat))
    assert decided(watched, settings("name: hangs, stall: {}, audit: true"), 1000.0)[0][0] == audit
    told = make_snapshot(make_state(*RUNNING, (audit, 990.0)), make_facts(2, beat=beat))
    assert decided(told, settings("name: hangs, stall: {}, audit: true"), 1000.0) == []
    ((event, _),) = decided(told, settings("name: hangs, stall: {}"), 1000.0)
    assert event == Warned(code="policy:hangs:2", evidence=True)
    warned = make_snapshot(make_state(*RUNNING, (event, 100.0)), make_facts(2, beat=beat))
    assert decided(warned, settings("name: hangs, stall: {}, then: warn"), 1000.0) == [], "a warning is told once"


def test_a_job_waits_for_a_price_that_is_not_known() -> None:
    unknown = replace(ON_DEMAND, price=None, on_demand_price=None)
    by, spec = settings("name: dear, max_cost: 500"), make_spec(spot="never")
    taken = Closed(2, "reclaimed", "spot-reclaim", restart=True)
    trained = make_state(Claimed(offering=unknown, nodes=1), Launched(2, nodes(2)), taken)
    for state in (make_state(), trained):
        plan = decide_job(make_snapshot(state, spec=spec, offerings=Known((unknown,))), by, at(100.0))
        assert plan.actions == () and plan.waiting["job-1"].startswith("policy dear needs a known price")
        assert plan.wake_at == at(700.0)


def test_spot_of_unknown_price_costs_at_most_what_on_demand_does() -> None:
    spot = replace(SPOT_A, price=None)
    ((event, _),) = decided(make_snapshot(make_state(), offerings=Known((spot,))), settings("max_cost: 500"))
    assert event == Claimed(offering=spot, nodes=1)


def test_rules_that_together_allow_nothing_refuse_the_job() -> None:
    by = settings("name: small, machines: [m1]", "name: large, machines: [m2]")
    offered = (SPOT_A, replace(SPOT_A, machine="m2"))
    ((event, reason),) = decided(make_snapshot(make_state(), offerings=Known(offered)), by)
    assert event == Ended(outcome="failed", rule="policy:small")
    assert reason == (
        "policy small: together these rules allow nothing that would do: small allows m1; large allows m2"
    )


def test_of_two_bounds_that_are_only_watched_both_are_told() -> None:
    by = settings("name: long, max_runtime: 10s, audit: true", "name: dear, max_cost: 0.01, audit: true")
    facts = make_facts(2, beat=make_beat(3000.0, trained_s=2000.0))
    ((event, reason),) = decided(make_snapshot(make_state(*RUNNING), facts), by, 3000.0)
    assert (event, reason) == (
        Warned(code="policy:long"),
        "policy long (10 s of training) is reached; audit: nothing is done",
    )
    told = make_state(*RUNNING, Warned(code="policy:long"))
    ((event, _),) = decided(make_snapshot(told, facts), by, 3000.0)
    assert event == Warned(code="policy:dear")
    both = make_state(*RUNNING, Warned(code="policy:long"), Warned(code="policy:dear"))
    ((event, _),) = decided(make_snapshot(both, facts), by, 3000.0)
    assert event == Warned(code="no-checkpoint:2"), "what else there is to tell"


def test_what_watched_rules_would_make_of_a_failure_is_told_once() -> None:
    facts = failed(2, trained_s=50.0)
    for rule, reason in (
        ("name: known, failure: {exit_code: 1}", "policy known (audit): attempt 1 would be followed by another: "),
        ("name: short, resume: {min_runtime: 1s}", "policy short (audit): attempt 1 would be followed by another: "),
    ):
        by, name = settings(f"{rule}, audit: true"), rule.split(",")[0].removeprefix("name: ")
        ((event, why),) = decided(make_snapshot(make_state(*RUNNING), facts), by)
        assert event == Warned(code=f"policy:{name}") and why.startswith(reason), why
        told = make_state(*RUNNING, Warned(code=f"policy:{name}"))
        ((event, _),) = decided(make_snapshot(told, facts), by)
        assert isinstance(event, Ended) and event.outcome == "failed", "and nothing is done"


def test_watched_rules_that_change_nothing_beside_those_that_count_are_not_told() -> None:
    job = make_snapshot(make_state(*RUNNING), failed(2, "EFA device is down"))
    counting = "name: efa, failure: {log: EFA}"
    ((event, reason),) = decided(job, settings(counting))
    assert isinstance(event, Closed) and event.rule == "policy:efa"
    for watched in ("name: later, failure: {log: EFA}, then: stop", "name: none, resume: {times: 0}"):
        assert decided(job, settings(counting, f"{watched}, audit: true")) == [(event, reason)]
    ((told, _),) = decided(job, settings("name: first, failure: {log: EFA}, then: stop, audit: true", counting))
    assert told == Warned(code="policy:first")


def test_that_a_watched_rule_would_give_spot_up_is_told_once() -> None:
    by = settings("spot: {on_demand_after: 0}, audit: true")
    taken = (*RUNNING, Closed(2, "reclaimed", "notice", restart=True))
    ((event, reason),) = decided(make_snapshot(make_state(*taken)), by)
    assert event == Warned(code="policy:spot")
    assert reason == "policy spot (audit): the next attempt would get m1 on-demand in a: on-demand after 1 reclaim"
    ((event, _),) = decided(make_snapshot(make_state(*taken, Warned(code="policy:spot"))), by)
    assert event == Claimed(offering=SPOT_A, nodes=1)
