"""Decide when the markers of an ended job are removed: not before all its machines are positively gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core.governor_settings import GovernorSettings
from stoker.core.hold import hold_of
from stoker.core.snapshot import JobSnapshot
from stoker.model.observed import Known


@dataclass(frozen=True)
class RetireResult:
    """Markers to remove; and, for the others, the reason for waiting and when it may end."""

    markers: tuple[int, ...] = ()
    waiting: str = ""
    wake_at: datetime | None = None


def retire(job: JobSnapshot, settings: GovernorSettings, now: datetime) -> RetireResult:
    """Find the markers of an ended job that can be removed."""
    ended = job.state.ended
    assert ended is not None
    named = [node.instance for claim in job.state.claims for node in claim.launched or ()]
    if not all(job.is_gone(instance) for instance in named):
        hold = hold_of(job.state, job.spec)
        if hold is not None and now < hold.ends_at:
            reason = f"ended; held for a look until {hold.until:%Y-%m-%d %H:%M:%S} UTC"
            return RetireResult(waiting=reason, wake_at=hold.ends_at)
        return RetireResult(waiting="ended; its machines are not known to be gone yet")
    unnamed = unnamed_machines_left(job, now)
    if unnamed is not None:
        return unnamed
    done = [marker for marker in job.markers if marker <= ended.seq]
    waiting, wake_at = "", None
    for marker in job.markers:
        written = job.announced.get(marker)
        if marker <= ended.seq or written is None:
            continue
        # It announces a `resume`. If that process died before it opened the job, only this removes the marker.
        over_at = written + timedelta(seconds=settings.announced_s)
        if now >= over_at:
            done.append(marker)
        else:
            waiting = "ended; a resume was announced and has not come yet"
            wake_at = min(over_at, wake_at or over_at)
    return RetireResult(tuple(done), waiting, wake_at)


def unnamed_machines_left(job: JobSnapshot, now: datetime) -> RetireResult | None:
    """Return why machines may remain that the log does not name, because the reply to a launch was lost or came late.

    A list may lag: an unlaunched claim counts as clean only after the age at which every machine is listed.
    """
    listed, newborn = job.instances, timedelta(seconds=job.capabilities.newborn_s)
    if not isinstance(listed, Known) or any(instance.state != "gone" for instance in listed.value):
        reason = "ended; the provider's list is not known to be free of its machines yet"
        if not isinstance(listed, Known):
            return RetireResult(waiting=reason)
        # A machine too young to count as an orphan is terminated when it is old enough.
        born = max(instance.created_at for instance in listed.value if instance.state != "gone")
        return RetireResult(waiting=reason, wake_at=max(now, born + newborn) + timedelta(seconds=1))
    for claim in job.state.claims:
        if claim.launched is None and claim.closed_at is not None and now < claim.closed_at + newborn:
            reason = "ended; still looking whether a machine of a claim that was not launched shows up"
            return RetireResult(waiting=reason, wake_at=claim.closed_at + newborn)
    return None
