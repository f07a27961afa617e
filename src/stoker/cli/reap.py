"""`stoker reap`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from stoker.cli.options import json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.core.snapshot import Terminate
    from stoker.governor.connected_providers import Fleet
    from stoker.model.offerings import Instance
    from stoker.store.base import Store

# A termination is only a request: it is repeated until the machine is gone, or for this long.
_MOST_S = 30.0


@click.command("reap")
@click.option("--dry-run", is_flag=True, help="List them without ending anything.")
@json_option
@store_option
def command(dry_run: bool, as_json: bool) -> None:
    """Remove machines, disks and placement groups that carry this store's tag and belong to no running attempt.

    Also removed are alarms with this tag that no running external training job needs. Machines that are held for
    debugging, and things too new to be judged, are left alone.
    """
    from stoker.cli.format import print_json, to_json
    from stoker.external_jobs.govern import sweep as sweep_alarms
    from stoker.governor.connected_providers import Fleet
    from stoker.governor.leftovers import sweep
    from stoker.store.store_clock import read_clock

    store = opened_store()
    fleet = Fleet(store.url)
    orphans, young, problems = find_orphans(store, fleet)
    for orphan in () if as_json else orphans:
        click.echo(f"{orphan.provider} {orphan.instance}: {orphan.reason}")
    for name, text in problems.items():
        click.secho(f"{name}: {text}", fg="yellow", err=True)
    left = [] if dry_run else _end(orphans, fleet)
    # After the machines: their disks and groups are free then.
    now = read_clock(store).now
    beside = [sweep(store, fleet, place, now, dry=dry_run) for place in sorted(_places(store), key=str)]
    things = [found for swept in beside for found in swept.found]
    alarms = sweep_alarms(store, dry=dry_run)
    if as_json:
        others = ({"alarm": name, "reason": reason} for name, reason in alarms.found)
        print_json(
            [*map(to_json, orphans), *({**to_json(thing), "reason": reason} for thing, reason in things), *others]
        )
    for thing, reason in () if as_json else things:
        click.echo(f"{thing.provider} {thing.kind} {thing.id}: {reason}")
    for name, reason in () if as_json else alarms.found:
        click.echo(f"sagemaker alarm {name}: {reason}")
    for name, text in alarms.problems.items():
        click.secho(f"{name}: {text}", fg="yellow", err=True)
    for swept in beside:
        for name, text in swept.problems.items():
            click.secho(f"{name}: {text}", fg="yellow", err=True)
    for instance in young:
        born = f"{instance.created_at:%H:%M:%S} UTC"
        made = f"belongs to no known attempt, but was made at {born}"
        text = f"{instance.provider} {instance.id}: {made}; too new to be judged"
        click.secho(text, fg="yellow", err=True)
    if not orphans and not things and not alarms.found and not young and not as_json:
        click.echo("nothing to end: every machine belongs to a job")
    for orphan in left:
        click.secho(f"{orphan.instance}: termination requested, not gone yet", fg="yellow", err=True)


def find_orphans(store: Store, fleet: Fleet) -> tuple[list[Terminate], list[Instance], dict[str, str]]:
    """The machines that no job owns, those that are too new to be judged, and problems by name.

    The clouds are listed before the logs are read.
    """
    from stoker.core import unowned_machines
    from stoker.governor.observe import Memory, list_clouds, observe
    from stoker.governor.pass_record import governor_name
    from stoker.model.observed import Unknown
    from stoker.store.store_clock import read_clock

    listing = list_clouds(store, fleet, Memory(), (), _places(store))
    problems = {
        f"{name} {region or ''}".strip(): found.error
        for (name, region), found in listing.instances.items()
        if isinstance(found, Unknown)
    }
    observation = observe(store, fleet, Memory(), {}, listing)
    # All governors measure a hold by the store's clock.
    now = read_clock(store, governor_name(), time.monotonic).now()
    found = [orphan for job in observation.snapshot.jobs for orphan in unowned_machines.find_unowned(job, now)]
    found += unowned_machines.find_strays(observation.snapshot, now)
    return found, unowned_machines.newborn_strays(observation.snapshot, now), problems | observation.problems


def _places(store: Store) -> set[tuple[str, str | None]]:
    """All places where machines of this store were launched, and the providers that cost nothing."""
    from stoker.governor.observe import known_places
    from stoker.providers import registry

    return known_places(store) | {(name, None) for name in registry.names() if not registry.capabilities(name).paid}


def _end(orphans: list[Terminate], fleet: Fleet) -> list[Terminate]:
    """Terminate machines until they are gone. Returns those that are not gone in time."""
    left = orphans
    deadline = time.monotonic() + _MOST_S
    while left:
        left = [
            orphan
            for orphan in left
            if fleet.provider(orphan.provider).terminate(orphan.instance, orphan.region) != "gone"
        ]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left
