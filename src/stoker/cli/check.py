"""`stoker check`: whether everything is there that a job needs; each failure with what to do."""

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
    from stoker.jobfile import Layer
    from stoker.model.spec import Spec
    from stoker.providers.base import Finding, Provider
    from stoker.store.base import Store

_LITTLE_DISK_BYTES = 2 * 1000**3
# What a bucket needs as its cloud does, by what findings of clouds are called.
_SHARED = ("boto3", "stoker[gcp]", "credentials")


@click.command("check")
@click.argument("provider", required=False, shell_complete=complete_provider)
@set_option
@json_option
@store_option
def command(provider: str | None, sets: tuple[str, ...], as_json: bool) -> int:
    """See whether this computer, the store and PROVIDER (local by default) are fit for jobs.

    For a job such as the settings, the job file in this folder and --set describe. Makes no machine and ends none.
    Exits with 0 only when nothing failed; what could not be told (!) is no failure.
    """
    from stoker.cli.format import print_json, whole
    from stoker.providers import registry

    store = opened_store()
    connected = registry.connect(provider or "local", registry.Context(store=store.url))
    found = []
    for _, kind in groupby(_findings(store, connected, sets), _kind):
        alike = list(kind)
        found += alike
        if not as_json:
            _print_together(alike)
    if as_json:
        print_json([whole(finding) for finding in found])
    return 2 if any(finding.ok is False for finding in found) else 0


def _findings(store: Store, provider: Provider, sets: tuple[str, ...]) -> Iterator[Finding]:
    from stoker.providers.base import Finding

    yield check_python()
    yield check_groups()
    yield check_disk()
    first = check_store(store)
    if first.ok is not False:
        yield first
        yield from check_provider(provider, store, sets)
        return
    rest = list(check_provider(provider, store, sets))
    # A bucket needs the same: one failure, one fix.
    lacking = next((each.name for each in rest if each.name in _SHARED and each.ok is False), None)
    yield first if lacking is None else Finding("store", None, f"{store.url} cannot be tried without {lacking}")
    yield from rest


# ── What people see ───────────────────────────────────────────────────────────────────────────────────────────────────

# An operation of a cloud, which may be done or not.
_OPERATION = re.compile(r"[a-z0-9-]+:[A-Z]\w+|[a-z]+(\.[a-zA-Z]+){2}")


def _kind(finding: Finding) -> str:
    """What findings have in common that are told together."""
    if _OPERATION.fullmatch(finding.name):
        return "may"
    return finding.name.partition(" of ")[0]


def _print_together(alike: list[Finding]) -> None:
    """What is as it should be, and what could not be told for one and the same reason, is one line each."""
    fine = [finding for finding in alike if finding.ok]
    if len(fine) > 1:
        _print(_permitted(len(fine), len(alike)) if _kind(fine[0]) == "may" else _joined(fine))
    told: set[tuple[str, str]] = set()
    for finding in alike:
        reason = (finding.detail, finding.fix)
        if finding.ok is False or (finding.ok and len(fine) == 1):
            _print(finding)
        elif finding.ok is None and reason not in told:
            told.add(reason)
            _print(_joined([other for other in alike if other.ok is None and (other.detail, other.fix) == reason]))


def _permitted(allowed: int, asked: int) -> Finding:
    """What whoever looks may do, in one line: the names are for --json, and for those that are missing."""
    from stoker.providers.base import Finding

    count = f"all {asked}" if allowed == asked else f"{allowed} of the {asked}"
    return Finding("may", True, f"{count} that a governor needs")


def _joined(alike: list[Finding]) -> Finding:
    """Findings of one kind as one. Where they are fine, each may have a detail of its own."""
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


def _print(finding: Finding) -> None:
    from stoker.cli.format import legible

    sign, colour = {True: ("✓", "green"), False: ("✗", "red"), None: ("!", "yellow")}[finding.ok]
    click.echo(f"{click.style(sign, fg=colour)} {finding.name}: {legible(' '.join(finding.detail.split()))}")
    if not finding.ok and finding.fix:
        click.echo(f"    {legible(finding.fix)}")


# ── What is looked at ─────────────────────────────────────────────────────────────────────────────────────────────────


def check_python() -> Finding:
    from stoker.providers.base import Finding

    version = ".".join(map(str, sys.version_info[:3]))
    fit = sys.version_info >= (3, 10)
    return Finding("python", fit, f"{version} at {sys.executable}", "install Python 3.10 or newer")


