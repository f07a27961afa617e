"""Tell people what happens, beside governing: nothing here changes a plan, and nothing that fails here harms a job.

First what is to be told is noted in the store, in the channel's outbox; whoever sends takes it from there. So each
event is told once although governors are many, and none is forgotten when one dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from stoker import log
from stoker.core import outbox
from stoker.core.outbox import Outbox
from stoker.core.telling import Letter, Told, compose, in_scope, tell, wants
from stoker.errors import StoreError, StoreUnavailable
from stoker.fold import JobState
from stoker.governor.errands import Errand
from stoker.governor.mailbox import Mailbox, trouble
from stoker.governor.observe import for_each
from stoker.log import new_token
from stoker.notify import address
from stoker.rules import Channel, House
from stoker.spec import Spec
from stoker.store import Store

Send = Callable[[Letter], None]
Open = Callable[[str], Send]

# A single pass waits this long for messages to be out; whoever passes again and again looks at them the next time.
SINGLE_S = 8.0
WATCH_S = 1.0
# Who has not answered by then will not.
_CUT_S = 12.0
# Secrets are read again now and then; what this computer lacks may have been installed meanwhile.
_OPENED_S = 600.0
_CLOSED_S = 60.0
# A complaint that has not changed is repeated no sooner.
_COMPLAINED_S = 600.0
# Entries without news that a governor who comes anew may read again.
_LAG = 8
_MOST_LAG = 64
# A governor with nothing else to do stays for a channel that failed no more often than this.
_STAY = 1
_DEFAULT = Channel(to="")


@dataclass(frozen=True)
class News:
    """A job, as it is now."""

    state: JobState
    spec: Spec


@dataclass
class _Named:
    """An address that somebody names, and who hears what there."""

    to: str
    name: str
    house: list[Channel] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)

    @property
    def at_most(self) -> int:
        return min((channel.at_most for channel in self.house), default=_DEFAULT.at_most)

    def cares(self, job: str, spec: Spec) -> bool:
        return job in self.jobs or any(in_scope(channel, spec.tags) for channel in self.house)

    def wants(self, told: Told) -> bool:
        return (told.job in self.jobs and not told.thing) or any(wants(channel, told) for channel in self.house)


@dataclass(frozen=True)
class _Read:
    """What the entries of a job's log between two numbers tell."""

    after: int
    upto: int
    events: tuple[Told, ...]


def named_channels(house: House, jobs: Mapping[str, Spec]) -> dict[str, _Named]:
    """Every address that the house or one of these jobs names, by its digest."""
    found: dict[str, _Named] = {}
    for channel in house.notify:
        named = found.setdefault(address.digest(channel.to), _Named(channel.to, channel.name))
        named.house.append(channel)
    for job, spec in jobs.items():
        for to in spec.notify:
            found.setdefault(address.digest(to), _Named(to, address.masked(to))).jobs.add(job)
    return found


