"""Simulate submissions, clones, removals and collections of one store beside each other, with seeded faults.

Submissions, removals and collectors are the real ones. They interleave at each of their calls of the store: there
another of them may run, a request that was given up may land, and the call itself may be given up or land twice.
Everything is old enough to be collected at once: ages spare nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import cast

from stoker.maintenance.delete import collect_shared, remove_job
from stoker.model import keys
from stoker.model.errors import StokerError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.log_entries import Ended, Record
from stoker.model.submission import Code
from stoker.store import job_index, job_log
from stoker.store.find_job import all_jobs
from stoker.submit.pack_code import PackedCode
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.send import send
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_checks import Violation
from tests.support.sim_data import CAPABILITIES, make_spec

_WRITES = ("put", "create", "delete")
# Actors inside actors.
_DEEPEST = 3
# Of one seed, so that it takes a fraction of a second.
_ACTS = 40
_MOST_JOBS = 5
_CONTENTS = (b"first", b"second")


@dataclass(frozen=True)
class _Archive:
    """Packed code that is on no disk."""

    data: bytes

    def read_bytes(self) -> bytes:
        return self.data


class CollectionWorld:
    """One store, and everybody who writes to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"collection {seed}")
        self._now = datetime.now(timezone.utc)
        # The next write asks for the store's time. All others were made long ago.
        self._asks_time = False
        self.store = MemoryStore(self._date, is_local=True)
        self.client = self.store.client(self._fault)
        self.late = self.random.choice((0.0, 0.02, 0.1))
        self.interleave = self.random.choice((0.02, 0.1, 0.3))
        self.pending: list[Callable[[], object]] = []
        self.depth = 0
        self.acts = 0
        self._checked: object = None
        self._codes: dict[tuple[str, str, str], Code | None] = {}
        self.trace: list[str] = []

    def run(self) -> None:
        """Raises Violation."""
        while self.acts < _ACTS:
            self._act()
            self._check()
        while self.pending:
            self._land()

    def _act(self) -> None:
        act = self.random.choice((self._submit, self._submit, self._clone, self._remove, self._collect, self._collect))
        if len(self._jobs()) > _MOST_JOBS:
            act = self._remove
        self.acts += 1
        self.depth += 1
        try:
            self.trace.append(f"{' ' * self.depth}{act.__name__}")
            act()
        except StokerError as error:
            self.trace.append(f"{' ' * self.depth}{act.__name__} gives up: {error}")
        finally:
            self.depth -= 1

    def _submit(self) -> None:
        data = self.random.choice(_CONTENTS)
        digest = hashlib.sha256(data).hexdigest()
        packed = PackedCode(cast(Path, _Archive(data)), digest, len(data), 1, None, None, ())
        send(PreparedJob(make_spec(), CAPABILITIES, (), (), packed=packed), self.client)

    def _clone(self) -> None:
        job = self._some_job()
        state = job_log.read(self.store, job) if job is not None else None
        if state is not None:
            code = job_index.read_submission(self.store, state).code
            send(PreparedJob(make_spec(), CAPABILITIES, (), (), code=code), self.client)

    def _remove(self) -> None:
        job = self._some_job()
        state = job_log.read(self.store, job) if job is not None else None
        if job is None or state is None:
            return
        if state.ended is None:
            record = Record(job_log.new_token(), "jane", "a person asked", Ended(outcome="stopped", rule="stop"))
            job_log.append(self.store, job, state.seq + 1, record)
        remove_job(self.client, job)

    def _collect(self) -> None:
        self.trace.append(f"{' ' * self.depth}{collect_shared(self.client, keys.CODE)} collected")

    def _some_job(self) -> str | None:
        jobs = self._jobs()
        # Ids are made up anew in every run: the order in which they came does not depend on them.
        return self.random.choice(jobs) if jobs else None

    def _jobs(self) -> list[str]:
        """Those with a log, in the order of their submission."""
        there = [job for job in all_jobs(self.store) if self.store.holds(keys.log_entry(job, 1))]
        entries = {job: self.store.get(keys.log_entry(job, 1)) for job in there}
        return sorted(there, key=lambda job: int(found.meta.etag, 16) if (found := entries[job]) is not None else 0)

    def _date(self) -> datetime:
        asks, self._asks_time = self._asks_time, False
        return self._now if asks else self._now - timedelta(days=3)

    # ── Faults ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fault(self, operation: str, key: str) -> Fault | None:
        if self.depth < _DEEPEST and self.acts < _ACTS and self.random.random() < self.interleave:
            self._act()
        if self.pending and self.random.random() < self.interleave:
            self._land()
        self._check()
        if operation in _WRITES and self.random.random() < self.late:
            self.trace.append(f"{' ' * self.depth}{operation} {key} is late")
            if self.random.random() < 0.5:
                return Fault(again=self.pending.append)
            return Fault(later=self.pending.append, error=StoreUnavailable("the reply was lost"))
        self._asks_time = operation == "put" and key.startswith(keys.PROBES)
        return None

    def _land(self) -> None:
        self.trace.append("a request lands late")
        self.pending.pop(self.random.randrange(len(self.pending)))()
        self._check()

    def _check(self) -> None:
        """The code of every job that is in the log is there, as its machines would fetch it."""
        there = self.store.changes
        if there == self._checked:
            return
        self._checked = there
        for job in self._jobs():
            state = job_log.read(self.store, job)
            code = self._code(state) if state is not None else None
            if code is None:
                continue
            found = self.store.get(keys.code(keys.shared_name(code.digest, code.generation)))
            if found is None:
                raise Violation(f"{job} is submitted, and its code is gone")
            if hashlib.sha256(found.data).hexdigest() != code.digest:
                raise Violation(f"{job} is submitted, and its code is not what was submitted")

    def _code(self, state: JobState) -> Code | None:
        """The code that a job names. Each version of a spec is read once for each digest in a log."""
        spec = self.store.head(keys.spec(state.job))
        if spec is None:
            return job_index.read_submission(self.store, state).code  # Raises what a governor would.
        version = (spec.key, spec.etag, state.spec_digest)
        if version not in self._codes:
            self._codes[version] = job_index.read_submission(self.store, state).code
        return self._codes[version]


def simulate_collection(seed: int) -> tuple[str | None, list[str]]:
    """Run one seed. Answers the violation, if there is one, and what happened."""
    world = CollectionWorld(seed)
    try:
        world.run()
    except Violation as error:
        return str(error), world.trace
    return None, world.trace


__all__ = ["CollectionWorld", "simulate_collection"]
