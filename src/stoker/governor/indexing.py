"""Keep `index/` fresh: after every change of a job, and now and then while it trains."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker import facts, log
from stoker.core.snapshot import JobSnapshot
from stoker.governor.observe import Memory
from stoker.index import IndexRecord, read_submission, write_index
from stoker.store import Store
from stoker.summary import phase_of, summarize

# While a job trains, its step and metrics in lists are at most so old.
REFRESH_S = 5.0
# But where each record is a call that is paid for, no more than this are written: of a thousand jobs, each is told of
# every five minutes. What it says of its age is true all the same.
_FAR_RECORDS_PER_S = 3.0


class Indexer:
    """Writes a job's index record when it would tell something new."""

    def __init__(self, store: Store, memory: Memory, monotonic: Callable[[], float]) -> None:
        self.store = store
        self.memory = memory
        self.monotonic = monotonic
        self._written: dict[str, tuple[object, float]] = {}
        # The entry that the job's last record was written for.
        self._numbers: dict[str, int] = {}

    def update(self, job: JobSnapshot, waiting: str, now: datetime) -> None:
        """Write the record if the log moved on, the phase changed, or it has grown old."""
        state = self.memory.states.get(job.state.job, job.state)
        # A job that was unmarked in this very pass is forgotten already, and its end must be told all the same.
        submission = self.memory.submissions.get(state.job) or read_submission(self.store, state)
        what = (state.seq, phase_of(state, job.facts), waiting)
        seen, at_s = self._written.get(state.job, (None, 0.0))
        if seen == what and (state.ended is not None or self.monotonic() - at_s < self._refresh_s()):
            return
        told = dict(job.facts)
        for claim in state.attempts:
            if claim.number not in told:
                told[claim.number] = facts.read_claim(self.store, state.job, claim)
        while True:
            record = IndexRecord(state=state, summary=summarize(state, submission, told, now, waiting))
            write_index(self.store, record, written=self._numbers.get(state.job))
            self._numbers[state.job] = state.seq
            newer = log.read(self.store, state.job, state)
            if newer is None or newer.seq == state.seq:
                break
            # A rival moved on meanwhile, and perhaps wrote its last record before this one: put that right.
            state = newer
        self._written[state.job] = (what, self.monotonic())

    def _refresh_s(self) -> float:
        return REFRESH_S if self.store.near else max(REFRESH_S, len(self.memory.states) / _FAR_RECORDS_PER_S)
