"""A job that names several regions, as it is submitted: refusals, whole names, and lines for the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources, short_region
from stoker.providers.base import Provider, SupportsQuotaCheck
from stoker.providers.check_results import check_ok
from stoker.providers.regional_offerings import RegionalOfferings


@runtime_checkable
class ChecksRegions(Protocol):
    """A provider whose jobs name things that are in one region each."""

    def check_regions(self, resources: Resources) -> None:
        """Raise UserError for a name that is in none of the job's several regions."""


def check_regions(provider: Provider, resources: Resources, found: RegionalOfferings, *, offline: bool) -> None:
    """Raise UserError for a region that answered that it cannot be used, and for names that are in none of them.

    A job is submitted for all of its regions. One that gave no answer refuses nothing.
    """
    for region, error in found.unanswered.items():
        if isinstance(error, UserError):
            raise error
        if check_ok(error) is False:
            raise UserError(f"resources.region: {region} cannot be used ({error}); correct that, or leave {region} out")
    if resources.names_several and not (offline or found.unanswered) and isinstance(provider, ChecksRegions):
        provider.check_regions(resources)


def frozen_regions(resources: Resources, offered: tuple[Offering, ...]) -> Resources:
    """The resources with the whole names of their regions: a governor may run elsewhere later, or in another
    project."""
    whole = {short_region(each.region): each.region for each in offered if each.region}
    if not resources.names_several:
        return replace(resources, region=offered[0].region or resources.region)
    # A region that offers nothing now is in the same project as the others whose project the job does not name.
    project = next((whole[each] for each in resources.regions if each in whole), "").rpartition("/")[0]
    return replace(
        resources,
        region=tuple(
            each if "/" in each else whole.get(each) or "/".join(filter(None, (project, each)))
            for each in resources.regions
        ),
    )


def regions_left_out(provider: Provider, resources: Resources, found: RegionalOfferings) -> tuple[str, ...]:
    """A line for each of several regions that has no part in a plan: it gave no answer, or offers no such machine."""
    if not resources.names_several:
        return ()
    there = {short_region(each.region or "") for each in found.offerings}
    lines = []
    for region in resources.regions:
        if region in found.unanswered:
            lines.append(
                f"resources.region: {region} gave no answer, and is asked again later: {found.unanswered[region]}"
            )
        elif short_region(region) not in there:
            lines.append(f"resources.region: {provider.name} offers no such machine in {region} now")
    return tuple(lines)


def transfer_remark(resources: Resources) -> tuple[str, ...]:
    """The line about data that crosses regions."""
    if not resources.names_several:
        return ()
    slow = "take longer to read and write it, and the transfer is charged"
    return (f"resources.region: machines in another region than the store's bucket {slow}",)


def check_quotas(provider: SupportsQuotaCheck, offerings: tuple[Offering, ...], nodes: int) -> tuple[str, ...]:
    """A line for each of several regions whose quotas rule out all offerings. Raises UserError if that is every
    region."""
    by_region: dict[str | None, list[Offering]] = {}
    for each in offerings:
        by_region.setdefault(each.region, []).append(each)
    refused: list[UserError] = []
    for there in by_region.values():
        try:
            provider.check_quota(there, nodes)
        except UserError as error:
            refused.append(error)
    if refused and len(refused) == len(by_region):
        raise refused[0]
    return tuple(map(str, refused))
