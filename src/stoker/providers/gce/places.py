"""The place of machines: a project and a region, written as one text (`vision-1/us-central1`).

A job may be governed later by a person with another default project, so that the place names both. A machine is
identified by its zone and its number: numbers are never reused, names are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers import did_you_mean, packaged_data

# The variables that Google's own tools read.
_PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_REGION_VARIABLE = "CLOUDSDK_COMPUTE_REGION"
_PROJECT_FIELD = "resources.gce.project"
YOUR_PROJECTS = "`gcloud projects list` shows yours"
# `us-central1`, `northamerica-northeast2`, `europe-west12`.
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
# `vision-1`, and those of a domain: `example.com:vision-1`.
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
# The part of a zone after its region: `-a`, and for zones for accelerators alone, `-ai1a`.
_ZONE_SUFFIX = re.compile(r"-([a-z]|ai[0-9]+[a-z])")


@dataclass(frozen=True)
class ProjectRegion:
    """One region of one project: the content of `Offering.region` and `Instance.region` on Compute Engine."""

    project: str
    region: str

    @classmethod
    def of(cls, text: str) -> ProjectRegion:
        """Read `PROJECT/REGION`. Raises UserError for anything else."""
        project, slash, region = text.rpartition("/")
        if not slash or not project or "/" in project or not region:
            raise UserError(f"resources.region: {text!r} is no place of Compute Engine; write PROJECT/REGION")
        return cls(project, region)

    def __str__(self) -> str:
        return f"{self.project}/{self.region}"


def find(resources: Resources, default_project: str | None = None) -> ProjectRegion:
    """The place of these resources: what they name, else what the environment names, else `default_project`.

    Raises UserError where a part of it is not known or not valid.
    """
    gce = resources.gce
    named = gce.project if gce is not None else None
    region = resources.only_region or os.environ.get(_REGION_VARIABLE)
    if region is not None and "/" in region:
        place = ProjectRegion.of(region)
        if named is not None and named != place.project:
            raise UserError(f"resources.gce.project: {named} is not the project of resources.region ({place})")
    else:
        project = named or environment_project() or default_project
        if not project:
            raise UserError("resources.gce.project: name your Google Cloud project, or set GOOGLE_CLOUD_PROJECT")
        if not region:
            raise UserError(
                f"resources.region: name a region, such as us-central1, or set {_REGION_VARIABLE}",
            )
        place = ProjectRegion(project, region)
    check(place, resources.zones, named_by(resources))
    return place


def environment_project() -> str | None:
    """The project in the variables that Google's own tools read."""
    variable = _project_variable()
    return os.environ[variable] if variable else None


def named_by(resources: Resources) -> str:
    """The source of these resources' project, for error messages: a field, a variable, or the credentials."""
    if "/" in (resources.only_region or ""):
        return "resources.region"
    if resources.gce is not None and resources.gce.project:
        return _PROJECT_FIELD
    return _project_variable() or "your Google credentials"


def _project_variable() -> str | None:
    return next((name for name in _PROJECT_VARIABLES if os.environ.get(name)), None)


def no_project(project: str, named: str) -> str:
    """The message that the project does not exist, with a fix. `named` is the source of the name."""
    return f"{named}: there is no project {project}, or none that you may see; {YOUR_PROJECTS}"


def check(place: ProjectRegion, zones: Iterable[str] = (), named: str = _PROJECT_FIELD) -> None:
    """Raise UserError for an invalid project or region, and for a zone that is not in the region.

    `named` is the source of the project's name.
    """
    check_project(place.project, named)
    check_region(place.region, zones)


def check_project(project: str, named: str = _PROJECT_FIELD) -> None:
    if not _PROJECT.fullmatch(project):
        rule = "a project id is lower-case letters, digits and -"
        raise UserError(f"{named}: {project!r} is no project; {rule}; {YOUR_PROJECTS}")


def check_region(region: str, zones: Iterable[str] = ()) -> None:
    regions = _table()["regions"]
    if not _REGION.fullmatch(region):
        of_zone = region_of(region)
        raise _no_region(region, of_zone if of_zone in regions else did_you_mean.nearest(region, regions))
    for zone in zones:
        if not zone.startswith(region) or not _ZONE_SUFFIX.fullmatch(zone.removeprefix(region)):
            raise UserError(f"resources.zones: {zone} is not in {region}; name zones such as {region}-a")


def check_spelling(region: str) -> None:
    """Raise UserError for a region that is similar to one of the table, and likely a typing error.

    Used only offline, or where Compute Engine offers nothing in the region: a new region may look like that, too.
    """
    regions = _table()["regions"]
    words = {*did_you_mean.COMPASS, *(word for known in regions for word in _words(known))}
    if region not in regions and did_you_mean.is_typo(_words(region), words):
        raise _no_region(region, did_you_mean.nearest(region, regions))


def known_regions() -> frozenset[str]:
    """The regions of the table."""
    return frozenset(_table()["regions"])


def nearest(region: str) -> str | None:
    """The region of the table that is most similar to this one, if any is."""
    return did_you_mean.nearest(region, _table()["regions"])


def _no_region(region: str, near: str | None) -> UserError:
    hint = f"did you mean {near}?" if near else "name one such as us-central1"
    return UserError(f"resources.region: Compute Engine has no region {region!r}; {hint}")


def unchecked(region: str, zones: Iterable[str] = ()) -> tuple[str, ...]:
    """List the names in this place that the packaged table lacks, a line each, for an offline plan.

    Raises UserError for a region that is likely a typing error. Zones for accelerators alone are not in the table.
    """
    check_spelling(region)
    known = zones_of(region)
    if not known:
        return (did_you_mean.unchecked("resources.region", region),)
    return tuple(
        f"{did_you_mean.unchecked('resources.zones', zone)}; {region} has {', '.join(known)}"
        for zone in zones
        if zone not in known
    )


def _words(region: str) -> list[str]:
    """`us` and `central` of `us-central1`."""
    return re.findall(r"[a-z]+", region)


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def zones_of(region: str) -> tuple[str, ...]:
    """The zones of a region in the packaged table; none for a newer region."""
    return tuple(f"{region}-{letter}" for letter in _table()["regions"].get(region, ()))


def zones_with(kind: str, region: str) -> tuple[str, ...]:
    """The zones with such GPUs. `kind` is the family of the machines, or the name of an attached GPU.

    All zones for a kind that is not in the table.
    """
    where = _table()["gpus"].get(kind)
    letters = where.get(region, ()) if where is not None else _table()["regions"].get(region, ())
    return tuple(f"{region}-{letter}" for letter in letters)


def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = packaged_data.read_table("gce", "zones")
    return found


def instance_id(zone: str, number: str | int) -> str:
    """Stoker's id of a machine: `us-central1-a.4242424242424242424`."""
    return f"{zone}.{number}"


def is_id(instance: str) -> bool:
    """Return whether the text is an id as `instance_id` writes it."""
    try:
        split_id(instance)
    except ValueError:
        return False
    return True


def split_id(instance: str) -> tuple[str, str]:
    """The zone and the number of a machine. Raises ValueError for anything but an id of `instance_id`."""
    zone, dot, number = instance.partition(".")
    if not dot or not zone or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{instance!r} is not the id of a machine on Compute Engine")
    return zone, number
