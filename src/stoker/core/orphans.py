"""Machines that nobody may keep.

The cloud was listed before the bucket was read, so a machine whose claim is not in the log has no claim; still, the
newborn are left alone, and only what carries this store's tag was listed at all. A list that failed proves nothing.
"""

from __future__ import annotations

from datetime import datetime

from stoker.core.hold import is_kept
from stoker.core.snapshot import JobSnapshot, Snapshot, Terminate
from stoker.model.job_state import JobState
from stoker.model.observed import Known
from stoker.model.offerings import Instance, Leftover

# What is stopping will be off or gone in a moment.
_ALIVE = ("pending", "running", "off")


def sweep(job: JobSnapshot, now: datetime) -> list[Terminate]:
    """The job's machines that belong to no open claim, or that their claim does not name."""
    if not isinstance(job.instances, Known):
        return []
    found = []
    for instance in sorted(job.instances.value, key=lambda instance: instance.id):
        if instance.state in _ALIVE:
            reason = _nobody_keeps(job, instance, now)
            if reason:
                found.append(_terminate(instance, reason, orphan=is_orphan(instance, job.state)))
    return found


def strays(snapshot: Snapshot, now: datetime) -> list[Terminate]:
    """Machines whose job has no log at all."""
    return [
        _terminate(instance, "its job is not in the store", orphan=True)
        for instance in sorted(snapshot.strays, key=lambda instance: instance.id)
        if instance.state in _ALIVE and not _newborn(instance, snapshot.newborn_s.get(instance.provider), now)
    ]


def too_young(snapshot: Snapshot, now: datetime) -> list[Instance]:
    """Machines that look like nobody's, and are left alone for now: their claim may not be readable yet."""
    unclaimed: list[tuple[Instance, float | None]] = [
        (instance, job.capabilities.newborn_s)
        for job in snapshot.jobs
        if isinstance(job.instances, Known)
        for instance in job.instances.value
        if job.state.claim(instance.claim) is None
    ]
    unclaimed += [(instance, snapshot.newborn_s.get(instance.provider)) for instance in snapshot.strays]
    return [
        instance for instance, young_s in unclaimed if instance.state in _ALIVE and _newborn(instance, young_s, now)
    ]


def why_left(leftover: Leftover, state: JobState | None, newborn_s: float, now: datetime) -> str | None:
    """Why a thing beside a machine is nobody's, or None. `state` was read after the thing was listed."""
    claim = state.claim(leftover.claim) if state is not None else None
    if claim is not None:
        return None if claim.open else f"its claim is closed: {claim.closed_reason}"
    born = leftover.created_at
    if born is not None and (now - born).total_seconds() < newborn_s:
        return None
    return "its job is not in the store" if state is None else "its claim is not in the log"


def is_orphan(thing: Instance | Leftover, state: JobState | None) -> bool:
    """Whether no claim stands behind it. What a closed claim leaves is swept all the time, and no news."""
    return state is None or state.claim(thing.claim) is None


def _nobody_keeps(job: JobSnapshot, instance: Instance, now: datetime) -> str | None:
    state = job.state
    claim = state.claim(instance.claim)
    if claim is None:
        return None if _newborn(instance, job.capabilities.newborn_s, now) else "its claim is not in the log"
    if state.ended is not None:
        # One that is positively gone is nobody's to keep, whatever an older list still says.
        held = is_kept(state, job.spec, instance.id, now) and not job.is_gone(instance.id)
        return None if held else "the job has ended"
    if not claim.open:
        return f"its claim is closed: {claim.closed_reason}"
    if claim.launched is not None and all(node.instance != instance.id for node in claim.launched):
        return "the log names other machines for its claim"
    return None


def _newborn(instance: Instance, newborn_s: float | None, now: datetime) -> bool:
    # Without a known bound nothing is ever old enough to be taken for an orphan.
    return newborn_s is None or (now - instance.created_at).total_seconds() < newborn_s


def _terminate(instance: Instance, reason: str, *, orphan: bool = False) -> Terminate:
    return Terminate(
        job=instance.job,
        instance=instance.id,
        provider=instance.provider,
        reason=reason,
        region=instance.region,
        orphan=orphan,
    )
