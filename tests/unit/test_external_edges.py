"""Training jobs of others at the edge of what is decided about them, and the form in which their logs are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from external_world import asked

from stoker.core.budget_state import BudgetState, BudgetStatus
from stoker.external_jobs import clone_decision, gpu_alarms, notifications
from stoker.external_jobs.clone_chain import (
    ChainEntry,
    ChainEvent,
    ChainRecord,
    CloneChain,
    Cloned,
    Cloning,
    GaveUp,
    JobEnded,
    JobSeen,
    RuleWarning,
    StopAccepted,
    StopCancelled,
    Stopping,
    StopUnanswered,
    fold,
)
from stoker.external_jobs.clone_request import Lineage, clone_name, parse_lineage, without_metrics
from stoker.external_jobs.clone_request import build_request as clone_request
from stoker.external_jobs.failure_diagnosis import diagnose, exit_code
from stoker.external_jobs.gpu_alarms import HostMetrics, JobFigures
from stoker.external_jobs.notifications import JobContext
from stoker.external_jobs.snapshot import CloneJob, ExternalJobPlan, ExternalJobSnapshot, RecordEvent, subject_of
from stoker.external_jobs.training_job import ExternalJob, parse_description
from stoker.model import codec
from stoker.model.observed import Known, Unknown
from stoker.model.policy import Policy
from stoker.policy.policy_file import parse_policy

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)
DAY_S = 86400.0
HOUSE = parse_policy(b"sagemaker: {regions: [us-east-1]}", "p")
STOPPED = ExternalJob(
    "bert",
    "us-east-1",
    "Stopped",
    "Stopped",
    created_at=NOW - timedelta(hours=5),
    ended_at=NOW - timedelta(minutes=1),
    machines=("ml.g5.12xlarge",),
    trained_before_s=9000.0,
    checkpoints="s3://bucket/checkpoints",
    spot=True,
)
FAILED = replace(STOPPED, status="Failed", secondary="Failed", failure="InternalServerError: try again")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def stopping(after: str = "restart", **more: Any) -> CloneChain:
    stop = Stopping("bert", "policy:stall", after)  # type: ignore[arg-type]
    return CloneChain("bert", stops={"bert": stop}, stops_at={"bert": ago(500)}, **more)


def follow(job: ExternalJob, chain: CloneChain, policy: Policy = HOUSE, **more: Any) -> ExternalJobPlan:
    told = {"tail": Known(()), "wanted_since": ago(99 * DAY_S), **more}
    snapshot = ExternalJobSnapshot(job, chain, Known(()), "stoker-", **told)
    return clone_decision.decide_after_end(snapshot, policy, subject_of(job, chain, NOW), NOW)


def kind_of(plan: ExternalJobPlan) -> str:
    """`clone`, the rule by which it was given up, `settled`, or `later`."""
    for action in plan.actions:
        if isinstance(action, CloneJob):
            return "clone"
        if isinstance(action, RecordEvent) and isinstance(action.event, GaveUp):
            return action.event.rule
    return "settled" if plan.settled else "later"


# ── Whose end it was ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked_s", "unheard", "then"),
    [
        (560, False, "clone"),
        (561, False, "settled"),
        (500, False, "clone"),
        (200, False, "clone"),
        (199, False, "stop-unclear"),
        (500, True, "stop-unclear"),
        (None, False, "stop-unclear"),
    ],
)
def test_a_stop_is_taken_for_ours_by_the_moment_at_which_it_began(
    asked_s: float | None, unheard: bool, then: str
) -> None:
    """It was written down 500 seconds ago. A minute earlier, or five later, is still the same request."""
    job = replace(STOPPED, stop_asked_at=None if asked_s is None else ago(asked_s))
    chain = stopping(unanswered_stops=frozenset({"bert"}) if unheard else frozenset())
    assert kind_of(follow(job, chain)) == then


def test_a_stop_that_sagemaker_took_is_ours_whatever_its_time() -> None:
    chain = stopping(accepted_stops=frozenset({"bert"}))
    assert kind_of(follow(replace(STOPPED, stop_asked_at=ago(5000)), chain)) == "clone"


def test_one_that_failed_before_it_was_stopped_is_judged_by_its_failure() -> None:
    """Nothing began to stop it: the machine's failure is a reason of its own to go on."""
    found = follow(FAILED, stopping())
    (action,) = found.actions
    assert isinstance(action, CloneJob) and action.event.rule == "internal"
    outlasted = replace(STOPPED, secondary="MaxRuntimeExceeded", stop_asked_at=ago(500))
    found = follow(outlasted, stopping())
    assert found.settled and found.note == "SageMaker ended it: its MaxRuntimeInSeconds are over"


