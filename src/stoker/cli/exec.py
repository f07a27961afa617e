"""`stoker exec`."""

from __future__ import annotations

import click

from stoker.cli.completers import can_be_visited, complete_jobs_that
from stoker.cli.options import TrailingCommand, job_argument_of, store_option, trailing
from stoker.cli.ssh_options import visit_options


@click.command("exec", cls=TrailingCommand)
@job_argument_of(complete_jobs_that(can_be_visited))
@visit_options
@store_option
def command(job: str, node: int, user: str | None, identity: str | None, via: str | None) -> int:
    """Run a command on a machine of JOB, in the code folder, with the environment of its training.

    Exits with the command's own status. `stoker exec JOB -- bash` is a shell there, where there is a terminal.
    """
    from stoker.cli.ssh_options import has_terminal, visit
    from stoker.model.errors import UserError
    from stoker.providers.base import Visit

    words = trailing()
    if not words:
        raise UserError("name a command: stoker exec JOB -- COMMAND…")
    wanted = Visit(command=tuple(words), user=user, identity=identity, via=via, terminal=has_terminal())
    return visit(job, node, wanted)
