"""Nodes that have not been heard of."""

from __future__ import annotations

from datetime import datetime, timedelta

from stoker.core.governor_settings import Policy
from stoker.core.snapshot import JobSnapshot, Snapshot
from stoker.model.job_state import Claim
from stoker.model.observed import Known


def silent_etag(job: JobSnapshot, claim: Claim, rank: int, now: datetime) -> str | None:
    """The ETag of a heartbeat that is too old (empty: there never was one), or None while all is well.

    None also when nobody could tell: an unread fact is not a silent node.
    """
    if claim.launched_at is None or not _expected(job, claim, rank):
        return None
    facts = job.facts_of(claim, rank)
    if facts is None or not isinstance(facts.heartbeat, Known) or not isinstance(facts.exit, Known):
        return None
    beat = facts.heartbeat.value
    if beat is None:
        overdue = now - claim.launched_at > timedelta(seconds=job.capabilities.boot_timeout_s)
        return "" if overdue else None
    return beat.etag if now - beat.modified > timedelta(seconds=job.silence_s(beat.value)) else None


def mass_silence(snapshot: Snapshot, policy: Policy, now: datetime) -> bool:
    """Whether so many nodes fell silent together that it must be our own blindness.

    Only of those that were ever heard: a gang that never booted has not fallen silent, and must not be kept for good.
    """
    expected = silent = 0
    for job in snapshot.jobs:
        for claim in job.state.open_claims:
            for rank in range(claim.nodes):
                if _expected(job, claim, rank) and job.heartbeat_of(claim, rank) is not None:
                    expected += 1
                    silent += silent_etag(job, claim, rank, now) is not None
    return silent >= policy.mass_silence_least and silent > expected * policy.mass_silence_share


def _expected(job: JobSnapshot, claim: Claim, rank: int) -> bool:
    """Whether this rank should be beating: it was launched, has not exited and is not known to be gone."""
    if claim.launched is None or claim.instance(rank) is None:
        return False
    return job.exit_of(claim, rank) is None and not job.rank_gone(claim, rank)
