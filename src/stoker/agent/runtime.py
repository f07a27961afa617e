"""Where the set-up and the training run: on the machine itself, or in a container.

The agent stays outside either way. A container shows the node's folders under the paths that they have outside, so that
the paths in a command's environment hold in both.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stoker.processes import Group
from stoker.secrets.masked_output import Run, open_output

__all__ = ["BindMount", "Command", "HostRuntime", "Run", "Runtime", "RuntimeGroup", "RuntimeView"]

# Runs a block as a step of the set-up. Arguments: the name that users know it by, and advice how to speed it up.
StepTimer = Callable[[str, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class BindMount:
    """A folder or file of this machine that a command also sees at another path."""

    source: Path
    target: str
    # Data of the user: the command must not change it.
    read_only: bool = False

    @property
    def view(self) -> tuple[str, ...]:
        return (str(self.source), self.target, *(("ro",) if self.read_only else ()))


@dataclass(frozen=True)
class RuntimeView:
    """Paths that all commands see besides the node's own folder, under the names that they have on the machine."""

    # Folders that commands write to. They are given to the user that the commands run as.
    written: tuple[Path, ...] = ()
    # Data of the user.
    read: tuple[Path, ...] = ()
    # Of `read`, paths that were not copied: links in them may lead anywhere.
    in_place: tuple[Path, ...] = ()
    # The folder with the environments of all jobs.
    environments: Path | None = None
    mounts: tuple[BindMount, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command to run. `env` is its whole environment except for the secrets, which only the command may see."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    # A later mount may lie in an earlier one. `cwd` may be in one of them.
    mounts: tuple[BindMount, ...] = ()
    # In a container: run as root, whatever user the training has. On the machine itself: run as the agent's user.
    root: bool = False
    # The training itself: the job may want the image's entry point around it.
    main: bool = False
    # The name of the machine for the command; empty for the machine's own. A container keeps the name that it has.
    hostname: str = ""


class RuntimeGroup(Protocol):
    """All processes in a runtime, as `stoker.processes.Group` has them."""

    @property
    def folder(self) -> str | None: ...

    def members(self) -> set[int]: ...

    def freeze(self, timeout_s: float = 5.0) -> bool: ...

    def kill(self, timeout_s: float = 10.0) -> bool: ...


class Runtime(Protocol):
    """Where commands run. One for each boot of an agent: opened, entered, closed."""

    @property
    def group(self) -> RuntimeGroup:
        """All processes in this runtime."""

    @property
    def image(self) -> str | None:
        """The digest of the container's image, once it is open; None on the machine itself."""

    @property
    def hostname(self) -> str:
        """The name that a command finds for its machine, once the runtime was entered."""

    @property
    def gpus(self) -> int:
        """How many GPUs a command sees."""

    @property
    def fault(self) -> str | None:
        """Why the runtime ended around a command; None if it did not."""

    def open(self, timed: StepTimer) -> None:
        """Prepare what takes long, such as an image. Raises SetupFailed."""

    @property
    def environments(self) -> Path | None:
        """The folder for environments of this runtime's own user; None if that is the folder of all jobs."""

    def enter(self, view: RuntimeView) -> None:
        """Show `view` to all commands. Call it before the first command. Raises SetupFailed."""

    def hand_over(self, environment: Path) -> None:
        """Let commands change an environment that the agent has put into place for them. Raises SetupFailed."""

    def environ(self, submitted: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a command before the job adds its own. `submitted` came with the job."""

    def spawn(self, command: Command, log: Path) -> Run:
        """Start a command; append its output to `log`, with its secrets masked. It dies with the calling thread.

        Raises OSError if the program or the folder is missing, NotMounted if the mounts are not allowed.
        """

    def begin_close(self) -> None:
        """Begin to remove what takes long to remove, without waiting. No command follows."""

    def close(self) -> None:
        """Kill all processes and remove everything from the disk. May be repeated."""


class HostRuntime:
    """The machine itself."""

    image: str | None = None
    fault: str | None = None
    environments: Path | None = None

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def hostname(self) -> str:
        return socket.gethostname()

    @property
    def gpus(self) -> int:
        return count_gpus()

    def open(self, timed: StepTimer) -> None:
        """Do nothing: the machine is ready."""

    def enter(self, view: RuntimeView) -> None:
        """Do nothing: commands see the whole machine, and bring their own mounts."""

    def hand_over(self, environment: Path) -> None:
        """Do nothing: commands run as the agent's user."""

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
                hostname=command.hostname,
            )
        return output.of(run)

    def begin_close(self) -> None:
        """Do nothing: nothing takes long to remove."""

    def close(self) -> None:
        self.group.kill()
        self.group.close()


def count_gpus() -> int:
    """Count the accelerators for which torchrun should start a process each."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
