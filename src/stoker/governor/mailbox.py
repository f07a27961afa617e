"""The outboxes of all channels, as they are kept in the store: read once a pass, changed by whoever comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker import codec, layout
from stoker.core.outbox import HOUR, Outbox
from stoker.errors import CodecError, StoreUnavailable
from stoker.store import Meta, Store

# Lost races before the rest is left to the next pass.
_TRIES = 12
# Older states are removed, though none so young that somebody may be about to write the one after it.
_KEPT = timedelta(hours=1)
# A channel that nobody told anything for so long is forgotten.
_FORGOTTEN = timedelta(days=7)


@dataclass
class _Shelf:
    """One channel's states. `box` is None for one that only a newer Stoker can read."""

    number: int = 0
    box: Outbox | None = None
    older: list[Meta] = field(default_factory=list)


class Mailbox:
    """Not thread-safe. Every method may raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shelves: dict[str, _Shelf] = {}

    def refresh(self) -> None:
        """Look at what others wrote: one list, and a read for each channel that has changed."""
        found: dict[str, list[Meta]] = {}
        for meta in self._store.list(layout.TOLD):
            channel, _, name = meta.key.removeprefix(layout.TOLD).partition("/")
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
            if self._create(layout.told(channel, shelf.number + 1), wanted):
                shelf.number, shelf.box = shelf.number + 1, wanted
                self._tidy(shelf, now)
                return wanted
            self._read(channel, list(self._store.list(f"{layout.TOLD}{channel}/")))
        raise StoreUnavailable(f"{layout.TOLD}{channel}/: others write all the time")

    def forget(self, named: set[str], now: datetime) -> None:
        """Remove channels that nobody names, and that nothing was told through for long."""
        for channel, shelf in [*self._shelves.items()]:
            newest = max((meta.modified for meta in shelf.older), default=now)
            if channel not in named and now - newest > _FORGOTTEN:
                self._store.delete([meta.key for meta in shelf.older])
                del self._shelves[channel]

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
        found = self._store.get(layout.told(channel, number)) if number else None
        shelf.number, shelf.box = number, None
        if found is not None:
            try:
                shelf.box = codec.loads(Outbox, found.data, where=found.meta.key)
            except CodecError:
                pass  # A newer Stoker wrote it, and tells the rest.

    def _tidy(self, shelf: _Shelf, now: datetime) -> None:
        old = [meta.key for meta in shelf.older if now - meta.modified > _KEPT]
        if old:
            self._store.delete(old)
            shelf.older = [meta for meta in shelf.older if meta.key not in old]


def trouble(box: Outbox, now: datetime, late: timedelta = HOUR) -> str:
    """What is wrong with a channel, in one line; empty when nothing is. What waits longer than `late` should not."""
    parts = []
    waits = len(box.waiting) + sum(box.more.values())
    if box.failures and box.pending:
        parts.append(f"{box.problem}; failed {box.failures}×, {_events(waits, 'waits', 'wait')}")
    if box.lost:
        parts.append(_events(box.lost, "was given up", "were given up"))
    if not parts and any(now - told.at > late for told in box.waiting):
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
        told = trouble(box, now, HOUR if governed else timedelta(0))
        if told:
            waits = len(box.waiting) + sum(box.more.values())
            found[box.name] = f"{told}; `stoker govern` sends {'it' if waits == 1 else 'them'}" if waits else told
    return found


def _events(count: int, one: str, many: str) -> str:
    return f"1 event {one}" if count == 1 else f"{count} events {many}"


def _number(name: str) -> int:
    digits = name.removesuffix(".json")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
