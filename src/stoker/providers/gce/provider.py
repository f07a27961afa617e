"""The gce provider: plain Compute Engine machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from stoker.model.errors import AuthDenied, InvalidRequest, NoSuchResource, NotFound
from stoker.model.offerings import Capabilities, Instance, InstanceState, Leftover, Offering
from stoker.model.resources import Resources
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import (
    CheckResult,
    EndReason,
    HttpRequest,
    LaunchOrder,
    ShellCommand,
    ShellRequest,
    TerminateResult,
)
from stoker.providers.gce import (
    cards,
    catalog,
    deletion,
    flex_start,
    labels,
    launch,
    leftovers,
    offers,
    operations,
    places,
    request,
    reservations,
    settings,
    tpu,
)
from stoker.providers.gce.capabilities import CAPABILITIES
from stoker.providers.gce.client import Api
from stoker.providers.gce.instances import StoreInstances
from stoker.providers.gce.places import ProjectRegion, is_id, split_id
from stoker.providers.offerings import RecentOfferings
from stoker.providers.registry import Context

# States in which a machine is ending already, so that no notice can reach it.
_ENDING = frozenset({"PENDING_STOP", "STOPPING", "DEPROVISIONING", "TERMINATED"})
_SIMULATION_S = 10.0
# The notice of a machine whose launch asked for no other: https://cloud.google.com/compute/docs/instances/spot
_DEFAULT_NOTICE_S = 30


class GceProvider:
    """The machines of one store, in any number of projects. Holds an API client, and recent offerings."""

    name = "gce"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = labels.store_label(context.store)
        self._api = Api()
        self._recent = RecentOfferings()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def api(self) -> Api:
        return self._api

    def check(self, spec: Spec) -> None:
        """Raise UserError for what Compute Engine would refuse."""
        registry.check_spec(self.name, self._context.store, spec)
        request.check(spec)

    def remarks(self, spec: Spec) -> tuple[str, ...]:
        """List what happens differently from what the job file suggests, a line each."""
        return (
            *labels.remarks(spec.written_tags),
            *reservations.remarks(spec.resources),
            *flex_start.remarks(spec),
            *tpu.remarks(spec),
            *cards.remarks(spec, spec.resources.machine),
            *offers.smaller_machines(spec.resources),
        )

    def disk_note(self, spec: Spec, offering: Offering, inputs_bytes: int) -> str:
        """Say where the folders of a node lie on such a machine."""
        return request.disk_note(spec, offering, inputs_bytes)

    def offerings(self, resources: Resources) -> tuple[Offering, ...]:
        """List machine types × zones × spot or standard, best first. Offline, from the packaged tables."""
        place = self._place(resources)
        if self._context.offline:
            return offers.offline(resources, place)
        there = replace(resources, region=str(place))
        return self._recent.get(there, lambda: self._ask_offerings(resources, place))

    def _ask_offerings(self, resources: Resources, place: ProjectRegion) -> tuple[Offering, ...]:
        try:
            return reservations.usable_offerings(self._api, resources, place, offers.live(self._api, resources, place))
        except NotFound as error:
            # Lists of a whole project answer 404 only where the project itself does not exist.
            raise NoSuchResource(places.no_project(place.project, places.named_by(resources))) from error

    def _place(self, resources: Resources) -> ProjectRegion:
        """Find the project and region of the machines. Raises UserError where nothing names them."""
        named = resources.gce.project if resources.gce else None
        if named or places.environment_project() or "/" in (resources.only_region or ""):
            return places.find(resources)
        return places.find(resources, settings.project() if self._context.offline else self._api.default_project())

    def why_none(self, resources: Resources) -> str:
        """Say in one line why `offerings` is empty."""
        return offers.why_none(resources)

    def other_way(self, offered: Iterable[Offering]) -> str:
        """Name the setting for flex-start, if machines of one of these types are sold that way."""
        return f"{flex_start.FIELD} to true" if any(flex_start.is_sold(each.machine) for each in offered) else ""

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """List the names in these resources that no packaged table has, a line each."""
        return offers.unchecked(resources, self._place(resources))

    def architectures(self, offerings: Iterable[Offering]) -> set[str]:
        """The processors of these machines, for the agents to install on them."""
        return {catalog.facts(offering.machine).arch for offering in offerings}

    def build(self, order: LaunchOrder) -> tuple[HttpRequest, ...]:
        """Build the placement policy where there is one, and one insert or bulk insert; or what flex-start needs for
        several machines. Pure."""
        return request.build(order)

    def preflight(self, *launches: tuple[HttpRequest, ...]) -> None:
        """Check that everything the requests name exists. Raises Misnamed for what does not."""
        from stoker.providers.gce import preflight

        preflight.check_requests(self._api, *launches)

    def check_quota(self, offerings: Sequence[Offering], nodes: int) -> None:
        """Raise UserError where the project's quotas forbid all of these. Only GPU quotas are looked up."""
        from stoker.providers.gce import preflight

        preflight.check_quota(self._api, offerings, nodes)

    # ── Launching and listing ─────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, requests: tuple[HttpRequest, ...]) -> tuple[Instance, ...]:
        """Send the requests. Idempotent by the request id; a gang comes whole or not at all."""
        return launch.launch(self._api, self._instances, requests)

    def list_instances(self, region: str | None = None) -> tuple[Instance, ...]:
        """List every machine with this store's label that is not gone. One call for five hundred machines."""
        return self._instances.list_region(self._where(region))

    def state(self, ids: Iterable[str], region: str | None = None) -> Mapping[str, InstanceState]:
        """Look up the state of each id: see `StoreInstances.states`."""
        return self._instances.states(ids, self._where(region))

    def terminate(self, instance: str, region: str | None = None) -> TerminateResult:
        """Request the deletion of a machine, by its number: numbers are never reused."""
        return deletion.delete(self._api, self._path(instance, region), instance) if is_id(instance) else "gone"

    # ── For people ────────────────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self, instance: str, grace_s: float, region: str | None = None) -> str:  # noqa: ARG002 - Google decides
        """Preempt a spot machine by a simulated maintenance event; delete any other. The answer says which was done.

        Google decides how long the notice is. Raises NotFound where the machine is gone, or ending already.
        """
        path = self._path(instance, region)
        found = self._api.send("GET", path, what=instance)
        if found.get("status") in _ENDING:
            raise NotFound(f"{instance} is on its way out")
        scheduling = found.get("scheduling") or {}
        if scheduling.get("provisioningModel") != "SPOT" and not scheduling.get("preemptible"):
            deletion.delete(self._api, path, instance)
            return (
                "deleted, without notice: it is no spot machine, so none could be rehearsed; the next attempt follows"
            )
        try:
            operation = self._api.send("POST", f"{path}/simulateMaintenanceEvent", what=instance)
            operations.wait_until_done(self._api, operation, instance, _SIMULATION_S)
        except operations.OperationUnfinished:
            pass  # Google has accepted the simulation, and finishes it later.
        except NotFound:
            raise
        except (AuthDenied, InvalidRequest) as error:
            deletion.delete(self._api, path, instance)
            return f"deleted, since no maintenance could be simulated: {error}"
        notice_s = int((scheduling.get("preemptionNoticeDuration") or {}).get("seconds") or _DEFAULT_NOTICE_S)
        notice = f"Google's notice is {notice_s} s, as the machine was launched with, and --grace is not used"
        return f"preempted by a simulated maintenance event: {notice}"

    def shell_command(
        self, instance: str, shell_request: ShellRequest, spec: Spec, region: str | None = None
    ) -> AbstractContextManager[ShellCommand]:
        """Open the first way that works: a key to the machine's address, or a tunnel (IAP)."""
        from stoker.providers.gce import ssh_login

        return ssh_login.shell_command(self._api, self._path(instance, region), shell_request, spec)

    def check_account(self, spec: Spec) -> Iterator[CheckResult]:
        """Check credentials, APIs, permissions, service account, quotas, image and network. Changes nothing."""
        from stoker.providers.gce.check import check_account

        return check_account(self, spec, self._context.store)

    # ── After the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def list_leftovers(self, region: str | None = None) -> tuple[Leftover, ...]:
        """List disks that are attached to no machine, placement policies, and what flex-start needs for several."""
        return leftovers.list_leftovers(self._api, self._context.store, self._where(region))

    def remove(self, leftover: Leftover) -> None:
        leftovers.remove(self._api, leftover, self._instances)

    def end_reason(self, instance: str, region: str | None = None) -> EndReason | None:
        """Say whether the machine was preempted or switched itself off."""
        return self._instances.end_reason(instance, self._where(region))

    def console(self, instance: str, region: str | None = None) -> str | None:
        """Read the output of the serial port. Google deletes it with the machine."""
        try:
            found = self._api.get(f"{self._path(instance, region)}/serialPort", {"port": "1"})
        except NotFound:
            return None
        return str(found.get("contents") or "") or None

    # ── Internals ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _instances(self) -> StoreInstances:
        return StoreInstances(self._api, self._store)

    def _where(self, region: str | None) -> ProjectRegion:
        return ProjectRegion.of(region) if region and "/" in region else self._place(Resources(region=region))

    def _path(self, instance: str, region: str | None) -> str:
        zone, number = split_id(instance)
        return f"/compute/v1/projects/{self._where(region).project}/zones/{zone}/instances/{number}"
