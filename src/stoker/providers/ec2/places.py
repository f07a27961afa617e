"""Detect regions and zones that cannot exist, without a request."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import did_you_mean
from stoker.providers.ec2 import prices

# The zone's suffix: `a` of us-east-1a; Local Zones and Wavelength Zones have more: `-bos-1a`, `-wl1-bos-wlz-1`.
_ZONE_SUFFIX = re.compile(r"[a-z]|(-[a-z0-9]+)+")


def check(region: str, zones: Iterable[str] = ()) -> None:
    """Raise UserError for a region that no partition of AWS can have, and for a zone that is not in it."""
    check_region(region)
    for zone in zones:
        if not zone.startswith(region) or not _ZONE_SUFFIX.fullmatch(zone.removeprefix(region)):
            raise UserError(f"resources.zones: {zone} is not in {region}; name zones such as {region}a")


def unchecked(region: str, zones: Iterable[str] = ()) -> tuple[str, ...]:
    """The remarks of an offline plan about a region and zones that no table has, one line each."""
    known = {*_partitions()[1], *prices.tables()}
    if region not in known:
        return (did_you_mean.unchecked("resources.region", region),)
    # The zones of a region differ by account; no region has more than six of its own.
    plain = {f"{region}{letter}" for letter in "abcdef"}
    return tuple(did_you_mean.unchecked("resources.zones", zone) for zone in zones if zone not in plain)


def check_region(region: str, field: str = "resources.region") -> None:
    """Raise UserError for a region that no partition of AWS can have. `field` names the setting.

    Nothing is checked without botocore, which knows the names of regions, nor with a custom endpoint, whose regions may
    have any name.
    """
    if any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2")):
        return
    patterns, known = _partitions()
    words = {*did_you_mean.COMPASS, *(word for name in known for word in _words(name))}
    malformed = patterns and not any(re.fullmatch(pattern, region) for pattern in patterns)
    if malformed or (region not in known and did_you_mean.is_typo(_words(region), words)):
        similar = did_you_mean.nearest(region, known)
        hint = f"did you mean {similar}?" if similar else "name one such as us-east-1"
        raise UserError(f"{field}: AWS has no region {region!r}; {hint}")


def known_regions() -> frozenset[str]:
    """The regions of AWS. Empty where they are not known: without botocore, and with a custom endpoint."""
    if any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2")):
        return frozenset()
    known = _partitions()[1]
    return frozenset((*known, *prices.tables())) if known else frozenset()


def _words(region: str) -> list[str]:
    """The words in a region's name: `us` and `east` of `us-east-1`."""
    return re.findall(r"[a-z]+", region)


@lru_cache(maxsize=1)
def _partitions() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pattern of region names in each partition, including future regions, and the regions of today."""
    if importlib.util.find_spec("botocore") is None:
        return (), ()
    from botocore.exceptions import DataNotFoundError
    from botocore.loaders import create_loader

    try:
        found = create_loader().load_data("partitions")["partitions"]
    except DataNotFoundError:
        return (), ()  # An old botocore, which stores them elsewhere.
    patterns = tuple(each["regionRegex"] for each in found)
    # `aws-global` is listed as well, but is not a region.
    names = (name for each in found for name in each["regions"] if re.fullmatch(each["regionRegex"], name))
    return patterns, tuple(names)
