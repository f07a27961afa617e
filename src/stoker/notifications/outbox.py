"""What is to be told through one channel, and what was: a register that governors share. Pure.

Each change is the next number of the channel's own log, written with create-if-absent. So of many governors that see
the same event one notes it, and of many that could send a message one does. The whole of it is in the newest entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.notifications.events import Told

HOUR = timedelta(hours=1)
# Who is sending has this long; after it, somebody else does.
SENDING = timedelta(minutes=5)
# Who failed tries again after so long, then after the next, and so on; the last is repeated. Others, who may be able to
# do what that one cannot, wait no longer than the first.
PAUSES = tuple(timedelta(seconds=seconds) for seconds in (20, 120, 600, 3600))
# What could not be told for so long is not worth telling any more.
GIVE_UP = timedelta(hours=6)
# What is older when it is first seen is not told: who sets up a channel, or wants to hear more there, does not want
# yesterday's news.
FRESH = timedelta(hours=3)
# How long it is remembered what was told of a job that is over, or of an orphan.
REMEMBERED = timedelta(days=1)
# More are only counted.
MOST_WAITING = 400


@dataclass(frozen=True)
class Cursor:
    """Up to which entry of a job's log everything is noted, and when that was written down."""

    seq: int
    at: datetime


@dataclass(frozen=True)
class Tried:
    """A governor that failed, so often in a row, and when it may try again."""

    failures: int
    retry_at: datetime


@dataclass(frozen=True)
class Sending:
    """Somebody sends these now. `token` is of who took it on; `id` is the message's, whoever sends it."""

    token: str
    id: str
    by: str
    at: datetime
    events: tuple[Told, ...]
    more: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outbox:
    """One channel. Times are the store's."""

    # The address as it was written, for when nobody names it any more; and what it is called.
    to: str
    name: str
    # Jobs named it, too: it is told through also when none of them is active any more.
    own: bool = False
    # By job, or by what else there is one event of.
    cursors: dict[str, Cursor] = field(default_factory=dict)
    waiting: tuple[Told, ...] = ()
    more: dict[str, int] = field(default_factory=dict)
    sending: Sending | None = None
    # When messages went out in the last hour.
    sent: tuple[datetime, ...] = ()
    # In a row, whoever it was; and before when nobody tries again.
    failures: int = 0
    retry_at: datetime | None = None
    # By governor: one that may not send, or reaches nobody, holds up no other.
    tried: dict[str, Tried] = field(default_factory=dict)
    problem: str = ""
    # What was given up, and when that last happened.
    lost: int = 0
    lost_at: datetime | None = None

    @property
    def pending(self) -> bool:
        return bool(self.waiting or self.more or self.sending)


def noted(box: Outbox, events: Iterable[Told], seen: Mapping[str, int], now: datetime) -> Outbox:
    """With these events, as far as nobody noted them before. `seen`: up to which entry each job was looked at."""
    cursors = dict(box.cursors)
    fresh: list[Told] = []
    for told in sorted(events, key=lambda told: (told.at, told.job, told.seq)):
        before = (cursors if told.thing else box.cursors).get(told.stream)
        if now - told.at > FRESH or (before is not None and before.seq >= told.seq):
            continue
        if told.thing:
            cursors[told.stream] = Cursor(told.seq, now)
        fresh.append(told)
    for stream, seq in seen.items():
        known = cursors.get(stream)
        if known is None or known.seq < seq:
            cursors[stream] = Cursor(seq, now)
    return _with(replace(box, cursors=cursors), (*box.waiting, *fresh), box.more)


