"""Training jobs of others in short: phases, what is kept, what is looked at again, and how lists sum them up."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from stoker.external_jobs import chain_log, index_rows
from stoker.external_jobs.aws_account import TrainingJobSummary
from stoker.external_jobs.clone_chain import ChainRecord, Stopping
from stoker.external_jobs.govern import _with_alarm_problems
from stoker.external_jobs.index_rows import is_due
from stoker.external_jobs.notifications import ExternalJobNotifier
from stoker.governor.serverless.external_jobs import ExternalJobsResult
from stoker.model import codec, keys
from stoker.model.policy import Policy
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store import external_job_index
from stoker.store.external_job_index import ExternalJobIndex, ExternalJobRow
from stoker.testing.memory_store import MemoryStore

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=timezone.utc)
POLICY = parse_policy(b"sagemaker: {regions: [us-east-1]}", "p")
ROW = ExternalJobRow(
    "bert", "us-east-1", "bert", "InProgress", "Training", NOW, NOW, modified_at=NOW, policy=POLICY.digest
)
REQUIRED = ("name", "region", "origin", "status", "secondary", "created_at", "looked_at")
LISTED = TrainingJobSummary("bert", "InProgress", "Training", NOW)


@pytest.mark.parametrize(
    ("status", "secondary", "phase", "outcome"),
    [
        ("InProgress", "Training", "running", None),
        ("InProgress", "Uploading", "running", None),
        ("InProgress", "Starting", "launching", None),
        ("InProgress", "Interrupted", "launching", None),
        ("Stopping", "Training", "stopping", None),
        ("Deleting", "Training", "stopping", None),
        ("Completed", "Completed", "succeeded", "succeeded"),
        ("Failed", "Failed", "failed", "failed"),
        ("Stopped", "Stopped", "stopped", "stopped"),
    ],
)
def test_a_status_is_told_as_a_phase(status: str, secondary: str, phase: str, outcome: str | None) -> None:
    row = replace(ROW, status=status, secondary=secondary)
    found = index_rows.summary(row)
    assert (row.phase, found.phase, found.outcome) == (phase, phase, outcome)


def test_a_row_that_tells_little_is_read_with_little_assumed() -> None:
    text = codec.dumps(ExternalJobRow("a", "us-east-1", "a", "InProgress", "Training", NOW, NOW, nodes=2, spot=True))
    known = {name: value for name, value in json.loads(text).items() if name in REQUIRED}
    row = codec.loads(ExternalJobRow, json.dumps(known).encode())
    assert (row.nodes, row.spot, row.trained_s, row.interruptions, row.seq) == (1, False, 0.0, 0, 0)
    assert (row.settled, row.own, row.cost, row.gpus) == (False, False, None, None)


def test_lists_tell_whose_it_is_and_where_it_comes_from() -> None:
    found = index_rows.summary(replace(ROW, role="jane", note="asked to stop", origin="first", trained_s=5.0, cost=2.0))
    assert found.reason == "SageMaker us-east-1, jane: asked to stop" and found.origin == "first"
    assert (found.trained_s, found.cost, found.heard_at, found.submitter) == (5.0, 2.0, NOW, "jane")
    assert found.attempts[0].n == 1 and found.attempts[0].claim == 0 and found.attempts[0].trained_s == 5.0
    assert found.provider == found.attempts[0].provider == "sagemaker" and found.attempts[0].zone == ROW.region
    assert (found.nodes, found.interruptions, found.attempts[0].spot) == (1, 0, False)
    bare = index_rows.summary(replace(ROW, ended_at=NOW))
    assert bare.reason == "SageMaker us-east-1" and bare.origin is None and bare.heard_at is None


def test_only_regions_that_are_governed_are_told_of_and_not_our_own_jobs() -> None:
    store = MemoryStore(lambda: NOW)
    versions.write(store, "sagemaker: {regions: [us-east-1]}", "jane")
    rows = {"bert": ROW, "mine": replace(ROW, name="mine", own=True)}
    external_job_index.write(store, "us-east-1", rows, NOW)
    external_job_index.write(store, "eu-west-1", {"old": replace(ROW, name="old")}, NOW)
    assert [each.id for each in index_rows.summaries(store)] == ["bert"]
    versions.write(store, "rules: []", "jane")
    assert index_rows.summaries(store) == []


def test_an_index_that_cannot_be_read_is_empty() -> None:
    store = MemoryStore(lambda: NOW)
    assert external_job_index.read(store, "us-east-1") == ExternalJobIndex()
    store.put(keys.external_job_index("us-east-1"), b"[]")
    assert external_job_index.read(store, "us-east-1") == ExternalJobIndex()


def test_those_that_ended_long_ago_are_forgotten_beyond_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_job_index, "_MOST_ENDED", 1)
    store = MemoryStore(lambda: NOW)

    def ended(name: str, hours: float) -> ExternalJobRow:
        moment = NOW - timedelta(hours=hours)
        return replace(ROW, name=name, created_at=moment, modified_at=None, ended_at=moment)

    old = replace(ROW, name="runs", created_at=NOW - timedelta(days=9), modified_at=None)
    rows = [ended("newest", 30), ended("listed", 31), ended("gone", 40), old]
    late = [ended("a", 1), ended("b", 25), ended("c", 25.1)]
    external_job_index.write(store, "r", {row.name: row for row in rows}, NOW)
    assert external_job_index.read(store, "r").rows.keys() == {"newest", "runs"}
    external_job_index.write(store, "r", {row.name: row for row in late}, NOW)
    assert external_job_index.read(store, "r").rows.keys() == {"a", "b"}, "what is listed yet is kept, however many"


def test_a_few_that_ended_days_ago_are_still_listed() -> None:
    store, moment = MemoryStore(lambda: NOW), NOW - timedelta(days=3)
    old = [replace(ROW, name=f"j{n}", created_at=moment, modified_at=moment, ended_at=moment) for n in range(100)]
    external_job_index.write(store, "r", {row.name: row for row in old}, NOW)
    assert len(external_job_index.read(store, "r").rows) == 100


def test_a_row_changed_when_anything_of_it_did() -> None:
    earlier, later = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    assert external_job_index._changed_at(replace(ROW, created_at=earlier, modified_at=NOW)) == NOW
    assert external_job_index._changed_at(replace(ROW, created_at=earlier, modified_at=None)) == earlier
    assert external_job_index._changed_at(replace(ROW, ended_at=later)) == later


@pytest.mark.parametrize(
    ("row", "due"),
    [
        (None, True),
        (ROW, True),
        (replace(ROW, look_at=NOW), True),
        (replace(ROW, look_at=NOW + timedelta(seconds=1)), False),
        (replace(ROW, look_at=NOW, settled=True), False),
        (replace(ROW, settled=True, policy="another"), True),
        (replace(ROW, settled=True, secondary="Uploading"), True),
        (replace(ROW, settled=True, status="Stopped"), True),
        (replace(ROW, settled=True, modified_at=None), True),
    ],
)
def test_a_job_is_looked_at_again_when_it_may_have_changed(row: ExternalJobRow | None, due: bool) -> None:
    assert is_due(row, LISTED, POLICY, NOW) is due


def test_a_job_whose_alarms_could_not_be_set_is_looked_at_again_also_where_it_is_over() -> None:
    soon, looked = NOW + timedelta(minutes=1), ExternalJobsResult()
    found = _with_alarm_problems(replace(ROW, look_at=soon), {"alarm": "not allowed"}, looked)
    assert found.look_at == soon and found.note == looked.problems["bert"] == "1 alarms could not be set: not allowed"
    over = _with_alarm_problems(replace(ROW, settled=True, note="over"), {"alarm": "not allowed"}, looked)
    assert (
        not over.settled and over.look_at is not None and over.look_at > NOW and over.note.startswith("over; 1 alarm")
    )
    assert _with_alarm_problems(ROW, {}, looked) == ROW


# ── What is told of them ──────────────────────────────────────────────────────────────────────────────────────────────

NOTIFY = parse_policy(b"sagemaker: {regions: [us-east-1]}\nnotify: ['json://one']", "p")


def gathered(
    store: MemoryStore, row: ExternalJobRow, before: ExternalJobRow | None = None, policy: Policy = NOTIFY
) -> tuple[bool, list[int]]:
    """Whether it could be read, and the entries of its family that are to be told."""
    dispatcher = ExternalJobNotifier(store, "me")
    read = dispatcher.collect(policy, row, before)
    return read, [told.seq for told in dispatcher._unrecorded]


def chain(store: MemoryStore) -> None:
    for seq in (1, 2):
        event = Stopping("bert", f"policy:r{seq}")
        assert chain_log.append(store, "us-east-1", "bert", seq, ChainRecord(f"t{seq}", "me", "too long", event))


def test_entries_since_the_last_look_are_told() -> None:
    store = MemoryStore(lambda: NOW)
    chain(store)
    row = replace(ROW, seq=2)
    assert gathered(store, row) == (True, [1, 2])
    assert gathered(store, row, replace(ROW, seq=1)) == (True, [2])
    assert gathered(store, row, row) == (True, [])
    assert gathered(store, row, replace(ROW, seq=2, origin="another")) == (True, [1, 2]), "another of its name"
    assert gathered(store, replace(row, own=True)) == (True, []), "our own is told of as a job"
    assert gathered(store, row, policy=POLICY) == (True, []), "nobody wants to hear of it"


def test_a_family_that_cannot_be_read_is_told_by_the_next_look() -> None:
    store = MemoryStore(lambda: NOW)
    store.put(keys.clone_chain_entry("us-east-1", "bert", 1), b"{}")
    assert gathered(store, replace(ROW, seq=2)) == (False, [])
