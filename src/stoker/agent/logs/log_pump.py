"""Bring the output of the training to the store, whatever it prints and however long the store is away.

The training writes into `<node>/train.log` itself, so it is never slowed down by the agent and loses nothing when the
agent is killed. The pump reads the file behind it. The file is the buffer: memory stays bounded during an outage, and
so does the disk, because durable bytes are punched out of the file.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.confinement import open_plain
from stoker.agent.logs.file_tail import FileTail
from stoker.agent.logs.pump_thread import PumpThread, Turn
from stoker.core.failure_diagnosis import AGENT_PREFIX
from stoker.model import keys
from stoker.store.base import Store
from stoker.store.log_chunks import (
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    ChunkWriter,
    Segment,
    encode_segment,
    last_chunk,
    parse_segments,
)

# A local folder costs nothing to write to; each put to a bucket costs money and load.
LOCAL_FLUSH_S = 0.2
REMOTE_FLUSH_S = 2.0
# How often the pump for a remote store looks at the file: output after a silence is sent without waiting.
_REMOTE_POLL_S = 0.25
# With this many bytes waiting, a put is worth its price at once.
_FULL_BYTES = 1024 * 1024
_TAIL_LINE_CHARS, _TAIL_END_CHARS = 2000, 300

_log = logging.getLogger(__name__)

# Receives every block that was read, and when (unix seconds).
Tap = Callable[[bytes, float], None]


@dataclass(frozen=True)
class PumpStatus:
    """How far the file was read, how far it is durable, and the last error (None: there was none)."""

    offset: int
    durable_offset: int
    error: str | None


class LogPump:
    """Copies the file at `path` into the log chunks of a node.

    `earlier` are the node folders of earlier boots on this machine: what they made durable is not sent again.
    """

    def __init__(
        self,
        store: Store,
        node: str,
        path: Path,
        start_offset: int = 0,
        *,
        earlier: Sequence[str] = (),
        tap: Tap | None = None,
        is_local: bool | None = None,
    ) -> None:
        is_local = store.is_local if is_local is None else is_local
        self._store = store
        self._path = path
        self._tail = FileTail(path, start_offset)
        self._durable = start_offset
        self._earlier = tuple(earlier)
        self._tap = tap
        self._writer = ChunkWriter(store, lambda n, size: keys.log_chunk(node, n, size))
        self._flush_s = LOCAL_FLUSH_S if is_local else REMOTE_FLUSH_S
        self._flushed_at = -self._flush_s
        self._last_ms = 0
        self._thread = PumpThread("log-pump", self._turn, LOCAL_FLUSH_S if is_local else _REMOTE_POLL_S)

    @property
    def status(self) -> PumpStatus:
        return PumpStatus(self._tail.offset, self._durable, self._thread.error)

    def start(self) -> None:
        self._thread.start()

    def drain(self, deadline_s: float, until_s: Callable[[], float] | None = None) -> bool:
        """Wait until everything that is in the file now is durable. Return False if the deadline passes before.

        `until_s` may move the deadline closer.
        """
        return self._thread.drain(deadline_s, until_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread without draining. Bytes that are not durable stay in the file."""
        self._thread.stop(timeout_s)

    def tail(self, n_lines: int = 20, max_bytes: int = 16 * 1024) -> tuple[str, ...]:
        """Return the last lines of the file, as a person would see them. Never raises."""
        return last_lines(self._path, n_lines, max_bytes)

    def _turn(self, hurry: bool) -> Turn:
        if self._earlier:
            self._tail.offset = max(self._tail.offset, durable_offset(self._store, self._earlier))
            self._durable = self._tail.offset
            self._earlier = ()
        self._push()
        waiting = self._tail.waiting()
        if not waiting:
            return "idle"
        if not (hurry or waiting >= _FULL_BYTES or time.monotonic() - self._flushed_at >= self._flush_s):
            return "waiting"
        self._take()
        self._push()
        if not self._tail.waiting():
            return "idle"
        return "busy" if hurry or self._tail.waiting() >= _FULL_BYTES else "waiting"

    def _take(self) -> None:
        offset = self._tail.offset
        data = self._tail.read(min(MAX_CHUNK_BYTES, self._writer.room) - HEADER_BYTES)
        if not data:
            return
        # Readers merge nodes by this time; a clock set back must not reverse a node's own lines.
        self._last_ms = max(self._last_ms, int(time.time() * 1000))
        self._writer.add(encode_segment(Segment(self._last_ms, offset, data)))
        if self._tap is not None:
            try:
                self._tap(data, self._last_ms / 1000)
            except Exception:  # noqa: BLE001 - a metric that cannot be read must not hold up the log
                _log.exception("reading metrics from the log failed")

    def _push(self) -> None:
        if not self._writer.pending:
            return
        self._writer.push()
        self._flushed_at = time.monotonic()
        self._durable = self._tail.offset
        self._tail.forget(self._durable)


def durable_offset(store: Store, nodes: Sequence[str]) -> int:
    """Return how far into the log file the boots got that wrote to these node folders. Raises StoreError."""
    reached = 0
    for node in nodes:
        segments = parse_segments(last_chunk(store, f"{node}/log/")).segments
        reached = max([reached, *(segment.end for segment in segments)])
    return reached


def say(path: Path, text: str) -> None:
    """Write a message for the user into the log, between the lines of the training. One write; never raises.

    A message is lost when the disk is full: the training's own output has no other place to go either.
    """
    lines = "".join(f"{AGENT_PREFIX}{line}\n" for line in text.splitlines() or [""])
    try:
        with open(path, "a+b", buffering=0, opener=open_plain) as file:
            size = os.fstat(file.fileno()).st_size
            # A line that the training has not ended yet is ended first, or the message would hide at its end.
            glued = size > 0 and os.pread(file.fileno(), 1, size - 1) not in (b"\n", b"")
            file.write((b"\n" if glued else b"") + lines.encode("utf-8", "replace"))
    except OSError as error:
        _log.warning("could not write to %s: %s (%s)", path, error, text)


def last_lines(path: Path, n_lines: int = 20, max_bytes: int = 16 * 1024, since: int = 0) -> tuple[str, ...]:
    """Return the last lines of a file, decoded leniently, a progress bar as its last state. Never raises.

    `since` is where a line begins: nothing before it counts.
    """
    try:
        # The training may have put a pipe in its place: opening that would block the agent for ever.
        with open(path, "rb", buffering=0, opener=open_plain) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(since, size - max_bytes)
            data = os.pread(file.fileno(), max(0, size - start), start)
    except OSError:
        return ()
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if start > since and len(lines) > 1:
        # The first line was cut.
        lines.pop(0)
    return tuple(_shortened(line.rstrip("\r").rpartition("\r")[2]) for line in lines[-n_lines:])


def _shortened(line: str) -> str:
    """Return the beginning and the end of a line that is too long.

    Launchers quote a whole command before they say how it ended.
    """
    if len(line) <= _TAIL_LINE_CHARS:
        return line
    return f"{line[: _TAIL_LINE_CHARS - _TAIL_END_CHARS]} … {line[3 - _TAIL_END_CHARS :]}"
