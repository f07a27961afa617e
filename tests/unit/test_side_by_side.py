"""Who reads everything reads many things at once, in order, and no more at once than is meant."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone

import pytest
from bench.fabricate import active_objects, name_of

from stoker.maintenance.reindex import reindex
from stoker.model import keys
from stoker.model.errors import StoreDenied
from stoker.read.job_list import list_jobs
from stoker.store import job_index
from stoker.store.parallel import each_in_order
from stoker.testing.memory_store import Fault, MemoryStore

WORKERS = 8
# Reads that are made at the same time, at least.
AT_ONCE = 16


class Slow:
    """A bucket that answers no read until `AT_ONCE` are under way, and counts how many are."""

    def __init__(self, jobs: int, *, ended: bool = False) -> None:
        self.most = self.under_way = self.reads = 0
        self.looked_for: list[str] = []
        self._changed = threading.Condition()
        self._waits = True
        self.jobs = [name_of(n) for n in range(jobs)]
        self.store = MemoryStore(lambda: datetime.now(timezone.utc))
        for key, data in active_objects(self.jobs).items():
            if not (ended and key.startswith(keys.ACTIVE)):
                self.store.put(key, data)
        self.store.faults = self._answer
        self.broken: str | None = None

    def _answer(self, operation: str, key: str) -> Fault | None:
        if self.broken is not None and f"/{self.broken}/" in key and operation == "get":
            return Fault(error=StoreDenied("no"))
        if operation == "head":
            self.looked_for.append(key)
        if operation in ("get", "head") and not key.startswith(keys.PROBES):
            with self._changed:
                self.under_way += 1
                self.reads += 1
                self.most = max(self.most, self.under_way)
                self._changed.notify_all()
                # A caller that reads one object after another never gets there: it waits once, and not for each read.
                if self._waits and not self._changed.wait_for(lambda: self.most >= AT_ONCE, timeout=10.0):
                    self._waits = False
                self.under_way -= 1
        return None


def test_reindex_reads_side_by_side() -> None:
    slow = Slow(100)
    progress: list[int] = []
    done = reindex(slow.store, lambda number, _of: progress.append(number))
    assert (done.jobs, done.problems) == (100, {})
    assert AT_ONCE <= slow.most <= 32
    assert progress == list(range(1, 101))
    assert len(job_index.list_index(slow.store)) == 100


def test_reindex_looks_for_no_log_that_it_has_read() -> None:
    slow = Slow(20)
    reindex(slow.store)
    assert not [key for key in slow.looked_for if key.startswith(keys.JOBS)]


def test_one_job_that_cannot_be_read_keeps_no_other_from_it() -> None:
    slow = Slow(40)
    slow.broken = slow.jobs[11]
    done = reindex(slow.store)
    assert done.jobs == 39 and list(done.problems) == [slow.jobs[11]]


def test_ps_of_everything_reads_side_by_side() -> None:
    slow = Slow(100, ended=True)
    listed = list_jobs(slow.store)
    assert len(listed.summaries) == 100
    assert AT_ONCE <= slow.most <= 32
    assert slow.reads <= 102, "one record for each job"


# ── One after another, for the caller ─────────────────────────────────────────────────────────────────────────────────


def test_results_come_in_order_and_few_are_kept() -> None:
    ahead, lock, done = [0], threading.Lock(), [0]

    def call(number: int) -> int:
        time.sleep(0.001 * (number % 5))
        with lock:
            done[0] += 1
        return number

    for count, result in enumerate(each_in_order(call, range(300), WORKERS)):
        assert result == count
        with lock:
            ahead[0] = max(ahead[0], done[0] - count)
    assert ahead[0] <= 2 * WORKERS + 1, "memory does not grow with how many there are"


def test_an_error_is_raised_in_its_turn_and_ends_the_rest() -> None:
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 5:
            raise ValueError("five")
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match="five"):
        found.extend(each_in_order(call, range(1000), WORKERS))
    assert len(begun) < 100


def test_nothing_to_do_is_done_at_once() -> None:
    assert list(each_in_order(lambda number: number, [], WORKERS)) == []
