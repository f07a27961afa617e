"""Checks of access for `stoker check gce`: permissions of the caller, the machines' service account, and the bucket.

Google answers which permissions the caller has (`testIamPermissions`): for the project, and for one machine of this
store where there is one, since a permission may have been granted for some machines alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.model.errors import AuthDenied, NotFound, ProviderError, UserError
from stoker.providers import registry
from stoker.providers.base import CheckResult
from stoker.providers.check_results import TRY_LATER
from stoker.providers.gce import identity, permissions, places, preflight
from stoker.providers.gce.client import Api, Service
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.gce.verdicts import SEE_ROLES, api_disabled, enable_command, error_text, lookup_fix
from stoker.store.gcs import emulator_address

# The most permissions that Google takes in one request.
_MOST_PERMISSIONS = 100


def permissions_results(api: Api, place: ProjectRegion, machine: str | None) -> Iterator[CheckResult]:
    """Check the permissions of a governor: `stoker run` governs as its caller. `machine` is any one of this store."""
    wanted = permissions.names(permissions.GOVERNOR)
    why = {each.name: each.why for each in permissions.GOVERNOR}
    project = place.project
    try:
        allowed = _allowed(api, "cloudresourcemanager", f"/v1/projects/{project}", wanted)
    except ProviderError as error:
        fix = enable_command("cloudresourcemanager", project) if api_disabled(error) else TRY_LATER
        for name in wanted:
            yield CheckResult(name, None, f"not known: {error_text(error)}", fix)
        return
    if machine is not None:
        on_machines = [each.name for each in permissions.GOVERNOR if each.on_machines]
        allowed |= _allowed_on_machine(api, project, machine, on_machines)
    for name in wanted:
        if name in allowed:
            yield CheckResult(name, True, "allowed")
        else:
            yield CheckResult(name, False, f"denied: {why[name]}", f"add it to a role of yours; {SEE_ROLES}")


def account_results(
    api: Api, place: ProjectRegion, named: str | None, project: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """Check the machines' service account, and whether the caller may give it to a machine."""
    email = identity.email(place.project, named or identity.DEFAULT_ACCOUNT)
    if "@" not in email:
        email = str(project.get("defaultServiceAccount") or "")
    name = "service account"
    if not email:
        yield CheckResult(name, None, "the project's default account is not known")
        return
    try:
        found = preflight.account(api, place, email)
    except NotFound:
        fix = f"{SEE_ROLES} and the commands that make it; resources.gce.service_account names another"
        yield CheckResult(name, False, f"there is no {email}", fix)
        return
    except ProviderError as error:
        fix = lookup_fix(error, "iam.serviceAccounts.get", "iam", place.project)
        yield CheckResult(name, None, error_text(error), fix)
        return
    if found.get("disabled"):
        yield CheckResult(name, False, f"{email} is disabled", f"gcloud iam service-accounts enable {email}")
        return
    yield CheckResult(name, True, email)
    try:
        allowed = _allowed(api, "iam", identity.path(email), [permissions.ACT_AS])
    except ProviderError as error:
        yield CheckResult(permissions.ACT_AS, None, f"not known: {error_text(error)}", TRY_LATER)
        return
    if permissions.ACT_AS in allowed:
        yield CheckResult(permissions.ACT_AS, True, "allowed")
        return
    grant = (
        f"gcloud iam service-accounts add-iam-policy-binding {email} --role roles/iam.serviceAccountUser"
        f" --member user:YOU --project {place.project}"
    )
    yield CheckResult(permissions.ACT_AS, False, f"denied: no machine can be given {email}", grant)


def bucket_results(api: Api, provider: str, store: str) -> Iterator[CheckResult]:
    """Check the bucket's own settings. That the bucket can be written was tried before."""
    try:
        registry.check_store(provider, store)
    except UserError as error:
        detail, _, fix = str(error).removeprefix("--store: ").partition("; ")
        yield CheckResult("bucket", False, detail, fix)
        return
    if emulator_address():
        return  # Storage that is not Google's has no such settings.
    name = store.removeprefix("gs://").partition("/")[0]
    try:
        found = api.send("GET", f"/storage/v1/b/{name}", service="storage", what=f"gs://{name}")
    except ProviderError as error:
        # A caller may use a bucket without the permission to read its settings: that is no problem.
        if not isinstance(error, (AuthDenied, NotFound)):
            yield CheckResult("bucket", None, error_text(error), TRY_LATER)
        return
    uniform = (found.get("iamConfiguration") or {}).get("uniformBucketLevelAccess") or {}
    retained_s = int((found.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if not uniform.get("enabled"):
        fix = f"gcloud storage buckets update gs://{name} --uniform-bucket-level-access"
        yield CheckResult("bucket", False, f"{name} has no uniform access: no role can be limited to a folder", fix)
    elif retained_s:
        detail = (
            f"{name} keeps what was removed, and charges for it, {retained_s // 86400} days:"
            " old checkpoints, heartbeats"
        )
        yield CheckResult("bucket", None, detail, f"gcloud storage buckets update gs://{name} --clear-soft-delete")
    else:
        yield CheckResult("bucket", True, f"{name} in {str(found.get('location', '')).lower()}, with uniform access")


def _allowed_on_machine(api: Api, project: str, machine: str, wanted: list[str]) -> set[str]:
    """The permissions on one machine: the project lacks those that were granted for some machines alone."""
    zone, number = places.split_id(machine)
    path = f"/compute/v1/projects/{project}/zones/{zone}/instances/{number}/testIamPermissions"
    try:
        return set(api.send("POST", path, {"permissions": wanted}).get("permissions") or ())
    except ProviderError:
        return set()


def _allowed(api: Api, service: Service, path: str, wanted: list[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(wanted), _MOST_PERMISSIONS):
        some = {"permissions": wanted[start : start + _MOST_PERMISSIONS]}
        answer = api.send("POST", f"{path}:testIamPermissions", some, service=service, what=service)
        found |= set(answer.get("permissions") or ())
    return found
