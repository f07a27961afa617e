"""`stoker run` with real nodes: followed, left alone, interrupted, come back to."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker import client
from stoker.processes import process_table

# Generous: two busy cores. Nothing waits this long unless something is broken.
PATIENCE_S = 90.0
SCRIPT = """
import pathlib, sys, time
go = pathlib.Path(sys.argv[1])
print("started", flush=True)
while not go.exists():
    time.sleep(0.02)
print("finished", flush=True)
"""

Type = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    yield tmp_path
    (tmp_path / "go").touch()
    # Whatever a failed test left running ends with its store.
    subprocess.run(
        [*STOKER, "stop", "--wait", *jobs(tmp_path)], env=environ(tmp_path), capture_output=True, timeout=PATIENCE_S
    )


STOKER = [sys.executable, "-m", "stoker.cli"]


def environ(place: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return env | {"STOKER_HOME": str(place / "home"), "XDG_CONFIG_HOME": str(place / "config"), "TERM": "xterm"}


def jobs(place: Path) -> list[str]:
    folder = place / "home" / "store" / "jobs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def phase(place: Path, job: str) -> str:
    """As `stoker show` prints it, without a process for each look."""
    return client.summary(job, (place / "home" / "store").as_uri()).phase


def printed(place: Path, job: str) -> list[str]:
    """What the script has printed, as `stoker logs` prints it."""
    return [line.text for line in client.logs(job, store=(place / "home" / "store").as_uri())]


@pytest.fixture
def stoker(place: Path) -> Type:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*STOKER, *arguments],
            cwd=place / "code",
            env=environ(place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.05)


def left(place: Path) -> list[str]:
    """Processes that work for this test's store."""
    found = []
    for pid in process_table():
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in text:
            found.append(text)
    return found


def test_a_job_is_followed_to_its_end(place: Path, stoker: Type) -> None:
    (place / "go").touch()
    done = stoker("run", "--", "python", "train.py", str(place / "go"))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("[stoker]")] == ["started", "finished"]
    assert "succeeded" in done.stderr and "\x1b" not in done.stderr
    (job,) = jobs(place)
    assert stoker("logs", job).stdout == done.stdout
    assert json.loads(stoker("ps", "--json").stdout)[0]["phase"] == "succeeded", "the end is in the index"
    until(lambda: left(place) == [], "no process is left")


def test_a_failure_is_the_exit_code_and_quotes_the_log(place: Path, stoker: Type) -> None:
    (place / "code" / "broken.py").write_text("print('so far')\nraise SystemExit('no such luck')\n")
    done = stoker("run", "--", "python", "broken.py")
    assert done.returncode == 1
    assert "rule `user-error`" in done.stderr and "    no such luck" in done.stderr


def test_a_detached_job_is_governed_in_the_background_until_none_is_left(place: Path, stoker: Type) -> None:
    first = stoker("run", "--detach", "--", "python", "train.py", str(place / "go"))
    second = stoker("run", "--detach", "--name", "other", "--", "python", "train.py", str(place / "go"))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    ids = [first.stdout.strip(), second.stdout.strip()]
    assert sorted(ids) == jobs(place) and len(ids) == 2
    until(lambda: all("started" in printed(place, job) for job in ids), "both have started")
    assert sum("stoker.governor.background" in text for text in left(place)) == 1, "one governor for both"
    (place / "go").touch()
    followed = stoker("logs", "-f", ids[0])
    assert followed.stdout.splitlines()[-1] != "started" and "finished" in followed.stdout
    until(lambda: left(place) == [], "nodes and governor are gone")
    assert {one["phase"] for one in json.loads(stoker("ps", "--json").stdout)} == {"succeeded"}


class Terminal:
    """`stoker run` on a terminal of its own."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            # Whoever runs the tests may have these ignored, as nohup and background jobs of a shell do.
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(place / "code")
            os.execve(sys.executable, [*STOKER, *arguments], environ(place))
        self.text = ""
        os.set_blocking(self.screen, False)

    def shows(self, words: str) -> bool:
        try:
            while data := os.read(self.screen, 65536):
                self.text += data.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return words in self.text

    def type(self, keys: bytes) -> None:
        os.write(self.screen, keys)

    def wait(self) -> int:
        found: list[int] = []

        def over() -> bool:
            self.shows("")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                found.append(os.waitstatus_to_exitcode(status))
            return bool(pid)

        until(over, "the program has ended")
        self.shows("")
        os.close(self.screen)
        return found[0]


def test_ctrl_c_detaches_and_the_job_goes_on(place: Path, stoker: Type) -> None:
    terminal = Terminal(place, "run", "--", "python", "train.py", str(place / "go"))
    until(lambda: terminal.shows("started"), "the first line")
    until(lambda: terminal.shows("running"), "the status line")
    terminal.type(b"\x03")
    assert terminal.wait() == 0
    (job,) = jobs(place)
    assert f"stoker logs -f {job}" in terminal.text and f"stoker stop {job}" in terminal.text
    assert "Traceback" not in terminal.text
    (place / "go").touch()
    assert "finished" in stoker("logs", "-f", job).stdout
    until(lambda: left(place) == [], "nodes and governor are gone")


def test_closing_the_terminal_detaches_too(place: Path, stoker: Type) -> None:
    terminal = Terminal(place, "run", "--", "python", "train.py", str(place / "go"))
    until(lambda: terminal.shows("started"), "the first line")
    os.kill(terminal.pid, signal.SIGHUP)
    assert terminal.wait() == 0
    assert "stoker logs -f" not in terminal.text
    (job,) = jobs(place)
    until(lambda: any("stoker.governor.background" in text for text in left(place)), "a governor in the background")
    (place / "go").touch()
    until(lambda: phase(place, job) == "succeeded", "it goes on to its end")
    until(lambda: left(place) == [], "nodes and governor are gone")


def test_a_stopped_job_can_be_resumed_cloned_and_removed(place: Path, stoker: Type) -> None:
    job = stoker("run", "--detach", "--", "python", "train.py", str(place / "go")).stdout.strip()
    until(lambda: "started" in printed(place, job), "it has started")
    assert "started" in stoker("logs", job).stdout
    assert stoker("rm", job).returncode == 2
    stopped = stoker("stop", "--wait", job)
    assert stopped.returncode == 0 and "stopped" in stopped.stderr
    (place / "go").touch()
    assert stoker("resume", job).returncode == 0
    until(lambda: phase(place, job) == "succeeded", "it goes on")
    assert len(json.loads(stoker("show", job, "--json").stdout)["attempts"]) == 2
    copy = stoker("clone", job).stdout.strip()
    until(lambda: phase(place, copy) == "succeeded", "the clone")
    assert json.loads(stoker("show", copy, "--json").stdout)["origin"] == job
    until(lambda: left(place) == [], "nodes and governor are gone")
    assert stoker("rm", job, copy).returncode == 0
    store = place / "home" / "store"
    left_behind = [path for path in store.rglob("*") if path.is_file() and (job in str(path) or copy in str(path))]
    # What was spent stays, as does that they were removed, and what was seen of the market for a month: only names.
    assert {path.relative_to(store).parts[0] for path in left_behind} <= {"spent", "market", "removed"}
    assert not any(path.stat().st_size for path in left_behind)
    assert stoker("show", job).returncode == 2
