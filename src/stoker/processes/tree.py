"""Groups without cgroups: by a mark in the environment, by recorded sessions, and by ancestry under a subreaper.

Each method alone can be escaped. A program may clear or overwrite its environment (setproctitle does), leave its
session, or orphan itself; the three together hold while the owner lives, because every orphan becomes the owner's
child. After the owner's death, the marks and the sessions recorded until then remain.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from stoker.processes.group import Group, marked_environment
from stoker.processes.identity import Process, Stat, boot_id, environ_of, process_table, stat_of
from stoker.processes.kernel import become_subreaper
from stoker.processes.spawn import LaunchSpec, start


class MarkedGroup(Group):
    """A group that is searched in /proc. `since` is its time of creation: an older process cannot be a member.

    `owned`: this process created the group, is a subreaper, and so owns all its descendants.
    """

    folder = None

    def __init__(
        self,
        mark: str,
        owner: str,
        *,
        since: int,
        owned: bool,
        sessions: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(mark, owner)
        # A member also carries the marks of the outer groups: two groups inside different ones may share a name. A
        # process outside knows only the one mark.
        marks = marked_environment({}, mark, owner) if owned else {mark: owner}
        self._mark_entries = {f"{name}={value}".encode() for name, value in marks.items()}
        self._since = since
        self._owned = owned
        self._record = sessions
        # Session → start of its leader; 0 if the leader had ended before the session was seen.
        self._sessions: dict[int, int] = {}
        self._spawned: set[int] = set()
        if owned:
            become_subreaper()
        else:
            self._read_sessions()

    def _start(self, launch: LaunchSpec) -> subprocess.Popen[bytes]:
        child = start(launch)
        self._spawned.add(child.pid)
        # The child has not been waited for, so the pid is still its own, if only as a zombie.
        stat = stat_of(child.pid)
        if stat is not None:
            self._add_session(child.pid, stat.started)
        return child

    def members(self) -> set[int]:
        return set(self._members(process_table()))

    def signal(self, number: int) -> int:
        return sum(_signal_one(stat, number) for stat in self._members(process_table()).values())

    def freeze(self, timeout_s: float = 5.0) -> bool:
        return self._signal_until_none(signal.SIGSTOP, lambda stat: not stat.halted, timeout_s)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self, timeout_s: float = 10.0) -> bool:
        # Stopped first: the killing would never catch up with a program that forks faster.
        self.freeze(timeout_s / 4)
        return self._signal_until_none(signal.SIGKILL, lambda _: True, timeout_s)

    def _signal_until_none(self, number: int, concerns: Callable[[Stat], bool], timeout_s: float) -> bool:
        """Signal the members that need it, until there are none. False: there still were some at the timeout.

        One listing may miss a program that only forks and exits. But each of its generations leaves a zombie to its
        subreaper: no member found, and no new zombie in the next listing, is proof.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        quiet = 0
        while True:
            table = process_table()
            found = [stat for stat in self._members(table).values() if concerns(stat)]
            for stat in found:
                _signal_one(stat, number)
            # Needed for progress: a program that forks without end fills the process table with zombies.
            reaped = self._reap_orphans(table)
            quiet = 0 if found else 1 if reaped else quiet + 1
            if quiet == 2:
                return True
            if found or reaped:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 0.02)

    def reap(self) -> None:
        self._reap_orphans(process_table())

    def _reap_orphans(self, table: Mapping[int, Stat]) -> int:
        """Reap inherited orphans that ended, and return how many.

        Children in the owner's own session, and those spawned by this group, are left to their starters.
        """
        if not self._owned:
            return 0
        me = os.getpid()
        own_session = os.getsid(0)
        reaped = 0
        for stat in table.values():
            if stat.parent != me or stat.alive or stat.session == own_session or stat.pid in self._spawned:
                continue
            try:
                os.waitpid(stat.pid, os.WNOHANG)
                reaped += 1
            except ChildProcessError:
                continue
        return reaped

    def close(self) -> None:
        """Do nothing: only its members hold a marked group together."""

    def _members(self, table: Mapping[int, Stat]) -> dict[int, Stat]:
        """Return the live members among these processes."""
        me = os.getpid()
        young = {pid: stat for pid, stat in table.items() if stat.started >= self._since and pid != me}
        found = {pid for pid, stat in young.items() if self._in_session(stat, table) or self._has_mark(stat)}
        if self._owned:
            found.add(me)
            # Other children of this process stay in its session, which no process outside can join.
            beside = os.getsid(0)
            young = {pid: stat for pid, stat in young.items() if stat.session != beside or pid in found}
        # Children of members are members, even if they changed session or environment.
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

    def _has_mark(self, stat: Stat) -> bool:
        try:
            return self._mark_entries.issubset(environ_of(stat).split(b"\0"))
        except OSError:
            return False  # Ended meanwhile, or owned by another user.

    def _in_session(self, stat: Stat, table: Mapping[int, Stat]) -> bool:
        if stat.session not in self._sessions:
            return False
        # A session's number is not reused while it has members: a leader with another start time means that the session
        # ended and its number was reused.
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
        if self._record is None:
            return
        try:
            with open(self._record, "a", encoding="ascii") as file:  # noqa: PTH123 - no pathlib at start-up
                file.write(f"{session} {started} {boot_id()}\n")
        except OSError:
            pass  # A full disk must not keep members from being listed and killed: this owner knows the session.

    def _read_sessions(self) -> None:
        if self._record is None or not os.path.exists(self._record):  # noqa: PTH110
            return
        with open(self._record, encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                fields = line.split()
                # A line that its writer did not finish has an invalid boot id.
                if len(fields) == 3 and fields[2] == boot_id():
                    self._sessions[int(fields[0])] = int(fields[1])


def _signal_one(stat: Stat, number: int) -> bool:
    try:
        return Process(stat.pid, stat.started, boot_id()).signal(number)
    except PermissionError:
        return False
