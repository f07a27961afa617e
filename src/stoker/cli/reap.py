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

# Terminating is asking; it is asked again until the machine is gone, or this long.
_MOST_S = 30.0


@click.command("reap")
@click.option("--dry-run", is_flag=True, help="List them, and touch nothing.")
@json_option
@store_option
def command(dry_run: bool, as_json: bool) -> None:
    """End what carries this store's tag and no live claim of any job owns: machines, disks, placement groups;
    and alarms of training jobs of others that are over."""
    from stoker.cli.format import print_json, whole
    from stoker.external_jobs.govern import sweep as sweep_alarms
    from stoker.governor.connected_providers import Fleet
    from stoker.governor.leftovers import sweep

    store = opened_store()
    fleet = Fleet(store.url)
    orphans, young, problems = find_orphans(store, fleet)
    for orphan in () if as_json else orphans:
        click.echo(f"{orphan.provider} {orphan.instance}: {orphan.reason}")
    for name, text in problems.items():
        click.secho(f"{name}: {text}", fg="yellow", err=True)
    left = [] if dry_run else _end(orphans, fleet)
    # After the machines: what they used is free then.
    beside = [sweep(store, fleet, place, dry=dry_run) for place in sorted(_places(store), key=str)]
    things = [found for swept in beside for found in swept.found]
    alarms = sweep_alarms(store, dry=dry_run)
    if as_json:
        others = ({"alarm": name, "reason": reason} for name, reason in alarms.found)
        print_json([*map(whole, orphans), *({**whole(thing), "reason": reason} for thing, reason in things), *others])
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
        click.echo("everything has its owner")
    for orphan in left:
        click.secho(f"{orphan.instance}: was asked to end and is not gone yet", fg="yellow", err=True)


def find_orphans(store: Store, fleet: Fleet) -> tuple[list[Terminate], list[Instance], dict[str, str]]:
    """The machines that nobody may keep, those that are too young to tell, and what could not be looked at. The clouds
    are listed before the logs."""
    from stoker.core import orphans
    from stoker.governor.observe import Listing, Memory, observe
    from stoker.governor.store_clock import governor_name, read_clock
    from stoker.model.observed import Known, Observed, Unknown

    listed: dict[tuple[str, str | None], Observed[tuple[Instance, ...]]] = {}
    problems: dict[str, str] = {}
    for place in sorted(_places(store), key=str):
        name, region = place
        try:
            listed[place] = Known(fleet.provider(name).list_instances(region))
        except Exception as error:  # noqa: BLE001 - somebody else's provider; one that fails hides no other
            listed[place] = Unknown(str(error))
            problems[f"{name} {region or ''}".strip()] = str(error)
    observation = observe(store, fleet, Memory(), {}, Listing(listed))
    # A hold is counted by the store's clock, by everybody.
    now = read_clock(store, governor_name(), time.monotonic).now()
    found = [orphan for job in observation.snapshot.jobs for orphan in orphans.sweep(job, now)]
    found += orphans.strays(observation.snapshot, now)
    return found, orphans.too_young(observation.snapshot, now), problems | observation.problems


def _places(store: Store) -> set[tuple[str, str | None]]:
    """Everywhere that machines of this store were launched, and what costs nothing to look at."""
    from stoker.governor.observe import known_places
    from stoker.providers import registry

    return known_places(store) | {(name, None) for name in registry.names() if not registry.capabilities(name).paid}


def _end(orphans: list[Terminate], fleet: Fleet) -> list[Terminate]:
    """Ask until they are gone. Answers those that are not."""
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
