"""`stoker check`: find out whether this computer, the store and a provider can run jobs."""

from __future__ import annotations

import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_provider
from stoker.cli.options import json_option, opened_store, set_option, store_option

if TYPE_CHECKING:
    from stoker.model.spec import Spec
    from stoker.providers.base import CheckResult, Provider, SupportsAccountCheck
    from stoker.store.base import Store

_LITTLE_DISK_BYTES = 2 * 1000**3
# Names of a cloud's findings that its buckets depend on as well.
_SHARED = ("boto3", "stoker[gcp]", "credentials")


@click.command("check")
@click.argument("provider", required=False, shell_complete=complete_provider)
@set_option
@json_option
@store_option
def command(provider: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """Check whether this computer, the store and PROVIDER (local by default) can run jobs.

    The checks are for the job that your settings, the job file in this folder and --set describe. No machine is started
    or ended. Exits with 0 unless a check fails (✗); a check without a result (!) is no failure.
    """
    from stoker.cli.format import print_json, to_json
    from stoker.providers import registry

    store = opened_store()
    connected = registry.connect(provider or "local", registry.Context(store=store.url))
    found = []
    for _, kind in groupby(_findings(store, connected, sets), lambda finding: (finding.region, _kind(finding))):
        alike = list(kind)
        found += alike
        if not as_json:
            _print_together(alike)
    if as_json:
        print_json([to_json(finding) for finding in found])
    return 2 if any(finding.ok is False for finding in found) else 0


def _findings(store: Store, provider: Provider, sets: tuple[str, ...]) -> Iterator[CheckResult]:
    from stoker.providers.base import CheckResult

    yield check_python()
    yield check_groups()
    yield check_disk()
    first = check_store(store)
    if first.ok is not False:
        yield first
        yield from check_provider(provider, store, sets)
        return
    rest = list(check_provider(provider, store, sets))
    # The bucket fails for the same reason as the cloud: report it once.
    lacking = next((each.name for each in rest if each.name in _SHARED and each.ok is False), None)
    yield first if lacking is None else CheckResult("store", None, f"{store.url} cannot be tried without {lacking}")
    yield from rest


# ── Output ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# The name of a cloud operation, which the credentials permit or not.
_OPERATION = re.compile(r"[a-z0-9-]+:[A-Z]\w+|[a-z]+(\.[a-zA-Z]+){2}")


def _kind(finding: CheckResult) -> str:
    """The kind of a finding. Consecutive findings of one kind are printed together."""
    if _OPERATION.fullmatch(finding.name):
        return "may"
    return finding.name.partition(" of ")[0]


def _print_together(alike: list[CheckResult]) -> None:
    """Print findings of one kind: one line for all that are fine, and one for each reason that left some unknown."""
    fine = [finding for finding in alike if finding.ok]
    if len(fine) > 1:
        _print(_permitted(fine, len(alike)) if _kind(fine[0]) == "may" else _joined(fine))
    printed: set[tuple[str, str]] = set()
    for finding in alike:
        reason = (finding.detail, finding.fix)
        if finding.ok is False or (finding.ok and len(fine) == 1):
            _print(finding)
        elif finding.ok is None and reason not in printed:
            printed.add(reason)
            _print(_joined([other for other in alike if other.ok is None and (other.detail, other.fix) == reason]))


def _permitted(fine: list[CheckResult], asked: int) -> CheckResult:
    """The permitted operations as one finding. Only missing ones are named; --json names all."""
    from dataclasses import replace

    count = f"all {asked}" if len(fine) == asked else f"{len(fine)} of the {asked}"
    return replace(fine[0], name="may", detail=f"{count} that a governor needs", fix="")


def _joined(alike: list[CheckResult]) -> CheckResult:
    """Several findings of one kind as one. Findings that are fine keep their own details."""
    from dataclasses import replace

    first = alike[0]
    if len(alike) == 1:
        return first
    head, of, _ = first.name.partition(" of ")
    start = head + of if of else ""
    names = [finding.name.removeprefix(start) for finding in alike]
    if not first.ok:
        return replace(first, name=start + ", ".join(names))
    if not of:
        return replace(first, detail=f"{', '.join(names)} ({len(names)})")
    details = (f"{name} ({finding.detail})" for name, finding in zip(names, alike, strict=True))
    return replace(first, name=head, detail=", ".join(details))


def _print(finding: CheckResult) -> None:
    from stoker.read.safe_text import legible

    sign, colour = {True: ("✓", "green"), False: ("✗", "red"), None: ("!", "yellow")}[finding.ok]
    name = f"{finding.region} {finding.name}" if finding.region else finding.name
    click.echo(f"{click.style(sign, fg=colour)} {name}: {legible(' '.join(finding.detail.split()))}")
    if not finding.ok and finding.fix:
        click.echo(f"    {legible(finding.fix)}")


# ── The checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_python() -> CheckResult:
    from stoker.providers.base import CheckResult

    version = ".".join(map(str, sys.version_info[:3]))
    fit = sys.version_info >= (3, 10)
    return CheckResult("python", fit, f"{version} at {sys.executable}", "install Python 3.10 or newer")


def check_groups() -> CheckResult:
    """Check how the processes of a node are kept together."""
    from stoker.processes import NODE, make_group
    from stoker.providers.base import CheckResult

    group = make_group(NODE, f"check-{secrets.token_hex(4)}")
    folder = group.folder
    group.close()
    if folder is not None:
        return CheckResult("processes", True, "each node in a cgroup of its own")
    return CheckResult(
        "processes",
        None,
        "no cgroup can be made here; two subreapers and sessions keep the processes of a node together. They miss a "
        "process that clears its environment and daemonises, if both subreapers are killed within a second",
        "for cgroups, run as root, or under `systemd-run --user --scope -p Delegate=yes`",
    )


def check_disk() -> CheckResult:
    from stoker.cli.format import size
    from stoker.providers.base import CheckResult
    from stoker.store.home import home

    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return CheckResult(
        "disk",
        free > _LITTLE_DISK_BYTES,
        f"{size(free)} free for {home()}",
        "free some space, or set STOKER_HOME to a folder on another disk",
    )


def check_store(store: Store) -> CheckResult:
    """Check that the store can be written, read and deleted from, and honours create-if-absent."""
    from stoker.model import keys
    from stoker.model.errors import StokerError
    from stoker.providers.base import CheckResult

    key = f"{keys.CHECKS}{secrets.token_hex(8)}"
    fix = "choose another store with --store or STOKER_STORE, or correct its permissions"
    try:
        first = store.create(key, b"first")
        second = store.create(key, b"second")
        found = store.get(key)
        store.delete([key])
    except StokerError as error:
        detail = str(error)
        return CheckResult("store", False, detail if store.url in detail else f"{store.url}: {detail}", fix)
    if not first or second or found is None or found.data != b"first":
        problem = "does not honour create-if-absent, which keeps two governors apart"
        return CheckResult(
            "store", False, f"{store.url}: {problem}", "use a folder, or a bucket of S3 or Cloud Storage itself"
        )
    return CheckResult("store", True, f"{store.url} can be written, and creates only what is absent")


def check_provider(provider: Provider, store: Store, sets: tuple[str, ...]) -> Iterator[CheckResult]:
    """The provider's own checks; for a provider without any, whether it answers at all."""
    from stoker.model.errors import UserError
    from stoker.model.resources import Resources
    from stoker.model.spec import Spec
    from stoker.providers.base import CheckResult, SupportsAccountCheck

    spec = Spec(name="check", run="true", resources=Resources(provider=provider.name))
    try:
        spec = _wanted_spec(provider.name, store, sets)
    except UserError as error:
        if sets:
            raise
        yield CheckResult("settings", False, str(error), "correct them, or run the check in another folder")
    if isinstance(provider, SupportsAccountCheck):
        yield from _in_each_region(provider, spec)
    else:
        yield from _generic_checks(provider, spec)


def _in_each_region(provider: SupportsAccountCheck, spec: Spec) -> Iterator[CheckResult]:
    """The provider's checks in each of the job's regions; what does not depend on the region, once."""
    from dataclasses import replace

    if not spec.resources.names_several:
        yield from provider.check_account(spec)
        return
    shared: set[str] = set()
    for region in spec.resources.regions:
        for finding in provider.check_account(replace(spec, resources=spec.resources.in_region(region))):
            if finding.name not in _SHARED:
                yield replace(finding, region=region)
            elif finding.name not in shared:
                shared.add(finding.name)
                yield finding


def _wanted_spec(provider: str, store: Store, sets: tuple[str, ...]) -> Spec:
    """A job on this provider as the settings describe it. A job file for another provider does not count."""
    from stoker.jobfile import find_job_file, job_layers, layer_of, parse_job, resolve, shared_layers
    from stoker.model.errors import StoreError
    from stoker.providers import registry

    try:
        shared = shared_layers(store)
    except StoreError:
        # The store does not answer, which the finding above says; the job in this folder is checked all the same.
        shared = shared_layers(None)
    below = (layer_of({"run": "true", "resources": {"provider": provider}}, "check"), *shared)
    own = job_layers(find_job_file(), sets)
    if parse_job((*below, *own)).resources.provider != provider:
        own = job_layers(None, sets)
    forced = layer_of({"resources": {"provider": provider}}, "check")
    return resolve((*below, *own, forced), registry.capabilities).spec


def _generic_checks(provider: Provider, spec: Spec) -> Iterator[CheckResult]:
    from stoker.model.errors import ProviderError
    from stoker.providers.base import CheckResult

    name = provider.name
    fix = f"check the credentials and the network for {name}"
    try:
        count = sum(1 for instance in provider.list_instances() if instance.state != "gone")
        yield CheckResult(name, True, f"answers; {count} machine{'' if count == 1 else 's'} of this store")
        found = provider.offerings(spec.resources)
    except ProviderError as error:
        yield CheckResult(name, False, str(error), fix)
        return
    gpus = next((f"{offer.gpus} × {offer.gpu}" for offer in found if offer.gpus), "no GPU")
    cpus = max((offer.cpus or 0 for offer in found), default=0)
    yield CheckResult(f"{name} offers", True, f"{len(found)} offerings, up to {cpus} CPUs, {gpus}")
