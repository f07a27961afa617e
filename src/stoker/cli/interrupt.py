"""`stoker interrupt`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, has_machine
from stoker.cli.options import DURATION, job_argument_of, named_job, node_option, opened_store, store_option


@click.command("interrupt")
@job_argument_of(complete_jobs_that(has_machine))
@node_option("interrupt")
@click.option("--grace", "grace_s", type=DURATION, default="30s", metavar="TIME", help="Time to save; 30s by default.")
@store_option
def command(job: str, node: int, grace_s: float) -> None:
    """Rehearse a reclaim: give a node a notice, and take its machine away when the grace is over.

    EC2 uses the Fault Injection Service, with a grace of at least 2 minutes. Compute Engine simulates a maintenance
    event, with the 2 minutes of grace that the machine was launched with; --grace is ignored. Where that is not
    allowed, and for on-demand machines, the machine is ended at once. The command says which of these it did.
    """
    from stoker import client
    from stoker.cli.format import report_governor, say
    from stoker.governor.background import ensure_governed
    from stoker.read.format import duration
    from stoker.read.safe_text import legible

    store = opened_store()
    found = client.find_node(named_job(store, job), store, node)
    message = client.interrupt_machine(found, grace_s)
    report_governor(ensure_governed(store, [found.job]))
    taken = f"node {node} of {found.job} has its notice: its machine is taken away in {duration(grace_s)}"
    say(legible(message) if message else taken)
