"""Quotas of a project: Compute Engine limits vCPUs and GPUs, in each region and in all regions together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.model.offerings import Offering
from stoker.providers.gce.catalog import is_tpu, split_name

GPUS_EVERYWHERE = "GPUS_ALL_REGIONS"
CPUS_EVERYWHERE = "CPUS_ALL_REGIONS"
_EVERYWHERE = (GPUS_EVERYWHERE, CPUS_EVERYWHERE)
_PREEMPTIBLE = "PREEMPTIBLE_"

# By the family that a machine type's name begins with: https://cloud.google.com/compute/resource-usage
# Newer families, and those with GPUs of their own, have limits that the API of Compute Engine does not report.
_CPUS = {
    "a2": "A2_CPUS",
    "c2": "C2_CPUS",
    "c2d": "C2D_CPUS",
    "c3": "C3_CPUS",
    "e2": "CPUS",
    "f1": "CPUS",
    "g1": "CPUS",
    "m1": "M1_CPUS",
    "m2": "M2_CPUS",
    "m3": "M3_CPUS",
    "n1": "CPUS",
    "n2": "N2_CPUS",
    "n2d": "N2D_CPUS",
    "t2a": "T2A_CPUS",
    "t2d": "T2D_CPUS",
}
_GPUS = {
    "A100-40GB": "NVIDIA_A100_GPUS",
    "A100-80GB": "NVIDIA_A100_80GB_GPUS",
    "H100": "NVIDIA_H100_GPUS",
    "L4": "NVIDIA_L4_GPUS",
    "P100": "NVIDIA_P100_GPUS",
    "P4": "NVIDIA_P4_GPUS",
    "T4": "NVIDIA_T4_GPUS",
    "V100": "NVIDIA_V100_GPUS",
}


@dataclass(frozen=True)
class QuotaLimit:
    """One limit of a project, and its current use."""

    metric: str
    most: float
    used: float = 0.0

    @property
    def everywhere(self) -> bool:
        return self.metric in _EVERYWHERE

    @property
    def unit(self) -> str:
        return "GPUs" if "GPUS" in self.metric else "vCPUs"


def limits(*resources: Mapping[str, Any]) -> dict[str, QuotaLimit]:
    """The limits in these resources of the API (a region and its project), by metric."""
    return {
        each["metric"]: QuotaLimit(each["metric"], float(each.get("limit", 0)), float(each.get("usage", 0)))
        for one in resources
        for each in one.get("quotas") or ()
    }


def needs(offering: Offering, nodes: int, known: Mapping[str, QuotaLimit]) -> dict[str, int]:
    """The amount that the nodes of a job would use of each known limit."""
    found: dict[str, int] = {}
    cpus = _CPUS.get(split_name(offering.machine)[0].partition("-")[0])
    # Flex-start machines use the quotas of spot machines.
    preemptible = offering.spot or offering.queued
    pairs = [
        (cpus if not preemptible else "CPUS", offering.cpus),
        (_GPUS.get(offering.gpu or ""), offering.gpus),
    ]
    for metric, count in pairs:
        if metric and count:
            counted = _counted(metric, preemptible, known)
            if counted is not None:
                found[counted] = count * nodes
    if offering.gpus and GPUS_EVERYWHERE in known and not is_tpu(offering.gpu or ""):
        found[GPUS_EVERYWHERE] = offering.gpus * nodes
    if offering.cpus and CPUS_EVERYWHERE in known and not preemptible:
        found[CPUS_EVERYWHERE] = offering.cpus * nodes
    return found


def _counted(metric: str, spot: bool, known: Mapping[str, QuotaLimit]) -> str | None:
    """The limit that counts for a metric. Spot machines have limits of their own; where a project was never given one,
    they count against the standard limit.

    A spot limit of zero counts only where no standard limit is known: then no machine is possible.
    """
    own = known.get(_PREEMPTIBLE + metric)
    if spot and own is not None and (own.most > 0 or metric not in known):
        return own.metric
    return metric if metric in known else None


def borrowed_limits(offerings: Iterable[Offering], known: Mapping[str, QuotaLimit]) -> dict[str, str]:
    """The spot limits that the project was never given, by the standard limits that count instead."""
    found: dict[str, str] = {}
    for offering in offerings:
        for metric in needs(offering, 1, known) if offering.spot or offering.queued else ():
            own = known.get(_PREEMPTIBLE + metric)
            if own is not None:
                found[metric] = own.metric
    return found


def smallest_needs(offerings: Iterable[Offering], nodes: int, known: Mapping[str, QuotaLimit]) -> dict[str, int]:
    """The smallest need of any of these offerings, by limit."""
    found: dict[str, int] = {}
    for offering in offerings:
        for metric, count in needs(offering, nodes, known).items():
            found[metric] = min(count, found.get(metric, count))
    return found


def any_fits(offerings: Iterable[Offering], nodes: int, known: Mapping[str, QuotaLimit]) -> bool:
    """Return whether the limits allow any of these offerings. Current use is ignored: it may be free again by then."""
    return any(
        all(known[metric].most >= count for metric, count in needs(each, nodes, known).items()) for each in offerings
    )


def zero_limits(offerings: Iterable[Offering], nodes: int, known: Mapping[str, QuotaLimit]) -> tuple[QuotaLimit, ...]:
    """The limits of zero that exclude all of these offerings; empty where one of them is possible."""
    found: dict[str, QuotaLimit] = {}
    for offering in offerings:
        zero = [known[metric] for metric in needs(offering, nodes, known) if known[metric].most <= 0]
        if not zero:
            return ()
        found |= {limit.metric: limit for limit in zero}
    return tuple(found.values())


def console_page(project: str) -> str:
    """The console page on which a person asks for higher quotas."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
