"""Reclaims: what a notice costs, and that the job goes on as if nobody had taken anything away."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime

import pytest
from harness import EXAMPLES, PATIENCE_S, World, chain, fields, until

from stoker.agent.checkpoints.sync_options import LOCAL_SETTLE_S


def test_nothing_is_trained_twice(world: World) -> None:
    spirals = EXAMPLES / "spirals"
    sizes = {"steps": 1000, "batch": 400}
    job = world.submit(run="python train.py", code=str(spirals), params=sizes, outputs="artifacts")
    until(lambda: (world.summary(job).step or 0) > 10, "the first steps are reported")
    world.interrupt(job, grace_s=30)
    until(lambda: len(world.state(job).attempts) == 2, "the next attempt is launched")
    summary = world.ended(job)

    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    first, second = summary.attempts
    assert first.step is not None and 10 < first.step < 1000
    assert second.first_step == first.step + 1
    assert summary.interruptions == 1
    assert first.save is not None and first.save.durable_s is not None

    bare = [sys.executable, str(spirals / "train.py"), *(f"--{name}={value}" for name, value in sizes.items())]
    alone = subprocess.run(bare, cwd=world.root, capture_output=True, text=True, check=True).stdout
    (expected,) = re.findall(r"weights (\w+)", alone)
    assert re.findall(r"weights (\w+)", "\n".join(world.lines(job))) == [expected]


def test_the_next_machine_is_up_before_the_old_one_leaves(world: World) -> None:
    # The script takes its time to save, as large models do: until the next machine has been heard of.
    world.write(
        "import os, pathlib, time\n"
        "from stoker import train\n"
        "if train.latest() is not None: raise SystemExit\n"
        "train.interrupted()\n"
        "print('trains')\n"
        "while not train.interrupted(): time.sleep(0.05)\n"
        "while not pathlib.Path(os.environ['TRUTH'], 'go').exists(): time.sleep(0.05)\n"
        "with train.checkpoint('last') as folder: (folder / 'x').write_text('x')\n"
        "print('saved')\n"
    )
    job = world.submit()
    until(lambda: "trains" in world.lines(job), "training")
    world.interrupt(job, grace_s=PATIENCE_S)

    def waits() -> bool:
        """The second attempt's agent is ready, and waits to be allowed to train."""
        claims = [claim for claim in world.state(job).attempts if claim.attempt == 2]
        beats = [world.heartbeat(job, claim) for claim in claims]
        return any(beat is not None and beat.phase == "waiting" for beat in beats)

    until(waits, "attempt 2 waits while attempt 1 saves")
    (world.truth / "go").touch()
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    first, after = summary.attempts
    assert first.left_at is not None and after.training_since is not None
    # One clock: the store's folder and the agents are on this computer.
    assert first.left_at <= after.training_since


def test_a_short_grace_on_a_script_that_ignores_it(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 120, "pause": 0.05, "every": 5, "stubborn": 1})
    world.training(job, step=12)
    until(lambda: world.checkpoints(job), "a checkpoint")
    world.interrupt(job, grace_s=1.5)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert world.journal("finish")[0].text == chain(120)
    assert not world.journal("overlap")
    starts = [record.step for record in world.journal("start")]
    lost = max(record.step for record in world.journal("step") if record.attempt == 1) - starts[1]
    # At most what was not saved, and the save that was under way.
    assert starts[0] == 0 and starts[1] > 0 and lost <= 10


def test_a_script_that_knows_nothing_of_stoker(world: World) -> None:
    world.script("unaware.py")
    job = world.submit(run="python train.py 120")
    until(lambda: world.journal("save"), "the first save")
    until(lambda: world.checkpoints(job), "it is committed")
    world.interrupt(job, grace_s=5)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    (second,) = [record.step for record in world.journal("start") if record.attempt == 2]
    # It may have been killed between a save and the note of it.
    assert second >= max(record.step for record in world.journal("save") if record.attempt == 1), world.story(job)
    assert "finished at 120" in world.lines(job)