# ── Whether it goes on ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_has_been_over_for_a_day_goes_on_and_for_longer_it_does_not() -> None:
    for job, chain in ((FAILED, CloneChain("bert")), (STOPPED, stopping(accepted_stops=frozenset({"bert"})))):
        assert kind_of(follow(replace(job, ended_at=ago(DAY_S)), chain)) == "clone"
        assert kind_of(follow(replace(job, ended_at=ago(DAY_S + 1)), chain)) == "late"
        assert kind_of(follow(replace(job, ended_at=None), chain)) in ("late", "before")


def test_what_ended_when_the_house_began_to_want_it_is_its_own() -> None:
    assert kind_of(follow(FAILED, CloneChain("bert"), wanted_since=FAILED.ended_at)) == "clone"
    assert kind_of(follow(FAILED, CloneChain("bert"), wanted_since=ago(59))) == "before"
    assert kind_of(follow(FAILED, CloneChain("bert"), wanted_since=None)) == "before"


def test_a_log_that_cannot_be_read_is_waited_for_at_once_and_for_a_day() -> None:
    found = follow(FAILED, CloneChain("bert"), tail=Unknown("throttled"))
    assert found.next_pass_in_s == 0.0 and not found.settled
    assert found.note == "its log cannot be read, so it is not known why it failed: throttled"
    assert follow(FAILED, CloneChain("bert"), tail=None).note.endswith("why it failed")
    late = follow(replace(FAILED, ended_at=ago(DAY_S + 1)), CloneChain("bert"), tail=Unknown("throttled"))
    assert kind_of(late) == "unread" and late.note == "its log could not be read for a day: throttled"


def test_what_trained_for_too_short_a_time_is_not_begun_again() -> None:
    """To the second."""
    short = replace(FAILED, failure="AlgorithmError: exit code: 1")
    policy = parse_policy(b"sagemaker: {regions: [us-east-1]}\nrules: [{resume: {min_runtime: 30m}}]", "p")
    assert kind_of(follow(replace(short, trained_before_s=1800.0), CloneChain("bert"), policy)) == "clone"
    found = follow(replace(short, trained_before_s=1799.0), CloneChain("bert"), policy)
    assert kind_of(found) == "too-short" and "it had trained for 29 min" in found.note


def test_an_unexplained_failure_without_checkpoints_is_not_begun_again() -> None:
    odd = replace(FAILED, failure="AlgorithmError: exit code: 1", checkpoints="")
    assert kind_of(follow(odd, CloneChain("bert"))) == "no-checkpoints"
    assert kind_of(follow(replace(FAILED, checkpoints=""), CloneChain("bert"))) == "clone"


def test_a_clone_of_a_spot_job_has_spot_unless_that_was_given_up() -> None:
    def clone(plan: ExternalJobPlan) -> Cloning:
        (action,) = plan.actions
        assert isinstance(action, CloneJob)
        return action.event

    assert clone(follow(FAILED, CloneChain("bert"))).spot
    assert not clone(follow(replace(FAILED, spot=False), CloneChain("bert"))).spot
    given_up = follow(STOPPED, stopping("on-demand", accepted_stops=frozenset({"bert"})))
    assert not clone(given_up).spot and clone(given_up).rule == "on-demand"
    assert clone(follow(replace(FAILED, clone=1), CloneChain("bert"))).number == 2
    assert clone(follow(FAILED, CloneChain("bert"))).number == 1


def test_whether_it_was_resumed_by_hand_is_asked_five_minutes_after_its_end() -> None:
    def asked_for(seconds: float, **changes: Any) -> bool:
        job = replace(FAILED, ended_at=ago(seconds), **changes)
        return clone_decision.may_be_resumed_by_owner(ExternalJobSnapshot(job, CloneChain("bert"), Known(()), ""), NOW)

    assert asked_for(301) and not asked_for(300)
    assert not asked_for(301, checkpoints="")


def test_a_clone_waits_while_it_is_not_known_whether_it_was_resumed() -> None:
    found = follow(FAILED, CloneChain("bert"), resumed_as=Unknown("throttled"))
    assert found.next_pass_in_s == 0.0 and found.actions == () and found.note.endswith("by hand: throttled")
    assert kind_of(follow(FAILED, CloneChain("bert"), resumed_as=Known("bert-2"))) == "resumed-by-owner"
    assert kind_of(follow(FAILED, CloneChain("bert"), resumed_as=Known(""))) == "clone"


