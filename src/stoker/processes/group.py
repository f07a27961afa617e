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
    """Every process that was spawned into it, with all that they forked. Zombies do not count.

    The calling process is never a member. Nothing here is undone by a second call.
    """

    @property
    def folder(self) -> str | None:
        """Its cgroup; None where it is held together by marks and ancestry."""

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
        """Start a program as a member, leader of a session of its own, marked in its environment.

        `env` is the whole environment, by default the caller's. `dies_with_parent` kills it when the *thread* that
        calls this ends. It and all that it forks see each source of `mounts` at its target, and nobody else does.
        Raises OSError when the program or `cwd` is not there, NotMounted where such a view is not allowed.
        """

    def members(self) -> set[int]:
        """The pids of the live members, now."""

    def signal(self, number: int) -> int:
        """Send a signal to every member; answers how many got it."""

    def freeze(self, timeout_s: float = 5.0) -> bool:
        """Stop every member where it is. False: some still ran when the time was over."""

    def thaw(self) -> None:
        """Let frozen members go on."""

    def kill(self, timeout_s: float = 10.0) -> bool:
        """Kill members, frozen ones too, until nobody is left. False: somebody still was when the time was over."""

    def reap(self) -> None:
        """Forget the zombies of orphans that this process inherited. Call it now and then where there is time."""

    def close(self) -> None:
        """Give back what holds the group together, once nobody is left."""


def make_group(
    mark: str, owner: str, *, sessions: str | os.PathLike[str] | None = None, cgroup: bool | None = None
) -> Group:
    """A group of this process's own: `NODE` for a whole machine, `TRAINING` for what an agent runs on it.

    By cgroup below this process's own where that is allowed; a group made by a member is then part of its maker's.
    Else by an environment variable, recorded sessions, and ancestry: this process becomes a subreaper, and every
    descendant of it counts. `sessions` is a file in which those are recorded for `find_group`. `cgroup` forces one
    or the other; by default STOKER_NO_CGROUP=1 forbids cgroups.
    """
    wanted = cgroup if cgroup is not None else os.environ.get("STOKER_NO_CGROUP", "") in ("", "0")
    if wanted:
        folder = cgroups.make(f"{mark.lower().replace('_', '-')}-{owner}")
        if folder is not None:
            return CgroupGroup(folder, mark, owner)
        if cgroup:
            raise OSError("no cgroup can be made here")
    return MarkedGroup(mark, owner, since=Process.me().started, owned=True, sessions=sessions)


def find_group(
    mark: str,
    owner: str,
    maker: Process,
    *,
    folder: str | None,
    sessions: str | os.PathLike[str] | None = None,
) -> Group | None:
    """What `maker` left of its group. None: nothing can be left of it, since the computer was started anew."""
    if maker.boot != boot_id():
        return None
    if folder is not None:
        # Never more than was meant, should the record be wrong.
        if os.path.basename(folder) != f"{mark.lower().replace('_', '-')}-{owner}":  # noqa: PTH119
            return None
        return CgroupGroup(folder, mark, owner)
    return MarkedGroup(mark, owner, since=maker.started, owned=False, sessions=sessions)
