"""Where Google's console shows things. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.cloudapi.google.logs import query
from stoker.model.spec import Logs
from stoker.providers.console_links import Seat
from stoker.providers.gce import names
from stoker.providers.gce.places import Place, split_id

_CONSOLE = "https://console.cloud.google.com"
# As long as logs are kept by default.
_LONGEST = "P30D"


def name(seat: Seat) -> str:
    """What the console lists the machine under."""
    return names.of_rank(names.of_claim(seat.store, seat.job, seat.claim), seat.rank)


def machine(instance: str, region: str | None) -> str | None:
    """Where one machine is shown; None where the project is not known."""
    if not region or "/" not in region:
        return None
    zone, number = split_id(instance)
    return f"{_CONSOLE}/compute/instancesDetail/zones/{zone}/instances/{number}?project={Place.of(region).project}"


def log(logs: Logs, job: str, attempt: int, rank: int, region: str | None) -> str | None:
    """Where Cloud Logging shows one node's lines."""
    name = logs.cloud_logging
    if name is None or not region or "/" not in region:
        return None
    project = Place.of(region).project
    return _explored(query(project, name, job, attempt, rank), project)


def own_logs(instance: str, region: str | None) -> str:  # noqa: ARG001 - the number is enough
    """For Logs Explorer, or `gcloud logging read`: what Google and the machine's own agents logged about it."""
    return f'resource.type="gce_instance" AND resource.labels.instance_id="{split_id(instance)[1]}"'


def own_logs_link(instance: str, region: str | None) -> str | None:
    """The same, opened in Logs Explorer; None where the project is not known."""
    if not region or "/" not in region:
        return None
    return _explored(own_logs(instance, region), Place.of(region).project)


def _explored(filter: str, project: str) -> str:
    """Logs Explorer with this filter. Without a time it would show the last hour alone."""
    asked = f"query={quote(filter, safe='')};duration={_LONGEST}"
    return f"{_CONSOLE}/logs/query;{asked}?project={project}"
