"""The cost of ten thousand jobs for commands that read all of them."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from bench.fabricate import ACTIVE, Machines, active_names, active_objects, beat, make_jobs, name_of
from bench.figures import Figure, Measurement, Size
from bench.sandbox import Sandbox, sandbox
from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor
from stoker.maintenance.reindex import reindex
from stoker.store.base import open_store
from stoker.testing.memory_store import MemoryStore

REPEATS = 5
MEMORY_BYTES = 300_000_000
READ_S = 0.005


def ten_thousand(size: Size) -> dict[str, float]:
    """Over 10,000 jobs of which 100 train: a whole pass of a governor that remembers nothing, and `stoker ps` as a
    command of its own; medians. The store is a folder in memory."""
    passed_s, listed_s = _measured(size.choose(10_000, 300), size)
    return {"pass_10k_s": passed_s, "ps_10k_s": listed_s}


def one_thousand(size: Size) -> dict[str, float]:
    """The same over 1,000 jobs of which 100 train, to show the growth."""
    passed_s, listed_s = _measured(size.choose(1_000, 150), size)
    return {"pass_1k_s": passed_s, "ps_1k_s": listed_s}


def _measured(count: int, size: Size) -> tuple[float, float]:
    # In memory, where there is room: what is read lies in the page cache either way, and making so many files takes a
    # disk from one second to a minute, depending on what was deleted there before.
    with sandbox(memory_bytes=MEMORY_BYTES) as place:
        root = Path(place.store.removeprefix("file://"))
        make_jobs(root, count)
        repeats = size.choose(REPEATS, 1)
        passes = [_pass_s(place, root, count) for _ in range(repeats)]
        return median(passes), median(_ps_s(place) for _ in range(repeats))


def _pass_s(place: Sandbox, root: Path, count: int) -> float:
    machines = Machines(active_names(count))
    beat(root, count)
    began_s = time.monotonic()
    done = Governor(open_store(place.store), Fleet(place.store, connect=lambda _name: machines)).run_pass()
    took_s = time.monotonic() - began_s
    if done.active != ACTIVE or done.actions or done.problems:
        raise RuntimeError(f"{done.active} active, did {done.actions[:3]}, problems {done.problems}")
    return took_s


def _ps_s(place: Sandbox) -> float:
    began_s = time.monotonic()
    shown = place.stoker("ps")
    took_s = time.monotonic() - began_s
    if shown.count("running") != ACTIVE or shown.count("succeeded") == 0:
        raise RuntimeError(f"ps shows something else: {shown[:500]}")
    return took_s


def far_reindex(size: Size) -> dict[str, float]:
    """`stoker reindex` of 200 jobs in a bucket that takes 5 ms for each read, over the time that its reads would take
    one after another."""
    jobs = [name_of(n) for n in range(size.choose(200, 5))]
    reads = 0
    lock = threading.Lock()

    def answer(operation: str, _key: str) -> None:
        nonlocal reads
        if operation in ("get", "head", "list"):
            with lock:
                reads += 1
            time.sleep(READ_S)

    store = MemoryStore(lambda: datetime.now(timezone.utc))
    for key, data in active_objects(jobs).items():
        store.put(key, data)
    store.faults = answer
    began_s = time.monotonic()
    done = reindex(store)
    took_s = time.monotonic() - began_s
    if done.jobs != len(jobs) or done.problems:
        raise RuntimeError(f"{done.jobs} jobs, problems {done.problems}")
    return {"reindex_ratio": took_s / (reads * READ_S)}


MEASUREMENTS = (
    Measurement((Figure("pass_10k_s", "s", 1.0), Figure("ps_10k_s", "s", 0.5)), ten_thousand),
    Measurement((Figure("pass_1k_s", "s"), Figure("ps_1k_s", "s")), one_thousand),
    Measurement((Figure("reindex_ratio", "×", 0.25),), far_reindex),
)
