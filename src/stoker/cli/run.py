"""`stoker run`: show the plan, submit, follow, and govern meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from stoker.cli.completers import complete_file, complete_provider
from stoker.cli.follow_and_govern import follow_governing, leave_detached
from stoker.cli.format import print_json, say, size, tell_problem, whole
from stoker.cli.options import (
    TrailingCommand,
    json_option,
    opened_store,
    set_option,
    store_option,
    trailing,
    yes_option,
)
from stoker.cli.plan_view import agree, show_plan
from stoker.cli.progress import progress_bar, working
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.submit.prepare import Prepared, check_reached, launch_requests, prepare
from stoker.submit.send import Progress, check_writable, send

# A longer text is not printed as part of a request.
_MOST_TEXT = 1000


@click.command("run", cls=TrailingCommand)
@click.argument("words", metavar="[JOB.yaml]", nargs=-1, shell_complete=complete_file)
@set_option
@click.option("--name", help="What to call the job.")
@click.option("--nodes", type=int, metavar="K", help="How many machines train together.")
@click.option(
    "--provider",
    metavar="P",
    shell_complete=complete_provider,
    help="Where the machines come from: local, ec2, gce, sagemaker.",
)
@click.option("--spot/--no-spot", default=None, help="Spot machines only, or none.")
@click.option(
    "--env", "variables", multiple=True, metavar="K=V", help="An environment variable; K alone passes yours on."
)
@click.option(
    "--env-file", "env_files", multiple=True, metavar="F", type=click.Path(path_type=Path), help="A file of them."
)
@click.option("--param", "params", multiple=True, metavar="K=V", help="A parameter of the script.")
@click.option("--detach", is_flag=True, help="Print the job's id (with --json an object) and leave it running.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the requests; write nothing.")
@json_option
@yes_option
@store_option
def command(
    words: tuple[str, ...],
    sets: tuple[str, ...],
    params: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    as_json: bool,
    yes: bool,
    **flags: Any,
) -> int:
    """Submit a job and follow it.

    JOB.yaml is `stoker.yaml` in this folder by default; `stoker run -- python train.py` needs none. Ctrl-C once
    detaches: the job goes on.
    """
    from stoker.governor.handover_guard import guarding

    store = opened_store()
    assigned = (*sets, *(_param(text) for text in params))
    with ExitStack() as guarded:
        with _prepared(store, _job_file(words), assigned, _flags(**flags), dry_run=dry_run) as prepared:
            if dry_run:
                _print_dry_run(prepared, store, as_json=as_json)
                return 0
            check_writable(store)
            show_plan(prepared)
            agree(prepared, yes=yes)
            # From the first write on: this command may be killed at any moment.
            guard = guarded.enter_context(guarding(store.url))
            with _uploading(prepared) as progress:
                job = send(prepared, store, progress)
            guard.job(job)
            paid, spec = prepared.capabilities.paid, prepared.spec
        if detach:
            leave_detached(store, job, paid=paid)
            if as_json:
                print_json({"id": job, "name": spec.name, "store": store.url, "phase": "queued", "detached": True})
            else:
                click.echo(job)
            return 0
        say(f"  job {click.style(job, bold=True)}")
        _call_deployed(store, job, spec)
        return follow_governing(store, job, paid=paid, as_json=as_json, guard=guard)


# ── The job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _job_file(words: tuple[str, ...]) -> Path | None:
    """The job file that was named. A command that was typed without the dashes is recognised, not taken for one."""
    if len(words) > 1:
        raise UserError(f"put the command behind two dashes: stoker run -- {' '.join(words)}")
    if words and Path(words[0]).suffix in (".py", ".sh"):
        program = "python" if words[0].endswith(".py") else "bash"
        raise UserError(f"{words[0]} is not a job file; to run it: stoker run -- {program} {words[0]}")
    return Path(words[0]) if words else None


def _flags(
    name: str | None,
    nodes: int | None,
    provider: str | None,
    spot: bool | None,
    variables: tuple[str, ...],
    env_files: tuple[Path, ...],
) -> dict[str, Any]:
    from stoker.jobfile import env_file

    env: dict[str, str] = {}
    for path in env_files:
        env |= env_file(path)
    for text in variables:
        key, equals, value = text.partition("=")
        if not equals and key not in os.environ:
            raise UserError(f"--env {key}: is not set in your environment; write {key or 'NAME'}=VALUE")
        env[key] = value if equals else os.environ[key]
    resources = {key: value for key, value in (("provider", provider), ("spot", spot)) if value is not None}
    command = trailing()
    if command is not None and not command:
        raise UserError("run: is empty; say what to run behind `--`, such as `stoker run -- python train.py`")
    return {
        "name": name,
        "nodes": nodes,
        "run": command,
        "env": env or None,
        "resources": resources or None,
    }


def _param(text: str) -> str:
    if "=" not in text:
        raise UserError(f"--param {text}: write it as name=value, such as lr=3e-4")
    return f"params.{text}"


def _prepared(
    store: Store, job_file: Path | None, sets: tuple[str, ...], flags: dict[str, Any], *, dry_run: bool
) -> Prepared:
    from stoker.jobfile import base_folder, find_job_file, gather, resolve
    from stoker.providers import registry

    job_file = job_file or find_job_file()
    if job_file is None and flags["run"] is None and not any(text.startswith("run=") for text in sets):
        raise UserError(
            "there is no stoker.yaml here; write one with `stoker init`, or `stoker run -- python train.py`"
        )
    check_reached(gather(job_file=job_file, sets=sets, flags=flags), store)
    # A dry run asks nobody far away, not even for the house's defaults.
    house = None if dry_run and not store.near else store.get(keys.DEFAULTS)
    layers = gather(job_file=job_file, house=house.data if house else None, sets=sets, flags=flags)
    resolved = resolve(layers, registry.capabilities)
    with working("packing the code"):
        return prepare(
            resolved.spec,
            store,
            folder=base_folder(layers),
            told=resolved.told,
            offline=dry_run,
        )


@contextmanager
def _uploading(prepared: Prepared) -> Iterator[Progress | None]:
    """Inputs may take long, so how much of them has gone is shown. Code is small."""
    if any(upload.to_send for upload in prepared.uploads):
        with progress_bar("uploading") as progress:
            yield progress
        return
    code = prepared.packed.size if prepared.packed is not None else 0
    with working(f"uploading {size(code)}" if code else "submitting"):
        yield None


def _print_dry_run(prepared: Prepared, store: Store, *, as_json: bool) -> None:
    requests = [whole(request) for request in launch_requests(prepared, store)]
    if as_json:
        ignored = [whole(left_out) for left_out in prepared.packed.ignored] if prepared.packed is not None else []
        print_json({"offering": whole(prepared.offerings[0]), "requests": requests, "ignored": ignored})
        return
    show_plan(prepared)
    for request in requests:
        # A call of an SDK, or plain HTTP.
        asked = request["operation"] if "operation" in request else f"{request['method']} {request['path']}"
        click.echo(f"{request['service']} {asked}")
        print_json(_abridged(request.get("params", request.get("body"))))


def _abridged(value: Any, name: str = "") -> Any:
    """What a person reads: a boot script in one line is no reading."""
    if isinstance(value, dict):
        # Metadata are told as pairs.
        pair = set(value) == {"key", "value"}
        return {key: _abridged(each, str(value["key"]) if pair else key) for key, each in value.items()}
    if isinstance(value, list):
        if all(isinstance(each, str) for each in value) and len("".join(value)) > _MOST_TEXT:
            return _abridged("".join(value), name)  # A text in pieces, since each may only be so long.
        return [_abridged(each, name) for each in value]
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"({size(len(value.encode()))} of {_in_words(name)}; --json shows it)"
    return value


def _in_words(name: str) -> str:
    """`user-data` of `UserData`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _call_deployed(store: Store, job: str, spec: Spec) -> None:
    """This process governs; should it end, somebody else knows of the job already."""
    from stoker.governor.background import call_deployed

    tell_problem(call_deployed(store, [job], specs=[spec]))
