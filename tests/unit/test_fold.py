"""The fold: a pure function of the log's contiguous prefix."""

from __future__ import annotations

import pytest

from stoker.model.job_state import fold
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Entry,
    Launched,
    NodeRef,
    Opaque,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from tests.support.sim_data import JOB, SPOT_A, at, entries, make_state, nodes

SUBMITTED = Submitted(spec_digest="d", submitter="jane", code_digest="c")
CLAIM = Claimed(offering=SPOT_A, nodes=1)


def test_there_is_no_job_before_it_was_submitted() -> None:
    assert fold(JOB, []) is None
    assert fold(JOB, entries([StopAsked(by="jane")])) is None
    assert fold(JOB, entries([SUBMITTED], start=2)) is None


def test_a_fold_can_be_carried_on_from() -> None:
    log = entries([SUBMITTED, CLAIM, Launched(2, nodes(2)), StopAsked("jane"), Closed(2, "stopped", "stop")])
    whole = fold(JOB, log)
    for cut in range(1, len(log)):
        assert fold(JOB, log[cut:], fold(JOB, log[:cut])) == whole


def test_a_gap_is_refused() -> None:
    with pytest.raises(AssertionError):
        fold(JOB, [*entries([SUBMITTED]), Entry(3, at(0), "", CLAIM)])


def test_a_claim_is_numbered_by_its_place_in_the_log() -> None:
    state = make_state(CLAIM, (Launched(2, nodes(2)), 50))
    (claim,) = state.claims
    assert (claim.number, claim.attempt, claim.launched_at, claim.open) == (2, 1, at(50), True)
    assert claim.instance(0) == "i-2-0"
    assert claim.instance(1) is None


def test_only_claims_with_machines_are_attempts() -> None:
    state = make_state(CLAIM, Closed(2, "dry", "no-capacity"), CLAIM, Launched(4, nodes(4)))
    assert [claim.number for claim in state.attempts] == [4]
    assert state.attempts[0].attempt == 1


def test_the_first_launched_counts() -> None:
    state = make_state(CLAIM, Launched(2, nodes(2)), Launched(2, (NodeRef(0, "other"),)))
    assert state.claims[0].launched == nodes(2)


def test_a_launch_that_comes_after_the_close_names_nobody() -> None:
    state = make_state(CLAIM, Closed(2, "stopped", "stop"), Launched(2, nodes(2)))
    assert state.claims[0].launched is None
    assert state.attempts == ()


def test_the_first_close_the_first_drain_and_the_first_stop_count() -> None:
    state = make_state(
        CLAIM,
        Launched(2, nodes(2)),
        Draining(2, "lost", "gang"),
        Draining(2, "limit", "max_cost"),
        Closed(2, "lost", "gone"),
        Closed(2, "failed", "user-error"),
        StopAsked("jane"),
        StopAsked("joe"),
    )
    (claim,) = state.claims
    assert claim.drain is not None and claim.drain.rule == "gang"
    assert claim.closed is not None and claim.closed.rule == "gone"
    assert state.stop is not None and state.stop.by == "jane"


def test_a_newer_suspicion_replaces_the_older_of_that_rank() -> None:
    state = make_state(CLAIM, Suspected(2, 0, "e1"), Suspected(2, 1, "e9"), (Suspected(2, 0, "e2"), 99))
    assert {rank: found.etag for rank, found in state.claims[0].suspicions.items()} == {"0": "e2", "1": "e9"}
    assert state.claims[0].suspicions["0"].at == at(99)


def test_the_end_closes_its_claim_and_every_other() -> None:
    closing = Closed(2, "succeeded", "finished", trained_s=5.0)
    ended = Ended(outcome="succeeded", rule="finished", claim=2, exit_code=0, closing=closing)
    state = make_state(CLAIM, Launched(2, nodes(2)), CLAIM, ended)
    assert state.open_claims == ()
    assert state.claims[0].closed == closing
    assert state.claims[1].closed is not None and state.claims[1].closed.outcome == "abandoned"
    assert state.ended is not None and (state.ended.seq, state.ended.outcome, state.ended.claim) == (5, "succeeded", 2)


def test_the_first_end_counts() -> None:
    state = make_state(Ended("failed", "max_wait"), Ended("succeeded", "finished"))
    assert state.ended is not None and state.ended.outcome == "failed"


def test_resume_opens_an_ended_job_and_starts_its_counts_anew() -> None:
    state = make_state(
        CLAIM, StopAsked("jane"), Warned("w"), Ended("stopped", "stop"), (ResumeAsked("jane"), 500), CLAIM
    )
    assert state.ended is None and state.stop is None and state.warned == ()
    assert (state.opened_seq, state.opened_at) == (6, at(500))
    assert [claim.number for claim in state.since_opened()] == [7]
    assert len(state.claims) == 2


def test_resume_of_a_job_that_runs_changes_nothing() -> None:
    state = make_state(CLAIM, StopAsked("jane"), ResumeAsked("jane"))
    assert state.stop is not None and state.opened_seq == 1


def test_what_a_newer_stoker_wrote_raises_the_version_that_is_needed() -> None:
    state = make_state(CLAIM)
    newer = fold(JOB, [Entry(3, at(1), "?", Opaque("future"), min_version=7)], state)
    assert newer is not None and newer.min_version == 7
    later = fold(JOB, [Entry(4, at(2), "", Warned("w"))], newer)
    assert later is not None and later.min_version == 7
