"""Collect what the kernel and the file system report about a training that died.

These are facts only: the retry rules decide which of them excuse the user.
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
# The kernel's clock differs a little from the monotonic one.
_SLACK_S = 2.0
_DISK_FULL_BYTES = 16 * 1024 * 1024
# The kernel's ring is smaller than this; a hostile file in its place may be endless.
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
    """Return facts such as `oom`, `xid:79`, `disk-full`, sorted. `started_at` is the monotonic time of the start.

    `cgroup` is the training's own group under /sys/fs/cgroup, if it had one. Never raises: a source that cannot be
    read is no evidence.
    """
    facts: set[str] = set()
    oom_kills = None if cgroup is None else _oom_kills(cgroup)
    if oom_kills:
        facts.add("oom")
    # The kernel does not name a group that does not count memory.
    named_as = cgroup if oom_kills is not None else None
    # The memory of such a training is counted in the group of this process.
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
    """Return how often the kernel killed in this group for lack of memory; None if that is not counted."""
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
    """Return whether an out-of-memory kill may have hit the training. The kernel names the training's own group."""
    if cgroup is None:
        return True
    named = _OOM_CGROUP.search(line)
    if named is None:
        return False
    group = PurePosixPath(named[1])
    # The kernel's path starts where the hierarchy is mounted, and may go on into groups that the training made.
    return any(str(cgroup).endswith(str(part)) for part in (group, *group.parents) if part != PurePosixPath("/"))


def _memory_group(own_cgroup: Path) -> str | None:
    """Return the group in which the memory of this process is counted, as the kernel names it; None if unknown."""
    try:
        lines = [line.split(":", 2) for line in own_cgroup.read_text().splitlines()]
    except OSError:
        return None
    named = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    return named.get("memory", named.get(""))


def _of_another_group(line: str, memory_group: str | None) -> bool:
    """Return whether the kernel reports a kill in a group that is unrelated to this one."""
    named = _OOM_CGROUP.search(line)
    if memory_group is None or named is None:
        return False
    group = PurePosixPath(named[1])
    related = group == PurePosixPath("/") or PurePosixPath(memory_group).is_relative_to(group)
    return not related and (memory_group == "/" or not group.is_relative_to(memory_group))


def _kernel_lines(path: Path) -> Iterator[tuple[float, str]]:
    """Yield the kernel's log with its times in seconds since boot; nothing if it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        for _ in range(_MAX_RECORDS):
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                # The ring was overwritten meanwhile; the next read goes on with its oldest record.
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
