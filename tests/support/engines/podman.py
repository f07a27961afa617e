"""Debian's podman, with storage of its own. A wrapper that comes first on the PATH says where that is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.support.engines import tree
from tests.support.machines.images import BOOKWORM

# Limits that a user without CAP_SYS_RESOURCE can have, files instead of the journal and of systemd, and the runtime
# that works where both versions of cgroups are mounted.
_CONFIG = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=10000:10000"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


@dataclass(frozen=True)
class Podman:
    """Storage with the image of tests."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """What makes `podman` this one."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "CONTAINERS_CONF": str(self.folder / "containers.conf")}

    def ask(self, *arguments: str) -> str:
        """What it prints."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(["podman", *arguments], env=environ, capture_output=True, text=True, check=True).stdout

    def containers(self) -> list[str]:
        """The names of all containers, those that have ended too."""
        return self.ask("ps", "--all", "--format={{.Names}}").split()


@lru_cache(maxsize=1)
def why_no_podman() -> str | None:
    """One line that says why it cannot be used here; None where it can."""
    if os.geteuid() != 0:
        return "a podman of one's own needs root"
    missing = [program for program in ("podman", "conmon", "runc", "catatonit") if shutil.which(program) is None]
    if missing:
        return f"there is no {', '.join(missing)} (Debian: podman, runc, catatonit)"
    return None if BOOKWORM.built else "no image of Debian bookworm is built (sh scripts/need-machines.sh)"


@contextmanager
def podman() -> Iterator[Podman]:
    """One's own, with the image of tests. Afterwards nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-podman-", dir="/tmp"))
    try:
        (folder / "containers.conf").write_text(_CONFIG)
        (folder / "bin").mkdir()
        program = folder / "bin" / "podman"
        real = shutil.which("podman")
        program.write_text(f'#!/bin/sh\nexec {real} --root={folder}/root --runroot={folder}/run "$@"\n')
        program.chmod(0o755)
        made = Podman(folder)
        changes = [word for change in tree.CHANGES for word in ("--change", change)]
        made.ask("import", "--quiet", *changes, str(tree.archive()), tree.IMAGE)
        yield made
        left = made.ask("ps", "--all", "--quiet").split()
        if left:
            made.ask("rm", "--force", *left)
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "root" / "overlay")], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
