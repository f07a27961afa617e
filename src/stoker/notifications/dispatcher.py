"""Send notifications beside governing: nothing here changes a plan, and no failure here harms a job.

Each event is first recorded in the store, in the outbox of its channel; any governor may then send it from there. So an
event is sent once although many governors see it, and none is lost when a governor dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from stoker.model.errors import StoreUnavailable
from stoker.model.policy import Policy
from stoker.notifications import outbox
from stoker.notifications.background_call import BackgroundCall
from stoker.notifications.channel_subscriptions import NamedChannel, max_per_hour, named_channels
from stoker.notifications.events import Notification, compose
from stoker.notifications.job_events import JobEventReader, JobWithSpec
from stoker.notifications.outbox import Outbox
from stoker.notifications.outbox_store import OutboxStore, channel_problem
from stoker.notifications.sender_cache import Open, Resolve, SenderCache
from stoker.notifications.senders import MESSAGE_TIMEOUT_S, PartlySent, SenderUnavailable
from stoker.store.base import Store
from stoker.store.job_log import new_token
from stoker.store.parallel import read_each

# A single pass waits this long for messages to be sent. A loop waits less: its next pass reads the results.
SINGLE_PASS_WAIT_S = 12.0
LOOP_WAIT_S = 1.0
# The end of a single pass's wait is reserved for answers: a message that was started later could never be confirmed.
_ANSWER_S = MESSAGE_TIMEOUT_S
_POLL_S = 0.05
# Messages that are sent at the same time, and senders that are opened at the same time.
_MAX_PARALLEL = 16
# Without a channel, the outboxes are still read this often: another governor may have left events unsent.
_REFRESH_WITHOUT_CHANNELS_S = 300.0
# A message without an answer after this time counts as failed.
_ANSWER_TIMEOUT_S = 12.0
# An unchanged problem of a channel is reported again no sooner than this.
_REPEAT_PROBLEM_AFTER_S = 600.0
# Log entries without an event are not worth a write of the cursor until there are so many of one job, or of all jobs:
# a governor that starts anew reads them again.
_MAX_LAG_OF_JOB = 8
_MAX_LAG = 64
# A governor with nothing else to do stays for a channel at which it failed no more often than this.
_STAY_FOR_FAILURES = 3
T = TypeVar("T")


class NotificationDispatcher:
    """Records and sends the notifications of one store. Not thread-safe, save for reading `pending`."""

    def __init__(
        self,
        store: Store,
        by: str,
        token: Callable[[], str] = new_token,
        open_: Open | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._store = store
        self._by = by
        self._token = token
        self._outboxes = OutboxStore(store)
        self._senders = SenderCache(open_, resolve)
        self._job_events = JobEventReader(store)
        self._policy = Policy()
        self._named: dict[str, NamedChannel] = {}
        # True once the outboxes were read in this pass; and when they were last read in any pass.
        self._is_refreshed = False
        self._refreshed_s: float | None = None
        # Messages that are being sent, by channel: the token in the outbox, and the call.
        self._in_flight: dict[str, tuple[str, BackgroundCall[None]]] = {}
        self._reported: dict[str, tuple[str, float]] = {}
        # Retry failed channels now, not after their pause: set where a person asked for a pass.
        self.retry_now = False
        # `unsent`: some event waits in an outbox. `pending`: this governor may yet be able to send one.
        self.pending = False
        self.unsent = False

    # ── Recording ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, policy: Policy) -> None:
        """Start a new pass: the outboxes are read again before they are used."""
        self._policy = policy
        self._named = {}
        self._is_refreshed = False

    def record(
        self,
        jobs: Mapping[str, JobWithSpec],
        now: datetime,
        *,
        more: Iterable[Notification] = (),
        active: Iterable[str] | None = None,
    ) -> None:
        """Write the new events of these jobs, and `more`, to the outboxes of the channels that want them.

        `active` are all active jobs, where they are known. Raises StoreError; the next pass then records the events.
        """
        named = named_channels(self._policy, {job: each.spec for job, each in jobs.items()})
        for channel, one in named.items():
            self._named.setdefault(channel, one)
        extra, alive = tuple(more), None if active is None else frozenset(active)
        if not named and self._can_skip_refresh():
            return
        self._refresh()
        unnamed = [channel for channel, box in self._outboxes.all().items() if box.pending and channel not in named]
        self._for_each([*named.items()], lambda each: self._record_for(*each, jobs, extra, alive, now))
        self._for_each(unnamed, lambda channel: self._prune(channel, now))
        if alive is not None:
            self._job_events.retain(jobs)
            self._outboxes.forget(set(self._named), now)
        self._update_flags()

    def _prune(self, channel: str, now: datetime) -> None:
        """Give up events that are too old, also in the outbox of a channel that no policy or job names any more."""
        box = self._outboxes.get(channel)
        if box is not None and _events_differ(box, outbox.prune(box, None, now)):
            self._outboxes.change(channel, lambda box: box and outbox.prune(box, None, now), now)

    def _record_for(
        self,
        channel: str,
        named: NamedChannel,
        jobs: Mapping[str, JobWithSpec],
        more: tuple[Notification, ...],
        active: frozenset[str] | None,
        now: datetime,
    ) -> None:
        box = self._outboxes.get(channel)
        cursors = box.cursors if box is not None else {}
        seen: dict[str, int] = {}
        lag: list[int] = []
        unread: list[tuple[str, int]] = []
        for job, each in jobs.items():
            if not named.covers(job, each.spec):
                continue
            before = cursors.get(job)
            after = before.seq if before is not None else each.state.opened_seq
            if each.state.seq <= after:
                continue
            seen[job] = each.state.seq
            lag.append(each.state.seq - after)
            if now - each.state.updated_at <= outbox.FRESH_FOR:
                unread.append((job, after))
        found_by_job = read_each(
            lambda each: self._job_events.read(jobs[each[0]], each[1], self._policy),
            unread,
            is_local=self._store.is_local,
        )
        for (job, _), found in zip(unread, found_by_job, strict=True):
            if found is None:
                del seen[job]
        events = [event for found in (*found_by_job, more) for event in found or () if named.wants(event)]

        def change(box: Outbox | None) -> Outbox:
            box = box or Outbox(to=named.to, name=named.name)
            box = replace(box, name=named.name, named_by_jobs=box.named_by_jobs or bool(named.jobs))
            return outbox.prune(outbox.add_events(box, events, seen, now), active, now)

        lags_behind = max(lag, default=0) >= _MAX_LAG_OF_JOB or sum(lag) >= _MAX_LAG
        if lags_behind or _events_differ(box, change(box)):
            self._outboxes.change(channel, change, now)

    # ── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, now: Callable[[], datetime], patience_s: float = SINGLE_PASS_WAIT_S) -> dict[str, str]:
        """Send all events that may be sent now. Returns new problems of channels, by the channels' names.

        Waits at most `patience_s`; the next call reads the results of messages that are in flight then. Raises
        StoreError.
        """
        if not self._named and self._can_skip_refresh():
            return {}
        self._refresh()
        until_s = time.monotonic() + patience_s
        # A single pass does not start a message whose answer it could not wait for.
        last_start_s = until_s - _ANSWER_S if patience_s > _ANSWER_S else until_s
        problems: dict[str, str] = {}
        self._collect_results(now)
        due = [channel for channel, box in self._outboxes.all().items() if self._is_due(channel, box, now())]
        # Channels of the policy come first, since a job can name an address that hangs.
        due.sort(key=lambda channel: channel not in self._named or not self._named[channel].policy)
        while True:
            ready = self._open_senders(due)[: max(0, _MAX_PARALLEL - len(self._in_flight))]
            ready = ready if time.monotonic() <= last_start_s else []
            self._for_each(ready, lambda channel: self._start(channel, now(), problems))
            due = [channel for channel in due if channel not in ready]
            self._collect_results(now)
            if time.monotonic() >= until_s or not (self._in_flight or (due and time.monotonic() <= last_start_s)):
                break
            self._wait_for_any(due)
        self._update_flags()
        return self._new_problems(problems, now())

    def finish(self, now: Callable[[], datetime], patience_s: float = SINGLE_PASS_WAIT_S) -> None:
        """Make the last call of this dispatcher: unsent messages are left to other governors. Raises StoreError."""
        if self.pending or self._in_flight:
            self.send(now, patience_s)
        for channel in [*self._in_flight]:
            self._settle(channel, "its answer came too late to be read", now())

    def _is_due(self, channel: str, box: Outbox, now: datetime) -> bool:
        if channel in self._in_flight or not self._may_send(channel, box):
            return False
        waits = replace(box, retry_at=None, retries={}) if self.retry_now else box
        at = outbox.sendable_at(waits, max_per_hour(self._named.get(channel)), self._by, now)
        return at is not None and at <= now

    def _may_send(self, channel: str, box: Outbox) -> bool:
        """A channel that only the policy named is not used any more once the policy names it no more."""
        return box.pending and (box.named_by_jobs or channel in self._named)

    def _open_senders(self, due: list[str]) -> list[str]:
        """Start to open the senders of these channels, a few at a time. Returns the channels that are ready."""
        for channel in due:
            box = self._outboxes.get(channel)
            if box is not None and self._senders.opening_count() < _MAX_PARALLEL:
                self._senders.start_opening(channel, self._named.get(channel), box.to)
        return [channel for channel in due if self._senders.is_ready(channel)]

    def _wait_for_any(self, due: list[str]) -> None:
        """Wait for one of the calls in flight, for a moment only: another one may be over before it."""
        calls: list[BackgroundCall[Any]] = [call for _, call in self._in_flight.values()]
        calls += self._senders.calls(due)
        for call in calls[:1]:
            call.wait(time.monotonic() + _POLL_S)

    def _start(self, channel: str, now: datetime, problems: dict[str, str]) -> None:
        """Claim the waiting events in the outbox, and send them. Adds to `problems` where the sender cannot be used."""
        error = self._senders.error(channel)
        if error is not None:
            name = box.name if (box := self._outboxes.get(channel)) is not None else channel
            problem = problems[channel] = (str(error) or type(error).__name__).removeprefix(f"{name}: ")
            # Recorded for `stoker ps`, which may run on another computer than the governor.
            self._outboxes.change(channel, lambda box: box and outbox.record_unusable(box, problem), now)
            return
        send, token = self._senders.sender(channel), self._token()

        def claim(box: Outbox | None) -> Outbox | None:
            # Another governor may have been quicker.
            if box is None or not self._is_due(channel, box, now):
                return box
            return outbox.start_sending(box, token, self._by, now)

        box = self._outboxes.change(channel, claim, now)
        sending = box.sending if box is not None else None
        if sending is not None and sending.token == token:
            message = compose(sending.id, self._store.url, sending.events, sending.more)
            self._in_flight[channel] = (token, BackgroundCall(lambda: send(message)))

    def _collect_results(self, now: Callable[[], datetime]) -> None:
        """Record the results of messages that are over, or have had no answer for too long."""
        began_before_s = time.monotonic() - _ANSWER_TIMEOUT_S
        over = [channel for channel, (_, call) in self._in_flight.items() if call.over or call.began_s < began_before_s]
        self._for_each(over, lambda channel: self._collect_result(channel, now()))

    def _collect_result(self, channel: str, now: datetime) -> None:
        _, call = self._in_flight[channel]
        if not call.over:
            self._settle(channel, f"no answer within {_ANSWER_TIMEOUT_S:g} s", now)
            return
        match call.error:
            case None:
                self._settle(channel, "", now)
            case PartlySent() as error:
                self._settle(channel, str(error), now, accepted=True)
            case error:
                # The secret behind the address may have changed since it was read.
                self._senders.drop(channel)
                is_local = isinstance(error, SenderUnavailable)
                self._settle(channel, str(error) or type(error).__name__, now, is_local=is_local)

    def _settle(
        self, channel: str, problem: str, now: datetime, *, accepted: bool = False, is_local: bool = False
    ) -> None:
        """Write the result of a message to the outbox. `is_local`: only this computer is unable to send it."""
        token, _ = self._in_flight[channel]

        def change(box: Outbox | None) -> Outbox | None:
            if box is None or box.sending is None or box.sending.token != token:
                return box  # Another governor took the message over.
            if accepted or not problem:
                return outbox.mark_delivered(box, problem)
            return outbox.mark_failed(box, problem, now, is_local=is_local)

        self._outboxes.change(channel, change, now)
        # After the write: a result that could not be written is written by the next pass.
        del self._in_flight[channel]

    # ── Small steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _can_skip_refresh(self) -> bool:
        """Return whether the outboxes need not be read: they were read lately, and nothing of this governor's waits.

        Without any channel they are still read now and then, since a governor that died may have left events of a job
        that is over.
        """
        is_recent = self._refreshed_s is not None and time.monotonic() - self._refreshed_s < _REFRESH_WITHOUT_CHANNELS_S
        return is_recent and not self._in_flight and not self.pending

    def _refresh(self) -> None:
        if not self._is_refreshed:
            self._outboxes.refresh()
            self._is_refreshed = True
            self._refreshed_s = time.monotonic()

    def _for_each(self, items: list[T], work: Callable[[T], None]) -> None:
        """Do the work for every item, in parallel where the store is remote. An error stops no other item.

        Raises the first error at the end; StoreUnavailable comes before all others.
        """

        def attempt(item: T) -> Exception | None:
            try:
                work(item)
            except Exception as error:  # noqa: BLE001 - raised below
                return error
            return None

        errors = [error for error in read_each(attempt, items, is_local=self._store.is_local) if error is not None]
        for error in sorted(errors, key=lambda error: not isinstance(error, StoreUnavailable)):
            raise error

    def _update_flags(self) -> None:
        boxes = self._outboxes.all()
        self._senders.retain(boxes)
        waiting = {channel: box for channel, box in boxes.items() if self._may_send(channel, box)}
        self.unsent = bool(self._in_flight or waiting)
        self.pending = bool(self._in_flight) or any(
            self._failure_count(box) <= _STAY_FOR_FAILURES and self._senders.error(channel) is None
            for channel, box in waiting.items()
        )

    def _failure_count(self, box: Outbox) -> int:
        retry = box.retries.get(self._by)
        return retry.failures if retry is not None else 0

    def _new_problems(self, problems: dict[str, str], now: datetime) -> dict[str, str]:
        """The problems of channels that were not reported lately, by the channels' names."""
        for channel in self._named:
            box = self._outboxes.get(channel)
            if not self._outboxes.readable(channel):
                problems.setdefault(channel, "a newer Stoker uses this channel; update this one")
            elif box is not None and (problem := channel_problem(box, now)):
                problems.setdefault(channel, problem)
        found: dict[str, str] = {}
        for channel, problem in problems.items():
            before, at_s = self._reported.get(channel, ("", 0.0))
            if problem != before or time.monotonic() - at_s > _REPEAT_PROBLEM_AFTER_S:
                self._reported[channel] = (problem, time.monotonic())
                box, named = self._outboxes.get(channel), self._named.get(channel)
                name = named.name if named else box.name if box else channel
                found[f"notify {name}"] = problem
        return found


def _events_differ(before: Outbox | None, after: Outbox) -> bool:
    """Return whether the waiting events differ. A cursor alone is not worth a write."""
    return (before.waiting, before.more) != (after.waiting, after.more) if before is not None else after.pending
