"""A control group for each machine. They are the one thing that the kernel does not take away by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PREFIX = "stoker-cloud-"
_EMPTYING_S = 5.0


class Cgroups:
    """The groups of one cloud, in every hierarchy that systemd uses here. `owner` is a process of the test."""

    def __init__(self, owner: int) -> None:
        # One name in all of them: nspawn makes the v1 group by the path of the other.
        name = f"{_PREFIX}{owner}-{os.urandom(3).hex()}"
        self._parents = [base / name for base in _bases()]

    def make(self, name: str) -> list[Path]:
        """New groups for one machine."""
        made = [parent / name for parent in self._parents]
        for group in made:
            group.mkdir(parents=True, exist_ok=True)
        return made

    def remove(self, name: str) -> None:
        """Remove one machine's groups. Its processes must have been told to end."""
        for parent in self._parents:
            _remove(parent / name)

    def close(self) -> None:
        """Remove them all."""
        for parent in self._parents:
            _remove(parent)


def sweep() -> None:
    """Remove groups of clouds whose test is no more. Any number of processes may do this at once."""
    for base in _bases():
        for group in base.glob(f"{_PREFIX}*"):
            owner = group.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                _remove(group)


def _remove(top: Path) -> None:
    give_up = time.monotonic() + _EMPTYING_S
    while top.exists():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                pass  # processes that were killed take a moment to go
        if time.monotonic() > give_up:
            return
        if top.exists():
            time.sleep(0.02)


def _bases() -> list[Path]:
    """The folder of this process's own group, in cgroup v2 and in systemd's own v1 hierarchy where there is one."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        if kind == "cgroup2":
            mounts.setdefault("", Path(where))
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            mounts.setdefault("name=systemd", Path(where))
    bases = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in mounts:
            bases.append(mounts[controllers] / path.strip("/"))
    return [base for base in bases if base.is_dir()]
