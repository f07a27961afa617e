"""The offerings that a spec allows and can pay for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core import spot
from stoker.core.policy_rules import EffectiveLimits
from stoker.model.durations import span_text
from stoker.model.offerings import Offering
from stoker.model.spec import Spec

# The name of the limit on the cost, if it is the job's own.
MAX_COST = "limits.max_cost"


SPOT_FIRST = "spot first"


def acceptable(
    spec: Spec,
    offerings: tuple[Offering, ...],
    reclaimed: int = 0,
    *,
    unpriced: bool = False,
    spot_alone: bool = False,
    cost_bound: str = MAX_COST,
) -> tuple[list[Offering], str]:
    """The offerings that the spec allows, best first, and the reason for the choice (or why there are none).

    `unpriced`: an unknown price forbids nothing, as in a plan made offline; known prices above a limit still do.
    `spot_alone`: the job still waits for spot before it accepts on-demand. `cost_bound` names the limit on the cost.
    """
    if not offerings:
        return [], f"{spec.resources.provider} offers nothing that fits the resources asked for"
    wanted = "prefer" if spot.falls_back_to_on_demand(spec) else spec.resources.spot
    if wanted == "prefer" and spot_alone and not spot.given_up(spec, reclaimed):
        wanted = "only"
    fitting = [o for o in offerings if wanted == "prefer" or o.spot == (wanted == "only")]
    if not fitting:
        return (
            [],
            f"{spec.resources.provider} has no {'spot' if wanted == 'only' else 'on-demand'} offering that fits",
        )
    fitting, too_expensive = _within_price(spec, fitting, unpriced, cost_bound)
    if not fitting:
        return [], too_expensive
    if spot.given_up(spec, reclaimed):
        # Without an on-demand offering within the limits the job stays on spot: `prefer` does not forbid that.
        on_demand = [offering for offering in fitting if not offering.spot]
        if on_demand:
            return on_demand, f"on-demand after {reclaims_text(reclaimed)}"
        if not all(offering.spot for offering in offerings):
            return fitting, f"spot again after {reclaims_text(reclaimed)}: no on-demand offering is within the bounds"
    if wanted == "prefer":
        fitting.sort(key=lambda offering: not offering.spot)  # Stable: keeps the order of preference within each kind.
    return fitting, {"never": "on-demand", "only": "spot", "prefer": SPOT_FIRST}[wanted]


@dataclass(frozen=True)
class FittingOfferings:
    """The offerings that a new job may get, best first; and where there are none, the reason."""

    offerings: tuple[Offering, ...]
    reason: str
    # True if machines fit, and the limit on the cost does not even pay for saving on one.
    too_little_money: bool = False


def fitting_for_new_job(
    limits: EffectiveLimits, offerings: tuple[Offering, ...], leave_s: float, *, unpriced: bool = False
) -> FittingOfferings:
    """The offerings that a new job may get under the limits of its spec and the policy."""
    cost_bound = limits.named("max_cost")
    allowed, reason = acceptable(limits.spec, offerings, unpriced=unpriced, cost_bound=cost_bound)
    if not allowed:
        return FittingOfferings((), reason)
    fitting, too_little = within_cost_limit(limits.spec, allowed, leave_s, cost_bound=cost_bound)
    return FittingOfferings(tuple(fitting), too_little, too_little_money=not fitting)


def _within_price(spec: Spec, offerings: list[Offering], unpriced: bool, cost_bound: str) -> tuple[list[Offering], str]:
    """The offerings whose price is known to be within the job's limits, or why there are none."""
    fitting = offerings
    if spec.limits.max_cost is not None and not unpriced:
        fitting = _priced(fitting)
        if not fitting:
            return [], (
                f"{cost_bound} needs a known price, and no fitting offering has one; "
                f"`stoker prices --provider {spec.resources.provider} --refresh` may bring one"
            )
    if spec.resources.max_price is not None:
        most = spec.resources.max_price
        cheap = [o for o in fitting if _costs_at_most(o, most) or (unpriced and o.price is None)]
        if not cheap:
            why = f"no fitting offering is known to cost at most resources.max_price (${most:g}/h)"
            return [], f"{why}{_cheapest(fitting)}"
        fitting = cheap
    return fitting, ""


def within_cost_limit(
    spec: Spec,
    offerings: list[Offering],
    leave_s: float,
    spent: float = 0.0,
    *,
    cost_bound: str = MAX_COST,
    used: float = 0.0,
) -> tuple[list[Offering], str]:
    """The offerings on which the job can train at all within its limit on the cost, or why there are none.

    The cost of saving and leaving is set aside: without money beyond that, a machine would be launched only to be
    terminated at once. `used` is what was already subtracted from the limit.
    """
    most, save_s = spec.limits.max_cost, spec.checkpoints.grace_s + leave_s
    if most is None:
        return offerings, ""
    set_aside = {each.key: (_at_most(each) or 0.0) * spec.nodes * save_s / 3600 for each in offerings}
    fitting = [each for each in offerings if not set_aside[each.key] or set_aside[each.key] < most - spent]
    if fitting or not offerings:
        return fitting, ""
    cheapest = min(set_aside.values())
    what = f"({span_text(save_s)} at ${cheapest * 3600 / save_s:,.2f}/h: ${cheapest:,.2f})"
    if spent + used:
        already = f"${spent + used:,.2f} of ${most + used:g} is spent"
        return [], f"{cost_bound}: {already}, and what is left does not pay for saving {what}"
    advice = "raise it, shorten checkpoints.grace, or take a cheaper machine"
    return [], f"{cost_bound}: ${most:g} does not even pay for saving {what}; {advice}"


def _priced(offerings: list[Offering]) -> list[Offering]:
    """The offerings with a price. If no spot offering has one, the on-demand price counts as an upper bound for
    spot."""
    known_spot = any(offering.spot and offering.price is not None for offering in offerings)
    return [o for o in offerings if (o.price if known_spot else _at_most(o)) is not None]


def _at_most(offering: Offering) -> float | None:
    """Highest possible price, or None if unknown. Spot without bids never costs more than on-demand."""
    return offering.on_demand_price if offering.price is None and offering.spot else offering.price


def _costs_at_most(offering: Offering, most: float) -> bool:
    """Return whether the price is known to be at most this."""
    price = _at_most(offering)
    return price is not None and price <= most


def _cheapest(offerings: list[Offering]) -> str:
    known = [(offering.price, offering.machine) for offering in offerings if offering.price is not None]
    if not known:
        return ""
    price, machine = min(known)
    return f"; the cheapest known is {machine} at ${price:.4f}/h"


def reclaims_text(count: int) -> str:
    return "1 reclaim" if count == 1 else f"{count} reclaims"
