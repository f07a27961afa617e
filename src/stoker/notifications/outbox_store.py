"""The outboxes of all channels in the store: read once a pass, changed with create-if-absent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.notifications.events import Notification
from stoker.notifications.outbox import GIVE_UP_AFTER, HOUR, REMEMBERED_FOR, SENDING_LEASE, Outbox
from stoker.store.base import Meta, Store

# Lost races before the rest is left to the next pass.
_TRIES = 12
# Older states are removed after the first time, or after the second where there are more than `_MANY` of them. A
# younger one stays: a governor that has read it may be about to write the next number, which must not be free again.
_DELETE_AFTER = timedelta(minutes=10)
_DELETE_MANY_AFTER = timedelta(minutes=3)
_MANY = 50
# An unused channel that no policy or job names is removed after this time; one that only jobs named, after
# `REMEMBERED_FOR`.
_FORGET_AFTER = timedelta(days=7)
# Most jobs that a message names.
_MOST_NAMED = 3
# An event that has waited for so long is a problem to report.
_LATE = timedelta(minutes=10)


@dataclass
class _ChannelStates:
    """The states of one channel. `box`, the newest, is None where only a newer Stoker can read it."""

    number: int = 0
    box: Outbox | None = None
    older: list[Meta] = field(default_factory=list)


class OutboxStore:
    """Read and change outboxes. Every method may raise StoreError. `change` is thread-safe for channels that differ;
    no other method is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: dict[str, _ChannelStates] = {}

    def refresh(self) -> None:
        """Read the changes of other governors: one list, and a read for each channel that has changed."""
        found: dict[str, list[Meta]] = {}
        for meta in self._store.list(keys.OUTBOX):
            channel, _, name = meta.key.removeprefix(keys.OUTBOX).partition("/")
            if _number(name):
                found.setdefault(channel, []).append(meta)
        for channel in [*self._channels]:
            if channel not in found:
                del self._channels[channel]
        for channel, metas in found.items():
            self._read(channel, metas)

    def get(self, channel: str) -> Outbox | None:
        """The outbox as it was last read. None: there is none, or it cannot be read."""
        states = self._channels.get(channel)
        return states.box if states is not None else None

    def readable(self, channel: str) -> bool:
        states = self._channels.get(channel)
        return states is None or states.box is not None

    def all(self) -> dict[str, Outbox]:
        return {channel: states.box for channel, states in self._channels.items() if states.box is not None}

    def change(self, channel: str, change: Callable[[Outbox | None], Outbox | None], now: datetime) -> Outbox | None:
        """Write what `change` makes of the newest state, calling it again after every lost race. Nothing is written
        where it returns None or an equal state. Returns the newest state."""
        for _ in range(_TRIES):
            states = self._channels.setdefault(channel, _ChannelStates())
            if states.number and states.box is None:
                return None
            wanted = change(states.box)
            if wanted is None or wanted == states.box:
                return states.box
            if self._create(keys.outbox(channel, states.number + 1), wanted):
                states.number, states.box = states.number + 1, wanted
                self._delete_old(states, now)
                return wanted
            self._read(channel, list(self._store.list(f"{keys.OUTBOX}{channel}/")))
        raise StoreUnavailable(f"{keys.OUTBOX}{channel}/: others write all the time")

    def forget(self, named: set[str], now: datetime) -> None:
        """Remove channels outside `named` that have not been used for long. Never raises: a governor that may not
        delete anything can still send."""
        gone: list[str] = []
        for channel, states in [*self._channels.items()]:
            newest = max((meta.modified for meta in states.older), default=now)
            idle = states.box is not None and states.box.named_by_jobs and not states.box.pending
            if channel not in named and now - newest > (REMEMBERED_FOR if idle else _FORGET_AFTER):
                gone += [meta.key for meta in states.older]
                del self._channels[channel]
        if gone:
            with suppress(StoreError):
                self._store.delete(gone)

    def _create(self, key: str, box: Outbox) -> bool:
        try:
            return self._store.create(key, codec.dumps(box))
        except StoreUnavailable:
            if self._store.head(key) is None:
                raise
            # Written by this governor or by another. The next read shows which: this governor's message has its token.
            return False

    def _read(self, channel: str, metas: list[Meta]) -> None:
        states = self._channels.setdefault(channel, _ChannelStates())
        states.older = metas
        number = max((_number(meta.key.rpartition("/")[2]) for meta in metas), default=0)
        if number == states.number:
            return
        box = None
        try:
            found = self._store.get(keys.outbox(channel, number)) if number else None
            box = codec.loads(Outbox, found.data, where=found.meta.key) if found is not None else None
        except (StoreUnavailable, StoreDenied):
            raise
        except (StoreError, CodecError):
            pass  # A newer Stoker wrote it, and sends the rest.
        states.number, states.box = number, box

    def _delete_old(self, states: _ChannelStates, now: datetime) -> None:
        excess = len(states.older) - _MANY
        old = {
            meta.key
            for place, meta in enumerate(sorted(states.older, key=lambda meta: meta.key))
            if now - meta.modified > (_DELETE_MANY_AFTER if place < excess else _DELETE_AFTER)
        }
        if old:
            states.older = [meta for meta in states.older if meta.key not in old]
            # A key that could not be deleted is deleted another time.
            with suppress(StoreError):
                self._store.delete(sorted(old))


