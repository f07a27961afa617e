"""Groups without cgroups: by a mark in the environment, by recorded sessions, and by ancestry under a subreaper.

Each way alone can be escaped. A program may clear its environment or write over it (setproctitle does), leave its
session, or orphan itself; the three together hold as long as the owner lives: whatever orphans itself becomes the
owner's child. After the owner's death the marks and the sessions recorded until then are what is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from stoker.processes.identity import Process, Stat, boot_id, process_table, stat_of
from stoker.processes.kernel import become_subreaper
from stoker.processes.spawn import Launch, Stream, start

# The environment variables that mark every process of a machine, and those of its training.
NODE = "STOKER_NODE"
TRAINING = "STOKER_TRAINING"
MARKS = (NODE, TRAINING)


def marked_environment(env: Mapping[str, str] | None, mark: str, owner: str) -> dict[str, str]:
    """`env` with the group's mark, and with those of the groups that the caller itself is in."""
    marked = dict(os.environ if env is None else env)
    for outer in MARKS:
        if outer in os.environ:
            marked[outer] = os.environ[outer]
    marked[mark] = owner
    return marked


class MarkedGroup:
    """A group that is looked for in /proc. `since` is when it was made: nothing older can be in it.

    `owned`: this process made it, is a subreaper, and so owns all its descendants.
    """

    def __init__(
        self,
        mark: str,
        owner: str,
        *,
        since: int,
        owned: bool,
        sessions: str | os.PathLike[str] | None = None,
    ) -> None:
        self._mark = mark
        self._owner = owner
        # A member carries the marks of the groups around this one, too: two groups inside different ones may share a
        # name. Somebody who looks from outside knows the one mark only.
        marks = marked_environment({}, mark, owner) if owned else {mark: owner}
        self._words = {f"{name}={value}".encode() for name, value in marks.items()}
        self._since = since
        self._owned = owned
        self._record = sessions
        # Session → when its leader started; 0 when the leader had ended before the session was seen.
        self._sessions: dict[int, int] = {}
        self._spawned: set[int] = set()
        if owned:
            become_subreaper()
        else:
            self._read_sessions()

    @property
    def folder(self) -> str | None:
        return None

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
        marked = marked_environment(env, self._mark, self._owner)
        child = start(Launch(argv, marked, cwd, stdin, stdout, stderr, pass_fds, dies_with_parent, mounts))
        self._spawned.add(child.pid)
        # Nobody has waited for it, so the pid is still its own, if only as a zombie.
        stat = stat_of(child.pid)
        if stat is not None:
            self._add_session(child.pid, stat.started)
        return child

    def members(self) -> set[int]:
        return set(self._members(process_table()))

    def signal(self, number: int) -> int:
        return sum(_signal_one(stat, number) for stat in self._members(process_table()).values())

    def freeze(self, timeout_s: float = 5.0) -> bool:
        return self._signal_until_nobody(signal.SIGSTOP, lambda stat: not stat.halted, timeout_s)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self, timeout_s: float = 10.0) -> bool:
        # Stopped first: a program that forks faster than it is killed would never be caught up with.
        self.freeze(timeout_s / 4)
        return self._signal_until_nobody(signal.SIGKILL, lambda _: True, timeout_s)

    def _signal_until_nobody(self, number: int, concerns: Callable[[Stat], bool], timeout_s: float) -> bool:
        """Signal the members it concerns, until there are none. False: there still were when the time was over.

        One look may miss a program that does nothing but fork and end. But each of its generations leaves a zombie to
        its subreaper: nobody found, and nobody newly dead a look later, is proof.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        quiet = 0
        while True:
            table = process_table()
            found = [stat for stat in self._members(table).values() if concerns(stat)]
            for stat in found:
                _signal_one(stat, number)
            # Not only for tidiness: what forks without end fills the table of processes with its dead.
            buried = self._bury(table)
            quiet = 0 if found else 1 if buried else quiet + 1
            if quiet == 2:
                return True
            if found or buried:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 0.02)

    def reap(self) -> None:
        self._bury(process_table())

    def _bury(self, table: Mapping[int, Stat]) -> int:
        """Wait for inherited orphans that ended; answers how many. Children of the owner's own session, and those that
        it spawned here, are left to whoever started them."""
        if not self._owned:
            return 0
        me = os.getpid()
        own_session = os.getsid(0)
        buried = 0
        for stat in table.values():
            if stat.parent != me or stat.alive or stat.session == own_session or stat.pid in self._spawned:
                continue
            try:
                os.waitpid(stat.pid, os.WNOHANG)
                buried += 1
            except ChildProcessError:
                continue
        return buried

    def close(self) -> None:
        """Nothing holds a marked group together but its members."""

    def _members(self, table: Mapping[int, Stat]) -> dict[int, Stat]:
        """Those of the table's processes that live and belong to the group."""
        me = os.getpid()
        young = {pid: stat for pid, stat in table.items() if stat.started >= self._since and pid != me}
        found = {pid for pid, stat in young.items() if self._in_session(stat, table) or self._has_mark(pid)}
        if self._owned:
            found.add(me)
            # What this process runs beside the group stays in its session, which nobody else can join.
            beside = os.getsid(0)
            young = {pid: stat for pid, stat in young.items() if stat.session != beside or pid in found}
        # Children of members are members, whatever they made of themselves.
        below: dict[int, list[int]] = {}
        for stat in young.values():
            below.setdefault(stat.parent, []).append(stat.pid)
        todo = list(found)
        while todo:
            for child in below.get(todo.pop(), ()):
                if child not in found:
                    found.add(child)
                    todo.append(child)
        members = {pid: young[pid] for pid in found if pid != me and young[pid].alive}
        self._note_sessions(members, table)
        return members

    def _has_mark(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - hot path
                return self._words.issubset(file.read().split(b"\0"))
        except OSError:
            return False  # Ended meanwhile, or somebody else's.

    def _in_session(self, stat: Stat, table: Mapping[int, Stat]) -> bool:
        if stat.session not in self._sessions:
            return False
        # The number of a session is not given away while anybody is in it, so a leader with another start time is
        # the sign of a session that ended and a number that was used again.
        leader = table.get(stat.session)
        return leader is None or leader.started == self._sessions[stat.session]

    def _note_sessions(self, members: Mapping[int, Stat], table: Mapping[int, Stat]) -> None:
        own_session = os.getsid(0)
        for stat in members.values():
            leader = table.get(stat.session)
            if stat.session not in self._sessions and stat.session != own_session:
                self._add_session(stat.session, leader.started if leader is not None else 0)

    def _add_session(self, session: int, started: int) -> None:
        self._sessions[session] = started
        if self._record is not None:
            with open(self._record, "a", encoding="ascii") as file:  # noqa: PTH123 - no pathlib at start-up
                file.write(f"{session} {started} {boot_id()}\n")

    def _read_sessions(self) -> None:
        if self._record is None or not os.path.exists(self._record):  # noqa: PTH110
            return
        with open(self._record, encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                fields = line.split()
                # A line that its writer did not live to finish ends in a boot that never was.
                if len(fields) == 3 and fields[2] == boot_id():
                    self._sessions[int(fields[0])] = int(fields[1])


def _signal_one(stat: Stat, number: int) -> bool:
    try:
        return Process(stat.pid, stat.started, boot_id()).signal(number)
    except PermissionError:
        return False
