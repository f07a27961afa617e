"""Check before a submission that everything a job names exists, since Compute Engine has no dry run.

Each name in the request is one call; `stoker check gce` uses the same lookups. Machine types and GPUs were listed a
moment ago; images of an alias, and the account that `stoker iam gce` creates, are taken to exist. So a job that names
nothing costs one call, for the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from stoker.model.errors import InvalidRequest, NoSuchResource, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.providers.base import HttpRequest
from stoker.providers.gce import cards, catalog, identity, images, network, quotas, read_request, reservations
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.verdicts import fix_of

_Lookup = Callable[[Api, ProjectRegion, str], Any]
_LINK = re.compile(r"https?://[^/]+/compute/[^/]+/")


def check_requests(api: Api, *launches: tuple[HttpRequest, ...]) -> None:
    """Look up, once each, every resource that these requests name and do not create themselves. Changes nothing.

    Raises Misnamed for the first that does not exist, in one line with a fix. A lookup that is not permitted, or gets
    no answer now, is left to the launch.
    """
    place = ProjectRegion.of(launches[0][-1].region or "")
    for look, name in dict.fromkeys(named for requests in launches for named in _named(requests, place)):
        try:
            with api.hurried():
                look(api, place, name)
        except NotFound as error:
            fix = network.fix_for_missing(error, place, name) if look is network.look_up else fix_of(error)
            raise NoSuchResource(f"{error}; {fix}") from error
        except InvalidRequest:
            raise
        except ProviderError:
            continue


def check_quota(api: Api, offerings: Sequence[Offering], nodes: int) -> None:
    """Raise UserError where the project's quotas allow none of these, spot or standard.

    Two calls, and none for machines without GPUs: no project has a quota of zero for all of those. A lookup that is not
    permitted is left to the launch.
    """
    if not offerings or not all(each.gpus for each in offerings):
        return
    place = ProjectRegion.of(offerings[0].region or "")
    try:
        with api.hurried():
            project = api.get(f"/compute/v1/projects/{place.project}")
            region = api.get(f"/compute/v1/projects/{place.project}/regions/{place.region}")
    except ProviderError:
        return
    zero = quotas.zero_limits(offerings, nodes, quotas.limits(region, project))
    if zero:
        kinds = ", ".join(dict.fromkeys(str(each.gpu) for each in offerings))
        which = " and ".join(f"{each.metric} {'' if each.everywhere else f'in {place.region} '}is 0" for each in zero)
        page = quotas.console_page(place.project)
        raise UserError(f"{place.project} may have no {kinds}: its quota {which}; ask for more at {page}")


def image(api: Api, place: ProjectRegion, source: str) -> Mapping[str, Any]:
    """Look up an image, or the newest of its family. Raises NotFound, as all lookups do."""
    path = _path(source, place)
    what = "image family" if "/family/" in path else "image"
    return _get(api, path, "resources.image", f"{what} {_last(path)} in {path.split('/')[1]}")


def account(api: Api, _: ProjectRegion, email: str) -> Mapping[str, Any]:
    """Look up a service account by its address."""
    try:
        found: Mapping[str, Any] = api.get(identity.path(email), service="iam")
    except NotFound:
        raise NotFound(f"resources.gce.service_account: there is no {email}") from None
    return found


def further_network(api: Api, place: ProjectRegion, name: str) -> Mapping[str, Any]:
    """Look up the network of a card beside the first. Raises as `network.look_up`, about the field that names it."""
    try:
        return network.look_up(api, place, name)
    except (NotFound, NoSuchResource) as error:
        raise type(error)(str(error).replace(network.FIELD, cards.FIELD, 1)) from None


def policy(api: Api, place: ProjectRegion, name: str) -> Mapping[str, Any]:
    """Look up a placement policy by its name or link."""
    path = _path(name if "/" in name else f"regions/{place.region}/resourcePolicies/{name}", place)
    what = f"placement policy {_last(path)} in {place.region}"
    return _get(api, path, "resources.gce.placement_policy", what)


@dataclass(frozen=True)
class _ReservationLookup:
    """Look up the reservation that a request names, and check that it fits the request's machine, zone and kind."""

    machine: str
    zone: str | None
    bound: bool

    def __call__(self, api: Api, place: ProjectRegion, name: str) -> None:
        found = reservations.find(api, place, name)
        problem = reservations.problem(name, found, [self.machine], [self.zone] if self.zone else [])
        if problem is not None:
            raise NoSuchResource(f"{reservations.FIELD}: {'; '.join(problem)}")
        # A type that is sold by reservation alone is bound to any, in calendar mode or not.
        if not catalog.facts(self.machine).standard:
            return
        try:
            window = reservations.find_window(api, place, name)
        except ProviderError:
            pass  # Left to the launch.
        else:
            wrong = reservations.kind_problem(name, window, bound=self.bound, now=datetime.now(timezone.utc))
            if wrong:
                raise NoSuchResource(f"{reservations.FIELD}: {wrong}")


def _named(requests: tuple[HttpRequest, ...], place: ProjectRegion) -> Iterator[tuple[_Lookup, str]]:
    """Yield each name in these requests with its lookup."""
    last = read_request.describing(requests)
    machine = read_request.properties(last)
    for index, card in enumerate(machine.get("networkInterfaces") or ()):
        if card.get("subnetwork") or card.get("network"):
            yield further_network if index else network.look_up, str(card.get("subnetwork") or card["network"])
    for disk in machine.get("disks") or ():
        source = (disk.get("initializeParams") or {}).get("sourceImage")
        if source and not images.is_known(source):
            yield image, str(source)
    for one in machine.get("serviceAccounts") or ():
        if one.get("email") not in (None, "default", identity.email(place.project, identity.DEFAULT_ACCOUNT)):
            yield account, str(one["email"])
    made = {each.body.get("name") for each in requests}
    for name in machine.get("resourcePolicies") or ():
        if _last(str(name)) not in made:
            yield policy, str(name)
    affinity = machine.get("reservationAffinity") or {}
    if affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION":
        for name in affinity.get("values") or ():
            bound = read_request.is_bound(last)
            yield _ReservationLookup(read_request.machine(last), read_request.zone(last), bound), str(name)


def _get(api: Api, path: str, field: str, what: str) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = api.send("GET", f"/compute/v1/{quote(path, safe='/:')}", what=field)
    except NotFound:
        raise NotFound(f"{field}: there is no {what}") from None
    return found


def _path(link: str, place: ProjectRegion) -> str:
    """The path `projects/…` of a link in any of the forms that Compute Engine takes."""
    path = _LINK.sub("", link)
    return path if path.startswith("projects/") else f"projects/{place.project}/{path}"


def _last(path: str) -> str:
    return path.rpartition("/")[2]
