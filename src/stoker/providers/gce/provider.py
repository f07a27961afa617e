"""The gce provider."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from stoker.model import codec
from stoker.model.errors import (
    InvalidRequest,
    Misnamed,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    Throttled,
    Transient,
    UserError,
)
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.spec import Resources, Spec, is_port
from stoker.providers import registry
from stoker.providers.base import Finding, Gone, HttpRequest, LaunchOrder, Terminated, Visit, Way
from stoker.providers.gce import (
    catalog,
    labels,
    leftovers,
    names,
    offers,
    operations,
    places,
    quotas,
    read_request,
    request,
    reservations,
    settings,
)
from stoker.providers.gce.capabilities import CAPABILITIES
from stoker.providers.gce.client import Api, Scoped
from stoker.providers.gce.errors import AlreadyThere, InUse, refusal
from stoker.providers.gce.owners import owner_of
from stoker.providers.gce.places import Place, instance_id, is_id, region_of, split_id
from stoker.providers.gce.verdicts import said
from stoker.providers.registry import Context

_STATES: dict[str, InstanceState] = {
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "REPAIRING": "running",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "DEPROVISIONING": "stopping",
    # It powered itself off, or somebody stopped it. Its disk costs money until it is deleted.
    "TERMINATED": "off",
    # It sleeps, and may go on with its training one day.
    "SUSPENDING": "running",
    "SUSPENDED": "running",
}
# What Compute Engine does, or lets be done, to machines, as its operations are called.
_PREEMPTED = "compute.instances.preempted"
# The last is at the end of the longest life.
_ENDED = frozenset({"delete", _PREEMPTED, "compute.instances.deferredDelete"})
_SWITCHED_OFF = "compute.instances.guestTerminate"
# A launch is looked at so long; one that takes longer is asked about again by the next pass, under the same id.
_LAUNCH_S = 10.0
_POLICY_S = 10.0
# Zones change slowly; a job that tries one dry zone after another need not ask each time.
_OFFERS_FOR_S = 120.0


class GceProvider:
    """One store's machines, in whichever projects they are. Holds a client, and what was offered a moment ago."""

    name = "gce"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = labels.store_label(context.store)
        self._api = Api()
        self._offered: dict[bytes, tuple[float, tuple[Offering, ...]]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def api(self) -> Api:
        return self._api

    def check(self, spec: Spec) -> None:
        """Raise UserError for what Compute Engine would refuse."""
        registry.check_store(self.name, self._context.store)
        port = spec.env.get("MASTER_PORT")
        if port is not None and not is_port(port):
            raise UserError(f"env.MASTER_PORT: {port!r} is no port; give a number from 1 to 65535")
        request.check(spec)

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """What is done otherwise than somebody may think, a line each."""
        return (*labels.remarks(spec.written_tags), *reservations.remarks(spec.resources))

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """Machine types × zones × spot or standard, best first. Offline, from the project's own tables."""
        place = self._place(resources)
        if self._context.offline:
            return offers.offline(resources, place)
        key = codec.dumps(replace(resources, region=str(place)))
        kept = self._offered.get(key)
        if kept is not None and time.monotonic() - kept[0] < _OFFERS_FOR_S:
            return kept[1]
        try:
            found = reservations.kept_for(self._api, resources, place, offers.live(self._api, resources, place))
        except NotFound as error:
            # Of lists of a whole project, only that can be missing.
            raise Misnamed(places.no_project(place.project, places.named_by(resources))) from error
        fresh_s = time.monotonic() - _OFFERS_FOR_S
        self._offered = {key: kept for key, kept in self._offered.items() if kept[0] > fresh_s}
        self._offered[key] = (time.monotonic(), found)
        return found

    def _place(self, resources: Resources) -> Place:
        """Where the machines will be. Raises UserError where nobody says."""
        named = resources.gce.project if resources.gce else None
        if named or places.environment_project() or "/" in (resources.region or ""):
            return places.find(resources)
        return places.find(resources, settings.project() if self._context.offline else self._api.default_project())

    def why_none(self, resources: Resources) -> str:
        """Why `offerings` is empty, in one line."""
        return offers.why_none(resources)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """What these resources name and no table of the project's has, a line each."""
        return offers.unchecked(resources, self._place(resources))

    def architectures(self, offerings: Iterable[Offering]) -> set[str]:
        """The processors of these machines, for the agents to install on them."""
        return {catalog.facts(offering.machine).arch for offering in offerings}

    def build(self, order: LaunchOrder) -> tuple[HttpRequest, ...]:
        """The placement policy where there is one, and one insert or bulk insert. Pure."""
        return request.build(order)

    def rehearse(self, *launches: tuple[HttpRequest, ...]) -> None:
        """Look whether what the requests name is there. Raises Misnamed for what is not."""
        from stoker.providers.gce import preflight

        preflight.rehearse(self._api, *launches)

    def check_limits(self, offerings: Sequence[Offering], nodes: int) -> None:
        """Raise UserError where the project's quotas forbid all of these. Asks only about GPUs."""
        from stoker.providers.gce import preflight

        preflight.check_limits(self._api, offerings, nodes)

    # ── Launching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, requests: tuple[HttpRequest, ...]) -> tuple[Instance, ...]:
        """Send the requests. Idempotent by the request id; a gang comes whole or not at all."""
        *before, last = requests
        for each in before:
            self._make(each)
        try:
            return self._insert(last)
        except Misnamed as error:
            if before and "placement_policy" in str(error):
                # Ours, and not known everywhere yet. The request has failed for good; another claim makes another.
                raise NoCapacity(str(error)) from error
            raise
        except QuotaExceeded as error:
            page = quotas.page(Place.of(last.region or "").project)
            raise QuotaExceeded(f"{said(error)}; ask for more at {page}") from error

    def _insert(self, last: HttpRequest) -> tuple[Instance, ...]:
        try:
            operation = self._api.send(last.method, last.path, last.body, what=read_request.machine_type(last))
        except AlreadyThere:
            # Google has forgotten the id of the request, or never knew it: the name stands for the claim meanwhile.
            return self._standing(last)
        except NotFound as error:
            raise refusal(error) from error
        except InvalidRequest as error:
            if "requestid" not in str(error).lower():
                raise
            # Another version of Stoker began this claim, with a request that reads a little differently.
            return self._standing(last)
        # Done before anybody could have waited for it: this request was made before.
        again = operation.get("status") == "DONE"
        try:
            found = self._launched(last, self._made(last, operation))
        except AlreadyThere:
            return self._standing(last)
        if not again:
            return found
        states = self.state([each.id for each in found], last.region)
        return tuple(replace(each, state=states[each.id]) for each in found)

    def _made(self, last: HttpRequest, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """The operation of a launch, once it has succeeded. What it failed with is final: asked again under the same
        id, Google tells of the same failure."""
        try:
            return operations.finished(self._api, operation, read_request.machine_type(last), _LAUNCH_S)
        except operations.Unfinished:
            raise
        except NotFound as error:
            raise refusal(error) from error
        except (Transient, Throttled) as error:
            raise NoCapacity(str(error)) from error

    def _make(self, each: HttpRequest) -> None:
        """A placement policy. One that is there is the claim's own: its name says so."""
        try:
            operation = self._api.send(each.method, each.path, each.body, what="placement policy")
            operations.finished(self._api, operation, "placement policy", _POLICY_S)
        except AlreadyThere:
            pass
        except NotFound as error:
            raise refusal(error) from error

    def _launched(self, sent: HttpRequest, operation: Mapping[str, Any]) -> tuple[Instance, ...]:
        """The machines that an operation made, though some may have ended since."""
        made = [operation]
        if operation.get("operationGroupId"):
            place = Place.of(sent.region or "")
            made = operations.grouped(self._api, place.project, operation["operationGroupId"])
        told, wanted = read_request.owner(sent), read_request.names(sent)
        found = []
        for each in made:
            if each.get("operationType") != "insert" or not each.get("targetId") or each.get("error"):
                continue
            zone, name = _target(each["targetLink"])
            if name not in wanted:
                continue
            found.append(
                Instance(
                    id=instance_id(zone, str(each["targetId"])),
                    provider="gce",
                    job=told.job,
                    claim=told.claim,
                    rank=names.rank(name) or 0,
                    state="pending",
                    created_at=_moment(each.get("insertTime")),
                    region=sent.region,
                    zone=zone,
                )
            )
        if len(found) < len(wanted):
            # It succeeded, so they are there: a list lags, or a zone gave no answer.
            raise Transient(f"{read_request.machine_type(sent)}: launched, and not listed yet")
        return tuple(sorted(found, key=lambda instance: instance.rank))

    def _standing(self, sent: HttpRequest) -> tuple[Instance, ...]:
        """The machines that stand for this request already."""
        told, wanted = read_request.owner(sent), read_request.names(sent)
        found = [each for each in self.list_instances(sent.region) if (each.job, each.claim) == (told.job, told.claim)]
        if len(found) < len(wanted):
            # Not listed yet, or another's under a name that tells of our store and claim, which nobody takes by chance.
            raise Transient(f"{read_request.machine_type(sent)}: launched before, and not listed yet")
        return tuple(found)

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """Everything with this store's label that is not gone. One call for five hundred machines."""
        place = self._where(region)
        # A zone that gives no answer may hold machines: a list without it proves nothing.
        listed = self._scoped(place).within(place.region)
        found = (self._instance(each, place) for each in self._ours(listed, place))
        return tuple(instance for instance in found if instance is not None)

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """The state of each id. `gone` where an operation that ended it is on record; `unheard-of` where neither a
        machine nor such an operation is."""
        place = self._where(region)
        wanted = list(ids)
        found: dict[str, InstanceState] = dict.fromkeys(wanted, "unheard-of")
        if not wanted:
            return found
        listed = self._scoped(place).answered(*(split_id(name)[0] for name in wanted if is_id(name)))
        for each in self._ours(listed, place):
            name = instance_id(_last(each["zone"]), str(each["id"]))
            if name in found:
                found[name] = _STATES.get(each["status"], "running")
        missing = {split_id(name)[1]: name for name, state in found.items() if state == "unheard-of" and is_id(name)}
        zones = {number: split_id(name)[0] for number, name in missing.items()}
        for operation in operations.about(self._api, place.project, zones) if missing else ():
            ended = operation.get("operationType") in _ENDED and operation.get("status") == "DONE"
            if ended and not operation.get("error"):
                # A preemption may only have stopped it; then it would have been listed.
                found[missing[str(operation.get("targetId"))]] = "gone"
        return found

    def terminate(self, instance: str, region: str | None = None) -> Terminated:
        """Ask for its deletion, by the number that no other machine will ever have."""
        if not is_id(instance):
            return "gone"
        try:
            operation = self._api.send("DELETE", self._path(instance, region), what=instance)
        except NotFound:
            return "gone"
        except InUse:
            return "requested"  # Somebody is at it already.
        return "gone" if operation.get("status") == "DONE" and not operation.get("error") else "requested"

    # ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str:  # noqa: ARG002 - Google decides
        """Rehearse a reclaim, or delete the machine where that cannot be; the answer says which. NotFound: gone."""
        from stoker.providers.gce import reclaim

        return reclaim.interrupt(self._api, self._path(instance, region), instance)

    def way(self, instance: str, visit: Visit, spec: Spec, region: str | None = None) -> AbstractContextManager[Way]:
        """Through IAP, or by key to its address, whichever is open."""
        from stoker.providers.gce import access

        return access.way(self._api, self._path(instance, region), visit, spec)

    def checkup(self, spec: Spec) -> Iterator[Finding]:
        """Credentials, APIs, permissions, service account, quotas, image and network. Makes and ends nothing."""
        from stoker.providers.gce.check import examine

        return examine(self, spec, self._context.store)

    # ── What is left ──────────────────────────────────────────────────────────────────────────────────────────────────

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """Disks that hang on no machine, and placement policies."""
        return leftovers.listed(self._api, self._context.store, self._where(region))

    def remove(self, leftover: Leftover) -> None:
        leftovers.remove(self._api, leftover)

    def why_gone(self, instance: str, region: str | None = None) -> Gone | None:
        """A preemption, or a machine that switched itself off."""
        zone, number = split_id(instance)
        done = operations.about(self._api, self._where(region).project, {number: zone})
        kinds = {each.get("operationType") for each in done}
        if _PREEMPTED in kinds:
            return Gone(reclaimed=True, reason="preempted")
        if _SWITCHED_OFF in kinds:
            return Gone(reclaimed=False, reason="it switched itself off", by_itself=True)
        return None

    def console(self, instance: str, region: str | None = None) -> str | None:
        """What the machine wrote to its serial port. Google forgets it with the machine."""
        try:
            told = self._api.get(f"{self._path(instance, region)}/serialPort", {"port": "1"})
        except NotFound:
            return None
        return str(told.get("contents") or "") or None

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _where(self, region: str | None) -> Place:
        return Place.of(region) if region and "/" in region else self._place(Resources(region=region))

    def _path(self, instance: str, region: str | None) -> str:
        zone, number = split_id(instance)
        return f"/compute/v1/projects/{self._where(region).project}/zones/{zone}/instances/{number}"

    def _scoped(self, place: Place) -> Scoped:
        path = f"/compute/v1/projects/{place.project}/aggregated/instances"
        return self._api.scoped(path, "instances", {"filter": f'labels.{labels.STORE} = "{self._store}"'})

    def _ours(self, listed: Scoped, place: Place) -> Iterator[Mapping[str, Any]]:
        for zone, each in listed.items:
            # Compared once more: what is ours must not rest on how Google reads a filter.
            told = owner_of(each.get("labels") or {})
            if told is not None and told.store == self._store and region_of(zone) == place.region:
                yield each

    def _instance(self, found: Mapping[str, Any], place: Place) -> Instance | None:
        told = owner_of(found.get("labels") or {})
        if told is None or told.store != self._store:
            return None
        zone = _last(found["zone"])
        return Instance(
            id=instance_id(zone, str(found["id"])),
            provider="gce",
            job=told.job,
            claim=told.claim,
            rank=names.rank(found["name"]) or 0,
            state=_STATES.get(found["status"], "running"),
            created_at=_moment(found.get("creationTimestamp")),
            region=str(place),
            zone=zone,
        )


def _target(link: str) -> tuple[str, str]:
    """The zone and the name of a machine, by its link."""
    parts = urlsplit(link).path.split("/")
    return parts[parts.index("zones") + 1], parts[-1]


def _last(link: str) -> str:
    return link.rpartition("/")[2]


def _moment(text: object) -> datetime:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return datetime.now(timezone.utc)
