"""Owning processes: knowing them, grouping them, ending them, whatever they fork.

    Process          who a pid is: cannot be fooled by a pid that was given to somebody else
    Group            every process of one owner, by cgroup where that can be had, else by marks and ancestry
    make_group       a new group of this process's own; `find_group` looks at somebody else's
    open_for_writing which files a set of processes may still change
    expecting        which of a set of processes live on after a signal

Linux only. Light on purpose: the supervisor of a local node imports this and little more.
"""

from __future__ import annotations

from stoker.processes.group import NODE, TRAINING, Group, find_group, make_group
from stoker.processes.identity import Process, Stat, boot_id, process_table, stat_of
from stoker.processes.kernel import become_subreaper, set_parent_death_signal
from stoker.processes.open_files import OpenFile, Writing, open_for_writing
from stoker.processes.signals import expecting, has_survivor
from stoker.processes.spawn import NotMounted

__all__ = [
    "NODE",
    "TRAINING",
    "Group",
    "NotMounted",
    "OpenFile",
    "Process",
    "Stat",
    "Writing",
    "become_subreaper",
    "boot_id",
    "expecting",
    "find_group",
    "has_survivor",
    "make_group",
    "open_for_writing",
    "process_table",
    "set_parent_death_signal",
    "stat_of",
]
