"""What the training prints, also in CloudWatch Logs, where the job asks for it.

The log in the store is the truth; this is a copy for people who look there. So nothing waits for it: the log pump hands
over what it has read and goes on, the backlog is bounded, and what does not fit is skipped with a line that says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from stoker import layout
from stoker.agent.config import NodeConfig
from stoker.agent.logs import PREFIX
from stoker.agent.pump import PumpThread, Turn
from stoker.aws.logs import (
    EVENT_OVERHEAD_BYTES,
    MOST_BATCH_BYTES,
    MOST_BATCH_EVENTS,
    MOST_BATCH_SPAN_MS,
    MOST_EVENT_BYTES,
    CloudWatchLogs,
    Event,
    LogsError,
    event,
)
from stoker.fold import JobState
from stoker.spec import Spec

# Groups that Stoker makes forget after this long. One of somebody else's keeps its own retention.
RETENTION_DAYS = 30
# What waits for a service that is away, in bytes as printed. Then the oldest goes.
MOST_WAITING_BYTES = 16 * 1024 * 1024
# Calls for one stream follow one another no faster.
LEAST_PAUSE_S = 0.2
_POLL_S = 2.0
_RETENTION_AGAIN_S = 60.0
# So much is cut into lines at once: a block may be all line ends, and each becomes an event.
_SLICE_BYTES = 64 * 1024
_NEVER = ("InvalidParameterException", "SerializationException", "RequestEntityTooLargeException")

_log = logging.getLogger(__name__)


def open_cloudwatch(spec: Spec, config: NodeConfig, state: JobState | None) -> CloudWatchPump | None:
    """The pump of this node, running; None where the job does not ask for one."""
    claim = state.claim(config.claim) if state is not None else None
    if spec.logs.cloudwatch is None or claim is None or claim.attempt is None:
        return None
    stream = layout.log_stream(config.job, claim.attempt, config.rank)
    pump = CloudWatchPump(CloudWatchLogs(), spec.logs.cloudwatch, stream)
    pump.start()
    return pump


class CloudWatchPump:
    """Sends what it is fed to one stream. `feed` is quick and never fails; a thread does the rest."""

    def __init__(
        self,
        service: CloudWatchLogs,
        group: str,
        stream: str,
        *,
        most_bytes: int = MOST_WAITING_BYTES,
        poll_s: float = _POLL_S,
    ) -> None:
        self._service = service
        self._group = group
        self._stream = stream
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # Blocks as they were read from the file, and when; guarded by the lock with what follows.
        self._blocks: deque[tuple[int, bytes]] = deque()
        self._waiting = 0
        self._skipped = 0
        # Only the thread's own.
        self._lines = _Lines()
        self._events: deque[Event] = deque()
        # Being sent. Sent again as it is until it was taken: a reply may have been lost.
        self._batch: list[Event] = []
        self._ready = False
        self._owes_retention = False
        self._retention_at_s = 0.0
        self._called_at_s = -LEAST_PAUSE_S
        self._note: str | None = None
        self._thread = PumpThread("cloudwatch", self._turn, poll_s)

    @property
    def warning(self) -> str | None:
        """What a person should know, in words that stay the same while it lasts; None where all is well."""
        error = self._thread.error
        if error is not None:
            return f"logs.cloudwatch: {self._group} does not get the log: {error.partition(': ')[2] or error}"
        return self._note

    def feed(self, data: bytes, at: float) -> None:
        """Take a block of the log, read at this time (unix seconds, never going back)."""
        with self._lock:
            self._blocks.append((int(at * 1000), data))
            self._waiting += len(data)
            while self._waiting > self._most_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popleft()
                self._waiting -= len(dropped)
                self._skipped += len(dropped)

    def start(self) -> None:
        self._thread.start()

    def drain(self, seconds: float) -> bool:
        """Send what there is, the last line too if it was never ended. False: not within that time."""
        return self._thread.drain(seconds)

    def stop(self) -> None:
        """End the thread. What was not sent is in the store."""
        self._thread.stop(timeout_s=1.0)

    # ── In the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self, hurry: bool) -> Turn:
        if not self._ready:
            self._open()
        if not self._batch:
            self._batch = self._next_batch(last=hurry)
        if not self._batch:
            return "idle"
        self._send()
        self._set_retention()
        with self._lock:
            more = bool(self._blocks)
        return "busy" if more or self._events or (hurry and self._lines.waiting) else "idle"

    def _send(self) -> None:
        self._pause()
        try:
            dropped = self._service.put(self._group, self._stream, self._batch)
        except LogsError as error:
            if error.code in _NEVER:
                # It would be refused for ever, and everything behind it would wait.
                self._note = f"logs.cloudwatch: {len(self._batch)} lines are missing in {self._group}: {error}"
                self._batch = []
                return
            # Somebody may have deleted it.
            self._ready = error.code != "ResourceNotFoundException"
            raise
        finally:
            self._called_at_s = time.monotonic()
        self._batch = []
        if dropped:
            self._note = f"logs.cloudwatch: {dropped} lines were not taken: the machine's clock is wrong"

    def _open(self) -> None:
        """Make the stream, and the group where there is none."""
        try:
            self._service.create_stream(self._group, self._stream)
        except LogsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            self._owes_retention = self._service.create_group(self._group) or self._owes_retention
            self._set_retention()
            self._service.create_stream(self._group, self._stream)
        self._ready = True

    def _set_retention(self) -> None:
        """Nothing is kept for ever that we made. Tried again now and then, and no reason not to send."""
        if not self._owes_retention or time.monotonic() < self._retention_at_s:
            return
        self._retention_at_s = time.monotonic() + _RETENTION_AGAIN_S
        try:
            self._service.retain(self._group, RETENTION_DAYS)
        except LogsError as error:
            self._note = f"logs.cloudwatch: {self._group} keeps everything for ever: {error}"
        else:
            self._owes_retention = False
            self._note = None

    def _pause(self) -> None:
        left_s = self._called_at_s + LEAST_PAUSE_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)

    def _next_batch(self, *, last: bool) -> list[Event]:
        """As many lines as one call takes. `last`: nothing comes after what is there."""
        self._take_blocks(last=last)
        batch: list[Event] = []
        size = 0
        while self._events and len(batch) < MOST_BATCH_EVENTS:
            following = self._events[0]
            too_long = batch and following.at_ms - batch[0].at_ms >= MOST_BATCH_SPAN_MS
            if size + following.size > MOST_BATCH_BYTES or too_long:
                break
            batch.append(self._events.popleft())
            size += following.size
        return batch

    def _take_blocks(self, *, last: bool) -> None:
        """Cut blocks into lines until there is enough for a batch."""
        size = sum(each.size for each in self._events)
        while len(self._events) < MOST_BATCH_EVENTS and size < MOST_BATCH_BYTES:
            skipped, block = self._next_slice()
            if block is None:
                if last:
                    self._events.extend(self._lines.finish())
                return
            at_ms, data = block
            if skipped:
                rest = self._lines.break_off()
                told = f"{PREFIX}{skipped + rest} bytes are missing here: CloudWatch took too long; the store has them"
                self._events.append(event(at_ms, told))
            found = self._lines.feed(at_ms, data)
            self._events.extend(found)
            size += sum(each.size for each in found)

    def _next_slice(self) -> tuple[int, tuple[int, bytes] | None]:
        """How many bytes were skipped before it, and the next part of what waits."""
        with self._lock:
            skipped, self._skipped = self._skipped, 0
            if not self._blocks:
                return skipped, None
            at_ms, data = self._blocks.popleft()
            if len(data) > _SLICE_BYTES:
                self._blocks.appendleft((at_ms, data[_SLICE_BYTES:]))
                data = data[:_SLICE_BYTES]
            self._waiting -= len(data)
            return skipped, (at_ms, data)


class _Lines:
    """Cuts blocks into the events of whole lines. A progress bar counts as its last state."""

    def __init__(self) -> None:
        self._rest = b""
        self._at_ms = 0
        # After a gap: what comes up to the next line end is the end of a line that is not there.
        self._broken = False

    @property
    def waiting(self) -> bool:
        return bool(self._rest)

    def break_off(self) -> int:
        """What follows does not follow what came. Answers how many bytes were dropped."""
        size, self._rest, self._broken = len(self._rest), b"", True
        return size

    def feed(self, at_ms: int, data: bytes) -> list[Event]:
        self._at_ms = at_ms
        if self._broken:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return []
            self._broken = False
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [piece for line in lines for piece in self._pieces(_seen(line))]
        if len(self._rest) > MOST_EVENT_BYTES:
            # Of a bar that is drawn over and over only the last state is worth keeping; of a long line, all of it.
            *full, self._rest = _cut(_seen(self._rest, ended=False))
            found += [piece for part in full for piece in self._pieces(part)]
        return found

    def finish(self) -> list[Event]:
        """The last line, if it was never ended."""
        rest, self._rest = self._rest, b""
        return self._pieces(_seen(rest)) if rest else []

    def _pieces(self, line: bytes) -> list[Event]:
        """One event, or as many as a line of this length needs."""
        # Made UTF-8 first: a byte that is none becomes three.
        text = line.decode("utf-8", "replace").encode()
        return [event(self._at_ms, part.decode("utf-8", "replace")) for part in _cut(text)]


def _seen(line: bytes, *, ended: bool = True) -> bytes:
    """What is left to see of a line in which the cursor went back to its beginning."""
    if ended:
        return line.rstrip(b"\r").rpartition(b"\r")[2]
    # Its next state may not be complete yet.
    return b"\r".join(line.split(b"\r")[-2:])


def _cut(line: bytes) -> list[bytes]:
    """Parts that fit into an event, none of which ends inside a character. At least one."""
    parts = []
    while len(line) > MOST_EVENT_BYTES:
        end = MOST_EVENT_BYTES
        while end > MOST_EVENT_BYTES - 3 and line[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(line[:end])
        line = line[end:]
    return [*parts, line]


assert MOST_EVENT_BYTES + EVENT_OVERHEAD_BYTES <= MOST_BATCH_BYTES, "or a batch could not take the longest event"