def test_a_budget_that_is_spent_keeps_a_clone_back_and_one_that_was_not_asked_about_does_not() -> None:
    text = b"sagemaker: {regions: [us-east-1]}\nrules: [{name: money, budget: {dollars: 10, period: day}}]"
    policy = parse_policy(text, "p")
    full = BudgetState(NOW, {("money", ""): BudgetStatus(spent=10.0)})
    waits = follow(FAILED, CloneChain("bert"), policy, budget_state=Known(full))
    assert (
        kind_of(waits) == "later"
        and waits.next_pass_in_s == 300.0
        and waits.note.startswith("waits to go on: policy money")
    )
    assert kind_of(follow(FAILED, CloneChain("bert"), policy, budget_state=Known(BudgetState(NOW)))) == "clone"
    assert kind_of(follow(FAILED, CloneChain("bert"), policy, budget_state=None)) == "clone"


def test_a_clone_that_was_meant_is_made_once() -> None:
    meant = Cloning("bert", "bert-r1", 1, "internal", True)
    chain = CloneChain("bert", clones={"bert": meant})
    made = follow(FAILED, replace(chain, made=frozenset({"bert-r1"})))
    assert made.settled and made.note == "goes on as bert-r1"
    given_up = follow(FAILED, replace(chain, gave_up={"bert": GaveUp("bert", "refused")}))
    assert given_up.settled and given_up.note == "does not go on: refused"
    (action,) = follow(FAILED, chain).actions
    assert isinstance(action, CloneJob) and action.event == meant and action.reason == "internal: as bert-r1"
    late = follow(replace(FAILED, ended_at=ago(DAY_S + 1)), chain)
    assert kind_of(late) == "late" and late.actions[0].event.meant  # type: ignore[union-attr]
    no_clones = parse_policy(b"sagemaker: {regions: [us-east-1], clone: false}", "p")
    assert kind_of(follow(FAILED, chain, no_clones)) == "unwanted"
    assert follow(FAILED, CloneChain("bert", gave_up={"bert": GaveUp("bert", "late")})).note == "does not go on: late"


def test_one_that_was_not_to_go_on_was_not_meant_to() -> None:
    odd = replace(FAILED, failure="ClientError: no such bucket")
    (action,) = follow(odd, CloneChain("bert")).actions
    assert isinstance(action, RecordEvent) and action.event == GaveUp("bert", "request", meant=False)


# ── What it died of ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("failure", "blame", "rule"),
    [
        ("InternalServerError: We encountered an internal error", "machine", "internal"),
        ("CapacityError: Unable to provision", "machine", "internal"),
        ("ClientError: Data download failed", "script", "request"),
        ("AlgorithmError: ExecuteUserScriptError: exit code 1", "unexplained", "resumed"),
        ("", "unexplained", "resumed"),
    ],
)
def test_sagemaker_says_what_it_died_of(failure: str, blame: str, rule: str) -> None:
    found = diagnose(failure, (), ())
    assert (found.blame, found.rule) == (blame, rule)
    assert found.reason == (failure or "SageMaker does not say why it failed")


def test_a_long_reason_is_quoted_in_short() -> None:
    assert diagnose("AlgorithmError:\n  " + "x" * 900, (), ()).reason == ("AlgorithmError: " + "x" * 900)[:300]


def test_the_log_tells_what_the_machine_did() -> None:
    found = diagnose("AlgorithmError: exit code: 1", ["RuntimeError: NCCL error in: x.cpp"], ())
    assert (found.blame, found.rule) == ("machine", "nccl")
    assert found.reason == "the log ends with a nccl error; AlgorithmError: exit code: 1"
    assert diagnose("AlgorithmError: exit code: 1", ["ValueError: x"], ()).blame == "unexplained"


@pytest.mark.parametrize(
    ("failure", "code"),
    [("exit code: 137", 137), ("ExitCode 1", 1), ('Exit Code: "2"', 2), ("AlgorithmError: no", None)],
)
def test_the_exit_code_is_read_from_the_reason(failure: str, code: int | None) -> None:
    assert exit_code(failure) == code


# ── CloudWatch's figures ──────────────────────────────────────────────────────────────────────────────────────────────

STALL, WASTE = parse_policy(
    b"rules: [{name: stall, stall: {window: 5m, windows: 3, after: 30m}},"
    b" {name: waste, min_gpu_utilization: {value: 80%, over: 30m, after: 10m}}]",
    "p",
).rules
TRAINING = ExternalJob("bert", "us-east-1", "InProgress", "Training", nodes=1, training_since=ago(9 * 3600))


