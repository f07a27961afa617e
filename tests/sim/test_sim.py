"""Thousands of seeds against the real governor. A seed that fails prints its trace and replays by its number:

python -m tests.support.sim SEED
"""

from __future__ import annotations

import os

import pytest

from tests.support.sim import Result, simulate

SEEDS = int(os.environ.get("STOKER_SIM_SEEDS", "2000"))
# Batches, so that xdist can share them out and a failure does not hide the others for long.
BATCHES = 30


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_invariant_holds(batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        result = simulate(seed)
        assert result.violation is None, told(result)


def told(result: Result) -> str:
    return "\n".join(
        [
            f"seed {result.seed}: {result.violation}",
            *result.trace,
            f"replay it: python -m tests.support.sim {result.seed}",
        ]
    )


def test_the_same_seed_tells_the_same_story() -> None:
    assert simulate(11) == simulate(11)


HAPPENINGS = {
    "crashes before",
    "the reply is lost",
    "stale list",
    "no capacity",
    "hard notice",
    "vanishes",
    "is cut off",
    "the agent of",
    "the store is out",
    "never boots",
    "draining",
    "suspected",
    " stop:",
    " resume:",
    "only 1 of",
    "reclaimed after a notice",
    "failed on checkpoint",
    "was given notice",
    "saves (peer)",
    "saves (limit)",
    "it was not launched in time, and a launch now might be a second one",
    "stays for a look",
    "leaves: the hold is over",
    "leaves: no job keeps the machine",
    "lands late: put",
    "lands late: create",
    "lands late: delete",
    "once more",
    "is removed",
    "is cut short",
}


def test_the_seeds_reach_what_they_are_for() -> None:
    """A simulation in which nothing happens would prove nothing."""
    outcomes, happenings = {"succeeded", "failed", "stopped"}, set(HAPPENINGS)
    for seed in range(250):
        result = simulate(seed)
        everything = "\n".join(result.trace)
        outcomes -= set(result.outcomes)
        happenings -= {happening for happening in happenings if happening in everything}
        if not outcomes and not happenings:
            return
    pytest.fail(f"no seed reaches {outcomes | happenings}")
