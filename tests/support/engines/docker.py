"""Debian's docker, started by hand. It has its own folder, socket and no network but that of whoever starts it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.support.engines import tree
from tests.support.machines import images, why_no_machines
from tests.support.machines.images import BOOKWORM, Tree, images_folder

_KEPT = f"docker-{tree.digest()}"
# What a machine boots that has a docker, with the image of tests: a service of its own systemd, as on any machine.
MACHINE = Tree(
    "bookworm",
    ("docker.io",),
    # For networks of its own it would have to change settings that machines of tests can only read.
    files=(("etc/docker/daemon.json", '{"bridge": "none", "iptables": false, "ip6tables": false}\n'),),
    disks=(("/var/lib/docker", _KEPT),),
)

_START_S = 30.0


@dataclass(frozen=True)
class Docker:
    """A daemon that runs. `folder` is all that it has on the disk."""

    folder: Path

    @property
    def host(self) -> str:
        """For DOCKER_HOST."""
        return f"unix://{self.folder}/socket"

    def ask(self, *arguments: str, check: bool = True) -> str:
        """What the client prints."""
        environ = {**os.environ, "DOCKER_HOST": self.host}
        ran = subprocess.run(["docker", *arguments], env=environ, capture_output=True, text=True, check=False)
        if check and ran.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {ran.stderr}")
        return ran.stdout

    def containers(self) -> list[str]:
        """The names of all containers, those that have ended too."""
        return self.ask("ps", "--all", "--format={{.Names}}").split()

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("inspect", name))[0]
        return found


@lru_cache(maxsize=1)
def why_no_docker() -> str | None:
    """One line that says why it cannot be started here; None where it can."""
    if os.geteuid() != 0:
        return "a docker of one's own needs root"
    missing = [program for program in ("docker", "dockerd", "containerd", "runc") if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: docker.io)"
    if not _kept().is_dir():
        return "no image for containers is built (sh scripts/need-machines.sh)"
    return None


@lru_cache(maxsize=1)
def why_no_docker_machines() -> str | None:
    """One line that says why no machine with a docker can be booted here; None where they can."""
    if (why := why_no_machines()) is not None:
        return why
    if not MACHINE.built or not _kept().is_dir():
        return "no image of a machine with docker is built (sh scripts/need-machines.sh)"
    return None


@contextmanager
def docker() -> Iterator[Docker]:
    """A daemon of one's own, with the image of tests. Afterwards nothing of it is left."""
    # A socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="stoker-docker-", dir="/tmp"))
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", str(_kept()), str(folder / "data")], check=True)
        with _running(folder) as made:
            yield made
    finally:
        _remove(folder)


def build() -> None:
    """Have the image in a daemon's folder, once: to import it takes many times longer than to copy that."""
    images_folder().mkdir(parents=True, exist_ok=True)
    with (images_folder() / ".docker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _kept().is_dir():
            return
        folder = Path(tempfile.mkdtemp(prefix="stoker-docker-", dir="/tmp"))
        try:
            with _running(folder) as made:
                changes = [word for change in tree.CHANGES for word in ("--change", change)]
                made.ask("import", *changes, str(tree.archive()), tree.IMAGE)
            draft = images_folder() / ".docker.tmp"
            shutil.rmtree(draft, ignore_errors=True)
            subprocess.run(["cp", "-a", str(folder / "data"), str(draft)], check=True)
            for old in images_folder().glob("docker-*"):
                shutil.rmtree(old, ignore_errors=True)
            draft.rename(_kept())
        finally:
            _remove(folder)


def main() -> None:
    """Build what is missing, where that can be."""
    if BOOKWORM.built and shutil.which("dockerd") and not _kept().is_dir():
        print("making an image for containers (once)", flush=True)
        build()
    if BOOKWORM.built and not MACHINE.built:
        print("installing docker for test machines (once)", flush=True)
        images.build(MACHINE)


def _kept() -> Path:
    return images_folder() / _KEPT


@contextmanager
def _running(folder: Path) -> Iterator[Docker]:
    made = Docker(folder)
    with (folder / "log").open("ab") as log:
        daemon = subprocess.Popen(
            [
                "dockerd",
                f"--data-root={folder}/data",
                f"--exec-root={folder}/exec",
                f"--host={made.host}",
                f"--pidfile={folder}/pid",
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(made, daemon)
        yield made
    finally:
        left = made.ask("ps", "--all", "--quiet", check=False).split()
        if left:
            made.ask("rm", "--force", "--volumes", *left, check=False)
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _wait_for(made: Docker, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while not made.ask("version", "--format={{.Server.Version}}", check=False).strip():
        if daemon.poll() is not None or time.monotonic() >= deadline:
            raise AssertionError(f"dockerd does not start:\n{(made.folder / 'log').read_text()[-2000:]}")
        time.sleep(0.05)


def _remove(folder: Path) -> None:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{folder}/")), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)
    shutil.rmtree(folder, ignore_errors=True)
