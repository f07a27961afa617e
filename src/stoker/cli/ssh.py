"""`stoker ssh`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from stoker.cli.completers import can_be_visited, complete_jobs_that
from stoker.cli.options import TrailingCommand, job_argument_of, store_option, trailing
from stoker.cli.ssh_options import visit_options

# ssh's options that take a value: the next word, or the rest of theirs.
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")


class _SshCommand(TrailingCommand):
    trails = "[-- SSH ARGUMENTS…]"


@click.command("ssh", cls=_SshCommand)
@job_argument_of(complete_jobs_that(can_be_visited))
@click.option("-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a port of this computer.")
@visit_options
@store_option
def command(
    job: str, forwards: tuple[str, ...], node: int, user: str | None, identity: str | None, via: str | None
) -> int:
    """Open a shell on a machine of JOB, or forward its ports. Also on one that is held after a failure.

    With a key of yours or one that is lent, straight or through SSM or IAP, whichever is open. What follows `--` goes
    to ssh itself, such as `-N`.
    """
    from stoker.cli.ssh_options import has_terminal, visit
    from stoker.model.errors import UserError
    from stoker.providers.base import Visit

    command_line = behind_options(trailing() or [])
    if command_line:
        raise UserError(f"ssh opens a shell; to run a command, use stoker exec {job} -- {shlex.join(command_line)}")
    options = [*(word for forward in forwards for word in ("-L", forward)), *(trailing() or ())]
    wanted = Visit(options=tuple(options), user=user, identity=identity, via=via, terminal=has_terminal())
    return visit(job, node, wanted)


def behind_options(words: Sequence[str]) -> list[str]:
    """What ssh would take for the name of a machine, and a command on it."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        valued = next((place for place, letter in enumerate(option) if letter in _WITH_VALUE), None)
        if valued == len(option) - 1 and rest:
            rest.pop(0)
    return rest
