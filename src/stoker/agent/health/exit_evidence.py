"""After the training died: what the kernel and the file system say about it.

Facts only. Which of them excuse the user is decided by the retry rules.
"""

from __future__ import annotations

import os
import re
import signal as signals
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

KERNEL_LOG = Path("/dev/kmsg")
OWN_CGROUP = Path("/proc/self/cgroup")
# A launcher such as torchrun exits by itself soon after the kernel killed one of its workers.
_OOM_RECENT_S = 60.0
# The kernel's clock is not quite the monotonic one.
_SLACK_S = 2.0
_DISK_FULL_BYTES = 16 * 1024 * 1024
# The kernel's ring is smaller than this; a hostile file in its place would not be.
_MAX_RECORDS = 100_000

_OOM = re.compile(r"Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:")
_OOM_PID = re.compile(r"(?:\bpid=|Killed process )(\d+)")
_OOM_CGROUP = re.compile(r"task_memcg=([^,\s]+)")
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")


def collect(
    exit_code: int | None,
    signal: int | None,
    started_at: float,
    node_dir: Path,
    cgroup: Path | None = None,
    *,
    kernel_log: Path = KERNEL_LOG,
    own_cgroup: Path = OWN_CGROUP,
) -> tuple[str, ...]:
    """Facts such as `oom`, `xid:79`, `disk-full`, sorted. `started_at` is `time.monotonic()` when the training started.

    `cgroup` is the training's own group under /sys/fs/cgroup, if it had one. Never raises: what cannot be read is no
    evidence.
    """
    facts: set[str] = set()
    oom_kills = None if cgroup is None else _oom_kills(cgroup)
    if oom_kills:
        facts.add("oom")
    # A group that does not count memory is not named by the kernel either.
    named_as = cgroup if oom_kills is not None else None
    # Such a training is counted where this process is.
    memory_group = _memory_group(own_cgroup) if named_as is None else None
    others: set[str] = set()
    killed = signal == signals.SIGKILL or exit_code in (137, -9)
    now = time.monotonic()
    for at, line in _kernel_lines(kernel_log):
        if at < started_at - _SLACK_S:
            continue
        if xid := _XID.search(line):
            facts.add(f"xid:{int(xid[1])}")
        elif _OOM.search(line) and (killed or at > now - _OOM_RECENT_S):
            if _of_another_group(line, memory_group):
                others.update(_OOM_PID.findall(line))
            elif _ours(line, named_as) and not others & set(_OOM_PID.findall(line)):
                facts.add("oom")
    if _disk_full(node_dir):
        facts.add("disk-full")
    return tuple(sorted(facts))


def _oom_kills(cgroup: Path) -> int | None:
    """How often the kernel killed in this group for want of memory; None where nobody counts."""
    # Version 2 of cgroups has the first file, version 1 the second.
    for name in ("memory.events", "memory.oom_control"):
        try:
            for line in (cgroup / name).read_text().splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill":
                    return int(count)
        except (OSError, ValueError):
            continue
    return None


def _ours(line: str, cgroup: Path | None) -> bool:
    """Whether an out-of-memory kill may have hit the training. With a group of its own, the kernel names it."""
    if cgroup is None:
        return True
    named = _OOM_CGROUP.search(line)
    if named is None:
        return False
    group = PurePosixPath(named[1])
    # The kernel's path starts where the hierarchy is mounted, and may go on into groups that the training made.
    return any(str(cgroup).endswith(str(part)) for part in (group, *group.parents) if part != PurePosixPath("/"))


def _memory_group(own_cgroup: Path) -> str | None:
    """The group that the memory of this process is counted in, as the kernel names it; None where it is not known."""
    try:
        lines = [line.split(":", 2) for line in own_cgroup.read_text().splitlines()]
    except OSError:
        return None
    named = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    return named.get("memory", named.get(""))


def _of_another_group(line: str, memory_group: str | None) -> bool:
    """Whether the kernel says that it killed in a group that has nothing to do with this one."""
    named = _OOM_CGROUP.search(line)
    if memory_group is None or named is None:
        return False
    group = PurePosixPath(named[1])
    related = group == PurePosixPath("/") or PurePosixPath(memory_group).is_relative_to(group)
    return not related and (memory_group == "/" or not group.is_relative_to(memory_group))


def _kernel_lines(path: Path) -> Iterator[tuple[float, str]]:
    """The kernel's log with its times in seconds since boot; nothing where it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                # The ring went round under us; the next read goes on with what is left of it.
                continue
            except OSError:
                return
            if not record:
                return
            for line in record.decode("utf-8", "replace").split("\n"):
                head, _, text = line.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdecimal():
                    yield int(fields[2]) / 1e6, text
    finally:
        os.close(fd)


def _disk_full(folder: Path) -> bool:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    no_inodes = stat.f_files > 0 and stat.f_favail == 0
    return no_inodes or free < min(_DISK_FULL_BYTES, total // 100)
