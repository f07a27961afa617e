"""Where the set-up and the training run: on the machine itself, or closed off from it in a container.

The agent stays outside either way. Folders of the node are seen inside under the paths they have outside, so that
what a command is told about them holds in both.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stoker.agent.fetch_code import count_gpus
from stoker.processes import Group
from stoker.secrets.masked_output import Run, open_output

__all__ = ["Command", "Enclosure", "Host", "Members", "Mount", "Run", "View"]

# Runs a block as a step of the set-up: by the name that people know it by, and how to have it done sooner.
Timed = Callable[[str, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine that a command sees at another path, too."""

    source: Path
    target: str
    # Somebody's data: it is not for the command to change it.
    read_only: bool = False

    @property
    def view(self) -> tuple[str, ...]:
        return (str(self.source), self.target, *(("ro",) if self.read_only else ()))


@dataclass(frozen=True)
class View:
    """What all commands see besides the node's own folder, under the paths that it has here."""

    # Where they write. Whoever they run as is given it.
    written: tuple[Path, ...] = ()
    # Somebody's data.
    read: tuple[Path, ...] = ()
    # Of that, what lies where its owner has it, with links that may lead anywhere.
    in_place: tuple[Path, ...] = ()
    # Where the environments of all jobs are.
    environments: Path | None = None
    mounts: tuple[Mount, ...] = ()


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
    # The training itself, which an image's own entry point may be wanted around.
    main: bool = False


class Members(Protocol):
    """Everybody who runs in an enclosure, as of `stoker.processes.Group`."""

    @property
    def folder(self) -> str | None: ...

    def members(self) -> set[int]: ...

    def freeze(self, timeout_s: float = 5.0) -> bool: ...

    def kill(self, timeout_s: float = 10.0) -> bool: ...


class Enclosure(Protocol):
    """One for each life of an agent: opened, entered, closed."""

    @property
    def group(self) -> Members:
        """Everybody who runs in here."""

    @property
    def image(self) -> str | None:
        """What names the very bytes of a container's image, once it is open; None on the machine itself."""

    @property
    def gpus(self) -> int:
        """How many GPUs a command sees."""

    @property
    def fault(self) -> str | None:
        """Why a command did not end by itself, where its enclosure was taken away around it."""

    def open(self, timed: Timed) -> None:
        """Have ready what takes long. Raises SetupFailed."""

    @property
    def environments(self) -> Path | None:
        """Where those who run in here keep environments of their own; None: where all jobs do."""

    def enter(self, view: View) -> None:
        """Before the first command. Raises SetupFailed."""

    def hand_over(self, environment: Path) -> None:
        """Let those who run in here change an environment of theirs that the agent has laid. Raises SetupFailed."""

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        """What a command finds set before the job adds to it. `submitted` is what the submitter sent along."""

    def spawn(self, command: Command, log: Path) -> Run:
        """Start a command, its output at the end of `log`, its secrets masked. It dies with the thread that calls this.

        Raises OSError when the program or the folder is not there, NotMounted where its mounts are not allowed.
        """

    def leave(self) -> None:
        """Nobody will run in here any more. What takes a while begins to go; nobody waits for it."""

    def close(self) -> None:
        """Leave nothing running and nothing on the disk. Repeating is harmless."""


class Host:
    """The machine itself."""

    image: str | None = None
    fault: str | None = None
    environments: Path | None = None

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def gpus(self) -> int:
        return count_gpus()

    def open(self, timed: Timed) -> None:
        """It is."""

    def enter(self, view: View) -> None:
        """Everything is to be seen here; each command brings its own mounts."""

    def hand_over(self, environment: Path) -> None:
        """Whoever runs here is the agent's own user."""

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **submitted}

    def spawn(self, command: Command, log: Path) -> Run:
        with open_output(log, command.secrets) as output:
            run = self.group.spawn(
                command.argv,
                env={**command.env, **command.secrets},
                cwd=command.cwd,
                stdout=output.stream,
                stderr=subprocess.STDOUT,
                dies_with_parent=True,
                mounts=[mount.view for mount in command.mounts],
            )
        return output.of(run)

    def leave(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        self.group.kill()
        self.group.close()