def measured(gpu: float = 0.0, cpu: float = 0.0, *, late_s: float = 0.0, silent_s: float = 3600.0) -> JobFigures:
    """Ninety minutes of figures, of which the last one is over `late_s` ago."""
    times = [ago(late_s + 60.0 * (number + 1)) for number in reversed(range(90))]
    host = HostMetrics("bert/algo-1", tuple((at, gpu) for at in times), tuple((at, cpu) for at in times))
    return JobFigures((host,), ago(late_s + silent_s))


def stalled(readings: JobFigures, job: ExternalJob = TRAINING) -> bool:
    return gpu_alarms.violation_text(STALL, job, 4, readings, NOW) is not None


def begins(readings: JobFigures) -> bool:
    assert STALL.stall is not None
    return gpu_alarms.begins_to_stall(STALL.stall, TRAINING, 4, readings, NOW)


def test_figures_may_be_ten_minutes_late() -> None:
    assert stalled(measured(late_s=600.0)) and not stalled(measured(late_s=601.0))


def test_a_stall_needs_its_whole_span_of_silence_and_of_training() -> None:
    assert stalled(measured(silent_s=900.0)) and not stalled(measured(silent_s=899.0))
    assert stalled(measured(), replace(TRAINING, training_since=ago(1800.0)))
    assert not stalled(measured(), replace(TRAINING, training_since=ago(1799.0)))


def test_processors_that_work_give_a_stall_more_time_to_the_second() -> None:
    assert STALL.stall is not None
    long_s = STALL.stall.span_s + STALL.stall.working_s
    assert stalled(measured(cpu=50.0, silent_s=long_s)) and not stalled(measured(cpu=50.0, silent_s=long_s - 1))
    assert stalled(measured(cpu=5.0)) and not stalled(measured(cpu=5.1))


def test_a_stall_begins_with_one_quiet_window_and_is_one_after_three() -> None:
    assert begins(measured(silent_s=300.0)) and not begins(measured(silent_s=299.0))
    assert begins(measured(silent_s=899.0)) and not begins(measured(silent_s=900.0))
    most = 4.0
    assert begins(measured(most, silent_s=300.0)) and not begins(measured(most + 0.1, silent_s=300.0))


def test_what_was_busy_in_an_earlier_window_only_begins_to_stall() -> None:
    quiet = measured()
    host = quiet.hosts[0]
    busy = tuple((at, 400.0 if ago(900) <= at < ago(600) else 0.0) for at, _ in host.gpu)
    mixed = replace(quiet, hosts=(replace(host, gpu=busy),))
    assert begins(mixed) and not stalled(mixed)


def test_nothing_begins_to_stall_where_the_log_or_the_figures_are_not_known() -> None:
    assert not begins(replace(measured(silent_s=300.0), last_line_at=None))
    assert not begins(JobFigures((HostMetrics("bert/algo-1"),), ago(300)))


def test_three_quarters_of_the_minutes_make_a_mean() -> None:
    whole = measured()
    host = whole.hosts[0]

    def with_minutes(count: int) -> JobFigures:
        """Of each of the last windows of five minutes, so many figures."""
        kept = tuple(each for number, each in enumerate(reversed(host.gpu)) if number % 5 < count)
        return replace(whole, hosts=(replace(host, gpu=tuple(reversed(kept))),))

    assert stalled(with_minutes(3)) and not stalled(with_minutes(2))


def test_waste_is_judged_once_it_trained_for_long_enough() -> None:
    def wasteful(trained_s: float, gpu: float = 0.0) -> str | None:
        return gpu_alarms.violation_text(WASTE, replace(TRAINING, training_since=ago(trained_s)), 4, measured(gpu), NOW)

    assert wasteful(2400.0) == "its 4 accelerators were used 0% over 30 min" and wasteful(2399.0) is None
    assert wasteful(2400.0, 319.0) is not None and wasteful(2400.0, 320.0) is None


def test_alarms_are_for_every_host_in_cloudwatchs_units() -> None:
    found = gpu_alarms.wanted_alarms((STALL, WASTE), replace(TRAINING, nodes=2), 4, "stoker-x-", "topic")
    assert [(each.host, each.rule, each.threshold, each.period_s, each.periods, each.inclusive) for each in found] == [
        ("bert/algo-1", "stall", 4.0, 300, 3, True),
        ("bert/algo-2", "stall", 4.0, 300, 3, True),
        ("bert/algo-1", "waste", 320.0, 1800, 1, False),
        ("bert/algo-2", "waste", 320.0, 1800, 1, False),
    ]
    assert all(each.topic == "topic" and each.name.startswith("stoker-x-bert-algo-") for each in found)
    assert gpu_alarms.wanted_alarms((STALL,), replace(TRAINING, secondary="Starting"), 4, "x") == ()
    assert (
        gpu_alarms.wanted_alarms((STALL,), TRAINING, 0, "x")
        == ()
        == gpu_alarms.wanted_alarms((STALL,), TRAINING, None, "x")
    )


