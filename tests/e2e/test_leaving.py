"""Every way of leaving `stoker run` leaves its job with a governor: closed windows, kills, pipes without a reader."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import World, chain, fields, until

from stoker.governor import handover_guard

STEPS = 40
STOKER = (sys.executable, "-m", "stoker.cli")


class Attached:
    """`stoker run` on a terminal of its own, whose leader it is, or on a pipe."""

    def __init__(self, world: World, *, pipe: bool = False, leader: bool = True) -> None:
        self._world = world
        command = [*STOKER, "run", "--env", f"TRUTH={world.truth}", "--", "python", "train.py", "--steps", str(STEPS)]
        self.window, inside = os.pipe() if pipe else pty.openpty()
        self.program = subprocess.Popen(
            # Held, so that it cannot finish before its command was left, however busy the machine is.
            [*command, "--pause", "0.1", "--held", "20"],
            cwd=world.code,
            env=world.environ(),
            stdin=subprocess.DEVNULL if pipe else inside,
            stdout=inside,
            stderr=inside,
            preexec_fn=_own_terminal if leader and not pipe else os.setsid,
        )
        os.close(inside)
        (self.job,) = until(lambda: [path.name for path in world.folder.glob("jobs/*")], "it is submitted")
        world.training(self.job, step=2)

    def close_window(self) -> None:
        os.close(self.window)

    def governed(self) -> None:
        """The job, which goes on, gets a governor that is not this command, and comes to its end."""
        world = self._world
        self.program.wait(timeout=60)
        assert world.state(self.job).ended is None, "it had finished before the command was left"
        until(lambda: world.processes("governor"), "a governor in the background")
        # Needs one: the machine that is taken away is replaced.
        world.interrupt(self.job, grace_s=10)
        summary = world.ended(self.job)
        assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(self.job)
        assert world.journal("finish")[0].text == chain(STEPS)
        until(lambda: not world.processes("governor") and not guards(world), "no governor and no guard is left")


def _own_terminal() -> None:
    # A shell without job control starts its background commands with some of these signals ignored.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def guards(world: World) -> list[object]:
    return [each for each in world.processes("other") if b"stoker.governor.handover_guard" in _arguments(each.pid)]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def attached(world: World) -> Iterator[Attached]:
    world.script("counter.py")
    made = Attached(world)
    yield made
    made.program.kill()
    made.program.wait()


def close_window(attached: Attached) -> None:
    attached.close_window()


def kill_hard(attached: Attached) -> None:
    attached.program.kill()


def terminate(attached: Attached) -> None:
    attached.program.terminate()


def quit_with_core(attached: Attached) -> None:
    attached.program.send_signal(signal.SIGQUIT)


def interrupt_twice(attached: Attached) -> None:
    os.write(attached.window, b"\x03")
    os.write(attached.window, b"\x03")


@pytest.mark.parametrize(
    "leave",
    [close_window, kill_hard, terminate, quit_with_core, interrupt_twice],
)
def test_a_job_is_governed_after_its_command_was_left(leave: Callable[[Attached], None], attached: Attached) -> None:
    leave(attached)
    attached.governed()


def test_a_terminal_that_fails_without_a_hangup_hands_over(world: World) -> None:
    """As where the session's leader is another process: no SIGHUP comes, and every write fails with EIO."""
    world.script("counter.py")
    made = Attached(world, leader=False)
    made.close_window()
    made.governed()


def test_a_pipe_without_a_reader_hands_over(world: World) -> None:
    world.script("counter.py")
    made = Attached(world, pipe=True)
    made.close_window()
    made.governed()
    assert made.program.returncode == 128 + signal.SIGPIPE


def test_an_orderly_end_leaves_no_guard(world: World) -> None:
    world.script("counter.py")
    done = world.cli("run", "--env", f"TRUTH={world.truth}", "--", "python", "train.py", "--steps", "3")
    assert done.returncode == 0, done.stderr
    until(lambda: not world.processes("governor") and not guards(world), "nothing is left")
    said = "".join(path.read_text() for path in world.home.glob("governors/*.log"))
    assert "takes over" not in said


def test_a_killed_waiter_hands_over(world: World) -> None:
    world.script("counter.py")
    job = world.submit(detach=False, params={"steps": STEPS, "pause": 0.1})
    code = f"import stoker; stoker.wait({job!r}, store={world.url!r})"
    waiter = subprocess.Popen([sys.executable, "-c", code], env=world.environ())
    world.training(job, step=2)
    waiter.kill()
    waiter.wait()
    until(lambda: world.processes("governor"), "a governor in the background")
    assert world.ended(job).phase == "succeeded"


def test_a_stopped_command_is_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    now_s = [0.0]
    os.write(writer, b"job spirals-aaaa\npass\n")

    def later() -> float:
        now_s[0] += 50
        return now_s[0]

    assert handover_guard.watch(reader, silent_s=90, monotonic=later) == ("spirals-aaaa",)
    os.write(writer, b"job spirals-dddd\n")  # Stopped before its first pass.
    assert handover_guard.watch(reader, silent_s=90, monotonic=later) == ("spirals-dddd",)
    os.write(writer, b"job spirals-bbbb\nreleased\n")
    assert handover_guard.watch(reader) is None
    os.write(writer, b"job spirals-cccc\n")
    os.close(writer)
    assert handover_guard.watch(reader) == ("spirals-cccc",)
    os.close(reader)
