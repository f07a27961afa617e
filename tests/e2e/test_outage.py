"""A store that is away or full: training goes on, nothing is restarted, and everything arrives afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import World, chain, fields, until

from stoker.governor.loop import Governor


@contextmanager
def away(world: World, *, replaced: bool = False) -> Iterator[None]:
    """The store's folder is gone, or (`replaced`) something else is in its place: not even root can write there."""
    elsewhere = world.root / "elsewhere"
    world.folder.rename(elsewhere)
    if replaced:
        world.folder.touch()
    try:
        yield
    finally:
        if replaced:
            world.folder.unlink()
        # Fails if anybody made a new store in place of the one that was away.
        elsewhere.rename(world.folder)


def steps_of(world: World) -> int:
    return max((record.step for record in world.journal("step")), default=0)


def check_whole(world: World, job: str, steps: int) -> None:
    """One attempt, the right result, every line, every checkpoint."""
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("succeeded",)], world.story(job)
    assert [record.text for record in world.journal("finish")] == [chain(steps)]
    logged = [line for line in world.lines(job) if line.startswith("a1")]
    assert logged == [record.text for record in world.journal("line")]
    assert (world.outputs(job) / "result.txt").read_text() == chain(steps)
    assert world.checkpoints(job)[-1].step == steps
    assert summary.step == steps


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_while_it_trains(world: World, replaced: bool) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 150, "pause": 0.05, "every": 10}, outputs="out")
    world_steps = until(lambda: steps_of(world) if steps_of(world) > 5 else None, "it trains")
    with away(world, replaced=replaced):
        until(lambda: steps_of(world) > world_steps + 80, "it trains on without a store")
    check_whole(world, job, 150)


def test_at_the_end(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 30, "pause": 0.05, "every": 10}, outputs="out")
    until(lambda: steps_of(world) > 5, "it trains")
    with away(world):
        until(lambda: world.journal("finish"), "it finishes without a store")
        until(lambda: not world.processes("training"), "the training is over")
        assert world.processes("agent"), "the agent gave up"
    check_whole(world, job, 30)


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "replaced"])
def test_at_the_start(world: World, replaced: bool) -> None:
    world.script("counter.py")
    job = world.submit(detach=False, params={"steps": 30, "pause": 0.02, "every": 10}, outputs="out")
    Governor(world.store).run_pass()
    with away(world, replaced=replaced):
        until(lambda: world.processes("agent"), "the machine is up")
        until(lambda: any("WARNING" in line for line in world.agents_said()), "its agent looks for the store")
    world.start("govern", "--watch")
    check_whole(world, job, 30)


def test_while_a_reclaim_is_under_way(world: World) -> None:
    """The notice, the save and the exit all fall into the outage, which ends within the grace."""
    world.script("counter.py")
    # It saves when it is told to, and at no other time.
    job = world.submit(params={"steps": 100, "pause": 0.05, "every": 1000}, outputs="out")
    until(lambda: steps_of(world) > 15, "it trains")
    instance = world.instance(job)
    with away(world):
        (node,) = world.home.glob(f"nodes/*/{instance}")
        (node / "interrupt.json").write_text('{"source": "a test", "grace_s": 30}')
        saves = node / "code" / "checkpoints"
        until(lambda: [path for path in saves.glob("step-*") if path.is_dir()], "it saves what it has")
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert [record.step for record in world.journal("step")] == list(range(1, 101)), "a step was trained twice"
    assert not world.journal("overlap")


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """The store on a disk of its own that holds a few MB."""
    if os.geteuid() != 0:
        pytest.fail("a disk of one's own takes root, as CI has")
    world.folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "stoker-e2e", str(world.folder)], check=True)
    try:
        yield world.folder
    finally:
        subprocess.run(["umount", "-l", str(world.folder)], check=True)


def test_a_full_disk(small_disk: Path, world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 120, "pause": 0.05, "every": 5}, outputs="out")
    before = until(lambda: steps_of(world) if steps_of(world) > 10 else None, "it trains")
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    until(lambda: steps_of(world) > before + 60, "it trains on")
    filler.unlink()
    check_whole(world, job, 120)
