"""All attempts and nodes of a job in one stream of lines: all of it, its tail, or live."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from stoker.model.errors import StoreUnavailable
from stoker.read.log_cursor import UNREADABLE, LogLine, NodeCursor
from stoker.read.node_chunks import BOOT, NodeLog, boots, output_lines
from stoker.store.base import Store

__all__ = [
    "BOOT",
    "UNREADABLE",
    "LogLine",
    "NodeLog",
    "console_lines",
    "follow",
    "read_lines",
    "read_tail",
    "silent_nodes",
]

NEAR_POLL_S = 0.1
FAR_POLL_S = 2.0
_LONGEST_RETRY_S = 10.0
# A node of an earlier attempt seldom writes again: after a while it is read only every so many rounds.
_SELDOM_ROUNDS = 32

# Returns the nodes known by now, and True if the job has ended.
Watch = Callable[[], tuple[Sequence[NodeLog], bool]]


def read_lines(store: Store, job: str, nodes: Sequence[NodeLog]) -> Iterator[LogLine]:
    """Read the present lines: attempts in order, nodes of each merged by time, whole lines only. Raises StoreError."""
    for attempt in sorted({node.attempt for node in nodes}):
        cursors = [NodeCursor(store, job, node) for node in sorted(nodes) if node.attempt == attempt]
        yield from _merge(_whole(cursor) for cursor in cursors)


def read_tail(store: Store, job: str, nodes: Sequence[NodeLog], n: int) -> list[LogLine]:
    """Read the last `n` present lines without reading the whole log. Raises StoreError."""
    lines: list[LogLine] = []
    for attempt in sorted({node.attempt for node in nodes}, reverse=True):
        if len(lines) >= n:
            break
        cursors = [NodeCursor(store, job, node) for node in sorted(nodes) if node.attempt == attempt]
        for cursor in cursors:
            cursor.seek_tail(n)
        last = deque(_merge(_whole(cursor) for cursor in cursors), maxlen=n - len(lines))
        lines = [*last, *lines]
    return lines


def silent_nodes(store: Store, job: str, nodes: Iterable[NodeLog]) -> list[NodeLog]:
    """The nodes without any output of an agent or a boot; only their console may explain it. Raises StoreError."""
    return [node for node in sorted(nodes) if not boots(store, job, node)]


def console_lines(node: NodeLog, output: str) -> list[LogLine]:
    """Turn console output of a machine into lines of its node."""
    return [LogLine(node.attempt, node.rank, 0.0, text) for text in output_lines(output)]


def follow(
    store: Store,
    job: str,
    watch: Watch,
    poll_s: float | None = None,
    *,
    tail: int | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[LogLine]:
    """Yield the present lines (or the last `tail` of them) and new ones, across restarts, until the job has ended.

    A store that does not answer is asked again for as long as it takes; one that refuses raises StoreDenied.
    """
    poll_s = poll_s if poll_s is not None else NEAR_POLL_S if store.is_local else FAR_POLL_S
    following = _Following(store, job, tail)
    failures = 0
    while True:
        try:
            nodes, ended = watch()
            following.add(nodes)
        except StoreUnavailable:
            failures += 1
        else:
            yield from following.news(last=ended)
            failures = failures + 1 if following.failed() else 0
            if ended and not failures:
                yield from following.finish()
                return
        sleep(min(_LONGEST_RETRY_S, poll_s * 2 ** min(failures, 10)))


class _Following:
    """The cursors of a job that is being followed."""

    def __init__(self, store: Store, job: str, tail: int | None) -> None:
        self._store = store
        self._job = job
        self._tail = tail
        self._cursors: dict[NodeLog, NodeCursor] = {}
        self._round = 0
        # Set by a new attempt: an old one ended, perhaps with a restarted agent.
        self._look_closely = False
        # The number of rounds without a new line, by node.
        self._silent: Counter[NodeLog] = Counter()

    def add(self, nodes: Iterable[NodeLog]) -> None:
        for node in nodes:
            if node in self._cursors:
                continue
            cursor = NodeCursor(self._store, self._job, node)
            if self._tail is not None and self._round == 0:
                cursor.seek_tail(self._tail)
            self._cursors[node] = cursor
            self._look_closely = True

    def news(self, *, last: bool) -> Iterator[LogLine]:
        closely, self._look_closely = last or self._look_closely, False
        lines = self._collect(closely)
        if self._round == 0 and self._tail is not None:
            lines = iter(deque(lines, maxlen=self._tail))
        yield from lines
        self._round += 1

    def failed(self) -> bool:
        """True if some node could not be read this time. Raises errors that will not pass."""
        errors = [cursor.error for cursor in self._cursors.values() if cursor.error is not None]
        for error in errors:
            if not isinstance(error, StoreUnavailable):
                raise error
        self._look_closely = self._look_closely or bool(errors)
        return bool(errors)

    def finish(self) -> Iterator[LogLine]:
        for node in sorted(self._cursors):
            yield from self._cursors[node].finish()

    def _collect(self, closely: bool) -> Iterator[LogLine]:
        newest = max((node.attempt for node in self._cursors), default=0)
        earlier: list[NodeCursor] = []
        for attempt in sorted({node.attempt for node in self._cursors}):
            cursors = [self._cursors[node] for node in sorted(self._cursors) if node.attempt == attempt]
            due = [cursor for cursor in cursors if closely or attempt == newest or self._is_due(cursor.node)]
            wrote: set[NodeLog] = set()
            for line in _merge(self._recording(cursor, wrote, closely) for cursor in due):
                # A pending line of a silent earlier attempt is ended when the next attempt writes.
                for silent in earlier:
                    yield from silent.finish()
                earlier = []
                yield line
            for cursor in due:
                self._silent[cursor.node] = 0 if cursor.node in wrote else self._silent[cursor.node] + 1
            earlier += [cursor for cursor in cursors if cursor.node not in wrote]

    def _is_due(self, node: NodeLog) -> bool:
        return self._silent[node] < _SELDOM_ROUNDS or self._round % _SELDOM_ROUNDS == 0

    @staticmethod
    def _recording(cursor: NodeCursor, wrote: set[NodeLog], closely: bool) -> Iterator[LogLine]:
        for line in cursor.read(look_closely=closely):
            wrote.add(cursor.node)
            yield line


def _whole(cursor: NodeCursor) -> Iterator[LogLine]:
    yield from cursor.lines()
    yield from cursor.finish()


def _merge(streams: Iterable[Iterator[LogLine]]) -> Iterator[LogLine]:
    return heapq.merge(*streams, key=lambda line: line.at)