def test_periods_are_whole_minutes_of_at_most_a_day_and_few_enough() -> None:
    text = b"rules: [{name: odd, stall: {window: 90s, windows: 2}}, {name: long, stall: {window: 1h, windows: 200}}]"
    odd, long = parse_policy(text, "p", version=1).rules
    assert [(each.period_s, each.periods) for each in gpu_alarms.wanted_alarms((odd,), TRAINING, 4, "x")] == [(120, 2)]
    assert [(each.period_s, each.periods) for each in gpu_alarms.wanted_alarms((long,), TRAINING, 4, "x")] == [
        (3600, 168)
    ]


# ── The log of a family ───────────────────────────────────────────────────────────────────────────────────────────────

EVENTS: list[tuple[ChainEvent, dict[str, Any]]] = [
    (JobSeen("bert", True, NOW), {"kind": "seen", "job": "bert", "in_progress": True}),
    (RuleWarning("bert", "policy:x", "x"), {"kind": "warned", "job": "bert", "rule": "policy:x", "code": "x"}),
    (Stopping("bert", "policy:x", "restart"), {"kind": "stopping", "rule": "policy:x", "after": "restart"}),
    (StopAccepted("bert"), {"kind": "stop-accepted", "job": "bert"}),
    (StopUnanswered("bert"), {"kind": "stop-unanswered", "job": "bert"}),
    (StopCancelled("bert"), {"kind": "stop-cancelled", "job": "bert"}),
    (Cloning("bert", "bert-r1", 1, "x", True), {"kind": "cloning", "of": "bert", "name": "bert-r1", "number": 1}),
    (Cloned("bert", "bert-r1"), {"kind": "cloned", "of": "bert", "name": "bert-r1"}),
    (GaveUp("bert", "late", True), {"kind": "gave-up", "job": "bert", "rule": "late", "meant": True}),
    (
        JobEnded("bert", "Failed", 5.0, 2.0, 1),
        {"kind": "ended", "status": "Failed", "trained_s": 5.0, "interruptions": 1},
    ),
]


@pytest.mark.parametrize(("event", "written"), EVENTS, ids=[type(event).__name__ for event, _ in EVENTS])
def test_an_entry_is_written_as_every_stoker_reads_it(event: ChainEvent, written: dict[str, Any]) -> None:
    """Logs outlive versions: what is in a store was written by an older one."""
    record = ChainRecord("token", "me", "so", event)
    tree = json.loads(codec.dumps(record))
    assert written.items() <= tree["event"].items()
    assert codec.loads(ChainRecord, codec.dumps(record)) == record


def folded(*events: ChainEvent) -> CloneChain:
    records = (ChainRecord("t", "me", "so", event) for event in events)
    return fold("bert", [ChainEntry(seq, ago(100 - seq), record) for seq, record in enumerate(records, 1)])


def test_an_entry_of_an_older_stoker_says_no_more_than_it_did() -> None:
    def load(event: str) -> ChainEvent:
        text = f'{{"token": "t", "by": "me", "reason": "so", "event": {event}}}'
        return codec.loads(ChainRecord, text.encode()).event

    assert load('{"kind": "gave-up", "job": "a", "rule": "late"}') == GaveUp("a", "late", meant=False)
    assert load('{"kind": "ended", "job": "a", "status": "Failed"}') == JobEnded("a", "Failed", 0.0, None, 0)
    assert load('{"kind": "stopping", "job": "a", "rule": "x"}') == Stopping("a", "x", "")


def test_a_stop_that_was_taken_back_leaves_no_trace_and_others_stay() -> None:
    chain = folded(Stopping("a", "x"), Stopping("b", "x"), StopUnanswered("a"), StopUnanswered("b"), StopCancelled("a"))
    assert list(chain.stops) == list(chain.stops_at) == ["b"] and chain.unanswered_stops == {"b"}
    assert chain.stops_at["b"] == ago(98) and chain.seq == 5


def test_a_later_job_of_the_same_name_begins_anew() -> None:
    first = folded(JobSeen("bert", True, ago(5000)), JobEnded("bert", "Failed"))
    assert first.is_another("bert", ago(4999)) and not first.is_another("bert", ago(4999.5))
    assert not first.is_another("bert", None) and not first.is_another("other", ago(1))
    later = folded(JobSeen("bert", True, ago(5000)), JobEnded("bert", "Failed"), JobSeen("bert", False, ago(10)))
    assert later.ended == {} and not later.seen["bert"].in_progress and later.seq == 3


