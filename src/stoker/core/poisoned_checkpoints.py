"""Checkpoints that the next attempt must not restore: attempts keep failing on them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stoker.core.governor_settings import GovernorSettings
from stoker.model.job_state import JobState
from stoker.model.log_entries import Closed

# Checkpoints imported by `resume_from` lie under claim 0. A person named them, so they are never passed over.
IMPORTED = "00000000/"


def poisoned_checkpoints(state: JobState, settings: GovernorSettings) -> frozenset[str]:
    """The keys of checkpoints on which too many attempts failed and from which no attempt made progress.

    Also included is everything that such an attempt committed, since it only copies what was restored. The result holds
    checkpoint keys and, for all checkpoints of one claim, the prefix `<claim>/`. Remembered for the life of the job:
    `resume` uses none of them unless a person chooses one.
    """
    return poisoned_among([claim.closed for claim in state.claims if claim.closed], settings)


def poisoned_among(closes: Sequence[Closed], settings: GovernorSettings) -> frozenset[str]:
    loaded = {closed.restored_from for closed in closes if closed.loaded}
    failures = Counter(closed.restored_from for closed in closes if closed.suspects_checkpoint)
    copies = {f"{closed.claim:08d}/" for closed in closes if closed.suspects_checkpoint and closed.checkpoint}
    return frozenset(
        key
        for key, count in failures.items()
        if key is not None and count >= settings.poison_after and key not in loaded and not key.startswith(IMPORTED)
    ).union(copies)
