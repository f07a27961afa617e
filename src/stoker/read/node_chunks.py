"""Locate the chunks of a node's log, and fetch many of them at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.store.base import Meta, Store
from stoker.store.log_chunks import MAX_READ_BYTES, find_chunk

# A bucket answers many requests at a time, each in tens of milliseconds. So many chunks of 4 MB are held at most.
_AHEAD = 8
# Prefix of lines that a machine printed before it had an agent.
BOOT = "[boot] "
_MOST_BOOT_BYTES = 1024 * 1024


@dataclass(frozen=True, order=True)
class NodeLog:
    """Names one node of one attempt: the `attempt` for people, its `claim`, and the instance that wrote."""

    attempt: int
    claim: int
    rank: int
    instance: str


@dataclass(frozen=True)
class Chunk:
    """One chunk. `data` is None when it is larger than any that an agent writes."""

    n: int
    data: bytes | None


def node_logs(state: JobState, rank: int | None = None, attempt: int | None = None) -> list[NodeLog]:
    """The nodes whose logs make up the job's log; only those of a rank or an attempt, where named."""
    return [
        NodeLog(attempt=claim.attempt, claim=claim.number, rank=node.rank, instance=node.instance)
        for claim in state.attempts
        for node in claim.launched or ()
        if claim.attempt is not None and rank in (None, node.rank) and attempt in (None, claim.attempt)
    ]


def check_selection(
    state: JobState,
    nodes: int,
    *,
    rank: int | None = None,
    attempt: int | None = None,
    tail: int | None = None,
    following: bool = False,
    dashes: str = "",
) -> None:
    """Raise UserError for a node or an attempt that the job, which has `nodes` nodes, does not have.

    A later attempt can be followed. `dashes` are what the names of the values begin with in the message.
    """
    if rank is not None and not 0 <= rank < nodes:
        has = "only node 0" if nodes == 1 else f"nodes 0 to {nodes - 1}"
        raise UserError(f"{dashes}node {rank}: {state.job} has {has}")
    made = len(state.attempts)
    if attempt is not None and (attempt < 1 or (attempt > made and not following)):
        raise UserError(f"{dashes}attempt {attempt}: {state.job} has had {made} attempt{'s' * (made != 1)} so far")
    if tail is not None and tail < 0:
        raise UserError(f"{dashes}tail {tail}: give the number of last lines, 0 or more")


def boots(store: Store, job: str, node: NodeLog) -> list[str]:
    """The folders of the agent's starts on this instance, oldest first."""
    above = keys.node(job, node.claim, node.rank, "")
    found = []
    for name in store.folders(above):
        instance, _, n = name.rpartition(".")
        if instance == node.instance and n.isdecimal() and len(n) < 10:
            found.append((int(n), above + name))
    return [folder for _, folder in sorted(found)]


def boot_lines(store: Store, folder: str) -> tuple[float, list[str]] | None:
    """The output of a machine that could not start an agent, and its time (unix seconds); None if there is none."""
    key = keys.boot_output(folder)
    meta = store.head(key)
    if meta is None:
        return None
    # Far more than any boot prints. The end of it counts.
    data = store.get_from(key, max(0, meta.size - _MOST_BOOT_BYTES)) or b""
    return meta.modified.timestamp(), output_lines(data.decode("utf-8", "replace"))


def output_lines(output: str) -> list[str]:
    """The lines of a boot's output or a console, marked as not being output of the training."""
    return [f"{BOOT}{line.rstrip()}" for line in output.splitlines() if line.strip()]


def fetch_chunks(store: Store, rows: Sequence[tuple[int, Meta]]) -> Iterator[Chunk]:
    """Get listed objects in order, several at a time from a far store. Deleted ones are left out."""
    if store.is_local or len(rows) < 3:
        for n, meta in rows:
            chunk = _fetch(store, n, meta)
            if chunk is not None:
                yield chunk
        return
    waiting: deque[Future[Chunk | None]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="chunks") as pool:
        left = iter(rows)
        try:
            while True:
                while len(waiting) < _AHEAD and (row := next(left, None)) is not None:
                    waiting.append(pool.submit(_fetch, store, *row))
                if not waiting:
                    return
                chunk = waiting.popleft().result()
                if chunk is not None:
                    yield chunk
        finally:
            for future in waiting:
                future.cancel()


def _fetch(store: Store, n: int, meta: Meta) -> Chunk | None:
    if meta.size > MAX_READ_BYTES:
        return Chunk(n, None)
    data = store.get_from(meta.key, 0)
    if data is None:
        # The chunk has grown since it was listed, and the listed version is deleted.
        prefix = meta.key.rpartition("/")[0].rpartition("/")[0]
        newer = find_chunk(store, f"{prefix}/", n)
        data = store.get_from(newer.key, 0) if newer is not None and newer.size <= MAX_READ_BYTES else None
    return None if data is None else Chunk(n, data)
