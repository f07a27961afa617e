"""The plan of a job, shown before anything is spent."""

from __future__ import annotations

import sys

import click

from stoker.cli.printing import counted, dollars, duration, say, size, table, warn
from stoker.errors import UserError
from stoker.model import Offering
from stoker.spec import Spec
from stoker.submitting import Prepared

_MOST_OFFERINGS = 5


def show_plan(prepared: Prepared) -> None:
    """Offerings with their prices, the worst case, what was packed and what was filled in. On stderr."""
    spec = prepared.spec
    say(f"{click.style(spec.name, bold=True)}  {counted(spec.nodes, 'node')} on {spec.resources.provider}")
    say(table((), [[f"  {line}" for line in row] for row in offering_rows(prepared.offerings, spec.nodes)]))
    say(f"  worst case: {worst_case(spec, prepared.offerings)}")
    packed = prepared.packed
    if packed is not None:
        revision = ""
        if packed.commit is not None:
            revision = f", commit {packed.commit[:9]}{' with changes' if packed.dirty else ''}"
        say(f"  code: {counted(packed.files, 'file')}, {size(packed.size)} packed{revision}")
        for text in packed.warnings:
            warn(text)
    for text in prepared.told:
        warn(text)


def offering_rows(offerings: tuple[Offering, ...], nodes: int = 1) -> list[list[str]]:
    """Spot against on-demand, $/h for all nodes together."""
    rows = []
    for offering in offerings[:_MOST_OFFERINGS]:
        price = "price unknown" if offering.price is None else f"{dollars(offering.price * nodes)}/h"
        against = ""
        if offering.spot and offering.price is not None and offering.on_demand_price:
            share = 1 - offering.price / offering.on_demand_price
            against = f"on-demand {dollars(offering.on_demand_price * nodes)}/h, saves {share:.0%}"
        kind = "spot" if offering.spot else "on-demand"
        rows.append([f"{offering.machine} in {offering.zone}", kind, price, against])
    return rows


def worst_case(spec: Spec, offerings: tuple[Offering, ...]) -> str:
    """The most that the bounds allow to be spent, and which bound that is."""
    bounds: list[tuple[float, str]] = []
    limits = spec.limits
    if limits.max_cost is not None:
        bounds.append((limits.max_cost, "limits.max_cost"))
    dearest = _dearest(offerings)
    if dearest == 0:
        return "it costs nothing"
    if limits.max_runtime_s is not None and dearest is not None:
        hours = limits.max_runtime_s / 3600
        what = f"{duration(limits.max_runtime_s)} of training at {dollars(dearest * spec.nodes)}/h"
        bounds.append((dearest * spec.nodes * hours, what))
    if bounds:
        amount, why = min(bounds)
        return f"{dollars(amount)} ({why})"
    if dearest is None:
        return "unknown: a price is not known; set limits.max_runtime to bound the time at least"
    return f"no bound is set; {dollars(dearest * spec.nodes)} an hour"


def _dearest(offerings: tuple[Offering, ...]) -> float | None:
    """$/h of the dearest offering that may be used; None when some price is not known."""
    prices = [offering.price for offering in offerings]
    known = [price for price in prices if price is not None]
    return max(known) if known and len(known) == len(prices) else None


def agree(prepared: Prepared, *, yes: bool) -> None:
    """Ask before money is spent. Raises UserError when there is nobody to ask, Abort when the answer is no."""
    if not prepared.capabilities.paid or yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this job costs money and there is no terminal to ask on; -y agrees to it")
    click.confirm("Start it?", abort=True, err=True)
