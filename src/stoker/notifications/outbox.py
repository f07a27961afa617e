"""The outbox of one channel: the events to send and the events sent, shared by all governors. Pure.

Each change is the next number of the channel's own log, written with create-if-absent. So of many governors that see
the same event one records it, and of many that could send a message one does. The newest entry holds the whole state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.notifications.events import Notification

HOUR = timedelta(hours=1)
# A governor has this long to send a message; after it, another one may.
SENDING_LEASE = timedelta(minutes=5)
# Pauses of a governor after its first, second, … failure in a row; the last one is repeated. Other governors, which may
# have what that one lacks, wait no longer than the first pause.
RETRY_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (20, 120, 600, 3600))
# An event that could not be sent for this long is given up.
GIVE_UP_AFTER = timedelta(hours=6)
# An older event is not sent when it is first seen: a person who sets up a channel, or subscribes to more events, does
# not want yesterday's news.
FRESH_FOR = timedelta(hours=3)
# Cursors of jobs that are over, and of orphans, are remembered for this long.
REMEMBERED_FOR = timedelta(days=1)
# Further events are only counted.
MAX_WAITING = 400


@dataclass(frozen=True)
class Cursor:
    """The last entry of a job's log whose events are recorded, and when the cursor was written."""

    seq: int
    at: datetime


@dataclass(frozen=True)
class RetryState:
    """The failures in a row of one governor, and when it may try again."""

    failures: int
    retry_at: datetime


@dataclass(frozen=True)
class Sending:
    """A message that a governor is sending. `token` identifies this try, `id` the message over all tries."""

    token: str
    id: str
    by: str
    at: datetime
    events: tuple[Notification, ...]
    more: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outbox:
    """The state of one channel. Times are the store's."""

    # The address as it was written, needed when no policy or job names it any more; and the channel's name.
    to: str
    name: str
    # Some job named the channel: it is used also when none of these jobs is active any more.
    named_by_jobs: bool = False
    # By `Notification.stream`: a job, or another thing that has events.
    cursors: dict[str, Cursor] = field(default_factory=dict)
    waiting: tuple[Notification, ...] = ()
    # Events that are only counted, by kind.
    more: dict[str, int] = field(default_factory=dict)
    sending: Sending | None = None
    # When messages were sent in the last hour.
    sent: tuple[datetime, ...] = ()
    # Failures in a row, of any governor; and the time before which no governor tries again.
    failures: int = 0
    retry_at: datetime | None = None
    # By governor: one that may not send, or has no network, delays no other.
    retries: dict[str, RetryState] = field(default_factory=dict)
    problem: str = ""
    # The number of events that were given up, and when that last happened.
    lost: int = 0
    lost_at: datetime | None = None

    @property
    def pending(self) -> bool:
        return bool(self.waiting or self.more or self.sending)


def add_events(box: Outbox, events: Iterable[Notification], seen: Mapping[str, int], now: datetime) -> Outbox:
    """Add the events that are not recorded yet. `seen`: the last entry of each job's log that was read."""
    cursors = dict(box.cursors)
    fresh: list[Notification] = []
    for event in sorted(events, key=lambda event: (event.at, event.job, event.seq)):
        before = (cursors if event.thing else box.cursors).get(event.stream)
        if now - event.at > FRESH_FOR or (before is not None and before.seq >= event.seq):
            continue
        if event.thing:
            cursors[event.stream] = Cursor(event.seq, now)
        fresh.append(event)
    for stream, seq in seen.items():
        known = cursors.get(stream)
        if known is None or known.seq < seq:
            cursors[stream] = Cursor(seq, now)
    return _with_waiting(replace(box, cursors=cursors), (*box.waiting, *fresh), box.more)


