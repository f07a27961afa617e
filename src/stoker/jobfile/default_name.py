"""The default name of a job."""

from __future__ import annotations

import re
from pathlib import Path

MAX_NAME = 40

_SCRIPT = re.compile(r"(?:^|[\s/'\"=])([A-Za-z0-9_.-]+)\.(?:py|sh|ipynb|jl|R)(?=$|[\s'\";|&)])")
_MODULE = re.compile(r"(?:^|\s)-m\s+([A-Za-z_][A-Za-z0-9_.]*)")


def default_name(run: str | tuple[str, ...], folder: Path) -> str:
    """Name a job after the last script in its command, else after the module it runs, else after the folder."""
    text = run if isinstance(run, str) else "\n".join(run)
    scripts = _SCRIPT.findall(text)
    modules = [module.rpartition(".")[2] for module in _MODULE.findall(" ".join(text.split()))]
    # `python -m torch.distributed.run train.py` runs train.py, so scripts come first.
    for candidate in (*scripts[-1:], *modules[-1:], folder.resolve().name, "job"):
        name = slug(candidate)
        if name:
            return name
    raise AssertionError("'job' is a name")


def slug(text: str) -> str:
    """Turn `text` into a valid job name; empty if nothing valid is left."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if name and not name[0].isalpha():
        name = f"job-{name}"
    return name[:MAX_NAME].strip("-")
