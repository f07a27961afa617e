"""Checkpoints that the next attempt must not restore: attempts keep failing on them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.core.governor_settings import GovernorSettings
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.log_entries import Closed

# Checkpoints imported by `resume_from` lie under claim 0. A person named them, so they are never passed over.
IMPORTED = "00000000/"


@dataclass(frozen=True)
class PoisonedCheckpoints:
    """Single checkpoints, by key, and the claims of which every checkpoint is poisoned."""

    checkpoints: frozenset[str] = frozenset()
    claims: frozenset[int] = frozenset()

    def covers(self, key: str) -> bool:
        """Return True if the checkpoint with this key is poisoned."""
        return key in self.checkpoints or key.partition("/")[0] in map(keys.number, self.claims)

    def without(self, key: str) -> PoisonedCheckpoints:
        """Return these without the checkpoint of this key, and without the claim that committed it."""
        claims = frozenset(claim for claim in self.claims if keys.number(claim) != key.partition("/")[0])
        return PoisonedCheckpoints(self.checkpoints - {key}, claims)


NONE_POISONED = PoisonedCheckpoints()


def poisoned_checkpoints(state: JobState, settings: GovernorSettings) -> PoisonedCheckpoints:
    """The checkpoints on which too many attempts failed and from which no attempt made progress.

    Also included is everything that such an attempt committed, since it only copies what was restored. Remembered for
    the life of the job: `resume` uses none of them unless a person chooses one.
    """
    return poisoned_among([claim.closed for claim in state.claims if claim.closed], settings)


def poisoned_among(closes: Sequence[Closed], settings: GovernorSettings) -> PoisonedCheckpoints:
    loaded = {closed.restored_from for closed in closes if closed.loaded}
    failures = Counter(closed.restored_from for closed in closes if closed.suspects_checkpoint)
    given_up = frozenset(
        key
        for key, count in failures.items()
        if key is not None and count >= settings.poison_after and key not in loaded and not key.startswith(IMPORTED)
    )
    copies = frozenset(closed.claim for closed in closes if closed.suspects_checkpoint and closed.checkpoint)
    return PoisonedCheckpoints(given_up, copies)
