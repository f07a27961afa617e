"""Keep `index/` up to date: write a job's record when something changes that lists show, and rarely otherwise.

On a bucket each write costs as much as a dozen reads, and most passes find nothing but new heartbeats. So the step and
the metrics of a record may be some minutes old; the record says how old. `ps` reads the heartbeats of a few running
jobs itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.summary import phase_of, summarize, summarize_node
from stoker.governor.observe import Memory
from stoker.model.job_state import JobState
from stoker.model.node_facts import NodeFacts
from stoker.model.observed import Known
from stoker.store import job_log, node_facts
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord, read_submission, write_index
from stoker.store.parallel import read_each

# The maximum age of the step and metrics in the record of a training job. Writes to a folder cost nothing.
REFRESH_NEAR_S = 5.0
REFRESH_FAR_S = 60.0
# The maximum rate of refreshes in a bucket, where each write costs money: with 300 jobs, each every 25 minutes.
_FAR_RECORDS_PER_S = 0.2
# The reason why a job waits may change with every pass; it is written no more often than this.
_WAITING_FAR_S = 60.0


@dataclass(frozen=True)
class _WrittenRecord:
    """The content of the newest record, and when it was written by this governor's monotonic clock."""

    # The last entry of the log, the phase, and the phase and warnings of each node.
    phases: tuple[object, ...]
    waiting: str
    # The heartbeats and exits that it was made from.
    etags: tuple[object, ...]
    at_s: float


class IndexWriter:
    """Writes a job's index record when its content changes."""

    def __init__(self, store: Store, memory: Memory, monotonic: Callable[[], float]) -> None:
        self.store = store
        self.memory = memory
        self.monotonic = monotonic
        self._written: dict[str, _WrittenRecord] = {}
        # The entry that the job's last record was written for.
        self._numbers: dict[str, int] = {}

    def update(self, job: JobSnapshot, waiting: str, now: datetime) -> None:
        """Write the record if the log has new entries, a node's phase has changed, or the record is old."""
        state = self.memory.states.get(job.state.job, job.state)
        # A job that was unmarked in this pass is no longer in memory, and its end must be written all the same.
        submission = self.memory.submissions.get(state.job) or read_submission(self.store, state)
        shown = _WrittenRecord(
            phases=(state.seq, phase_of(state, job.facts), *_node_phases(state, job.facts, now)),
            waiting=waiting,
            etags=_etags(job.facts),
            at_s=self.monotonic(),
        )
        before = self._written.get(state.job) or self._from_index(state, now)
        if not self._is_due(before, shown, ended=state.ended is not None):
            self._written.setdefault(state.job, before or shown)
            return
        facts = dict(job.facts)
        for claim in state.attempts:
            if claim.number not in facts:
                facts[claim.number] = node_facts.read_claim(self.store, state.job, claim)
        while True:
            record = IndexRecord(state=state, summary=summarize(state, submission, facts, now, waiting))
            write_index(self.store, record, written=self._numbers.get(state.job))
            self._numbers[state.job] = state.seq
            newer = job_log.read(self.store, state.job, state)
            if newer is None or newer.seq == state.seq:
                break
            # Another governor appended meanwhile, and perhaps wrote its record before this one: write a newer one.
            state = newer
        self._written[state.job] = shown

    def update_all(self, jobs: list[JobSnapshot], waiting: dict[str, str], now: datetime) -> None:
        """Write the records of these jobs that have changed. Raises no error of the store or of a record: the index is
        derived, and the next pass or `stoker reindex` writes it."""
        # A governor may run for months: drop the entries of jobs that are over.
        for known in (self._written, self._numbers):
            for name in known.keys() - self.memory.states.keys():
                del known[name]

        def update(job: JobSnapshot) -> None:
            try:
                self.update(job, waiting.get(job.state.job, ""), now)
            except Exception:  # noqa: BLE001 - the record is derived: the next pass or `stoker reindex` writes it
                pass

        read_each(update, jobs, is_local=self.store.is_local)

    def _from_index(self, state: JobState, now: datetime) -> _WrittenRecord | None:
        """The record from before this governor, which may make a single pass only: it is rewritten only when it differs
        or is old."""
        record = self.memory.indexed.get(state.job)
        if record is None:
            return None
        found = record.summary
        opened = {claim.number for claim in state.open_claims}
        nodes = [node for attempt in found.attempts if attempt.claim in opened for node in attempt.nodes]
        age_s = (now - found.heard_at).total_seconds() if found.heard_at is not None else 0.0
        return _WrittenRecord(
            phases=(record.state.seq, found.phase, *((node.phase, node.warnings) for node in nodes)),
            waiting=found.reason,
            etags=(),
            at_s=self.monotonic() - max(0.0, age_s),
        )

    def _is_due(self, before: _WrittenRecord | None, shown: _WrittenRecord, *, ended: bool) -> bool:
        if before is None or before.phases != shown.phases:
            return True
        age_s = shown.at_s - before.at_s
        if before.waiting != shown.waiting and (self.store.is_local or age_s >= _WAITING_FAR_S):
            return True
        return not ended and before.etags != shown.etags and age_s >= self._refresh_s()

    def _refresh_s(self) -> float:
        if self.store.is_local:
            return REFRESH_NEAR_S
        return max(REFRESH_FAR_S, len(self.memory.states) / _FAR_RECORDS_PER_S)


def _node_phases(state: JobState, facts: dict[int, tuple[NodeFacts, ...]], now: datetime) -> list[object]:
    """The phase and the warnings of each node of an open attempt, as the record holds them."""
    opened = [claim for claim in state.open_claims if claim.launched is not None]
    nodes = [
        summarize_node(node, facts.get(claim.number, ()), now) for claim in opened for node in claim.launched or ()
    ]
    return [(node.phase, node.warnings) for node in nodes]


def _etags(facts: dict[int, tuple[NodeFacts, ...]]) -> tuple[object, ...]:
    nodes = [fact for number in sorted(facts) for fact in facts[number]]
    parts = [part for fact in nodes for part in (fact.heartbeat, fact.exit)]
    return tuple(part.value.etag if isinstance(part, Known) and part.value is not None else None for part in parts)
