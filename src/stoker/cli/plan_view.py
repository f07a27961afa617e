"""Show the plan of a job, and ask, before money is spent."""

from __future__ import annotations

import sys
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.format import counted, say, size, table, warn
from stoker.core.costs import in_dollars
from stoker.core.policy_rules import EffectiveLimits
from stoker.model.errors import UserError
from stoker.model.offerings import Offering, zone_text
from stoker.model.resources import Gpus, idle_gpus, short_region
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.price_book import OLD_DAYS
from stoker.read.format import duration
from stoker.submit.prepared_job import PreparedJob

if TYPE_CHECKING:
    from stoker.submit.ignored_files import IgnoredFiles
    from stoker.submit.uploads import Upload

_MOST_OFFERINGS = 5
# The worst case of free machines.
_FREE = "it costs nothing"


def show_plan(prepared: PreparedJob) -> None:
    """Print offerings with their prices, the worst case, the packed code, notes and warnings to stderr."""
    spec = prepared.spec
    say(f"{click.style(spec.name, bold=True)}  {counted(spec.nodes, 'node')} on {spec.resources.provider}")
    rows = offering_rows(prepared.offerings, spec.nodes, spec.resources.gpus)
    say(table((), [[f"  {line}" for line in row] for row in rows[:_MOST_OFFERINGS]]))
    if len(rows) > _MOST_OFFERINGS:
        say(f"  … and {len(rows) - _MOST_OFFERINGS} more; `stoker offers` lists them")
    worst = worst_case(spec, prepared.offerings, prepared.limits)
    say("  cost: none" if worst == _FREE else f"  worst case: {worst}")
    old = old_prices(prepared.offerings) if prepared.capabilities.paid else ""
    if old:
        say(f"  {old}")
    packed = prepared.packed
    if packed is not None:
        revision = ""
        if packed.commit is not None:
            revision = f", commit {packed.commit[:9]}{' with changes' if packed.dirty else ''}"
        say(f"  code: {counted(packed.files, 'file')}, {size(packed.size)} packed{revision}")
        for left_out in packed.ignored:
            (warn if left_out.by_accident else say)(f"{'' if left_out.by_accident else '  '}{left_out_text(left_out)}")
        for text in packed.warnings:
            warn(text)
    for upload in prepared.uploads:
        say(f"  inputs.{upload.name}: {counted(len(upload.files), 'file')}, {size(upload.size)}{_sent(upload)}")
    if prepared.wheels is not None:
        targets = ", ".join(sorted(prepared.wheels.wheels))
        say(f"  wheels: {counted(len(prepared.wheels.digests), 'file')}, {size(prepared.wheels.size)}, for {targets}")
    for text in prepared.notes:
        say(f"  {text}")
    for text in prepared.warnings:
        warn(text)


def left_out_text(left_out: IgnoredFiles) -> str:
    """`.gitignore leaves out 3 files, 1.2 GB, such as data/train.bin (1.1 GB); …`."""
    names = ", ".join(f"{name} ({size(each)})" for name, each in left_out.largest)
    links = ", ".join(left_out.links)
    least = "" if left_out.whole else "at least "
    counted_text = f"{least}{counted(left_out.files, 'file')}, {size(left_out.size)}: {names}"
    linked = f"{'links' if len(left_out.links) > 1 else 'the link'} {links}" if links else ""
    what = " and ".join(part for part in (counted_text if left_out.files else "", linked) if part)
    text = f"{left_out.by} leaves out {what}"
    if not left_out.by_accident:
        return text
    if not left_out.files:
        return f"{text}. If the script needs what they point to, name that under `inputs`"
    back = f"`{left_out.take_back}` in .stokerignore packs it"
    return f"{text}. If the script needs that, name it under `inputs`; {back} with the code"


def _sent(upload: Upload) -> str:
    if upload.to_send is None:
        return ", sent to the store once"
    if not upload.to_send:
        return ", in the store already"
    return f", {'all' if upload.to_send == upload.size else size(upload.to_send)} to be sent"


def offering_rows(offerings: tuple[Offering, ...], nodes: int = 1, gpus: Gpus | None = None) -> list[list[str]]:
    """A row for each machine and kind in its best zone, with $/h for all nodes together. `gpus` are those asked for."""
    groups: dict[tuple[str, str], list[Offering]] = {}
    for offering in offerings:
        groups.setdefault((offering.machine, offering.kind), []).append(offering)
    together = f" for {nodes} nodes" if nodes > 1 else ""
    rows = []
    for best, *others in groups.values():
        price = "price unknown" if best.price is None else f"{in_dollars(best.price * nodes)}/h{together}"
        if best.price == 0:
            price = "free"
        rows.append([f"{best.machine} in {_where(best, others)}", best.kind, price, _against(best, nodes)])
    idle = [idle_gpus(gpus, best.gpus) for best, *_ in groups.values()]
    if any(idle):
        counts = [f"{best.gpus} × {best.gpu}" for best, *_ in groups.values()]
        rows = [
            [machine, f"{count}, {unused} idle" if unused else count, *rest]
            for (machine, *rest), count, unused in zip(rows, counts, idle, strict=True)
        ]
    return rows


