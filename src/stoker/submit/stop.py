"""Ask a job to stop."""

from __future__ import annotations

from stoker.core.hold import hold_of
from stoker.governor.observe import active_jobs
from stoker.model.job_state import JobState
from stoker.model.log_entries import Event, StopAsked
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.submit.identity import user_at_host
from stoker.submit.submitted_state import read_state, require_state


def ask_to_stop(job: str, store: Store) -> bool:
    """Record the request to save and end, or to give back the held machine of an ended job. Idempotent.

    The caller ensures that a governor acts on it. False: the job had ended already, and no machine is held.
    """
    me = user_at_host()

    def wanted(newest: JobState | None) -> tuple[Event, str] | None:
        state = require_state(job, newest)
        if state.stop or (state.ended and not may_be_held(store, state)):
            return None
        reason = f"the machine is given back by {me}" if state.ended else f"stopped by {me}"
        return StopAsked(by=me), reason

    before = read_state(store, job)
    job_log.append_next(store, job, before, wanted, me)
    return before.ended is None or may_be_held(store, before)


def may_be_held(store: Store, state: JobState) -> bool:
    """True if a machine of this ended job may still be held for inspection."""
    hold = hold_of(state, job_index.read_submission(store, state).spec)
    return hold is not None and bool(active_jobs(store).get(state.job))
