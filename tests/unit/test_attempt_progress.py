"""Restarts that lead nowhere: what counts as progress, and when a job ends for lack of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attempt_cases import KEY, SAVED, make_case, past

from stoker.core.attempt_verdict import closed_entry, judge
from stoker.model.log_entries import Claimed, Closed, Draining, Event, Launched, Waste
from stoker.model.node_facts import Activity, CheckpointRef, Exit
from tests.support.sim_data import (
    SPOT_A,
    make_beat,
    make_exit,
    nodes,
)


def test_restarts_that_lead_nowhere_end() -> None:
    still = judge(make_case(None, history=past(3, "lost")))
    ended = judge(make_case(None, history=past(4, "lost")))
    assert still.restart and not ended.restart
    assert ended.reason.endswith("; 5 attempts in a row made no progress")


def test_reclaims_alone_are_borne_longer() -> None:
    gone = make_exit("interrupted", "notice")
    assert judge(make_case(gone, noticed=True, history=past(18, "reclaimed"))).restart
    assert not judge(make_case(gone, noticed=True, history=past(19, "reclaimed"))).restart


def test_progress_starts_the_count_anew() -> None:
    saved = make_exit("failed", evidence=("oom",), checkpoint=CheckpointRef(KEY, "step-10"))
    assert judge(make_case(saved, history=past(9, "lost"))).restart
    step = make_exit("interrupted", "notice", step=7)
    assert judge(make_case(step, noticed=True, history=past(30, "reclaimed", step=6))).restart
    assert not judge(make_case(step, noticed=True, history=past(30, "reclaimed", step=7))).restart


def test_only_those_since_the_last_progress_are_counted() -> None:
    def restarts(*progressed: bool) -> bool:
        events: list[Event] = []
        for number, made in zip(range(2, 99, 3), progressed, strict=False):
            closed = Closed(number, "lost", "gone", restart=True, progressed=made)
            events += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), closed]
        return judge(make_case(None, history=tuple(events))).restart

    assert restarts(False, False, False, True, False, False, False)
    assert not restarts(True, False, False, False, False)


def saving(key: str, saved: int | None, **told: Any) -> Exit:
    """It was killed, and had saved this."""
    return make_exit("failed", signal=9, trained_s=1000.0, checkpoint=CheckpointRef(key, key, saved), **told)


@pytest.mark.parametrize(
    ("left", "before", "progressed"),
    [
        (saving("b", 100), {"saved_step": 100, "checkpoint": "a"}, False),
        (saving("b", 100, step=100), {"step": 100, "saved_step": 100, "checkpoint": "a"}, False),
        (saving("b", None, step=100), {"step": 100, "checkpoint": "a"}, False),
        (saving("b", None), {"step": 100, "checkpoint": "a"}, False),
        (saving("b", None), {"saved_step": 100, "checkpoint": "a"}, False),
        (saving("b", 101), {"saved_step": 100, "checkpoint": "a"}, True),
        (saving("b", None, step=101), {"step": 100, "checkpoint": "a"}, True),
        (saving("b", 90, step=95), {"step": 100, "saved_step": 80}, True),
        (saving("b", 100), {"step": 100}, True),
        (saving("b", None), {"checkpoint": "a"}, True),
        (saving("a", None, restored_from="a"), {"checkpoint": "a"}, False),
        (saving("a", 100, restored_from="a"), {}, False),
    ],
    ids=[
        "saved again",
        "saved and reported again",
        "reported again",
        "reported before",
        "saved before",
        "saved more",
        "reported more",
        "kept what was lost",
        "kept for the first time",
        "nobody tells steps",
        "saved nothing",
        "saved nothing of its own",
    ],
)
def test_progress_is_a_step_beyond_all_before(left: Exit, before: dict[str, Any], progressed: bool) -> None:
    case = make_case(left, history=past(4, "infrastructure", **before))
    assert case.progressed is progressed
    assert judge(case).restart is progressed
    assert closed_entry(case, judge(case)).progressed is progressed


@pytest.mark.parametrize(
    ("trained_s", "silent_s", "progressed"), [(3700.0, 50.0, True), (3700.0, 1000.0, False), (3500.0, 0.0, False)]
)
def test_long_training_that_was_saved_is_progress_for_who_counts_anew_in_every_epoch(
    trained_s: float, silent_s: float, progressed: bool
) -> None:
    left = replace(saving("b", None, step=90), trained_s=trained_s)
    beat = make_beat(0, step=90, trained_s=trained_s, activity=Activity(silent_s)).value
    case = make_case(left, beat=beat, history=past(4, "infrastructure", step=100, checkpoint="a"))
    assert judge(case).restart is progressed
    assert closed_entry(case, judge(case)).progressed is progressed
    unsaved = make_case(replace(left, checkpoint=None), beat=beat, history=past(4, "infrastructure", step=100))
    assert not judge(unsaved).restart


def test_what_was_taken_away_gets_the_benefit_of_the_doubt() -> None:
    """Twenty reclaims of a script whose steps begin anew in every epoch end nothing."""
    taken = replace(SAVED, step=90, checkpoint=CheckpointRef("b", "b", None))
    before = past(30, "reclaimed", step=100, checkpoint="a")
    again = make_case(taken, noticed=True, history=before)
    found = judge(again)
    assert (found.outcome, found.restart) == ("reclaimed", True) and closed_entry(again, found).progressed
    nothing = make_case(replace(taken, checkpoint=None), noticed=True, history=before)
    assert not judge(nothing).restart


def test_a_gang_that_a_rule_ended_led_nowhere_though_one_of_its_machines_had_to_be_taken() -> None:
    drained = Draining(claim=14, outcome="infrastructure", rule="policy:hangs")
    left = make_exit("interrupted", "drain", step=5, started=True, checkpoint=CheckpointRef("b", "b", 5))
    before = past(4, "lost", step=5, saved_step=5, checkpoint="a")
    case = make_case(left, None, events=(drained,), history=before)
    assert not judge(case).restart and not closed_entry(case, judge(case)).progressed
    lost = make_case(left, None, history=before)
    assert judge(lost).restart and closed_entry(lost, judge(lost)).progressed, "nobody ended that one"


def test_the_step_that_was_saved_is_kept_in_the_log() -> None:
    case = make_case(saving("b", 7, restored_from="a"))
    assert closed_entry(case, judge(case)).saved_step == 7


def test_who_has_saved_has_got_past_what_it_restored() -> None:
    """A step that was there before is no progress, and no reason to give up on the checkpoint before it either."""
    left = make_exit(
        "failed", code=1, trained_s=1.0, restored_from=KEY, checkpoint=CheckpointRef("00000005/000001-x", "x", 9)
    )
    case = make_case(left, history=past(1, "lost", saved_step=9))
    assert not case.progressed and not case.at_startup and case.loaded


def test_a_gang_that_was_never_complete_may_be_tried_without_end() -> None:
    assert judge(make_case(None, None, named=1, history=past(9, "dry"))).restart


@pytest.mark.parametrize("told", [float("nan"), -5.0, 1e300, float("inf")])
def test_a_time_that_makes_no_sense_is_not_kept(told: float) -> None:
    case = make_case(make_exit("interrupted", "peer", trained_s=told))
    assert 0.0 <= closed_entry(case, judge(case)).trained_s <= 1e9


def test_what_led_nowhere_is_kept_as_the_ranks_told_it() -> None:
    def told(*wastes: Waste | None, beat: Waste | None = None, outcome: str = "interrupted") -> Waste | None:
        why = "finished" if outcome == "succeeded" else "notice"
        exits = [None if each is None else make_exit(outcome, why, waste=each) for each in wastes]  # type: ignore[arg-type]
        last = make_beat(0.0, waste=beat).value if beat else None
        case = make_case(*exits, beat=last, noticed=outcome != "succeeded")
        return closed_entry(case, judge(case)).waste

    one, other = Waste(waited_s=5.0, idle_s=10.0, lost_s=60.0), Waste(waited_s=7.0, idle_s=20.0, lost_s=900.0)
    assert told(one, other) == Waste(waited_s=7.0, idle_s=15.0, lost_s=60.0), "rank 0 saves"
    assert told(one, Waste()) == Waste(waited_s=5.0, idle_s=None, lost_s=60.0), "what one cannot read nobody knows"
    assert told(one, other, outcome="succeeded") == Waste(waited_s=7.0, idle_s=15.0, lost_s=0.0)
    assert told(None, beat=one) == one, "one that left no exit had told it before"
    assert told(None) is None
    absurd = Waste(waited_s=float("nan"), idle_s=-1.0, lost_s=float("inf"))
    found = told(absurd)
    assert found is not None and found.waited_s == 0.0 and found.idle_s == 0.0
    assert found.lost_s is not None and found.lost_s < float("inf")
