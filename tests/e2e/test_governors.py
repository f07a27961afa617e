"""Who governs does not matter: many at once, nobody for a while, a terminal that is closed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading

from harness import World, chain, fields, until

from stoker.governor.loop import Governor
from stoker.model.log_entries import Claimed, Closed, Launched
from stoker.store import job_log


def test_many_governors_race_through_a_reclaim(world: World) -> None:
    world.script("counter.py")
    job = world.submit(detach=False, params={"steps": 120, "pause": 0.05})
    for _ in range(2):
        world.start("govern", "--watch")
    # And passes as close to one another as they can be, as a burst of events would start them.
    enough = threading.Event()

    def hurry() -> None:
        while not enough.is_set():
            Governor(world.store).run_pass()

    threads = [threading.Thread(target=hurry, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        world.training(job, step=5)
        world.interrupt(job, grace_s=20)
        world.training(job, attempt=2)
        world.interrupt(job, grace_s=20)
        summary = world.ended(job)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    story = world.story(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("reclaimed",), ("succeeded",)], story
    assert [record.step for record in world.journal("step")] == list(range(1, 121)), "a step was trained twice"
    assert not world.journal("overlap"), story
    # Each claim was launched once and closed once, whoever did it.
    events = [entry.event for entry in job_log.entries(world.store, job, 1)]
    claims = [event for event in events if isinstance(event, Claimed)]
    assert len(claims) == len([event for event in events if isinstance(event, Launched)]) == 3, story
    assert len([event for event in events if isinstance(event, Closed)]) == 2, story


def test_nobody_governs_for_a_while(world: World) -> None:
    """The only governor is killed; the machine minds itself; one pass at any later time carries on."""
    world.script("counter.py")
    job = world.submit(detach=False, params={"steps": 40, "pause": 0.05})
    governor = world.start("govern", "--watch")
    world.training(job, step=3)
    governor.kill()
    governor.wait()
    world.interrupt(job, grace_s=10)
    until(lambda: not world.processes("supervisor"), "the machine saves, says so and goes")
    assert world.state(job).ended is None
    assert world.cli("govern").returncode == 0
    # That pass closed the attempt and launched the next, which needs nobody until it is done.
    until(lambda: world.journal("finish"), "it finishes")
    until(lambda: not world.processes("supervisor"), "its machine goes")
    assert world.cli("govern").returncode == 0
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert [record.step for record in world.journal("step")] == list(range(1, 41))


def test_detached(world: World) -> None:
    world.script("counter.py")
    command = ["run", "--detach", "--env", f"TRUTH={world.truth}", "--", "python", "train.py", "--steps", "60"]
    done = world.cli(*command)
    assert done.returncode == 0, done.stderr
    (job,) = done.stdout.split()
    assert done.stdout == f"{job}\n"
    assert world.state(job).ended is None, "it was not detached"
    until(lambda: world.processes("governor"), "a governor carries on")
    # A second one does not start another.
    again = world.cli("run", "--detach", "--", "python", "-c", "print('done')")
    assert again.returncode == 0 and len(world.processes("governor")) == 1
    assert world.ended(job).phase == "succeeded"
    assert world.ended(again.stdout.strip()).phase == "succeeded"
    until(lambda: not world.processes("governor"), "the governor ends when no job is active")


def test_a_closed_terminal_ends_nothing(world: World) -> None:
    world.script("counter.py")
    command = ["run", "--env", f"TRUTH={world.truth}", "--", "python", "train.py", "--steps", "100"]
    shell, child = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", LEADER, sys.executable, "-m", "stoker.cli", *command],
        cwd=world.code,
        env=world.environ(),
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    reader = threading.Thread(target=_drain, args=(shell,), daemon=True)
    reader.start()
    (job,) = until(lambda: [row["id"] for row in listed(world)], "it is submitted")
    world.training(job, step=5)
    # What the kernel does when the window is closed: SIGHUP to the session.
    os.kill(program.pid, signal.SIGHUP)
    program.wait(timeout=60)
    assert world.state(job).ended is None, "it had finished before the terminal was closed"
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("succeeded",)], world.story(job)
    assert world.journal("finish")[0].text == chain(100)
    os.close(shell)


# Makes the terminal its own, as a login shell does, and becomes the program.
LEADER = """\
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def listed(world: World) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(world.cli("ps", "--json", "--all").stdout or "[]")
    return rows


def _drain(handle: int) -> None:
    try:
        while os.read(handle, 65536):
            pass
    except OSError:
        return
