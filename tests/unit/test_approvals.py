"""A named person lets one job break one rule, until a day."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from command_line import Stoker, stoker, store

from stoker.client import prepare_any
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Action, Append, Launch
from stoker.governor.loop import Governor
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import PolicyRefused
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, Warned
from stoker.model.observed import Known
from stoker.model.policy import Exemption, Policy
from stoker.policy import approvals, versions
from stoker.policy.approvals import Approval, ApprovalReader, Withdrawal
from stoker.policy.policy_file import parse_policy
from stoker.policy.reader import PolicyReader
from stoker.store import job_log
from stoker.store.base import Store
from stoker.submit import identity
from stoker.submit.policy_check import read_policy
from stoker.submit.send import send
from tests.support.sim_data import (
    EPOCH,
    SPOT_A,
    SPOT_B,
    at,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

__all__ = ["stoker", "store"]
RULE = "rules: [{name: big, max_nodes: 1, approvers: ['os:lead@*', 'os:boss@desk']}]"
TODAY = EPOCH.date()
TOMORROW = datetime.now(timezone.utc).date() + timedelta(days=1)


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "local_user", lambda: "os:lead@laptop")


def policy(text: str = RULE) -> Policy:
    return parse_policy(text.encode(), "p.yaml")


def approved(until: date, by: str = "os:lead@laptop", job: str = "job-1", text: str = RULE) -> Policy:
    (rule,) = policy(text).rules
    exempt = Exemption(job=job, until=until, why="demo", approved_by=by)
    return replace(policy(text), rules=(replace(rule, exempt=(exempt,)),))


def withdrawn(by: Policy, who: str = "os:boss@desk") -> Policy:
    (rule,) = by.rules
    (exempt,) = rule.exempt
    return replace(by, rules=(replace(rule, exempt=(replace(exempt, withdrawn_by=who, withdrawn_why="a mistake"),)),))


def decided(by: Policy, *events: Event, count: int = 2) -> tuple[list[tuple[Event, str]], str]:
    job = make_snapshot(make_state(*events), spec=make_spec(count), offerings=Known((SPOT_A,)))
    plan = decide_job(job, replace(DEFAULT, policy=by), at(100.0))
    found = [(action.event, action.reason) for action in plan.actions if isinstance(action, Append)]
    return found, plan.waiting.get("job-1", "")


# ── The decision ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_needs_an_approval_waits_and_says_by_whom() -> None:
    (((event, reason),), waiting) = decided(policy())
    assert event == Warned(code="policy:big:approval") and reason == waiting
    assert waiting == (
        "policy big: 2 nodes are more than 1; ask for fewer; it waits for an approval by os:lead@*, os:boss@desk: "
        "`stoker policy approve job-1 --rule big --why …`"
    )
    assert decided(policy(), event) == ([], waiting), "it is told once, and it goes on waiting"


def test_an_approval_is_recorded_and_lets_it_go_until_it_expires() -> None:
    by = approved(TODAY)
    (((event, reason),), _) = decided(by)
    assert event == Warned(code=f"policy:big:approved:{TODAY}")
    assert reason == f"policy big: approved by os:lead@laptop until {TODAY}: demo"
    (((then, _),), _) = decided(by, event)
    assert isinstance(then, Claimed)
    _, waiting = decided(approved(TODAY - timedelta(days=1)))
    assert "its exemption ended" in waiting and "waits for an approval" in waiting
    _, waiting = decided(approved(TODAY, job="job-2"))
    assert "waits for an approval" in waiting, "another job is not approved"


def test_a_rule_without_approvers_refuses_all_the_same() -> None:
    text = "rules: [{name: big, max_nodes: 1, approvers: [a]}, {name: tags, tags: {team: any}}]"
    (((event, _),), _) = decided(policy(text))
    assert event == Ended(outcome="failed", rule="policy:tags")


def test_machines_can_be_approved() -> None:
    text = "rules: [{name: m, machines: [m2], approvers: ['os:lead@*']}]"
    _, waiting = decided(policy(text), count=1)
    assert waiting.startswith("policy m: m1 may not be used; allowed is m2; it waits for an approval by os:lead@*")
    (((event, _),), _) = decided(approved(TODAY, text=text), Warned(code=f"policy:m:approved:{TODAY}"), count=1)
    assert isinstance(event, Claimed) and event.offering != SPOT_B


def test_a_withdrawal_is_recorded_and_lets_a_job_that_has_no_machine_wait_again() -> None:
    given = Warned(code=f"policy:big:approved:{TODAY}")
    (((event, reason),), _) = decided(withdrawn(approved(TODAY)), given)
    assert event == Warned(code=f"policy:big:withdrawn:{TODAY}")
    assert reason == (
        f"policy big: its approval by os:lead@laptop until {TODAY} was withdrawn by os:boss@desk: a mistake"
    )
    (((asked, _),), waiting) = decided(withdrawn(approved(TODAY)), given, event)
    assert asked == Warned(code="policy:big:approval")
    assert "was withdrawn by os:boss@desk: a mistake; it waits for an approval by os:lead@*" in waiting
    assert decided(withdrawn(approved(TODAY)), given, event, asked) == ([], waiting), "nothing is recorded twice"


def test_the_withdrawal_of_an_approval_that_the_log_does_not_have_is_only_said() -> None:
    (((event, reason),), waiting) = decided(withdrawn(approved(TODAY), "os:lead@laptop"))
    assert event == Warned(code="policy:big:approval") and reason == waiting
    assert f"; its approval until {TODAY} was withdrawn by os:lead@laptop: a mistake; it waits" in waiting


RUNNING = (Claimed(SPOT_A, nodes=1), Launched(3, nodes(3)))


@pytest.mark.parametrize("expired", [False, True])
def test_a_withdrawal_while_a_job_runs_does_what_an_expiry_does(expired: bool) -> None:
    text = "rules: [{name: long, max_runtime: 2m, approvers: ['os:lead@*']}]"
    given = Warned(code=f"policy:long:approved:{TODAY}")
    valid = approved(TODAY, text=text)

    def decided_by(policy: Policy, *events: Event) -> list[Event]:
        beat = make_facts(3, beat=make_beat(290.0, trained_s=200.0))
        job = make_snapshot(make_state(given, *RUNNING, *events), beat, spec=make_spec(1))
        plan = decide_job(job, replace(DEFAULT, policy=policy), at(300.0))
        return [action.event for action in plan.actions if isinstance(action, Append)]

    assert decided_by(valid) == [], "it may train for longer than the rule says"
    if expired:
        (then,) = decided_by(approved(TODAY - timedelta(days=1), text=text))
    else:
        (record,) = decided_by(withdrawn(valid))
        assert record == Warned(code=f"policy:long:withdrawn:{TODAY}")
        (then,) = decided_by(withdrawn(valid), record)
    assert then == Draining(claim=3, outcome="limit", rule="policy:long"), "the limit holds again at once"


@pytest.mark.parametrize("ended", ["withdrawn", "expired"])
def test_a_request_in_the_clouds_queue_is_given_up_when_its_approval_ends(ended: str) -> None:
    """It may be there for an hour, without a machine: a job without one waits again."""
    given = Warned(code=f"policy:big:approved:{TODAY}")
    valid, claimed = approved(TODAY), Claimed(replace(SPOT_A, queued=True), nodes=2)

    def acted(by: Policy, *events: Event | tuple[Event, float], now_s: float = 600.0) -> list[Action]:
        job = make_snapshot(make_state(given, (claimed, 10.0), *events), spec=make_spec(2), offerings=Known((SPOT_A,)))
        return list(decide_job(job, replace(DEFAULT, policy=by), at(now_s)).actions)

    assert [type(each) for each in acted(valid)] == [Launch]
    assert [type(each) for each in acted(policy())] == [Launch], "a rule without an approval holds for later claims"
    after, log = approved(TODAY - timedelta(days=1)), []
    if ended == "withdrawn":
        after, log = withdrawn(valid), [Warned(code=f"policy:big:withdrawn:{TODAY}")]
    assert [type(each) for each in acted(after, *log, now_s=60.0)] == [Launch], "another governor may be sending it"
    (closing,) = acted(after, *log)
    assert isinstance(closing, Append) and isinstance(closing.event, Closed)
    assert (closing.event.claim, closing.event.rule, closing.event.restart) == (3, "policy:big", True)
    assert "2 nodes are more than 1" in closing.reason and ("withdrawn by" in closing.reason) == (ended == "withdrawn")
    (asked,) = acted(after, *log, (closing.event, 600.0), now_s=601.0)
    assert isinstance(asked, Append) and asked.event == Warned(code="policy:big:approval")


# ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_approvals_by_the_rules_approvers_count(store: Store) -> None:
    for by in ("os:lead@laptop", "os:jane@laptop", "os:boss@other", "os:boss@desk"):
        approvals.write(store, Approval(f"job-{by[3:7]}", "big", by, str(TOMORROW), "demo"))
    approvals.write(store, Approval("job-old", "big", "os:lead@laptop", "2020-01-01", "demo"))
    (rule,) = ApprovalReader(store).with_approvals(policy(), TOMORROW).rules
    assert sorted((each.job, each.approved_by) for each in rule.exempt) == [
        ("job-boss", "os:boss@desk"),
        ("job-lead", "os:lead@laptop"),
    ]


def test_what_is_no_approval_approves_nothing(store: Store) -> None:
    good = approvals.key_prefix(str(TOMORROW), "job-1", "big")
    store.create(f"{good}x.json", b"{")
    store.create(
        f"{good}y.json", b'{"job": "job-2", "rule": "big", "by": "os:lead@x", "until": "2999-01-01", "why": ""}'
    )
    store.create(f"{keys.APPROVALS}nonsense", b"")
    approvals.write(store, Approval("job-3", "big", "os:lead@laptop", "never", "demo"))
    assert ApprovalReader(store).with_approvals(policy(), TOMORROW) == policy()


def test_the_words_of_an_approval_steer_no_terminal(store: Store) -> None:
    by, last = "os:lead@laptop", str(TOMORROW)
    sly = "the\x1b[2J demo\n\nstoker: \u202eall is well\r\x9b1m " + "x" * 600
    approvals.write(store, Approval("job-1", "big", by, last, sly))
    (rule,) = ApprovalReader(store).with_approvals(policy(), TOMORROW).rules
    (found,) = rule.exempt
    assert found.why.isprintable() and len(found.why) == 500
    assert found.why.startswith("the [2J demo stoker: all is well 1m xxx") and found.why.endswith("x…")


@pytest.mark.parametrize("sly", ["\x9b2J", "\u202e", "\u200b"])
@pytest.mark.parametrize("field", ["job", "rule", "by"])
def test_an_approval_with_a_name_that_steers_a_terminal_approves_nothing(store: Store, field: str, sly: str) -> None:
    named = {"job": "job-1", "rule": "big", "by": "os:lead@laptop"}
    named[field] += sly
    approvals.write(store, Approval(**named, until=str(TOMORROW), why="demo"))
    assert list(store.list(keys.APPROVALS)) and ApprovalReader(store).valid(TOMORROW) == []


def test_a_governor_sees_an_approval_in_its_next_pass_and_asks_for_none_where_no_rule_has_approvers(
    store: Store,
) -> None:
    reader = PolicyReader(store, DEFAULT)
    versions.write(store, RULE, "jane")
    assert not reader.read().policy.rules[0].exempt
    approvals.write(store, Approval("job-1", "big", "os:lead@laptop", str(TOMORROW), "demo"))
    assert [each.job for each in reader.read().policy.rules[0].exempt] == ["job-1"]
    assert [each.job for each in read_policy(store).rules[0].exempt] == ["job-1"]
    versions.write(store, "rules: [{max_nodes: 1}]", "jane")
    assert reader.read().policy.rules[0].exempt == ()


def test_a_withdrawal_ends_one_approval_for_good_and_the_job_can_be_approved_again(store: Store) -> None:
    reader = ApprovalReader(store)
    for job in ("job-1", "job-2"):
        approvals.write(store, Approval(job, "big", "os:lead@laptop", str(TOMORROW), "demo"))
    first, second = reader.standing(TOMORROW)
    assert approvals.withdraw(store, first, Withdrawal("os:boss@desk", "a mistake"))
    assert not approvals.withdraw(store, first, Withdrawal("os:lead@laptop", "me, too")), "the first one counts"
    assert reader.standing(TOMORROW) == [second]
    (rule,) = reader.with_approvals(policy(), TOMORROW).rules
    assert [(each.job, each.withdrawn_by, each.withdrawn_why) for each in rule.exempt] == [
        ("job-1", "os:boss@desk", "a mistake"),
        ("job-2", "", ""),
    ]
    # The person that withdrew it is no approver any more: the withdrawal stands.
    (rule,) = reader.with_approvals(policy(RULE.replace(", 'os:boss@desk'", "")), TOMORROW).rules
    assert [bool(each.withdrawn_by) for each in rule.exempt] == [True, False]
    approvals.write(store, Approval("job-1", "big", "os:lead@laptop", str(TOMORROW), "it was right"))
    assert {each.why for each in reader.valid(TOMORROW)} == {"demo", "it was right"}
    assert len({each.token for each in reader.standing(TOMORROW)}) == 2


def test_a_withdrawal_that_cannot_be_read_withdraws_all_the_same(store: Store) -> None:
    approvals.write(store, Approval("job-1", "big", "os:lead@laptop", str(TOMORROW), "demo"))
    (found,) = ApprovalReader(store).standing(TOMORROW)
    store.create(found.key.replace(".json", ".withdrawn.json"), b"{")
    assert ApprovalReader(store).valid(TOMORROW) == []
    (rule,) = ApprovalReader(store).with_approvals(policy(), TOMORROW).rules
    assert [each.withdrawn_by for each in rule.exempt] == ["an unknown person"]


def test_the_words_of_a_withdrawal_steer_no_terminal(store: Store) -> None:
    approvals.write(store, Approval("job-1", "big", "os:lead@laptop", str(TOMORROW), "demo"))
    (found,) = ApprovalReader(store).standing(TOMORROW)
    approvals.withdraw(store, found, Withdrawal("os:\x1b[2Jboss", "all\r\nis\u202e well"))
    (rule,) = ApprovalReader(store).with_approvals(policy(), TOMORROW).rules
    assert [(each.withdrawn_by, each.withdrawn_why) for each in rule.exempt] == [("os: [2Jboss", "all is well")]


# ── From the command line to the machine ──────────────────────────────────────────────────────────────────────────────


def job_of(store: Store, count: int = 2) -> str:
    with prepare_any(Job(run="true", nodes=count, name="big"), store) as prepared:
        assert any("it waits for an approval by os:lead@*" in line for line in prepared.warnings)
        return send(prepared, store)


@pytest.mark.usefixtures("lead")
def test_an_approver_lets_a_job_go(store: Store, stoker: Stoker) -> None:
    versions.write(store, RULE, "jane")
    job = job_of(store)
    governor = Governor(store)
    assert "waits for an approval" in governor.run_pass({job}).waiting[job]
    state = job_log.read(store, job)
    assert state is not None and not state.claims and state.ended is None
    code, _, said = stoker("policy", "approve", job, "--why", "the demo", "--until", TOMORROW.isoformat())
    assert code == 0 and f"{job} may break policy big until {TOMORROW}, approved by os:lead@laptop" in said
    listed = stoker("policy", "approvals")[1].splitlines()
    assert listed[1].split()[:4] == [job, "big", str(TOMORROW), "os:lead@laptop"]
    governor.run_pass({job})
    reasons = [entry.reason for entry in job_log.entries(store, job)]
    assert f"policy big: approved by os:lead@laptop until {TOMORROW}: the demo" in reasons
    state = job_log.read(store, job)
    assert state is not None and state.claims
    stoker("stop", job)
    Governor(store).run_pass({job})


@pytest.mark.usefixtures("lead")
def test_an_approver_withdraws_the_approval_of_a_job_before_its_launch_and_it_waits_again(
    store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.write(store, RULE, "jane")
    job = job_of(store)
    stoker("policy", "approve", job, "--rule", "big", "--why", "the demo")
    monkeypatch.setattr(identity, "local_user", lambda: "os:jane@laptop")
    code, _, said = stoker("policy", "withdraw", job, "--why", "x")
    assert code == 2
    assert "policy big: os:jane@laptop may not withdraw the approval by os:lead@laptop; its approvers are" in said
    monkeypatch.setattr(identity, "local_user", lambda: "os:boss@desk")
    code, _, said = stoker("policy", "withdraw", job, "--why", "a mistake")
    assert code == 0 and f"{job}: policy big holds again: its approval was withdrawn by os:boss@desk" in said
    assert "no job is approved" in stoker("policy", "approvals")[2]
    waits = Governor(store).run_pass({job}).waiting[job]
    assert "was withdrawn by os:boss@desk: a mistake; it waits for an approval by" in waits
    state = job_log.read(store, job)
    assert state is not None and not state.claims
    code, _, said = stoker("policy", "withdraw", job, "--why", "again")
    assert code == 2 and f"{job}: has no approval to withdraw" in said
    code, _, said = stoker("policy", "withdraw", job, "--why", "again", "--rule", "big")
    assert code == 2 and f"--rule big: {job} has no approval of it" in said
    assert stoker("policy", "approve", job, "--why", "it was right")[0] == 0
    Governor(store).run_pass({job})
    state = job_log.read(store, job)
    assert state is not None and state.claims, "it can be approved again"
    stoker("stop", job)
    Governor(store).run_pass({job})


@pytest.mark.usefixtures("lead")
def test_a_withdrawal_under_which_a_job_runs_is_in_its_log_and_leaves_its_machines(
    store: Store, stoker: Stoker
) -> None:
    versions.write(store, RULE, "jane")
    with prepare_any(Job(run="sleep 600", nodes=2, name="big"), store) as prepared:
        job = send(prepared, store)
    stoker("policy", "approve", job, "--rule", "big", "--why", "the demo", "--until", TOMORROW.isoformat())
    governor = Governor(store)
    governor.run_pass({job})
    code, _, said = stoker("policy", "withdraw", job, "--why", "too long")
    assert code == 0 and f"{job} has begun: limits hold from now on" in said
    governor.run_pass({job})
    reasons = [entry.reason for entry in job_log.entries(store, job)]
    text = f"policy big: its approval until {TOMORROW} was withdrawn by os:lead@laptop: too long"
    assert reasons.count(text) == 1
    governor.run_pass({job})
    state = job_log.read(store, job)
    assert state is not None and state.open_claims and state.ended is None and state.open_claims[0].drain is None
    stoker("stop", job)
    governor.run_pass({job})


def test_a_test_of_the_policy_says_that_it_would_wait(store: Store, stoker: Stoker, tmp_path: Path) -> None:
    versions.write(store, RULE, "jane")
    (tmp_path / "job.yaml").write_text("run: 'true'\nnodes: 2\n")
    code, told, _ = stoker("policy", "test", str(tmp_path / "job.yaml"))
    assert code == 0 and told.startswith("would wait: policy big: 2 nodes are more than 1") and "allowed" not in told


def test_others_may_not_approve(store: Store, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    versions.write(store, RULE, "jane")
    monkeypatch.setattr(identity, "local_user", lambda: "os:jane@laptop")
    job = job_of(store)
    code, _, said = stoker("policy", "approve", job, "--rule", "big", "--why", "x")
    assert code == 2
    assert "policy big: os:jane@laptop may not approve; its approvers are os:lead@*, os:boss@desk" in said
    assert not list(store.list(keys.APPROVALS))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--why", "x"), "waits for no approval; name a rule with --rule (big)"),
        (("--why", "x", "--rule", "bgi"), "--rule bgi: the policy has no such rule; there are: big"),
        (("--why", "x", "--rule", "big", "--until", "2020-01-01"), "--until 2020-01-01: is over; name a day from"),
        (("--why", "x", "--rule", "big", "--until", "7"), "--until 7: expected a day such as 2026-12-31, or a span"),
        (("--rule", "big"), "--why"),
        (("--rule", "big", "--why", " "), "--why: is empty; write the reason"),
    ],
)
@pytest.mark.usefixtures("lead")
def test_mistakes(store: Store, stoker: Stoker, words: tuple[str, ...], told: str) -> None:
    versions.write(store, RULE, "jane")
    code, _, said = stoker("policy", "approve", job_of(store), *words)
    assert code == 2 and told in said


def test_a_refusal_beside_it_refuses(store: Store) -> None:
    versions.write(store, f"{RULE[:-1]}, {{tags: {{team: any}}}}]", "jane")
    with pytest.raises(PolicyRefused) as error:
        job_of(store)
    assert error.value.problems == (
        "policy tags: tags.team is missing; add it to the job file, or give --set tags.team=…",
    )
