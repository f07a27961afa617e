"""`stoker check gce`: whether a project has, and allows, what a job needs. Makes nothing and ends nothing.

Google tells what is allowed when it is asked (`testIamPermissions`): for the project, and for a machine of this store
where there is one, since a permission may have been given for some machines alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stoker.model.errors import AuthDenied, InvalidRequest, NotFound, ProviderError, UserError
from stoker.model.offerings import Offering
from stoker.model.spec import GceResources, Spec, master_port
from stoker.providers import registry
from stoker.providers.base import Finding
from stoker.providers.gce import (
    identity,
    images,
    network,
    overrides,
    permissions,
    places,
    preflight,
    quotas,
    reservations,
)
from stoker.providers.gce.client import Api, check_installed
from stoker.providers.gce.places import Place
from stoker.providers.gce.verdicts import LATER, ROLES, enable, fix_of, said, switched_off, to_learn, verdict
from stoker.store.gcs import emulator_address

if TYPE_CHECKING:
    from stoker.providers.gce.provider import GceProvider

EXTRA = "stoker[gcp]"
_CREDENTIALS = "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
# What Google takes in one question.
_MOST_PERMISSIONS = 100


def examine(provider: GceProvider, spec: Spec, store: str) -> Iterator[Finding]:
    """Everything, one by one; only without credentials, a place or Compute Engine there is nothing more to look at."""
    try:
        check_installed()
    except UserError as error:
        yield Finding(EXTRA, False, str(error).partition(": ")[2].partition(";")[0], f"pip install '{EXTRA}'")
        return
    api = provider.api
    try:
        who = api.identity()
    except (ProviderError, UserError) as error:
        yield Finding("credentials", False, said(error).partition("; `gcloud")[0], _CREDENTIALS)
        return
    try:
        place = places.find(spec.resources, api.default_project())
        project = api.get(f"/compute/v1/projects/{place.project}", service="compute")
    except UserError as error:
        yield Finding("credentials", True, who)
        yield Finding("place", False, str(error))
        return
    except ProviderError as error:
        yield from _no_project(error, who, place.project, places.named_by(spec.resources))
        if not isinstance(error, AuthDenied) or switched_off(error):
            return
        project = {}
    else:
        yield Finding("credentials", True, who)
        yield Finding("project", True, f"{place.project} answers")
    spec = replace(spec, resources=replace(spec.resources, region=str(place)))
    checks = _Checks(provider, spec, store, place, project)
    for part in (
        checks.region,
        checks.offers,
        checks.permissions,
        checks.account,
        checks.bucket,
        checks.limits,
        checks.image,
        checks.placement,
        checks.reservation,
        checks.overrides,
        checks.connections,
    ):
        yield from part()


def _no_project(error: ProviderError, who: str, project: str, named: str) -> Iterator[Finding]:
    """A project that does not tell about itself: it is not there, nobody may look, or Compute Engine is off."""
    if switched_off(error):
        yield Finding("credentials", True, who)
        yield Finding("project", False, f"Compute Engine is switched off in {project}", enable("compute", project))
    elif isinstance(error, AuthDenied):
        yield Finding("credentials", True, who)
        yield Finding("project", None, said(error), to_learn(error, "compute.projects.get"))
    elif isinstance(error, NotFound):
        yield Finding("credentials", True, who)
        detail, _, fix = places.no_project(project, named).partition("; ")
        yield Finding("project", False, detail, fix)
    else:
        # Nobody has said yes to these credentials so far.
        yield Finding("credentials", verdict(error), said(error), _CREDENTIALS)


class _Checks:
    """One look at one project. Each part yields what it found, and raises no ProviderError."""

    def __init__(self, provider: GceProvider, spec: Spec, store: str, place: Place, project: Mapping[str, Any]) -> None:
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

    # ── Where, and what ───────────────────────────────────────────────────────────────────────────────────────────────

    def region(self) -> Iterator[Finding]:
        name = self._place.region
        try:
            self._region = self._get(f"regions/{name}")
            machines = self._provider.list_instances(str(self._place))
        except NotFound:
            yield Finding("region", False, f"there is no region {name}", "`gcloud compute regions list`")
            return
        except ProviderError as error:
            fix = to_learn(error, "compute.regions.get and compute.instances.list")
            yield Finding("region", None, f"{name}: {said(error)}", fix)
            return
        self._machine = next((each.id for each in machines if each.state == "running"), None)
        there = f"{len(machines)} machine{'' if len(machines) == 1 else 's'} of this store"
        yield Finding("region", True, f"{name} answers; {there}")

    def offers(self) -> Iterator[Finding]:
        try:
            found = self._provider.offerings(self._spec.resources)
        except (ProviderError, UserError) as error:
            yield Finding("offers", verdict(error), said(error), fix_of(error))
            return
        wanted = {"never": (False,), "only": (True,), "prefer": (True, False)}[self._spec.resources.spot]
        self._offered = tuple(offering for kind in wanted for offering in found if offering.spot == kind)
        if self._offered:
            yield Finding("offers", True, f"{len(self._offered)} offerings; first {self._offered[0].key}")
        else:
            yield Finding("offers", False, self._provider.why_none(self._spec.resources), "`stoker offers` lists more")

    # ── Permissions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def permissions(self) -> Iterator[Finding]:
        """What a governor needs: whoever runs `stoker run` is one."""
        wanted = permissions.names(permissions.GOVERNOR)
        why = {each.name: each.why for each in permissions.GOVERNOR}
        project = self._place.project
        try:
            allowed = self._allowed("cloudresourcemanager", f"/v1/projects/{project}", wanted)
        except ProviderError as error:
            fix = enable("cloudresourcemanager", project) if switched_off(error) else LATER
            for name in wanted:
                yield Finding(name, None, f"could not be told: {said(error)}", fix)
            return
        allowed |= self._allowed_on_machine([each.name for each in permissions.GOVERNOR if each.on_machines])
        for name in wanted:
            if name in allowed:
                yield Finding(name, True, "allowed")
            else:
                yield Finding(name, False, f"denied: {why[name]}", f"add it to a role of yours; {ROLES}")

    def _allowed_on_machine(self, wanted: list[str]) -> set[str]:
        """Given for some machines alone, the project itself does not have it."""
        if self._machine is None:
            return set()
        zone, number = places.split_id(self._machine)
        path = f"/compute/v1/projects/{self._place.project}/zones/{zone}/instances/{number}/testIamPermissions"
        try:
            return set(self._api.send("POST", path, {"permissions": wanted}).get("permissions") or ())
        except ProviderError:
            return set()

    def _allowed(self, service: Any, path: str, wanted: list[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(wanted), _MOST_PERMISSIONS):
            some = {"permissions": wanted[start : start + _MOST_PERMISSIONS]}
            answer = self._api.send("POST", f"{path}:testIamPermissions", some, service=service, what=service)
            found |= set(answer.get("permissions") or ())
        return found

    # ── What has to be there ──────────────────────────────────────────────────────────────────────────────────────────

    def account(self) -> Iterator[Finding]:
        """The machines' service account, and whether whoever looks may give it to a machine."""
        project = self._place.project
        email = identity.email(project, self._gce_resources.service_account or identity.DEFAULT_ACCOUNT)
        if "@" not in email:
            email = str(self._project.get("defaultServiceAccount") or "")
        if not email:
            yield Finding("service account", None, "which one the project's default is could not be told")
            return
        name = "service account"
        try:
            found = preflight.account(self._api, self._place, email)
        except NotFound:
            fix = f"{ROLES} and the commands that make it; resources.gce.service_account names another"
            yield Finding(name, False, f"there is no {email}", fix)
            return
        except ProviderError as error:
            yield Finding(name, None, said(error), to_learn(error, "iam.serviceAccounts.get", "iam", project))
            return
        if found.get("disabled"):
            yield Finding(name, False, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
            return
        yield Finding(name, True, email)
        try:
            allowed = self._allowed("iam", identity.path(email), [permissions.ACT_AS])
        except ProviderError as error:
            yield Finding(permissions.ACT_AS, None, f"could not be told: {said(error)}", LATER)
            return
        grant = (
            f"gcloud iam service-accounts add-iam-policy-binding {email} --role roles/iam.serviceAccountUser"
            f" --member user:YOU --project {project}"
        )
        if permissions.ACT_AS in allowed:
            yield Finding(permissions.ACT_AS, True, "allowed")
        else:
            yield Finding(permissions.ACT_AS, False, f"denied: no machine can be given {email}", grant)

    def bucket(self) -> Iterator[Finding]:
        """What only the bucket's own settings tell. That it can be written was tried before."""
        try:
            registry.check_store(self._provider.name, self._store)
        except UserError as error:
            detail, _, fix = str(error).removeprefix("--store: ").partition("; ")
            yield Finding("bucket", False, detail, fix)
            return
        if emulator_address():
            return  # Somebody else's storage, which has no such settings.
        name = self._store.removeprefix("gs://").partition("/")[0]
        try:
            found = self._api.send("GET", f"/storage/v1/b/{name}", service="storage", what=f"gs://{name}")
        except ProviderError as error:
            # Nothing is wrong with who may use a bucket, and not ask about it.
            if not isinstance(error, (AuthDenied, NotFound)):
                yield Finding("bucket", None, said(error), LATER)
            return
        yield from bucket_findings(name, found)

    def limits(self) -> Iterator[Finding]:
        if not self._offered:
            return
        known = quotas.limits(self._region, self._project)
        nodes = self._spec.nodes
        could = quotas.allowed(self._offered, nodes, known)
        borrowed = quotas.borrowed(self._offered, known)
        for metric, need in sorted(quotas.least(self._offered, nodes, known).items()):
            limit = known[metric]
            where = "in all regions" if limit.everywhere else f"in {self._place.region}"
            detail = f"{limit.most:g} {limit.unit} {where}, {limit.used:g} in use, and this job needs {need}"
            ask = f"ask for more at {quotas.page(self._place.project)}"
            if metric in borrowed:
                yield Finding(f"quota of {borrowed[metric]}", True, f"none is given, so spot takes of {metric}")
                ask += f": of {metric}, or of {borrowed[metric]} for spot alone"
            if limit.most < need:
                # Another machine, or the other kind, may still do.
                yield Finding(f"quota of {metric}", None if could else False, detail, ask)
            elif limit.most - limit.used < need:
                yield Finding(f"quota of {metric}", None, detail, f"wait for what is in use, or {ask}")
            else:
                used = f", {limit.used:g} in use" if limit.used else ""
                yield Finding(f"quota of {metric}", True, f"{need} of {limit.most:g} {limit.unit}{used}")

    def image(self) -> Iterator[Finding]:
        """The newest of a family, or the image that the job names."""
        wanted = self._spec.resources.image
        try:
            arch = next(iter(self._provider.architectures(self._offered[:1])), "x86_64")
            gpus = self._offered[0].gpus if self._offered else 0
            source = (images.find(wanted, arch) if wanted else images.default(arch, gpus)).source  # type: ignore[arg-type]
            found = preflight.image(self._api, self._place, source)
        except NotFound as error:
            yield Finding("image", False, said(error), fix_of(error))
        except UserError as error:
            yield Finding("image", False, said(error))
        except ProviderError as error:
            yield Finding("image", None, said(error), to_learn(error, "compute.images.getFromFamily"))
        else:
            yield Finding("image", True, f"{wanted or 'the default'} is {found['name']}")

    def placement(self) -> Iterator[Finding]:
        """The placement policy that the job names."""
        wanted = self._gce_resources.placement_policy
        if wanted is None:
            return
        try:
            preflight.policy(self._api, self._place, wanted)
        except ProviderError as error:
            yield self._not_there("placement policy", error, "compute.resourcePolicies.get")
        else:
            yield Finding("placement policy", True, wanted)

    def reservation(self) -> Iterator[Finding]:
        """The reservation that the job names: it is in one zone, and so are the machines that use it."""
        wanted = reservations.named(self._spec.resources)
        if wanted is None:
            return
        try:
            held = reservations.find(self._api, self._place, wanted)
        except ProviderError as error:
            yield self._not_there("reservation", error, "compute.reservations.list")
            return
        standard = [each for each in self._offered if not each.spot]
        wrong = reservations.problem(
            wanted, held, [each.machine for each in standard], [each.zone for each in standard]
        )
        if standard and wrong is not None:
            yield Finding("reservation", False, *wrong)
        else:
            yield Finding("reservation", True, f"{wanted} ({', '.join(map(str, held))})")

    def overrides(self) -> Iterator[Finding]:
        """What the job merges into its request: asks nobody, and a launch would be too late to say it."""
        try:
            overrides.check(self._gce_resources.overrides, self._spec.nodes)
        except UserError as error:
            yield Finding("overrides", False, str(error))

    def _not_there(self, name: str, error: ProviderError, permission: str) -> Finding:
        """What a look at something that the job names ended with."""
        if isinstance(error, (NotFound, InvalidRequest)):
            return Finding(name, False, said(error), fix_of(error))
        return Finding(name, None, said(error), to_learn(error, permission))

    # ── The network ───────────────────────────────────────────────────────────────────────────────────────────────────

    def connections(self) -> Iterator[Finding]:
        try:
            wire = network.find(self._api, self._place, self._gce_resources.network)
        except NotFound as error:
            yield Finding("network", False, said(error), network.to_do(error, self._place, self._gce_resources.network))
            return
        except ProviderError as error:
            yield self._not_there("network", error, "compute.networks.get and compute.subnetworks.list")
            return
        yield Finding("network", True, f"{wire.subnetwork} of {wire.name}, {wire.range}")
        yield self._way_to_storage(wire)
        try:
            rules = network.rules(self._api, wire)
        except ProviderError as error:
            yield Finding("between nodes", None, said(error), to_learn(error, "compute.firewalls.list"))
            return
        yield self._between_nodes(wire, network.openness(rules, master_port(self._spec), wire.range))

    def _way_to_storage(self, wire: network.Wire) -> Finding:
        if wire.private_access:
            return Finding("way to storage", True, "Private Google Access: machines need no public address")
        if self._gce_resources.public_ip is not False:
            return Finding("way to storage", True, "by the machines' public addresses")
        fix = (
            f"gcloud compute networks subnets update {wire.subnetwork} --region {self._place.region}"
            f" --project {wire.project} --enable-private-ip-google-access"
        )
        detail = f"without a public address none, unless {wire.name} has a Cloud NAT"
        return Finding("way to storage", None, detail, fix)

    def _between_nodes(self, wire: network.Wire, found: network.Open) -> Finding:
        """Only nodes of one job need it; for one alone it is no more than a hint."""
        port = master_port(self._spec)
        fix = (
            f"gcloud compute firewall-rules create stoker-internal --project {wire.project} --network {wire.name}"
            f" --allow tcp,udp,icmp --source-ranges {wire.range}"
        )
        if found == "all":
            return Finding("between nodes", True, f"{wire.name} lets nodes reach each other on all ports")
        if found == "port":
            detail = (
                f"{wire.name} lets nodes reach each other on MASTER_PORT {port} alone; NCCL and gloo use further ports"
            )
            return Finding("between nodes", None, detail, fix)
        detail = f"{wire.name} does not let nodes reach each other on MASTER_PORT {port}"
        return Finding("between nodes", False if self._spec.nodes > 1 else None, detail, fix)


def bucket_findings(name: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    """What a bucket's settings mean for jobs."""
    uniform = (found.get("iamConfiguration") or {}).get("uniformBucketLevelAccess") or {}
    kept_s = int((found.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if not uniform.get("enabled"):
        fix = f"gcloud storage buckets update gs://{name} --uniform-bucket-level-access"
        yield Finding("bucket", False, f"{name} has no uniform access: no role can be limited to a folder", fix)
    elif kept_s:
        detail = (
            f"{name} keeps what was removed, and charges for it, {kept_s // 86400} days: old checkpoints, heartbeats"
        )
        yield Finding("bucket", None, detail, f"gcloud storage buckets update gs://{name} --clear-soft-delete")
    else:
        yield Finding("bucket", True, f"{name} in {str(found.get('location', '')).lower()}, with uniform access")
