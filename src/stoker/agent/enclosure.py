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

from stoker.agent.masking import Run, open_output
from stoker.processes import Group

__all__ = ["Command", "Enclosure", "Host", "Mount", "Run"]


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine that a command sees at another path, too."""

    source: Path
    target: str


@dataclass(frozen=True)
class Command:
    """What to run. `env` is its whole environment but for the secrets, which nobody else may see."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Later ones may lie in earlier ones. `cwd` may be in one of them.
    mounts: tuple[Mount, ...] = ()
    # In a container: as root, whoever the training is there. On the machine itself, as whoever the agent is.
    root: bool = False


class Enclosure(Protocol):
    """One for each life of an agent."""

    @property
    def group(self) -> Group:
        """Everybody who runs in here."""

    def spawn(self, command: Command, log: Path) -> Run:
        """Start a command, its output at the end of `log`, its secrets masked. It dies with the thread that calls this.

        Raises OSError when the program or the folder is not there, NotMounted where its mounts are not allowed.
        """

    def close(self) -> None:
        """Leave nothing running and nothing on the disk. Repeating is harmless."""


class Host:
    """The machine itself."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def spawn(self, command: Command, log: Path) -> Run:
        with open_output(log, command.secrets) as output:
            run = self.group.spawn(
                command.argv,
                env={**command.env, **command.secrets},
                cwd=command.cwd,
                stdout=output.stream,
                stderr=subprocess.STDOUT,
                dies_with_parent=True,
                mounts=[(str(mount.source), mount.target) for mount in command.mounts],
            )
        return output.of(run)

    def close(self) -> None:
        self.group.kill()
        self.group.close()
