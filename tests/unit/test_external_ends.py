"""Training jobs of others that have ended: by whom, of what, and whether they go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stopped_job import DAY_S, FAILED, NOW, POLICY, STOPPED, ago, stopping

from stoker.core.budget_state import BudgetState, BudgetStatus
from stoker.external_jobs import clone_decision
from stoker.external_jobs.clone_chain import CloneChain, Cloning, GaveUp
from stoker.external_jobs.failure_diagnosis import diagnose, exit_code
from stoker.external_jobs.snapshot import CloneJob, ExternalJobPlan, ExternalJobSnapshot, RecordEvent, subject_of
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.observed import Known, Unknown
from stoker.model.policy import Policy
from stoker.policy.policy_file import parse_policy


def follow(job: ExternalJob, chain: CloneChain, policy: Policy = POLICY, **more: Any) -> ExternalJobPlan:
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


def test_what_ended_when_the_policy_began_to_want_it_is_its_own() -> None:
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