class Teller:
    """Tells through the channels of one store. Not thread-safe, save for `pending`."""

    def __init__(
        self,
        store: Store,
        by: str,
        token: Callable[[], str] = new_token,
        open_: Open | None = None,
    ) -> None:
        self._store = store
        self._by = by
        self._token = token
        self._open = open_ or _open
        self._mailbox = Mailbox(store)
        self._fresh = False
        self._house = House()
        self._named: dict[str, _Named] = {}
        self._entries: dict[str, _Read] = {}
        self._opened: dict[str, Errand[Send]] = {}
        self._flights: dict[str, tuple[str, Errand[None]]] = {}
        self._complained: dict[str, tuple[str, float]] = {}
        # Somebody asked for a pass: what failed is tried now, not when its turn comes.
        self.at_once = False
        # Something is noted that this governor may yet send.
        self.pending = False

    # ── Noting ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, house: House) -> None:
        """A new pass: what others have written meanwhile counts."""
        self._house = house
        self._named = {}
        self._fresh = False

    def note(
        self,
        jobs: Mapping[str, News],
        now: datetime,
        *,
        more: Iterable[Told] = (),
        active: Iterable[str] | None = None,
    ) -> None:
        """Write down what is to be told of these jobs, and `more`. Without a channel nothing is read or written.

        `active` are all active jobs, where they are known. Raises StoreError; then the next pass does it.
        """
        named = named_channels(self._house, {job: news.spec for job, news in jobs.items()})
        for channel, one in named.items():
            known = self._named.setdefault(channel, one)
            known.jobs |= one.jobs
        extra, alive = tuple(more), None if active is None else frozenset(active)
        if not named and not self._flights and not self.pending:
            return
        self._look()
        for channel, one in named.items():
            self._note_for(channel, one, jobs, extra, alive, now)
        if alive is not None:
            self._entries = {job: read for job, read in self._entries.items() if job in jobs}
            self._mailbox.forget(set(self._named), now)
        self._count()

    def _note_for(
        self,
        channel: str,
        one: _Named,
        jobs: Mapping[str, News],
        more: tuple[Told, ...],
        active: frozenset[str] | None,
        now: datetime,
    ) -> None:
        box = self._mailbox.get(channel)
        cursors = box.cursors if box is not None else {}
        seen: dict[str, int] = {}
        lag: list[int] = []
        unread: list[tuple[str, int]] = []
        for job, news in jobs.items():
            if not one.cares(job, news.spec):
                continue
            before = cursors.get(job)
            after = before.seq if before is not None else news.state.opened_seq
            if news.state.seq <= after:
                continue
            seen[job] = news.state.seq
            lag.append(news.state.seq - after)
            if before is not None or now - news.state.updated_at <= outbox.FRESH:
                unread.append((job, after))
        read = for_each(lambda each: self._events(jobs[each[0]], each[1]), unread, near=self._store.near)
        for (job, _), found in zip(unread, read, strict=True):
            if found is None:
                del seen[job]
        events = [told for found in (*read, more) for told in found or () if one.wants(told)]

        def change(box: Outbox | None) -> Outbox:
            box = box or Outbox(to=one.to, name=one.name)
            box = replace(box, name=one.name, own=box.own or bool(one.jobs))
            return outbox.tidied(outbox.noted(box, events, seen, now), active, now)

        behind = max(lag, default=0) >= _LAG or sum(lag) >= _MOST_LAG
        if behind or _changed(box, change(box)):
            self._mailbox.change(channel, change, now)

    def _events(self, news: News, after: int) -> tuple[Told, ...] | None:
        """What the log of a job tells after an entry; None where it cannot be read, which is told as the job's own."""
        state = news.state
        read = self._entries.get(state.job)
        if read is None or read.after > after or read.upto > state.seq:
            read = _Read(after, after, ())
        try:
            entries = list(islice(log.entries(self._store, state.job, read.upto + 1), max(0, state.seq - read.upto)))
        except StoreUnavailable:
            raise
        except StoreError:
            return None
        found = (tell(entry, state, news.spec, self._house) for entry in entries)
        read = _Read(read.after, state.seq, (*read.events, *(told for told in found if told is not None)))
        self._entries[state.job] = read
        return tuple(told for told in read.events if told.seq > after)

    # ── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, now: Callable[[], datetime], patience_s: float = SINGLE_S) -> dict[str, str]:
        """Send what waits, as far as it may go out now, and answer what is wrong with channels, by their names.

        Waits no longer than `patience_s`. What is under way then is looked at by the next call. Raises StoreError.
        """
        if not self._named and not self._flights and not self.pending and not self.at_once:
            return {}
        self._look()
        until_s = time.monotonic() + patience_s
        self._land(now, time.monotonic())
        due = [channel for channel, box in self._mailbox.all().items() if self._is_due(channel, box, now())]
        for channel in due:
            self._start_opening(channel)
        problems: dict[str, str] = {}
        for channel in due:
            problem = self._start(channel, now(), until_s)
            if problem:
                problems[channel] = problem
        self._land(now, until_s)
        self._count()
        return self._complaints(problems, now())

    def finish(self, now: Callable[[], datetime], patience_s: float = SINGLE_S) -> None:
        """The last call: what is not out by then is somebody else's. Raises StoreError."""
        if self.pending or self._flights:
            self.send(now, patience_s)
        for channel in [*self._flights]:
            self._settle(channel, "nobody waited for its answer", now())

    def _is_due(self, channel: str, box: Outbox, now: datetime) -> bool:
        if channel in self._flights or not self._may_send(channel, box):
            return False
        waits = replace(box, retry_at=None) if self.at_once else box
        at = outbox.sendable_at(waits, self._at_most(channel), now)
        return at is not None and at <= now

    def _may_send(self, channel: str, box: Outbox) -> bool:
        """The house no longer tells through what it does not name any more."""
        return box.pending and (box.own or channel in self._named)

    def _at_most(self, channel: str) -> int:
        named = self._named.get(channel)
        return named.at_most if named is not None else _DEFAULT.at_most

    def _start_opening(self, channel: str) -> None:
        errand = self._opened.get(channel)
        box = self._mailbox.get(channel)
        if errand is not None:
            age_s = time.monotonic() - errand.began_s
            if not errand.over or age_s < (_OPENED_S if _worked(errand) else _CLOSED_S):
                return
        if box is not None:
            to = box.to
            self._opened[channel] = Errand(lambda: self._open(to))

    def _start(self, channel: str, now: datetime, until_s: float) -> str:
        """Take on what waits, and send it. Answers why not, if that is this computer's fault."""
        errand = self._opened[channel]
        if not errand.wait(until_s):
            return ""
        try:
            send = errand.result()
        except Exception as error:  # noqa: BLE001 - any library's: the channel fails, and nothing else
            return str(error) or type(error).__name__
        id_ = self._token()

        def take(box: Outbox | None) -> Outbox | None:
            # A rival may have been quicker.
            if box is None or not self._is_due(channel, box, now):
                return box
            return outbox.begun(box, id_, self._by, now)

        box = self._mailbox.change(channel, take, now)
        sending = box.sending if box is not None else None
        if sending is not None and sending.id == id_:
            letter = compose(id_, self._store.url, sending.events, sending.more)
            self._flights[channel] = (id_, Errand(lambda: send(letter)))
        return ""

    def _land(self, now: Callable[[], datetime], until_s: float) -> None:
        """See what has become of messages that are under way."""
        for channel, (_, errand) in [*self._flights.items()]:
            if errand.wait(until_s):
                try:
                    errand.result()
                    problem = ""
                except Exception as error:  # noqa: BLE001 - any library's: the channel fails, and nothing else
                    problem = str(error) or type(error).__name__
                    # What was read of a secret may be old.
                    self._opened.pop(channel, None)
                self._settle(channel, problem, now())
            elif time.monotonic() - errand.began_s > _CUT_S:
                self._settle(channel, f"no answer within {_CUT_S:g} s", now())

    def _settle(self, channel: str, problem: str, now: datetime) -> None:
        id_, _ = self._flights[channel]

        def change(box: Outbox | None) -> Outbox | None:
            if box is None or box.sending is None or box.sending.id != id_:
                return box  # Somebody took it over.
            return outbox.failed(box, problem, now) if problem else outbox.delivered(box)

        self._mailbox.change(channel, change, now)
        # Only now: an outcome that could not be written is written by the next pass.
        del self._flights[channel]

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        if not self._fresh:
            self._mailbox.refresh()
            self._fresh = True

    def _count(self) -> None:
        boxes = self._mailbox.all().items()
        # A governor may run for months.
        self._opened = {channel: errand for channel, errand in self._opened.items() if self._mailbox.get(channel)}
        self.pending = bool(self._flights) or any(
            self._may_send(channel, box) and box.failures <= _STAY and not self._is_closed(channel)
            for channel, box in boxes
        )

    def _is_closed(self, channel: str) -> bool:
        errand = self._opened.get(channel)
        return errand is not None and errand.over and not _worked(errand)

    def _complaints(self, problems: dict[str, str], now: datetime) -> dict[str, str]:
        """What has changed, by the channels' names."""
        found: dict[str, str] = {}
        for channel in self._named:
            box = self._mailbox.get(channel)
            if not self._mailbox.readable(channel):
                problems.setdefault(channel, "a newer Stoker tells through it; update this one")
            elif box is not None:
                told = trouble(box, now)
                if told and channel not in problems:
                    problems[channel] = told
        for channel, problem in problems.items():
            before, at_s = self._complained.get(channel, ("", 0.0))
            if problem != before or time.monotonic() - at_s > _COMPLAINED_S:
                self._complained[channel] = (problem, time.monotonic())
                box, named = self._mailbox.get(channel), self._named.get(channel)
                name = named.name if named else box.name if box else channel
                found[f"notify {name}"] = problem.removeprefix(f"{name}: ")
        return found


def _changed(before: Outbox | None, after: Outbox) -> bool:
    """Whether something is to be told, or not any more. A cursor alone is not worth a write."""
    return (before.waiting, before.more) != (after.waiting, after.more) if before is not None else after.pending


def _worked(errand: Errand[Send]) -> bool:
    try:
        errand.result()
    except Exception:  # noqa: BLE001 - what it was is told elsewhere
        return False
    return True


def _open(to: str) -> Send:
    # What it imports is not needed by governors that tell nobody.
    from stoker.notify.senders import open_sender

    return open_sender(to)
