"""A position in one node's log, and the lines that follow it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.read.node_chunks import NodeLog, boot_lines, boots, fetch_chunks
from stoker.store.base import Meta, Store
from stoker.store.log_chunks import MAX_READ_BYTES, SEAL_BYTES, find_chunk, list_chunks, parse_segments

UNREADABLE = "[stoker] a part of this log cannot be read"
# A longer line is shown in pieces, so that a writer cannot exhaust the reader's memory.
MAX_LINE_BYTES = 16 * 1024 * 1024
# An agent that is killed and restarted writes to a new folder. That is rare, so it is looked for every so many reads.
_LOOK_FOR_BOOTS_EVERY = 10
# How often a chunk that grows between listing and reading is looked for again.
_TRIES = 5
# How far back `seek_tail` reads.
_MAX_TAIL_BYTES = 64 * 1024 * 1024

# Larger than any offset.
_NO_OFFSET = 2**63
_LINE_END = re.compile(rb"(\r\n|\n|\r)")


class LogLine(NamedTuple):
    """A line of a log. `text + end` is what was printed; `end` is empty for a line that was never ended.

    `at` is the time when its end was read, in unix seconds by the node's clock.
    """

    attempt: int
    rank: int
    at: float
    text: str
    end: str = "\n"


@dataclass
class _ChunkPosition:
    """How far one chunk was read."""

    number: int = 0
    bytes_read: int = 0
    # The version of the chunk that was read last.
    seen: Meta | None = None
    # Bytes of a segment that is not complete yet.
    rest: bytes = b""
    # The chunk cannot be read any further.
    broken: bool = False


class NodeCursor:
    """Reads one node's log, across the agent's restarts, from its position to the present end."""

    def __init__(self, store: Store, job: str, node: NodeLog) -> None:
        self.node = node
        # The error of the last `read`. No line is lost: the next `read` continues there.
        self.error: StoreError | None = None
        self._store = store
        self._job = job
        self._boots: list[str] = []
        self._reads = 0
        self._boot = 0
        self._chunk = _ChunkPosition()
        self._unlisted = True
        # The offset in the node's log file of the next byte; a segment may repeat bytes before it.
        self._offset: int | None = None
        self._at = 0.0
        # The node has an agent, or its boot output was read.
        self._booted = False
        self._lines = _LineSplitter()

    def read(self, *, look_closely: bool = False) -> Iterator[LogLine]:
        """The lines since the last read. Never raises: sets `error` and ends when the store fails."""
        self.error = None
        try:
            yield from self.lines(look_closely=look_closely)
        except StoreError as error:
            self.error = error

    def lines(self, *, look_closely: bool = True) -> Iterator[LogLine]:
        """The lines since the last read. `look_closely` also looks for new boots. Raises StoreError."""
        closely = look_closely or not self._boots or self._reads % _LOOK_FOR_BOOTS_EVERY == 0
        if closely:
            self._boots = boots(self._store, self._job, self.node)
        self._reads += 1
        while self._boot < len(self._boots):
            # Asked before reading: a boot with a successor writes no more, so the read that follows is complete.
            last = self._boot + 1 == len(self._boots)
            if self._unlisted:
                yield from self._read_listed()
            yield from self._read_boot_output()
            if last and not closely and self._is_unchanged():
                return
            yield from self._read_chunk()
            while self._next_exists():
                # The writer began the next chunk, so this one is final, but it may have grown since it was read.
                yield from self._read_chunk()
                yield from self._leave_chunk(self._chunk.number + 1)
                yield from self._read_chunk()
            if last:
                return
            self._boot += 1
            yield from self._leave_chunk(0)
            self._unlisted = True

    def finish(self) -> Iterator[LogLine]:
        """The last line, if it was never ended."""
        for text, end in self._lines.finish():
            yield self._line(text, end)

    def seek_tail(self, n: int) -> None:
        """Skip ahead, but leave at least the last `n` lines to read, if there are so many. Raises StoreError.

        For a cursor that was not read from yet. The first line is likely to be cut.
        """
        self._boots = boots(self._store, self._job, self.node)
        found, size, needed, low = 0, 0, n, _NO_OFFSET
        for boot in reversed(range(len(self._boots))):
            for number, meta in reversed(list_chunks(self._store, f"{self._boots[boot]}/log/")):
                self._boot, self._chunk, self._unlisted = boot, _ChunkPosition(number), False
                if meta.size > MAX_READ_BYTES:
                    continue
                # The first line may be cut, and a line end of two characters may lie across two chunks and count twice.
                needed += 1
                size += meta.size
                pieces = []
                for segment in reversed(parse_segments(self._store.get_from(meta.key, 0) or b"").segments):
                    # Bytes that two segments repeat are counted once.
                    pieces.append(segment.data[: max(0, low - segment.offset)])
                    low = min(low, segment.offset)
                found += len(_LINE_END.findall(b"".join(reversed(pieces))))
                if found >= needed or size > _MAX_TAIL_BYTES:
                    return
        self._boot, self._chunk, self._unlisted = 0, _ChunkPosition(), True

    @property
    def _prefix(self) -> str:
        return f"{self._boots[self._boot]}/log/"

    def _is_unchanged(self) -> bool:
        """True if the last version that was read still exists and is not final: then there is no larger one.

        This takes one call for an object. Looking for another version takes two lists, which cost more. A version that
        could not be deleted when it was replaced is noticed at the next close look.
        """
        seen = self._chunk.seen
        if self._store.is_local or seen is None or seen.size >= SEAL_BYTES or self._chunk.bytes_read < seen.size:
            return False
        return self._store.head(seen.key) is not None

    def _next_exists(self) -> bool:
        return self._find(self._chunk.number + 1) is not None

    def _find(self, number: int) -> Meta | None:
        """The newest version of this chunk of the present boot."""
        return find_chunk(self._store, self._prefix, number)

    def _read_listed(self) -> Iterator[LogLine]:
        """Read all listed chunks but the last, which may still grow. They are fetched many at a time."""
        rows = list_chunks(self._store, self._prefix)
        for chunk in fetch_chunks(self._store, [row for row in rows[:-1] if row[0] >= self._chunk.number]):
            yield from self._leave_chunk(chunk.n)
            if chunk.data is None:
                yield from self._break()
            else:
                yield from self._feed(chunk.data)
        if rows and rows[-1][0] > self._chunk.number:
            yield from self._leave_chunk(rows[-1][0])
        self._unlisted = False

    def _read_boot_output(self) -> Iterator[LogLine]:
        """The boot output of a machine that never had an agent: once, and only while there is no log."""
        if self._booted or self._boot or self._chunk.number or self._chunk.bytes_read:
            return
        if self._store.head(keys.heartbeat(self._boots[0])) is not None or self._find(0) is not None:
            self._booted = True
            return
        found = boot_lines(self._store, self._boots[0])
        if found is not None:
            self._booted = True
            self._at = max(self._at, found[0])
            for text in found[1]:
                yield self._line(text.encode(), b"\n")

    def _read_chunk(self) -> Iterator[LogLine]:
        """Read the bytes that were added to the present chunk."""
        chunk = self._chunk
        if chunk.broken:
            return
        for _ in range(_TRIES):
            meta = self._find(chunk.number)
            if meta is None or meta.size <= chunk.bytes_read:
                chunk.seen = meta
                return
            if meta.size > MAX_READ_BYTES:
                yield from self._break()
                return
            data = self._store.get_from(meta.key, chunk.bytes_read)
            if data is not None:
                chunk.bytes_read += len(data)
                chunk.seen = meta
                yield from self._feed(data)
                return
            # The chunk has grown between the two calls, and has another name now.

    def _leave_chunk(self, following: int) -> Iterator[LogLine]:
        torn = bool(self._chunk.rest)
        # `seen` stays: it is larger than the new position, so it is not mistaken for a version of the next chunk.
        self._chunk = _ChunkPosition(following, seen=self._chunk.seen)
        if torn:
            yield self._line(UNREADABLE.encode(), b"\n")

    def _break(self) -> Iterator[LogLine]:
        self._chunk.broken, self._chunk.rest = True, b""
        yield self._line(UNREADABLE.encode(), b"\n")

    def _feed(self, data: bytes) -> Iterator[LogLine]:
        parsed = parse_segments(self._chunk.rest + data)
        self._chunk.rest = parsed.rest
        for at_ms, offset, piece in parsed.segments:
            known = 0 if self._offset is None else self._offset - offset
            self._offset = max(offset + len(piece), self._offset or 0)
            # Merging needs the times of a node in order, even if its clock was set back.
            self._at = max(self._at, at_ms / 1000)
            for text, end in self._lines.feed(piece[known:] if known > 0 else piece):
                yield self._line(text, end)
        if parsed.broken:
            yield from self._break()

    def _line(self, text: bytes, end: bytes) -> LogLine:
        return LogLine(self.node.attempt, self.node.rank, self._at, text.decode("utf-8", "replace"), end.decode())


class _LineSplitter:
    """Splits bytes that arrive in arbitrary pieces into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        # A carriage return at the end of a piece, which may be half of a line end.
        self._held = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._held:
            data, self._held = self._held + data, b""
        if data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        pieces = _LINE_END.split(data)
        for index in range(0, len(pieces) - 1, 2):
            yield self._join(pieces[index]), pieces[index + 1]
        if pieces[-1]:
            self._parts.append(pieces[-1])
            self._size += len(pieces[-1])
            if self._size > MAX_LINE_BYTES:
                yield self._join(b""), b""

    def finish(self) -> Iterator[tuple[bytes, bytes]]:
        text, end = self._join(b""), self._held
        self._held = b""
        if text or end:
            yield text, end

    def _join(self, last: bytes) -> bytes:
        if not self._parts:
            return last
        whole = b"".join([*self._parts, last])
        self._parts, self._size = [], 0
        return whole
