"""What the engine does not like about a container, by the field of the job file that says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.agent.container.engine import FIELD, Answer, Engine
from stoker.model import docker_flags

_UNKNOWN = re.compile(r"unknown flag: --([a-z0-9-]+)")
# `invalid argument "much" for "-m, --memory" flag`
_UNFIT = re.compile(r'for "(?:-\w, )?--([a-z0-9-]+)" flag')
_LISTED = re.compile(r"^ +(?:-\w, +)?--([a-z0-9-]+)", re.MULTILINE)


def complaint(engine: Engine, answer: Answer, run: Mapping[str, Any]) -> str:
    """The field and what the engine says of it, in one line, with the flag that was meant where one is like it."""
    unknown = _UNKNOWN.search(answer.err)
    found = unknown or _UNFIT.search(answer.err)
    name = docker_flags.written_as(run, found[1]) if found else None
    if name is None:
        return f"{FIELD}: {engine.program}: {answer.said}"
    what = f"{FIELD}.run.{name}: {engine.program}: {answer.said}"
    if unknown is None:
        return what
    near = docker_flags.nearest(name, _LISTED.findall(engine.ask("create", "--help").out))
    return f"{what}; did you mean {near}?" if near else f"{what}; `{engine.program} create --help` lists those it has"
