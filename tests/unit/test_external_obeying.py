"""Single decisions about a training job of others, from what was seen: bounds at their edge, and when to look again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from external_world import STALL, World, events, idle

from stoker.external_jobs import decide
from stoker.external_jobs.clone_chain import (
    CloneChain,
    Cloning,
    JobEnded,
    JobSeen,
    RuleWarning,
    StopCancelled,
    Stopping,
)
from stoker.external_jobs.gpu_alarms import Alarm, WantedAlarm
from stoker.external_jobs.snapshot import (
    NEXT_PASS_S,
    CloneJob,
    CreateAlarms,
    ExternalJobPlan,
    ExternalJobSnapshot,
    RecordEvent,
    RemoveAlarms,
    StopJob,
)
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.observed import Known, Unknown
from stoker.model.policy import Policy
from stoker.policy.policy_file import parse_policy

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)
HOUR_S = 3600.0
JOB = ExternalJob(
    "bert",
    "us-east-1",
    "InProgress",
    "Training",
    created_at=NOW - timedelta(hours=5),
    machines=("ml.g5.12xlarge",),
    nodes=2,
    training_since=NOW - timedelta(hours=2),
)
SEEN = {"bert": JobSeen("bert", True, JOB.created_at)}


def policy(rules: str = "") -> Policy:
    text = "sagemaker: {regions: [us-east-1]}\n" + (f"rules:\n{rules}\n" if rules else "")
    return parse_policy(text.encode(), "p")


def seen(job: ExternalJob = JOB, chain: CloneChain | None = None, **more: Any) -> ExternalJobSnapshot:
    return ExternalJobSnapshot(job, chain or CloneChain("bert", seen=SEEN), Known(()), "stoker-", **more)


def plan_for(snapshot: ExternalJobSnapshot, rules: str = "") -> ExternalJobPlan:
    return decide.decide(snapshot, policy(rules), NOW)


def stop_of(plan: ExternalJobPlan) -> StopJob | None:
    return next((action for action in plan.actions if isinstance(action, StopJob)), None)


def over(name: str = "bert-0", trained_s: float = 0.0, cost: float | None = 0.0, interruptions: int = 0) -> CloneChain:
    return CloneChain("bert", seen=SEEN, ended={name: JobEnded(name, "Stopped", trained_s, cost, interruptions)})


# ── When to look again ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rules", "job", "next_pass_in_s"),
    [
        ("", JOB, NEXT_PASS_S),
        ("- max_runtime: 20h", JOB, NEXT_PASS_S),
        ("- max_runtime: 130m", JOB, 600.0),
        ("- max_runtime: 2h", JOB, 0.0),
        ("- max_runtime: 130m", replace(JOB, training_since=None, trained_before_s=7200.0), NEXT_PASS_S),
        ("- {max_cost: 500, then: stop}", JOB, 300.0),
        ("- metric: {name: loss, above: 5}", JOB, 300.0),
    ],
)
def test_the_next_look_is_due_when_a_bound_may_be_reached(rules: str, job: ExternalJob, next_pass_in_s: float) -> None:
    assert plan_for(seen(job), rules).next_pass_in_s == next_pass_in_s


def test_training_of_the_family_brings_the_bound_nearer() -> None:
    plan = plan_for(seen(chain=over(trained_s=300.0)), "- max_runtime: 130m")
    assert plan.next_pass_in_s == 300.0


@pytest.mark.parametrize(("waited_s", "next_pass_in_s"), [(0.0, 600.0), (300.0, 300.0), (570.0, 60.0)])
def test_one_that_waits_is_looked_at_before_its_wait_is_over_at_most_once_a_minute(
    waited_s: float, next_pass_in_s: float
) -> None:
    waiting = replace(JOB, secondary="Starting", training_since=None, waiting_since=NOW - timedelta(seconds=waited_s))
    assert plan_for(seen(waiting), "- max_wait: 10m").next_pass_in_s == next_pass_in_s
    assert plan_for(seen(waiting), "").next_pass_in_s == NEXT_PASS_S


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("most", "stopped"), [("2h", True), ("7201s", False)])
def test_a_job_is_stopped_when_its_training_reaches_the_bound(most: str, stopped: bool) -> None:
    stop = stop_of(plan_for(seen(), f"- max_runtime: {most}"))
    assert (stop is not None) is stopped
    if stop is not None:
        assert "2 h of training are reached" in stop.reason and stop.event.after == ""


def test_the_familys_training_counts_and_its_own_is_not_counted_twice() -> None:
    assert stop_of(plan_for(seen(chain=over(trained_s=HOUR_S)), "- max_runtime: 3h")) is not None
    assert stop_of(plan_for(seen(chain=over(trained_s=HOUR_S - 1)), "- max_runtime: 3h")) is None
    assert stop_of(plan_for(seen(chain=over("bert", trained_s=HOUR_S)), "- max_runtime: 3h")) is None


@pytest.mark.parametrize(
    ("price", "chain", "spot", "stopped"),
    [
        (10.0, None, False, True),  # 2 hosts, 2 hours: $40.
        (9.9, None, False, False),
        (9.0, over(cost=4.0), False, True),
        (9.0, over(cost=3.9), False, False),
        (None, None, False, False),
        (10.0, over(cost=None), False, False),
        (10.0, None, True, False),
    ],
)
def test_a_job_is_stopped_when_its_familys_money_is_spent_where_that_is_known(
    price: float | None, chain: CloneChain | None, spot: bool, stopped: bool
) -> None:
    plan = plan_for(seen(replace(JOB, spot=spot), chain, price=price), "- {max_cost: 40, then: stop}")
    assert (stop_of(plan) is not None) is stopped


def test_what_managed_spot_saved_counts_once_it_is_over() -> None:
    ended = replace(JOB, status="Stopped", spot=True, billable_s=HOUR_S, training_since=None, trained_before_s=7200.0)
    assert decide.cost_of(seen(ended, price=10.0), NOW) == 20.0
    assert decide.cost_of(seen(replace(ended, billable_s=None), price=10.0), NOW) is None
    assert decide.cost_of(seen(price=10.0), NOW) == 40.0


@pytest.mark.parametrize(("waited_s", "stopped"), [(600.0, True), (599.0, False)])
def test_a_job_is_stopped_when_it_waited_for_too_long(waited_s: float, stopped: bool) -> None:
    waiting = replace(JOB, secondary="Starting", training_since=None, waiting_since=NOW - timedelta(seconds=waited_s))
    stop = stop_of(plan_for(seen(waiting), "- max_wait: 10m"))
    assert (stop is not None) is stopped
    if stop is not None:
        assert "it waited for a machine for 10 min" in stop.reason
    assert stop_of(plan_for(seen(), "- max_wait: 10m")) is None, "one that trains waits for nothing"


def test_a_bound_that_is_only_audited_is_told_once_and_stops_nothing() -> None:
    rules = "- {name: long, max_runtime: 1h, audit: true}"
    plan = plan_for(seen(), rules)
    (note,) = [action for action in plan.actions if isinstance(action, RecordEvent)]
    assert isinstance(note.event, RuleWarning) and note.event.code == "policy:long/audit" and "(audit)" in note.reason
    told = CloneChain("bert", seen=SEEN, warned=frozenset({("bert", "policy:long/audit")}))
    assert stop_of(plan) is None and plan_for(seen(chain=told), rules).actions == ()


def test_metrics_count_while_it_trains_and_after_their_time() -> None:
    rules = "- {name: lost, metric: {name: loss, above: 5, after: 2h}, then: stop}"
    bad = replace(JOB, metrics={"loss": 6.0})
    assert stop_of(plan_for(seen(bad), rules)) is not None
    assert stop_of(plan_for(seen(replace(bad, metrics={"loss": 5.0})), rules)) is None
    young = replace(bad, training_since=NOW - timedelta(seconds=7199))
    assert stop_of(plan_for(seen(young), rules)) is None
    assert stop_of(plan_for(seen(replace(bad, secondary="Downloading")), rules)) is None


# ── Stops that were not heard, and what comes first ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ago_s", "rules", "relents"),
    [(301.0, "", True), (300.0, "", False), (301.0, "- max_runtime: 1h", False)],
)
def test_a_stop_is_taken_back_where_no_rule_wants_it_and_sagemaker_never_heard_of_it(
    ago_s: float, rules: str, relents: bool
) -> None:
    chain = CloneChain(
        "bert",
        seen=SEEN,
        stops={"bert": Stopping("bert", "policy:old")},
        stops_at={"bert": NOW - timedelta(seconds=ago_s)},
    )
    plan = plan_for(seen(chain=chain), rules)
    relented = [
        action for action in plan.actions if isinstance(action, RecordEvent) and isinstance(action.event, StopCancelled)
    ]
    assert bool(relented) is relents and (stop_of(plan) is not None) is bool(rules)
    assert not any(isinstance(action, RecordEvent) for action in plan_for(seen()).actions), (
        "without a stop there is none"
    )


def test_what_ends_a_job_for_good_comes_before_what_starts_it_again() -> None:
    again, end = f"{STALL}\n  name: again", f"{STALL}\n  name: end\n  then: stop"
    for rules in (f"{again}\n{end}", f"{end}\n{again}"):
        world = World(rules)
        idle(world)
        world.wake()
        stops = [event for event in events(world) if isinstance(event, Stopping)]
        assert [(each.rule, each.after) for each in stops] == [("policy:end", "")]


def test_one_of_another_name_is_only_seen() -> None:
    later = replace(JOB, created_at=NOW - timedelta(hours=1))
    plan = plan_for(seen(later), "- max_runtime: 1h")
    (note,) = plan.actions
    assert isinstance(note, RecordEvent) and note.event == JobSeen("bert", True, later.created_at)


def test_one_that_is_stopping_is_asked_for_nothing_more() -> None:
    chain = CloneChain("bert", seen=SEEN, stops={"bert": Stopping("bert", "policy:old")})
    plan = plan_for(seen(replace(JOB, status="Stopping"), chain), "- max_runtime: 1h")
    assert plan.actions == () and plan.note == "asked to stop: policy:old"
    assert plan_for(seen(replace(JOB, status="Stopping")), "- max_runtime: 1h").note == ""


# ── Alarms and words ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_alarms_are_made_where_they_are_missing_and_removed_where_they_are_of_no_use() -> None:
    old = Alarm("stoker-old", "bert/algo-1", False, ())
    plan = plan_for(replace(seen(gpus=4), alarms=Known((old,))), STALL)
    made = [action for action in plan.actions if isinstance(action, CreateAlarms)]
    removed = [action for action in plan.actions if isinstance(action, RemoveAlarms)]
    assert len(made) == 1 and made[0].alarms and removed == [RemoveAlarms(("stoker-old",))]
    there = tuple(Alarm(each.name, each.host, False, ()) for each in made[0].alarms)
    assert plan_for(replace(seen(gpus=4), alarms=Known(there)), STALL).actions == ()
    assert plan_for(replace(seen(gpus=4), alarms=Unknown("throttled")), STALL).actions == ()


@pytest.mark.parametrize(
    ("job", "gpus", "rules", "note"),
    [
        (JOB, None, STALL, "accelerators of ml.g5.12xlarge"),
        (replace(JOB, machines=()), None, STALL, "accelerators of its machines"),
        (replace(JOB, machines=("a", "b")), None, STALL, "several types"),
        (JOB, 4, STALL, ""),
        (JOB, None, "", ""),
        (replace(JOB, secondary="Starting"), None, STALL, ""),
    ],
)
def test_why_a_job_is_not_watched_is_told(job: ExternalJob, gpus: int | None, rules: str, note: str) -> None:
    found = plan_for(seen(job, gpus=gpus), rules).note
    assert (found.startswith("no alarms: ") and note in found) if note else found == ""


def test_every_action_has_words() -> None:
    alarm = WantedAlarm.__new__(WantedAlarm)
    object.__setattr__(alarm, "name", "stoker-1")
    clone = CloneJob(Cloning("bert", "bert-r1", 1, "on-demand", False), "spot failed it")
    words = [
        decide.describe_action(action, "bert")
        for action in (
            RecordEvent(StopCancelled("bert"), "no rule wants it"),
            StopJob(Stopping("bert", "policy:end"), "too long"),
            clone,
            CreateAlarms((alarm,)),
            CreateAlarms((alarm, alarm)),
            RemoveAlarms(("stoker-1",)),
            RemoveAlarms(("stoker-1", "stoker-2", "stoker-3")),
        )
    ]
    assert words == [
        "bert: stop-cancelled: no rule wants it",
        "bert: stop: too long",
        "bert: clone as bert-r1: spot failed it",
        "bert: make the alarm stoker-1",
        "bert: make 2 alarms: stoker-1, …",
        "bert: remove the alarm stoker-1",
        "bert: remove 3 alarms: stoker-1, …",
    ]
