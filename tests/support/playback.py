"""Recordings of what a machine with a GPU showed, played back to an agent's eyes and a governor's rules.

Recorded by `scripts/record_usage.py` on an H200: one sample a second of forty seconds each, of trainings that train,
download, compile, evaluate and save, and of trainings that hang. Windows of rules are shortened accordingly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.agent.health.activity import ActivityRecorder
from stoker.agent.health.activity_probe import ActivitySample
from stoker.core.stalls import stall_reason
from stoker.model.log_entries import Claimed, Launched
from stoker.model.policy import StallRule
from tests.support.sim_data import SPOT_A, at, make_beat, make_facts, make_snapshot, make_state, nodes

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "usage.json").read_text())
# Those of a training that hangs; those too short to tell anything; and all others, which are at work.
HUNG = frozenset({"deadlock", "native-deadlock", "stuck-loader"})
SHORT = frozenset({"loading"})
AT_WORK = frozenset(RECORDED) - HUNG - SHORT
# As a rule of a policy, for recordings of forty seconds.
RULE = StallRule(window_s=4.0, windows=3, after_s=4.0, working_s=1e6)


class _Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def play(name: str, rule: StallRule = RULE, *, others: int = 0, **changes: list[Any]) -> list[int]:
    """The seconds at which the rule says that the training stands still. `changes` are series that were otherwise."""
    return list(_play({**RECORDED[name], **changes}, rule, others))


def _play(recorded: dict[str, Any], rule: StallRule, others: int) -> Iterator[int]:
    clock, lines = _Clock(), 0.0
    recorder = ActivityRecorder(
        lambda: ActivitySample((), None, None), unreadable=others, period_s=1.0, monotonic=clock
    )
    recorder.begin(sample=False)
    for second, share in enumerate(recorded["gpu"]):
        clock.now_s += 1.0
        moved = [part[second] for part in (recorded["disk_bytes"], recorded["net_bytes"]) if part[second] is not None]
        recorder.take(
            ActivitySample((None if share is None else share / 100,), recorded["cpu_s"][second], float(sum(moved)))
        )
        recorder.note_step(recorded["step"][second])
        if recorded["lines"][second] > lines:
            lines = recorded["lines"][second]
            recorder.note_output(b"loss=0.5\n")
        if _stands_still(rule, recorder, second + 1.0):
            yield second


def _stands_still(rule: StallRule, recorder: ActivityRecorder, trained_s: float) -> bool:
    state = make_state(Claimed(offering=replace(SPOT_A, gpus=1), nodes=1), Launched(2, nodes(2)))
    beat = make_beat(100.0, trained_s=trained_s, activity=recorder.report())
    return stall_reason(rule, make_snapshot(state, make_facts(2, beat=beat)), state.claims[0], at(101)) is not None
