"""`stoker exec`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, has_shell
from stoker.cli.options import TrailingCommand, job_argument_of, store_option, trailing
from stoker.cli.ssh_connection import connect_options


@click.command("exec", cls=TrailingCommand)
@job_argument_of(complete_jobs_that(has_shell))
@connect_options
@store_option
def command(job: str, node: int, user: str | None, identity: str | None, via: str | None) -> int:
    """Run a command on a machine of JOB, in the code folder and the environment of its training.

    Exits with the command's own status. On a terminal, `stoker exec JOB -- bash` opens a shell.
    """
    from stoker.cli.ssh_connection import connect, has_terminal
    from stoker.model.errors import UserError
    from stoker.providers.base import ShellRequest

    words = trailing()
    if not words:
        raise UserError("name a command: stoker exec JOB -- COMMAND…")
    wanted = ShellRequest(command=tuple(words), user=user, identity=identity, via=via, terminal=has_terminal())
    return connect(job, node, wanted)
