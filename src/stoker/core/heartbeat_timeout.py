"""How long a node may be silent, and the nodes whose heartbeat is overdue. Pure.

Each provider's `Capabilities.silence_s` is the shortest timeout of its machines.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.core.costs import valid_span_s
from stoker.core.governor_settings import GovernorSettings
from stoker.core.snapshot import JobSnapshot, Snapshot
from stoker.model.job_state import Claim
from stoker.model.node_facts import Heartbeat
from stoker.model.observed import Known
from stoker.model.offerings import InstanceState

# A node counts as silent after this many missed heartbeats.
_MISSED_BEATS = 3
# Upper bound on the interval that a heartbeat reports, so that a node cannot extend its own timeout without limit.
_LONGEST_INTERVAL_S = 600.0


def silence_s(job: JobSnapshot, beat: Heartbeat | None) -> float:
    """Timeout of a node whose last heartbeat is this one; applies to both steps, suspicion and termination.

    An agent writes less often while nothing changes, and reports its interval.
    """
    interval_s = 0.0 if beat is None else min(valid_span_s(beat.interval_s), _LONGEST_INTERVAL_S)
    return max(job.capabilities.silence_s, _MISSED_BEATS * interval_s)


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
    return beat.etag if now - beat.modified > timedelta(seconds=silence_s(job, beat.value)) else None


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


def resolve_unheard_of(job: JobSnapshot, now: datetime) -> JobSnapshot:
    """Replace the state `unheard-of`: a young machine is pending, one with a recent heartbeat runs, any other is
    gone."""
    if not isinstance(job.states, Known) or "unheard-of" not in job.states.value.values():
        return job
    alive: dict[str, InstanceState] = {}
    for claim in job.state.claims:
        launched_at = claim.launched_at
        young = launched_at is not None and (now - launched_at).total_seconds() < job.capabilities.newborn_s
        for node in claim.launched or ():
            beat = job.heartbeat_of(claim, node.rank)
            if young:
                alive[node.instance] = "pending"
            elif beat is not None and (now - beat.modified).total_seconds() < silence_s(job, beat.value):
                # Its agent is alive, so the query went to the wrong place, such as another account.
                alive[node.instance] = "running"
    states: dict[str, InstanceState] = {
        instance: alive.get(instance, "gone") if state == "unheard-of" else state
        for instance, state in job.states.value.items()
    }
    return replace(job, states=Known(states))


def _expected(job: JobSnapshot, claim: Claim, rank: int) -> bool:
    """Return whether heartbeats of this rank are expected: launched, not exited, not known to be gone."""
    if claim.launched is None or claim.instance(rank) is None:
        return False
    return job.exit_of(claim, rank) is None and not job.rank_gone(claim, rank)
