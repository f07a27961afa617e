"""The outbox of a channel: what waits, who sends, how often, and when something is given up. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.model import codec
from stoker.notifications.events import Notification, orphan_notification
from stoker.notifications.outbox import (
    FRESH_FOR,
    GIVE_UP_AFTER,
    HOUR,
    MAX_WAITING,
    REMEMBERED_FOR,
    RETRY_PAUSES,
    SENDING_LEASE,
    Outbox,
    add_events,
    mark_delivered,
    mark_failed,
    prune,
    sendable_at,
    start_sending,
)
from tests.support.sim_data import at

EMPTY = Outbox(to="https://hook.example/key", name="hook")


def event(job: str = "a", seq: int = 3, at_s: float = 0.0) -> Notification:
    return Notification("started", job, at(at_s), "", seq=seq)


def test_an_event_is_noted_once() -> None:
    box = add_events(EMPTY, [event()], {"a": 5}, at(1))
    assert box.waiting == (event(),) and box.cursors["a"].seq == 5
    assert add_events(box, [event()], {"a": 5}, at(2)) == box
    # Somebody who looked earlier knows less, and changes nothing.
    assert add_events(box, [event()], {"a": 4}, at(2)) == box
    more = add_events(box, [event(), event(seq=6)], {"a": 6}, at(2))
    assert [told.seq for told in more.waiting] == [3, 6]


def test_yesterdays_news_of_a_job_that_nobody_looked_at_is_not_told() -> None:
    late = at(0) + FRESH_FOR + timedelta(seconds=1)
    box = add_events(EMPTY, [event()], {"a": 5}, late)
    assert box.waiting == () and box.cursors["a"].seq == 5
    # Nor where more is wanted of one that was looked at long ago; and what was never wanted is not lost.
    box = add_events(
        add_events(EMPTY, [], {"a": 2}, at(0)), [event()], {"a": 5}, at(0) + GIVE_UP_AFTER + timedelta(hours=1)
    )
    assert (box.waiting, box.lost) == ((), 0)


def test_an_orphan_is_noted_once_however_often_it_is_ended() -> None:
    lost = orphan_notification("gone-1", "ec2 i-1", "nobody's", at(0))
    box = add_events(EMPTY, [lost], {}, at(0))
    assert add_events(box, [orphan_notification("gone-1", "ec2 i-1", "nobody's", at(9))], {}, at(9)) == box
    assert len(add_events(box, [orphan_notification("gone-1", "ec2 i-2", "nobody's", at(9))], {}, at(9)).waiting) == 2


def test_cursors_are_kept_as_long_as_they_are_needed() -> None:
    box = add_events(EMPTY, [event("a"), event("b")], {"a": 5, "b": 5}, at(0))
    later = at(0) + REMEMBERED_FOR + timedelta(seconds=1)
    assert set(prune(box, None, later).cursors) == {"a", "b"}, "not all active jobs are known"
    assert set(prune(box, ["b"], later).cursors) == {"b"}
    assert set(prune(box, [], at(60)).cursors) == {"a", "b"}


def test_one_message_takes_all_that_waits() -> None:
    box = start_sending(add_events(EMPTY, [event("a"), event("b")], {}, at(0)), "m1", "g1", at(1))
    assert box.sending is not None and [told.job for told in box.sending.events] == ["a", "b"]
    assert box.waiting == () and box.pending
    assert sendable_at(box, 20, "g", at(2)) == at(1) + SENDING_LEASE, "somebody sends; it is nobody else's yet"
    done = mark_delivered(box)
    assert not done.pending and sendable_at(done, 20, "g", at(2)) is None


def test_who_dies_while_sending_is_followed_by_another() -> None:
    box = start_sending(add_events(EMPTY, [event("a")], {}, at(0)), "m1", "g1", at(1))
    box = add_events(box, [event("b")], {}, at(9))
    taken = start_sending(box, "m2", "g2", at(1) + SENDING_LEASE)
    assert taken.sending is not None and taken.sending.by == "g2"
    assert [told.job for told in taken.sending.events] == ["a", "b"]


def test_a_channel_that_fails_is_tried_again_ever_later_and_given_up_at_last() -> None:
    box, now, gaps = add_events(EMPTY, [event()], {}, at(0)), at(0), []
    while box.pending:
        due = sendable_at(box, 20, "g", now)
        assert due is not None
        gaps.append(due - now)
        now = due
        box = mark_failed(start_sending(box, "m", "g", now), "answers with 500", now)
    assert gaps[: len(RETRY_PAUSES) + 1] == [timedelta(0), *RETRY_PAUSES]
    assert now - at(0) > GIVE_UP_AFTER and len(gaps) < 15
    assert (box.lost, box.failures > 3, box.problem) == (1, True, "answers with 500")
    # A day later nobody needs to know; the next message is tried as ever.
    late = now + REMEMBERED_FOR + timedelta(seconds=1)
    assert prune(box, None, late).lost == 0
    again = mark_delivered(start_sending(add_events(box, [replace(event(seq=9), at=now)], {}, now), "m", "g", now))
    assert (again.failures, again.retry_at) == (0, None)


def test_who_cannot_holds_up_nobody_who_can() -> None:
    box, now = add_events(EMPTY, [event()], {}, at(0)), at(0)
    box = mark_failed(start_sending(box, "m", "poor", now), "AccessDenied", now, is_local=True)
    assert sendable_at(box, 20, "poor", now) == at(20) and sendable_at(box, 20, "rich", now) == now
    # One that answers with 500 does so to everybody; and yet each is tried for itself.
    for _ in range(6):
        now += timedelta(minutes=1)
        box = mark_failed(start_sending(box, "m", "poor", now), "answers with 500", now)
    poor, rich = (sendable_at(box, 20, by, now) for by in ("poor", "rich"))
    assert (poor, rich) == (now + RETRY_PAUSES[-1], now + RETRY_PAUSES[0])
    done = mark_delivered(start_sending(box, "m", "rich", now))
    assert done.failures == 0 and set(done.retries) == {"poor"}, "what it could not do, it cannot do now"
    assert prune(done, None, now + 3 * HOUR).retries == {}


def test_the_same_events_are_the_same_message() -> None:
    box = start_sending(add_events(EMPTY, [event("a"), event("b")], {}, at(0)), "m1", "g", at(0))
    again = start_sending(mark_failed(box, "no", at(1)), "m2", "h", at(30))
    assert box.sending and again.sending and box.sending.id == again.sending.id
    more = start_sending(add_events(mark_failed(again, "no", at(31)), [event("c")], {}, at(32)), "m3", "g", at(60))
    assert more.sending and more.sending.id != box.sending.id


def test_what_failed_counts_for_no_limit() -> None:
    box = add_events(EMPTY, [event()], {}, at(0))
    box = mark_failed(start_sending(box, "m", "g", at(0)), "503", at(0))
    assert sendable_at(box, 1, "g", at(20)) == at(20)
    box = add_events(mark_delivered(start_sending(box, "m", "g", at(20))), [event(seq=9)], {}, at(30))
    assert sendable_at(box, 1, "g", at(30)) == at(20) + HOUR


def test_what_nobody_can_send_is_given_up() -> None:
    box = add_events(EMPTY, [event()], {}, at(0))
    assert prune(box, None, at(0) + GIVE_UP_AFTER + timedelta(seconds=1)).lost == 1


def test_more_than_anybody_reads_is_counted() -> None:
    storm = [event(f"job-{n}") for n in range(MAX_WAITING + 700)]
    box = add_events(EMPTY, storm, {}, at(0))
    assert len(box.waiting) == MAX_WAITING and box.more == {"started": 700}
    again = add_events(start_sending(box, "m", "g", at(0)), storm[:5], {}, at(1))
    back = mark_failed(again, "no", at(1))
    assert len(back.waiting) == MAX_WAITING and back.more == {"started": 705}


@given(limit=st.integers(1, 60), steps=st.lists(st.floats(0.0, 900.0), max_size=200))
def test_no_more_messages_an_hour_than_allowed_and_none_waits_long(limit: int, steps: list[float]) -> None:
    box, now, sent = EMPTY, at(0), []
    for number, step in enumerate(steps):
        now += timedelta(seconds=step)
        box = add_events(box, [event(f"job-{number}", at_s=(now - at(0)).total_seconds())], {}, now)
        due = sendable_at(box, limit, "g", now)
        assert due is not None and due - now <= HOUR
        if due <= now:
            sent.append(now)
            box = mark_delivered(start_sending(prune(box, None, now), str(number), "g", now))
    for moment in sent:
        assert len([at for at in sent if moment <= at < moment + HOUR]) <= limit


def test_a_burst_goes_out_and_the_rest_is_spread() -> None:
    box, now, sent = EMPTY, at(0), []
    for number in range(4000):
        box = add_events(box, [event(f"job-{number}", at_s=number)], {}, now)
        due = sendable_at(box, 20, "g", now)
        if due is not None and due <= now:
            sent.append(number)
            box = mark_delivered(start_sending(box, "m", "g", now))
        now += timedelta(seconds=1)
    assert sent[:10] == list(range(10))
    assert max(later - earlier for earlier, later in pairwise(sent)) <= 361


def test_it_is_kept_as_json() -> None:
    box = start_sending(add_events(EMPTY, [event("a"), event("b", at_s=9)], {"a": 5}, at(0)), "m1", "g1", at(1))
    box = mark_failed(add_events(box, [orphan_notification("j", "t", "r", at(3))], {}, at(3)), "no", at(4))
    assert codec.loads(Outbox, codec.dumps(box)) == box
