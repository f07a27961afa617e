"""The command line. Each command is a file beside this one, imported only when it is called.

This file imports click and nothing else, so that `stoker --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

import click

# Names and short helps of the commands. They stand here so that help and completion import no command.
SECTIONS: dict[str, dict[str, str]] = {
    "Train": {
        "init": "Write a job file to start from.",
        "run": "Submit a job and follow it.",
        "offers": "Show the machines on offer and their prices.",
        "prices": "Show or refresh the price tables.",
    },
    "Look": {
        "ps": "List jobs.",
        "show": "Show one job: attempts, checkpoints, cost.",
        "logs": "Print or follow a job's log.",
        "compare": "Put jobs side by side and draw their curves.",
        "costs": "Show what jobs cost, saved and wasted.",
        "checkpoints": "List a job's checkpoints.",
        "pull": "Fetch a checkpoint or the outputs as plain files.",
        "explain": "Print a job's log with reasons, and what comes next.",
    },
    "Steer": {
        "stop": "Let jobs save, then end them.",
        "resume": "Continue a failed or stopped job from its last checkpoint.",
        "clone": "Start a new job like another one.",
        "interrupt": "Rehearse a reclaim of a machine.",
        "ssh": "Open a shell on a job's machine, or forward its ports.",
        "exec": "Run a command on a job's machine, in its environment.",
        "rm": "Delete ended jobs and everything they stored.",
    },
    "Operate": {
        "govern": "Run the governor: one pass, or until interrupted.",
        "deploy": "Deploy a serverless governor to a cloud.",
        "policy": "Set, show and test the policy for all jobs.",
        "notify": "Send a test message to notification channels.",
        "reap": "Remove machines, disks and alarms that no job owns.",
        "check": "Check this computer, the store and a provider.",
        "iam": "Print the permissions that a cloud has to grant.",
        "reindex": "Rebuild the index of jobs from their logs.",
        "schema": "Print the JSON schema of the job file.",
        "completion": "Print the completion script of your shell.",
    },
}
COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

# Words that people type for commands, and the command instead.
OTHER_WORDS = {
    "metrics": "`stoker show JOB` has the last values, `stoker compare JOB --csv -` all of them",
    **dict.fromkeys(("list", "ls", "jobs", "queue"), "`stoker ps` lists the jobs"),
    **dict.fromkeys(("status", "describe", "info"), "`stoker show JOB` shows one job, `stoker ps` lists all"),
    **dict.fromkeys(("submit", "launch", "start", "train"), "`stoker run` submits a job"),
    **dict.fromkeys(("cancel", "kill", "down", "terminate"), "`stoker stop JOB` ends a job"),
    **dict.fromkeys(("delete", "remove"), "`stoker rm JOB` deletes a job that has ended"),
    **dict.fromkeys(("download", "get", "fetch", "outputs"), "`stoker pull JOB` fetches checkpoints and outputs"),
    **dict.fromkeys(("continue", "restart", "retry"), "`stoker resume JOB` continues a job that failed or was stopped"),
    **dict.fromkeys(("doctor", "validate"), "`stoker check` checks this computer, the store and a provider"),
}

EXIT_USER = 2
EXIT_CLOUD = 3
# The exit code of an interrupted program, as shells set it.
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(f"stoker.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else "`stoker --help` lists the commands"
            hint = OTHER_WORDS.get(args[0], hint)
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()))


@click.command(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store",
    metavar="URL",
    help="A bucket or a folder; default: STOKER_STORE, else under ~/.stoker.",
)
@click.version_option(package_name="stoker", prog_name="stoker")
@click.pass_context
def cli(ctx: click.Context, store: str | None) -> None:
    """Train on spot machines as if they could not be taken away. No server, just your bucket."""
    ctx.obj = store
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_USER)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit. An error is one line on stderr; STOKER_DEBUG=1 shows its traceback."""
    debug = os.environ.get("STOKER_DEBUG", "") not in ("", "0")
    # Click limits colours to terminals; NO_COLOR switches them off there, too.
    colour = False if os.environ.get("NO_COLOR") else None
    given = None if arguments is None else list(arguments)
    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        from stoker.cli.safe_terminal import guard

        sys.stdout, sys.stderr = guard(sys.stdout), guard(sys.stderr)
    try:
        code = cli.main(args=given, prog_name="stoker", standalone_mode=False, color=colour)
        sys.stdout.flush()
    except click.exceptions.Abort:
        _leave("stoker: interrupted", EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        _leave("stoker: interrupted", EXIT_INTERRUPTED)
    except click.ClickException as error:
        _leave(f"stoker: {_usage(error)}", EXIT_USER)
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:  # the edge of the command line: every error is one line, and an exit code
        if debug:
            raise
        _leave(*_explained(error))
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    # One sentence, where click writes two.
    message = message.replace(". (Did you", " (did you").replace(". Did you", "; did you")
    for kind in ("integer range", "integer"):
        message = message.replace(f"is not a valid {kind}", "is not a whole number; write one such as 2")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    if "stoker" in message or context is None:
        return message
    return f"{message}; see `{context.command_path} --help`"


def _explained(error: Exception) -> tuple[str, int]:
    from stoker.model.errors import PolicyRefused, StokerError
    from stoker.read.safe_text import legible

    if isinstance(error, PolicyRefused):
        lines = (legible(" ".join(each.split())) for each in error.problems)
        return "\n".join(f"stoker: {line}" for line in lines), error.exit_code
    text = legible(" ".join(str(error).split()))
    if isinstance(error, StokerError):
        return f"stoker: {text}", error.exit_code
    return f"stoker: unexpected {type(error).__name__}: {text}; STOKER_DEBUG=1 shows the traceback", EXIT_CLOUD


def _leave(text: str, code: int) -> None:
    try:
        click.echo(text, err=True)
    finally:
        sys.exit(code)
