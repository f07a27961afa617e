"""The user that a container runs as, where it is another one than the agent's."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.agent.container.chown import OwnershipTransfer
from stoker.agent.container.engine import FIELD
from stoker.agent.container.host_devices import HostCapabilities
from stoker.agent.environment.local_cache import create_user_cache
from stoker.model.errors import SetupFailed
from stoker.processes.unmounting import mounted_below


class ContainerUser:
    """Lets the user of a container write to folders of the agent. Does nothing for the agent's own user."""

    def __init__(self, engine: str, pipes: Path) -> None:
        self._engine = engine
        self._pipes = pipes
        self._transfer: OwnershipTransfer | None = None
        # The folder for environments of this user; None for the agent's own user.
        self.environments: Path | None = None

    def adopt(self, init: int, host: HostCapabilities, environments: Path | None) -> None:
        """Make sure that the agent can save, signal and clean up after the user of the container's first process.

        `environments` is the folder with the environments of all jobs. Raises SetupFailed.
        """
        try:
            seen = os.stat(f"/proc/{init}")  # noqa: PTH116 - no path
        except OSError:
            raise SetupFailed(
                f"{FIELD}: {self._engine} does not run on this machine: its processes are not visible here", user=True
            ) from None
        if seen.st_uid == host.uid:
            return
        if not host.privileged:
            raise SetupFailed(
                f"{FIELD}.run.user: only root could save and remove what another user of the container writes, and "
                f"this agent is the user {host.uid}; leave it out",
                user=True,
            )
        self._transfer = OwnershipTransfer(seen.st_uid, seen.st_gid)
        if environments is not None:
            self.environments = create_user_cache(environments, seen.st_uid, seen.st_gid)

    @property
    def tools(self) -> tuple[Path, ...]:
        """The folder of tools in the folder of the user's environments, if it has one."""
        return (self.environments / "tools",) if self.environments is not None else ()

    def give(self, *folders: Path) -> None:
        """Let the user write to these folders and all in them. Raises SetupFailed."""
        if self._transfer is None:
            return
        for folder in folders:
            top = folder.resolve()
            try:
                # A mounted bucket has no owner to change, and the pipes belong to the agent.
                self._transfer.give(top, {*mounted_below(top), str(self._pipes.resolve())} - {str(top)})
            except OSError as error:
                raise SetupFailed(
                    f"{FIELD}: {error.filename or top} cannot be given to the user of the container: {error.strerror}",
                    user=True,
                ) from error
