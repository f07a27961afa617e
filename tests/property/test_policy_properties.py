"""What no policy ever does, for any rules and any observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from perfect_world import step
from snapshots import MOMENTS, NUMBERS, snapshots

from stoker.core import policy_rules
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.market import NO_HISTORY
from stoker.core.snapshot import Append, JobSnapshot, Launch, Plan, Terminate
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Launched, Warned
from stoker.model.node_facts import Activity, Heartbeat, NodeFacts, Series
from stoker.model.observed import Known, Stamped
from stoker.model.policy import Rule
from stoker.model.usage_series import pack
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    ON_DEMAND,
    SPOT_A,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

pytestmark = pytest.mark.slow

SEARCH = settings(
    max_examples=250,
    deadline=None,  # The machine may be busy; nothing here is about time.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

# ── Policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────

STANDSTILLS = st.sampled_from(
    [
        "stall: {window: 10s, windows: 1, after: 0s, working: 0s}",
        "stall: {window: 10s, windows: 2, after: 5s, below: 50%}, then: stop",
        "stall: {window: 1m, after: 0s}, then: warn",
        "stall: {window: 1m, after: 0s, steps: 1h}",
        "stall: {window: 10s, windows: 1, after: 0s, warn_before: 5m}, then: stop",
        "min_gpu_utilization: {value: 90%, over: 10s, after: 0s}, then: stop",
        "min_gpu_utilization: {value: 1%, over: 1m}",
    ]
)
OTHERS = st.sampled_from(
    [
        "tags: {team: any}",
        "tags: {team: [vision, nlp]}, then: warn",
        "tags: {ticket: '/[A-Z]+-[0-9]+/'}",
        "providers: [ec2]",
        "providers: [sim]",
        "regions: [us-*]",
        "machines: [m2]",
        "machines: ['m*']",
        "machines: [m2], then: warn",
        "images: [good/*]",
        "max_nodes: 1",
        "max_nodes: 2, then: warn",
        "max_runtime: 10s",
        "max_runtime: 1h, then: refuse",
        "max_runtime: 5m, then: warn",
        "max_wait: 10s",
        "max_wait: 10s, then: on-demand",
        "max_wait: 1h, then: on-demand",
        "max_cost: 0.01",
        "max_cost: 5, then: refuse",
        "budget: {dollars: 5, period: day}",
        "budget: {dollars: 5, period: month, by: team}, then: warn",
        "max_retries: 0",
        "resume: {min_runtime: 1s, times: 2}",
        "resume: {times: 0}",
        "spot: {on_demand_after: 1}",
        "spot: {on_demand_after: 1, back_after: 10s}",
        "market: {most_reclaims: 0}",
        "market: {most_reclaims: 1, over: 1m}, then: warn",
        "failure: {exit_code: 1}",
        "failure: {log: Value, exit_code: 1}, then: stop",
        "failure: {evidence: oom}",
    ]
)
WHOM = st.sampled_from(
    [
        *("", "", ""),
        *(", for: {team: vision}", ", for: {team: any}", ", for: {team: nlp}", ", for: {other: any}"),
        ", except: [{job: sim, until: 2026-01-01, why: a demo}]",
        ", except: [{job: job-1, until: 2999-01-01, why: a demo}]",
        ", except: [{job: sim, until: 2025-12-31, why: it is over}]",
    ]
)


@st.composite
def policies(
    draw: st.DrawFn, bodies: st.SearchStrategy[str] = OTHERS | STANDSTILLS, audit: bool | None = None
) -> GovernorSettings:
    lines = []
    for number, body in enumerate(draw(st.lists(bodies, min_size=1, max_size=4))):
        watched = draw(st.booleans()) if audit is None else audit
        lines.append(f"- {{name: r{number}, {body}{draw(WHOM)}{', audit: true' if watched else ''}}}\n")
    # As it is read from a store: the ids of these jobs are short.
    policy = parse_policy(("rules:\n" + "".join(lines)).encode(), "p.yaml", version=1)
    # Evidence is waited for, or not.
    return replace(DEFAULT, policy=policy, evidence_s=draw(st.sampled_from([0.0, 60.0])))


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

SERIES = st.one_of(
    st.builds(
        lambda share, devices, gap: pack(2.0, [[*[share] * 40, None if gap else share, *[share] * 5]] * devices),
        st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        st.integers(1, 2),
        st.sampled_from([False, False, True]),
    ),
    st.sampled_from(
        [Series(float("nan"), 1, "AAAA"), Series(5e-324, 1, "AAAA"), Series(1.0, 3, "AAAA"), Series(1, 1, "?")]
    ),
)
AGES_S = st.sampled_from([0.0, 5.0, 1e4, 1e4, 1e4, 1e18])
STILL = (pack(2.0, [[0.0] * 60]),)
# Nothing moves, and all of it is seen.
IDLE = st.builds(
    Activity,
    silent_s=st.just(1e4),
    work=st.just(STILL),
    utilization=st.just((pack(2.0, [[0.0] * 60] * 2),)),
    devices=st.integers(0, 2),
)
ACTIVITIES = IDLE | st.builds(
    Activity,
    silent_s=AGES_S | NUMBERS,
    work=st.lists(SERIES, max_size=2).map(tuple),
    stepped_s=st.none() | AGES_S | NUMBERS,
    longest_step_s=st.just(0.0) | AGES_S | NUMBERS,
    saving_s=st.none() | AGES_S | NUMBERS,
    debugged_s=st.none() | st.none() | AGES_S | NUMBERS,
    released_s=st.none() | AGES_S | NUMBERS,
    utilization=st.lists(SERIES, max_size=2).map(tuple),
    devices=st.sampled_from([0, 0, 1, 1, 2, -1, 10**30]),
)


@st.composite
def running(draw: st.DrawFn) -> JobSnapshot:
    """One whose only attempt trains, and has for long: all that rules about standstills look at."""
    count = draw(st.integers(1, 2))
    offering = replace(draw(st.sampled_from([SPOT_A, ON_DEMAND])), gpus=draw(st.sampled_from([0, 1, 1, 2])))
    state = make_state(Claimed(offering=offering, nodes=count), Launched(2, nodes(2, count)))
    trained_s = draw(st.sampled_from([1e5, 1e5, 1e5, 1.0]))
    beats = [make_beat(draw(st.sampled_from([15.0, 15.0, 15.0, -100.0])), trained_s=trained_s) for _ in range(count)]
    facts = [make_facts(2, rank, beat=beat) for rank, beat in enumerate(beats)]
    return make_snapshot(state, *facts, spec=make_spec(count), states={node.instance: "running" for node in nodes(2)})


def with_activities(job: JobSnapshot, told: Sequence[Activity | None]) -> JobSnapshot:
    """The same job, whose nodes tell what they do, in turn."""
    turns = cycle(told)

    def tells(facts: NodeFacts) -> NodeFacts:
        if not isinstance(facts.heartbeat, Known) or facts.heartbeat.value is None:
            return facts
        beat: Stamped[Heartbeat] = facts.heartbeat.value
        return replace(facts, heartbeat=Known(replace(beat, value=replace(beat.value, activity=next(turns)))))

    facts = {number: tuple(tells(each) for each in of_claim) for number, of_claim in job.facts.items()}
    return replace(job, facts=facts)


@st.composite
def seen(draw: st.DrawFn, activity: st.SearchStrategy[Activity | None] = ACTIVITIES) -> tuple[JobSnapshot, datetime]:
    """A job with tags, whose nodes tell what they do, and now."""
    lives = draw(st.booleans())
    job = draw(running() if lives else snapshots())
    now = job.state.updated_at + timedelta(seconds=draw(st.sampled_from([10.0, 10.0, 30.0]) if lives else MOMENTS))
    tags: dict[str, str] = draw(st.sampled_from([{}, {"team": "vision"}, {"team": "nlp", "ticket": "AB-1"}]))
    stall_s = draw(st.sampled_from([None, None, None, 5.0]))
    spec = replace(job.spec, tags=tags, limits=replace(job.spec.limits, stall_s=stall_s))
    told = draw(st.lists(activity, min_size=1, max_size=2))
    return with_activities(replace(job, spec=spec), told), now


def effects(plan: Plan) -> list[object]:
    """What it does to machines and to the job. Numbers of claims to come depend on how much was told before."""
    found: list[object] = []
    for action in plan.actions:
        match action:
            case Append(event=Claimed() as event):
                found.append(event)
            case Append(event=Closed() | Ended() | Draining() as event, reason=reason):
                found.append((event, reason))
            case Launch(reason=reason):
                found.append(("launch", reason))
            case Terminate():
                found.append(action)
    return found


def without_words(job: JobSnapshot, settings: GovernorSettings, now: datetime) -> Plan:
    """The plan that is left when all that is only told has been told."""
    for _ in range(50):
        plan = decide_job(job, settings, now)
        told = [action for action in plan.actions if isinstance(action, Append) and isinstance(action.event, Warned)]
        if not told:
            return plan
        job = step(job, tuple(told), now)
    raise AssertionError("it never stops talking")


# ── Properties ────────────────────────────────────────────────────────────────────────────────────────────────────────


@SEARCH
@given(seen(), policies(audit=True))
def test_rules_that_are_only_watched_change_nothing(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = found
    plain = replace(settings, policy=DEFAULT.policy)
    assert effects(without_words(job, settings, now)) == effects(without_words(job, plain, now))
    for action in decide_job(job, settings, now).actions:
        if isinstance(action, Append) and isinstance(action.event, Warned):
            policy = action.event.code.startswith(policy_rules.PREFIX)
            assert not (policy and action.event.evidence), "nobody is looked into for a rule that does nothing"


@SEARCH
@given(running(), policies(STANDSTILLS, audit=True))
def test_one_that_stands_still_by_a_rule_that_is_only_watched_goes_on(
    job: JobSnapshot, settings: GovernorSettings
) -> None:
    idle = Activity(1e4, work=STILL, utilization=(pack(2.0, [[0.0] * 60] * 2),), devices=2)
    now = job.state.updated_at + timedelta(seconds=10)
    assert effects(without_words(with_activities(job, [idle]), settings, now)) == []


@SEARCH
@given(seen(), policies())
def test_no_plan_both_launches_and_ends(found: tuple[JobSnapshot, datetime], settings: GovernorSettings) -> None:
    job, now = found
    plan = decide_job(job, settings, now)
    launched = {action.claim for action in plan.actions if isinstance(action, Launch)}
    events = [action.event for action in plan.actions if isinstance(action, Append)]
    assert len(events) <= 1
    for event in events:
        if launched:
            assert not isinstance(event, Ended)
            assert not (isinstance(event, Draining | Closed) and event.claim in launched)
            assert not (isinstance(event, Draining) and event.rule.startswith(policy_rules.PREFIX))
    for instance in (action.instance for action in plan.actions if isinstance(action, Terminate)):
        of_claim = [
            claim.number for claim in job.state.claims if instance in [n.instance for n in claim.launched or ()]
        ]
        assert not launched & set(of_claim)


@SEARCH
@given(seen(st.none()), policies(STANDSTILLS))
def test_a_node_that_does_not_tell_what_it_does_is_not_idle(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = found
    assert decide_job(job, settings, now) == decide_job(job, replace(settings, policy=DEFAULT.policy), now)


@SEARCH
@given(
    seen(st.sampled_from([Activity(1e4, work=STILL, devices=1), Activity(1e4, devices=0)])),
    policies(STANDSTILLS),
)
def test_accelerators_or_processors_that_nobody_sees_are_not_idle(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = found
    spec = replace(job.spec, limits=replace(job.spec.limits, stall_s=None))
    job = replace(job, spec=spec)
    assert decide_job(job, settings, now) == decide_job(job, replace(settings, policy=DEFAULT.policy), now)


@SEARCH
@given(
    running(),
    policies(STANDSTILLS),
    st.sampled_from(["silent_s", "stepped_s", "released_s", "saving_s", "trained_s", "interval_s"]),
)
def test_what_is_no_number_is_no_age(job: JobSnapshot, settings: GovernorSettings, field: str) -> None:
    now = job.state.updated_at + timedelta(seconds=10)
    idle = Activity(1e4, work=STILL, utilization=(pack(2.0, [[0.0] * 60] * 2),), devices=2)
    settings = replace(
        settings, policy=replace(settings.policy, rules=tuple(r for r in settings.policy.rules if r.stall))
    )
    nan: dict[str, Any] = {field: float("nan")}
    if field.endswith("ed_s") and field != "trained_s":
        idle = replace(idle, stepped_s=1e4)
    if field not in ("trained_s", "interval_s"):
        job = with_activities(job, [replace(idle, **nan)])
    else:
        job = with_activities(job, [idle])
        job = replace(job, facts={2: tuple(_changed(facts, nan) for facts in job.facts[2])})
    if field == "saving_s":
        # Whose processors may work is given longer, and that is over, too.
        settings = replace(settings, policy=replace(settings.policy, rules=tuple(map(_patient, settings.policy.rules))))
    assert decide_job(job, settings, now) == decide_job(job, replace(settings, policy=DEFAULT.policy), now)


def _changed(facts: NodeFacts, changes: dict[str, Any]) -> NodeFacts:
    assert isinstance(facts.heartbeat, Known) and facts.heartbeat.value is not None
    beat = facts.heartbeat.value
    return replace(facts, heartbeat=Known(replace(beat, value=replace(beat.value, **changes))))


def _patient(rule: Rule) -> Rule:
    assert rule.stall is not None
    return replace(rule, stall=replace(rule.stall, working_s=1e6))


@SEARCH
@given(seen(), policies(), st.booleans())
def test_rules_that_cannot_be_read_launch_nothing_and_end_nothing(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings, blank: bool
) -> None:
    """`blank`: none was ever read; else those before it hold on. What they end is all that is ended."""
    job, now = found
    known = replace(settings, policy=DEFAULT.policy) if blank else settings
    plan = decide_job(job, replace(known, policy_error="version 9 is not for me"), now)
    events = [action.event for action in plan.actions if isinstance(action, Append)]
    assert not any(isinstance(event, Claimed) for event in events)
    for action in plan.actions:
        if isinstance(action, Launch):
            claim = job.state.claim(action.claim)
            assert claim is not None and claim.open, "it was decided on when the rules could be read"
    ends = [each for each in effects(plan) if not isinstance(each, Claimed)]
    assert [each for each in effects(decide_job(job, known, now)) if each in ends] == ends


@SEARCH
@given(seen(), policies())
def test_rules_never_break_a_governor_and_their_words_end(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = found
    plan = without_words(job, settings, now)
    for action in plan.actions:
        if isinstance(action, Append) and isinstance(action.event, Claimed):
            subject = policy_rules.Subject(job.spec, now.date(), job.state.job)
            assert policy_rules.allowed(settings.policy, subject, [action.event.offering]), (
                "what is forbidden is not taken"
            )


@SEARCH
@given(seen(), policies(st.sampled_from(["market: {most_reclaims: 0}", "market: {over: 1m}, then: warn"])))
def test_a_market_of_which_nothing_is_known_breaks_no_rule(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = replace(found[0], market=NO_HISTORY), found[1]
    assert decide_job(job, settings, now) == decide_job(job, replace(settings, policy=DEFAULT.policy), now)


@SEARCH
@given(seen(), policies())
def test_spot_that_is_taken_back_too_often_is_never_claimed(
    found: tuple[JobSnapshot, datetime], settings: GovernorSettings
) -> None:
    job, now = found
    subject = policy_rules.Subject(job.spec, now.date(), job.state.job)
    for action in without_words(job, settings, now).actions:
        if isinstance(action, Append) and isinstance(action.event, Claimed):
            often = policy_rules.reclaimed_too_often(settings.policy, subject, [action.event.offering], job.market, now)
            assert not any(finding.refuses for _, finding in often)


@pytest.mark.parametrize("subject", ["stall", "min_gpu_utilization"])
def test_the_generators_reach_what_they_are_for(subject: str) -> None:
    """Some of what is generated does stand still, or waste: the properties above are about something."""

    def drains(pair: tuple[tuple[JobSnapshot, datetime], GovernorSettings]) -> bool:
        (job, now), settings = pair
        codes = {f"{policy_rules.PREFIX}{rule.name}" for rule in settings.policy.about(subject)}
        plan = without_words(job, settings, now)
        events = [action.event for action in plan.actions if isinstance(action, Append)]
        return any(isinstance(event, Draining) and event.rule in codes for event in events)

    # Any will do: the smallest is not looked for.
    once = settings(SEARCH, max_examples=1000, phases=[Phase.generate])
    find(st.tuples(seen(), policies(STANDSTILLS, audit=False)), drains, settings=once)
