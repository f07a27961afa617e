"""Facts of agents are untrusted: what is absurd about them is cut or left out, and the rest comes back as it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stoker.model.gang_messages import SaveProposal
from stoker.model.log_entries import Waste
from stoker.model.node_facts import CheckpointRef, Exit, FailureCause, Heartbeat, OmittedOutput, SavedOutputs, SaveTimes
from stoker.store import node_facts
from stoker.store.node_facts import clamp_fact
from tests.support.sim_data import at, hard_notice, make_exit

CENTURY_S = node_facts._LONGEST_SPAN_S
REF = CheckpointRef("00000002/000001-a", "a", 7)
PLAIN = make_exit(
    "failed",
    reason="it broke",
    trained_s=5.0,
    restored_from="k",
    checkpoint=REF,
    tail=("one", "two"),
    save=SaveTimes(1.0, 2.0, None, 30.0, 4),
    waste=Waste(1.0, 2.0, None),
    outputs=SavedOutputs(1, 2, 3, 4, (OmittedOutput("a", 5, "too large"),)),
    evidence=("oom",),
    cause=FailureCause("oom", "script", "killed"),
    saves_elsewhere=("/tmp/x",),
)
BEAT = Heartbeat(
    beat=1,
    phase="training",
    at=at(0),
    interval_s=10.0,
    trained_s=5.0,
    restored_from="k",
    checkpoint=REF,
    waste=Waste(1.0, None, 3.0),
    warnings=("w",),
    saves_elsewhere=("/tmp/x",),
)


def left(**changes: object) -> Exit:
    return clamp_fact(replace(PLAIN, **changes))  # type: ignore[arg-type]


def test_what_an_agent_says_comes_back_as_it_is() -> None:
    assert clamp_fact(PLAIN) == PLAIN and clamp_fact(BEAT) == BEAT and clamp_fact(hard_notice(5)) == hard_notice(5)
    assert clamp_fact("another") == "another"


@pytest.mark.parametrize(
    ("told_s", "kept_s"),
    [(5.0, 5.0), (0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (math.inf, CENTURY_S), (2 * CENTURY_S, CENTURY_S)],
)
def test_spans_are_neither_negative_nor_endless(told_s: float, kept_s: float) -> None:
    assert left(trained_s=told_s).trained_s == kept_s
    assert left(waste=Waste(told_s, told_s, told_s)).waste == Waste(kept_s, kept_s, kept_s)
    assert left(save=SaveTimes(told_s, None, told_s, None, 1)).save == SaveTimes(kept_s, None, kept_s, None, 1)
    beat = clamp_fact(replace(BEAT, trained_s=told_s, interval_s=told_s))
    assert (beat.trained_s, beat.interval_s) == (kept_s, kept_s)
    assert clamp_fact(hard_notice(0, told_s)).grace_s == kept_s


def test_absent_parts_stay_absent() -> None:
    bare = left(save=None, waste=None, outputs=None, cause=None, checkpoint=None, restored_from=None)
    assert (bare.save, bare.waste, bare.outputs, bare.cause, bare.checkpoint) == (None,) * 5


def test_texts_are_cut() -> None:
    found = left(
        reason="x" * 9000,
        evidence=("y" * 500,) * 20,
        cause=FailureCause("z" * 500, "script", "l" * 9000),
        saves_elsewhere=("a" * 301, "b" * 300, *"cdefg"),
    )
    assert len(found.reason) == 4000 and len(found.evidence) == 10 and {len(each) for each in found.evidence} == {100}
    assert found.cause is not None and (len(found.cause.name), len(found.cause.line)) == (100, 4000)
    assert found.saves_elsewhere == ("b" * 300, "c", "d", "e"), "of the first five those that are short enough"
    beat = clamp_fact(replace(BEAT, warnings=("w" * 9000,) * 30))
    assert len(beat.warnings) == 20 and {len(each) for each in beat.warnings} == {4000}
    assert len(clamp_fact(replace(hard_notice(0), source="s" * 999)).source) == 300


@pytest.mark.parametrize(("size", "kept"), [(300, True), (301, False)])
def test_a_key_that_is_too_long_is_none(size: int, kept: bool) -> None:
    assert (left(restored_from="k" * size).restored_from is not None) is kept
    beat = clamp_fact(replace(BEAT, image="k" * size))
    assert (beat.image is not None) is kept
    ref = replace(REF, key="k" * size, name="n" * 300)
    assert (left(checkpoint=ref).checkpoint is not None) is kept


def test_the_last_lines_are_kept_as_many_as_fit() -> None:
    assert left(tail=tuple(str(number) for number in range(60))).tail == tuple(str(n) for n in range(10, 60))
    long = left(tail=("first", "x" * 15_000, "y" * 15_000)).tail
    assert [len(line) for line in long] == [5000, 15_000]
    assert left(tail=("a", "x" * 20_000)).tail == ("x" * 20_000,)


def test_counts_of_outputs_are_neither_negative_nor_beyond_any_store() -> None:
    many = tuple(OmittedOutput("p" * 999, -5, "w" * 999) for _ in range(30))
    found = left(outputs=SavedOutputs(-1, 10**30, -2, 10**18, many)).outputs
    assert found is not None and (found.files, found.size, found.left_out, found.left_out_size) == (
        0,
        10**18,
        0,
        10**18,
    )
    assert len(found.named) == 20 and (len(found.named[0].path), found.named[0].size) == (300, 0)


def test_an_absurd_proposal_of_a_save_is_none() -> None:
    plain = SaveProposal(7, -2.5, ("epoch_2",))
    assert clamp_fact(replace(BEAT, save_proposal=plain)).save_proposal == plain
    for absurd in (
        replace(plain, quiet_s=float("nan")),
        replace(plain, quiet_s=2 * CENTURY_S),
        replace(plain, newest=("n" * 999,)),
        replace(plain, newest=("n",) * 99),
    ):
        assert clamp_fact(replace(BEAT, save_proposal=absurd)).save_proposal is None