def check_groups() -> Finding:
    """How processes of a node are held together."""
    from stoker.processes import NODE, make_group
    from stoker.providers.base import Finding

    group = make_group(NODE, f"check-{secrets.token_hex(4)}")
    folder = group.folder
    group.close()
    if folder is not None:
        return Finding("processes", True, "each node in a cgroup of its own")
    return Finding(
        "processes",
        None,
        "no cgroup can be made here; nodes are held together by two subreapers and by sessions. Not promised: that a "
        "process is found which clears its environment and daemonises, if both subreapers are killed within a second",
        "for that, run as root, or under `systemd-run --user --scope -p Delegate=yes`",
    )


def check_disk() -> Finding:
    from stoker.cli.format import size
    from stoker.providers.base import Finding
    from stoker.store.home import home

    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Finding(
        "disk", free > _LITTLE_DISK_BYTES, f"{size(free)} free for {home()}", "free some, or set STOKER_HOME"
    )


def check_store(store: Store) -> Finding:
    """Write, write the same again only if absent, read and delete."""
    from stoker.model.errors import StokerError
    from stoker.providers.base import Finding

    key = f"check/{secrets.token_hex(8)}"
    fix = "choose another with --store or STOKER_STORE, or correct its permissions"
    try:
        first = store.create(key, b"first")
        second = store.create(key, b"second")
        found = store.get(key)
        store.delete([key])
    except StokerError as error:
        detail = str(error)
        return Finding("store", False, detail if store.url in detail else f"{store.url}: {detail}", fix)
    if not first or second or found is None or found.data != b"first":
        problem = "does not honour create-if-absent, which keeps two governors apart"
        return Finding(
            "store", False, f"{store.url}: {problem}", "use a folder, or a bucket of S3 or Cloud Storage itself"
        )
    return Finding("store", True, f"{store.url} can be written, and creates only what is absent")


def check_provider(provider: Provider, store: Store, sets: tuple[str, ...]) -> Iterator[Finding]:
    """What the provider itself can tell; else whether it answers at all."""
    from stoker.model.errors import UserError
    from stoker.model.spec import Resources, Spec
    from stoker.providers.base import Checkup, Finding

    spec = Spec(name="check", run="true", resources=Resources(provider=provider.name))
    try:
        spec = _wanted(provider.name, store, sets)
    except UserError as error:
        if sets:
            raise
        yield Finding("settings", False, str(error), "correct them, or look from another folder")
    if isinstance(provider, Checkup):
        yield from provider.checkup(spec)
    else:
        yield from _plain(provider, spec)


def _wanted(name: str, store: Store, sets: tuple[str, ...]) -> Spec:
    """A job as the settings describe it. A job file that is for another provider says nothing here."""
    from stoker.jobfile import find_job_file, gather, layer_of, parse_job, resolve
    from stoker.model import keys
    from stoker.model.errors import StoreError
    from stoker.providers import registry

    try:
        house = store.get(keys.DEFAULTS)
    except StoreError:
        house = None  # It does not answer, which was said above; the job in this folder is looked at all the same.
    first = layer_of({"run": "true", "resources": {"provider": name}}, "check")

    def layers(job_file: bool) -> tuple[Layer, ...]:
        path = find_job_file() if job_file else None
        return (first, *gather(job_file=path, house=house.data if house is not None else None, sets=sets))

    fitting = parse_job(layers(True)).resources.provider == name
    forced = layer_of({"resources": {"provider": name}}, "check")
    return resolve((*layers(fitting), forced), registry.capabilities).spec


def _plain(provider: Provider, spec: Spec) -> Iterator[Finding]:
    from stoker.model.errors import ProviderError
    from stoker.providers.base import Finding

    name = provider.name
    fix = f"check the credentials and the network for {name}"
    try:
        count = sum(1 for instance in provider.list_instances() if instance.state != "gone")
        yield Finding(name, True, f"answers; {count} machine{'' if count == 1 else 's'} of this store")
        found = provider.offerings(spec.resources)
    except ProviderError as error:
        yield Finding(name, False, str(error), fix)
        return
    gpus = next((f"{offer.gpus} × {offer.gpu}" for offer in found if offer.gpus), "no GPU")
    cpus = max((offer.cpus or 0 for offer in found), default=0)
    yield Finding(f"{name} offers", True, f"{len(found)} offerings, up to {cpus} CPUs, {gpus}")
