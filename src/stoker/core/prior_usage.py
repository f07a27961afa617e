"""Sum up what a job used before it was last opened. Pure."""

from __future__ import annotations

from datetime import datetime

from stoker.core.costs import claim_cost, valid_span_s
from stoker.core.hold import longest_held
from stoker.core.policy_rules import PriorUsage
from stoker.model.job_state import Claim, JobState
from stoker.model.spec import Spec


def used_before(state: JobState, spec: Spec, now: datetime) -> PriorUsage:
    """Return what counts against the policy's limits from before the job was last opened. Holds count at their
    longest."""
    before = [claim for claim in state.claims if claim.number <= state.opened_seq]
    held = longest_held(state, spec, now) if before else {}

    def dollars(claim: Claim) -> float:
        held_s = (
            (held[claim.number] - claim.closed_at).total_seconds() if claim.closed_at and claim.number in held else 0
        )
        return claim_cost(claim, now, max(0.0, held_s) / 3600 * len(claim.launched or ())).at_most or 0.0

    trained = (valid_span_s(claim.closed.trained_s) for claim in before if claim.closed)
    return PriorUsage(sum(map(dollars, before)), sum(trained))
