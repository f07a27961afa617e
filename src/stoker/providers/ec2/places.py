"""Regions and zones that cannot be, told without asking anybody."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from functools import lru_cache

from stoker.model.errors import UserError
from stoker.providers import did_you_mean
from stoker.providers.ec2 import prices

# `a` of us-east-1a; Local Zones and Wavelength Zones have more: `-bos-1a`, `-wl1-bos-wlz-1`.
_BEHIND_THE_REGION = re.compile(r"[a-z]|(-[a-z0-9]+)+")


def check(region: str, zones: Iterable[str] = ()) -> None:
    """Raise UserError for a region that no partition of AWS could have, and for a zone that is not in it."""
    check_region(region)
    for zone in zones:
        if not zone.startswith(region) or not _BEHIND_THE_REGION.fullmatch(zone.removeprefix(region)):
            raise UserError(f"resources.zones: {zone} is not in {region}; name zones such as {region}a")


def unchecked(region: str, zones: Iterable[str] = ()) -> tuple[str, ...]:
    """What nobody here knows of this place, a line each, for a plan that asks nobody."""
    known = {*_partitions()[1], *prices.tables()}
    if region not in known:
        return (did_you_mean.unchecked("resources.region", region),)
    # Which zones a region has differs by account; none has more than six of its own.
    plain = {f"{region}{letter}" for letter in "abcdef"}
    return tuple(did_you_mean.unchecked("resources.zones", zone) for zone in zones if zone not in plain)


def check_region(region: str, field: str = "resources.region") -> None:
    """Raise UserError for a region that no partition of AWS could have. `field` is where it is named.

    It is not looked at without botocore, which knows what they are called, nor where somebody runs a cloud of their
    own, who may call them anything.
    """
    if any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2")):
        return
    patterns, known = _partitions()
    words = {*did_you_mean.COMPASS, *(word for name in known for word in _words(name))}
    strange = patterns and not any(re.fullmatch(pattern, region) for pattern in patterns)
    if strange or (region not in known and did_you_mean.is_slip(_words(region), words)):
        near = did_you_mean.nearest(region, known)
        hint = f"did you mean {near}?" if near else "name one such as us-east-1"
        raise UserError(f"{field}: AWS has no region {region!r}; {hint}")


def _words(region: str) -> list[str]:
    """`us` and `east` of `us-east-1`."""
    return re.findall(r"[a-z]+", region)


@lru_cache(maxsize=1)
def _partitions() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How regions are called in each partition, those of tomorrow included, and the regions of today."""
    if importlib.util.find_spec("botocore") is None:
        return (), ()
    from botocore.exceptions import DataNotFoundError
    from botocore.loaders import create_loader

    try:
        found = create_loader().load_data("partitions")["partitions"]
    except DataNotFoundError:
        return (), ()  # An old one, which keeps them elsewhere.
    patterns = tuple(each["regionRegex"] for each in found)
    # `aws-global` is listed too, and no region.
    names = (name for each in found for name in each["regions"] if re.fullmatch(each["regionRegex"], name))
    return patterns, tuple(names)
