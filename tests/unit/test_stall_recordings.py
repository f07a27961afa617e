"""What a real GPU showed (scripts/record_usage.py, on an H200), played back a second at a time: what hangs is found,
and nothing else is. Windows are shorter than a house's, by as much as the recordings are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent import activity
from stoker.agent.activity import ActivityRecorder, Look
from stoker.core.stalls import stalled
from stoker.model import Claimed, Launched
from stoker.rules import Stall
from stoker.testing.sim_data import SPOT_A, at, make_beat, make_facts, make_snapshot, make_state, nodes

RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "recordings" / "usage.json").read_text())
HUNG = {"deadlock", "native-deadlock", "stuck-loader"}
# Of what was recorded, these are too short to tell anything.
SHORT = {"loading"}
RULE = Stall(window_s=4.0, windows=3, after_s=4.0, working_s=1e6)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def play(name: str, rule: Stall, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[int]:
    """The seconds at which the rule says that it stands still."""
    recorded = {**RECORDED[name], **changes}
    clock = Clock()
    # The recordings have a sample a second.
    monkeypatch.setattr(activity, "PERIOD_S", 1.0)
    recorder = ActivityRecorder(lambda: Look((), None, None), others=changes.get("others", 0), monotonic=clock)
    recorder._began_s = recorder._moved_s = recorder._worked_s = clock.now_s
    found, lines = [], 0.0
    for second in range(len(recorded["gpu"])):
        clock.now_s += 1.0
        parts = [recorded["disk_bytes"][second], recorded["net_bytes"][second]]
        moved = sum(part for part in parts if part is not None)
        share = recorded["gpu"][second]
        recorder.take(Look((None if share is None else share / 100,), recorded["cpu_s"][second], moved))
        recorder.stepped(recorded["step"][second])
        if recorded["lines"][second] > lines:
            lines = recorded["lines"][second]
            recorder.heard(b"loss=0.5\n")
        if told(rule, recorder, second + 1.0):
            found.append(second)
    return found


def told(rule: Stall, recorder: ActivityRecorder, trained_s: float) -> str | None:
    offering = replace(SPOT_A, gpus=1)
    state = make_state(Claimed(offering=offering, nodes=1), Launched(2, nodes(2)))
    beat = make_beat(100.0, trained_s=trained_s, activity=recorder.fact())
    job = make_snapshot(state, make_facts(2, beat=beat))
    return stalled(rule, job, state.claims[0], at(101))


@pytest.mark.parametrize("name", sorted(set(RECORDED) - HUNG - SHORT))
def test_a_training_that_does_something_is_never_called_stalled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(name, RULE, monkeypatch) == []


@pytest.mark.parametrize("name", sorted(HUNG))
def test_one_that_hangs_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = play(name, RULE, monkeypatch)
    assert found and found[-1] == len(RECORDED[name]["gpu"]) - 1, "and stays so"
    # It takes the windows, and a look or two to see that nothing works.
    begun = next(second for second in range(40) if RECORDED[name]["lines"][second] > 0)
    assert found[0] - begun <= 12 + 4


@pytest.mark.parametrize("name", sorted(HUNG))
def test_what_cannot_be_read_is_not_idle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(RECORDED[name]["gpu"])
    assert play(name, RULE, monkeypatch, gpu=[None] * length) == []
    assert play(name, RULE, monkeypatch, cpu_s=[None] * length) == []
    assert play(name, RULE, monkeypatch, others=1) == [], "one of two accelerators cannot be read"


def test_one_that_only_its_processors_work_for_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play("compiling", replace(RULE, working_s=60.0), monkeypatch) == []
    assert play("compiling", replace(RULE, working_s=10.0), monkeypatch), "and is not given for ever"


def test_a_young_training_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play("deadlock", replace(RULE, after_s=100.0), monkeypatch) == []
