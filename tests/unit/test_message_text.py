"""Words of letters for each kind of event, and the register of a channel at the edge of its bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from stoker.model.policy import EventKind
from stoker.notifications.events import (
    MAX_LINES,
    Notification,
    channel_wants,
    compose,
    event_line,
    message_title,
    shortened,
    without_mentions,
)
from stoker.notifications.outbox import (
    FRESH_FOR,
    GIVE_UP_AFTER,
    HOUR,
    MAX_WAITING,
    REMEMBERED_FOR,
    RETRY_PAUSES,
    SENDING_LEASE,
    Cursor,
    Outbox,
    RetryState,
    add_events,
    mark_delivered,
    mark_failed,
    message_id,
    prune,
    sendable_at,
    start_sending,
)
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import at

SECOND = timedelta(seconds=1)


def told(kind: EventKind, job: str = "gpt-1", **rest: object) -> Notification:
    return Notification(kind, job, at(0), "", **{"seq": 1, **rest})  # type: ignore[arg-type]


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS: list[tuple[EventKind, str, str, str]] = [
    ("started", "gpt-1 started", "22 jobs started: ", ""),
    ("reclaimed", "gpt-1 was reclaimed", "22 jobs were reclaimed: ", ""),
    ("resumed", "gpt-1 goes on", "22 jobs go on: ", ""),
    ("stalled", "gpt-1 stands still", "22 jobs stand still: ", "; `stoker logs gpt-1`"),
    ("rule", "gpt-1 breaks a rule", "22 jobs break a rule: ", "; `stoker explain gpt-1`"),
    ("budget", "gpt-1 meets a budget", "22 jobs meet a budget: ", "; `stoker explain gpt-1`"),
    ("warning", "gpt-1 has a warning", "22 jobs have warnings: ", "; `stoker explain gpt-1`"),
    ("failed", "gpt-1 failed", "22 jobs failed: ", "; `stoker logs gpt-1`"),
    ("stopped", "gpt-1 was stopped", "22 jobs were stopped: ", ""),
    ("finished", "gpt-1 finished", "22 jobs finished: ", ""),
]


@pytest.mark.parametrize(("kind", "one", "many", "look"), WORDS)
def test_what_happened_to_one_job_and_to_many(kind: EventKind, one: str, many: str, look: str) -> None:
    event = told(kind)
    assert message_title((event,), {}) == one and event_line(event) == one + look
    message = compose("i", "s", tuple(told(kind, f"j{number}") for number in range(MAX_LINES + 2)))
    assert message.text.splitlines() == [f"{many}j0, j1, j2 and 19 more", "(s)"]


def test_what_belonged_to_no_job_is_named_itself() -> None:
    things = tuple(told("orphan", "gpt-1", thing=f"ec2 i-{number}") for number in range(MAX_LINES + 1))
    assert event_line(things[0]) == "ec2 i-0 belonged to no job, and was removed (of gpt-1)"
    (text, _) = compose("i", "s", things).text.splitlines()
    assert text == "21 things belonged to no job, and were removed: ec2 i-0, ec2 i-1, ec2 i-2 and 18 more"


def test_a_line_says_where_it_was_what_it_cost_and_how_to_look() -> None:
    event = replace(told("failed", where="2 × p4d"), reason="it broke", cost=2.5)
    assert event_line(event) == "gpt-1 failed: it broke (2 × p4d, $2.50 so far); `stoker logs gpt-1`"
    assert event_line(replace(event, cost=0.0, where="")) == "gpt-1 failed: it broke; `stoker logs gpt-1`"
    known = replace(event, reason="see `stoker logs gpt-1 --evidence`", cost=None, where="")
    assert event_line(known) == "gpt-1 failed: see `stoker logs gpt-1 --evidence`"
    assert event_line(told("resumed", thing="gpt-1")) == "gpt-1 goes on"


def test_an_audit_is_said_once() -> None:
    event = replace(told("rule"), audit=True)
    assert event_line(event) == "gpt-1 breaks a rule (audit: nothing is done); `stoker explain gpt-1`"
    said = replace(event, reason="x; audit: nothing is done")
    assert event_line(said) == "gpt-1 breaks a rule (audit): x; audit: nothing is done; `stoker explain gpt-1`"
    assert message_title((event,), {}) == "gpt-1 breaks a rule (audit)"


def test_a_budget_without_jobs_is_a_sentence_of_its_own() -> None:
    event = Notification("budget", "", at(0), "so much", thing="budget nlp is spent")
    assert event_line(event) == "budget nlp is spent: so much; `stoker costs`"
    assert message_title((event,), {}) == "budget nlp is spent"
    assert message_title((event, replace(event, seq=2)), {}) == "budget nlp is spent: 2 budget"


def test_a_title_counts_jobs_and_what_happened_to_them() -> None:
    events = (told("reclaimed", "a"), told("reclaimed", "b"), told("resumed", "a"))
    assert message_title(events, {}) == "2 jobs: 2 reclaimed, 1 resumed"
    assert message_title(events[:1], {"failed": 3}) == "1+ jobs: 3 failed, 1 reclaimed"
    assert message_title((events[0], events[2]), {}) == "a: 1 reclaimed, 1 resumed"
    assert message_title((), {"failed": 3}) == "0+ jobs: 3 failed"


def test_jobs_share_a_line_only_in_the_same_place() -> None:
    here = tuple(told("reclaimed", f"h{number}", zone="a") for number in range(MAX_LINES))
    there = (told("reclaimed", "t1", zone="b"), told("reclaimed", "t2", zone="b"), told("failed", "x"))
    assert compose("i", "s", (*there, *here)).text.splitlines() == [
        "20 jobs were reclaimed in a: h0, h1, h2 and 17 more",
        "2 jobs were reclaimed in b: t1, t2",
        "x failed; `stoker logs x`",
        "(s)",
    ]


def test_more_places_than_lines_are_counted() -> None:
    many = tuple(told("reclaimed", f"j{number}", zone=f"z{number // 2}") for number in range(2 * MAX_LINES + 6))
    lines = compose("i", "s", many).text.splitlines()
    assert len(lines) == MAX_LINES + 2 and lines[-2] == "and 6 more"


def test_a_reason_of_three_hundred_characters_is_whole() -> None:
    assert shortened("x" * 300) == "x" * 300 and shortened("x" * 301) == "x" * 299 + "…"
    assert shortened("a\tb\x00c\u202ed\ue000e\ud800f\u0378g") == "a bcdefg"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<@U1> and <#C1>", "<\u200b@\u200bU1> and <\u200b#C1>"),
        ("<!here>", "<!\u200bhere>"),
        ("@all but a@b.c", "@\u200ball but a@b.c"),
        ("[x](http://y)", "[x]\u200b(http://y)"),
        ("http://y|click", "http://y¦click"),
    ],
)
def test_nobody_is_called_by_what_a_script_said(text: str, shown: str) -> None:
    assert without_mentions(text) == shown


def test_a_channel_hears_what_it_wants_and_whatever_a_rule_caused() -> None:
    policy = parse_policy(
        b"notify: [{to: 'json://a', events: [rule]}, {to: 'json://b', events: [failed], for: {team: nlp}}, {to: 'json://c'}]",
        "p",
    )
    rules, nlp, every = policy.notify
    assert channel_wants(rules, told("rule")) and not channel_wants(rules, told("failed"))
    assert channel_wants(rules, told("failed", rule="policy:x")) and not channel_wants(
        rules, told("failed", rule="user-error")
    )
    assert channel_wants(nlp, told("failed", tags={"team": "nlp"})) and not channel_wants(
        nlp, told("failed", tags={"team": "cv"})
    )
    assert not channel_wants(nlp, told("failed")) and not channel_wants(nlp, told("started", tags={"team": "nlp"}))
    assert not channel_wants(nlp, told("failed", rule="policy:x", tags={"team": "cv"}))
    assert channel_wants(every, told("orphan"))


# ── The register ──────────────────────────────────────────────────────────────────────────────────────────────────────

EMPTY = Outbox(to="json://chat", name="chat")


def event(seq: int = 1, job: str = "a", when: datetime | None = None, **rest: object) -> Notification:
    return Notification("started", job, when or at(0), "", seq=seq, **rest)  # type: ignore[arg-type]


def test_news_may_be_three_hours_old() -> None:
    assert add_events(EMPTY, [event()], {}, at(0) + FRESH_FOR).waiting == (event(),)
    assert add_events(EMPTY, [event()], {}, at(0) + FRESH_FOR + SECOND).waiting == ()


def test_an_entry_is_noted_once_and_the_next_one_after_it() -> None:
    box = add_events(EMPTY, [event(3)], {"a": 3}, at(5))
    assert box.cursors == {"a": Cursor(3, at(5))}
    assert add_events(box, [event(3), event(2)], {"a": 2}, at(6)) == box
    later = add_events(box, [event(4), event(3)], {"a": 4, "b": 1}, at(7))
    assert [each.seq for each in later.waiting] == [3, 4] and later.cursors["a"] == Cursor(4, at(7))
    assert later.cursors["b"] == Cursor(1, at(7))


def test_an_older_event_of_the_same_time_does_not_hide_the_rest() -> None:
    box = replace(EMPTY, cursors={"a": Cursor(2, at(0))})
    found = add_events(box, [event(1), event(2), event(3), event(1, "b")], {}, at(5))
    assert [(each.job, each.seq) for each in found.waiting] == [("a", 3), ("b", 1)]


def test_of_what_is_in_no_log_each_thing_is_noted_once() -> None:
    twice = [event(0, thing="ec2 i-1"), event(0, thing="ec2 i-1", when=at(1)), event(0, thing="ec2 i-2")]
    assert [each.thing for each in add_events(EMPTY, twice, {}, at(2)).waiting] == ["ec2 i-1", "ec2 i-2"]


def test_what_is_remembered_of_a_job_that_is_over_is_forgotten_after_a_day() -> None:
    box = replace(EMPTY, cursors={"a": Cursor(1, at(0)), "b": Cursor(1, at(0))})
    assert set(prune(box, ["b"], at(0) + REMEMBERED_FOR).cursors) == {"a", "b"}
    assert set(prune(box, ["b"], at(0) + REMEMBERED_FOR + SECOND).cursors) == {"b"}
    assert set(prune(box, None, at(0) + REMEMBERED_FOR + SECOND).cursors) == {"a", "b"}


def test_what_waited_too_long_is_given_up_and_counted() -> None:
    box = replace(EMPTY, waiting=(event(1), event(2), event(3, when=at(100))), more={"failed": 4})
    assert prune(box, None, at(0) + GIVE_UP_AFTER) == box
    some = prune(box, None, at(1) + GIVE_UP_AFTER)
    assert some.waiting == (event(3, when=at(100)),) and some.lost == 2 and some.more == {"failed": 4}
    assert some.lost_at == at(1) + GIVE_UP_AFTER
    none = prune(some, None, at(101) + GIVE_UP_AFTER)
    assert (none.waiting, none.more, none.lost) == ((), {}, 2 + 1 + 4)


def test_what_was_lost_is_forgotten_after_a_day_with_its_problem() -> None:
    box = replace(EMPTY, lost=3, lost_at=at(0), problem="no answer")
    assert prune(box, None, at(0) + REMEMBERED_FOR) == box
    later = prune(box, None, at(0) + REMEMBERED_FOR + SECOND)
    assert (later.lost, later.lost_at, later.problem) == (0, None, "")
    assert prune(replace(box, failures=1), None, at(0) + REMEMBERED_FOR + SECOND).problem == "no answer"


def test_of_messages_and_tries_the_last_hour_is_remembered() -> None:
    box = replace(EMPTY, sent=(at(0), at(1)), retries={"me": RetryState(1, at(0)), "you": RetryState(1, at(1))})
    later = prune(box, None, at(0) + HOUR)
    assert later.sent == (at(1),) and set(later.retries) == {"me", "you"}
    assert set(prune(box, None, at(1) + HOUR).retries) == {"you"}


def test_half_of_an_hours_messages_go_out_at_once_and_the_rest_is_spread() -> None:
    def next_s(at_most: int, *sent: float) -> float | None:
        box = replace(EMPTY, waiting=(event(),), sent=tuple(map(at, sent)))
        found = sendable_at(box, at_most, "me", at(100))
        return None if found is None else (found - at(0)).total_seconds()

    assert next_s(4) == next_s(4, 90) == 100
    assert next_s(4, 80, 90) == 90 + 1800
    assert next_s(4, 60, 70, 80, 90) == 60 + 3600
    assert next_s(3, 90) == 100 and next_s(3, 80, 90) == 90 + 2400
    assert next_s(1, 90) == 90 + 3600
    assert sendable_at(EMPTY, 4, "me", at(100)) is None
    assert sendable_at(replace(EMPTY, more={"failed": 1}), 4, "me", at(100)) == at(100)


def test_what_is_being_sent_is_waited_for_and_so_is_a_pause() -> None:
    box = start_sending(replace(EMPTY, waiting=(event(),)), "t", "me", at(10))
    assert sendable_at(box, 4, "you", at(20)) == at(10) + SENDING_LEASE
    back = mark_failed(box, "no", at(20))
    assert sendable_at(back, 4, "me", at(20)) == sendable_at(back, 4, "you", at(20)) == at(20) + RETRY_PAUSES[0]
    here = mark_failed(box, "no secret", at(20), is_local=True)
    assert (
        sendable_at(here, 4, "you", at(20)) == at(20) and sendable_at(here, 4, "me", at(20)) == at(20) + RETRY_PAUSES[0]
    )


def test_pauses_grow_and_the_last_one_is_repeated() -> None:
    box = replace(EMPTY, waiting=(event(when=at(0)),))
    pauses = []
    for _ in range(len(RETRY_PAUSES) + 2):
        box = mark_failed(start_sending(box, "t", "me", at(0)), "no", at(0))
        pauses.append(box.retries["me"].retry_at - at(0))
    assert (
        tuple(pauses) == (*RETRY_PAUSES, RETRY_PAUSES[-1], RETRY_PAUSES[-1]) and box.failures == len(RETRY_PAUSES) + 2
    )


def test_who_delivers_is_no_longer_held_back_and_others_are() -> None:
    box = replace(EMPTY, waiting=(event(),), retries={"me": RetryState(2, at(9)), "you": RetryState(1, at(9))})
    assert set(mark_delivered(start_sending(box, "t", "me", at(10))).retries) == {"you"}


def test_what_waits_has_the_id_of_its_events() -> None:
    box = replace(EMPTY, waiting=(event(),))
    assert message_id(box) == message_id(replace(box, lost=5))
    others = [
        replace(box, waiting=(event(2),)),
        replace(box, waiting=(event(when=at(1)),)),
        replace(box, more={"x": 1}),
    ]
    assert len({message_id(each) for each in (box, *others)}) == 4 and len(message_id(box)) == 16


def test_more_than_fits_is_counted_by_its_kind() -> None:
    full = add_events(EMPTY, [event(seq) for seq in range(1, MAX_WAITING + 1)], {}, at(0))
    assert len(full.waiting) == MAX_WAITING and full.more == {} and full.pending
    more = add_events(full, [event(MAX_WAITING + 1), event(MAX_WAITING + 2)], {}, at(0))
    assert len(more.waiting) == MAX_WAITING and more.more == {"started": 2}
    assert not EMPTY.pending and replace(EMPTY, more={"x": 1}).pending
