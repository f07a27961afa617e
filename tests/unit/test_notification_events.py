"""What people are told of, from the entries of a log, and in which words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stoker.core.snapshot import Terminate
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Event,
    Launched,
    ResumeAsked,
    StopAsked,
    Submitted,
    Warned,
)
from stoker.model.policy import NotificationChannel, Policy
from stoker.notifications.events import (
    MAX_LINES,
    Notification,
    channel_wants,
    compose,
    event_line,
    notification_of,
    orphan_notification,
    orphan_notifications,
    shortened,
)
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import JOB, ON_DEMAND, SPOT_A, SPOT_B, at, entries, make_spec, make_state, nodes

POLICY = parse_policy(
    b"rules:\n- {stall: {}}\n- {max_cost: 5, audit: true}\n- {name: slow, min_gpu_utilization: {value: 80%}}\n", "p"
)
CLAIMED = (Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)))


def told(*events: Event, policy: Policy = POLICY) -> list[Notification]:
    state = make_state(*events)
    spec = replace(make_spec(), tags={"team": "nlp"})
    log = entries([Submitted(spec_digest="0" * 64, submitter="jane"), *events])
    return [found for entry in log if (found := notification_of(entry, state, spec, policy)) is not None]


def kinds(*events: Event, policy: Policy = POLICY) -> list[tuple[int, str]]:
    return [(found.seq, found.kind) for found in told(*events, policy=policy)]


def test_a_life_without_trouble() -> None:
    done = Ended(outcome="succeeded", rule="finished", claim=2, closing=Closed(2, "succeeded", "finished"))
    assert kinds(*CLAIMED, done) == [(3, "started"), (4, "finished")]
    started, finished = told(*CLAIMED, done)
    assert (started.job, started.name, started.tags, started.attempt) == (JOB, "sim", {"team": "nlp"}, 1)
    assert (started.where, started.zone) == ("m1 spot in a", "a")
    # Ten seconds at a dollar an hour.
    assert finished.cost == pytest.approx(10 / 3600)


def test_a_reclaim_that_nobody_announced_is_told_when_the_attempt_is_closed() -> None:
    closed = Closed(2, "reclaimed", "reclaimed", restart=True)
    again = (Claimed(offering=SPOT_B, nodes=1), Launched(5, nodes(5)))
    assert kinds(*CLAIMED, closed, *again) == [(3, "started"), (4, "reclaimed"), (6, "resumed")]
    assert told(*CLAIMED, closed, *again)[-1].attempt == 2


def test_a_notice_is_told_at_once_and_only_once() -> None:
    """The next attempt is claimed while the old one saves, again where there was no capacity, and starts first."""
    first = Claimed(offering=SPOT_B, nodes=1, successor_of=2)
    second = Claimed(offering=ON_DEMAND, nodes=1, successor_of=2)
    events = (*CLAIMED, first, Closed(4, "dry", "no-capacity", restart=True), second, Launched(6, nodes(6)))
    closed = Closed(2, "reclaimed", "reclaimed", restart=True)
    assert kinds(*events, closed) == [(3, "started"), (4, "reclaimed"), (7, "resumed")]


def test_what_comes_late_or_without_machines_is_no_news() -> None:
    late = Closed(2, "abandoned", "token-expired", restart=True)
    assert kinds(Claimed(offering=SPOT_A, nodes=1), late, Launched(2, nodes(2))) == []
    assert kinds(*CLAIMED, Draining(2, "lost", "gang"), StopAsked(by="jane")) == [(3, "started")]


def test_ends() -> None:
    for outcome, kind in (("succeeded", "finished"), ("failed", "failed"), ("stopped", "stopped")):
        assert kinds(Ended(outcome=outcome, rule="x")) == [(2, kind)]  # type: ignore[arg-type]
    again = (Ended(outcome="stopped", rule="stop"), ResumeAsked(by="jane"), Claimed(offering=SPOT_A, nodes=1))
    assert kinds(*CLAIMED, *again, Launched(6, nodes(6))) == [(3, "started"), (4, "stopped"), (7, "resumed")]


@pytest.mark.parametrize(
    ("code", "kind", "rule", "audit"),
    [
        ("stall:2", "stalled", "stall", False),
        ("policy:stall:2", "stalled", "policy:stall", False),
        ("policy:slow:2", "rule", "policy:slow", False),
        ("policy:max-cost", "rule", "policy:max-cost", True),
        ("policy:gone-since", "rule", "policy:gone-since", False),
        ("budget:team", "budget", "budget", False),
        ("no-checkpoint:2", "warning", "no-checkpoint", False),
    ],
)
def test_warnings(code: str, kind: str, rule: str, audit: bool) -> None:
    found = told(*CLAIMED, Warned(code=code))[-1]
    assert (found.kind, found.rule, found.audit, found.reason) == (kind, rule, audit, "warned at 4")


def test_who_hears_of_it() -> None:
    (failed,) = told(Ended(outcome="failed", rule="policy:max-nodes"))
    (stopped,) = told(Ended(outcome="stopped", rule="stop"))
    everything = NotificationChannel(to="x://y")
    assert channel_wants(everything, failed) and channel_wants(everything, stopped)
    assert channel_wants(NotificationChannel(to="x://y", events=("failed",)), failed)
    assert channel_wants(NotificationChannel(to="x://y", events=("rule",)), failed), "a rule of the policy caused it"
    assert not channel_wants(NotificationChannel(to="x://y", events=("rule",)), stopped)
    assert channel_wants(NotificationChannel(to="x://y", scope={"team": ("nlp", "vision")}), failed)
    assert not channel_wants(NotificationChannel(to="x://y", scope={"team": ("vision",)}), failed)
    lost = orphan_notification("gpt-1", "ec2 i-1", "its job is not in the store", at(0))
    assert channel_wants(everything, lost) and not channel_wants(
        NotificationChannel(to="x://y", scope={"team": ("any",)}), lost
    )


def test_words_for_one_event() -> None:
    event = Notification("failed", "gpt-7f3k", at(0), "exit code 1", seq=9, where="m1 spot in a", cost=1.234)
    message = compose("id", "s3://b/p", (event,))
    assert message.title == "gpt-7f3k failed"
    assert message.text.splitlines() == [
        "gpt-7f3k failed: exit code 1 (m1 spot in a, $1.23 so far); `stoker logs gpt-7f3k`",
        "(s3://b/p)",
    ]
    audited = replace(event, kind="rule", audit=True, cost=0.0022)
    assert event_line(audited).startswith(
        "gpt-7f3k breaks a rule (audit: nothing is done): exit code 1 (m1 spot in a, $0.0022 "
    )
    said = event_line(replace(audited, reason="too long; audit: nothing is done"))
    assert said.startswith("gpt-7f3k breaks a rule (audit): too long; audit: nothing is done (m1"), "once is enough"
    (removed,) = compose(
        "id", "s", (orphan_notification("gpt-1", "ec2 i-1", "its job is not in the store", at(0)),)
    ).events
    assert event_line(removed) == "ec2 i-1 belonged to no job, and was removed: its job is not in the store (of gpt-1)"


def test_a_storm_is_a_few_lines() -> None:
    storm = tuple(Notification("reclaimed", f"job-{n}", at(n), "notice", seq=3, zone="ab"[n % 2]) for n in range(1000))
    other = Notification("failed", "odd", at(0), "it broke", seq=5)
    message = compose("id", "s", (*storm, other), {"resumed": 700})
    assert message.title == "1001+ jobs: 700 resumed, 1000 reclaimed, 1 failed"
    assert message.text.splitlines() == [
        "500 jobs were reclaimed in a: job-0, job-2, job-4 and 497 more",
        "500 jobs were reclaimed in b: job-1, job-3, job-5 and 497 more",
        "odd failed: it broke; `stoker logs odd`",
        "and 700 more: resumed",
        "(s)",
    ]
    scattered = tuple(replace(one, zone=str(n)) for n, one in enumerate(storm))
    lines = compose("id", "s", scattered).text.splitlines()
    assert len(lines) == MAX_LINES + 2 and lines[-2] == f"and {1000 - MAX_LINES} more"


def test_three_alike_are_all_named() -> None:
    three = tuple(Notification("reclaimed", f"job-{n}", at(n), "notice", seq=3, zone="a") for n in range(3))
    others = tuple(Notification("failed", f"odd-{n}", at(n), "it broke", seq=5, zone=f"z{n}") for n in range(MAX_LINES))
    assert compose("id", "s", (*three, *others)).text.splitlines()[0] == (
        "3 jobs were reclaimed in a: job-0, job-1, job-2"
    )


def test_a_reason_is_one_line_and_no_novel() -> None:
    state = make_state(Ended(outcome="failed", rule="x"))
    (_, entry) = entries([Submitted(spec_digest="0" * 64, submitter="j"), Ended(outcome="failed", rule="x")])
    found = notification_of(replace(entry, reason="a\nb " * 1000), state, make_spec(), POLICY)
    assert found is not None and len(found.reason) == 300 and "\n" not in found.reason
    assert found.at == at(0) + timedelta(seconds=10)


def test_reasons_steer_no_terminal_and_turn_no_text_around() -> None:
    assert shortened("a\x1b[31mb\x08\x00c\td\u202ee\u2066f\ud800 \x85g") == "a[31mbc def g"
    assert shortened("жé – “NaN”") == "жé – “NaN”"
    told = orphan_notification("j", "t", "mail jane@example.com, @here", at(0))
    assert event_line(told).count("\u200b") == 1 and "jane@example.com" in event_line(told)


def test_only_machines_that_no_claim_stood_behind_are_orphans() -> None:
    ended = Terminate("gpt-1", "i-1", "ec2", "its agent fell silent")
    lost = replace(ended, instance="i-2", orphan=True)
    assert orphan_notifications([ended, lost], at(0)) == [orphan_notification("gpt-1", "ec2 i-2", ended.reason, at(0))]