def test_of_two_entries_about_the_same_thing_the_first_counts() -> None:
    chain = folded(JobEnded("a", "Failed"), JobEnded("a", "Stopped"), GaveUp("a", "late"), GaveUp("a", "refused"))
    assert chain.ended["a"].status == "Failed" and chain.gave_up["a"].rule == "late"
    assert [over.job for over in folded(JobEnded("a", "Failed"), JobEnded("b", "Failed")).others("a")] == ["b"]


def test_a_family_holds_its_origin_and_its_clones() -> None:
    chain = folded(Cloning("bert", "bert-r1", 1, "x", True))
    assert chain.holds("bert") and chain.holds("bert-r1") and not chain.holds("gpt")


# ── What people are told ──────────────────────────────────────────────────────────────────────────────────────────────

RULES = parse_policy(b"rules: [{name: still, stall: {window: 5m}}, {name: few, max_nodes: 1}]", "p")


@pytest.mark.parametrize(
    ("event", "kind", "thing"),
    [
        (JobSeen("bert", True), "started", "bert"),
        (JobSeen("bert", False), None, ""),
        (JobSeen("bert-r1", True), None, ""),
        (RuleWarning("bert", "policy:few", "x"), "rule", "bert"),
        (RuleWarning("bert", "policy:still", "x"), "stalled", "bert"),
        (Stopping("bert", "policy:still"), "stalled", "bert"),
        (Stopping("bert", "policy:few"), "rule", "bert"),
        (Stopping("bert", "policy:few", "on-demand"), "reclaimed", "bert"),
        (Cloned("bert", "bert-r1"), "resumed", "bert-r1"),
        (JobEnded("bert", "Completed"), "finished", "bert"),
        (JobEnded("bert", "Failed"), "failed", "bert"),
        (JobEnded("bert", "Stopped"), "stopped", "bert"),
        (StopAccepted("bert"), None, ""),
        (GaveUp("bert", "too-short"), None, ""),
        (GaveUp("bert", "too-short", meant=True), "failed", "bert"),
        *(
            (GaveUp("bert", rule), "failed", "bert")
            for rule in (
                "late",
                "name-taken",
                "no-room",
                "refused",
                "resumed-by-owner",
                "stop-unclear",
                "unread",
                "unwanted",
            )
        ),
    ],
)
def test_what_an_entry_means_for_people(event: ChainEvent, kind: str | None, thing: str) -> None:
    entry = ChainEntry(7, NOW, ChainRecord("t", "me", "so it is", event))
    found = notifications.notification_of(entry, JobContext("bert", "us-east-1", "SageMaker", {"team": "nlp"}), RULES)
    if kind is None:
        assert found is None
        return
    assert found is not None and (found.kind, found.thing, found.reason) == (kind, thing, "so it is")
    assert (found.job, found.name, found.seq, found.at) == ("bert", "bert", 7, NOW)
    assert (found.zone, found.where, dict(found.tags)) == ("us-east-1", "SageMaker", {"team": "nlp"})


def test_a_rule_that_is_only_audited_is_told_as_such_and_an_end_with_its_cost() -> None:
    def tell(event: ChainEvent) -> Any:
        return notifications.notification_of(
            ChainEntry(1, NOW, ChainRecord("t", "me", "so", event)), JobContext("bert", "r"), RULES
        )

    assert tell(RuleWarning("bert", "policy:few", "policy:few/audit")).audit
    assert not tell(RuleWarning("bert", "policy:few", "policy:few")).audit
    assert tell(RuleWarning("bert", "policy:few", "policy:few")).rule == "policy:few"
    assert tell(JobEnded("bert", "Failed", cost=2.5)).cost == 2.5 and tell(Cloned("bert", "b")).cost is None


# ── Clones ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tags_tell_which_clone_it_is_in_three_or_in_one() -> None:
    found = Lineage("bert", "bert-r1", 2)
    assert parse_lineage(found.tags(3)) == found == parse_lineage(found.tags(2))
    assert len(found.tags(3)) == 3 and len(found.tags(2)) == 1
    assert parse_lineage({"stoker:origin": "bert", "stoker:clone": "x"}) == Lineage("bert", "", 0)
    assert parse_lineage({}) == Lineage("", "", 0)


def test_names_of_clones_count_on() -> None:
    first = clone_name("bert", NOW)
    assert first.startswith("bert-r1-") and clone_name(first, NOW).startswith("bert-r2-")
    assert clone_name("bert", None) != first != clone_name("bert", ago(60))
    long = clone_name("b" * 62 + "-", NOW)
    assert len(long) <= 63 and "--" not in long


