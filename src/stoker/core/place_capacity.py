"""Places that hold a bounded number of nodes, and the queue of the jobs that wait for one. Pure.

A provider that knows its bound says so in its offerings (`most_nodes`). A job is then claimed only when there is room,
and only after every job that was submitted before it and waits for room as well. The provider still refuses what does
not fit: another governor may have been quicker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import JobState
from stoker.model.observed import Known
from stoker.model.offerings import Offering

# Provider and zone: where nodes are counted together.
_Where = tuple[str, str]
_MOST_NAMED = 2
# What a job waits for that was looked at without the others that may be before it.
UNDECIDED = "queued: the next pass over all jobs decides whose turn it is"


def place_in_queue(state: JobState) -> tuple[datetime, str]:
    """Sort key of the queue: submission order. A job that was resumed is as young as its resumption."""
    return state.opened_at or state.submitted_at, state.job


def is_bounded(job: JobSnapshot) -> bool:
    """Whether the job waits for machines of which some place holds only so many."""
    return isinstance(job.offerings, Known) and any(each.most_nodes is not None for each in job.offerings.value)


@dataclass
class Rooms:
    """Nodes in use at each bounded place, and the jobs that wait there. `complete`: every active job was counted.

    Filled in queue order while jobs are decided on.
    """

    complete: bool = True
    _used: dict[_Where, dict[str, int]] = field(default_factory=dict)
    _queued: dict[_Where, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[JobSnapshot], *, complete: bool) -> Rooms:
        rooms = cls(complete)
        for job in jobs:
            for where, count in _in_use(job).items():
                rooms._used.setdefault(where, {})[job.state.job] = count
        return rooms

    def why_wait(self, job: str, offering: Offering, nodes: int) -> str | None:
        """Why the job cannot have so many nodes of this offering now; None: it can, and they count from here on.

        A job that waits is queued: no later one is served before it.
        """
        if offering.most_nodes is None:
            return None
        if not self.complete:
            return UNDECIDED
        where = (offering.provider, offering.zone)
        used, queued = self._used.setdefault(where, {}), self._queued.setdefault(where, [])
        taken = sum(used.values())
        ahead = len(queued)
        if not ahead and taken + nodes <= offering.most_nodes:
            used[job] = used.get(job, 0) + nodes
            return None
        queued.append(job)
        bound = f"{taken} of at most {offering.most_nodes} {_nodes(offering.most_nodes)} in use"
        by = f" by {_few(sorted(name for name, count in used.items() if count))}" if taken else ""
        line = "" if not ahead else "; 1 job is ahead of it" if ahead == 1 else f"; {ahead} jobs are ahead of it"
        return f"no room yet: {bound}{by} (resources.{offering.provider}.capacity){line}"

    def queue(self, job: str, offering: Offering) -> None:
        """Keep the job's place in the queue while it waits for another reason: a launch that just found no room."""
        if offering.most_nodes is not None:
            self._queued.setdefault((offering.provider, offering.zone), []).append(job)


def _in_use(job: JobSnapshot) -> dict[_Where, int]:
    """The job's nodes by place: listed machines that are not known to be gone, and those of open claims.

    A claim without its launch counts in full. Machines at another computer take no room at this one.
    """
    found: dict[_Where, set[str]] = {}
    if isinstance(job.instances, Known):
        for instance in job.instances.value:
            if instance.state != "gone" and not job.is_gone(instance.id):
                found.setdefault((instance.provider, instance.zone or ""), set()).add(instance.id)
    for claim in job.state.open_claims if not job.elsewhere else ():
        where = (claim.offering.provider, claim.offering.zone)
        names = found.setdefault(where, set())
        if claim.launched is None:
            listed = job.instances.value if isinstance(job.instances, Known) else ()
            there = sum(1 for each in listed if each.claim == claim.number and each.id in names)
            names |= {f"{claim.number}/{n}" for n in range(there, claim.nodes)}
        else:
            names |= {node.instance for node in claim.launched if not job.is_gone(node.instance)}
    return {where: len(names) for where, names in found.items()}


def _nodes(count: int) -> str:
    return "node is" if count == 1 else "nodes are"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
