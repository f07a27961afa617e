"""Keep `index/` up to date: write a job's record when it tells something that lists show, and rarely otherwise.

On a bucket each write costs as much as a dozen reads, and most passes find nothing but new heartbeats. So the step and
the metrics of a record may be some minutes old, which it tells; of a few running jobs `ps` reads the heartbeats itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.summary import node_of, phase_of, summarize
from stoker.governor.observe import Memory
from stoker.model.errors import STUMBLES, StoreError
from stoker.model.job_state import JobState
from stoker.model.node_facts import NodeFacts
from stoker.model.observed import Known
from stoker.store import job_log, node_facts
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord, read_submission, write_index
from stoker.store.parallel import for_each

# While a job trains, its step and metrics in the record are at most so old. A folder costs nothing.
REFRESH_NEAR_S = 5.0
REFRESH_FAR_S = 60.0
# Where each record is paid for, no more than this are written to refresh them: of 300 jobs, each every 25 minutes.
_FAR_RECORDS_PER_S = 0.2
# Why a job waits is told in words that may change with every pass.
_WAITING_FAR_S = 60.0


@dataclass(frozen=True)
class _Written:
    """What the newest record tells, and when it was written by this governor's monotonic clock."""

    # The last entry of the log, the phase, and what each node does.
    what: tuple[object, ...]
    waiting: str
    # The heartbeats and exits that it rests on.
    told: tuple[object, ...]
    at_s: float


class Indexer:
    """Writes a job's index record when it would tell something new."""

    def __init__(self, store: Store, memory: Memory, monotonic: Callable[[], float]) -> None:
        self.store = store
        self.memory = memory
        self.monotonic = monotonic
        self._written: dict[str, _Written] = {}
        # The entry that the job's last record was written for.
        self._numbers: dict[str, int] = {}

    def update(self, job: JobSnapshot, waiting: str, now: datetime) -> None:
        """Write the record if the log moved on, what the nodes do has changed, or what it tells has grown old."""
        state = self.memory.states.get(job.state.job, job.state)
        # A job that was unmarked in this very pass is forgotten already, and its end must be told all the same.
        submission = self.memory.submissions.get(state.job) or read_submission(self.store, state)
        shown = _Written(
            what=(state.seq, phase_of(state, job.facts), *_doing(state, job.facts, now)),
            waiting=waiting,
            told=_told(job.facts),
            at_s=self.monotonic(),
        )
        before = self._written.get(state.job) or self._found(state, now)
        if not self._is_due(before, shown, ended=state.ended is not None):
            self._written.setdefault(state.job, before or shown)
            return
        told = dict(job.facts)
        for claim in state.attempts:
            if claim.number not in told:
                told[claim.number] = node_facts.read_claim(self.store, state.job, claim)
        while True:
            record = IndexRecord(state=state, summary=summarize(state, submission, told, now, waiting))
            write_index(self.store, record, written=self._numbers.get(state.job))
            self._numbers[state.job] = state.seq
            newer = job_log.read(self.store, state.job, state)
            if newer is None or newer.seq == state.seq:
                break
            # A rival moved on meanwhile, and perhaps wrote its last record before this one: put that right.
            state = newer
        self._written[state.job] = shown

    def update_all(self, jobs: list[JobSnapshot], waiting: dict[str, str], now: datetime) -> None:
        """Write the records of these jobs that tell something new. Raises nothing that the store or a record is the
        reason for: what is derived is written by the next pass, or by `stoker reindex`."""
        # A governor may run for months: what it knows of jobs that are over is dropped.
        for known in (self._written, self._numbers):
            for name in known.keys() - self.memory.states.keys():
                del known[name]

        def update(job: JobSnapshot) -> None:
            try:
                self.update(job, waiting.get(job.state.job, ""), now)
            except (StoreError, *STUMBLES):
                pass

        for_each(update, jobs, near=self.store.near)

    def _found(self, state: JobState, now: datetime) -> _Written | None:
        """The record that was there before this governor, which may make a single pass: it is written anew only when it
        tells something else, or is old."""
        record = self.memory.indexed.get(state.job)
        if record is None:
            return None
        found = record.summary
        opened = {claim.number for claim in state.open_claims}
        nodes = [node for attempt in found.attempts if attempt.claim in opened for node in attempt.nodes]
        age_s = (now - found.heard_at).total_seconds() if found.heard_at is not None else 0.0
        return _Written(
            what=(record.state.seq, found.phase, *((node.phase, node.warnings) for node in nodes)),
            waiting=found.reason,
            told=(),
            at_s=self.monotonic() - max(0.0, age_s),
        )

    def _is_due(self, before: _Written | None, shown: _Written, *, ended: bool) -> bool:
        if before is None or before.what != shown.what:
            return True
        age_s = shown.at_s - before.at_s
        if before.waiting != shown.waiting and (self.store.near or age_s >= _WAITING_FAR_S):
            return True
        return not ended and before.told != shown.told and age_s >= self._refresh_s()

    def _refresh_s(self) -> float:
        if self.store.near:
            return REFRESH_NEAR_S
        return max(REFRESH_FAR_S, len(self.memory.states) / _FAR_RECORDS_PER_S)


def _doing(state: JobState, told: dict[int, tuple[NodeFacts, ...]], now: datetime) -> list[object]:
    """What each node of an open attempt does, and what people should know of it, as its record tells it."""
    opened = [claim for claim in state.open_claims if claim.launched is not None]
    nodes = [node_of(node, told.get(claim.number, ()), now) for claim in opened for node in claim.launched or ()]
    return [(node.phase, node.warnings) for node in nodes]


def _told(told: dict[int, tuple[NodeFacts, ...]]) -> tuple[object, ...]:
    nodes = [fact for number in sorted(told) for fact in told[number]]
    parts = [part for fact in nodes for part in (fact.heartbeat, fact.exit)]
    return tuple(part.value.etag if isinstance(part, Known) and part.value is not None else None for part in parts)
