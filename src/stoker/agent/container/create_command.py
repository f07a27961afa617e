"""Build the command line that creates a container. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.agent.container.host_devices import FABRIC, HostCapabilities
from stoker.agent.container.pipes import INSIDE
from stoker.agent.runtime import BindMount
from stoker.model import docker_flags
from stoker.model.docker_flags import flags, has_flag

# The container's first program reports its start and what the container calls itself, and then waits for its agent to
# end. `read` is built into the shell, so there is no child process to wait for.
IDLE_SCRIPT = 'read -r name </proc/sys/kernel/hostname; echo "$$ $name" >"$2"; read -r _ <"$1"'


@dataclass(frozen=True)
class ContainerPlan:
    """A container to create."""

    engine: str
    name: str
    image: str
    pipes: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    # Folders and files that commands write to, mounted at the same path as on this machine.
    folders: Sequence[Path] = ()
    # Input data and the agent's own files, mounted read-only at the same path as on this machine.
    read: Sequence[Path] = ()
    mounts: Sequence[BindMount] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    # The container's host name; empty where the engine chooses.
    hostname: str = ""


def arguments(plan: ContainerPlan, host: HostCapabilities, script: str = IDLE_SCRIPT) -> list[str]:
    """Return the arguments of the engine. `script` is the container's first program.

    The user's flags come last, before the image: the engine uses the last value of a flag that may be given once.
    """
    return [
        "create",
        f"--name={plan.name}",
        *(f"--label={name}={value}" for name, value in plan.labels.items()),
        "--init",
        # The engine removes the container and its anonymous volumes when it ends, even if no agent is left to do so.
        "--rm",
        "--pull=never",
        # The training writes its own log; the engine would store a second copy.
        "--log-driver=none",
        # Pipes in a read-only mount can be written to, but not created, renamed or removed.
        _bind(plan.pipes, INSIDE, read_only=True),
        *_same_path_mounts(plan),
        *(_bind(mount.source, mount.target, read_only=mount.read_only) for mount in plan.mounts),
        *_defaults(plan, host),
        *flags(plan.run, plan.engine),
        "--entrypoint=sh",
        plan.image,
        "-c",
        script,
        "stoker",
        f"{INSIDE}/alive",
        f"{INSIDE}/begun",
    ]


def mount_targets(plan: ContainerPlan) -> list[str]:
    """Return the paths in the container where the agent or the user mounts something."""
    found = [str(folder) for folder in (*plan.folders, *plan.read)] + [mount.target for mount in plan.mounts]
    return found + docker_flags.mount_targets(plan.run, plan.engine)


def runs_as_agent_user(plan: ContainerPlan, host: HostCapabilities) -> bool:
    """Tell if the container must run as the agent's user, because otherwise only root could save or remove its files.

    With podman or a rootless daemon every user of the container is this user outside.
    """
    own = plan.engine == "podman" or host.rootless
    return not host.privileged and not own and not has_flag(plan.run, "user", "userns")


def sees_all_gpus(run: Mapping[str, Any], host: HostCapabilities) -> bool:
    """Tell if the container sees all GPUs of the machine by default."""
    return host.gpus > 0 and host.toolkit and not has_flag(run, "gpus") and "nvidia" not in str(run)


def visible_gpus(run: Mapping[str, Any], host: HostCapabilities) -> int:
    """Return the number of GPUs that the container sees."""
    if not has_flag(run, "gpus"):
        return host.gpus if sees_all_gpus(run, host) or "nvidia" in str(run) else 0
    wanted = next(value for name, value in run.items() if name == "gpus")
    if isinstance(wanted, bool) or wanted == "all":
        return host.gpus if wanted else 0
    if isinstance(wanted, int):
        return min(wanted, host.gpus)
    return len(flags({"gpus": wanted}, "podman"))


def _defaults(plan: ContainerPlan, host: HostCapabilities) -> list[str]:
    """Return flags that give the container what a training on the machine has, unless the user chose otherwise."""
    found = []
    if not has_flag(plan.run, "network", "net"):
        # The training is given addresses and ports of the machine, and reaches its credentials over the machine's
        # network.
        found.append("--network=host")
    if plan.hostname and not _has_own_name(plan):
        found.append(f"--hostname={plan.hostname}")
    if host.shm_bytes and not has_flag(plan.run, "shm-size", "ipc"):
        # The engine's default of 64 MB is too small for the workers of a data loader.
        found.append(f"--shm-size={host.shm_bytes}")
    if sees_all_gpus(plan.run, host):
        found += flags({"gpus": "all"}, plan.engine)
    found += _device_flags(plan, host)
    if runs_as_agent_user(plan, host):
        found.append(f"--user={host.uid}:{host.gid}")
    if host.selinux and not has_flag(plan.run, "security-opt"):
        # Without this flag the container could not read the node's folders, and relabelling them would deny access to
        # the host's own programs.
        found.append("--security-opt=label=disable")
    return found


def _has_own_name(plan: ContainerPlan) -> bool:
    """Tell if the user's flags decide what the container calls itself."""
    shares = ("--network=container:", "--net=container:", "--network=ns:", "--net=ns:")
    return has_flag(plan.run, "hostname", "uts", "pod") or any(
        word.startswith(shares) for word in flags(plan.run, plan.engine)
    )


def _bind(source: Path, target: str, *, read_only: bool = False) -> str:
    """Return a mount flag.

    Unlike `--volume` it allows colons in paths, and fails for a missing source instead of creating it.
    """
    parts = ("type=bind", f"source={source}", f"target={target}", *(("readonly",) if read_only else ()))
    return f"--mount={','.join(_quoted(part) for part in parts)}"


def _device_flags(plan: ContainerPlan, host: HostCapabilities) -> list[str]:
    """Return flags for devices that the user's flags do not mention."""
    written = flags(plan.run, plan.engine)
    if any(word in ("--privileged", "--privileged=true") for word in written):
        return []
    found = [f"--device={path}" for path in host.devices if not any(path in word for word in written)]
    registers_memory = any(path.endswith(f"/{FABRIC}") for path in host.devices)
    # RDMA locks the memory that it sends from, and the engine's default limit is 64 kB. Only root may raise it.
    may_raise = not host.rootless and (host.privileged or plan.engine != "podman")
    if registers_memory and may_raise and not any(word.startswith("--ulimit=memlock=") for word in written):
        found.append("--ulimit=memlock=-1")
    return found


def _quoted(part: str) -> str:
    """Quote a field of the flag, whose format is CSV."""
    return '"' + part.replace('"', '""') + '"' if set(part) & {",", '"'} else part


def _same_path_mounts(plan: ContainerPlan) -> list[str]:
    """Return the mounts of paths that are the same inside. A nested path comes after its parent."""
    written, read = outermost(plan.folders), _not_covered(plan.read, plan.folders)
    found = [(folder, False) for folder in written] + [(folder, True) for folder in read]
    return [
        _bind(folder, str(folder), read_only=read_only)
        for folder, read_only in sorted(found, key=lambda each: len(each[0].parts))
    ]


def _not_covered(folders: Sequence[Path], others: Sequence[Path]) -> list[Path]:
    """Return the folders that are not visible already as part of the others."""
    return [folder for folder in outermost(folders) if not any(folder.is_relative_to(other) for other in others)]


def outermost(folders: Sequence[Path]) -> list[Path]:
    """Return each folder once, without those inside another one."""
    found: list[Path] = []
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return found
