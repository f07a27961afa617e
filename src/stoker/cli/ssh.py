"""`stoker ssh`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from stoker.cli.completers import complete_jobs_that, has_shell
from stoker.cli.options import TrailingCommand, job_argument_of, store_option, trailing
from stoker.cli.ssh_connection import connect_options

# Options of ssh that take a value: the rest of the word, or the next word.
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")


class _SshCommand(TrailingCommand):
    trails = "[-- SSH ARGUMENTS…]"


@click.command("ssh", cls=_SshCommand)
@job_argument_of(complete_jobs_that(has_shell))
@click.option("-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Forward a port of this computer.")
@connect_options
@store_option
def command(
    job: str, forwards: tuple[str, ...], node: int, user: str | None, identity: str | None, via: str | None
) -> int:
    """Open a shell on a machine of JOB, or forward its ports. Works on a machine that is held after a failure, too.

    Uses your key or a temporary one, directly or through SSM or IAP, whichever is open. Arguments after `--`, such as
    `-N`, are passed to ssh.
    """
    from stoker.cli.ssh_connection import connect, has_terminal
    from stoker.model.errors import UserError
    from stoker.providers.base import ShellRequest

    command_line = behind_options(trailing() or [])
    if command_line:
        raise UserError(f"ssh opens a shell; to run a command, use stoker exec {job} -- {shlex.join(command_line)}")
    options = [*(word for forward in forwards for word in ("-L", forward)), *(trailing() or ())]
    wanted = ShellRequest(options=tuple(options), user=user, identity=identity, via=via, terminal=has_terminal())
    return connect(job, node, wanted)


def behind_options(words: Sequence[str]) -> list[str]:
    """The words that ssh would take for a host name and a command."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        valued = next((place for place, letter in enumerate(option) if letter in _WITH_VALUE), None)
        if valued == len(option) - 1 and rest:
            rest.pop(0)
    return rest