def test_empty_keys_are_not_asked_for() -> None:
    """They are how a description says that there is none; a request with them is refused."""
    told = asked(
        OutputDataConfig={"S3OutputPath": "s3://x", "KmsKeyId": ""},
        ResourceConfig={"InstanceCount": 1, "VolumeKmsKeyId": "", "SelectedInstanceType": "ml.g5", "KeepAlive": ""},
        VpcConfig={},
        Environment=None,
        DebugRuleConfigurations=[],
    )
    found = clone_request(told, [], name="bert-r1", origin="bert", number=1, spot=True)
    assert found["OutputDataConfig"] == {"S3OutputPath": "s3://x"}
    assert found["ResourceConfig"] == {"InstanceCount": 1, "KeepAlive": ""}
    assert not {"VpcConfig", "Environment", "DebugRuleConfigurations"} & set(found)
    assert found["EnableManagedSpotTraining"] is True and "MaxWaitTimeInSeconds" in found["StoppingCondition"]


def test_a_request_without_metrics_keeps_the_rest() -> None:
    algorithm = {"TrainingImage": "x", "MetricDefinitions": [{}]}
    assert without_metrics({"A": 1, "AlgorithmSpecification": algorithm}) == {
        "A": 1,
        "AlgorithmSpecification": {"TrainingImage": "x"},
    }


# ── Descriptions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def described(**changes: Any) -> ExternalJob:
    return parse_description({**asked(), "TrainingJobStatus": "InProgress", **changes}, [], "us-east-1")


def test_when_its_last_training_began() -> None:
    steps = [
        {"Status": "Starting", "StartTime": ago(900), "EndTime": ago(800)},
        {"Status": "Training", "StartTime": ago(800), "EndTime": ago(600)},
        {"Status": "Interrupted", "StartTime": ago(600), "EndTime": ago(500)},
        {"Status": "Training", "StartTime": ago(500), "EndTime": ago(400)},
        {"Status": "Stopping", "StartTime": ago(400)},
    ]
    job = described(SecondaryStatusTransitions=steps)
    assert job.last_training_at == ago(500) and job.stop_asked_at == ago(400) and job.interruptions == 1
    assert described(SecondaryStatusTransitions=steps[:1]).last_training_at is None
    assert described(SecondaryStatusTransitions=steps[:1]).stop_asked_at is None


@pytest.mark.parametrize("status", ["Starting", "Pending", "Interrupted", "Restarting", "LaunchingMLInstances"])
def test_while_no_machine_is_there_it_waits(status: str) -> None:
    steps = [{"Status": status, "StartTime": ago(900)}]
    assert described(SecondaryStatusTransitions=steps).waiting_since == ago(900)


def test_an_end_is_told_only_of_what_is_over() -> None:
    modified = {"LastModifiedTime": ago(60)}
    assert described(**modified).ended_at is None and described(**modified).modified_at == ago(60)
    assert described(TrainingJobStatus="Failed", **modified).ended_at == ago(60)
    assert described(TrainingJobStatus="Failed", TrainingEndTime=ago(70), **modified).ended_at == ago(70)


def test_times_without_a_zone_are_utc_and_other_things_are_no_times() -> None:
    assert described(CreationTime=NOW.replace(tzinfo=None)).created_at == NOW
    assert described(CreationTime="yesterday").created_at is None


def test_numbers_and_names_that_make_no_sense_are_left_open() -> None:
    assert described(BillableTimeInSeconds=True).billable_s is None
    assert described(BillableTimeInSeconds=60).billable_s == 60.0
    assert described(ResourceConfig={"InstanceType": "", "InstanceCount": -1}).machines == ()
    assert described(ResourceConfig={"InstanceType": "ml.g5", "InstanceCount": 0}).nodes == 1
    chosen = described(ResourceConfig={"SelectedInstanceType": "ml.p4", "SelectedInstanceCount": 3})
    assert (chosen.machines, chosen.nodes) == (("ml.p4",), 3)
    told = [{"MetricName": "loss", "Value": 2}, {"MetricName": "", "Value": 1.0}, {"MetricName": "x", "Value": "y"}]
    assert described(FinalMetricDataList=told).metrics == {"loss": 2.0}
    assert described(AlgorithmSpecification={}).image is None and described().image == "1234.dkr.ecr/bert:1"


