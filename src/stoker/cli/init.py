"""`stoker init`."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import TrailingCommand, trailing

_USUAL = ("train.py", "main.py", "run.py")


@click.command("init", cls=TrailingCommand)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def command(force: bool) -> None:
    """Write a job file to start from: stoker.yaml in this folder."""
    from stoker.jobfile.layers import JOB_FILES
    from stoker.jobfile.template import template
    from stoker.model.errors import UserError

    path = Path(JOB_FILES[0])
    if path.exists() and not force:
        raise UserError(f"{path} exists already; --force overwrites it")
    words = trailing() or _guess()
    try:
        path.write_text(template(words), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(f"{path} is written; `stoker run` starts it")


def _guess() -> list[str] | None:
    """The command for this folder's script: one with a usual name, or the only one."""
    scripts = sorted(path.name for path in Path().glob("*.py"))
    for name in _USUAL:
        if name in scripts:
            return ["python", name]
    return ["python", scripts[0]] if len(scripts) == 1 else None
