"""A notice leaves 30 s, and perhaps 11: the training is told first, and has its share of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import checkpoint_world
import pytest
from plain_store import wait_for

from stoker.agent.runtime import Command, HostRuntime
from stoker.agent.supervise import EndRequest, Training, flush_reserve_s
from stoker.processes import TRAINING, make_group
from stoker.testing.memory_store import MemoryStore

LIMIT_S = 60.0

# A fixture that tests of checkpoints share.
memory = checkpoint_world.memory

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def a_training(tmp_path: Path, script: str = STUBBORN) -> Training:
    (tmp_path / "train.py").write_text(script)
    group = make_group(TRAINING, f"t-{os.getpid()}-{tmp_path.name}", sessions=tmp_path / "sessions")
    training = Training(HostRuntime(group), threading.Event())
    log = tmp_path / "log"
    command = Command((sys.executable, str(tmp_path / "train.py")), dict(os.environ), tmp_path)
    training.start(command, log)
    wait_for(lambda: "ready" in log.read_text())
    return training


def test_a_notice_during_a_longer_grace_cuts_it(tmp_path: Path) -> None:
    """A job that is stopped has a minute to save. Then its machine is reclaimed."""
    training = a_training(tmp_path)
    ending = EndRequest("stop", "somebody asked", 600.0)
    began_s = time.monotonic()
    given: list[float] = []
    training.notify(ending, tmp_path / "notice")
    ended = training.end(ending, tmp_path / "notice", lambda s, _: bool(given.append(s)), lambda: began_s + 4.0)
    assert time.monotonic() - began_s < LIMIT_S, "it would have had 440 s"
    assert ended.deadline_s == began_s + 4.0 and ended.signal == signal.SIGKILL
    assert len(given) == 1 and given[0] <= 1.0
    told = json.loads((tmp_path / "notice").read_text())["deadline_monotonic"]
    assert told == pytest.approx(began_s + 3.0, abs=0.5)


def test_the_training_is_told_before_anything_else_can_hang(tmp_path: Path) -> None:
    training = a_training(tmp_path)
    # A file that cannot be written, as on a full disk.
    ending = EndRequest("notice", "gone", 0.5)
    training.notify(ending, tmp_path / "nowhere" / "notice")
    wait_for(lambda: "heard" in (tmp_path / "log").read_text())
    training.end(ending, tmp_path / "nowhere" / "notice", lambda *_: True)


def test_of_eleven_seconds_the_training_has_eight() -> None:
    assert 11.0 - flush_reserve_s(11.0) == pytest.approx(8.25)
    assert 30.0 - flush_reserve_s(30.0) == pytest.approx(22.5)
    assert 600.0 - flush_reserve_s(600.0) == 590.0


def test_the_share_of_the_machine_is_what_it_was_told(tmp_path: Path, memory: MemoryStore) -> None:
    """The exit tells the grace that counted, not the one that was promised first."""
    training = a_training(tmp_path)
    ending = EndRequest("notice", "gone", 60.0)
    training.notify(ending, tmp_path / "notice")
    ended = training.end(ending, tmp_path / "notice", lambda *_: True, lambda: time.monotonic() + 1.0)
    assert ended.save is not None and ended.save.grace_s is not None and ended.save.grace_s < 60.0
    assert replace(ended.save).ended_s is not None
