"""Connect to a machine of a job, for `ssh` and `exec`: find it, and run the program that connects."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli.completers import complete_file
from stoker.cli.options import NamedPath, named_job, node_option, opened_store

if TYPE_CHECKING:
    from stoker.providers.base import ShellCommand, ShellRequest

F = TypeVar("F", bound=Callable[..., Any])

# Shells add the number of the signal that ended a program.
_BY_SIGNAL = 128
# ssh exits with this after an error of its own.
_SSH_ERROR = 255


def connect_options(command: F) -> F:
    """The options that choose the node and the command to connect."""
    for option in (
        click.option(
            "--via",
            metavar="WAY",
            help="How to connect: key, connect or ssm on EC2, key or iap on Compute Engine; default: any open way.",
        ),
        click.option(
            "--identity", type=NamedPath(), metavar="FILE", shell_complete=complete_file, help="The private key to use."
        ),
        click.option("--user", metavar="NAME", help="The user to log in as; default: that of the image."),
        node_option("connect to"),
    ):
        command = option(command)
    return command


def connect(job: str, node: int, wanted: ShellRequest) -> int:
    """Connect to the machine, and return the exit status of the program."""
    from stoker import client
    from stoker.cli.format import say

    store = opened_store()
    found = client.find_node(named_job(store, job), store, node, held=True)
    with client.open_shell(found, wanted, store) as command:
        status = run_program(command)
    if status == _SSH_ERROR and command.hint:
        say(command.hint)
    return status


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def run_program(command: ShellCommand) -> int:
    """Run the program in this terminal. It gets the keyboard's signals; this process outlives it, to clean up."""
    from stoker.model.errors import UserError

    sys.stdout.flush()
    # Signals are ignored only after the start: the program would inherit ignored ones.
    try:
        process = subprocess.Popen(command.argv, cwd=command.cwd)
    except OSError as error:
        raise UserError(f"{command.argv[0]} cannot be started: {error.strerror}") from None
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    # A signal that ends this process is meant for the program.
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda got, _frame: process.send_signal(got))
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _BY_SIGNAL - status
