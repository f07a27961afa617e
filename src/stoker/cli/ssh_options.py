"""What `ssh` and `exec` share: find the machine, and run the program that leads there."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli.completers import complete_file, complete_node

if TYPE_CHECKING:
    from stoker.providers.base import Visit, Way

F = TypeVar("F", bound=Callable[..., Any])

# What shells answer for a program that a signal ended.
_BY_SIGNAL = 128
_ITS_OWN = 255


def visit_options(command: F) -> F:
    """Which node, and how to get there."""
    for option in (
        click.option(
            "--via",
            metavar="WAY",
            help="key, connect or ssm on EC2, key or iap on Compute Engine; default: what is open.",
        ),
        click.option("--identity", metavar="FILE", shell_complete=complete_file, help="The private key to use."),
        click.option("--user", metavar="NAME", help="The user to log in as; default: the image's own."),
        click.option(
            "--node",
            type=click.IntRange(min=0),
            default=0,
            metavar="R",
            shell_complete=complete_node,
            help="Which node; 0 by default.",
        ),
    ):
        command = option(command)
    return command


def visit(job: str, node: int, wanted: Visit) -> int:
    """Go there, and answer the exit status of what ran."""
    from stoker import client
    from stoker.cli.format import say
    from stoker.cli.options import opened_store

    store = opened_store()
    found = client.find_node(job, store, node, held=True)
    with client.reach(found, wanted, store) as way:
        status = run_program(way)
    if status == _ITS_OWN and way.hint:
        say(way.hint)
    return status


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def run_program(way: Way) -> int:
    """Run it in this terminal. It gets the keyboard's signals; this process outlives it, to clear up after it."""
    from stoker.model.errors import UserError

    sys.stdout.flush()
    # Ignored here only after the start: what is ignored is inherited.
    try:
        process = subprocess.Popen(way.argv, cwd=way.cwd)
    except OSError as error:
        raise UserError(f"{way.argv[0]} cannot be started: {error.strerror}") from None
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    # Who ends this process means the other one.
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda got, _frame: process.send_signal(got))
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _BY_SIGNAL - status