def tidied(box: Outbox, active: Iterable[str] | None, now: datetime) -> Outbox:
    """Without what nobody needs to remember, and what is too old to be told. `active`: None where not all are known."""
    if active is not None:
        alive = set(active)
        kept = {name: at for name, at in box.cursors.items() if name in alive or now - at.at <= REMEMBERED}
        box = replace(box, cursors=kept)
    tried = {by: each for by, each in box.tried.items() if now - each.retry_at <= HOUR}
    box = replace(box, sent=tuple(at for at in box.sent if now - at < HOUR), tried=tried)
    if box.lost_at is not None and now - box.lost_at > REMEMBERED:
        box = replace(box, lost=0, lost_at=None, problem=box.problem if box.failures else "")
    fresh = tuple(told for told in box.waiting if now - told.at <= GIVE_UP)
    if len(fresh) == len(box.waiting):
        return box
    gone = len(box.waiting) - len(fresh) + (0 if fresh else sum(box.more.values()))
    return replace(box, waiting=fresh, more=box.more if fresh else {}, lost=box.lost + gone, lost_at=now)


def sendable_at(box: Outbox, at_most: int, by: str, now: datetime) -> datetime | None:
    """When this one may send the next message, given no more than `at_most` an hour; None: there is none to send.

    Half of them may go out at once. The rest is spread, so that nothing waits for the better part of an hour.
    """
    if box.sending is not None:
        return box.sending.at + SENDING
    if not box.waiting and not box.more:
        return None
    recent = sorted(at for at in box.sent if now - at < HOUR)
    earliest = now
    if len(recent) >= at_most:
        earliest = recent[-at_most] + HOUR
    elif 2 * len(recent) >= at_most + at_most % 2:
        earliest = recent[-1] + 2 * HOUR / at_most
    own = box.tried.get(by)
    return max(earliest, box.retry_at or now, own.retry_at if own is not None else now, now)


def begun(box: Outbox, token: str, by: str, now: datetime) -> Outbox:
    """Everything that waits is one message, and is being sent. What somebody else left unsent is part of it."""
    if box.sending is not None:
        box = failed(box, "the governor that was sending it is gone", now)
    if not box.waiting and not box.more:
        return box
    sending = Sending(token, message_id(box), by, now, box.waiting, box.more)
    return replace(box, waiting=(), more={}, sending=sending)


def message_id(box: Outbox) -> str:
    """Of what waits: the same for the same events, so that who gets them twice can tell."""
    events = [f"{told.stream}/{told.seq}/{told.at.isoformat()}" for told in box.waiting]
    return hashlib.sha256(json.dumps([events, box.more], sort_keys=True).encode()).hexdigest()[:16]


def unopened(box: Outbox, problem: str) -> Outbox:
    """Somebody cannot send there at all, and says why. It takes nothing from who can."""
    return box if box.failures or box.problem else replace(box, problem=problem)


def delivered(box: Outbox, problem: str = "") -> Outbox:
    """The message is out, though there may be a problem with it. What others cannot do, they still cannot."""
    sending = box.sending
    if sending is None:
        return box
    tried = {by: each for by, each in box.tried.items() if by != sending.by}
    sent = (*box.sent, sending.at)
    return replace(box, sending=None, sent=sent, failures=0, retry_at=None, tried=tried, problem=problem)


def failed(box: Outbox, problem: str, now: datetime, *, here: bool = False) -> Outbox:
    """The message may not be out: it waits again, with what came meanwhile, until it is too old.

    `here`: that is for want of something where it was sent from. Then another may send it at once.
    """
    sending = box.sending
    if sending is None:
        return box
    before = box.tried.get(sending.by)
    count = before.failures if before is not None else 0
    tried = Tried(count + 1, now + PAUSES[min(count, len(PAUSES) - 1)])
    more = {kind: sending.more.get(kind, 0) + box.more.get(kind, 0) for kind in {**sending.more, **box.more}}
    box = replace(
        _with(box, (*sending.events, *box.waiting), more),
        sending=None,
        failures=box.failures + 1,
        retry_at=None if here else now + PAUSES[0],
        tried={**box.tried, sending.by: tried},
        problem=problem,
    )
    return tidied(box, None, now)


def _with(box: Outbox, waiting: tuple[Told, ...], more: Mapping[str, int]) -> Outbox:
    """These wait. The last of too many are only counted."""
    counted = dict(more)
    for told in waiting[MOST_WAITING:]:
        counted[told.kind] = counted.get(told.kind, 0) + 1
    return replace(box, waiting=waiting[:MOST_WAITING], more=counted)
