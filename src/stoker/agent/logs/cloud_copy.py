"""What the training prints, also in a log service of the cloud's, where the job asks for it.

The log in the store is the truth; this is a copy for people who look there. So nothing waits for it: the log pump hands
over what it has read and goes on, the backlog is bounded, and what does not fit is skipped with a line that says so.
What differs from service to service is a `Sink`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stoker.agent.logs.log_pump import PREFIX
from stoker.agent.logs.pump_thread import PumpThread, Turn
from stoker.model.job_state import JobState
from stoker.model.node_config import NodeConfig
from stoker.model.spec import Spec

# What waits for a service that is away, in bytes as printed. Then the oldest goes.
MOST_WAITING_BYTES = 16 * 1024 * 1024
_POLL_S = 2.0
# So much is cut into lines at once: a block may be all line ends, and each becomes a line of its own.
_SLICE_BYTES = 64 * 1024


class Line(NamedTuple):
    """One line, or a part of one that is too long. Numbers go up by one: a line that is sent again keeps its own."""

    number: int
    at_ms: int
    text: str
    # What it counts in a batch of its sink.
    size: int


@dataclass(frozen=True)
class Limits:
    """What a service takes at once. `span_ms`: between the first and the last line of a batch, less than this."""

    batch_bytes: int
    batch_lines: int
    line_bytes: int
    span_ms: float = float("inf")
    # Between two calls.
    pause_s: float = 0.0


class Refused(Exception):
    """The service will never take this batch as it is."""


class Sink(Protocol):
    """A log service. Called by one thread."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def field(self) -> str:
        """Where the job file asks for it, and with what: `logs.cloudwatch: /stoker/jobs`."""

    @property
    def limits(self) -> Limits: ...

    @property
    def note(self) -> str | None:
        """What a person should know although lines arrive."""

    def size(self, text: str) -> int:
        """What a line counts in a batch."""

    def put(self, lines: Sequence[Line]) -> None:
        """Write a batch, which is within the limits. The same batch may come again: a reply may have been lost.

        Raises Refused, and OSError for what may come right.
        """


def open_copy(spec: Spec, config: NodeConfig, state: JobState | None) -> LogCopy | None:
    """The copy that the job asks for of this node's log, running; None where it asks for none."""
    claim = state.claim(config.claim) if state is not None else None
    if claim is None or claim.attempt is None:
        return None
    sink: Sink
    # Imported only here: HTTP takes longer to import than the rest of an agent.
    if spec.logs.cloudwatch is not None:
        from stoker.agent.logs.cloudwatch import open_cloudwatch

        sink = open_cloudwatch(spec.logs.cloudwatch, config, claim.attempt)
    elif spec.logs.cloud_logging is not None:
        from stoker.agent.logs.cloud_logging import open_cloud_logging

        sink = open_cloud_logging(spec.logs.cloud_logging, config, claim.attempt)
    else:
        return None
    copy = LogCopy(sink)
    copy.start()
    return copy


