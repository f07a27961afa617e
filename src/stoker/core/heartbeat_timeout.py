"""Find nodes whose heartbeat is overdue. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from stoker.core.governor_settings import GovernorSettings
from stoker.core.snapshot import JobSnapshot, Snapshot
from stoker.model.job_state import Claim
from stoker.model.observed import Known


def overdue_etag(job: JobSnapshot, claim: Claim, rank: int, now: datetime) -> str | None:
    """The ETag of a heartbeat that is too old (empty: there never was one), or None if it is not overdue.

    None also if a fact could not be read: that is no evidence of a silent node.
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


def mass_silence(snapshot: Snapshot, settings: GovernorSettings, now: datetime) -> bool:
    """Return whether so many nodes fell silent together that the governor's own view is probably at fault.

    Only nodes with a heartbeat count: a gang that never booted has not fallen silent, and must still time out.
    """
    expected = silent = 0
    for job in snapshot.jobs:
        for claim in job.state.open_claims:
            for rank in range(claim.nodes):
                if _expected(job, claim, rank) and job.heartbeat_of(claim, rank) is not None:
                    expected += 1
                    silent += overdue_etag(job, claim, rank, now) is not None
    return silent >= settings.mass_silence_least and silent > expected * settings.mass_silence_share


def _expected(job: JobSnapshot, claim: Claim, rank: int) -> bool:
    """Return whether heartbeats of this rank are expected: launched, not exited, not known to be gone."""
    if claim.launched is None or claim.instance(rank) is None:
        return False
    return job.exit_of(claim, rank) is None and not job.rank_gone(claim, rank)
