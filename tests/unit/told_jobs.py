"""Logs of jobs to tell of."""

from __future__ import annotations

from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record, Submitted
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.store.base import Store
from tests.support.sim_data import SPOT_A


def submit(store: Store, job: str, spec: Spec) -> None:
    """A job with a log, as it is in the store."""
    data = codec.dumps(Submission(job=job, spec=spec, submitter="jane"))
    store.put(keys.spec(job), data)
    store.put(keys.active(job, 1), b"")
    append(store, job, 1, Submitted(spec_digest=codec.digest(data), submitter="jane"))


def append(store: Store, job: str, seq: int, *events: Event) -> int:
    """Entries from a number on. Answers the number of the next."""
    for number, event in enumerate(events, seq):
        job_log.append(store, job, number, Record(job_log.new_token(), "test", f"{event.kind} at {number}", event))
    return seq + len(events)


def started(store: Store, job: str) -> int:
    return append(store, job, 2, Claimed(offering=SPOT_A, nodes=1), Launched(2, (NodeRef(0, f"i-{job}"),)))


def finished(store: Store, job: str, seq: int = 4) -> int:
    return append(store, job, seq, Ended(outcome="succeeded", rule="finished", claim=2))
