"""A failed machine is held within the bounds of the policy, for any job, and all know until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from stoker.agent import hold as staying
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.hold import LEAVE_S, hold_of, longest_held
from stoker.core.longest_life import longest_life_s
from stoker.core.policy_rules import Subject, effective_limits
from stoker.core.snapshot import Append, JobSnapshot, Terminate
from stoker.core.summary import summarize
from stoker.model.job_state import Entry, JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, ResumeAsked
from stoker.model.observed import Known
from stoker.model.spec import Limits, Retry, Spec
from stoker.model.submission import Submission
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    ON_DEMAND,
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

HOUR, DAY = 3600.0, 86400.0
# Thirty dollars an hour. It failed after the first of them.
DEAR = replace(ON_DEMAND, price=30.0, on_demand_price=30.0)
RAN: tuple[tuple[Event, float], ...] = ((Claimed(DEAR, 1), 0.0), (Launched(2, nodes(2)), 0.0))
ASKED_S = 30 * DAY
# What is left of $50, less the time to leave.
PAID_S = 20 / 30 * HOUR - LEAVE_S


def policy(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts) if texts else "rules: []\n"
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def asking(hold_s: float = ASKED_S, **limits: float) -> Spec:
    return replace(make_spec(limits=Limits(**limits)), retry=Retry(hold_on_failure_s=hold_s))


def judged(by: GovernorSettings, spec: Spec) -> JobState:
    """The job after a governor has found that its script failed."""
    state = make_state(*RAN)
    left = make_exit("failed", code=1, trained_s=3000.0)
    job = make_snapshot(state, make_facts(2, beat=make_beat(HOUR), left=left), spec=spec)
    (action,) = [each for each in decide_job(job, by, at(HOUR)).actions if isinstance(each, Append)]
    assert isinstance(action.event, Ended)
    after = fold(state.job, [Entry(4, at(HOUR), action.reason, action.event)], state)
    assert after is not None
    return after


def until(state: JobState, spec: Spec) -> datetime | None:
    hold = hold_of(state, spec)
    return hold.until if hold is not None else None


@pytest.mark.parametrize(
    ("rules", "held_s"),
    [
        ((), ASKED_S),
        (("max_cost: 50",), PAID_S),
        (("max_runtime: 2h",), 2 * HOUR),
        (("max_cost: 50", "max_runtime: 20m"), 20 * 60),
        (("max_runtime: 2h, then: refuse",), 2 * HOUR),
        (("max_cost: 50, then: warn", "max_runtime: 2h, then: warn"), ASKED_S),
        (("max_cost: 50, audit: true", "max_runtime: 2h, audit: true"), ASKED_S),
        (("max_cost: 30.5",), None),
    ],
    ids=["no rules", "money", "time", "both", "refuses", "warns", "watches", "nothing is left"],
)
def test_who_ends_the_job_writes_down_for_how_long(rules: tuple[str, ...], held_s: float | None) -> None:
    spec = asking()
    state = judged(policy(*rules), spec)
    wanted = None if held_s is None else at(HOUR + held_s)
    found = until(state, spec)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        assert abs((found - wanted).total_seconds()) < 1e-3
    # The machine reads it in the log, and leaves by itself.
    stay = staying.hold_limit(spec, 2, state)
    assert stay.judged and stay.longest_s == pytest.approx(held_s or 0.0)
    # So does who asks what is held.
    facts = {2: (make_facts(2, beat=make_beat(HOUR + 5, "held"), left=make_exit("failed", code=1)),)}
    told = summarize(state, Submission(state.job, spec, "jane"), facts, at(HOUR + 10)).held
    assert (told.until if told else None) == found
    # And who counts what it costs.
    assert longest_held(state, spec, at(90 * DAY)).get(2) == found


def test_nothing_is_written_where_nothing_is_asked_for() -> None:
    state = judged(policy("max_cost: 50"), make_spec())
    assert state.claims[0].closed is not None and state.claims[0].closed.hold_s is None


def test_what_was_held_before_a_resume_is_known_too() -> None:
    spec = asking()
    state = judged(policy("max_runtime: 2h"), spec)
    after = fold(state.job, [Entry(5, at(9 * HOUR), "", ResumeAsked("joe"))], state)
    assert after is not None
    assert longest_held(after, spec, at(20 * HOUR)) == {2: at(3 * HOUR)}


def ended_before(spec: Spec, *more: Event) -> JobSnapshot:
    """Ended by somebody who wrote nothing down, or before there was a rule. Its machine is there."""
    closed = Closed(2, "failed", "user-error")
    state = make_state(*RAN, (Ended("failed", "user-error", 2, closing=closed), HOUR), *more)
    return make_snapshot(state, spec=spec, instances=Known((make_instance(2),)), states={"i-2-0": "running"})


@pytest.mark.parametrize(("rule", "held_s"), [("max_cost: 50", PAID_S), ("max_runtime: 2h", 2 * HOUR)])
def test_governors_end_what_is_over_by_the_rules_of_today(rule: str, held_s: float) -> None:
    job, over_s = ended_before(asking()), HOUR + held_s + LEAVE_S
    early = decide_job(job, policy(rule), at(over_s - 1))
    assert early.actions == () and "held for a look until" in early.waiting["job-1"]
    assert early.wake_at is not None and abs((early.wake_at - at(over_s)).total_seconds()) < 1e-3
    late = decide_job(job, policy(rule), at(over_s + 1))
    assert [each.instance for each in late.actions if isinstance(each, Terminate)] == ["i-2-0"]
    assert decide_job(job, policy(), at(over_s + 1)).actions == ()


# ── Whoever governs ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_longest_life_has_room_for_the_hold_that_the_policy_allows() -> None:
    def life_s(rule: str, burn_s: float = 0.0, **limits: float) -> float | None:
        subject = Subject(asking(**limits), at(0).date(), "job-1")
        return longest_life_s(effective_limits(policy(rule).policy, subject).spec, burn_s)

    none = longest_life_s(make_spec(limits=Limits(max_runtime_s=DAY)))
    assert none is not None
    assert life_s("max_nodes: 1", max_runtime_s=DAY) == none + ASKED_S
    assert life_s("max_runtime: 24h") == none + DAY
    assert life_s("max_cost: 50", 30 / HOUR, max_runtime_s=DAY) == pytest.approx(none + 50 / 30 * HOUR)
    assert life_s("max_cost: 50", max_runtime_s=DAY) == none + ASKED_S, "nobody knows what it costs"
    assert life_s("max_cost: 50", 30 / HOUR) is None
