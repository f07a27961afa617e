"""Groups by cgroup v2: the kernel keeps the list of members, and no descendant can leave it by forking."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

from stoker.processes.group import Group
from stoker.processes.identity import Process
from stoker.processes.spawn import LaunchSpec, start

# How long the kernel has to end a group that it was asked to kill, before each member is signalled.
_KERNEL_KILL_S = 0.05
_LONGEST_PAUSE_S = 0.5


class CgroupMount(NamedTuple):
    """The mount point of cgroup v2, and the part of the hierarchy that is visible there."""

    point: str
    root: str

    def folder(self, path: str) -> str | None:
        """Return the folder of a cgroup as /proc/<pid>/cgroup names it; None if it is not visible from here."""
        if self.root != "/" and path != self.root and not path.startswith(self.root + "/"):
            return None
        below = path if self.root == "/" else path[len(self.root) :]
        return (self.point + below).rstrip("/")

    def path(self, folder: str) -> str:
        """Return the name in /proc/<pid>/cgroup of the cgroup that has this folder."""
        return self.root.rstrip("/") + folder[len(self.point.rstrip("/")) :]


def find_mount(mountinfo: str) -> CgroupMount | None:
    """Return the cgroup v2 mount in the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            fields = before.split(" ")
            return CgroupMount(point=_unescape(fields[4]), root=_unescape(fields[3]))
    return None


def find_path(membership: str) -> str | None:
    """Return the cgroup v2 in the text of /proc/<pid>/cgroup."""
    for line in membership.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def make(name: str) -> str | None:
    """Create a cgroup below the caller's own, or find it there.

    None: there is no cgroup v2, or this user may not use it.
    """
    try:
        mount = _mount()
        own = find_path(_read("/proc/self/cgroup"))
        parent = mount.folder(own) if mount is not None and own is not None else None
        # To move a process, the kernel requires write access to the new cgroup and to the nearest common parent.
        if parent is None or not os.access(f"{parent}/cgroup.procs", os.W_OK):
            return None
        folder = f"{parent}/{name}"
        try:
            os.mkdir(folder)  # noqa: PTH102 - no pathlib at start-up
        except FileExistsError:
            pass
        if _read(f"{folder}/cgroup.type").strip() == "domain" and os.access(f"{folder}/cgroup.procs", os.W_OK):
            return folder
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        return None
    return None


class CgroupGroup(Group):
    """A group whose members are those of a cgroup and of the cgroups below it."""

    folder: str

    def __init__(self, folder: str, mark: str, owner: str) -> None:
        super().__init__(mark, owner)
        self.folder = folder

    def _start(self, launch: LaunchSpec) -> subprocess.Popen[bytes]:
        return start(launch, cgroup=self.folder)

    def members(self) -> set[int]:
        found = self._listed("cgroup.procs")
        if not found and self._populated():
            # Linux before 5.2 lists no process whose first thread has ended; it lists the other threads.
            found = {pid for thread in self._listed("cgroup.threads") if (pid := _process_of(thread)) is not None}
        return found - {0, os.getpid()}  # 0 stands for a process outside this pid namespace.

    def _listed(self, name: str) -> set[int]:
        found: set[int] = set()
        for folder in self._folders():
            try:
                found.update(int(line) for line in _read(f"{folder}/{name}").split())
            except OSError:
                continue  # Removed meanwhile, so it was empty.
        return found

    def signal(self, number: int) -> int:
        return sum(self._signal_one(pid, number) for pid in self.members())

    def freeze(self, timeout_s: float = 5.0) -> bool:
        if not self._write("cgroup.freeze", "1"):
            return True
        return self._wait_for("frozen", "1", timeout_s)

    def thaw(self) -> None:
        self._write("cgroup.freeze", "0")

    def kill(self, timeout_s: float = 10.0) -> bool:
        deadline = time.monotonic() + timeout_s
        if self._write("cgroup.kill", "1"):
            self._wait_for("populated", "0", min(_KERNEL_KILL_S, timeout_s))
        # Linux before 5.14 has no cgroup.kill, and later ones do not reach a process whose first thread has ended.
        # Frozen processes cannot fork away from the signals.
        pause_s = _KERNEL_KILL_S
        while self._populated():
            left_s = deadline - time.monotonic()
            self.freeze(min(pause_s, max(0.0, left_s)))
            self.signal(signal.SIGKILL)
            if not self._wait_for("populated", "0", min(pause_s, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return False
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        # The next process of the group must not start frozen.
        self.thaw()
        return True

    def _populated(self) -> bool:
        return not self._wait_for("populated", "0", 0.0)

    def reap(self) -> None:
        """Do nothing: a cgroup needs no subreaper, and orphans go to the one above."""

    def close(self) -> None:
        for folder in sorted(self._folders(), key=len, reverse=True):
            try:
                os.rmdir(folder)  # noqa: PTH106
            except OSError:
                continue  # The cgroup is not empty, or is gone already.

    def _folders(self) -> Iterator[str]:
        for folder, _, _ in os.walk(self.folder):
            yield folder

    def _signal_one(self, pid: int, number: int) -> bool:
        process = Process.of(pid)
        if process is None or not self._holds(pid):
            return False
        # `process` was read before the membership was checked: a pid that was reused in between is another process.
        try:
            return process.signal(number)
        except PermissionError:
            return False

    def _holds(self, pid: int) -> bool:
        mount = _mount()
        try:
            path = find_path(_read(f"/proc/{pid}/cgroup"))
        except OSError:
            return False
        if mount is None or path is None:
            return False
        own = mount.path(self.folder)
        return path == own or path.startswith(own + "/")

    def _wait_for(self, key: str, value: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.0005
        while True:
            try:
                events = dict(line.split() for line in _read(f"{self.folder}/cgroup.events").splitlines())
            except OSError:
                return True  # A cgroup that does not exist has no members.
            if events.get(key) == value:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)

    def _write(self, name: str, text: str) -> bool:
        try:
            handle = os.open(f"{self.folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(handle, text.encode())
        except OSError:
            return False
        finally:
            os.close(handle)
        return True


def _process_of(thread: int) -> int | None:
    """Return the process of a thread; None if it has ended."""
    try:
        lines = _read(f"/proc/{thread}/status").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), None)


def _mount() -> CgroupMount | None:
    return find_mount(_read("/proc/self/mountinfo"))


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - no pathlib at start-up
        return file.read()


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo for space, tab, newline and backslash."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
