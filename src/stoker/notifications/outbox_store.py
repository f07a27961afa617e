"""The outboxes of all channels, as they are kept in the store: read once a pass, changed by whoever comes first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError, StoreUnavailable
from stoker.notifications.outbox import HOUR, REMEMBERED, SENDING, Outbox
from stoker.store.base import Meta, Store

# Lost races before the rest is left to the next pass.
_TRIES = 12
# Older states are removed, though none so young that somebody may be about to write the one after it; where there are
# many, sooner.
_KEPT = timedelta(minutes=10)
_KEPT_OF_MANY = timedelta(minutes=3)
_MANY = 50
# A channel that nobody told anything for so long is forgotten; one that only jobs named, as soon as they are.
_FORGOTTEN = timedelta(days=7)
# What has waited for so long, waits for somebody.
_LATE = timedelta(minutes=10)


@dataclass
class _Shelf:
    """One channel's states. `box` is None for one that only a newer Stoker can read."""

    number: int = 0
    box: Outbox | None = None
    older: list[Meta] = field(default_factory=list)


class Mailbox:
    """Every method may raise StoreError. `change` is thread-safe for channels that differ, and nothing else is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shelves: dict[str, _Shelf] = {}

    def refresh(self) -> None:
        """Look at what others wrote: one list, and a read for each channel that has changed."""
        found: dict[str, list[Meta]] = {}
        for meta in self._store.list(keys.TOLD):
            channel, _, name = meta.key.removeprefix(keys.TOLD).partition("/")
            if _number(name):
                found.setdefault(channel, []).append(meta)
        for channel in [*self._shelves]:
            if channel not in found:
                del self._shelves[channel]
        for channel, metas in found.items():
            self._read(channel, metas)

    def get(self, channel: str) -> Outbox | None:
        """As it was when somebody last looked. None: there is none, or it cannot be read."""
        shelf = self._shelves.get(channel)
        return shelf.box if shelf is not None else None

    def readable(self, channel: str) -> bool:
        shelf = self._shelves.get(channel)
        return shelf is None or shelf.box is not None

    def all(self) -> dict[str, Outbox]:
        return {channel: shelf.box for channel, shelf in self._shelves.items() if shelf.box is not None}

    def change(self, channel: str, change: Callable[[Outbox | None], Outbox | None], now: datetime) -> Outbox | None:
        """Write what `change` makes of the newest state, asking it again after every lost race. None, or an equal
        state, is nothing to write. Answers the state that stands then."""
        for _ in range(_TRIES):
            shelf = self._shelves.setdefault(channel, _Shelf())
            if shelf.number and shelf.box is None:
                return None
            wanted = change(shelf.box)
            if wanted is None or wanted == shelf.box:
                return shelf.box
            if self._create(keys.told(channel, shelf.number + 1), wanted):
                shelf.number, shelf.box = shelf.number + 1, wanted
                self._tidy(shelf, now)
                return wanted
            self._read(channel, list(self._store.list(f"{keys.TOLD}{channel}/")))
        raise StoreUnavailable(f"{keys.TOLD}{channel}/: others write all the time")

    def forget(self, named: set[str], now: datetime) -> None:
        """Remove channels that nobody names, and that nothing was told through for long. Never raises: whoever may not
        remove anything tells all the same."""
        gone: list[str] = []
        for channel, shelf in [*self._shelves.items()]:
            newest = max((meta.modified for meta in shelf.older), default=now)
            idle = shelf.box is not None and shelf.box.own and not shelf.box.pending
            if channel not in named and now - newest > (REMEMBERED if idle else _FORGOTTEN):
                gone += [meta.key for meta in shelf.older]
                del self._shelves[channel]
        if gone:
            with suppress(StoreError):
                self._store.delete(gone)

    def _create(self, key: str, box: Outbox) -> bool:
        try:
            return self._store.create(key, codec.dumps(box))
        except StoreUnavailable:
            if self._store.head(key) is None:
                raise
            # Mine or a rival's: what is read next tells, for a message that is mine to send has my id.
            return False

    def _read(self, channel: str, metas: list[Meta]) -> None:
        shelf = self._shelves.setdefault(channel, _Shelf())
        shelf.older = metas
        number = max((_number(meta.key.rpartition("/")[2]) for meta in metas), default=0)
        if number == shelf.number:
            return
        found = self._store.get(keys.told(channel, number)) if number else None
        shelf.number, shelf.box = number, None
        if found is not None:
            try:
                shelf.box = codec.loads(Outbox, found.data, where=found.meta.key)
            except CodecError:
                pass  # A newer Stoker wrote it, and tells the rest.

    def _tidy(self, shelf: _Shelf, now: datetime) -> None:
        few = len(shelf.older) - _MANY
        old = {
            meta.key
            for place, meta in enumerate(sorted(shelf.older, key=lambda meta: meta.key))
            if now - meta.modified > (_KEPT_OF_MANY if place < few else _KEPT)
        }
        if old:
            shelf.older = [meta for meta in shelf.older if meta.key not in old]
            # Left behind, it is removed another time.
            with suppress(StoreError):
                self._store.delete(sorted(old))


def something_waits(store: Store) -> bool:
    """Whether something is to be told yet. Raises StoreError."""
    mailbox = Mailbox(store)
    mailbox.refresh()
    return any(box.pending for box in mailbox.all().values())


def trouble(box: Outbox, now: datetime, *, governed: bool = True) -> str:
    """What is wrong with a channel, in one line; empty when nothing is. Where nobody governs, nothing should wait."""
    parts = []
    left = box.sending if box.sending is not None and now - box.sending.at > SENDING else None
    waiting = (*left.events, *box.waiting) if left is not None else box.waiting
    waits = len(waiting) + sum(box.more.values())
    if box.failures and box.pending:
        parts.append(f"{box.problem}; failed {box.failures}×, {_events(waits, 'waits', 'wait')}")
    elif box.problem and not box.failures and not box.lost:
        parts.append(box.problem)
    if box.lost:
        parts.append(_events(box.lost, "was given up", "were given up"))
    # What is limited may wait for an hour.
    late = timedelta(0) if not governed else HOUR if any(now - at < HOUR for at in box.sent) else _LATE
    if not parts and any(now - told.at > late for told in waiting):
        parts.append(f"{_events(waits, 'waits', 'wait')} for a governor that can send {'it' if waits == 1 else 'them'}")
    return "; ".join(parts)


def troubles(store: Store, now: datetime, *, governed: bool = True) -> dict[str, str]:
    """What is wrong with the channels of a store, by their names. Where nobody governs, nothing should wait at all.

    Raises StoreError.
    """
    mailbox = Mailbox(store)
    mailbox.refresh()
    found = {}
    for box in mailbox.all().values():
        told = trouble(box, now, governed=governed)
        if told:
            waits = len(box.waiting) + sum(box.more.values())
            cannot = bool(box.problem) and not box.failures
            advice = f"; `stoker govern` sends {'it' if waits == 1 else 'them'}"
            found[box.name] = f"{told}{advice}" if waits and not cannot else told
    return found


def _events(count: int, one: str, many: str) -> str:
    return f"1 event {one}" if count == 1 else f"{count} events {many}"


def _number(name: str) -> int:
    digits = name.removesuffix(".json")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
