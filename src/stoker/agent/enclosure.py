"""Where the set-up and the training run: on the machine itself, or closed off from it in a container.

The agent stays outside either way. Folders of the node are seen inside under the paths they have outside, so that
what a command is told about them holds in both.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stoker.processes import Group


@dataclass(frozen=True)
class Mount:
    """A folder of this machine that a command sees at another path, too."""

    source: Path
    target: str


@dataclass(frozen=True)
class Command:
    """What to run. `env` is its whole environment but for the secrets, which nobody else may see."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()


class Run(Protocol):
    """A command that was started. `pid` is its first process, as this machine numbers it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """As of subprocess: the exit status, negative for a signal; None while it runs."""

    def wait(self) -> int: ...


class Enclosure(Protocol):
    """One for each life of an agent."""

    @property
    def group(self) -> Group:
        """Everybody who runs in here."""

    def spawn(self, command: Command, log: Path) -> Run:
        """Start a command, its output at the end of `log`. It dies with the thread that calls this.

        Raises OSError when the program or the folder is not there.
        """

    def close(self) -> None:
        """Leave nothing running and nothing on the disk. Repeating is harmless."""


class Host:
    """The machine itself."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def spawn(self, command: Command, log: Path) -> Run:
        # It writes its output itself: nothing is lost, or slowed down, by the agent.
        with log.open("ab", buffering=0) as output:
            return self.group.spawn(
                command.argv,
                env={**command.env, **command.secrets},
                cwd=command.cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                dies_with_parent=True,
            )

    def close(self) -> None:
        self.group.kill()
        self.group.close()
