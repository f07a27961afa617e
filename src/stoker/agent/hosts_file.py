"""`/etc/hosts` with the names of the nodes: a file of the node that the training sees there, or the machine's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stoker.agent.runtime import BindMount
from stoker.core.node_names import hosts_text, is_address
from stoker.model.docker_flags import flags, mount_targets
from stoker.model.node_config import NodePaths
from stoker.model.spec import Spec

HOSTS = "/etc/hosts"
# Ends each line that was added to the machine's own file.
_MARK = "\t# Stoker: a node of the job"


def mounts(paths: NodePaths, spec: Spec, own: str = "127.0.0.1") -> tuple[BindMount, ...]:
    """Return the mount of the node's own file, created if absent. May be repeated.

    The set-up needs the hosts that the user adds to the container, so they are in the file from the beginning; `own` is
    this node's address. No mount if the job's container has a file of the user there.
    """
    container = spec.environment.container
    if container is not None and HOSTS in mount_targets(container.run, container.engine):
        return ()
    if not _file(paths).exists():
        _write_own(paths, hosts_text(_known(), dict(_added_hosts(spec, own))))
    return (BindMount(_file(paths), HOSTS),)


def write(paths: NodePaths, spec: Spec, names: Mapping[str, str], own: str) -> None:
    """Write the node's own file, in place: a container that was created earlier sees the same file.

    `names` have their addresses; `own` is this node's. Hosts that the user adds to the container are in the file, too:
    the engine adds none to a file that it did not make.
    """
    _write_own(paths, hosts_text(_known(), {**names, **dict(_added_hosts(spec, own))}))


def add_to_machine(names: Mapping[str, str]) -> None:
    """Add names to the machine's own file, and remove those that were added before. Raises OSError.

    For a machine that serves this job alone.
    """
    _write(Path(HOSTS), hosts_text(_known(), names, _MARK))


def _file(paths: NodePaths) -> Path:
    return paths.root / "hosts"


def _known() -> str:
    try:
        return Path(HOSTS).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return "127.0.0.1\tlocalhost\n"


def _write_own(paths: NodePaths, text: str) -> None:
    _write(_file(paths), text)
    # Another user of a container reads it, too, whatever the umask.
    _file(paths).chmod(0o644)


def _write(path: Path, text: str) -> None:
    """Write without a moment in which the file is empty, and without another file in its place: it may be mounted."""
    data = text.encode("utf-8", errors="surrogateescape")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.truncate()


def _added_hosts(spec: Spec, own: str) -> Iterator[tuple[str, str]]:
    container = spec.environment.container
    for word in flags(container.run, container.engine) if container is not None else ():
        flag, _, value = word.partition("=")
        names, _, address = re.sub("[:=]", " ", value, count=1).partition(" ")
        address = own if address == "host-gateway" else address.strip("[]")
        if flag == "--add-host" and is_address(address):
            yield from ((name, address) for name in names.split(";"))
