"""`stoker compare`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from stoker.cli.options import jobs_argument, json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.reading.compare import JobRow, Table
    from stoker.reading.metrics import Metrics
    from stoker.store import Store
    from stoker.summary import Summary


@dataclass(frozen=True)
class Compared:
    """One job with all that it measured."""

    summary: Summary
    metrics: Metrics


@click.command("compare")
@jobs_argument()
@click.option("--metric", metavar="M", help="Draw this metric; by default the first that all of them have.")
@json_option
@store_option
def command(jobs: tuple[str, ...], metric: str | None, as_json: bool) -> None:
    """Put jobs side by side: parameters (what differs first), metrics, duration, cost; and draw their curves."""
    from stoker.cli.printing import print_json, say, whole
    from stoker.finding import find_job
    from stoker.reading.compare import comparison

    store = opened_store()
    found = list(dict.fromkeys(find_job(store, job) for job in jobs))
    compared = [_read(store, job) for job in found]
    chosen = _chosen(compared, metric)
    table = comparison([_row(one) for one in compared])
    if as_json:
        print_json([{"id": one.summary.id, **whole(_row(one)), "name": one.summary.name} for one in compared])
        return
    click.echo(_text(table))
    if chosen is not None:
        click.echo()
        click.echo(_picture(compared, chosen))
    else:
        say("no metrics to draw: `train.report(step=…, loss=…)` gives them, or `metrics` in the job file")


def _read(store: Store, job: str) -> Compared:
    from stoker import client, log
    from stoker.cli.following import node_logs
    from stoker.reading.metrics import read_metrics

    state = log.read(store, job)
    return Compared(client.summary(job, store), read_metrics(store, job, node_logs(state) if state else []))


def _row(one: Compared) -> JobRow:
    from stoker.cli.report import lasted_s
    from stoker.reading.compare import JobRow, final_and_best

    summary = one.summary
    final, best = final_and_best(one.metrics.series)
    saved = None
    if summary.cost is not None and summary.on_demand_cost is not None:
        saved = summary.on_demand_cost - summary.cost
    return JobRow(
        name=summary.id,
        params=summary.params,
        final=final,
        best=best,
        duration_s=lasted_s(summary),
        attempts=len(summary.attempts),
        cost=summary.cost,
        savings=saved,
    )


def _chosen(compared: list[Compared], metric: str | None) -> str | None:
    from stoker.errors import UserError

    known = list(dict.fromkeys(name for one in compared for name in one.metrics.series))
    if metric is not None:
        if metric not in known:
            raise UserError(f"--metric {metric}: none of these jobs has it; there are: {', '.join(known) or 'none'}")
        return metric
    shared = [name for name in known if all(name in one.metrics.series for one in compared)]
    ordered = shared or known
    # A loss says most about a training.
    return next((name for name in ordered if "loss" in name.lower()), ordered[0] if ordered else None)


def _text(table: Table) -> str:
    from stoker.cli.printing import table as text_table

    rows = []
    for line in table.lines:
        label = click.style(line.label, bold=line.differs and line.kind == "param")
        cells = [
            click.style(cell, fg="green") if number == line.best else cell for number, cell in enumerate(line.cells)
        ]
        rows.append([label, *cells])
    return text_table(("", *table.jobs), rows)


def _picture(compared: list[Compared], metric: str) -> str:
    from stoker.reading.compare import curve, curve_of

    curves = [curve_of(one.metrics.series[metric], one.summary.id) for one in compared if metric in one.metrics.series]
    marks = [
        float(attempt.step)
        for one in compared
        for attempt in one.summary.attempts
        if attempt.outcome == "reclaimed" and attempt.step is not None
    ]
    wide = min(100, shutil.get_terminal_size().columns)
    return f"{metric}\n{curve(curves, marks, width=wide, color=sys.stdout.isatty())}"
