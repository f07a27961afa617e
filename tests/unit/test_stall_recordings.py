"""What a real GPU showed, played back a second at a time: what hangs is found, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.playback import AT_WORK, HUNG, RECORDED, RULE, play


@pytest.mark.parametrize("name", sorted(AT_WORK))
def test_a_training_that_does_something_is_never_called_stalled(name: str) -> None:
    assert len(RECORDED[name]["gpu"]) == 40
    assert play(name) == []


@pytest.mark.parametrize("name", sorted(HUNG))
def test_one_that_hangs_is_found(name: str) -> None:
    found = play(name)
    assert found and found[-1] == len(RECORDED[name]["gpu"]) - 1, "and stays so"
    # It takes the windows, and a look or two to see that nothing works.
    begun = next(second for second in range(40) if RECORDED[name]["lines"][second] > 0)
    assert found[0] - begun <= 12 + 4


@pytest.mark.parametrize("name", sorted(HUNG))
def test_what_cannot_be_read_is_not_idle(name: str) -> None:
    length = len(RECORDED[name]["gpu"])
    assert play(name, gpu=[None] * length) == []
    assert play(name, cpu_s=[None] * length) == []
    assert play(name, others=1) == [], "one of two accelerators cannot be read"


def test_one_that_only_its_processors_work_for_is_given_longer() -> None:
    assert play("compiling", replace(RULE, working_s=60.0)) == []
    assert play("compiling", replace(RULE, working_s=10.0)), "and is not given for ever"


def test_a_young_training_is_left_alone() -> None:
    assert play("deadlock", replace(RULE, after_s=100.0)) == []
