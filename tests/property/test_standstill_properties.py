"""Of every rule about standstills that a policy may have: it finds what stands still, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.agent.health.activity import ActivityRecorder
from stoker.agent.health.activity_probe import ActivitySample
from stoker.core.stalls import low_use_reason, stall_reason
from stoker.model.errors import SpecError
from stoker.model.log_entries import Claimed, Launched
from stoker.model.node_facts import Activity
from stoker.model.policy import Rule
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import ON_DEMAND, at, make_beat, make_facts, make_snapshot, make_state, nodes

pytestmark = pytest.mark.slow

# A recording of a day is long: these are few, and cover orders of magnitude evenly.
FEW = settings(max_examples=40, deadline=None)
# Ordinary ones among them, some of which are longer than the fine series, with windows shorter than the coarse ones'.
SHAPES = st.sampled_from(
    [(300, 3), (300, 24), (60, 91), (30, 6), (120, 60), (20, 7), (900, 80), (3600, 24)]
) | st.tuples(
    st.floats(0, 4.9).map(lambda power: round(10**power, 1)), st.floats(0, 3).map(lambda power: round(10**power))
)
# Until even the coarsest period is over, wherever it began.
LONGER_S = 1300


def accepted(text: str) -> Rule | None:
    try:
        (rule,) = parse_policy(f"rules: [{{{text}}}]".encode(), "p.yaml").rules
    except SpecError:
        return None
    return rule


def recorded(
    length_s: int, busy: range = range(0), twitches: frozenset[int] = frozenset(), steps: tuple[int, ...] = ()
) -> Activity:
    """The activity that an agent reports after so many seconds, in some of which the GPU was busy. Nothing else moved,
    save for a core in the seconds of `twitches`, and the step in the seconds of `steps`."""
    clock = [0.0]
    recorder = ActivityRecorder(lambda: pytest.fail("nobody looks"), monotonic=lambda: clock[0])
    recorder.begin(sample=False)
    cpu_s = 0.0
    for second in range(length_s):
        clock[0] += 1.0
        cpu_s += second in twitches
        recorder.take(ActivitySample((1.0 if second in busy else 0.0,), cpu_s, 0.0))
        if second in steps:
            recorder.note_step(steps.index(second) + 1)
    told = recorder.report()
    assert told is not None
    return told


def broken(rule: Rule, told: Activity) -> bool:
    state = make_state(Claimed(offering=replace(ON_DEMAND, gpus=1), nodes=1), Launched(2, nodes(2)))
    facts = make_facts(2, beat=make_beat(100.0, trained_s=1e6, activity=told))
    job, claim = make_snapshot(state, facts), state.claims[0]
    if rule.stall is not None:
        return stall_reason(rule.stall, job, claim, at(101)) is not None
    assert rule.min_gpu_utilization is not None
    return low_use_reason(rule.min_gpu_utilization, job, claim, at(101)) is not None


@FEW
@given(SHAPES, st.integers(0, LONGER_S), st.floats(0, 1))
def test_what_stands_still_is_found_and_one_busy_window_is_enough_not_to(
    shape: tuple[float, int], more_s: int, when: float
) -> None:
    window_s, windows = shape
    rule = accepted(f"stall: {{window: {window_s}s, windows: {windows}}}")
    if rule is None:
        assert windows > 1000 or window_s * windows > 86400
        return
    span_s = round(window_s * windows)
    length_s = span_s + 600 + more_s
    assert broken(rule, recorded(length_s))
    # A window that lies in the span, by whole seconds.
    busy_s = round(window_s + 0.49)
    begin = length_s - span_s + round(when * max(0, span_s - busy_s))
    assert not broken(rule, recorded(length_s, range(begin, begin + busy_s)))


@FEW
@given(SHAPES, st.integers(0, LONGER_S), st.data())
def test_twitches_of_less_than_their_share_of_each_window_change_nothing(
    shape: tuple[float, int], more_s: int, data: st.DataObject
) -> None:
    window_s, windows = shape
    rule = accepted(f"stall: {{window: {window_s}s, windows: {windows}}}")
    if rule is None or window_s < 40:
        return
    length_s = round(window_s * windows) + 600 + more_s
    # At most a second in twenty of any window, wherever that begins, and of any period in which more is remembered.
    every_s = data.draw(st.integers(40, 400))
    assert broken(rule, recorded(length_s, twitches=frozenset(range(0, length_s, every_s))))
    assert not broken(rule, recorded(length_s, twitches=frozenset(range(0, length_s, 2)))), "that is work"


@FEW
@given(st.floats(0, 4.9).map(lambda power: round(10**power, 1)), st.integers(0, LONGER_S))
def test_one_whose_accelerators_spin_is_found_by_its_steps_whatever_the_span(steps_s: float, more_s: int) -> None:
    rule = accepted(f"stall: {{steps: {steps_s}s, after: 0s}}")
    assert rule is not None
    # A step takes a second: twice that is allowed in any case.
    length_s = round(steps_s) + 5 + more_s
    assert broken(rule, recorded(length_s, range(length_s), steps=(0, 1)))
    assert not broken(rule, recorded(length_s, range(length_s), steps=(0, length_s - 1)))
    assert not broken(rule, recorded(length_s, range(length_s))), "it reports none"


@FEW
@given(st.floats(0, 5).map(lambda power: round(10**power, 1)), st.integers(0, LONGER_S))
def test_what_wastes_its_accelerators_is_found_whatever_the_span(over_s: float, more_s: int) -> None:
    rule = accepted(f"min_gpu_utilization: {{value: 80%, over: {over_s}s, after: 0s}}")
    if rule is None:
        assert over_s > 86400
        return
    length_s = round(over_s) + 600 + more_s
    assert broken(rule, recorded(length_s))
    assert not broken(rule, recorded(length_s, range(length_s)))
