"""Groups of processes, owned by a test in a process of its own: a subreaper owns all its descendants."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.processes import NODE, Group, make_group
from stoker.processes.cgroup import make as make_cgroup

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
# The groups of this process, to be ended with it.
made: list[Group] = []


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.005)


def alone(scenario: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a pytest of its own, so that what it owns is its own.

    Not in a fork: a worker of the test run has threads, and a fork would inherit their locks for ever.
    """

    @functools.wraps(scenario)
    def run(*args: object, **kwargs: object) -> None:
        if os.environ.get("STOKER_TEST_ALONE"):
            try:
                scenario(*args, **kwargs)
            finally:
                for group in made:
                    group.kill(PATIENCE_S)
                    group.close()
            return
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        with tempfile.TemporaryDirectory() as folder:
            options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--basetemp", f"{folder}/tmp"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, test],
                cwd=ROOT,
                # Options of the run around it, such as a second -q, would change what is printed.
                env={**os.environ, "STOKER_TEST_ALONE": "1", "PYTEST_ADDOPTS": ""},
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert "1 passed" in done.stdout

    return run


@pytest.fixture(params=["cgroup", "marks"])
def cgroup(request: pytest.FixtureRequest) -> bool:
    """Both ways of holding a group together."""
    if request.param == "marks":
        return False
    folder = make_cgroup(f"stoker-probe-{uuid.uuid4().hex}")
    if folder is None:
        pytest.skip("no cgroup can be made here")
    Path(folder).rmdir()
    return True


def a_group(cgroup: bool, mark: str = NODE, **kwargs: object) -> Group:
    group = make_group(mark, uuid.uuid4().hex, cgroup=cgroup, **kwargs)  # type: ignore[arg-type]
    made.append(group)
    return group


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"), f"{path.name} to be written")
    return int(path.read_text())


def python(code: str, *args: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, args)]


# Ends its first thread alone, which leaves a process that looks like a zombie. Another thread goes on with `work`.
LEADERLESS = """
import ctypes, os, sys, threading, time
def goes_on(work):
    threading.Thread(target=work).start()
    ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""

# Leaves its parent, its session and, with `env`, its environment. Writes down its pid at the end of it.
DAEMON = """
import os, sys
path, env = sys.argv[1], {} if sys.argv[2] == "scrub" else dict(os.environ)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(3600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code, path], env)
    os._exit(0)
os.wait()
"""
