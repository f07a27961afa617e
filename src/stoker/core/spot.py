"""Decide when a job that wants spot machines takes on-demand ones instead. Pure."""

from __future__ import annotations

from stoker.model.spec import Spec


def spot_only_s(spec: Spec) -> float | None:
    """How long the job accepts only spot; None: forever; 0: on-demand is accepted whenever there is no spot."""
    match spec.resources.spot:
        case "never":
            return 0.0
        case "prefer":
            return spec.retry.spot_wait_s or 0.0
        case "only":
            return spec.retry.spot_wait_s


def falls_back_to_on_demand(spec: Spec) -> bool:
    """Return whether a job that wants spot accepts on-demand at some time."""
    return spec.resources.spot != "never" and spot_only_s(spec) is not None


def given_up(spec: Spec, reclaimed: int) -> bool:
    """Return whether this many reclaims make the job give up spot. A job with `spot: only` never does."""
    most = spec.retry.on_demand_after
    return spec.resources.spot == "prefer" and most is not None and reclaimed > most
