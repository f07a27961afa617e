"""The network that machines will be in, and whether it lets the nodes of a job reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from stoker.model.errors import NoSuchResource, NotFound
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.verdicts import fix_of

# The traffic that the firewall allows between nodes: all ports, the one port alone, or none.
NodeTraffic = Literal["all", "port", "closed"]

DEFAULT = "default"
FIELD = "resources.gce.network"
_ALL_PORTS = (1, 65535)


@dataclass(frozen=True)
class Subnetwork:
    """A subnetwork in one region. `project` is the network's own, and may differ from that of the machines."""

    project: str
    name: str
    subnetwork: str
    range: str
    private_access: bool


def find(api: Api, place: ProjectRegion, named: str | None) -> Subnetwork:
    """Find the subnetwork of the machines: the named one, else the network's subnetwork in this region.

    Raises as `look_up` does, and NotFound where the network has no subnetwork in this region.
    """
    found = look_up(api, place, named)
    kind, project, name = parse_name(named or DEFAULT, place)
    if kind == "subnetworks":
        return _wire(found)
    link = found["selfLink"]
    asked = {"filter": f'network = "{link}"'}
    for page in api.pages(f"/compute/v1/projects/{project}/regions/{place.region}/subnetworks", asked):
        for each in page.get("items") or ():
            if _same(each["network"], link):
                return _wire(each)
    raise NotFound(f"{FIELD}: the network {name} has no subnetwork in {place.region}")


def look_up(api: Api, place: ProjectRegion, named: str | None) -> Mapping[str, Any]:
    """Look up the named network or subnetwork, or `default` where none is named. One call.

    Raises NotFound where it does not exist, and Misnamed for a network of which a subnetwork has to be named.
    """
    kind, project, name = parse_name(named or DEFAULT, place)
    _check_region(named or DEFAULT, place)
    where = f"regions/{place.region}" if kind == "subnetworks" else "global"
    try:
        path = f"/compute/v1/projects/{project}/{where}/{kind}/{quote(name)}"
        found: Mapping[str, Any] = api.send("GET", path, what=FIELD)
    except NotFound:
        around = place.region if kind == "subnetworks" else project
        raise NotFound(f"{FIELD}: there is no {kind.removesuffix('s')} {name} in {around}") from None
    # Google chooses the region's subnetwork only in networks whose subnetworks it created itself.
    if kind == "networks" and found.get("autoCreateSubnetworks") is False:
        raise NoSuchResource(
            f"{FIELD}: {name} is a custom network, of which a subnetwork is needed; {_choice(found, place)}"
        )
    return found


def _check_region(named: str, place: ProjectRegion) -> None:
    """Raise Misnamed for a link to a subnetwork in another region than the machines'."""
    parts = named.split("/")
    region = parts[parts.index("regions") + 1] if "regions" in parts[:-1] else place.region
    if region != place.region:
        raise NoSuchResource(
            f"{FIELD}: {parts[-1]} is a subnetwork in {region}, the machines will be in {place.region}; "
            f"name one that is there"
        )


def fix_for_missing(error: NotFound, place: ProjectRegion, named: str | None) -> str:
    """How to fix a network or subnetwork that does not exist."""
    if parse_name(named or DEFAULT, place) != ("networks", place.project, DEFAULT):
        return fix_of(error)
    return f"gcloud compute networks create {DEFAULT} --project {place.project}, or set {FIELD} to one that is there"


def _choice(network: Mapping[str, Any], place: ProjectRegion) -> str:
    """The names to write instead of a custom network's name."""
    around = f"/regions/{place.region}/subnetworks/"
    links = [path for link in network.get("subnetworks") or () if around in (path := link.partition("/projects/")[2])]
    if not links:
        return f"it has none in {place.region}: make one there, or name another network"
    own = f"{place.project}/"
    names = (
        f"subnet:{path.rpartition('/')[2]}" if path.startswith(own) else f"projects/{path}" for path in sorted(links)
    )
    return f"in {place.region} it has {', '.join(names)}"


def parse_name(text: str, place: ProjectRegion) -> tuple[str, str, str]:
    """Parse a name or link as `request` does: `networks` or `subnetworks`, its project, and its own name."""
    kind = "subnetworks" if text.startswith("subnet:") or "/subnetworks/" in text else "networks"
    parts = text.removeprefix("subnet:").split("/")
    project = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else place.project
    return kind, project, parts[-1]


def firewall_rules(api: Api, wire: Subnetwork) -> list[Mapping[str, Any]]:
    """The firewall rules of the subnetwork's network."""
    pages = api.pages(f"/compute/v1/projects/{wire.project}/global/firewalls")
    found = [each for page in pages for each in page.get("items") or ()]
    return [each for each in found if each.get("network", "").endswith(f"/networks/{wire.name}")]


def node_traffic(firewall_rules: Iterable[Mapping[str, Any]], port: int, network: str) -> NodeTraffic:
    """The traffic that machines of this range accept from one another, by the rules without network tags and accounts.

    The first matching rule by priority decides, a denial before a permission of the same priority. Without a matching
    rule the traffic is denied.
    """
    relevant = sorted(
        (each for each in firewall_rules if _about_nodes(each, network)),
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
    """Return whether a rule applies to connections from another node to a machine without tags."""
    limited = any(
        rule.get(key) for key in ("sourceTags", "sourceServiceAccounts", "targetTags", "targetServiceAccounts")
    )
    if rule.get("disabled") or rule.get("direction", "INGRESS") != "INGRESS" or limited:
        return False
    inner = ipaddress.ip_network(network)
    ranges = [ipaddress.ip_network(each, strict=False) for each in rule.get("sourceRanges") or ("0.0.0.0/0",)]
    return any(each.version == inner.version and inner.subnet_of(each) for each in ranges)  # type: ignore[arg-type]


def _covers(part: Mapping[str, Any], ports: tuple[int, int]) -> bool:
    """Return whether this part of a rule covers all of these TCP ports."""
    if part.get("IPProtocol") not in ("all", "tcp", "6"):
        return False
    given = part.get("ports")
    return not given or any(first <= ports[0] and ports[1] <= last for first, last in map(_span, given))


def _touches(part: Mapping[str, Any], ports: tuple[int, int]) -> bool:
    """Return whether this part of a rule covers any of these TCP ports."""
    if part.get("IPProtocol") not in ("all", "tcp", "6"):
        return False
    given = part.get("ports")
    return not given or any(first <= ports[1] and ports[0] <= last for first, last in map(_span, given))


def _span(text: str) -> tuple[int, int]:
    first, _, last = str(text).partition("-")
    return max(int(first), 1), int(last or first)


def _wire(found: Mapping[str, Any]) -> Subnetwork:
    parts = str(found["network"]).split("/")
    return Subnetwork(
        project=parts[parts.index("projects") + 1],
        name=parts[-1],
        subnetwork=found["name"],
        range=found["ipCidrRange"],
        private_access=bool(found.get("privateIpGoogleAccess")),
    )


def _same(one: str, other: str) -> bool:
    return one.partition("/projects/")[2] == other.partition("/projects/")[2]
