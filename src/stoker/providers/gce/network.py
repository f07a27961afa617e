"""The network that machines will be in, and whether it lets the nodes of a job reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from stoker.model.errors import Misnamed, NotFound
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import Place
from stoker.providers.gce.verdicts import fix_of

# All traffic between nodes, the one port alone, or not even that.
Open = Literal["all", "port", "closed"]

DEFAULT = "default"
_FIELD = "resources.gce.network"
_ALL_PORTS = (1, 65535)


@dataclass(frozen=True)
class Wire:
    """A subnetwork in one region. `project` is the network's own, which may be another one's."""

    project: str
    name: str
    subnetwork: str
    range: str
    private_access: bool


def find(api: Api, place: Place, named: str | None) -> Wire:
    """The subnetwork that machines get: the one that is named, else the network's in this region.

    Raises as `look` does, and NotFound where the network has none here.
    """
    found = look(api, place, named)
    kind, project, name = read(named or DEFAULT, place)
    if kind == "subnetworks":
        return _wire(found)
    link = found["selfLink"]
    asked = {"filter": f'network = "{link}"'}
    for page in api.pages(f"/compute/v1/projects/{project}/regions/{place.region}/subnetworks", asked):
        for each in page.get("items") or ():
            if _same(each["network"], link):
                return _wire(each)
    raise NotFound(f"{_FIELD}: the network {name} has no subnetwork in {place.region}")


def look(api: Api, place: Place, named: str | None) -> Mapping[str, Any]:
    """The network or subnetwork that is named, as Compute Engine tells it; `default` where none is. One call.

    Raises NotFound where there is none, and Misnamed for a network of which a subnetwork has to be named.
    """
    kind, project, name = read(named or DEFAULT, place)
    _check_region(named or DEFAULT, place)
    where = f"regions/{place.region}" if kind == "subnetworks" else "global"
    try:
        path = f"/compute/v1/projects/{project}/{where}/{kind}/{quote(name)}"
        found: Mapping[str, Any] = api.send("GET", path, what=_FIELD)
    except NotFound:
        around = place.region if kind == "subnetworks" else project
        raise NotFound(f"{_FIELD}: there is no {kind.removesuffix('s')} {name} in {around}") from None
    # Only where Google made the subnetworks does it choose the region's by itself.
    if kind == "networks" and found.get("autoCreateSubnetworks") is False:
        raise Misnamed(
            f"{_FIELD}: {name} is a custom network, of which a subnetwork is needed; {_choice(found, place)}"
        )
    return found


def _check_region(named: str, place: Place) -> None:
    """A link names its region. Raises Misnamed for another than the machines'."""
    parts = named.split("/")
    region = parts[parts.index("regions") + 1] if "regions" in parts[:-1] else place.region
    if region != place.region:
        raise Misnamed(
            f"{_FIELD}: {parts[-1]} is a subnetwork in {region}, the machines will be in {place.region}; "
            f"name one that is there"
        )


def to_do(error: NotFound, place: Place, named: str | None) -> str:
    """What to do about a network or subnetwork that is not there."""
    if read(named or DEFAULT, place) != ("networks", place.project, DEFAULT):
        return fix_of(error)
    return f"gcloud compute networks create {DEFAULT} --project {place.project}, or set {_FIELD} to one that is there"


def _choice(network: Mapping[str, Any], place: Place) -> str:
    """What to write instead of a custom network's name."""
    around = f"/regions/{place.region}/subnetworks/"
    here = [path for link in network.get("subnetworks") or () if around in (path := link.partition("/projects/")[2])]
    if not here:
        return f"it has none in {place.region}: make one there, or name another network"
    own = f"{place.project}/"
    names = (
        f"subnet:{path.rpartition('/')[2]}" if path.startswith(own) else f"projects/{path}" for path in sorted(here)
    )
    return f"in {place.region} it has {', '.join(names)}"


def read(text: str, place: Place) -> tuple[str, str, str]:
    """What a name or link means, as `request` reads it: `networks` or `subnetworks`, its project, and its own name."""
    kind = "subnetworks" if text.startswith("subnet:") or "/subnetworks/" in text else "networks"
    parts = text.removeprefix("subnet:").split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else place.project
    return kind, project, parts[-1]


def rules(api: Api, wire: Wire) -> list[Mapping[str, Any]]:
    """The firewall's rules of its network."""
    pages = api.pages(f"/compute/v1/projects/{wire.project}/global/firewalls")
    found = [each for page in pages for each in page.get("items") or ()]
    return [each for each in found if each.get("network", "").endswith(f"/networks/{wire.name}")]


def openness(rules: Iterable[Mapping[str, Any]], port: int, network: str) -> Open:
    """What machines of this range let in from one another, where no rule asks for network tags or accounts.

    The first by priority decides, and a denial comes before a permission of the same; nothing at all is a no.
    """
    relevant = sorted(
        (each for each in rules if _about_nodes(each, network)),
        key=lambda each: (int(each.get("priority", 1000)), "denied" not in each),
    )
    if _let_in(relevant, _ALL_PORTS):
        return "all"
    return "port" if _let_in(relevant, (port, port)) else "closed"


def _let_in(relevant: Iterable[Mapping[str, Any]], ports: tuple[int, int]) -> bool:
    for rule in relevant:
        if any(_touches(each, ports) for each in rule.get("denied") or ()):
            return False
        if any(_covers(each, ports) for each in rule.get("allowed") or ()):
            return True
    return False


def _about_nodes(rule: Mapping[str, Any], network: str) -> bool:
    """Whether a rule is about connections that come from another node to a plain machine of ours."""
    limited = any(
        rule.get(key) for key in ("sourceTags", "sourceServiceAccounts", "targetTags", "targetServiceAccounts")
    )
    if rule.get("disabled") or rule.get("direction", "INGRESS") != "INGRESS" or limited:
        return False
    inner = ipaddress.ip_network(network)
    ranges = [ipaddress.ip_network(each, strict=False) for each in rule.get("sourceRanges") or ("0.0.0.0/0",)]
    return any(each.version == inner.version and inner.subnet_of(each) for each in ranges)  # type: ignore[arg-type]


def _covers(part: Mapping[str, Any], ports: tuple[int, int]) -> bool:
    """Whether all of these ports, of TCP, are meant."""
    if part.get("IPProtocol") not in ("all", "tcp", "6"):
        return False
    given = part.get("ports")
    return not given or any(first <= ports[0] and ports[1] <= last for first, last in map(_span, given))


def _touches(part: Mapping[str, Any], ports: tuple[int, int]) -> bool:
    """Whether any of these ports, of TCP, is meant."""
    if part.get("IPProtocol") not in ("all", "tcp", "6"):
        return False
    given = part.get("ports")
    return not given or any(first <= ports[1] and ports[0] <= last for first, last in map(_span, given))


def _span(text: str) -> tuple[int, int]:
    first, _, last = str(text).partition("-")
    return max(int(first), 1), int(last or first)


def _wire(found: Mapping[str, Any]) -> Wire:
    parts = str(found["network"]).split("/")
    return Wire(
        project=parts[parts.index("projects") + 1],
        name=parts[-1],
        subnetwork=found["name"],
        range=found["ipCidrRange"],
        private_access=bool(found.get("privateIpGoogleAccess")),
    )


def _same(one: str, other: str) -> bool:
    return one.partition("/projects/")[2] == other.partition("/projects/")[2]
