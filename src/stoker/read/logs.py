"""All attempts and nodes of a job in one stream of lines: as it is, its end, or as it comes."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from stoker.model.errors import StoreUnavailable
from stoker.read.log_cursor import UNREADABLE, Line, NodeCursor
from stoker.read.node_chunks import BOOT, NodeLog, boots, output_lines
from stoker.store.base import Store

__all__ = [
    "BOOT",
    "UNREADABLE",
    "Line",
    "NodeLog",
    "console_lines",
    "follow",
    "read_lines",
    "read_tail",
    "unheard_of",
]

NEAR_POLL_S = 0.1
FAR_POLL_S = 2.0
_LONGEST_RETRY_S = 10.0
# A node of an earlier attempt is seldom heard from again: after a while it is asked only every so many rounds.
_SELDOM_ROUNDS = 32

# The nodes there are by now, and whether the job has ended.
Watch = Callable[[], tuple[Sequence[NodeLog], bool]]


def read_lines(store: Store, job: str, nodes: Sequence[NodeLog]) -> Iterator[Line]:
    """What is there now: attempts in order, the nodes of each merged by time, whole lines only. Raises StoreError."""
    for attempt in sorted({node.attempt for node in nodes}):
        cursors = [NodeCursor(store, job, node) for node in sorted(nodes) if node.attempt == attempt]
        yield from _merge(_whole(cursor) for cursor in cursors)


def read_tail(store: Store, job: str, nodes: Sequence[NodeLog], n: int) -> list[Line]:
    """The last `n` lines of what is there now, without reading all of it. Raises StoreError."""
    lines: list[Line] = []
    for attempt in sorted({node.attempt for node in nodes}, reverse=True):
        if len(lines) >= n:
            break
        cursors = [NodeCursor(store, job, node) for node in sorted(nodes) if node.attempt == attempt]
        for cursor in cursors:
            cursor.seek_tail(n)
        last = deque(_merge(_whole(cursor) for cursor in cursors), maxlen=n - len(lines))
        lines = [*last, *lines]
    return lines


def unheard_of(store: Store, job: str, nodes: Iterable[NodeLog]) -> list[NodeLog]:
    """Those that never wrote a word: neither an agent nor a boot. Only their console may tell. Raises StoreError."""
    return [node for node in sorted(nodes) if not boots(store, job, node)]


def console_lines(node: NodeLog, output: str) -> list[Line]:
    """What a machine's console showed, as lines of its node."""
    return [Line(node.attempt, node.rank, 0.0, text) for text in output_lines(output)]


def follow(
    store: Store,
    job: str,
    watch: Watch,
    poll_s: float | None = None,
    *,
    tail: int | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Line]:
    """What is there (or the last `tail` lines of it) and what comes, across restarts, until the job has ended.

    A store that does not answer is asked again for as long as it takes; one that refuses raises StoreDenied.
    """
    poll_s = poll_s if poll_s is not None else NEAR_POLL_S if store.near else FAR_POLL_S
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
        # A new attempt means that an old one ended, perhaps with an agent that started again.
        self._look_closely = False
        # How many rounds each node has said nothing.
        self._silent: dict[NodeLog, int] = {}

    def add(self, nodes: Iterable[NodeLog]) -> None:
        for node in nodes:
            if node in self._cursors:
                continue
            cursor = NodeCursor(self._store, self._job, node)
            if self._tail is not None and self._round == 0:
                cursor.seek_tail(self._tail)
            self._cursors[node] = cursor
            self._look_closely = True

    def news(self, *, last: bool) -> Iterator[Line]:
        closely, self._look_closely = last or self._look_closely, False
        lines = self._collect(closely)
        if self._round == 0 and self._tail is not None:
            lines = iter(deque(lines, maxlen=self._tail))
        yield from lines
        self._round += 1

    def failed(self) -> bool:
        """Whether some node could not be read this time. Raises what will not pass."""
        errors = [cursor.error for cursor in self._cursors.values() if cursor.error is not None]
        for error in errors:
            if not isinstance(error, StoreUnavailable):
                raise error
        self._look_closely = self._look_closely or bool(errors)
        return bool(errors)

    def finish(self) -> Iterator[Line]:
        for node in sorted(self._cursors):
            yield from self._cursors[node].finish()

    def _collect(self, closely: bool) -> Iterator[Line]:
        newest = max((node.attempt for node in self._cursors), default=0)
        earlier: list[NodeCursor] = []
        for attempt in sorted({node.attempt for node in self._cursors}):
            cursors = [self._cursors[node] for node in sorted(self._cursors) if node.attempt == attempt]
            due = [cursor for cursor in cursors if closely or attempt == newest or self._is_due(cursor.node)]
            spoke: set[NodeLog] = set()
            for line in _merge(self._noting(cursor, spoke, closely) for cursor in due):
                # Nobody goes on with a line of an attempt that fell silent while the next one speaks.
                for silent in earlier:
                    yield from silent.finish()
                earlier = []
                yield line
            for cursor in due:
                self._silent[cursor.node] = 0 if cursor.node in spoke else self._silent.get(cursor.node, 0) + 1
            earlier += [cursor for cursor in cursors if cursor.node not in spoke]

    def _is_due(self, node: NodeLog) -> bool:
        silent = self._silent.get(node, 0)
        return silent < _SELDOM_ROUNDS or self._round % _SELDOM_ROUNDS == 0

    @staticmethod
    def _noting(cursor: NodeCursor, spoke: set[NodeLog], closely: bool) -> Iterator[Line]:
        for line in cursor.read(look_closely=closely):
            spoke.add(cursor.node)
            yield line


def _whole(cursor: NodeCursor) -> Iterator[Line]:
    yield from cursor.lines()
    yield from cursor.finish()


def _merge(streams: Iterable[Iterator[Line]]) -> Iterator[Line]:
    return heapq.merge(*streams, key=lambda line: line.at)
