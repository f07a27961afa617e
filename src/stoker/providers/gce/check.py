"""`stoker check gce`: check that a project has, and allows, what a job needs. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult
from stoker.providers.check_results import check_offers, check_ok
from stoker.providers.gce import check_access, check_network, images, overrides, places, preflight, quotas, reservations
from stoker.providers.gce.client import Api, check_installed
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.verdicts import (
    api_disabled,
    enable_command,
    error_text,
    fix_of,
    lookup_fix,
    missing_result,
)
from stoker.store.base import GOOGLE_LOGIN

if TYPE_CHECKING:
    from stoker.providers.gce.provider import GceProvider

EXTRA = "stoker[gcp]"


def check_account(provider: GceProvider, spec: Spec, store: str) -> Iterator[CheckResult]:
    """Yield the result of each check. Stops early only without credentials, a place or Compute Engine."""
    try:
        check_installed()
    except UserError as error:
        yield CheckResult(EXTRA, False, str(error).partition(": ")[2].partition(";")[0], f"pip install '{EXTRA}'")
        return
    api = provider.api
    try:
        who = api.identity()
    except (ProviderError, UserError) as error:
        yield CheckResult("credentials", False, error_text(error).partition("; `gcloud")[0], GOOGLE_LOGIN)
        return
    try:
        place = places.find(spec.resources, api.default_project())
        project = api.get(f"/compute/v1/projects/{place.project}", service="compute")
    except UserError as error:
        yield CheckResult("credentials", True, who)
        yield CheckResult("place", False, str(error))
        return
    except ProviderError as error:
        yield from _no_project(error, who, place.project, places.named_by(spec.resources))
        if not isinstance(error, AuthDenied) or api_disabled(error):
            return
        project = {}
    else:
        yield CheckResult("credentials", True, who)
        yield CheckResult("project", True, f"{place.project} answers")
    spec = replace(spec, resources=replace(spec.resources, region=str(place)))
    checks = _Checks(provider, spec, store, place, project)
    for part in (
        checks.region,
        checks.offers,
        checks.access,
        checks.limits,
        checks.image,
        checks.placement,
        checks.reservation,
        checks.overrides,
        checks.connections,
    ):
        yield from part()


def _no_project(error: ProviderError, who: str, project: str, named: str) -> Iterator[CheckResult]:
    """Explain why the project cannot be read: it does not exist, it may not be read, or Compute Engine is disabled."""
    if api_disabled(error):
        yield CheckResult("credentials", True, who)
        yield CheckResult(
            "project", False, f"Compute Engine is switched off in {project}", enable_command("compute", project)
        )
    elif isinstance(error, AuthDenied):
        yield CheckResult("credentials", True, who)
        yield CheckResult("project", None, error_text(error), lookup_fix(error, "compute.projects.get"))
    elif isinstance(error, NotFound):
        yield CheckResult("credentials", True, who)
        detail, _, fix = places.no_project(project, named).partition("; ")
        yield CheckResult("project", False, detail, fix)
    else:
        # No call has succeeded with these credentials so far, so they may be the cause.
        yield CheckResult("credentials", check_ok(error), error_text(error), GOOGLE_LOGIN)


class _Checks:
    """The checks of one project. Each part yields its results, and raises no ProviderError."""

    def __init__(
        self, provider: GceProvider, spec: Spec, store: str, place: ProjectRegion, project: Mapping[str, Any]
    ) -> None:
        self._provider = provider
        self._api: Api = provider.api
        self._spec = spec
        self._gce_resources = spec.resources.gce or GceResources()
        self._store = store
        self._place = place
        self._project = project
        self._region: Mapping[str, Any] = {}
        self._offered: tuple[Offering, ...] = ()
        self._machine: str | None = None

    def _get(self, below: str) -> Any:
        return self._api.get(f"/compute/v1/projects/{self._place.project}/{below}")

    def region(self) -> Iterator[CheckResult]:
        name = self._place.region
        try:
            self._region = self._get(f"regions/{name}")
            machines = self._provider.list_instances(str(self._place))
        except NotFound:
            yield CheckResult("region", False, f"there is no region {name}", "`gcloud compute regions list`")
            return
        except ProviderError as error:
            fix = lookup_fix(error, "compute.regions.get and compute.instances.list")
            yield CheckResult("region", None, f"{name}: {error_text(error)}", fix)
            return
        self._machine = next((each.id for each in machines if each.state == "running"), None)
        there = f"{len(machines)} machine{'' if len(machines) == 1 else 's'} of this store"
        yield CheckResult("region", True, f"{name} answers; {there}")

    def offers(self) -> Iterator[CheckResult]:
        self._offered, result = check_offers(
            self._provider, self._spec.resources, lambda error: (error_text(error), fix_of(error))
        )
        yield result

    # ── Access ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def access(self) -> Iterator[CheckResult]:
        """Permissions of the caller, the machines' service account, and the bucket."""
        yield from check_access.permissions_results(self._api, self._place, self._machine)
        yield from check_access.account_results(
            self._api, self._place, self._gce_resources.service_account, self._project
        )
        yield from check_access.bucket_results(self._api, self._provider.name, self._store)

    # ── Names in the job ──────────────────────────────────────────────────────────────────────────────────────────────

    def limits(self) -> Iterator[CheckResult]:
        if not self._offered:
            return
        known = quotas.limits(self._region, self._project)
        nodes = self._spec.nodes
        could = quotas.any_fits(self._offered, nodes, known)
        borrowed = quotas.borrowed_limits(self._offered, known)
        for metric, need in sorted(quotas.smallest_needs(self._offered, nodes, known).items()):
            limit = known[metric]
            where = "in all regions" if limit.everywhere else f"in {self._place.region}"
            detail = f"{limit.most:g} {limit.unit} {where}, {limit.used:g} in use, and this job needs {need}"
            ask = f"ask for more at {quotas.console_page(self._place.project)}"
            if metric in borrowed:
                yield CheckResult(f"quota of {borrowed[metric]}", True, f"none is given, so spot takes of {metric}")
                ask += f": of {metric}, or of {borrowed[metric]} for spot alone"
            if limit.most < need:
                # Another machine type, or spot instead of standard, may still fit.
                yield CheckResult(f"quota of {metric}", None if could else False, detail, ask)
            elif limit.most - limit.used < need:
                yield CheckResult(f"quota of {metric}", None, detail, f"wait for what is in use, or {ask}")
            else:
                used = f", {limit.used:g} in use" if limit.used else ""
                yield CheckResult(f"quota of {metric}", True, f"{need} of {limit.most:g} {limit.unit}{used}")

    def image(self) -> Iterator[CheckResult]:
        """The image that the job names, or the newest image of its family."""
        wanted = self._spec.resources.image
        try:
            arch = next(iter(self._provider.architectures(self._offered[:1])), "x86_64")
            gpus = self._offered[0].gpus if self._offered else 0
            source = (images.find(wanted, arch) if wanted else images.default(arch, gpus)).source  # type: ignore[arg-type]
            found = preflight.image(self._api, self._place, source)
        except NotFound as error:
            yield CheckResult("image", False, error_text(error), fix_of(error))
        except UserError as error:
            yield CheckResult("image", False, error_text(error))
        except ProviderError as error:
            yield CheckResult("image", None, error_text(error), lookup_fix(error, "compute.images.getFromFamily"))
        else:
            yield CheckResult("image", True, f"{wanted or 'the default'} is {found['name']}")

    def placement(self) -> Iterator[CheckResult]:
        """The placement policy that the job names."""
        wanted = self._gce_resources.placement_policy
        if wanted is None:
            return
        try:
            preflight.policy(self._api, self._place, wanted)
        except ProviderError as error:
            yield missing_result("placement policy", error, "compute.resourcePolicies.get")
        else:
            yield CheckResult("placement policy", True, wanted)

    def reservation(self) -> Iterator[CheckResult]:
        """The reservation that the job names. A reservation is in one zone, and so are the machines that use it."""
        wanted = reservations.named(self._spec.resources)
        if wanted is None:
            return
        try:
            found = reservations.find(self._api, self._place, wanted)
        except ProviderError as error:
            yield missing_result("reservation", error, "compute.reservations.list")
            return
        standard = [each for each in self._offered if not each.spot]
        wrong = reservations.problem(
            wanted, found, [each.machine for each in standard], [each.zone for each in standard]
        )
        if standard and wrong is not None:
            yield CheckResult("reservation", False, *wrong)
            return
        try:
            zones = {each.zone for each in standard if any(one.zone == each.zone for one in found)}
            zone = next(iter(zones)) if len(zones) == 1 else None
            window = reservations.find_window(self._api, self._place, wanted, zone)
        except ProviderError as error:
            fix = lookup_fix(error, "compute.futureReservations.list")
            yield CheckResult("reservation", None, f"its time is not known: {error_text(error)}", fix)
            return
        bound = reservations.is_calendar(self._spec.resources)
        detail, _, fix = reservations.kind_problem(wanted, window, bound=bound, now=self._api.now()).partition("; ")
        if detail:
            yield CheckResult("reservation", False, detail, fix)
        else:
            when = f", {window}" if window is not None else ""
            yield CheckResult("reservation", True, f"{wanted} ({', '.join(map(str, found))}{when})")

    def overrides(self) -> Iterator[CheckResult]:
        """The fields that the job merges into its request. Pure; a launch would report an error too late."""
        try:
            overrides.check(self._gce_resources.overrides, self._spec.nodes)
        except UserError as error:
            yield CheckResult("overrides", False, str(error))

    def connections(self) -> Iterator[CheckResult]:
        """The network: see `check_network`."""
        return check_network.network_results(self._api, self._place, self._spec)
