"""What a job has cost, and what it would have cost on-demand. Unknown prices stay unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.model.job_state import Claim, JobState

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

    @property
    def dearest(self) -> float | None:
        """What it cost at most, where that is known: spot is never dearer than on-demand where nobody bids for it."""
        return self.on_demand if self.spent is None else self.spent


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


def known_cost(state: JobState, now: datetime) -> float:
    """What the job cost since it was last opened, at most, as far as that is known: one price that nobody knows does
    not make the others unknown."""
    return sum(claim_cost(claim, now).dearest or 0.0 for claim in state.since_opened())


def burn_rate(state: JobState) -> float:
    """Dollars per second at this moment, at most, as far as prices are known."""
    return sum(per_s(claim) for claim in state.open_claims)


def per_s(claim: Claim, machines: int | None = None) -> float:
    """Dollars per second of its machines, or of so many of them, at most; none where no price is known."""
    price = Cost(claim.offering.price, claim.offering.on_demand_price).dearest
    return (price or 0.0) * (len(claim.launched or ()) if machines is None else machines) / 3600


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


def in_dollars(amount: float) -> str:
    """Small sums keep their digits: a demo on one computer costs parts of a cent."""
    return f"${amount:.4f}" if 0 < abs(amount) < 0.1 else f"${amount:,.2f}"