class LogCopy:
    """Sends what it is fed to one sink. `feed` is quick and never fails; a thread does the rest."""

    def __init__(self, sink: Sink, *, most_bytes: int = MOST_WAITING_BYTES, poll_s: float = _POLL_S) -> None:
        self._sink = sink
        self._limits = sink.limits
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        # Blocks as they were read from the file, and when; guarded by the lock with what follows.
        self._blocks: deque[tuple[int, bytes]] = deque()
        self._waiting = 0
        self._skipped = 0
        # Only the thread's own.
        self._cutter = _Cutter(sink.limits.line_bytes)
        self._count = 0
        self._lines: deque[Line] = deque()
        # Being sent. Sent again as it is until it was taken: a reply may have been lost.
        self._batch: list[Line] = []
        self._called_at_s = float("-inf")
        self._missing: str | None = None
        self._thread = PumpThread("log-copy", self._turn, poll_s)

    @property
    def warning(self) -> str | None:
        """What a person should know, in words that stay the same while it lasts; None where all is well."""
        error = self._thread.error
        if error is not None:
            field, _, where = self._sink.field.partition(": ")
            return f"{field}: {where} does not get the log: {error.partition(': ')[2] or error}"
        return self._missing or self._sink.note

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

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread. What was not sent is in the store."""
        self._thread.stop(timeout_s=timeout_s)

    # ── In the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self, hurry: bool) -> Turn:
        if not self._batch:
            self._batch = self._next_batch(last=hurry)
        if not self._batch:
            return "idle"
        self._send()
        with self._lock:
            more = bool(self._blocks)
        return "busy" if more or self._lines or (hurry and self._cutter.waiting) else "idle"

    def _send(self) -> None:
        self._pause()
        try:
            self._sink.put(self._batch)
        except Refused as error:
            # It would be refused for ever, and everything behind it would wait.
            field, _, where = self._sink.field.partition(": ")
            self._missing = f"{field}: {len(self._batch)} lines are missing in {where}: {error}"
        finally:
            self._called_at_s = time.monotonic()
        self._batch = []

    def _pause(self) -> None:
        left_s = self._called_at_s + self._limits.pause_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)

    def _next_batch(self, *, last: bool) -> list[Line]:
        """As many lines as one call takes. `last`: nothing comes after what is there."""
        self._take_blocks(last=last)
        batch: list[Line] = []
        size = 0
        while self._lines and len(batch) < self._limits.batch_lines:
            following = self._lines[0]
            too_long = batch and following.at_ms - batch[0].at_ms >= self._limits.span_ms
            if batch and (size + following.size > self._limits.batch_bytes or too_long):
                break
            batch.append(self._lines.popleft())
            size += following.size
        return batch

    def _take_blocks(self, *, last: bool) -> None:
        """Cut blocks into lines until there is enough for a batch."""
        size = sum(each.size for each in self._lines)
        while len(self._lines) < self._limits.batch_lines and size < self._limits.batch_bytes:
            skipped, block = self._next_slice()
            if block is None:
                if last:
                    self._append(self._cutter.finish())
                return
            at_ms, data = block
            if skipped:
                missing = skipped + self._cutter.break_off()
                who = self._sink.name
                told = f"{PREFIX}{missing} bytes are missing here: {who} took too long; the store has them"
                size += self._append([(at_ms, told)])
            size += self._append(self._cutter.feed(at_ms, data))

    def _append(self, texts: Sequence[tuple[int, str]]) -> int:
        """Make lines of these; their size together."""
        total = 0
        for at_ms, text in texts:
            size = self._sink.size(text)
            self._lines.append(Line(self._count, at_ms, text, size))
            self._count += 1
            total += size
        return total

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


class _Cutter:
    """Cuts blocks into whole lines, each with its time. A progress bar counts as its last state."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
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

    def feed(self, at_ms: int, data: bytes) -> list[tuple[int, str]]:
        self._at_ms = at_ms
        if self._broken:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return []
            self._broken = False
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = [piece for line in lines for piece in self._pieces(_seen(line))]
        if len(self._rest) > self._most_bytes:
            # Of a bar that is drawn over and over only the last state is worth keeping; of a long line, all of it.
            *full, self._rest = self._cut(_seen(self._rest, ended=False))
            found += [piece for part in full for piece in self._pieces(part)]
        return found

    def finish(self) -> list[tuple[int, str]]:
        """The last line, if it was never ended."""
        rest, self._rest = self._rest, b""
        return self._pieces(_seen(rest)) if rest else []

    def _pieces(self, line: bytes) -> list[tuple[int, str]]:
        """One, or as many as a line of this length needs."""
        # Made UTF-8 first: a byte that is none becomes three.
        text = line.decode("utf-8", "replace").encode()
        return [(self._at_ms, part.decode("utf-8", "replace")) for part in self._cut(text)]

    def _cut(self, line: bytes) -> list[bytes]:
        """Parts that a service takes, none of which ends inside a character. At least one."""
        parts = []
        while len(line) > self._most_bytes:
            end = self._most_bytes
            while end > self._most_bytes - 3 and line[end] & 0xC0 == 0x80:
                end -= 1
            parts.append(line[:end])
            line = line[end:]
        return [*parts, line]


def _seen(line: bytes, *, ended: bool = True) -> bytes:
    """What is left to see of a line in which the cursor went back to its beginning."""
    if ended:
        return line.rstrip(b"\r").rpartition(b"\r")[2]
    # Its next state may not be complete yet.
    return b"\r".join(line.split(b"\r")[-2:])
