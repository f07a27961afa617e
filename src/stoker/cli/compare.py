"""`stoker compare`."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.completers import complete_metric
from stoker.cli.options import NamedPath, jobs_argument, json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.read.compare import ComparisonTable, JobRow
    from stoker.read.curves import Axis, ComparedJob, Comparison


@click.command("compare")
@jobs_argument()
@click.option(
    "--metric",
    metavar="M",
    shell_complete=complete_metric,
    help="The metric to draw and export; by default a loss, else the first metric that all jobs have.",
)
@click.option(
    "--over",
    type=click.Choice(("step", "epoch", "time")),
    help="The x axis; by default steps where all jobs report them, else epochs, else time.",
)
@click.option(
    "--csv",
    "csv_file",
    metavar="FILE",
    type=NamedPath(dir_okay=False, allow_dash=True, path_type=Path),
    help="Write the curves to FILE, one row for each value; - is stdout.",
)
@json_option
@store_option
def command(jobs: tuple[str, ...], metric: str | None, over: Axis | None, csv_file: Path | None, as_json: bool) -> None:
    """Compare jobs side by side: parameters (differing ones first), metrics, duration, cost; and draw their curves.

    A name stands for all jobs of that name, and a pattern such as 'gpt*' for all jobs that match.
    """
    from stoker import client
    from stoker.cli.format import counted, say
    from stoker.model.errors import UserError
    from stoker.read.compare import comparison

    if as_json and csv_file is not None:
        raise UserError("--csv and --json: give one of them")
    found = client.compare(jobs, store=opened_store())
    chosen = _chosen(found, metric)
    if as_json:
        _print_json(found, metric)
        return
    if csv_file is not None:
        count = _write_csv(found, csv_file, metric)
        if str(csv_file) != "-":
            say(f"{counted(count, 'value')} of {counted(len(found.jobs), 'job')} in {csv_file}")
        return
    click.echo(_text(comparison([_row(job) for job in found.jobs])))
    if chosen is not None:
        click.echo()
        click.echo(_picture(found, chosen, over))
    else:
        say("no metrics to draw: `train.report(step=…, loss=…)` gives them, or `metrics` in the job file")


def _write_csv(found: Comparison, path: Path, metric: str | None) -> int:
    from stoker.read.curves import write_csv

    if str(path) == "-":
        return write_csv(sys.stdout, found.points(metric))
    return found.to_csv(path, metric)


def _print_json(found: Comparison, metric: str | None) -> None:
    from stoker.cli.format import print_json, to_json

    print_json(
        [{"id": job.id, **to_json(_row(job)), "name": job.name, "series": _series(job, metric)} for job in found.jobs]
    )


def _series(job: ComparedJob, metric: str | None) -> dict[str, Any]:
    from stoker.model import codec

    return {
        name: [
            {
                "step": point.step,
                "epoch": point.epoch,
                "seconds": round(point.seconds, 3),
                "at": codec.dump(point.at),
                "attempt": point.attempt,
                # JSON has neither infinity nor NaN.
                "value": point.value if math.isfinite(point.value) else None,
            }
            for point in job.points(name)
        ]
        for name in job.metrics.series
        if metric in (None, name)
    }


def _row(job: ComparedJob) -> JobRow:
    from stoker.cli.job_report import lasted_s
    from stoker.read.compare import JobRow, final_and_best

    summary = job.summary
    final, best = final_and_best(job.metrics.series)
    saved = None
    if summary.priced and summary.cost is not None and summary.on_demand_cost is not None:
        saved = summary.on_demand_cost - summary.cost
    return JobRow(
        name=summary.id,
        params=summary.params,
        final=final,
        best=best,
        duration_s=lasted_s(summary),
        attempts=len(summary.attempts),
        cost=summary.cost if summary.priced else None,
        savings=saved,
    )


def _chosen(found: Comparison, metric: str | None) -> str | None:
    found.check_metric(metric, "--metric")
    if metric is not None:
        return metric
    known = found.metric_names
    shared = [name for name in known if all(name in job.metrics.series for job in found.jobs)]
    ordered = shared or known
    # A loss says the most about a training.
    return next((name for name in ordered if "loss" in name.lower()), ordered[0] if ordered else None)


def _text(table: ComparisonTable) -> str:
    from stoker.cli.format import table as text_table

    rows = []
    for line in table.lines:
        label = click.style(line.label, bold=line.differs and line.kind == "param")
        cells = [
            click.style(cell, fg="green") if number == line.best else cell for number, cell in enumerate(line.cells)
        ]
        rows.append([label, *cells])
    return text_table(("", *table.jobs), rows)


def _picture(found: Comparison, metric: str, over: Axis | None) -> str:
    from stoker.read.compare import curve
    from stoker.read.curves import choose_axis, drawing

    drawn = drawing(found.jobs, metric, choose_axis(found.jobs, metric, over))
    wide = min(100, shutil.get_terminal_size().columns)
    picture = curve(drawn.curves, drawn.marks, width=wide, color=sys.stdout.isatty(), x_label=drawn.label)
    return f"{metric}\n{picture}"
