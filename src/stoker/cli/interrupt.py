"""`stoker interrupt`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, complete_node, has_machine
from stoker.cli.options import DURATION, job_argument_of, opened_store, store_option


@click.command("interrupt")
@job_argument_of(complete_jobs_that(has_machine))
@click.option(
    "--node",
    type=click.IntRange(min=0),
    default=0,
    metavar="R",
    shell_complete=complete_node,
    help="Which node; 0 by default.",
)
@click.option("--grace", "grace_s", type=DURATION, default="30s", metavar="TIME", help="Time to save; 30s by default.")
@store_option
def command(job: str, node: int, grace_s: float) -> None:
    """Rehearse a reclaim: give a node a notice, and take it away when the grace is over.

    On EC2 through the Fault Injection Service, where the grace is 2 minutes at least. On Compute Engine by a simulated
    maintenance event, where the grace is what the machine was launched with, 2 minutes, and --grace is not used. Where
    that is not allowed, and for machines that are not spot, the machine is ended at once. It says which.
    """
    from stoker import client
    from stoker.cli.format import duration, legible, say, tell_problem
    from stoker.governor.background import carry_on
    from stoker.store.find_job import find_job

    store = opened_store()
    found = client.find_node(find_job(store, job), store, node)
    told = client.rehearse(found, grace_s)
    tell_problem(carry_on(store, [found.job]))
    taken = f"node {node} of {found.job} has its notice: its machine is taken away in {duration(grace_s)}"
    say(legible(told) if told else taken)
