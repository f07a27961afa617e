"""What a job has cost, and what it would have cost on-demand. Unknown prices stay unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.fold import Claim, JobState

# No training takes ten years, and sums of such spans still make times.
LONGEST_SPAN_S = 10 * 365 * 86400.0


@dataclass(frozen=True)
class Cost:
    """Dollars. None where a price was unknown."""

    spent: float | None
    on_demand: float | None

    @property
    def saved_share(self) -> float | None:
        """The share of the on-demand price that was saved; None where it cannot be known or nothing was spent."""
        if self.spent is None or not self.on_demand:
            return None
        return 1.0 - self.spent / self.on_demand


def machine_hours(claim: Claim, now: datetime) -> float:
    """Hours that the claim's machines were held, from `launched` to `closed`, by the store's clock."""
    if claim.launched_at is None:
        return 0.0
    end = claim.closed_at or now
    return max(0.0, (end - claim.launched_at).total_seconds()) / 3600 * len(claim.launched or ())


def claim_cost(claim: Claim, now: datetime, held_h: float = 0.0) -> Cost:
    """The cost of one claim so far. `held_h` are hours that its machines were held after it was closed."""
    hours = machine_hours(claim, now) + held_h
    price, full = claim.offering.price, claim.offering.on_demand_price
    if hours == 0.0:
        return Cost(spent=0.0, on_demand=0.0)
    return Cost(
        spent=None if price is None else price * hours,
        on_demand=None if full is None else full * hours,
    )


def job_cost(
    state: JobState, now: datetime, since_opened: bool = False, held_h: Mapping[int, float] | None = None
) -> Cost:
    """The cost of all attempts, or of those since the job was last opened. `held_h` is by the claims' numbers."""
    claims = state.since_opened() if since_opened else state.claims
    costs = [claim_cost(claim, now, (held_h or {}).get(claim.number, 0.0)) for claim in claims]
    return Cost(
        spent=_sum([cost.spent for cost in costs]),
        on_demand=_sum([cost.on_demand for cost in costs]),
    )


def burn_rate(state: JobState) -> float | None:
    """Dollars per second at this moment; None when a price is unknown."""
    total = 0.0
    for claim in state.open_claims:
        if claim.launched:
            if claim.offering.price is None:
                return None
            total += claim.offering.price * len(claim.launched) / 3600
    return total


def span_s(told: float) -> float:
    """A span of time as an agent told it. Facts are untrusted: what cannot be one counts as none, or as very long."""
    return min(told, LONGEST_SPAN_S) if told > 0 else 0.0


def _sum(parts: list[float | None]) -> float | None:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
