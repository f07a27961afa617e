"""The long weekend: a training that hangs in native code is noticed, looked at, ended and goes on by itself."""

from __future__ import annotations

import pytest
from harness import World

from stoker.agent.health.stack_dump import find_py_spy
from stoker.store.base import open_store

HANGS = """\
import ctypes, os, sys, time
from pathlib import Path
from stoker import train
folder = train.checkpoint_dir()
saved = sorted(folder.glob("step-*"))
step = int(saved[-1].name.split("-")[1]) if saved else 0
def hang():
    c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    c.pthread_mutex_init(mutex, None)
    c.pthread_mutex_lock(mutex)
    c.pthread_mutex_lock(mutex)
while step < 6:
    step += 1
    time.sleep(0.1)
    with train.checkpoint(f"step-{step}", step=step) as new:
        (new / f"step-{step}").write_text("saved")
    print("step", step, flush=True)
    if step == 3 and os.environ["STOKER_ATTEMPT"] == "1":
        hang()
print("finished", flush=True)
"""


def rules(world: World, text: str) -> None:
    path = world.root / "policy.yaml"
    path.write_text(text)
    told = world.cli("policy", "set", str(path))
    assert told.returncode == 0, told.stderr


def test_a_hang_in_native_code_is_noticed_and_the_job_finishes(world: World) -> None:
    world.write(HANGS)
    rules(world, "rules:\n- {name: hangs, stall: {window: 2s, windows: 2, after: 1s}}\n")
    summary = world.run(checkpoints={"grace": "1s"})
    assert summary.outcome == "succeeded", world.story(summary.id)
    first, second = summary.attempts
    assert (first.outcome, first.rule) == ("infrastructure", "policy:hangs")
    assert "no step, no line of the log and no work" in first.reason
    assert second.restored_from is not None and "step-3" in second.restored_from
    store = open_store(world.url)
    kept = [meta.key for meta in store.list(f"work/{summary.id}/") if "/evidence/" in meta.key]
    assert len(kept) == 1, world.story(summary.id)
    found = store.get(kept[0])
    assert found is not None
    text = found.data.decode()
    assert text.splitlines()[1] in world.cli("logs", "--evidence", summary.id).stdout
    assert "── processes" in text and "train.py" in text and "step 3" in text
    if find_py_spy() is not None:
        assert "hang" in text and "pthread_mutex_lock" in text, text


def test_audit_tells_and_touches_nothing(world: World) -> None:
    world.write(HANGS.replace("        hang()", "        time.sleep(6)"))
    rules(world, "rules:\n- {name: hangs, stall: {window: 1s, windows: 2, after: 1s}, audit: true}\n")
    summary = world.run()
    assert summary.outcome == "succeeded" and len(summary.attempts) == 1, world.story(summary.id)
    assert "policy hangs (audit)" in world.cli("explain", summary.id).stdout
    assert not [meta for meta in open_store(world.url).list(f"work/{summary.id}/") if "/evidence/" in meta.key]


def test_a_set_up_that_waits_for_a_password_is_noticed_and_the_next_attempt_trains(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("print('trained', flush=True)\n")
    rules(world, "rules:\n- {name: hangs, stall: {window: 2s, windows: 2, after: 1s}}\n")
    asked = world.root / "asked"
    # As git does where there is nobody to ask, and as nobody is the second time.
    hangs = f"[ -e {asked} ] || {{ touch {asked}; echo Password: ; sh -c 'sleep 1000; true' --token=$TOKEN; }}"
    monkeypatch.setenv("STANDSTILL_TOKEN", "hunter2-hunter2")
    summary = world.run(setup=hangs, secrets={"TOKEN": "env:STANDSTILL_TOKEN"})
    assert summary.outcome == "succeeded", world.story(summary.id)
    first, second = summary.attempts
    assert (first.outcome, first.rule) == ("infrastructure", "policy:hangs")
    assert "no line of the log and no work for" in first.reason and "before the training (setup)" in first.reason
    assert second.outcome == "succeeded"
    text = world.cli("logs", "--evidence", summary.id).stdout
    assert "sleep 1000" in text and "── the agent" in text and "steps.py" in text
    assert "--token=" in text and "hunter2" not in text


def test_a_gang_that_waits_for_a_set_up_that_hangs_goes_on_together(world: World) -> None:
    world.write("print('trained', flush=True)\n")
    rules(world, "rules:\n- {name: hangs, stall: {window: 2s, windows: 2, after: 1s}}\n")
    asked = world.root / "asked"
    hangs = f"[ $NODE_RANK = 0 ] || [ -e {asked} ] || {{ touch {asked}; exec sleep 1000; }}"
    summary = world.run(nodes=2, setup=hangs)
    assert summary.outcome == "succeeded", world.story(summary.id)
    first, _ = summary.attempts
    assert (first.outcome, first.rule) == ("infrastructure", "policy:hangs")
    assert "before the training (setup)" in first.reason, "the other one waits"
