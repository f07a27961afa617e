"""A group: every process of one owner, and the marks in the environment of its members."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from stoker.processes.spawn import LaunchSpec, Stream

# The environment variables that mark every process of a machine, and those of its training.
NODE = "STOKER_NODE"
TRAINING = "STOKER_TRAINING"
MARKS = (NODE, TRAINING)


def marked_environment(env: Mapping[str, str] | None, mark: str, owner: str) -> dict[str, str]:
    """Return `env` with the group's mark, and with the marks of the caller's own groups."""
    marked = dict(os.environ if env is None else env)
    for outer in MARKS:
        if outer in os.environ:
            marked[outer] = os.environ[outer]
    marked[mark] = owner
    return marked


class Group(ABC):
    """Every process that was spawned into the group, and all that they forked. Zombies do not count.

    The calling process is never a member. All methods may be repeated.
    """

    # The group's cgroup; None if the group is held together by marks and ancestry.
    folder: str | None

    def __init__(self, mark: str, owner: str) -> None:
        self._mark = mark
        self._owner = owner

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
        hostname: str = "",
    ) -> subprocess.Popen[bytes]:
        """Start a program as a member and leader of a new session, marked in its environment.

        `env` is the whole environment, by default the caller's. `dies_with_parent` kills the program when the *thread*
        that calls this ends. The program and all that it forks see each source of `mounts` at its target, and the
        machine under the name `hostname`; no other process does. Raises OSError if the program or `cwd` does not exist,
        NotMounted if such a view is not allowed.
        """
        marked = marked_environment(env, self._mark, self._owner)
        launch = LaunchSpec(argv, marked, cwd, stdin, stdout, stderr, pass_fds, dies_with_parent, mounts, hostname)
        return self._start(launch)

    @abstractmethod
    def _start(self, launch: LaunchSpec) -> subprocess.Popen[bytes]:
        """Start a program whose environment is marked already."""

    @abstractmethod
    def members(self) -> set[int]:
        """Return the pids of the live members, now."""

    @abstractmethod
    def signal(self, number: int) -> int:
        """Send a signal to every member, and return how many got it."""

    @abstractmethod
    def freeze(self, timeout_s: float = 5.0) -> bool:
        """Stop every member where it is. False: some still ran at the timeout."""

    @abstractmethod
    def thaw(self) -> None:
        """Let frozen members continue."""

    @abstractmethod
    def kill(self, timeout_s: float = 10.0) -> bool:
        """Kill all members, frozen ones too, until none is left. False: some still lived at the timeout."""

    @abstractmethod
    def reap(self) -> None:
        """Reap the zombies of orphans that this process inherited. Call it occasionally."""

    @abstractmethod
    def close(self) -> None:
        """Release what holds the group together, once it has no members."""
