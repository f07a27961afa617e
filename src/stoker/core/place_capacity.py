"""Places with a bounded number of nodes, and the queue of jobs that wait for them. Pure.

A provider that knows its bound reports it in its offerings (`most_nodes`). A job is then claimed only when there is
room, and only after every earlier job that waits for the same place. The provider still refuses what does not fit:
another governor may have launched meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.name_list import first_names
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import JobState
from stoker.model.observed import Known
from stoker.model.offerings import Offering

# Provider and zone: nodes are counted together for each pair.
_Where = tuple[str, str]
_MOST_NAMED = 2
# Reason for waiting of a job that was observed without the jobs that may be before it.
UNDECIDED = "queued: the next pass over all jobs decides whose turn it is"


def place_in_queue(state: JobState) -> tuple[datetime, str]:
    """Sort key of the queue: submission order. A job that was resumed is as young as its resumption."""
    return state.opened_at or state.submitted_at, state.job


def waits_for_bounded_place(job: JobSnapshot) -> bool:
    """Return whether the job waits for machines at a place with a bound."""
    return isinstance(job.offerings, Known) and any(each.most_nodes is not None for each in job.offerings.value)


@dataclass
class CapacityQueue:
    """Nodes in use at each bounded place, and the jobs that wait there. `complete`: every active job was counted.

    Filled in the order of the queue while jobs are decided on.
    """

    complete: bool = True
    _used: dict[_Where, dict[str, int]] = field(default_factory=dict)
    _queued: dict[_Where, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[JobSnapshot], *, complete: bool) -> CapacityQueue:
        capacity = cls(complete)
        for job in jobs:
            for where, count in _in_use(job).items():
                capacity._used.setdefault(where, {})[job.state.job] = count
        return capacity

    def why_wait(self, job: str, offering: Offering, nodes: int) -> str | None:
        """Return why the job cannot have these nodes now. None: it can, and they are counted as used from now on.

        A job that waits is queued: no later job is served before it.
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
        by = f" by {first_names(sorted(name for name, count in used.items() if count), _MOST_NAMED)}" if taken else ""
        line = "" if not ahead else "; 1 job is ahead of it" if ahead == 1 else f"; {ahead} jobs are ahead of it"
        return f"no room yet: {bound}{by} (resources.{offering.provider}.capacity){line}"

    def queue(self, job: str, offering: Offering) -> None:
        """Queue a job that waits for another reason, such as a launch that just failed for lack of room."""
        if offering.most_nodes is not None:
            self._queued.setdefault((offering.provider, offering.zone), []).append(job)


def _in_use(job: JobSnapshot) -> dict[_Where, int]:
    """Count the job's nodes by place: listed machines that are not known to be gone, and the nodes of open claims.

    An unlaunched claim counts in full. Machines on another computer take no room on this one.
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
