"""Chaos: kill -9 of agent, training, governor and whole machines at random moments.

Each seed is one story. STOKER_CHAOS_SEEDS=40 tells forty of them; a failing one is named by its seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from harness import PATIENCE_S, World, chain, until

from stoker.core.governor_settings import DEFAULT
from stoker.core.poisoned_checkpoints import poisoned_checkpoints
from stoker.model.errors import StokerError

SEEDS = range(int(os.environ.get("STOKER_CHAOS_SEEDS", "2")))
STEPS = 72
# Below the number of attempts without progress that ends a job, so that bad luck alone cannot end it.
MOST_KILLS = 4


def rampage(world: World, job: str, rng: random.Random, victims: list[str]) -> list[str]:
    """Kill now this, now that, with a governor to carry on; until the job has ended. Answers what was killed."""
    killed: list[str] = []
    governor = world.start("govern", "--watch")
    deadline = time.monotonic() + PATIENCE_S
    while world.state(job).ended is None:
        assert time.monotonic() < deadline, f"killed {killed}\n{world.story(job)}"
        time.sleep(rng.uniform(0.2, 2.5))
        if len(killed) < MOST_KILLS:
            victim = rng.choice(victims)
            if victim == "governor":
                governor.kill()
                governor.wait()
                killed.append(victim)
            elif victim == "notice":
                killed += give_notice(world, job, rng)
            elif victim == "store":
                hide_store(world, rng)
                killed.append(victim)
            elif world.kill(victim):
                killed.append(victim)
        if governor.poll() is not None:
            governor = world.start("govern", "--watch")
    return killed


def give_notice(world: World, job: str, rng: random.Random) -> list[str]:
    """A reclaim with a grace that may be too short for anything."""
    grace_s, node = rng.choice([0.0, 0.5, 2.0, 10.0]), rng.choice([0, 1])
    try:
        world.interrupt(job, grace_s=grace_s, node=node)
    except StokerError:
        return []  # No machine at this moment, or no such node.
    return [f"notice of {grace_s:g} s to node {node}"]


def hide_store(world: World, rng: random.Random) -> None:
    """The store is away for a moment."""
    elsewhere = world.root / "elsewhere"
    world.folder.rename(elsewhere)
    time.sleep(rng.uniform(0.1, 3.0))
    elsewhere.rename(world.folder)


def judge(world: World, job: str, killed: list[str]) -> None:
    """The job finished right, nobody trained beside another, and nothing that was durable was lost."""
    summary = world.ended(job)
    story = f"killed {killed}\n{world.story(job)}"
    assert summary.phase == "succeeded", story
    assert [record.text for record in world.journal("finish")][-1] == chain(STEPS), story
    assert (world.outputs(job) / "result.txt").read_text() == chain(STEPS), story
    assert not world.journal("overlap"), story

    durable = [record for record in world.journal("durable") if record.rank == 0]
    # Kills from outside give up on none.
    given_up = {int(key.rpartition("-")[2]) for key in poisoned_checkpoints(world.state(job), DEFAULT).checkpoints}
    for start in world.journal("start"):
        steps = (record.step for record in durable if record.attempt < start.attempt and record.step not in given_up)
        before = max(steps, default=0)
        assert start.step >= before, f"attempt {start.attempt} lost step {before}\n{story}"
    kept = {one.name for one in world.checkpoints(job) if one.complete}
    # The newest ones, of which `keep` are kept.
    newest = sorted({record.step for record in durable})[-2:]
    assert {f"step-{step}" for step in newest} <= kept, story


@pytest.mark.parametrize("seed", SEEDS)
def test_agent_training_and_governor(world: World, seed: int) -> None:
    world.script("counter.py")
    rng = random.Random(seed)
    settings = {"steps": STEPS, "pause": 0.06, "every": 4, "sure": 1}
    job = world.submit(detach=False, params=settings, outputs="out", checkpoints={"keep": 3})
    killed = rampage(world, job, rng, ["agent", "training", "governor"])
    judge(world, job, killed)
    # The machine lived on, so every line that was ever printed is there, each once, in order.
    logged = [line for line in world.lines(job) if line.startswith("a")]
    printed = [record.text for record in world.journal("line")]
    missing = [line for line in printed if line not in set(logged)]
    assert not missing, f"lost lines: {missing[:5]}\nkilled {killed}\n{world.story(job)}"
    assert len(logged) == len(set(logged)), "a line came twice"


@pytest.mark.parametrize("seed", SEEDS)
def test_machines_that_vanish(world: World, seed: int) -> None:
    world.script("counter.py")
    rng = random.Random(1000 + seed)
    settings = {"steps": STEPS, "pause": 0.06, "every": 4, "sure": 1}
    job = world.submit(detach=False, params=settings, outputs="out", checkpoints={"keep": 3})
    killed = rampage(world, job, rng, ["supervisor", "supervisor", "governor", "agent"])
    judge(world, job, killed)
    # The end of a vanished machine's log went with it. What is there is in order, and nothing came twice.
    logged = [line for line in world.lines(job) if line.startswith("a")]
    printed = [record.text for record in world.journal("line")]
    places = [printed.index(line) for line in logged if line in printed]
    assert places == sorted(set(places))


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_on_several_nodes(world: World, seed: int) -> None:
    world.script("counter.py")
    rng = random.Random(2000 + seed)
    settings = {"steps": STEPS, "pause": 0.06, "every": 4, "sure": 1}
    job = world.submit(detach=False, nodes=2, params=settings, outputs="out", checkpoints={"keep": 3})
    killed = rampage(world, job, rng, ["agent", "training", "governor", "supervisor", "notice", "store"])
    judge(world, job, killed)


TRAINS_TWICE = """
import pathlib, time
began = pathlib.Path(FOLDER, "began")
if began.exists():
    raise SystemExit(0)
began.touch()
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_script_that_a_person_ends_by_hand_is_started_again(world: World, number: int) -> None:
    (world.code / "train.py").write_text(TRAINS_TWICE.replace("FOLDER", repr(str(world.root))))
    job = world.submit()
    until(lambda: (world.root / "began").exists(), "it trains")
    assert world.processes("training")[0].signal(number)
    assert world.ended(job).phase == "succeeded", world.story(job)
    first = world.state(job).claims[0].closed
    assert first is not None and (first.outcome, first.rule) == ("infrastructure", "killed"), world.story(job)


def test_the_lock_tells_two_trainings_apart_from_one(world: World) -> None:
    """The proof that nobody trains twice rests on it: two at once are noticed, one after the other are not."""
    world.script("counter.py")
    alone = [sys.executable, "train.py", "--steps", "2", "--pause", "0"]
    for _ in range(2):
        subprocess.run(alone, cwd=world.code, env=world.environ(), check=True, capture_output=True)
    assert not world.journal("overlap")
    endless = [sys.executable, "train.py", "--steps", "1000000"]
    first = subprocess.Popen(endless, cwd=world.code, env=world.environ(), stdout=subprocess.DEVNULL)
    try:
        until(lambda: len(world.journal("start")) == 3, "the first one trains")
        second = subprocess.run(alone, cwd=world.code, env=world.environ(), capture_output=True)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 97
    assert len(world.journal("overlap")) == 1
