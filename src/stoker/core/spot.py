"""When a job that wants spot machines takes on-demand ones instead. Pure."""

from __future__ import annotations

from stoker.model.spec import Spec


def alone_s(spec: Spec) -> float | None:
    """How long nothing but spot will do for the job; None: for ever. 0: on-demand will do whenever there is no spot."""
    match spec.resources.spot:
        case "never":
            return 0.0
        case "prefer":
            return spec.retry.spot_wait_s or 0.0
        case "only":
            return spec.retry.spot_wait_s


def falls_back(spec: Spec) -> bool:
    """Whether it comes to on-demand machines though it would rather have spot ones."""
    return spec.resources.spot != "never" and alone_s(spec) is not None


def given_up(spec: Spec, reclaimed: int) -> bool:
    """Whether so many reclaims are enough. Whoever wants spot and nothing else never has enough."""
    most = spec.retry.on_demand_after
    return spec.resources.spot == "prefer" and most is not None and reclaimed > most
