"""The format of logs and metrics in the store: numbered chunks, of which only the last one grows.

Agents write and clients read this format; both use this module.

A chunk that has grown is written under a new name, `<n>/<size>`, and the smaller version is deleted. Readers take the
largest. So a write that lands late, after its chunk has grown, brings back a smaller version beside the largest, and
never replaces it: a chunk that was once complete stays complete.

A **log chunk** is a sequence of segments: a header line `@<unix ms> <offset> <length>` and then that many raw bytes.
The bytes are cut anywhere, also inside a line or a character. `offset` is their position in the log file on the node:
a restarted agent finds out how far the last one got, and readers drop bytes that came twice.

A **metrics chunk** is JSON lines, each a `Sample`, a `UsageSample` or a `MetricsMark`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from stoker.model import codec
from stoker.model.errors import CodecError, StoreError
from stoker.model.node_facts import Usage
from stoker.store.base import Meta, Store

# The last chunk is rewritten at every flush. A chunk of at least this size is final: rewriting it would cost more than
# a new object.
SEAL_BYTES = 64 * 1024
# Largest chunk: bounds the memory of readers and of agents.
MAX_CHUNK_BYTES = 4 * 1024 * 1024
# Readers refuse objects larger than this: no agent writes one.
MAX_READ_BYTES = 2 * MAX_CHUNK_BYTES

# Samples are of times before this (the year 5138), and of steps below the first that a float cannot tell apart.
LATEST_S = 1e11
MOST_STEPS = 2**53

_HEADER = re.compile(rb"@(\d{1,15}) (\d{1,18}) (\d{1,7})\n")
# Longer than any header, with some margin.
HEADER_BYTES = 64


# ── Log chunks ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Segment(NamedTuple):
    """Bytes of a log file, the time when the agent read them (ms by the node's clock), and their offset."""

    at_ms: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True)
class ParsedChunk:
    """Complete segments, the bytes of an incomplete last one, and whether the data is broken."""

    segments: tuple[Segment, ...]
    rest: bytes
    broken: bool = False


def encode_segment(segment: Segment) -> bytes:
    return b"@%d %d %d\n" % (segment.at_ms, segment.offset, len(segment.data)) + segment.data


def parse_segments(data: bytes) -> ParsedChunk:
    """Split a chunk, or the continuation of an earlier `rest`. Stops at the first invalid byte."""
    segments: list[Segment] = []
    position = 0
    while position < len(data):
        header = _HEADER.match(data, position)
        if header is None:
            rest = data[position:]
            torn = len(rest) < HEADER_BYTES and b"\n" not in rest and rest.startswith(b"@")
            return ParsedChunk(tuple(segments), rest if torn else b"", broken=not torn)
        start, length = header.end(), int(header[3])
        if length > MAX_CHUNK_BYTES:
            return ParsedChunk(tuple(segments), b"", broken=True)
        if start + length > len(data):
            return ParsedChunk(tuple(segments), data[position:])
        segments.append(Segment(int(header[1]), int(header[2]), data[start : start + length]))
        position = start + length
    return ParsedChunk(tuple(segments), b"")


# ── Metrics chunks ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sample:
    """Metrics that the training reported at one time (unix seconds by the node's clock)."""

    kind: ClassVar[str] = "sample"
    at: float
    step: int | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UsageSample:
    """Usage of the node at one time."""

    kind: ClassVar[str] = "usage"
    at: float
    usage: Usage


@dataclass(frozen=True)
class MetricsMark:
    """Offset in the training's metrics file at the end of this chunk, where a restarted agent continues."""

    kind: ClassVar[str] = "mark"
    offset: int
    first_step: int | None = None
    last_step: int | None = None


MetricLine = Sample | UsageSample | MetricsMark


@dataclass(frozen=True)
class _Line:
    # The codec distinguishes tagged dataclasses only as the type of a field.
    value: MetricLine


def encode_line(line: MetricLine) -> bytes:
    return codec.dumps(line) + b"\n"


def decode_lines(data: bytes) -> Iterator[MetricLine]:
    """Decode the valid lines. Invalid ones are left out: the node that wrote them ran other people's code.

    Lines with a time or a number that no agent writes are invalid, too.
    """
    for raw in data.split(b"\n"):
        if not raw:
            continue
        try:
            line = codec.loads(_Line, b'{"value":%s}' % raw).value
        except CodecError:
            continue
        if _is_possible(line):
            yield line


def _is_possible(line: MetricLine) -> bool:
    if isinstance(line, MetricsMark):
        return 0 <= line.offset < 2**63 and _is_step(line.first_step) and _is_step(line.last_step)
    return 0 <= line.at < LATEST_S and (isinstance(line, UsageSample) or _is_step(line.step))


def _is_step(step: int | None) -> bool:
    return step is None or abs(step) < MOST_STEPS


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChunkWriter:
    """Appends to a sequence of chunks, whose versions `key(n, size)` names. One writer per sequence.

    A chunk only grows at its end, also if a reply is lost: the same bytes are sent again, with those added since.
    """

    def __init__(self, store: Store, key: Callable[[int, int], str]) -> None:
        self._store = store
        self._key = key
        self._n = 0
        self._chunk = bytearray()
        # Smaller versions of the current chunk that are, or may be, in the store.
        self._smaller: set[str] = set()
        self.pending = False

    @property
    def room(self) -> int:
        """Bytes that still fit into the current chunk."""
        return MAX_CHUNK_BYTES - len(self._chunk)

    def add(self, data: bytes) -> None:
        """Queue bytes for the next push."""
        self._chunk += data
        self.pending = True

    def push(self) -> None:
        """Make the added bytes durable. Safe to repeat; errors of the store pass through, and nothing is lost then."""
        if not self.pending:
            return
        key = self._key(self._n, len(self._chunk))
        smaller = self._smaller - {key}
        self._smaller = smaller | {key}
        self._store.put(key, bytes(self._chunk))
        self.pending = False
        try:
            self._store.delete(sorted(smaller))
            self._smaller = {key}
        except StoreError:
            pass  # Readers take the largest. Smaller versions are deleted with the next one, or with the job.
        if len(self._chunk) >= SEAL_BYTES:
            self._n += 1
            self._chunk = bytearray()
            self._smaller = set()


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_VERSION = re.compile(r"([0-9]{8})/[0-9]{1,10}")


def list_chunks(store: Store, prefix: str) -> list[tuple[int, Meta]]:
    """List the largest version of every chunk below `prefix` (`…/log/`, `…/metrics/`), in order."""
    found: dict[int, Meta] = {}
    for meta in store.list(prefix):
        match = _VERSION.fullmatch(meta.key[len(prefix) :])
        if match is not None:
            n = int(match[1])
            if n not in found or found[n].size < meta.size:
                found[n] = meta
    return sorted(found.items())


def find_chunk(store: Store, prefix: str, n: int) -> Meta | None:
    """Find the largest version of one chunk below `prefix`."""
    return max(store.list(f"{prefix}{n:08d}/"), key=lambda meta: meta.size, default=None)


def last_chunk(store: Store, prefix: str) -> bytes:
    """Read the last chunk below `prefix`; empty if there is none. Raises StoreError."""
    chunks = list_chunks(store, prefix)
    found = store.get(chunks[-1][1].key, limit=MAX_READ_BYTES) if chunks else None
    return found.data if found is not None else b""
