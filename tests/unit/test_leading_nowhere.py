"""A script that stands still and saves the same step again, whenever it is asked to, is not started again for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Entry, Event, Launched
from stoker.model.node_facts import Activity, CheckpointRef, Exit, Heartbeat
from stoker.model.observed import Stamped
from stoker.model.usage_series import pack
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import NO_WORK, ON_DEMAND, at, make_exit, make_facts, make_snapshot, make_state, nodes

STALLED = Activity(1000.0, work=NO_WORK, utilization=(pack(60.0, [[0.0] * 20]),), devices=1)
OFFERING = replace(ON_DEMAND, gpus=1)


class Story:
    """One job and the attempts that it makes, each of which stands still at a step, and leaves in some way."""

    def __init__(self, rules: str, left: Exit) -> None:
        self.settings = replace(DEFAULT, policy=parse_policy(f"rules:\n- {{{rules}}}\n".encode(), "p.yaml"))
        self.left = left
        self.state: JobState = make_state()
        self.now_s = 100.0
        self.restored_from: str | None = None

    def attempt(self, step: int | None) -> Event:
        """Answers what is decided when it is over."""
        number = self.state.seq + 1
        self._append(Claimed(OFFERING, 1))
        self._append(Launched(number, nodes(number)))
        self.now_s += 1000.0
        while self.left.why == "drain" and not isinstance(self._decide(number, None, step), Draining):
            pass
        key = f"{number:08d}/000001-step"
        saved = replace(
            self.left, step=step, restored_from=self.restored_from, checkpoint=CheckpointRef(key, "step", step)
        )
        decided = self._decide(number, saved, step)
        self.restored_from = key
        return decided

    def _decide(self, number: int, left: Exit | None, step: int | None) -> Event:
        told = Heartbeat(1, "training", at(self.now_s), 10.0, trained_s=1000.0, step=step, activity=STALLED)
        beat = replace(told, restored_from=self.restored_from, evidence=self.state.warned)
        facts = make_facts(number, beat=Stamped(beat, at(self.now_s), "e"), left=left)
        job = make_snapshot(self.state, facts, states={f"i-{number}-0": "gone" if left else "running"})
        plan = decide_job(job, self.settings, at(self.now_s))
        (event,) = [action.event for action in plan.actions if isinstance(action, Append)]
        self._append(event)
        return event

    def _append(self, event: Event) -> None:
        self.now_s += 1.0
        entry = Entry(self.state.seq + 1, at(self.now_s), "", event)
        state = fold(self.state.job, [entry], self.state)
        assert state is not None
        self.state = state


WAYS = {
    "stalled": ("stall: {window: 5m, windows: 3}", make_exit("interrupted", "drain", started=True, trained_s=1000.0)),
    "diagnosed": ("failure: {exit_code: 42}", make_exit("failed", code=42, trained_s=1000.0)),
    "killed": ("max_nodes: 9", make_exit("failed", signal=9, trained_s=1000.0)),
    "nccl": ("max_nodes: 9", make_exit("failed", code=1, tail=("NCCL error",), trained_s=1000.0)),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_saving_the_same_step_again_is_no_progress(way: str) -> None:
    story = Story(*WAYS[way])
    ends = [story.attempt(100) for _ in range(6)]
    assert [isinstance(event, Closed) and event.restart for event in ends] == [True] * 5 + [False]
    assert isinstance(ends[-1], Ended), "five after the first made no progress"


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("steps", ["counts", "tells-none"])
def test_who_gets_further_each_time_goes_on(way: str, steps: str) -> None:
    story = Story(*WAYS[way])
    for n in range(12):
        closed = story.attempt(100 + n if steps == "counts" else None)
        assert isinstance(closed, Closed) and closed.restart and closed.progressed
