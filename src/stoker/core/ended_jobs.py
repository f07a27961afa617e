"""When an ended job may be forgotten: not before all its machines are positively gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core.governor_settings import Policy
from stoker.core.hold import hold_of
from stoker.core.snapshot import JobSnapshot
from stoker.model.observed import Known


@dataclass(frozen=True)
class Retiring:
    """The markers that nobody needs any more; and what the others wait for, where that is known to be over when."""

    markers: tuple[int, ...] = ()
    waiting: str = ""
    wake_at: datetime | None = None


def retire(job: JobSnapshot, policy: Policy, now: datetime) -> Retiring:
    """What can be forgotten of a job that has ended."""
    ended = job.state.ended
    assert ended is not None
    named = [node.instance for claim in job.state.claims for node in claim.launched or ()]
    if not all(job.is_gone(instance) for instance in named):
        hold = hold_of(job.state, job.spec)
        if hold is not None and now < hold.ends_at:
            told = f"ended; held for a look until {hold.until:%Y-%m-%d %H:%M:%S} UTC"
            return Retiring(waiting=told, wake_at=hold.ends_at)
        return Retiring(waiting="ended; its machines are not known to be gone yet")
    unnamed = unnamed_left(job, now)
    if unnamed is not None:
        return unnamed
    done = [marker for marker in job.markers if marker <= ended.seq]
    waiting, wake_at = "", None
    for marker in job.markers:
        written = job.announced.get(marker)
        if marker <= ended.seq or written is None:
            continue
        # It announces a `resume`. One that did not live to open the job is removed by nobody else.
        over_at = written + timedelta(seconds=policy.announced_s)
        if now >= over_at:
            done.append(marker)
        else:
            waiting = "ended; a resume was announced and has not come yet"
            wake_at = min(over_at, wake_at or over_at)
    return Retiring(tuple(done), waiting, wake_at)


def unnamed_left(job: JobSnapshot, now: datetime) -> Retiring | None:
    """Why there may be machines left that the log does not name: one whose launch's reply was lost, or that came late.

    A list may lag, so claims that never got their `launched` are given the age at which machines are listed.
    """
    listed, newborn = job.instances, timedelta(seconds=job.capabilities.newborn_s)
    if not isinstance(listed, Known) or any(instance.state != "gone" for instance in listed.value):
        told = "ended; the provider's list is not known to be free of its machines yet"
        if not isinstance(listed, Known):
            return Retiring(waiting=told)
        # One that is too young to be taken for an orphan is ended when it is old enough.
        born = max(instance.created_at for instance in listed.value if instance.state != "gone")
        return Retiring(waiting=told, wake_at=max(now, born + newborn) + timedelta(seconds=1))
    for claim in job.state.claims:
        if claim.launched is None and claim.closed_at is not None and now < claim.closed_at + newborn:
            told = "ended; still looking whether a machine of a claim that was not launched shows up"
            return Retiring(waiting=told, wake_at=claim.closed_at + newborn)
    return None
