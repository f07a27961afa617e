"""Own processes: identify, group and end them, whatever they fork.

    Process          identity of a process, safe against reuse of its pid
    Group            every process of one owner, by cgroup if possible, else by marks and ancestry
    make_group       a new group owned by this process; `find_group` opens the group of another process, and
                     `end_remains` ends what an earlier process left of it
    open_for_writing the files that a set of processes may still change
    expecting        the processes of a set that survive a signal

Linux only. Light on purpose: the supervisor of a local node imports this and little more.
"""

from __future__ import annotations

from stoker.processes.group import NODE, TRAINING, Group
from stoker.processes.identity import (
    Process,
    Stat,
    boot_id,
    environ_of,
    expecting,
    has_survivor,
    proc_folder,
    process_table,
    stat_of,
)
from stoker.processes.kernel import become_subreaper, set_parent_death_signal
from stoker.processes.open_files import FilesByInode, OpenFile, WritableFiles, open_for_writing
from stoker.processes.open_group import end_remains, find_group, make_group
from stoker.processes.spawn import NotMounted

__all__ = [
    "NODE",
    "TRAINING",
    "FilesByInode",
    "Group",
    "NotMounted",
    "OpenFile",
    "Process",
    "Stat",
    "WritableFiles",
    "become_subreaper",
    "boot_id",
    "end_remains",
    "environ_of",
    "expecting",
    "find_group",
    "has_survivor",
    "make_group",
    "open_for_writing",
    "proc_folder",
    "process_table",
    "set_parent_death_signal",
    "stat_of",
]