def has_unsent_events(store: Store) -> bool:
    """Return whether any outbox holds events that are not sent. Raises StoreError."""
    outboxes = OutboxStore(store)
    outboxes.refresh()
    return any(box.pending for box in outboxes.all().values())


def channel_problem(box: Outbox, now: datetime, *, governed: bool = True) -> str:
    """The problem of a channel in one line; empty where there is none. Without a governor, any waiting event is one."""
    parts = []
    left = box.sending if box.sending is not None and now - box.sending.at > SENDING_LEASE else None
    waiting = (*left.events, *box.waiting) if left is not None else box.waiting
    count = len(waiting) + sum(box.more.values())
    if box.failures and box.pending:
        parts.append(f"{box.problem}; failed {box.failures}×, {_events(count, 'waits', 'wait')}")
    elif box.problem and not box.failures and not box.lost:
        about, most = _about(waiting), f"for {GIVE_UP_AFTER // HOUR} h at most"
        waits = _events(count, f"{about}waits, {most}", f"{about}wait, {most}")
        parts.append(f"{box.problem}; {waits}" if count else box.problem)
    if box.lost:
        parts.append(_events(box.lost, "was given up", "were given up"))
    # With a limit of messages an hour, an event may wait for an hour.
    late = timedelta(0) if not governed else HOUR if any(now - at < HOUR for at in box.sent) else _LATE
    if not parts and any(now - event.at > late for event in waiting):
        parts.append(f"{_events(count, 'waits', 'wait')} for a governor that can send {'it' if count == 1 else 'them'}")
    return "; ".join(parts)


def channel_problems(store: Store, now: datetime, *, governed: bool = True) -> dict[str, str]:
    """The problems of a store's channels, by their names. Without a governor, any waiting event is one.

    Raises StoreError.
    """
    outboxes = OutboxStore(store)
    outboxes.refresh()
    found = {}
    for box in outboxes.all().values():
        problem = channel_problem(box, now, governed=governed)
        if problem:
            count = len(box.waiting) + sum(box.more.values())
            is_unusable = bool(box.problem) and not box.failures
            advice = f"; `stoker govern` sends {'it' if count == 1 else 'them'}"
            found[box.name] = f"{problem}{advice}" if count and not is_unusable else problem
    return found


def _about(events: tuple[Notification, ...]) -> str:
    """`about a-7f3k, b-2222 `: the jobs of these events."""
    jobs = sorted({event.job for event in events if event.job})
    more = ", …" if len(jobs) > _MOST_NAMED else ""
    return f"about {', '.join(jobs[:_MOST_NAMED])}{more} " if jobs else ""


def _events(count: int, one: str, many: str) -> str:
    return f"1 event {one}" if count == 1 else f"{count} events {many}"


def _number(name: str) -> int:
    digits = name.removesuffix(".json")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