def test_what_is_known_of_a_job_that_says_little() -> None:
    job = parse_description({"TrainingJobName": "x"}, [], "us-east-1")
    assert (job.status, job.secondary, job.role, job.failure, job.parent, job.checkpoints) == ("",) * 6
    assert (job.clone, job.interruptions, job.nodes, job.spot, job.trained_before_s) == (0, 0, 1, False, 0.0)
    assert not job.training and not job.over and job.offerings()[0].machine == ""


def test_what_it_has_is_offered_with_its_price_and_accelerators() -> None:
    (found,) = described().offerings(2.0, 4)
    assert (found.provider, found.machine, found.spot, found.region) == (
        "sagemaker",
        "ml.g5.12xlarge",
        True,
        "us-east-1",
    )
    assert (found.price, found.gpus) == (2.0, 4) and described().offerings()[0].gpus == 0


def test_all_that_counts_of_a_description_is_read() -> None:
    job = parse_description(
        {
            **asked(),
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "CreationTime": ago(900),
            "LastModifiedTime": ago(60),
            "BillableTimeInSeconds": 300,
            "FailureReason": "AlgorithmError: no",
            "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints/"},
            "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": ago(800), "EndTime": ago(100)}],
        },
        [
            {"Key": "team", "Value": "nlp"},
            {"Key": "aws:x", "Value": "y"},
            {"Key": "submitter", "Value": "jane"},
            {"Key": "stoker:clone", "Value": "2"},
        ],
        "us-east-1",
    )
    assert (job.name, job.region, job.status, job.secondary) == ("bert", "us-east-1", "Failed", "Failed")
    assert (job.created_at, job.modified_at, job.ended_at) == (ago(900), ago(60), ago(60))
    assert (job.role, job.max_runtime_s, job.billable_s, job.nodes) == ("jane", 432000.0, 300.0, 2)
    assert (job.failure, job.checkpoints, job.clone) == ("AlgorithmError: no", "s3://bucket/checkpoints", 2)
    assert (job.trained_before_s, job.training_since, job.waiting_since) == (700.0, None, None)
    assert "team" in job.tags and not {"aws:x", "submitter"} & set(job.tags)
    held_against = job.spec()
    assert held_against.resources.provider == "sagemaker" and held_against.resources.machine == ("ml.g5.12xlarge",)
    assert (held_against.resources.spot, held_against.resources.region) == ("only", "us-east-1")
    assert held_against.environment.container is not None and held_against.nodes == 2
    assert held_against.limits.max_runtime_s == 432000.0 and held_against.limits.max_wait_s is None
    assert replace(job, spot=False, image=None).spec().resources.spot == "never"
    assert replace(job, image=None).spec().environment.container is None
    assert job.hosts == ("bert/algo-1", "bert/algo-2")


@pytest.mark.parametrize(
    ("changes", "tags", "parent"),
    [
        ({"TuningJobArn": "arn:x/tune-1"}, {}, "tuning job tune-1"),
        ({"AutoMLJobArn": "arn:x/auto-1"}, {}, "AutoML job auto-1"),
        ({"LabelingJobArn": "arn:x/label-1"}, {}, "labelling job label-1"),
        ({}, {"sagemaker:pipeline-execution-arn": "arn:x/p-1"}, "pipeline p-1"),
        ({}, {"aws:sagemaker:pipeline": "arn:x/p-1"}, "pipeline p-1"),
        ({}, {"AWS_STEP_FUNCTIONS_EXECUTION_ARN": "arn:aws:states:e:1"}, "Step Functions 1"),
        ({}, {"MANAGED_BY_AWS": "STARTED_BY_STEP_FUNCTIONS"}, "Step Functions"),
        ({"TrainingJobName": "pipelines-abc-train"}, {}, "pipeline"),
        ({"TrainingJobName": "AWSBatchabc"}, {}, "AWS Batch"),
        ({}, {"team": "nlp"}, ""),
    ],
)
def test_what_started_it_and_waits_for_it(changes: dict[str, str], tags: dict[str, str], parent: str) -> None:
    told = [{"Key": key, "Value": value} for key, value in tags.items()]
    assert parse_description({**asked(), **changes}, told, "us-east-1").parent == parent


@pytest.mark.parametrize(
    ("status", "secondary", "bound"),
    [
        ("Stopped", "MaxWaitTimeExceeded", "MaxWaitTimeInSeconds"),
        ("Stopped", "MaxRuntimeExceeded", "MaxRuntimeInSeconds"),
        ("Stopped", "Stopped", ""),
        ("Failed", "MaxRuntimeExceeded", ""),
    ],
)
def test_at_which_bound_of_its_own_it_was_ended(status: str, secondary: str, bound: str) -> None:
    assert replace(STOPPED, status=status, secondary=secondary).exceeded == bound
