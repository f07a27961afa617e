"""Copy the output of the training to a log service of the cloud, where the job asks for it.

The log in the store is authoritative; this is a copy for people who look in the cloud's console. So nothing waits for
it: the log pump hands over what it has read and goes on, the backlog is bounded, and bytes that do not fit are skipped
with a line that says so. The differences between services are in a `Sink`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stoker.agent.logs.pump_thread import PumpThread, Turn
from stoker.core.failure_diagnosis import AGENT_PREFIX
from stoker.model.job_state import JobState
from stoker.model.node_config import NodeConfig
from stoker.model.spec import Spec

# The largest backlog for a service that does not answer, in bytes as printed. Beyond it the oldest bytes are dropped.
MAX_WAITING_BYTES = 16 * 1024 * 1024
_POLL_S = 2.0
# The most bytes that are cut into lines at once: a block may consist of line ends, and each becomes a line of its own.
_SLICE_BYTES = 64 * 1024


class SinkLine(NamedTuple):
    """One line, or part of a long one. Numbers increase by one: a line that is sent again keeps its number."""

    number: int
    at_ms: int
    text: str
    # The size that it has in a batch of its sink.
    size: int


@dataclass(frozen=True)
class SinkLimits:
    """The limits of one call to a service. `span_ms`: the time between first and last line of a batch is less than
    this."""

    batch_bytes: int
    batch_lines: int
    line_bytes: int
    span_ms: float = float("inf")
    # The pause between two calls.
    pause_s: float = 0.0


class BatchRefused(Exception):
    """The service will never accept this batch as it is."""


class Sink(Protocol):
    """A log service. One thread calls it."""

    @property
    def name(self) -> str:
        """The name that people use for the service."""

    @property
    def field(self) -> str:
        """The field of the job file that asks for it, with its value: `logs.cloudwatch: /stoker/jobs`."""

    @property
    def limits(self) -> SinkLimits: ...

    @property
    def note(self) -> str | None:
        """A warning for people, although lines arrive; None: there is none."""

    def size(self, text: str) -> int:
        """Return the size that a line has in a batch."""

    def put(self, lines: Sequence[SinkLine]) -> None:
        """Write a batch, which is within the limits. The same batch may come again: a reply may have been lost.

        Raises BatchRefused, and OSError for failures that may pass.
        """


def open_log_copy(spec: Spec, config: NodeConfig, state: JobState | None) -> LogCopy | None:
    """Start the copy of this node's log that the job asks for; None where it asks for none."""
    claim = state.claim(config.claim) if state is not None else None
    if claim is None or claim.attempt is None:
        return None
    sink: Sink
    # Imported only when needed: HTTP takes longer to import than the rest of an agent.
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
    """Sends the blocks it is fed to one sink. `feed` is quick and never fails; a thread does the rest."""

    def __init__(self, sink: Sink, *, max_bytes: int = MAX_WAITING_BYTES, poll_s: float = _POLL_S) -> None:
        self._sink = sink
        self._limits = sink.limits
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Blocks as they were read from the file, and when; the lock guards them and the two counters below.
        self._blocks: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._skipped_bytes = 0
        # The attributes below are used by the thread only.
        self._cutter = _LineCutter(sink.limits.line_bytes)
        self._count = 0
        self._lines: deque[SinkLine] = deque()
        # The batch being sent. It is sent again unchanged until it is accepted: a reply may have been lost.
        self._batch: list[SinkLine] = []
        self._called_at_s = float("-inf")
        self._missing: str | None = None
        self._thread = PumpThread("log-copy", self._turn, poll_s)

    @property
    def warning(self) -> str | None:
        """A warning for people, with the same text as long as the cause lasts; None where all is well."""
        error = self._thread.error
        if error is not None:
            field, _, where = self._sink.field.partition(": ")
            return f"{field}: {where} does not get the log: {error.partition(': ')[2] or error}"
        return self._missing or self._sink.note

    def feed(self, data: bytes, at: float) -> None:
        """Take a block of the log that was read at this time (unix seconds, never going back)."""
        with self._lock:
            self._blocks.append((int(at * 1000), data))
            self._waiting_bytes += len(data)
            while self._waiting_bytes > self._max_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popleft()
                self._waiting_bytes -= len(dropped)
                self._skipped_bytes += len(dropped)

    def start(self) -> None:
        self._thread.start()

    def drain(self, seconds: float) -> bool:
        """Send everything, including a last line without a line end. Return False if that took too long."""
        return self._thread.drain(seconds)

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread. Lines that were not sent are in the store."""
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
        except BatchRefused as error:
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

    def _next_batch(self, *, last: bool) -> list[SinkLine]:
        """Return as many lines as one call takes. `last`: nothing follows the present lines."""
        self._take_blocks(last=last)
        batch: list[SinkLine] = []
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
        """Cut blocks into lines until there are enough for a batch."""
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
                service = self._sink.name
                notice = f"{AGENT_PREFIX}{missing} bytes are missing here: {service} took too long; the store has them"
                size += self._append([(at_ms, notice)])
            size += self._append(self._cutter.feed(at_ms, data))

    def _append(self, texts: Sequence[tuple[int, str]]) -> int:
        """Append these as lines, and return their total size."""
        total = 0
        for at_ms, text in texts:
            size = self._sink.size(text)
            self._lines.append(SinkLine(self._count, at_ms, text, size))
            self._count += 1
            total += size
        return total

    def _next_slice(self) -> tuple[int, tuple[int, bytes] | None]:
        """Return how many bytes were skipped before the next slice, and the slice."""
        with self._lock:
            skipped, self._skipped_bytes = self._skipped_bytes, 0
            if not self._blocks:
                return skipped, None
            at_ms, data = self._blocks.popleft()
            if len(data) > _SLICE_BYTES:
                self._blocks.appendleft((at_ms, data[_SLICE_BYTES:]))
                data = data[:_SLICE_BYTES]
            self._waiting_bytes -= len(data)
            return skipped, (at_ms, data)


class _LineCutter:
    """Cuts blocks into whole lines, each with its time. A progress bar counts as its last state."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._at_ms = 0
        # After a gap, the bytes up to the next line end belong to a line whose beginning is missing.
        self._broken = False

    @property
    def waiting(self) -> bool:
        return bool(self._rest)

    def break_off(self) -> int:
        """Drop the unfinished line, because bytes after it are missing. Return how many bytes were dropped."""
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
        found = [piece for line in lines for piece in self._pieces(_visible(line))]
        if len(self._rest) > self._max_bytes:
            # Only the last state of a progress bar is worth keeping; of a long line, all of it.
            *full, self._rest = self._cut(_visible(self._rest, ended=False))
            found += [piece for part in full for piece in self._pieces(part)]
        return found

    def finish(self) -> list[tuple[int, str]]:
        """Return the last line, if it has no line end."""
        rest, self._rest = self._rest, b""
        return self._pieces(_visible(rest)) if rest else []

    def _pieces(self, line: bytes) -> list[tuple[int, str]]:
        """Return the line, in several pieces if it is too long."""
        # Converted to UTF-8 first: an invalid byte becomes three.
        text = line.decode("utf-8", "replace").encode()
        return [(self._at_ms, part.decode("utf-8", "replace")) for part in self._cut(text)]

    def _cut(self, line: bytes) -> list[bytes]:
        """Cut the line into parts that a service accepts, at least one. No part ends inside a character."""
        parts = []
        while len(line) > self._max_bytes:
            end = self._max_bytes
            while end > self._max_bytes - 3 and line[end] & 0xC0 == 0x80:
                end -= 1
            parts.append(line[:end])
            line = line[end:]
        return [*parts, line]


def _visible(line: bytes, *, ended: bool = True) -> bytes:
    """Return the visible text of a line in which the cursor went back to its beginning."""
    if ended:
        return line.rstrip(b"\r").rpartition(b"\r")[2]
    # The next state may not be complete yet, so two are kept.
    return b"\r".join(line.split(b"\r")[-2:])
