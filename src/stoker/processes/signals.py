"""Reactions of processes to a signal, as reported by the kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stoker.processes.identity import stat_of


def expecting(members: Iterable[int], number: int) -> frozenset[int]:
    """Return the processes that catch or ignore the signal: they survive it."""
    return frozenset(pid for pid in members if _expects(pid, number))


def has_survivor(members: Iterable[int], expect: Collection[int]) -> bool:
    """Tell if any of these processes survives a signal that those in `expect` catch or ignore.

    An ancestor of a process that dies of it does not count: launchers (torchrun) catch a signal for themselves and pass
    it on to their workers.
    """
    parents = {pid: stat.parent for pid in members if (stat := stat_of(pid)) is not None}
    survivors = parents.keys() & set(expect)
    for victim in parents.keys() - set(expect):
        above = parents[victim]
        while above in parents:
            survivors.discard(above)
            above = parents[above]
    return bool(survivors)


def _expects(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - hot path
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigCgt:", "SigIgn:"))]
    except (OSError, ValueError):
        return False
    return any(mask & (1 << (number - 1)) for mask in masks)
