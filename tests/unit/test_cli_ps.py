"""`stoker ps` as somebody reads it who has never seen it: every phase in plain words, and how old what it tells is."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import click
import pytest

from stoker.cli import ps
from stoker.cli.compare import _row
from stoker.cli.job_report import job_text
from stoker.core.summary import AttemptSummary, HeldMachines, NodeSummary, Summary, summarize
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Ended, Launched
from stoker.model.node_facts import SavedOutputs
from stoker.model.offerings import Offering
from stoker.model.submission import Submission
from stoker.read.curves import ComparedJob
from stoker.read.format import as_of
from stoker.read.metrics import Metrics
from stoker.read.status_line import status_of
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import JOB, at, make_beat, make_facts, make_spec, make_state, nodes

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=timezone.utc)
SUMMARY = Summary("job-1", "job", "queued", NOW, NOW, "jane", "gce", 1)


def attempt(*phases: str | None, outcome: str | None = None) -> AttemptSummary:
    nodes = tuple(NodeSummary(rank, f"z.{rank}", phase) for rank, phase in enumerate(phases))
    return AttemptSummary(1, 2, "gce", "n2-standard-2", "z", True, NOW, nodes, outcome=outcome)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "waits for a governor"),
        ({"reason": "no capacity: n2-standard-2 spot in z"}, "no capacity: n2-standard-2 spot in z"),
        ({"phase": "launching"}, "asks for machines"),
        ({"phase": "launching", "attempts": (attempt("exited", outcome="reclaimed"),)}, "asks for machines"),
        ({"phase": "launching", "attempts": (attempt(None),)}, "its machine boots"),
        ({"phase": "launching", "attempts": (attempt("setup", None),)}, "its machine boots"),
        ({"phase": "launching", "attempts": (attempt("setup", "waiting"),)}, "fetches code and inputs, runs `setup`"),
        (
            {"phase": "launching", "attempts": (attempt("waiting"),)},
            "is ready, and waits until the attempt before has left",
        ),
        ({"phase": "launching", "attempts": (attempt("restoring"),)}, "fetches the checkpoint to continue from"),
        ({"phase": "running", "attempts": (attempt("training"),)}, ""),
        ({"phase": "running", "attempts": (attempt("saving"),)}, "saves, and leaves"),
        ({"phase": "stopping", "reason": "stopping: waiting for the last save"}, "stopping: waiting for the last save"),
        ({"phase": "succeeded", "ended_at": NOW, "attempts": (attempt("exited", outcome="succeeded"),)}, ""),
        ({"phase": "failed", "ended_at": NOW, "reason": "the script broke"}, "the script broke"),
    ],
)
def test_each_phase_in_plain_words(changes: dict[str, object], told: str) -> None:
    assert ps.note(replace(SUMMARY, **changes), {"job-1"}, NOW) == told  # type: ignore[arg-type]


def test_a_machine_that_is_held_comes_first() -> None:
    held = HeldMachines(NOW + timedelta(minutes=5), ("z.0",), 1.5)
    job = replace(SUMMARY, phase="failed", ended_at=NOW, reason="the script broke", held=held)
    assert ps.note(job, {"job-1"}, NOW).startswith("its machine is held until ")
    assert ps.note(job, {"job-1"}, NOW).endswith(" at $1.50/h; the script broke")
    assert ps.note(job, set(), NOW) == "the script broke"


def test_the_first_line_says_who_looks_after_the_jobs() -> None:
    first, second = map(click.unstyle, ps._governor_lines(None, 2, 0))
    assert first == "2 active jobs; no governor has looked yet"
    assert second.startswith("no governor drives these jobs, ") and "`stoker govern --watch`" in second
    (only,) = map(click.unstyle, ps._governor_lines(datetime.now(timezone.utc), 0, 1))
    assert only.startswith("0 active jobs (1 ended job watched until its machines are certainly gone); a governor last")


def test_without_a_price_no_sum_is_shown() -> None:
    unpriced = replace(SUMMARY, phase="running", attempts=(attempt("training"),), cost=0.0)
    priced = replace(unpriced, attempts=(replace(attempt("training"), price=2.0, price_source="job file"),))
    assert "$" not in click.unstyle(ps._table([unpriced], set()))
    assert "$0.00" in click.unstyle(ps._table([priced], set()))
    compared = [ComparedJob(one, Metrics({})) for one in (unpriced, priced)]
    assert [_row(one).cost for one in compared] == [None, 0.0]


def test_that_no_outputs_are_kept_is_said_at_the_end() -> None:
    running = replace(SUMMARY, phase="running", attempts=(attempt("training"),), outputs=SavedOutputs())
    assert "outputs" not in click.unstyle(job_text(running))
    ended = replace(running, phase="succeeded", ended_at=NOW)
    assert "outputs     none kept" in click.unstyle(job_text(ended))


# ── How old it is ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_as_new_as_it_can_be_does_not_say_so() -> None:
    assert as_of(None, NOW) == "" and as_of(NOW - timedelta(seconds=29), NOW) == ""
    assert as_of(NOW - timedelta(seconds=130), NOW) == "as of 2m 10s ago"


def test_ps_and_show_tell_it_alike() -> None:
    now = datetime.now(timezone.utc)
    heard = now - timedelta(seconds=130)
    job = replace(SUMMARY, phase="running", step=412, attempts=(attempt("training"),), heard_at=heard)
    assert ps.note(job, set(), now).startswith("as of 2m 1")
    assert "to step 412 in 1 attempt, as of 2m 1" in job_text(job)
    assert "as of" not in job_text(replace(job, heard_at=now))


RUNNING = (Claimed(Offering("gce", "n2-standard-2", "z", True), 1), Launched(2, nodes(2)))


def test_a_job_is_as_old_as_what_was_last_heard_of_its_nodes() -> None:
    submission = Submission(JOB, make_spec(), "jane")
    told = {2: (make_facts(2, beat=make_beat(100.0)),)}
    assert summarize(make_state(*RUNNING), submission, told, at(500.0)).heard_at == at(100.0)
    assert summarize(make_state(*RUNNING), submission, {}, at(500.0)).heard_at == at(500.0), "looked at then"
    ended = make_state(*RUNNING, Ended(outcome="failed", rule="test"))
    assert summarize(ended, submission, told, at(500.0)).heard_at is None, "what has ended does not grow old"


def test_so_is_the_line_below_the_log() -> None:
    heard = datetime.now(timezone.utc) - timedelta(seconds=130)
    store = MemoryStore(lambda: heard)
    key = keys.node(JOB, 2, 0, keys.boot("i-2-0", 0))
    store.put(keys.heartbeat(key), codec.dumps(make_beat(0.0, step=412).value))
    text = status_of(store, JOB, make_state(*RUNNING)).text
    assert "step 412" in text and "as of 2m 1" in text


def test_a_reason_is_cut_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "policy each-team: no machine until 2026-12-01 00:00 UTC: $5,012.40 of $5,000.00 a month are spent (100%)"
    job = replace(SUMMARY, reason=reason)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ps.note(job, set(), NOW).startswith("policy each-team: no machine until 2026-12-01 00:00 UTC: ")
    assert len(ps.note(job, set(), NOW)) == 60
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert ps.note(job, set(), NOW) == reason
    assert reason in job_text(job), "a single job has room"
