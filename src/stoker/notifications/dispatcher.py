"""Tell people what happens, beside governing: nothing here changes a plan, and nothing that fails here harms a job.

First what is to be told is noted in the store, in the channel's outbox; whoever sends takes it from there. So each
event is told once although governors are many, and none is forgotten when one dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.policy import House
from stoker.model.spec import Spec
from stoker.notifications import outbox
from stoker.notifications.background_call import Errand
from stoker.notifications.channels import Named, at_most, is_out_of_bounds, named_channels
from stoker.notifications.events import Letter, Told, compose, tell
from stoker.notifications.outbox import Outbox
from stoker.notifications.outbox_store import Mailbox, trouble
from stoker.notifications.senders import ALL_S, NotHere, PartlySent
from stoker.store import job_log
from stoker.store.base import Store
from stoker.store.job_log import new_token
from stoker.store.parallel import for_each

Send = Callable[[Letter], None]
Open = Callable[[str], Send]
Follow = Callable[[str], str]

# A single pass waits this long for messages to be out; whoever passes again and again looks at them the next time.
SINGLE_S = 12.0
WATCH_S = 1.0
# So much of it is for the answer: who begins later and leaves would never know whether the message was taken.
_ANSWER_S = ALL_S
_LOOK_EVERY_S = 0.05
# Messages under way at once; the rest comes to its turn.
_AT_ONCE = 16
# Whoever names no channel looks now and then at what others left untold.
_LOOK_ANYWAY_S = 300.0
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
# A governor with nothing else to do stays for a channel at which it failed no more often than this.
_STAY = 3
T = TypeVar("T")


@dataclass(frozen=True)
class News:
    """A job, as it is now."""

    state: JobState
    spec: Spec


@dataclass(frozen=True)
class _Read:
    """What the entries of a job's log between two numbers tell."""

    after: int
    upto: int
    events: tuple[Told, ...]


