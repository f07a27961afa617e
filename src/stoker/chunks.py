"""How logs and metrics lie in the store: rows of numbered objects of which only the last one grows.

Agents write and clients read this format, so both sides have it from here.

A **log chunk** is a sequence of segments: a header line `@<unix ms> <offset> <length>` and then that many raw bytes.
The bytes are cut anywhere, inside a line or inside a character. `offset` is where they stood in the log file on the
node; it lets the agent's next start find out how far the last one got, and lets readers drop what came twice.

A **metrics chunk** is JSON lines, each a `Sample`, a `UsageSample` or a `Mark`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from stoker import codec
from stoker.errors import CodecError
from stoker.model import Usage
from stoker.store import Store

# The last chunk is written anew at every flush; past this size that would cost more than another object does.
SEAL_BYTES = 64 * 1024
# What a reader must be ready to hold, and the most an agent holds in memory to send.
MAX_CHUNK_BYTES = 4 * 1024 * 1024
# Readers refuse objects larger than this: no agent writes one.
MAX_READ_BYTES = 2 * MAX_CHUNK_BYTES

_HEADER = re.compile(rb"@(\d{1,15}) (\d{1,18}) (\d{1,7})\n")
# Longer than any header, and room for the next chunk's arithmetic to be careless.
HEADER_BYTES = 64


# ── Log chunks ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Segment(NamedTuple):
    """Bytes of a log file, when the agent read them (ms by the node's clock) and where they stood in it."""

    at_ms: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True)
class Parsed:
    """Whole segments found, bytes of one that is not whole yet, and whether something else was met."""

    segments: tuple[Segment, ...]
    rest: bytes
    broken: bool = False


def encode_segment(segment: Segment) -> bytes:
    return b"@%d %d %d\n" % (segment.at_ms, segment.offset, len(segment.data)) + segment.data


def parse_segments(data: bytes) -> Parsed:
    """Split a chunk, or what follows an earlier `rest`. Stops at the first byte that cannot be right."""
    segments: list[Segment] = []
    position = 0
    while position < len(data):
        header = _HEADER.match(data, position)
        if header is None:
            rest = data[position:]
            torn = len(rest) < HEADER_BYTES and b"\n" not in rest and rest.startswith(b"@")
            return Parsed(tuple(segments), rest if torn else b"", broken=not torn)
        start, length = header.end(), int(header[3])
        if length > MAX_CHUNK_BYTES:
            return Parsed(tuple(segments), b"", broken=True)
        if start + length > len(data):
            return Parsed(tuple(segments), data[position:])
        segments.append(Segment(int(header[1]), int(header[2]), data[start : start + length]))
        position = start + length
    return Parsed(tuple(segments), b"")


# ── Metrics chunks ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sample:
    """What the training said of itself at one moment (unix seconds by the node's clock)."""

    kind: ClassVar[str] = "sample"
    at: float
    step: int | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UsageSample:
    """What the node was doing at one moment."""

    kind: ClassVar[str] = "usage"
    at: float
    usage: Usage


@dataclass(frozen=True)
class Mark:
    """How far into the training's metrics file this chunk reaches: where the agent's next start goes on."""

    kind: ClassVar[str] = "mark"
    offset: int
    first_step: int | None = None
    last_step: int | None = None


MetricLine = Sample | UsageSample | Mark


@dataclass(frozen=True)
class _Line:
    # The codec tells tagged dataclasses apart where they are a field's type.
    value: MetricLine


def encode_line(line: MetricLine) -> bytes:
    return codec.dumps(line) + b"\n"


def decode_lines(data: bytes) -> Iterator[MetricLine]:
    """The lines that make sense. Others are left out: the node that wrote them ran other people's code."""
    for raw in data.split(b"\n"):
        if not raw:
            continue
        try:
            yield codec.loads(_Line, b'{"value":%s}' % raw).value
        except (CodecError, OverflowError):
            continue


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChunkWriter:
    """Appends to a row of numbered objects. One writer per row.

    A chunk's bytes only ever grow at their end, also when a reply is lost: what was once tried is kept as it is and
    sent again. And a chunk whose put failed is not grown afterwards, since that put may still land, later than the
    next one, and would then take back what was added.
    """

    def __init__(self, store: Store, key: Callable[[int], str]) -> None:
        self._store = store
        self._key = key
        self._n = 0
        self._chunk = bytearray()
        self._doubtful = False
        self.pending = False

    @property
    def room(self) -> int:
        """How many bytes the present chunk still takes."""
        return MAX_CHUNK_BYTES - len(self._chunk)

    def add(self, data: bytes) -> None:
        """Queue bytes for the next push. Not while some are `pending` after a failed one."""
        if self.pending and self._doubtful:
            raise ValueError("a chunk in doubt must be pushed before it grows")
        self._chunk += data
        self.pending = True

    def push(self) -> None:
        """Make what was added durable. Safe to repeat; raises what the store raises, and loses nothing then."""
        if not self.pending:
            return
        try:
            self._store.put(self._key(self._n), bytes(self._chunk))
        except BaseException:
            self._doubtful = True
            raise
        self.pending = False
        if self._doubtful or len(self._chunk) >= SEAL_BYTES:
            self._n += 1
            self._chunk = bytearray()
            self._doubtful = False
