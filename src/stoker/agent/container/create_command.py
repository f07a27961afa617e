"""The command line that makes a container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.agent.container.host_devices import Surroundings
from stoker.agent.container.pipes import INSIDE
from stoker.agent.runtime import Mount
from stoker.model.docker_flags import flags, has

# The first program in the container says that it is there, and then has nothing to do but to end with its agent.
# `read` is the shell's own, so there is no child that would have to be waited for.
IDLE = 'echo $$ >"$2"; read -r _ <"$1"'


@dataclass(frozen=True)
class Blueprint:
    """A container that is to be made."""

    engine: str
    name: str
    image: str
    door: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    # Where commands write, under the path that it has here. A file is one, too.
    folders: Sequence[Path] = ()
    # Somebody's data, and what the agent keeps for itself, under the path that it has here.
    read: Sequence[Path] = ()
    mounts: Sequence[Mount] = ()
    run: Mapping[str, Any] = field(default_factory=dict)


def arguments(plan: Blueprint, around: Surroundings, script: str = IDLE) -> list[str]:
    """What follows the engine's own name. `script` is what it runs by itself.

    The person's flags come last but for the image: where a flag may be given once, the last one counts.
    """
    return [
        "create",
        f"--name={plan.name}",
        *(f"--label={name}={value}" for name, value in plan.labels.items()),
        "--init",
        # The engine takes it off the disk when it ends, volumes without a name too, whoever is left to ask for that.
        "--rm",
        "--pull=never",
        # The training writes its log itself; the engine would keep a second copy of it.
        "--log-driver=none",
        # Pipes can be written to where nothing can be made, renamed or removed.
        _bind(plan.door, INSIDE, read_only=True),
        *_seen_alike(plan),
        *(_bind(mount.source, mount.target, read_only=mount.read_only) for mount in plan.mounts),
        *_defaults(plan, around),
        *flags(plan.run, plan.engine),
        "--entrypoint=sh",
        plan.image,
        "-c",
        script,
        "stoker",
        f"{INSIDE}/alive",
        f"{INSIDE}/begun",
    ]


def places(plan: Blueprint) -> list[str]:
    """Where in the container something of this machine is seen, or of the person's choice."""
    found = [str(folder) for folder in (*plan.folders, *plan.read)] + [mount.target for mount in plan.mounts]
    for word in flags(plan.run, plan.engine):
        name, _, value = word.partition("=")
        if name == "--mount":
            parts = (part.partition("=") for part in value.split(","))
            found += [path for key, _, path in parts if key in ("target", "destination", "dst")]
        elif name == "--volume":
            found.append(value.split(":")[min(1, value.count(":"))])
        elif name == "--tmpfs":
            found.append(value.partition(":")[0])
    return found


def chooses_user(plan: Blueprint, around: Surroundings) -> bool:
    """Whether the training runs as the agent's own user: else nobody but root could save or remove what it wrote.

    Podman, and a daemon of the user's own, are the user, whatever number it has inside.
    """
    own = plan.engine == "podman" or around.rootless
    return not around.privileged and not own and not has(plan.run, "user", "userns")


def sees_all_gpus(run: Mapping[str, Any], around: Surroundings) -> bool:
    """Whether it sees the machine's GPUs because nobody said anything else."""
    return around.gpus > 0 and around.toolkit and not has(run, "gpus") and "nvidia" not in str(run)


def visible_gpus(run: Mapping[str, Any], around: Surroundings) -> int:
    """How many GPUs the container sees."""
    if not has(run, "gpus"):
        return around.gpus if sees_all_gpus(run, around) or "nvidia" in str(run) else 0
    wanted = next(value for name, value in run.items() if name == "gpus")
    if isinstance(wanted, bool) or wanted == "all":
        return around.gpus if wanted else 0
    if isinstance(wanted, int):
        return min(wanted, around.gpus)
    return len(flags({"gpus": wanted}, "podman"))


def _defaults(plan: Blueprint, around: Surroundings) -> list[str]:
    """What a training on the machine itself would have, where the person says nothing else."""
    found = []
    if not has(plan.run, "network", "net"):
        # The addresses and ports of the contract are the machine's, and so is the way to its credentials.
        found.append("--network=host")
    if around.shm_bytes and not has(plan.run, "shm-size", "ipc"):
        # The engine's own 64 MB are too few for the workers of a data loader.
        found.append(f"--shm-size={around.shm_bytes}")
    if sees_all_gpus(plan.run, around):
        found += flags({"gpus": "all"}, plan.engine)
    if chooses_user(plan, around):
        found.append(f"--user={around.uid}:{around.gid}")
    if around.selinux and not has(plan.run, "security-opt"):
        # Without this the folders of the node could not be read inside, and relabelling them would take the host's
        # own programs their access.
        found.append("--security-opt=label=disable")
    return found


def _bind(source: Path, target: str, *, read_only: bool = False) -> str:
    """Unlike `--volume`, takes colons in paths, and refuses what is not there instead of making it."""
    parts = ("type=bind", f"source={source}", f"target={target}", *(("readonly",) if read_only else ()))
    return f"--mount={','.join(_quoted(part) for part in parts)}"


def _quoted(part: str) -> str:
    """A field of CSV, which this flag is."""
    return '"' + part.replace('"', '""') + '"' if set(part) & {",", '"'} else part


def _seen_alike(plan: Blueprint) -> list[str]:
    """What is seen under the path that it has here. What lies in something else comes after it."""
    written, read = outermost(plan.folders), _beside(plan.read, plan.folders)
    found = [(folder, False) for folder in written] + [(folder, True) for folder in read]
    return [
        _bind(folder, str(folder), read_only=read_only)
        for folder, read_only in sorted(found, key=lambda each: len(each[0].parts))
    ]


def _beside(folders: Sequence[Path], others: Sequence[Path]) -> list[Path]:
    """Those that are not seen already as part of the others."""
    return [folder for folder in outermost(folders) if not any(folder.is_relative_to(other) for other in others)]


def outermost(folders: Sequence[Path]) -> list[Path]:
    """Each folder once, and none that is part of another."""
    kept: list[Path] = []
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(other) for other in kept):
            kept.append(folder)
    return kept
