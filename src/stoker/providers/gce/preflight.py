"""Whether what a job names is there: looked at before anything is written, since Compute Engine has no dry run.

Each name in the request is one call; `stoker check gce` looks through the same. Nobody is asked about machine types and
GPUs, which were listed a moment ago, about images that an alias stands for, and about the account that `stoker iam gce`
makes. So a job that names nothing costs one call, for the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stoker.model.errors import InvalidRequest, Misnamed, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.providers.base import HttpRequest
from stoker.providers.gce import identity, images, network, quotas, read_request, reservations
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import Place
from stoker.providers.gce.verdicts import fix_of

_Look = Callable[[Api, Place, str], Any]
_LINK = re.compile(r"https?://[^/]+/compute/[^/]+/")


def rehearse(api: Api, *launches: tuple[HttpRequest, ...]) -> None:
    """Look at everything that these requests name, and will not make themselves: once at each. Makes nothing.

    Raises Misnamed for the first that is not there, in one line that says what to do. What this person may not look at,
    and what gives no answer now, is left to the launch.
    """
    place = Place.of(launches[0][-1].region or "")
    for look, name in dict.fromkeys(named for requests in launches for named in _named(requests, place)):
        try:
            with api.hurried():
                look(api, place, name)
        except NotFound as error:
            fix = network.to_do(error, place, name) if look is network.look else fix_of(error)
            raise Misnamed(f"{error}; {fix}") from error
        except InvalidRequest:
            raise
        except ProviderError:
            continue


def check_limits(api: Api, offerings: Sequence[Offering], nodes: int) -> None:
    """Raise UserError where the project may have none of these, spot or standard. Two calls, and none for machines
    without GPUs: those are never forbidden altogether. What this person may not look at is left to the launch.
    """
    if not offerings or not all(each.gpus for each in offerings):
        return
    place = Place.of(offerings[0].region or "")
    try:
        with api.hurried():
            project = api.get(f"/compute/v1/projects/{place.project}")
            region = api.get(f"/compute/v1/projects/{place.project}/regions/{place.region}")
    except ProviderError:
        return
    zero = quotas.closed(offerings, nodes, quotas.limits(region, project))
    if zero:
        kinds = ", ".join(dict.fromkeys(str(each.gpu) for each in offerings))
        told = " and ".join(f"{each.metric} {'' if each.everywhere else f'in {place.region} '}is 0" for each in zero)
        page = quotas.page(place.project)
        raise UserError(f"{place.project} may have no {kinds}: its quota {told}; ask for more at {page}")


def image(api: Api, place: Place, source: str) -> Mapping[str, Any]:
    """The image, or the newest of its family. Raises NotFound, as all of these do."""
    path = _path(source, place)
    what = "image family" if "/family/" in path else "image"
    return _get(api, path, "resources.image", f"{what} {_last(path)} in {path.split('/')[1]}")


def account(api: Api, _: Place, email: str) -> Mapping[str, Any]:
    """A service account, by its address."""
    try:
        found: Mapping[str, Any] = api.get(identity.path(email), service="iam")
    except NotFound:
        raise NotFound(f"resources.gce.service_account: there is no {email}") from None
    return found


def policy(api: Api, place: Place, name: str) -> Mapping[str, Any]:
    """A placement policy, by its name or link."""
    path = _path(name if "/" in name else f"regions/{place.region}/resourcePolicies/{name}", place)
    what = f"placement policy {_last(path)} in {place.region}"
    return _get(api, path, "resources.gce.placement_policy", what)


@dataclass(frozen=True)
class _Reserved:
    """A look at the reservation that a request for such a machine in such a zone names."""

    machine: str
    zone: str | None

    def __call__(self, api: Api, place: Place, name: str) -> None:
        held = reservations.find(api, place, name)
        wrong = reservations.problem(name, held, [self.machine], [self.zone] if self.zone else [])
        if wrong is not None:
            raise Misnamed(f"{reservations.FIELD}: {'; '.join(wrong)}")


def _named(requests: tuple[HttpRequest, ...], place: Place) -> Iterator[tuple[_Look, str]]:
    """What these requests name, and how to look at it."""
    *before, last = requests
    machine = read_request.properties(last)
    for card in machine.get("networkInterfaces") or ():
        if card.get("subnetwork") or card.get("network"):
            yield network.look, str(card.get("subnetwork") or card["network"])
    for disk in machine.get("disks") or ():
        source = (disk.get("initializeParams") or {}).get("sourceImage")
        if source and not images.is_known(source):
            yield image, str(source)
    for one in machine.get("serviceAccounts") or ():
        if one.get("email") not in (None, "default", identity.email(place.project, identity.DEFAULT_ACCOUNT)):
            yield account, str(one["email"])
    made = {each.body["name"] for each in before}
    for name in machine.get("resourcePolicies") or ():
        if _last(str(name)) not in made:
            yield policy, str(name)
    affinity = machine.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION":
        for name in affinity.get("values") or ():
            yield _Reserved(read_request.machine(last), read_request.zone(last)), str(name)


def _get(api: Api, path: str, field: str, what: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = api.send("GET", f"/compute/v1/{quote(path, safe='/:')}", what=field)
    except NotFound:
        raise NotFound(f"{field}: there is no {what}") from None
    return found


def _path(link: str, place: Place) -> str:
    """`projects/…` of a link in any of the forms that Compute Engine takes."""
    path = _LINK.sub("", link)
    return path if path.startswith("projects/") else f"projects/{place.project}/{path}"


def _last(path: str) -> str:
    return path.rpartition("/")[2]
