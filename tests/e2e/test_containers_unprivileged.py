"""Somebody who is not root and may use docker: what a container wrote is theirs, and it hears and ends as it should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import World, chain, until

import stoker
from tests.support.engines import IMAGE, Docker, docker, why_no_docker

# Nobody of this number is known to this machine, or to the image.
UID = 42424


AS_THEM = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")


def _python() -> str | None:
    """One that everybody may run, and that has what this one has."""
    asked = "import sys; print(sys.version_info[:2])"
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        # By a program of theirs: the very first one is still started with root's rights.
        argv = (*AS_THEM, "sh", "-c", 'exec "$0" -c "$1"', path, asked)
        told = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        if told.strip() == str(sys.version_info[:2]):
            return path
    return None


WHY_NOT = why_no_docker() or (None if _python() else "there is no Python that everybody may run")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")


@pytest.fixture
def engine() -> Iterator[Docker]:
    with docker() as made:
        made.folder.chmod(0o755)
        (made.folder / "socket").chmod(0o666)
        yield made
        until(lambda: not made.containers(), "every container is gone", 30)


@pytest.fixture
def theirs(engine: Docker) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="stoker-theirs-", dir="/tmp"))
    try:
        made = World(folder)
        yield made
        until(lambda: not made.processes(), "all processes are gone", 60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_what_an_ordinary_user_trains_is_saved_resumed_and_removed(theirs: World, engine: Docker) -> None:
    theirs.script("counter.py")
    (theirs.code / "stoker.yaml").write_text(
        f"""
name: theirs
run: id -u; touch $HOME/mine; python3 train.py --steps 25 --pause 0.1
env: {{TRUTH: {theirs.truth}}}
outputs: artifacts
resources: {{spot: true}}
environment: {{container: {{image: {IMAGE}, run: {{volumes: ["{theirs.truth}:{theirs.truth}"]}}}}}}
"""
    )
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(theirs.root)], check=True)
    source, packages = Path(stoker.__file__).parents[1], sysconfig.get_path("purelib")
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(theirs.root),
        "PYTHONPATH": f"{source}:{packages}",
        "STOKER_HOME": str(theirs.home),
        "STOKER_STORE": theirs.url,
        "DOCKER_HOST": engine.host,
    }

    def cli(*arguments: str) -> str:
        python = _python()
        assert python is not None
        argv = [*AS_THEM, python, "-m", "stoker.cli", *arguments]
        ran = subprocess.run(argv, cwd=theirs.code, env=environ, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    job = cli("run", "--yes", "--detach").split()[-1]
    theirs.training(job, step=6)
    cli("interrupt", job, "--grace", "20s")
    ended = theirs.ended(job)
    assert ended.outcome == "succeeded" and len(ended.attempts) == 2, theirs.story(job)
    assert str(UID) in theirs.lines(job)
    (interrupted,) = theirs.journal("interrupted")
    assert [record.step for record in theirs.journal("start")] == [0, interrupted.step]
    assert (theirs.outputs(job) / "result.txt").read_text() == chain(25)
    assert {path.stat().st_uid for path in theirs.root.rglob("*")} == {UID}
    until(lambda: not list(theirs.home.glob("nodes/*/*/code")), "the last node has tidied up", 30)
