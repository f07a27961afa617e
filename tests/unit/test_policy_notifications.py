"""Messages about the policy: before a job, when it is refused, and when a rule ends it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from stoker import client
from stoker.cli import main
from stoker.cli.job_report import job_text
from stoker.core.acceptable_offerings import within_cost_limit
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.policy_rules import Subject, broken
from stoker.core.snapshot import Append, JobSnapshot, Launch
from stoker.core.summary import summarize
from stoker.model.errors import SpecError, UserError
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, Record, Warned
from stoker.model.node_facts import Activity
from stoker.model.observed import Known
from stoker.model.spec import Limits, Spec
from stoker.model.submission import Submission
from stoker.notifications.events import event_line, notification_of
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store.base import Store, open_store
from stoker.submit.prepare import prepare
from tests.support.sim_data import (
    NO_WORK,
    ON_DEMAND,
    SPOT_A,
    at,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

JOB = "run: python train.py\nresources: {local: {price: 360.0}}\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("stoker.yaml").write_text(JOB)
    return open_store(str(tmp_path / "store"))


def cli(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main(words)
    captured = capsys.readouterr()
    return captured.out + captured.err


def policy(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def decided(job: JobSnapshot, by: GovernorSettings, now_s: float = 100.0) -> list[tuple[Event, str]]:
    plan = decide_job(job, by, at(now_s))
    return [(action.event, action.reason) for action in plan.actions if isinstance(action, Append)]


# ── What cannot train is not launched ─────────────────────────────────────────────────────────────────────────────────


def test_a_bound_that_does_not_pay_for_saving_is_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    advice = "; raise it, shorten checkpoints.grace, or take a cheaper machine"
    what = f"$1 does not even pay for saving (90 s at $360.00/h: $9.00){advice}"
    assert f"limits.max_cost: {what}" in cli(capsys, "run", "--detach", "--set", "limits.max_cost=1")
    versions.write(store, "rules:\n- {max_cost: 1}\n", "jane")
    assert f"policy max-cost: {what}" in cli(capsys, "run", "--detach")
    assert "no jobs yet" in cli(capsys, "ps")


def test_nor_is_one_launched_that_was_submitted_past_it() -> None:
    dear = replace(ON_DEMAND, price=360.0)
    spec = make_spec(limits=Limits(max_cost=1.0))
    ((event, reason),) = decided(make_snapshot(make_state(), spec=spec, offerings=Known((dear,))), DEFAULT)
    assert event == Ended(outcome="failed", rule="max_cost")
    assert reason.startswith("limits.max_cost: $1 does not even pay for saving")
    ((event, _),) = decided(make_snapshot(make_state(), offerings=Known((dear,))), policy("max_cost: 1"))
    assert event == Ended(outcome="failed", rule="policy:max-cost")
    cheap = replace(ON_DEMAND, zone="b", price=0.1)
    plan = decide_job(make_snapshot(make_state(), spec=spec, offerings=Known((dear, cheap))), DEFAULT, at(100))
    claims = [action.event for action in plan.actions if isinstance(action, Append)]
    assert [event.offering for event in claims if isinstance(event, Claimed)] == [cheap]
    assert any(isinstance(action, Launch) for action in plan.actions)


def test_what_was_spent_before_counts() -> None:
    dear = replace(ON_DEMAND, price=360.0)
    spec = make_spec(limits=Limits(max_cost=20.0))
    assert within_cost_limit(spec, [dear], DEFAULT.leave_s)[0] == [dear]
    kept, reason = within_cost_limit(spec, [dear], DEFAULT.leave_s, spent=12.5)
    assert kept == []
    assert reason == (
        "limits.max_cost: $12.50 of $20 is spent, and what is left does not pay for saving (90 s at $360.00/h: $9.00)"
    )


def test_an_end_by_the_cost_says_what_was_spent_and_what_is_set_aside() -> None:
    dear = replace(ON_DEMAND, price=360.0)
    running = ((Claimed(offering=dear, nodes=1), 0.0), (Launched(2, nodes(2)), 0.0))
    job = make_snapshot(make_state(*running), spec=make_spec(limits=Limits(max_cost=20.0)))
    ((_, reason),) = decided(job, DEFAULT, 120.0)
    assert reason == "limits.max_cost ($20) is reached: $12.00 spent, $9.00 set aside for saving"


# ── Setting them ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_policy_is_no_policy(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.yaml").write_text("rules:\n- max_nodes: 2\n- max_retries: 3\n")
    assert "policy version 1: 2 rules, from now on" in cli(capsys, "policy", "set", "p.yaml")
    for text in ("", "# nothing\n", "{}\n"):
        Path("p.yaml").write_text(text)
        assert 'p.yaml: is empty; to have no rules write "rules: []"' in cli(capsys, "policy", "set", "p.yaml")
    assert versions.newest(store) == 1
    Path("p.yaml").write_text("rules: []\n")
    assert "policy version 2: 0 rules (2 before), from now on" in cli(capsys, "policy", "set", "p.yaml")
    # One that is in a store already never stops it.
    assert parse_policy(b"", "policy version 3", version=3).rules == ()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("max_runtime: 72", "rules[0].max_runtime: 72 is seconds; write 72s or 72h"),
        ("max_wait: '6'", "rules[0].max_wait: 6 is seconds; write 6s or 6h"),
        ("stall: {window: 5}", "rules[0].stall.window: 5 is seconds; write 5s or 5h"),
    ],
)
def test_a_duration_of_the_policy_has_a_unit(rule: str, told: str) -> None:
    text = f"rules:\n- {rule}\n".encode()
    with pytest.raises(SpecError) as raised:
        parse_policy(text, "p.yaml")
    assert told in str(raised.value)
    assert len(parse_policy(text, "policy version 3", version=3).rules) == 1
    assert parse_policy(b"rules:\n- {stall: {after: 0}}\n", "p.yaml").rules[0].stall is not None


@pytest.mark.usefixtures("store")
def test_exemptions_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    mine = "{submitter: 'os:*', until: 2099-01-31, why: the big one}"
    old = "{job: old-7f3k, until: 2020-01-31, why: the old one}"
    Path("p.yaml").write_text(f"rules:\n- max_nodes: 1\n  except: [{mine}, {old}]\n")
    test = ("policy", "test", "--policy", "p.yaml", "--set", "nodes=2")
    told = cli(capsys, *test)
    assert "exempt from max-nodes until 2099-01-31 (the big one)" in told and "refused" not in told
    Path("p.yaml").write_text(f"rules:\n- max_nodes: 1\n  except: [{mine.replace('2099', '2020')}, {old}]\n")
    told = cli(capsys, *test)
    assert "2 nodes are more than 1; ask for fewer; its exemption ended on 2020-01-31" in told
    assert "rule max-nodes: its exemption of old-7f3k expired on 2020-01-31 (the old one)" in cli(
        capsys, "policy", "set", "p.yaml"
    )


# ── Planning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_plan_has_the_bounds_of_the_policy(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    versions.write(store, "rules:\n- {max_cost: 400}\n- {max_runtime: 72h}\n", "jane")
    plan = cli(capsys, "run", "--dry-run")
    assert "worst case: $400.00 (policy max-cost)" in plan
    assert "policy max-cost: at most $400.00" in plan
    assert "policy max-runtime: at most 72 h of training" in plan
    assert "worst case: $360.00 (1h 00m of training" in cli(
        capsys, "run", "--dry-run", "--set", "limits.max_runtime=1h"
    )
    told = cli(capsys, "policy", "test")
    assert "bounded: max_runtime 72 h by policy max-runtime" in told
    assert "bounded: max_cost $400.00 by policy max-cost" in told
    bounds = json.loads(cli(capsys, "policy", "test", "--json"))["bounds"]
    assert bounds["max_runtime"] == {"value": 259200.0, "rule": "max-runtime"}


def test_a_dry_run_far_away_says_that_the_policy_was_not_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "a dry run asks no server, so the policy is not checked; `stoker policy test` checks it"
    versions.write(store, "rules:\n- {max_nodes: 1}\n", "jane")
    spec = Spec(name="x", run="python train.py")
    with prepare(spec, store, folder=Path(), offline=True) as near:
        assert words not in near.notes
    monkeypatch.setattr(type(store), "is_local", False)
    with prepare(spec, store, folder=Path(), offline=True) as far:
        assert words in far.notes


# ── Refused, ended, warned ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_the_policy_refuses_is_not_resumed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.store import job_log

    job = client.submit(client.Job(run="python train.py"), store=store)
    state = job_log.read(store, job)
    assert state is not None
    ended = Record(token=job_log.new_token(), by="test", reason="x", event=Ended(outcome="failed", rule="test"))
    assert job_log.append(store, job, state.seq + 1, ended)
    versions.write(store, "rules:\n- {tags: {team: any}}\n", "jane")
    before = [meta.key for meta in store.list("")]
    with pytest.raises(UserError) as raised:
        client.resume(job, store)
    assert str(raised.value) == f"policy tags: tags.team is missing; `stoker clone {job} --set tags.team=…` has it"
    assert [meta.key for meta in store.list("")] == before
    assert "goes on" not in cli(capsys, "resume", job)
    exempt = f"rules:\n- tags: {{team: any}}\n  except: [{{job: {job}, until: 2099-01-31, why: x}}]\n"
    versions.write(store, exempt, "jane")
    assert client.resume(job, store) == job


def test_a_rule_of_the_policy_about_spot_is_named() -> None:
    taken: list[Event | tuple[Event, float]] = []
    for number in (2, 5, 8):
        taken += [(Claimed(offering=SPOT_A, nodes=1), number), (Launched(number, nodes(number)), number)]
        taken.append((Closed(claim=number, outcome="reclaimed", rule="notice", restart=True, progressed=True), number))
    job = make_snapshot(make_state(*taken), offerings=Known((SPOT_A, ON_DEMAND)))
    ((event, reason),) = decided(job, policy("name: spots, spot: {on_demand_after: 2}"))
    assert isinstance(event, Claimed) and not event.offering.spot
    assert reason.endswith("on-demand after 3 reclaims (policy spots)")
    own = replace(job, spec=replace(job.spec, retry=replace(job.spec.retry, on_demand_after=2)))
    assert decided(own, DEFAULT)[0][1].endswith("on-demand after 3 reclaims")


def test_a_stall_leads_to_its_evidence() -> None:
    state = make_state(Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)))
    beat = make_beat(995, trained_s=1000.0, activity=Activity(silent_s=1000.0, work=NO_WORK))
    by = policy("name: hangs, stall: {}")
    ((event, reason),) = decided(make_snapshot(state, make_facts(2, beat=beat)), by, 1000.0)
    assert isinstance(event, Warned) and event.evidence
    way = f"`stoker logs {state.job} --evidence`"
    assert reason == (
        f"policy hangs: no step, no line of the log and no work for 16 min 40 s; {way} shows what it does"
    )
    after = make_state(Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)), event)
    entry = Entry(seq=4, at=at(1000), by="x", reason=reason, event=event)
    message = notification_of(entry, after, make_spec(), by.policy)
    assert message is not None and message.kind == "stalled"
    assert event_line(message).count("stoker logs") == 1 and way in event_line(message)
    short = summarize(after, Submission(after.job, make_spec(), "jane"), {}, at(1000))
    assert way in job_text(short, has_stack_dumps=bool(after.evidence_codes))


def test_ended_exemptions_of_others_are_no_news() -> None:
    text = b"rules:\n- max_nodes: 1\n  except: [{job: other-7f3k, until: 2020-01-31, why: x}]\n"
    subject = Subject(replace(make_spec(), nodes=2), date(2026, 1, 1))
    (finding,) = broken(parse_policy(text, "p.yaml"), subject)
    assert finding.reason == "2 nodes are more than 1; ask for fewer"
