"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stoker.cli.completers import (
    complete_attempt,
    complete_checkpoint,
    complete_field,
    complete_job,
    complete_node,
    complete_provider,
)
from stoker.model.errors import NoSuchJob, UserError

if TYPE_CHECKING:
    from stoker.cli.completers import Complete
    from stoker.store.base import Store

F = TypeVar("F", bound=Callable[..., Any])


def _keep_store(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.find_root().obj = value


def store_option(command: F) -> F:
    """`--store` after the command, as well as before it."""
    return click.option(
        "--store",
        metavar="URL",
        expose_value=False,
        callback=_keep_store,
        help="A bucket or a folder; default: STOKER_STORE, else under ~/.stoker.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def set_option(command: F) -> F:
    return click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="FIELD=VALUE",
        shell_complete=complete_field,
        help="Set a field of the job file, such as params.lr=1e-3; may be repeated.",
    )(command)


def provider_option(
    text: str = "The provider of the machines: local, ec2, gce or sagemaker.",
) -> Callable[[F], F]:
    return click.option("--provider", metavar="P", shell_complete=complete_provider, help=text)


def attempt_option(text: str) -> Callable[[F], F]:
    """`--attempt N`, an attempt of the job that the command names."""
    return click.option(
        "--attempt", type=click.IntRange(min=1), metavar="N", shell_complete=complete_attempt, help=text
    )


def node_option(purpose: str) -> Callable[[F], F]:
    """`--node R`, a node of the job that the command names, by default the first one."""
    return click.option(
        "--node",
        type=click.IntRange(min=0),
        default=0,
        metavar="R",
        shell_complete=complete_node,
        help=f"The node to {purpose}; 0 by default.",
    )


def yes_option(command: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def job_argument(command: F) -> F:
    return job_argument_of(complete_job)(command)


def job_argument_of(complete: Complete) -> Callable[[F], F]:
    """The argument JOB. `complete` offers the jobs that the command can work on."""
    argument = click.argument("job", metavar="JOB", shell_complete=complete)
    return lambda command: argument(_with_external_job_hint(command))


def checkpoint_option(text: str) -> Callable[[F], F]:
    """`--checkpoint REF`, a checkpoint of the job that the command names."""
    return click.option("--checkpoint", metavar="REF", shell_complete=complete_checkpoint, help=text)


def jobs_argument(required: bool = True, complete: Complete = complete_job) -> Callable[[F], F]:
    argument = click.argument("jobs", metavar="JOB…", nargs=-1, required=required, shell_complete=complete)
    return lambda command: argument(_with_external_job_hint(command))


def _with_external_job_hint(command: F) -> F:
    """Explain external jobs: `ps` lists them, too, but most commands do not apply to them."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return command(*arguments, **named)
        except NoSuchJob as error:
            from stoker.cli.external_jobs import external_job_hint

            hint = external_job_hint(opened_store(), error.text, str(click.get_current_context().info_name))
            if hint is None:
                raise
            raise UserError(hint) from None

    return cast("F", wrapped)


def help_alone(ctx: click.Context) -> None:
    """Print the help of a group that is called without a command, and exit."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UserError.exit_code)


def opened_store() -> Store:
    """Open the store that the command line names. Raises UserError for an invalid URL."""
    from stoker.store.base import open_store

    return open_store(click.get_current_context().find_root().obj)


def named_job(store: Store, text: str) -> str:
    """The id of the job that the command line names; stderr says which one where several have the name.

    Raises UserError as `find_job` does.
    """
    from stoker.cli.format import say
    from stoker.store.find_job import find_job

    return find_job(store, text, say)


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:
    _FloatType = click.ParamType  # Not generic before click 8.2.


class NamedPath(click.Path):
    """A path that the command line names. An empty one, as of a variable that is not set, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            option = isinstance(param, click.Option)
            name = "the path" if param is None else param.opts[0] if option else param.human_readable_name.strip("[]")
            raise UserError(f"{name} is empty; name a path")
        return super().convert(value, param, ctx)


class Duration(_FloatType):
    """A duration such as `30s`, `15m` or `24h`, in seconds. With `unit`, a number without a unit is refused."""

    name = "duration"

    def __init__(self, *, unit: bool = False) -> None:
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        from stoker.jobfile.value_forms import DURATION_HELP, read_duration

        what = param.opts[0] if param is not None else "a duration"
        try:
            found = read_duration(value)
        except ValueError:
            raise UserError(f"{what} {value}: expected {DURATION_HELP}") from None
        if self._unit and found and value.strip()[-1:].isdigit():
            raise UserError(f"{what} {value}: has no unit; write {value}d, {value}h or {value}s")
        return found


DURATION = Duration()
DURATION_WITH_UNIT = Duration(unit=True)


class TrailingCommand(click.Command):
    """A command that takes the words after `--` as another command line, in `ctx.meta["trailing"]`."""

    # The usage line shows it like this.
    trails = "[-- COMMAND…]"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, trailing = args, None
        if "--" in args:
            at = args.index("--")
            own, trailing = args[:at], args[at + 1 :]
        ctx.meta["trailing"] = trailing
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.trails]


def trailing() -> list[str] | None:
    """The words after `--`; None when there is no `--`."""
    found = click.get_current_context().meta["trailing"]
    return list(found) if found is not None else None