def prune(box: Outbox, active: Iterable[str] | None, now: datetime) -> Outbox:
    """Remove old cursors, and give up events that are too old. `active` is None where not all active jobs are known."""
    if active is not None:
        alive = set(active)
        cursors = {name: at for name, at in box.cursors.items() if name in alive or now - at.at <= REMEMBERED_FOR}
        box = replace(box, cursors=cursors)
    retries = {by: each for by, each in box.retries.items() if now - each.retry_at <= HOUR}
    box = replace(box, sent=tuple(at for at in box.sent if now - at < HOUR), retries=retries)
    if box.lost_at is not None and now - box.lost_at > REMEMBERED_FOR:
        box = replace(box, lost=0, lost_at=None, problem=box.problem if box.failures else "")
    fresh = tuple(event for event in box.waiting if now - event.at <= GIVE_UP_AFTER)
    if len(fresh) == len(box.waiting):
        return box
    gone = len(box.waiting) - len(fresh) + (0 if fresh else sum(box.more.values()))
    return replace(box, waiting=fresh, more=box.more if fresh else {}, lost=box.lost + gone, lost_at=now)


def sendable_at(box: Outbox, max_per_hour: int, by: str, now: datetime) -> datetime | None:
    """When governor `by` may send the next message, within the limit of the hour; None: there is none to send.

    Half of the hour's messages may be sent at once. The rest is spread, so that no event waits for most of an hour.
    """
    if box.sending is not None:
        return box.sending.at + SENDING_LEASE
    if not box.waiting and not box.more:
        return None
    recent = sorted(at for at in box.sent if now - at < HOUR)
    earliest = now
    if len(recent) >= max_per_hour:
        earliest = recent[-max_per_hour] + HOUR
    elif 2 * len(recent) >= max_per_hour + max_per_hour % 2:
        earliest = recent[-1] + 2 * HOUR / max_per_hour
    own = box.retries.get(by)
    return max(earliest, box.retry_at or now, own.retry_at if own is not None else now, now)


def start_sending(box: Outbox, token: str, by: str, now: datetime) -> Outbox:
    """Make one message of all waiting events, including those that another governor left unsent, and claim it."""
    if box.sending is not None:
        box = mark_failed(box, "the governor that was sending it is gone", now)
    if not box.waiting and not box.more:
        return box
    sending = Sending(token, message_id(box), by, now, box.waiting, box.more)
    return replace(box, waiting=(), more={}, sending=sending)


def message_id(box: Outbox) -> str:
    """An id of the waiting events. The same events get the same id, so a receiver recognises a repeated message."""
    events = [f"{event.stream}/{event.seq}/{event.at.isoformat()}" for event in box.waiting]
    return hashlib.sha256(json.dumps([events, box.more], sort_keys=True).encode()).hexdigest()[:16]


def record_unusable(box: Outbox, problem: str) -> Outbox:
    """Record why a governor cannot use the channel at all. It delays no governor that can."""
    return box if box.failures or box.problem else replace(box, problem=problem)


def mark_delivered(box: Outbox, problem: str = "") -> Outbox:
    """End the sending of a delivered message. `problem`: it was delivered in part. Other governors' retries remain."""
    sending = box.sending
    if sending is None:
        return box
    retries = {by: each for by, each in box.retries.items() if by != sending.by}
    sent = (*box.sent, sending.at)
    return replace(box, sending=None, sent=sent, failures=0, retry_at=None, retries=retries, problem=problem)


def mark_failed(box: Outbox, problem: str, now: datetime, *, is_local: bool = False) -> Outbox:
    """Put the events of a message that may not be delivered back, before those that came since.

    `is_local`: only the sending computer lacks something. Then another governor may send at once.
    """
    sending = box.sending
    if sending is None:
        return box
    before = box.retries.get(sending.by)
    count = before.failures if before is not None else 0
    retry = RetryState(count + 1, now + RETRY_PAUSES[min(count, len(RETRY_PAUSES) - 1)])
    more = {kind: sending.more.get(kind, 0) + box.more.get(kind, 0) for kind in {**sending.more, **box.more}}
    box = replace(
        _with_waiting(box, (*sending.events, *box.waiting), more),
        sending=None,
        failures=box.failures + 1,
        retry_at=None if is_local else now + RETRY_PAUSES[0],
        retries={**box.retries, sending.by: retry},
        problem=problem,
    )
    return prune(box, None, now)


def _with_waiting(box: Outbox, waiting: tuple[Notification, ...], more: Mapping[str, int]) -> Outbox:
    """The outbox with these waiting events; beyond the limit they are only counted."""
    counted = dict(more)
    for event in waiting[MAX_WAITING:]:
        counted[event.kind] = counted.get(event.kind, 0) + 1
    return replace(box, waiting=waiting[:MAX_WAITING], more=counted)
