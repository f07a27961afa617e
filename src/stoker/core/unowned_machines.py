"""Find machines that no open claim owns, to be terminated: of closed claims, of ended jobs, and without a claim. Pure.

The cloud was listed before the bucket was read, so a machine whose claim is not in the log has no claim. Even so,
newborn machines are left alone, and only machines with this store's tag were listed. A failed list proves nothing,
and hides no machine of another region.

A machine whose attempt has just ended may have a moment to end by itself (`Capabilities.self_end_s`). Both ends of that
moment are times of the store: the entry that closed the claim, and the decision.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from stoker.core.hold import is_held
from stoker.core.snapshot import JobSnapshot, Snapshot, Terminate
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import AttemptOutcome
from stoker.model.offerings import Instance, Leftover

# Machines that are stopping will be off or gone in a moment.
_ALIVE = ("pending", "running", "off")
# Outcomes of attempts that ended by themselves. A machine that is reclaimed may be started again by its cloud, and one
# that was asked to leave is seen as stopped anyway.
_OF_THEMSELVES: frozenset[AttemptOutcome] = frozenset({"succeeded", "failed", "infrastructure"})


def find_unowned(job: JobSnapshot, now: datetime) -> list[Terminate]:
    """Terminate the job's machines that belong to no open claim, or that their claim does not name."""
    found = []
    for instance in sorted(job.seen_instances, key=lambda instance: instance.id):
        if instance.state in _ALIVE:
            reason = _why_terminate(job, instance, now)
            if reason:
                found.append(_terminate(instance, reason, orphan=is_orphan(instance, job.state)))
    return found


def ends_itself_until(job: JobSnapshot, now: datetime) -> datetime | None:
    """When the first machine is terminated that may end by itself until then; None: no machine is waited for."""
    waits = (_ends_itself_until(job, instance, now) for instance in job.seen_instances)
    return min((until for until in waits if until is not None), default=None)


def find_strays(snapshot: Snapshot, now: datetime) -> list[Terminate]:
    """Terminate machines whose job has no log at all."""
    return [
        _terminate(instance, "its job is not in the store", orphan=True)
        for instance in sorted(snapshot.strays, key=lambda instance: instance.id)
        if instance.state in _ALIVE and not _newborn(instance, snapshot.newborn_s.get(instance.provider), now)
    ]


def newborn_strays(snapshot: Snapshot, now: datetime) -> list[Instance]:
    """Machines without a claim that are too young to terminate: their claim may not be readable yet."""
    unclaimed: list[tuple[Instance, float | None]] = [
        (instance, job.capabilities.newborn_s)
        for job in snapshot.jobs
        for instance in job.seen_instances
        if job.state.claim(instance.claim) is None
    ]
    unclaimed += [(instance, snapshot.newborn_s.get(instance.provider)) for instance in snapshot.strays]
    return [
        instance for instance, young_s in unclaimed if instance.state in _ALIVE and _newborn(instance, young_s, now)
    ]


def why_unowned(leftover: Leftover, state: JobState | None, newborn_s: float, now: datetime) -> str | None:
    """Return why a leftover has no owner, or None. `state` was read after the leftover was listed."""
    claim = state.claim(leftover.claim) if state is not None else None
    if claim is not None:
        return None if claim.open else f"its claim is closed: {claim.closed_reason}"
    born = leftover.created_at
    if born is not None and (now - born).total_seconds() < newborn_s:
        return None
    return "its job is not in the store" if state is None else "its claim is not in the log"


def is_orphan(thing: Instance | Leftover, state: JobState | None) -> bool:
    """Return whether it never had a claim. Leftovers of closed claims are removed routinely, without a notification."""
    return state is None or state.claim(thing.claim) is None


def _why_terminate(job: JobSnapshot, instance: Instance, now: datetime) -> str | None:
    state = job.state
    claim = state.claim(instance.claim)
    if claim is None:
        return None if _newborn(instance, job.capabilities.newborn_s, now) else "its claim is not in the log"
    if _ends_itself_until(job, instance, now) is not None:
        return None
    if state.ended is not None:
        # A machine that is positively gone is not held, whatever an older list says.
        held = is_held(state, job.spec, instance.id, now) and not job.is_gone(instance.id)
        return None if held else "the job has ended"
    if not claim.open:
        return f"its claim is closed: {claim.closed_reason}"
    if claim.launched is not None and all(node.instance != instance.id for node in claim.launched):
        return "the log names other machines for its claim"
    return None


def _ends_itself_until(job: JobSnapshot, instance: Instance, now: datetime) -> datetime | None:
    """Until when a machine may end by itself; None if that is over, or it never may.

    Only a machine that wrote its exit, by the log: of others nothing says that they are about to end. One that is off
    has ended, and may cost something as long as it exists.
    """
    claim = job.state.claim(instance.claim)
    if claim is None or claim.closed_at is None or instance.state == "off" or job.is_gone(instance.id):
        return None
    if not _wrote_its_exit(claim, instance):
        return None
    until = claim.closed_at + timedelta(seconds=job.capabilities.self_end_s)
    return until if now < until else None


def _wrote_its_exit(claim: Claim, instance: Instance) -> bool:
    closed = claim.closed
    if closed is None or closed.outcome not in _OF_THEMSELVES:
        return False
    return any(node.instance == instance.id and node.rank in closed.exited for node in claim.launched or ())


def _newborn(instance: Instance, newborn_s: float | None, now: datetime) -> bool:
    # Without a known bound no machine is ever old enough to count as an orphan.
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
