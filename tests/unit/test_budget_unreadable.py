"""Jobs that a governor cannot read, or not now: which budgets they leave unknown."""

from __future__ import annotations

import json

import pytest
from test_known_money import put_job, settings

from stoker.core.summary import summarize
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.observe import Memory
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.model.log_entries import Claimed, Launched
from stoker.model.observed import Known, Unknown
from stoker.model.submission import Submission
from stoker.store import job_log
from stoker.store.job_index import IndexRecord, read_submission, write_index
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import EPOCH, ON_DEMAND, at, make_spec, nodes

HOUR = 3600.0
POLICY = settings("name: money, budget: {dollars: 10, period: day}").policy
JOBS = ("bad-1", "job-1")


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore(lambda: EPOCH)
    put_job(made, "job-1", make_spec())
    put_job(made, "bad-1", make_spec(), Claimed(ON_DEMAND, 1), Launched(2, nodes(2)))
    return made


@pytest.mark.parametrize("error", [StoreUnavailable("did not answer"), StoreDenied("not allowed")])
@pytest.mark.parametrize("part", [keys.log_entry("bad-1", 1), keys.spec("bad-1")])
def test_where_one_job_is_not_answered_for_the_whole_sum_is_unknown(
    store: MemoryStore, error: StoreError, part: str
) -> None:
    if part == keys.spec("bad-1"):
        store.put(keys.log_entry("bad-1", 4), b"garbage")
    tracker = BudgetTracker(store.client(lambda _, key: Fault(error=error) if key == part else None), Memory())
    tracker.begin(JOBS)
    assert tracker.read_state(POLICY, at(HOUR)) == Unknown(str(error))


def test_a_job_of_a_newer_stoker_is_one_that_cannot_be_read(store: MemoryStore) -> None:
    key = keys.log_entry("bad-1", 3)
    found = store.get(key)
    assert found is not None
    store.put(key, json.dumps(json.loads(found.data) | {"min_version": 99}).encode())
    tracker = BudgetTracker(store, Memory())
    tracker.begin(JOBS)
    state = tracker.read_state(POLICY, at(HOUR))
    assert isinstance(state, Known)
    assert [(each.job, each.why) for each in state.value.unreadable] == [
        ("bad-1", "bad-1: a newer Stoker governs it; update this one")
    ]


def test_the_tags_of_an_unreadable_job_are_remembered(store: MemoryStore) -> None:
    store.put(keys.log_entry("bad-1", 4), b"garbage")
    store.delete([keys.spec("bad-1")])
    tracker = BudgetTracker(store, Memory())
    seen = []
    for known in (False, True):
        if known:
            tracker.memory.submissions["bad-1"] = Submission("bad-1", make_spec(), "jane")
        tracker.begin(JOBS)
        state = tracker.read_state(POLICY, at(HOUR))
        assert isinstance(state, Known)
        seen += [each.tags for each in state.value.unreadable]
    assert seen == [None, {}]


@pytest.mark.parametrize(("whole", "spent"), [(True, 3.0), (False, 0.0)])
def test_a_pass_over_all_jobs_reads_the_log_and_not_the_record_of_an_unknown_job(whole: bool, spent: float) -> None:
    store = MemoryStore(lambda: EPOCH)
    put_job(store, "job-1", make_spec())
    state = job_log.read(store, "job-1")
    assert state is not None
    write_index(store, IndexRecord(state, summarize(state, read_submission(store, state), {}, EPOCH)))
    for event in (Claimed(ON_DEMAND, 1), Launched(2, nodes(2))):
        job_log.append_next(store, "job-1", None, lambda _state, event=event: (event, "for the test"), "jane")  # type: ignore[misc]
    tracker = BudgetTracker(store, Memory())
    tracker.begin(("job-1",), whole=whole)
    found = tracker.read_state(POLICY, at(HOUR))
    assert isinstance(found, Known)
    status = found.value.statuses.get(("money", ""))
    assert (status.spent if status is not None else 0.0) == pytest.approx(spent)
