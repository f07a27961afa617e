"""The cost of a job, and what it would have cost on-demand. Unknown prices stay unknown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.model.job_state import Claim, JobState

# No training takes ten years, and sums of such spans are still valid times.
LONGEST_SPAN_S = 10 * 365 * 86400.0


@dataclass(frozen=True)
class Cost:
    """Dollars; None if a price was unknown."""

    spent: float | None
    on_demand: float | None

    @property
    def saved_share(self) -> float | None:
        """The share of the on-demand price that was saved; None if unknown or nothing was spent."""
        if self.spent is None or not self.on_demand:
            return None
        return 1.0 - self.spent / self.on_demand

    @property
    def at_most(self) -> float | None:
        """The highest possible cost, if known: spot without bids never costs more than on-demand."""
        return self.on_demand if self.spent is None else self.spent


def machine_hours(claim: Claim, now: datetime) -> float:
    """Machine-hours of the claim, from `launched` to `closed`, by the store's clock."""
    if claim.launched_at is None:
        return 0.0
    end = claim.closed_at or now
    return max(0.0, (end - claim.launched_at).total_seconds()) / 3600 * len(claim.launched or ())


def claim_cost(claim: Claim, now: datetime, held_h: float = 0.0) -> Cost:
    """The cost of one claim so far. `held_h`: machine-hours of a hold after it was closed."""
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
    """The cost of all attempts, or of those since the job was last opened. `held_h` is by claim number."""
    claims = state.since_opened() if since_opened else state.claims
    costs = [claim_cost(claim, now, (held_h or {}).get(claim.number, 0.0)) for claim in claims]
    return Cost(
        spent=_sum([cost.spent for cost in costs]),
        on_demand=_sum([cost.on_demand for cost in costs]),
    )


def highest_possible_cost(state: JobState, now: datetime) -> float:
    """Highest possible cost since the job was last opened, over all known prices; claims without a price are left
    out."""
    return sum(claim_cost(claim, now).at_most or 0.0 for claim in state.since_opened())


def burn_rate(state: JobState) -> float:
    """Highest possible dollars per second now, over all known prices."""
    return sum(dollars_per_s(claim) for claim in state.open_claims)


def dollars_per_s(claim: Claim, machines: int | None = None) -> float:
    """Highest possible dollars per second of its machines, or of `machines` of them; 0 if no price is known."""
    price = Cost(claim.offering.price, claim.offering.on_demand_price).at_most
    return (price or 0.0) * (len(claim.launched or ()) if machines is None else machines) / 3600


def valid_span_s(reported_s: float) -> float:
    """Clamp a span of time that an agent reported. Facts are untrusted: negative and NaN become 0."""
    return min(reported_s, LONGEST_SPAN_S) if reported_s > 0 else 0.0


def _sum(parts: list[float | None]) -> float | None:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def in_dollars(amount: float) -> str:
    """Format dollars. Small sums keep four digits: a demo on one computer costs parts of a cent."""
    return f"${amount:.4f}" if 0 < abs(amount) < 0.1 else f"${amount:,.2f}"
