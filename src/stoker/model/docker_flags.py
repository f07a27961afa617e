"""`environment.container.run`, as flags of `docker run`. Pure.

A name is the flag's long name, with `_` or `-`; the plurals of Compose files work as well. A list repeats the flag. A
mapping repeats it with name and value, joined by the flag's own separator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from stoker.model.command_line import number_text

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")

_SINGULAR = {
    "volumes": "volume",
    "mounts": "mount",
    "ulimits": "ulimit",
    "devices": "device",
    "labels": "label",
    "sysctls": "sysctl",
    "ports": "publish",
    "extra-hosts": "add-host",
    "networks": "network",
}

# Separator between name and value, if it is not `=`.
_JOINTS = {
    "add-host": ":",
    "blkio-weight-device": ":",
    "device-read-bps": ":",
    "device-read-iops": ":",
    "device-write-bps": ":",
    "device-write-iops": ":",
    "publish": ":",
    "tmpfs": ":",
    "volume": ":",
}

_LIVES = "Stoker starts the container and removes it with the job"
_OUTPUT = "the output goes to the job's log"
_ASKS = "it only queries the engine, and creates no container"
_VARIABLES = "everyone with access to the engine can see it there; set `env` or `secrets` of the job"
_OWN = {
    "attach": _OUTPUT,
    "cidfile": _LIVES,
    "conmon-pidfile": _LIVES,
    "detach": _LIVES,
    "detach-keys": _OUTPUT,
    "entrypoint": "set `container.entrypoint: true` to keep the image's",
    "env": _VARIABLES,
    "env-file": _VARIABLES,
    "env-host": _VARIABLES,
    "env-merge": _VARIABLES,
    "environment": _VARIABLES,
    "help": _ASKS,
    "init": "Stoker puts an init into every container",
    "interactive": _OUTPUT,
    "log-driver": _OUTPUT,
    "log-opt": _OUTPUT,
    "name": "Stoker names the container, and finds it by its name",
    "pidfile": _LIVES,
    "pull": "the image is pulled before the container is made; the digest of the first attempt is kept",
    "quiet": _OUTPUT,
    "replace": _LIVES,
    "restart": "Stoker starts it again; see `retry`",
    "rm": _LIVES,
    "rmi": _LIVES,
    "sig-proxy": _LIVES,
    "tty": _OUTPUT,
    "version": _ASKS,
    "workdir": "commands run in the code folder",
}


def problem(name: str, value: object) -> str | None:
    """Describe the error in a flag; None if only the engine can judge it."""
    flag = _flag(name)
    if len(name) == 1:
        return "is a short flag; write its long name"
    if not _NAME.fullmatch(name):
        return "is not the name of a flag; write it without dashes in front, such as shm_size"
    if flag in _OWN:
        return f"is not yours to set: {_OWN[flag]}"
    if value is None:
        return "is empty; write true for a flag without a value"
    if not _fits(value):
        return "has to be a text, a number, true or false, or a list or a mapping of those"
    return None


def flags(run: Mapping[str, Any], engine: str) -> tuple[str, ...]:
    """The flags of `create`, in the order they were written."""
    return tuple(word for name, value in run.items() for word in _words(_flag(name), value, engine))


def mount_targets(run: Mapping[str, Any], engine: str) -> list[str]:
    """The paths in the container where these flags mount something."""
    found = []
    for word in flags(run, engine):
        name, _, value = word.partition("=")
        if name == "--mount":
            parts = (part.partition("=") for part in value.split(","))
            found += [path for key, _, path in parts if key in ("target", "destination", "dst")]
        elif name == "--volume":
            found.append(value.split(":")[min(1, value.count(":"))])
        elif name == "--tmpfs":
            found.append(value.partition(":")[0])
    return found


def has_flag(run: Mapping[str, Any], *names: str) -> bool:
    """Return whether any of these flags is set, in any spelling."""
    return any(_flag(name) in names for name in run)


def written_as(run: Mapping[str, Any], flag: str) -> str | None:
    """The name under which a flag was set; None if it was not."""
    return next((name for name in run if _flag(name) == flag), None)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known flag that is most similar to a name; None if none is similar."""
    # Flags that Stoker sets itself are excluded. `gpus` is allowed, also for an engine with another name for it.
    usable = {"gpus", *known} - set(_OWN)
    plurals = {plural for plural, flag in _SINGULAR.items() if flag in usable}
    spelled = sorted(each.replace("-", "_") for each in usable | plurals)
    return next(iter(get_close_matches(name.replace("-", "_"), spelled, 1)), None)


def with_sources(run: Mapping[str, Any], place: Callable[[str, str], str]) -> dict[str, Any]:
    """Replace each host folder of a volume by the result of `place`, which also gets the name of the field.

    Named and anonymous volumes of the engine stay unchanged.
    """
    return {
        name: _placed(value, partial(place, name)) if _flag(name) == "volume" else value for name, value in run.items()
    }


def _placed(value: Any, place: Callable[[str], str]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_placed(part, place) for part in value]
    if isinstance(value, Mapping):
        return {place(source) if _is_path(source) else source: target for source, target in value.items()}
    source, colon, rest = str(value).partition(":")
    return f"{place(source)}:{rest}" if colon and _is_path(source) else value


def _is_path(source: str) -> bool:
    """Return whether a source is a folder and not the name of a volume, which begins with a letter or a digit."""
    return str(source).startswith(("/", ".", "~", "$"))


def _words(flag: str, value: Any, engine: str) -> Iterator[str]:
    if flag == "gpus":
        yield from _gpus(value, engine)
        return
    for each in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(each, Mapping):
            yield f"--{flag}={_text(each)}"
        elif flag == "mount":
            # One mount is a whole mapping: `{type: bind, source: /data, target: /data, readonly: true}`.
            yield f"--mount={','.join(f'{name}={_text(part)}' for name, part in each.items())}"
        else:
            joint = _JOINTS.get(flag, "=")
            yield from (f"--{flag}={name}{joint}{_text(part)}" for name, part in each.items())


def _gpus(value: Any, engine: str) -> Iterator[str]:
    """Flags for `all`, a number, a list of indexes, or docker's own syntax (`device=0,1`). No GPU: false, `none` or
    0."""
    if value in (False, "none", 0) or value == []:
        return
    if value is True:
        value = "all"
    if isinstance(value, str) and value.strip("'\"").startswith("device="):
        value = value.strip("'\"").removeprefix("device=").split(",")
    if engine == "docker":
        # Commas separate the options of this flag, so a list of devices needs quotes of its own.
        yield f'--gpus="device={",".join(map(str, value))}"' if isinstance(value, (list, tuple)) else f"--gpus={value}"
        return
    # In Podman GPUs are devices of the Container Device Interface: `nvidia-ctk cdi generate` names them.
    indexes = value if isinstance(value, (list, tuple)) else range(value) if isinstance(value, int) else [value]
    yield from (f"--device=nvidia.com/gpu={index}" for index in indexes)


def _flag(name: str) -> str:
    flag = name.replace("_", "-")
    return _SINGULAR.get(flag, flag)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, (int, float)) else str(value)


def _fits(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_fits(part) and not isinstance(part, (list, tuple)) for part in value)
    if isinstance(value, Mapping):
        return all(isinstance(part, (str, int, float, bool)) for part in value.values())
    return isinstance(value, (str, int, float, bool))
