"""Remove the container of a dead agent. Light, because a node's supervisor uses it too.

The file <node>/container.json says that there may be a container. It exists longer than the container does: from before
its creation until after its removal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from stoker.model import codec
from stoker.model.errors import CodecError

# A hanging engine must not keep a machine from turning off: the container has ended by itself with its agent.
_PATIENCE_S = 20.0
_TRIES = 3
_PAUSE_S = 0.2


class ContainerRecord(NamedTuple):
    """The engine that created the container, and the folder that may hold the passwords for its image."""

    engine: str
    private: str


def container_name(root: Path) -> str:
    """Return the name of a node's container. It includes the path: the same job may exist under another home."""
    return f"stoker-{root.name}-{zlib.crc32(os.fsencode(root)):08x}"


def record_of(root: Path) -> Path:
    return root / "container.json"


def write_record(root: Path, record: ContainerRecord) -> None:
    draft = root / ".container.json.tmp"
    draft.write_text(json.dumps(record._asdict()))
    draft.replace(record_of(root))


def read_record(root: Path) -> ContainerRecord | None:
    """Return the record; None if there is none, or if it was not written by an agent."""
    try:
        found = codec.parse_object(record_of(root).read_bytes())
        record = ContainerRecord(**{name: str(found[name]) for name in ContainerRecord._fields})
    except (OSError, CodecError, LookupError, TypeError):
        return None
    # The training may write here too, so nothing is run or removed that an agent would not have written.
    valid = record.engine in ("docker", "podman") and Path(record.private).name == container_name(root)
    return record if valid else None


def sweep(root: Path) -> None:
    """Remove the container that the node's agent left, if any. Never raises; repeating is harmless."""
    record = read_record(root)
    if record is None:
        return
    shutil.rmtree(record.private, ignore_errors=True)
    shutil.rmtree(root / "pipes", ignore_errors=True)
    for _ in range(_TRIES):
        # An engine that is already removing the container may report that it cannot.
        if remove(record.engine, container_name(root)):
            record_of(root).unlink(missing_ok=True)
            return
        time.sleep(_PAUSE_S)


def remove(engine: str, name: str) -> bool:
    """End a container and remove it from the disk. False: the engine did not answer."""
    try:
        ended = subprocess.run(
            [engine, "rm", "--force", "--volumes", name],
            env=os.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    message = ended.stderr.lower()
    gone = ("no such container", "no container with name or id", "already in progress")
    return ended.returncode == 0 or any(text in message for text in gone)
