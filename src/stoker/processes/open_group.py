"""Make a group of processes, or open the group of another process: by cgroup if possible, else by marks."""

from __future__ import annotations

import os

from stoker.processes import cgroup as cgroups
from stoker.processes.cgroup import CgroupGroup
from stoker.processes.group import Group
from stoker.processes.identity import Process, boot_id
from stoker.processes.tree import MarkedGroup


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
        folder = cgroups.make(_name(mark, owner))
        if folder is not None:
            return CgroupGroup(folder, mark, owner)
        if cgroup:
            raise OSError("no cgroup can be created here")
    return MarkedGroup(mark, owner, since=Process.me().started, owned=True, sessions=sessions)


def end_remains(mark: str, owner: str, *, sessions: str | os.PathLike[str] | None = None) -> bool:
    """End what an earlier process, now dead, left of its group on this computer. False: some processes live on.

    For a new process in the place of the earlier one: a cgroup is searched below its own.
    """
    groups: list[Group] = [MarkedGroup(mark, owner, since=0, owned=False, sessions=sessions)]
    folder = cgroups.make(_name(mark, owner))
    if folder is not None:
        groups.append(CgroupGroup(folder, mark, owner))
    ended = [group.kill() for group in groups]
    for group in groups:
        group.close()
    return all(ended)


def _name(mark: str, owner: str) -> str:
    return f"{mark.lower().replace('_', '-')}-{owner}"


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
        if os.path.basename(folder) != _name(mark, owner):  # noqa: PTH119
            return None
        return CgroupGroup(folder, mark, owner)
    return MarkedGroup(mark, owner, since=maker.started, owned=False, sessions=sessions)