def _where(best: Offering, others: list[Offering]) -> str:
    """The zones of one machine and kind, and the regions where there are several: `3 zones in 2 regions, …`."""
    if not others:
        return zone_text(best.zone)
    regions = {each.region for each in (best, *others)}
    several = counted(len(regions), "region")
    if not best.zone:
        return f"{several}, {short_region(best.region or '')} first"
    zones = f"{len(others) + 1} zones" + (f" in {several}" if len(regions) > 1 else "")
    return f"{zones}, {best.zone} first"


def _against(offering: Offering, nodes: int) -> str:
    """The on-demand price of the same machine, beside a known spot price."""
    if not offering.spot or offering.price is None or not offering.on_demand_price:
        return ""
    share = round(1 - offering.price / offering.on_demand_price, 2)
    saves = f", saves {share:.0%}" if share > 0 else f"; spot costs {-share:.0%} more" if share < 0 else ""
    return f"on-demand {in_dollars(offering.on_demand_price * nodes)}/h{saves}"


def old_prices(offerings: tuple[Offering, ...], today: date | None = None) -> str:
    """A line about the age of the price table, where it is old."""
    best = offerings[0]
    try:
        found = registry.prices(best.provider).tables().get((best.region or "").rpartition("/")[2])
    except UserError:
        return ""  # The provider has no price table.
    days = ((today or datetime.now(timezone.utc).date()) - found.date).days if found is not None else 0
    if days <= OLD_DAYS:
        return ""
    what = "prices" if found is not None and found.spot else "on-demand prices"
    return f"{what} are {days} days old; `stoker prices --provider {best.provider} --refresh` fetches today's"


def worst_case(spec: Spec, offerings: tuple[Offering, ...], effective: EffectiveLimits | None = None) -> str:
    """The most dollars that the limits allow, and which limit that is. `effective` includes those of the policy."""
    bounds: list[tuple[float, str]] = []
    effective = effective or EffectiveLimits(spec, {})
    limits = effective.spec.limits
    if limits.max_cost is not None:
        bounds.append((limits.max_cost, effective.named("max_cost")))
    dearest, guessed = _dearest(offerings, spec.resources.max_price)
    if dearest == 0:
        return _FREE
    if_so = " if all of it were on-demand" if guessed else ""
    if limits.max_runtime_s is not None and dearest is not None:
        hours = limits.max_runtime_s / 3600
        what = f"{duration(limits.max_runtime_s)} of training at {in_dollars(dearest * spec.nodes)}/h{if_so}"
        if "max_runtime" in effective.by_rule:
            what += f", {effective.named('max_runtime')}"
        # How often and for how long cannot be known before.
        what += "; starting and saving come on top"
        bounds.append((dearest * spec.nodes * hours, what))
    if bounds:
        amount, why = min(bounds)
        return f"{'at most ' if if_so and if_so in why else ''}{in_dollars(amount)} ({why})"
    if dearest is not None:
        return f"no bound is set; {in_dollars(dearest * spec.nodes)} an hour{if_so}"
    if limits.max_runtime_s is None:
        return "unknown: a price is not known; set limits.max_runtime to bound the time at least"
    return f"unknown: a price is not known; training ends after {duration(limits.max_runtime_s)}"


def _dearest(offerings: tuple[Offering, ...], max_price: float | None) -> tuple[float | None, bool]:
    """$/h of the dearest offering that may be used, None where it is unknown; and whether it is a guess.

    For an unknown spot price the on-demand price is taken: the spot price is seldom higher, which will do for a plan.
    """
    most, guessed = 0.0, False
    for offering in offerings:
        price = offering.price
        if price is None:
            # The cloud gets max_price as the limit of its own bid.
            bounds = [bound for bound in (offering.on_demand_price, max_price) if bound is not None]
            if not bounds:
                return None, False
            price = min(bounds)
            guessed = guessed or price != max_price
        most = max(most, price)
    return most, guessed


def agree(prepared: PreparedJob, *, yes: bool) -> None:
    """Ask before money is spent. Raises UserError without a terminal, Exit when the answer is no."""
    if not prepared.capabilities.paid or yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this job costs money and there is no terminal to ask on; -y agrees to it")
    if not click.confirm("Start it?", err=True):
        say("not started")
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
