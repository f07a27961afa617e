"""A group: every process of one owner."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from stoker.processes import cgroup as cgroups
from stoker.processes.cgroup import CgroupGroup
from stoker.processes.identity import Process, boot_id
from stoker.processes.spawn import Stream
from stoker.processes.tree import MARKS, NODE, TRAINING, MarkedGroup

__all__ = ["MARKS", "NODE", "TRAINING", "Group", "find_group", "make_group"]


class Group(Protocol):
    """Every process that was spawned into the group, and all that they forked. Zombies do not count.

    The calling process is never a member. All methods may be repeated.
    """

    @property
    def folder(self) -> str | None:
        """The group's cgroup; None if the group is held together by marks and ancestry."""

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Collection[int] = (),
        dies_with_parent: bool = False,
        mounts: Sequence[tuple[str, ...]] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program as a member and leader of a new session, marked in its environment.

        `env` is the whole environment, by default the caller's. `dies_with_parent` kills the program when the *thread*
        that calls this ends. The program and all that it forks see each source of `mounts` at its target, and no other
        process does. Raises OSError if the program or `cwd` does not exist, NotMounted if such a view is not allowed.
        """

    def members(self) -> set[int]:
        """Return the pids of the live members, now."""

    def signal(self, number: int) -> int:
        """Send a signal to every member, and return how many got it."""

    def freeze(self, timeout_s: float = 5.0) -> bool:
        """Stop every member where it is. False: some still ran at the timeout."""

    def thaw(self) -> None:
        """Let frozen members continue."""

    def kill(self, timeout_s: float = 10.0) -> bool:
        """Kill all members, frozen ones too, until none is left. False: some still lived at the timeout."""

    def reap(self) -> None:
        """Reap the zombies of orphans that this process inherited. Call it occasionally."""

    def close(self) -> None:
        """Release what holds the group together, once it has no members."""


def make_group(
    mark: str, owner: str, *, sessions: str | os.PathLike[str] | None = None, cgroup: bool | None = None
) -> Group:
    """Create a group owned by this process: `NODE` for a whole machine, `TRAINING` for what an agent runs on it.

    It is a cgroup below this process's own if that is allowed; a group that a member creates is then part of the outer
    group. Otherwise it is held together by an environment variable, recorded sessions, and ancestry: this process
    becomes a subreaper, and all its descendants count. `sessions` is a file in which the sessions are recorded for
    `find_group`. `cgroup` forces one or the other; by default STOKER_NO_CGROUP=1 forbids cgroups.
    """
    wanted = cgroup if cgroup is not None else os.environ.get("STOKER_NO_CGROUP", "") in ("", "0")
    if wanted:
        folder = cgroups.make(f"{mark.lower().replace('_', '-')}-{owner}")
        if folder is not None:
            return CgroupGroup(folder, mark, owner)
        if cgroup:
            raise OSError("no cgroup can be created here")
    return MarkedGroup(mark, owner, since=Process.me().started, owned=True, sessions=sessions)


def find_group(
    mark: str,
    owner: str,
    maker: Process,
    *,
    folder: str | None,
    sessions: str | os.PathLike[str] | None = None,
) -> Group | None:
    """Open what `maker` left of its group. None: nothing can be left, because the computer was restarted."""
    if maker.boot != boot_id():
        return None
    if folder is not None:
        # A wrong record must not lead to another cgroup.
        if os.path.basename(folder) != f"{mark.lower().replace('_', '-')}-{owner}":  # noqa: PTH119
            return None
        return CgroupGroup(folder, mark, owner)
    return MarkedGroup(mark, owner, since=maker.started, owned=False, sessions=sessions)