class Teller:
    """Tells through the channels of one store. Not thread-safe, save for `pending`."""

    def __init__(
        self,
        store: Store,
        by: str,
        token: Callable[[], str] = new_token,
        open_: Open | None = None,
        follow: Follow | None = None,
    ) -> None:
        self._store = store
        self._by = by
        self._token = token
        self._open = open_ or _open
        self._follow = follow or _follow
        self._mailbox = Mailbox(store)
        self._fresh = False
        self._house = House()
        self._named: dict[str, Named] = {}
        self._looked_s: float | None = None
        self._entries: dict[str, _Read] = {}
        self._opened: dict[str, Errand[Send]] = {}
        self._flights: dict[str, tuple[str, Errand[None]]] = {}
        self._complained: dict[str, tuple[str, float]] = {}
        # Somebody asked for a pass: what failed is tried now, not when its turn comes.
        self.at_once = False
        # Something is noted that this governor may yet send; or that anybody may.
        self.pending = False
        self.unsent = False

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
        """Write down what is to be told of these jobs, and `more`. Without a channel there is a look now and then.

        `active` are all active jobs, where they are known. Raises StoreError; then the next pass does it.
        """
        named = named_channels(self._house, {job: news.spec for job, news in jobs.items()})
        for channel, one in named.items():
            self._named.setdefault(channel, one)
        extra, alive = tuple(more), None if active is None else frozenset(active)
        if not named and self._may_rest():
            return
        self._look()
        left = [channel for channel, box in self._mailbox.all().items() if box.pending and channel not in named]
        self._each([*named.items()], lambda each: self._note_for(*each, jobs, extra, alive, now))
        self._each(left, lambda channel: self._tidy(channel, now))
        if alive is not None:
            self._entries = {job: read for job, read in self._entries.items() if job in jobs}
            self._mailbox.forget(set(self._named), now)
        self._count()

    def _tidy(self, channel: str, now: datetime) -> None:
        """What nobody can send is given up, also where nobody names the channel any more."""
        box = self._mailbox.get(channel)
        if box is not None and _changed(box, outbox.tidied(box, None, now)):
            self._mailbox.change(channel, lambda box: box and outbox.tidied(box, None, now), now)

    def _note_for(
        self,
        channel: str,
        one: Named,
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
            if now - news.state.updated_at <= outbox.FRESH:
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
            entries = list(
                islice(job_log.entries(self._store, state.job, read.upto + 1), max(0, state.seq - read.upto))
            )
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
        if not self._named and self._may_rest():
            return {}
        self._look()
        until_s = time.monotonic() + patience_s
        # A single pass does not begin what it cannot see the end of.
        last_s = until_s - _ANSWER_S if patience_s > _ANSWER_S else until_s
        problems: dict[str, str] = {}
        self._land(now)
        due = [channel for channel, box in self._mailbox.all().items() if self._is_due(channel, box, now())]
        # Jobs can name what hangs: the house comes first.
        due.sort(key=lambda channel: channel not in self._named or not self._named[channel].house)
        while True:
            ready = self._opened_of(due)[: max(0, _AT_ONCE - len(self._flights))]
            ready = ready if time.monotonic() <= last_s else []
            self._each(ready, lambda channel: self._start(channel, now(), problems))
            due = [channel for channel in due if channel not in ready]
            self._land(now)
            if time.monotonic() >= until_s or not (self._flights or (due and time.monotonic() <= last_s)):
                break
            self._wait_for_any(due)
        self._count()
        return self._complaints(problems, now())

    def finish(self, now: Callable[[], datetime], patience_s: float = SINGLE_S) -> None:
        """The last call: what is not out by then is somebody else's. Raises StoreError."""
        if self.pending or self._flights:
            self.send(now, patience_s)
        for channel in [*self._flights]:
            self._settle(channel, "its answer came too late to be read", now())

    def _is_due(self, channel: str, box: Outbox, now: datetime) -> bool:
        if channel in self._flights or not self._may_send(channel, box):
            return False
        waits = replace(box, retry_at=None, tried={}) if self.at_once else box
        at = outbox.sendable_at(waits, at_most(self._named.get(channel)), self._by, now)
        return at is not None and at <= now

    def _may_send(self, channel: str, box: Outbox) -> bool:
        """The house no longer tells through what it does not name any more."""
        return box.pending and (box.own or channel in self._named)

    def _opened_of(self, due: list[str]) -> list[str]:
        """Those of them that can be used, or not; the others are being opened, as far as not too many are."""
        for channel in due:
            if sum(not errand.over for errand in self._opened.values()) < _AT_ONCE:
                self._start_opening(channel)
        return [channel for channel in due if channel in self._opened and self._opened[channel].over]

    def _wait_for_any(self, due: list[str]) -> None:
        """For the first of what is under way; a look at all of it is never far."""
        opening = (self._opened[channel] for channel in due if channel in self._opened)
        under_way: list[Errand[Any]] = [*(errand for _, errand in self._flights.values()), *opening]
        for errand in under_way[:1]:
            errand.wait(time.monotonic() + _LOOK_EVERY_S)

    def _start_opening(self, channel: str) -> None:
        errand = self._opened.get(channel)
        box = self._mailbox.get(channel)
        if errand is not None:
            age_s = time.monotonic() - errand.began_s
            if not errand.over or age_s < (_OPENED_S if _worked(errand) else _CLOSED_S):
                return
        if box is not None:
            to, named = box.to, self._named.get(channel)
            self._opened[channel] = Errand(lambda: self._open_for(named, to))

    def _open_for(self, named: Named | None, to: str) -> Send:
        """Where a reference leads is looked at as what a job writes itself: both are the job's. Raises NotHere."""
        found = self._follow(to)
        if is_out_of_bounds(named, found):
            raise NotHere("it is inside the governor's own computer or cloud, where no job sends anything")
        return self._open(found)

    def _start(self, channel: str, now: datetime, problems: dict[str, str]) -> None:
        """Take on what waits, and send it. Tells why not, if that is this computer's fault."""
        try:
            send = self._opened[channel].result()
        except Exception as error:  # noqa: BLE001 - any library's: the channel fails, and nothing else
            name = box.name if (box := self._mailbox.get(channel)) is not None else channel
            problem = problems[channel] = (str(error) or type(error).__name__).removeprefix(f"{name}: ")
            # For `ps`: who looks there may not be who governs.
            self._mailbox.change(channel, lambda box: box and outbox.unopened(box, problem), now)
            return
        token = self._token()

        def take(box: Outbox | None) -> Outbox | None:
            # A rival may have been quicker.
            if box is None or not self._is_due(channel, box, now):
                return box
            return outbox.begun(box, token, self._by, now)

        box = self._mailbox.change(channel, take, now)
        sending = box.sending if box is not None else None
        if sending is not None and sending.token == token:
            letter = compose(sending.id, self._store.url, sending.events, sending.more)
            self._flights[channel] = (token, Errand(lambda: send(letter)))

    def _land(self, now: Callable[[], datetime]) -> None:
        """See what has become of messages that are under way."""
        over_s = time.monotonic() - _CUT_S
        landed = [channel for channel, (_, each) in self._flights.items() if each.over or each.began_s < over_s]
        self._each(landed, lambda channel: self._land_one(channel, now()))

    def _land_one(self, channel: str, now: datetime) -> None:
        _, errand = self._flights[channel]
        if not errand.over:
            self._settle(channel, f"no answer within {_CUT_S:g} s", now)
            return
        try:
            errand.result()
            self._settle(channel, "", now)
        except PartlySent as error:
            self._settle(channel, str(error), now, taken=True)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - any library's: the channel fails, and nothing else
            # What was read of a secret may be old.
            self._opened.pop(channel, None)
            self._settle(channel, str(error) or type(error).__name__, now, here=isinstance(error, NotHere))

    def _settle(self, channel: str, problem: str, now: datetime, *, taken: bool = False, here: bool = False) -> None:
        token, _ = self._flights[channel]

        def change(box: Outbox | None) -> Outbox | None:
            if box is None or box.sending is None or box.sending.token != token:
                return box  # Somebody took it over.
            if taken or not problem:
                return outbox.delivered(box, problem)
            return outbox.failed(box, problem, now, here=here)

        self._mailbox.change(channel, change, now)
        # Only now: an outcome that could not be written is written by the next pass.
        del self._flights[channel]

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_rest(self) -> bool:
        """Whether there is nothing to look at: somebody who died may have left something of a job that is over."""
        looked = self._looked_s is not None and time.monotonic() - self._looked_s < _LOOK_ANYWAY_S
        return looked and not self._flights and not self.pending

    def _look(self) -> None:
        if not self._fresh:
            self._mailbox.refresh()
            self._fresh = True
            self._looked_s = time.monotonic()

    def _each(self, things: list[T], work: Callable[[T], None]) -> None:
        """Every one of these, many at once where the store is far away. What stops one stops no other, and is raised
        in the end: first of all that the store does not answer."""

        def attempt(thing: T) -> Exception | None:
            try:
                work(thing)
            except Exception as error:  # noqa: BLE001 - raised below
                return error
            return None

        errors = [error for error in for_each(attempt, things, near=self._store.near) if error is not None]
        for error in sorted(errors, key=lambda error: not isinstance(error, StoreUnavailable)):
            raise error

    def _count(self) -> None:
        boxes = self._mailbox.all().items()
        # A governor may run for months.
        self._opened = {channel: errand for channel, errand in self._opened.items() if self._mailbox.get(channel)}
        waiting = {channel: box for channel, box in boxes if self._may_send(channel, box)}
        self.unsent = bool(self._flights or waiting)
        self.pending = bool(self._flights) or any(
            self._failures(box) <= _STAY and not self._is_closed(channel) for channel, box in waiting.items()
        )

    def _failures(self, box: Outbox) -> int:
        tried = box.tried.get(self._by)
        return tried.failures if tried is not None else 0

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
                found[f"notify {name}"] = problem
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
    from stoker.notifications.senders import open_sender

    return open_sender(to)


def _follow(to: str) -> str:
    from stoker.notifications.senders import address_of

    return address_of(to)
