"""A training whose side thread talks on in a hang, and one that a person has stopped by hand."""

from __future__ import annotations

import os
import signal

from harness import World, until

from stoker.model.observed import Known
from stoker.store import node_facts

RULES = "rules:\n- {name: hangs, stall: {window: 2s, windows: 2, after: 1s}}\n"

TALKS = """\
import os, threading, time
from stoker import train
def talk():
    while True:
        print("still syncing", flush=True)
        time.sleep(0.5)
threading.Thread(target=talk, daemon=True).start()
for step in range(1, 6):
    train.report(step=step, loss=1.0 / step)
    time.sleep(0.2)
    if step == 3 and os.environ["STOKER_ATTEMPT"] == "1":
        lock = threading.Lock(); lock.acquire(); lock.acquire()
print("finished", flush=True)
"""

STOPS = """\
import os, time
from pathlib import Path
from stoker import train
train.report(step=1)
Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
while not Path(os.environ["PID_FILE"] + ".go").exists():
    time.sleep(0.1); sum(range(300_000))
train.report(step=2)
print("finished", flush=True)
"""


def rules(world: World, text: str) -> None:
    path = world.root / "policy.yaml"
    path.write_text(text)
    told = world.cli("policy", "set", str(path))
    assert told.returncode == 0, told.stderr


def test_lines_of_a_side_thread_do_not_hide_a_hang(world: World) -> None:
    world.write(TALKS)
    rules(world, RULES)
    summary = world.run(checkpoints={"grace": "1s"})
    assert summary.outcome == "succeeded", world.story(summary.id)
    first, _ = summary.attempts
    assert (first.outcome, first.rule) == ("infrastructure", "policy:hangs"), world.story(summary.id)
    assert "no step and no work" in first.reason


def test_a_training_that_is_stopped_by_hand_is_told_once_and_not_ended(world: World) -> None:
    world.write(STOPS)
    rules(world, RULES)
    file = world.root / "pid"
    job = world.submit(env={"PID_FILE": str(file)})
    until(lambda: file.exists() and file.read_text().isdigit(), "it trains")
    pid = int(file.read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: "in a debugger" in world.cli("explain", job).stdout, "that is told")
        # Several times as long as the rule has patience for.
        until(lambda: held_s(world, job) > 20, "it is held for long")
    finally:
        os.kill(pid, signal.SIGCONT)
    (world.root / "pid.go").touch()
    summary = world.ended(job)
    assert summary.outcome == "succeeded" and len(summary.attempts) == 1, world.story(job)
    assert world.cli("explain", job).stdout.count("in a debugger") == 1


def held_s(world: World, job: str) -> float:
    (claim,) = world.state(job).open_claims
    (node,) = node_facts.read_claim(world.store, job, claim)
    assert isinstance(node.heartbeat, Known) and node.heartbeat.value is not None
    activity = node.heartbeat.value.value.activity
    return (activity.debugged_s or 0.0) if activity is not None else 0.0
