"""Where Google's console shows things. Pure."""

from __future__ import annotations

from urllib.parse import quote

from stoker.providers.gce.places import Place, split_id

_CONSOLE = "https://console.cloud.google.com"


def machine(instance: str, region: str | None) -> str | None:
    """Where one machine is shown; None where the project is not known."""
    if not region or "/" not in region:
        return None
    zone, number = split_id(instance)
    return f"{_CONSOLE}/compute/instancesDetail/zones/{zone}/instances/{number}?project={Place.of(region).project}"


def log(group: str, stream: str, region: str | None) -> str | None:  # noqa: ARG001 - the query names its log
    """Where the entries that a query finds are shown; None where the project is not known. `stream` is the query."""
    if not region or "/" not in region:
        return None
    return f"{_CONSOLE}/logs/query;query={quote(stream, safe='')}?project={Place.of(region).project}"