def test_two_notices_at_once(world: World) -> None:
    world.script("counter.py")
    job = world.submit(params={"steps": 80, "pause": 0.05})
    world.training(job, step=3)
    world.interrupt(job, grace_s=20)
    world.interrupt(job, grace_s=10)
    # And the machine that takes over is given notice while it still waits, or has just begun.
    until(lambda: len(world.state(job).attempts) >= 2, "the next attempt is launched")
    world.interrupt(job, grace_s=10)
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert [attempt.outcome for attempt in summary.attempts[:-1]] == ["reclaimed"] * (len(summary.attempts) - 1)
    assert world.journal("finish")[0].text == chain(80)
    steps = [record.step for record in world.journal("step")]
    assert steps == list(range(1, 81)), "a step was trained twice"
    assert not world.journal("overlap")


def test_a_market_that_takes_and_takes(world: World) -> None:
    world.script("counter.py")
    # With this seed the first three machines are taken after 2.7, 2.8 and 2.4 s.
    market = {"reclaim_mean": "3s", "grace": "3s", "seed": 16882}
    # Never on-demand: the job has to make its way through reclaims.
    job = world.submit(
        params={"steps": 100, "pause": 0.08}, resources={"spot": True, "local": market}, retry={"on_demand_after": None}
    )
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert summary.interruptions >= 3
    assert [record.step for record in world.journal("step")] == list(range(1, 101)), "a step was trained twice"
    assert world.journal("finish")[0].text == chain(100)
    assert not world.journal("overlap")
    assert isinstance(summary.ended_at, datetime)


def test_a_script_that_saves_elsewhere_is_told_so_and_nothing_is_claimed(world: World) -> None:
    world.write(
        "import pathlib, time\n"
        "from stoker import train\n"
        "pathlib.Path('out').mkdir(exist_ok=True)\n"
        "pathlib.Path('out/ckpt.pt').write_text('x')\n"
        "print('saved', flush=True)\n"
        "time.sleep(600 if train.attempt() == 1 else 0)\n"
    )
    job = world.submit()
    until(lambda: "saved" in world.lines(job), "it saves")
    world.interrupt(job, grace_s=10)
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    nothing = "nothing was saved: no file was written to checkpoints/; out/ckpt.pt looks like a save: "
    advice = "write `checkpoints: {dir: out}` in the job file"
    lines = world.lines(job)
    assert f"[stoker] {nothing}{advice}" in lines, lines
    assert "[stoker] attempt 2, starting from the beginning: there is no checkpoint" in lines, lines
    shown = world.cli("show", job).stdout
    assert f" → {nothing}{advice} → attempt 2 from the beginning" in shown, shown
    assert "durable" not in shown and "saved 0" not in shown
    told = world.cli("explain", job).stdout
    assert f"{nothing}{advice}; the next attempt starts from the beginning" in told, told


@pytest.mark.parametrize("killed", ["training", "agent", "supervisor", "stop"])
def test_however_it_ends_nothing_is_claimed_of_a_script_that_saves_elsewhere(world: World, killed: str) -> None:
    """A lost machine says nothing more: its last heartbeat need not know the files."""
    world.write(
        "import pathlib, time\n"
        "from stoker import train\n"
        "pathlib.Path('snapshot.pt').write_text('x')\n"
        "print('saved', flush=True)\n"
        "time.sleep(600 if train.attempt() == 1 else 0)\n"
    )
    job = world.submit()
    until(lambda: "saved" in world.lines(job), "it saves")
    if killed == "stop":
        assert world.cli("stop", job).returncode == 0
    else:
        assert world.kill(killed)
    summary = world.ended(job)
    assert summary.phase == ("stopped" if killed == "stop" else "succeeded"), world.story(job)
    nothing = "nothing was saved: no file was written to checkpoints/"
    advice = '; snapshot.pt looks like a save: write `checkpoints: {dir: "snapshot.pt"}` in the job file'
    head = {"training": "cut off", "agent": "cut off", "supervisor": "lost", "stop": "stopped"}[killed]
    shown, told, lines = world.cli("show", job).stdout, world.cli("explain", job).stdout, world.lines(job)
    assert f"    {head} → {nothing}" in shown and "durable" not in shown, shown
    if killed != "supervisor":
        assert f"[stoker] {nothing}{advice}" in lines, lines
        assert f"{nothing}{advice}" in shown and f"{nothing}{advice}" in told, shown + told
    if killed != "stop":
        assert f"{nothing}" in told and "; the next attempt starts from the beginning" in told, told
        assert "[stoker] attempt 2, starting from the beginning: there is no checkpoint" in lines, lines
    assert "would lose everything" not in shown, "it has ended"


