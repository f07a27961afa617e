"""`stoker run`: show the plan, submit the job, follow it, and govern meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from stoker.cli.completers import complete_file
from stoker.cli.follow_and_govern import detach as detach_job
from stoker.cli.follow_and_govern import follow_job
from stoker.cli.format import print_json, report_governor, say, size, to_json
from stoker.cli.options import (
    NamedPath,
    TrailingCommand,
    json_option,
    opened_store,
    provider_option,
    set_option,
    store_option,
    trailing,
    yes_option,
)
from stoker.cli.plan_view import agree, show_plan
from stoker.cli.progress import progress_bar, working
from stoker.model.errors import UserError
from stoker.model.resources import idle_gpus
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.submit.launch_requests import launch_requests
from stoker.submit.prepared_job import PreparedJob
from stoker.submit.send import Progress, check_writable, send

# Longer texts in a request are abridged.
_MOST_TEXT = 1000


@click.command("run", cls=TrailingCommand)
@click.argument("words", metavar="[JOB.yaml]", nargs=-1, shell_complete=complete_file)
@set_option
@click.option("--name", help="The name of the job.")
@click.option("--nodes", type=int, metavar="K", help="The number of machines that train together.")
@provider_option()
@click.option("--spot/--no-spot", default=None, help="Use only spot machines, or none.")
@click.option(
    "--env", "variables", multiple=True, metavar="K=V", help="Set an environment variable; K alone passes yours on."
)
@click.option(
    "--env-file",
    "env_files",
    multiple=True,
    metavar="F",
    type=NamedPath(path_type=Path),
    help="A file of variables.",
)
@click.option("--param", "params", multiple=True, metavar="K=V", help="Set a parameter of the script.")
@click.option("--detach", is_flag=True, help="Print the job's id (with --json: an object), and leave the job running.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the requests without submitting anything.")
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

    JOB.yaml is `stoker.yaml` in this folder by default; `stoker run -- python train.py` needs no file. Ctrl-C once
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
            # Guarded from the first write on: this command may be killed at any moment.
            guard = guarded.enter_context(guarding(store.url))
            with _uploading(prepared) as progress:
                job = send(prepared, store, progress)
            guard.job(job)
            paid, spec = prepared.capabilities.paid, prepared.spec
        if detach:
            governed = detach_job(store, job, paid=paid).is_governed
            if as_json:
                found = {"id": job, "name": spec.name, "store": store.url, "phase": "queued", "detached": True}
                print_json(found | {"governed": governed})
            else:
                click.echo(job)
            return 0
        say(f"  job {click.style(job, bold=True)}")
        _call_deployed(store, job, spec)
        return follow_job(store, job, nodes=spec.nodes, paid=paid, as_json=as_json, guard=guard)


# ── The job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _job_file(words: tuple[str, ...]) -> Path | None:
    """The named job file. Raises UserError for a command that was typed without the dashes."""
    if words and not words[0]:
        raise UserError("JOB.yaml is empty; name the job file, or leave it out")
    if len(words) > 1 and all(Path(word).suffix in (".yaml", ".yml") for word in words):
        raise UserError(f"{' '.join(words)}: run takes one job file; submit each with a command of its own")
    if len(words) > 1:
        file = [words[0]] if Path(words[0]).suffix in (".yaml", ".yml") else []
        typed = " ".join([*file, "--", *words[len(file) :]])
        raise UserError(f"write the command after two dashes: stoker run {typed}")
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
        raise UserError("run: is empty; write what to run after `--`, such as `stoker run -- python train.py`")
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
) -> PreparedJob:
    from stoker.jobfile import own_layers
    from stoker.submit.prepare import prepare_job

    layers = own_layers(
        job_file, sets, flags, advice="write one with `stoker init`, or `stoker run -- python train.py`"
    )
    with working("packing the code"):
        return prepare_job(layers, store, offline=dry_run)


@contextmanager
def _uploading(prepared: PreparedJob) -> Iterator[Progress | None]:
    """Show progress while inputs are uploaded, which may take long. Code is small."""
    if any(upload.to_send for upload in prepared.uploads):
        with progress_bar("uploading") as progress:
            yield progress
        return
    code = prepared.packed.size if prepared.packed is not None else 0
    with working(f"uploading {size(code)}" if code else "submitting"):
        yield None


def _print_dry_run(prepared: PreparedJob, store: Store, *, as_json: bool) -> None:
    requests = [to_json(request) for request in launch_requests(prepared, store)]
    if as_json:
        ignored = [to_json(left_out) for left_out in prepared.packed.ignored] if prepared.packed is not None else []
        best, wanted = prepared.offerings[0], prepared.spec.resources.gpus
        gpus = {"asked": wanted.count if wanted else 0, "bought": best.gpus, "idle": idle_gpus(wanted, best.gpus)}
        print_json({"offering": to_json(best), "gpus": gpus, "requests": requests, "ignored": ignored})
        return
    show_plan(prepared)
    for request in requests:
        # A request is a call of an SDK, or plain HTTP.
        asked = request["operation"] if "operation" in request else f"{request['method']} {request['path']}"
        click.echo(f"{request['service']} {asked}")
        print_json(_abridged(request.get("params", request.get("body"))))


def _abridged(value: Any, name: str = "") -> Any:
    """The request without long texts, such as a boot script on one line."""
    if isinstance(value, dict):
        # Compute Engine's metadata are pairs of key and value.
        pair = set(value) == {"key", "value"}
        return {key: _abridged(each, str(value["key"]) if pair else key) for key, each in value.items()}
    if isinstance(value, list):
        if all(isinstance(each, str) for each in value) and len("".join(value)) > _MOST_TEXT:
            return _abridged("".join(value), name)  # A text in pieces, where the length of each is limited.
        return [_abridged(each, name) for each in value]
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"({size(len(value.encode()))} of {_dashed(name)}; --json shows it)"
    return value


def _dashed(name: str) -> str:
    """`user-data` of `UserData`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _call_deployed(store: Store, job: str, spec: Spec) -> None:
    """Wake the deployed governor now: it then knows the job should this process end."""
    from stoker.governor.background import wake_deployed

    report_governor(wake_deployed(store, [job], specs=[spec]))
