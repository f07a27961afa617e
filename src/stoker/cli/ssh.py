"""`stoker ssh`."""

from __future__ import annotations

import click

from stoker.cli.options import TrailingCommand, job_argument, store_option, trailing
from stoker.cli.visiting import visit_options


class _SshCommand(TrailingCommand):
    trails = "[-- SSH ARGUMENTS…]"


@click.command("ssh", cls=_SshCommand)
@job_argument
@click.option("-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a port of this computer.")
@visit_options
@store_option
def command(
    job: str, forwards: tuple[str, ...], node: int, user: str | None, identity: str | None, via: str | None
) -> int:
    """Open a shell on a machine of JOB, or forward its ports. Also on one that is held after a failure.

    By key pair, EC2 Instance Connect or SSM, whichever is open. What follows `--` goes to ssh itself, such as `-N`.
    """
    from stoker.cli.visiting import has_terminal, visit
    from stoker.providers.base import Visit

    options = [*(word for forward in forwards for word in ("-L", forward)), *(trailing() or ())]
    wanted = Visit(options=tuple(options), user=user, identity=identity, via=via, terminal=has_terminal())
    return visit(job, node, wanted)