def test_a_machine_that_is_taken_in_the_middle_of_a_save(world: World) -> None:
    """The script has no handler: it dies of SIGTERM with its file half written."""
    world.write(
        "import json, os, pathlib, time\n"
        "path = pathlib.Path('checkpoints/model.json')\n"
        "path.parent.mkdir(exist_ok=True)\n"
        "step = json.loads(path.read_text())['step'] if path.exists() else 0\n"
        "print('from', step)\n"
        "if step == 1: raise SystemExit\n"
        "path.write_text(json.dumps({'step': 1, 'weights': [1] * 1000}))\n"
        "while not pathlib.Path(os.environ['TRUTH'], 'go').exists(): time.sleep(0.05)\n"
        "text = json.dumps({'step': 2, 'weights': [2] * 1000})\n"
        "with path.open('w') as file:\n"
        "    for start in range(0, len(text), 10):\n"
        "        file.write(text[start:start + 10])\n"
        "        file.flush()\n"
        "        if start == 50: print('saves')\n"
        "        time.sleep(0.05)\n"
    )
    job = world.submit()
    until(lambda: world.checkpoints(job), "the first save is committed")
    (world.truth / "go").touch()
    until(lambda: "saves" in world.lines(job), "it saves again")
    world.interrupt(job, grace_s=5)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert [line for line in world.lines(job) if line.startswith("from")] == ["from 0", "from 1"]
    told = [line for line in world.lines(job) if "is not part of the checkpoint" in line]
    assert told == [
        "[stoker] model.json is not part of the checkpoint: its JSON is cut off; the checkpoint stays at model (1.1)"
    ]


def test_a_file_that_rests_half_written_when_its_agent_is_killed_is_no_checkpoint(world: World) -> None:
    """The training dies with its agent, and its file is closed like any other."""
    world.write(
        "import os, pathlib, time\n"
        "path = pathlib.Path('checkpoints/model.bin')\n"
        "path.parent.mkdir(exist_ok=True)\n"
        "found = path.read_text() if path.exists() else ''\n"
        "print('found', found, flush=True)\n"
        "if found: raise SystemExit\n"
        "path.write_text('whole')\n"
        "while not pathlib.Path(os.environ['TRUTH'], 'go').exists(): time.sleep(0.05)\n"
        "with path.open('w') as file:\n"
        "    file.write('half')\n"
        "    file.flush()\n"
        "    print('waits', flush=True)\n"
        "    time.sleep(600)\n"
    )
    job = world.submit()
    until(lambda: world.checkpoints(job), "the first save is committed")
    (world.truth / "go").touch()
    until(lambda: "waits" in world.lines(job), "the second save is half written")
    (stamp,) = world.root.rglob("scratch/alive")
    (written,) = [path for path in world.root.rglob("checkpoints/model.bin") if path.read_text() == "half"]
    rested_s = LOCAL_SETTLE_S + 1.0
    until(
        lambda: stamp.stat().st_mtime > written.stat().st_mtime + rested_s,
        "the file has rested for longer than the folder takes to settle",
    )
    assert world.kill("agent")
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert "found whole" in world.lines(job), world.lines(job)
