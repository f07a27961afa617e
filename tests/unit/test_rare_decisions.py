"""Pure decisions that jobs rarely reach: each alone, with the answer at its edge."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from attempt_cases import make_case

from stoker.core import safe_regex
from stoker.core.attempt_verdict import judge, matches_failure
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import wants_claim
from stoker.core.safe_regex import PatternError, compile_pattern
from stoker.core.snapshot import JobSnapshot
from stoker.external_jobs.clone_chain import CloneChain, Cloning
from stoker.external_jobs.snapshot import ExternalJobSnapshot, clone_obstacle, may_leave_spot, subject_of
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.job_state import JobState
from stoker.model.log_entries import (
    PROTOCOL_VERSION,
    Claimed,
    Closed,
    Ended,
    Event,
    Launched,
    ResumeAsked,
    StopAsked,
    Warned,
)
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import InstanceState, Leftover
from stoker.model.policy import FailureRule
from stoker.notifications.events import MAX_LINES, Notification, compose, event_line, leftover_name
from stoker.notifications.outbox import (
    RETRY_PAUSES,
    SENDING_LEASE,
    Outbox,
    mark_delivered,
    mark_failed,
    record_unusable,
    start_sending,
)
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    SPOT_A,
    SPOT_B,
    at,
    hard_notice,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_state,
    nodes,
)

RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))
RECLAIMED = Closed(2, "reclaimed", "notice", restart=True)


# ── When a claim is wanted ────────────────────────────────────────────────────────────────────────────────────────────


def noticed(state: JobState, *, hard: bool = True) -> JobSnapshot:
    notice = replace(hard_notice(50), hard=hard)
    return make_snapshot(state, make_facts(2, beat=make_beat(60), notice=notice))


def test_why_a_claim_is_wanted() -> None:
    assert wants_claim(make_snapshot(make_state())) == "first attempt"
    assert wants_claim(make_snapshot(make_state(*RUNNING))) is None
    assert wants_claim(make_snapshot(make_state(StopAsked("jane")))) is None
    ended = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error"))
    assert wants_claim(make_snapshot(make_state(*RUNNING, ended))) is None
    assert wants_claim(make_snapshot(make_state(*RUNNING, ended, ResumeAsked("jane")))) == "resumed"
    assert wants_claim(make_snapshot(make_state(*RUNNING, RECLAIMED))) == "after attempt 1: closed at 4"
    dry = (Claimed(SPOT_A, 1), Closed(2, "dry", "no-capacity", restart=True))
    assert wants_claim(make_snapshot(make_state(*dry))) == "next offering"


def test_a_hard_notice_wants_the_next_claim_and_no_second_one() -> None:
    assert wants_claim(noticed(make_state(*RUNNING))) is not None
    assert wants_claim(noticed(make_state(*RUNNING), hard=False)) is None
    following = Claimed(SPOT_B, 1, successor_of=2)
    assert wants_claim(noticed(make_state(*RUNNING, following))) is None, "at most one attempt waits"
    dry = Closed(4, "dry", "no-capacity", restart=True)
    assert wants_claim(noticed(make_state(*RUNNING, following, dry))) is not None, "its replacement found no place"


def test_a_claim_that_is_open_after_a_resume_is_waited_for() -> None:
    state = make_state(*RUNNING)
    assert wants_claim(make_snapshot(replace(state, opened_seq=9))) is None


# ── What is gone ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "over", "gone"),
    [("gone", True, True), ("off", True, False), ("running", False, False), ("unheard-of", False, False)],
)
def test_only_what_is_positively_off_or_gone_will_never_train(state: InstanceState, over: bool, gone: bool) -> None:
    job = make_snapshot(make_state(*RUNNING), states={"i-2-0": state})
    claim = job.state.claim(2)
    assert claim is not None
    assert (job.is_over("i-2-0"), job.is_gone("i-2-0"), job.rank_gone(claim, 0)) == (over, gone, over)
    assert job.rank_gone(claim, 1), "`launched` names no machine for it"
    blind = replace(job, states=Unknown("throttled"))
    assert not blind.rank_gone(claim, 0) and not blind.is_gone("i-2-0")


def test_a_claim_that_is_not_launched_has_lost_nobody() -> None:
    job = make_snapshot(make_state(Claimed(SPOT_A, 1)), states={})
    claim = job.state.claim(2)
    assert claim is not None and not job.rank_gone(claim, 0)


# ── Verdicts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("diagnosis", "told"),
    [
        (FailureRule(log="Error: no"), True),
        (FailureRule(log="^nothing"), False),
        (FailureRule(exit_code=3), True),
        (FailureRule(exit_code=4), False),
        (FailureRule(evidence="oom"), True),
        (FailureRule(evidence="xid:79"), False),
        (FailureRule(log="Error", exit_code=3, evidence="oom"), True),
        (FailureRule(log="Error", exit_code=4, evidence="oom"), False),
        (FailureRule(log="nothing", exit_code=3, evidence="oom"), False),
        (FailureRule(log="Error", exit_code=3, evidence="none"), False),
    ],
)
def test_a_diagnosis_wants_all_that_it_names(diagnosis: FailureRule, told: bool) -> None:
    assert matches_failure(diagnosis, ("step 1", "ValueError: no"), 3, ("oom",)) is told


def test_checkpoints_that_cannot_be_restored_are_a_persons_to_decide() -> None:
    found = judge(make_case(make_exit("failed", "restore", reason="")))
    assert (found.outcome, found.rule, found.restart) == ("failed", "restore", False)
    assert found.reason.startswith("no checkpoint could be restored")
    told = judge(make_case(make_exit("failed", "restore", reason="the disk is full")))
    assert told.reason.startswith("the disk is full")


def test_an_end_that_no_rule_recognises_is_tried_again() -> None:
    found = judge(make_case(None))
    assert found.restart and found.outcome == "lost"


def test_a_job_that_a_newer_stoker_governs_is_left_alone() -> None:
    state = replace(make_state(), min_version=PROTOCOL_VERSION + 1)
    plan = decide_job(make_snapshot(state), DEFAULT, at(100))
    assert plan.actions == () and "update this one" in plan.waiting[state.job]
    assert decide_job(make_snapshot(make_state()), DEFAULT, at(100)).actions != ()


def test_a_warning_counts_once() -> None:
    once = make_state(Warned("stall", evidence=True))
    assert once.warned == ("stall",) and once.evidence_codes == ("stall",)
    twice = make_state(Warned("stall", evidence=True), Warned("stall"))
    assert (twice.warned, twice.warned_at) == (once.warned, once.warned_at)
    assert make_state(Warned("stall")).evidence_codes == ()


# ── Outbox ────────────────────────────────────────────────────────────────────────────────────────────────────────────

EMPTY = Outbox(to="json://chat", name="chat")
EVENT = Notification("started", "a", at(0), "", seq=3)
WAITING = replace(EMPTY, waiting=(EVENT,), more={"failed": 2})


def test_what_is_not_being_sent_is_neither_delivered_nor_failed() -> None:
    assert start_sending(EMPTY, "t", "me", at(0)) == EMPTY
    assert mark_delivered(WAITING) == WAITING and mark_failed(WAITING, "no", at(0)) == WAITING


def test_a_message_is_delivered_with_what_is_wrong_with_it() -> None:
    sending = start_sending(WAITING, "t", "me", at(5))
    assert sending.waiting == () and sending.more == {} and sending.sending is not None
    out = mark_delivered(replace(sending, failures=3, retry_at=at(9)), "cut")
    assert (out.sending, out.sent, out.failures, out.retry_at, out.problem) == (None, (at(5),), 0, None, "cut")


def test_a_message_that_failed_waits_with_what_came_meanwhile() -> None:
    later = Notification("failed", "b", at(6), "", seq=1)
    sending = replace(start_sending(WAITING, "t", "me", at(5)), waiting=(later,), more={"failed": 1, "stopped": 4})
    back = mark_failed(sending, "no answer", at(7))
    assert back.waiting == (EVENT, later) and back.more == {"failed": 3, "stopped": 4}
    assert back.failures == 1 and back.problem == "no answer" and back.retries["me"].failures == 1
    assert back.retries["me"].retry_at == at(7) + RETRY_PAUSES[0]
    again = mark_failed(start_sending(back, "t", "me", at(8)), "no answer", at(9))
    assert again.retries["me"].failures == 2 and again.retries["me"].retry_at == at(9) + RETRY_PAUSES[1]


def test_what_another_left_unsent_is_part_of_the_next_message() -> None:
    left = start_sending(WAITING, "t", "other", at(0))
    mine = start_sending(left, "u", "me", at(0) + SENDING_LEASE + timedelta(seconds=1))
    assert mine.sending is not None and mine.sending.by == "me" and mine.sending.events == (EVENT,)
    assert mine.sending.more == {"failed": 2}


def test_a_problem_of_one_that_cannot_send_is_told_where_there_is_no_other() -> None:
    assert record_unusable(EMPTY, "no secret").problem == "no secret"
    for known in (replace(EMPTY, failures=1), replace(EMPTY, problem="older")):
        assert record_unusable(known, "no secret") == known


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_events_that_are_alike_share_a_line() -> None:
    jobs = tuple(Notification("reclaimed", f"j{number}", at(0), "", seq=1, zone="a") for number in range(MAX_LINES))
    other = (Notification("failed", "x", at(0), "it broke", seq=1),)
    assert len(compose("i", "s", jobs, None).text.splitlines()) == MAX_LINES + 1
    text = compose("i", "s", (*jobs, *other), {"resumed": 3}).text.splitlines()
    assert text[0].startswith(f"{MAX_LINES} jobs") and "j0, j1, j2 and 17 more" in text[0] and " in a" in text[0]
    assert text[1] == event_line(other[0]) and text[2] == "and 3 more: resumed" and text[-1] == "(s)"


def test_budgets_that_no_job_tells_of_share_a_line() -> None:
    budgets = tuple(Notification("budget", "", at(0), "", seq=n, thing=f"budget {n}") for n in range(MAX_LINES + 1))
    (text, _) = compose("i", "s", budgets, None).text.splitlines()
    assert text == f"{MAX_LINES + 1} budgets: budget 0, budget 1, budget 2 and 18 more"
    alone = compose("i", "s", budgets[:1], None)
    assert alone.title.startswith("budget 0")


def test_a_leftover_is_named_by_what_and_where_it_is() -> None:
    assert leftover_name(Leftover("disk", "d-1", "gce", "a", 2)) == "gce disk d-1"


# ── External jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────

POLICY = parse_policy(b"sagemaker: {regions: [us-east-1]}", "p")
NO_CLONES = parse_policy(b"sagemaker: {regions: [us-east-1], clone: false}", "p")
JOB = ExternalJob("bert", "us-east-1", "InProgress", "Training", spot=True, checkpoints="s3://b/c", trained_before_s=60)


def seen(job: ExternalJob = JOB, chain: CloneChain | None = None) -> ExternalJobSnapshot:
    return ExternalJobSnapshot(job, chain or CloneChain("bert"), Known(()), "stoker-")


@pytest.mark.parametrize(
    ("snapshot", "policy", "may"),
    [
        (seen(), POLICY, True),
        (seen(replace(JOB, spot=False)), POLICY, False),
        (seen(), NO_CLONES, False),
        (seen(), parse_policy(b"rules: []", "p"), False),
        (seen(replace(JOB, parent="a pipeline")), POLICY, False),
        (seen(replace(JOB, checkpoints="")), POLICY, False),
        (seen(replace(JOB, checkpoints="", trained_before_s=0.0)), POLICY, True),
        (seen(chain=CloneChain("bert", clones={"bert": Cloning("bert", "r1", 1, "on-demand", False)})), POLICY, False),
        (seen(chain=CloneChain("bert", clones={"bert": Cloning("bert", "r1", 1, "stall", True)})), POLICY, True),
    ],
)
def test_spot_is_left_once_and_where_nothing_is_lost_by_that(
    snapshot: ExternalJobSnapshot, policy: object, may: bool
) -> None:
    assert may_leave_spot(snapshot, policy, at(0)) is may  # type: ignore[arg-type]


def test_why_a_job_may_not_be_cloned() -> None:
    subject = subject_of(JOB, CloneChain("bert"), at(0))
    assert clone_obstacle(seen(), POLICY, subject) == ""
    assert clone_obstacle(seen(), NO_CLONES, subject) == "the policy wants no clones"
    assert "a pipeline started it" in clone_obstacle(seen(replace(JOB, parent="a pipeline")), POLICY, subject)


# ── Patterns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["(", "a{5", "[b-a]", "(?P<x>a)(?P<x>b)"])
def test_what_is_no_expression_is_told_or_means_itself(text: str) -> None:
    if text == "a{5":
        assert compile_pattern(text).search("a{5") is not None
        return
    with pytest.raises(PatternError, match="not a regular expression"):
        compile_pattern(text)


@pytest.mark.parametrize("text", [r"(a)\1", r"(?=a)", r"(?<!a)b", r"(?>a)", r"a*+"])
def test_what_would_need_to_go_back_is_not_supported(text: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(text)


def test_an_expression_that_is_nested_too_deeply_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(safe_regex._Builder, "add", deep)
    with pytest.raises(PatternError, match="too deeply nested"):
        compile_pattern("deep-and-never-compiled-before")


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (r"[^0-9]+x", "abx", "12x"),
        (r"^\d{2,3}$", "123", "1234"),
        (r"a.c", "abc", "a\nc"),
        (r"(?i)CUDA error", "cuda ERROR", "cuda"),
        (r"\bloss\b", "the loss is", "glossy"),
        (r"(?:ab)?c$", "abc", "ab"),
        (r"x|yz", "yz", "y"),
        (r"[\w.]+@", "a.b@", "@"),
    ],
)
def test_expressions_find_what_they_mean(text: str, inside: str, outside: str) -> None:
    pattern = compile_pattern(text)
    assert pattern.search(inside) is not None and pattern.search(outside) is None
