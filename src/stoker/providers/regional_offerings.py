"""The offerings of a job in all its regions.

A provider is asked region by region. A region that gives no answer does not hide the others; neither does it count as a
region that offers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stoker.model.errors import ProviderError, StokerError, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers.offerings import fewest_gpus, ordered


class Offers(Protocol):
    """The part of a provider that knows its offerings."""

    def offerings(self, resources: Resources) -> tuple[Offering, ...]: ...


@dataclass(frozen=True)
class RegionalOfferings:
    """The offerings of the regions that answered, best first; and for each other region, why it did not."""

    offerings: tuple[Offering, ...]
    unanswered: Mapping[str, StokerError] = field(default_factory=dict)

    @property
    def unanswered_text(self) -> str:
        """The regions without an answer, and why, in one line; empty where all answered."""
        return "; ".join(f"the offerings of {region} are unknown: {error}" for region, error in self.unanswered.items())


def offerings_in_regions(provider: Offers, resources: Resources) -> RegionalOfferings:
    """Ask for the offerings in each of the regions. Raises the first error if no region answers."""
    if len(resources.regions) < 2:
        return RegionalOfferings(provider.offerings(resources))
    found: list[Offering] = []
    unanswered: dict[str, StokerError] = {}
    for region in resources.regions:
        try:
            found += provider.offerings(resources.in_region(region))
        except (ProviderError, UserError) as error:
            unanswered[region] = error
    if len(unanswered) == len(resources.regions):
        raise next(iter(unanswered.values()))
    # Each region offers its own fewest GPUs: a region with large machines alone must not add them.
    return RegionalOfferings(ordered(resources, fewest_gpus(resources, found)), unanswered)
