"""`stoker check`: whether everything is there that a job needs; each failure with what to do."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from stoker.cli.options import json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.store import Store

_LITTLE_DISK_BYTES = 2 * 1000**3


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `fix` says what to do where it is not as it should be."""

    what: str
    ok: bool
    found: str
    fix: str = ""
    # Works, but not as well as it could.
    needed: bool = True


@click.command("check")
@click.argument("provider", required=False)
@json_option
@store_option
def command(provider: str | None, as_json: bool) -> int:
    """See whether this computer, the store and PROVIDER (local by default) are fit for jobs."""
    from stoker.cli.printing import print_json, whole

    store = opened_store()
    of_provider = check_provider(provider or "local", store)
    checks = [
        check_python(),
        check_groups(),
        check_disk(),
        check_store(store),
        *of_provider,
    ]
    if as_json:
        print_json([whole(check) for check in checks])
    else:
        for check in checks:
            _print(check)
    return 0 if all(check.ok or not check.needed for check in checks) else 2


def _print(check: Check) -> None:
    sign = (
        click.style("✓", fg="green")
        if check.ok
        else click.style("✗" if check.needed else "!", fg="red" if check.needed else "yellow")
    )
    click.echo(f"{sign} {check.what}: {check.found}")
    if not check.ok and check.fix:
        click.echo(f"    {check.fix}")


def check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(
        "python", sys.version_info >= (3, 10), f"{version} at {sys.executable}", "install Python 3.10 or newer"
    )


def check_groups() -> Check:
    """How processes of a node are held together."""
    from stoker.processes import NODE, make_group

    group = make_group(NODE, f"check-{secrets.token_hex(4)}")
    folder = group.folder
    group.close()
    if folder is not None:
        return Check("processes", True, "each node in a cgroup of its own")
    return Check(
        "processes",
        False,
        "no cgroup can be made here; nodes are held together by sessions and a subreaper",
        "that is enough; for cgroups run as root, or under `systemd-run --user --scope -p Delegate=yes`",
        needed=False,
    )


def check_disk() -> Check:
    from stoker.cli.printing import size
    from stoker.home import home

    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return Check("disk", free > _LITTLE_DISK_BYTES, f"{size(free)} free for {home()}", "free some, or set STOKER_HOME")


def check_store(store: Store) -> Check:
    """Write, write the same again only if absent, read and delete."""
    from stoker.errors import StokerError

    key = f"check/{secrets.token_hex(8)}"
    fix = "choose another with --store or STOKER_STORE, or correct its permissions"
    try:
        first = store.create(key, b"first")
        second = store.create(key, b"second")
        found = store.get(key)
        store.delete([key])
    except StokerError as error:
        return Check("store", False, f"{store.url}: {error}", fix)
    if not first or second or found is None or found.data != b"first":
        problem = "does not honour create-if-absent, which keeps two governors apart"
        return Check("store", False, f"{store.url}: {problem}", "use a folder or a bucket of S3 itself")
    return Check("store", True, f"{store.url} can be written, and creates only what is absent")


def check_provider(name: str, store: Store) -> list[Check]:
    from stoker.errors import ProviderError
    from stoker.providers import registry
    from stoker.spec import Resources

    provider = registry.connect(name, registry.Context(store=store.url))

    def attempt(what: str, call: Callable[[], str], fix: str) -> Check:
        try:
            return Check(what, True, call())
        except ProviderError as error:
            return Check(what, False, str(error), fix)

    def machines() -> str:
        count = sum(1 for instance in provider.list_instances() if instance.state != "gone")
        return f"answers; {count} machine{'' if count == 1 else 's'} of this store"

    def offers() -> str:
        found = provider.offerings(Resources(provider=name))
        gpus = next((f"{offer.gpus} × {offer.gpu}" for offer in found if offer.gpus), "no GPU")
        cpus = max((offer.cpus or 0 for offer in found), default=0)
        return f"{len(found)} offerings, up to {cpus} CPUs, {gpus}"

    fix = f"check the credentials and the network for {name}"
    return [attempt(name, machines, fix), attempt(f"{name} offers", offers, fix)]
