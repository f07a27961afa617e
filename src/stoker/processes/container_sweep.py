"""What a dead agent left of its container. Light: a node's supervisor uses it, too.

<node>/container.json says that there may be one. It is there before the container is, and gone after it.
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

# An engine that hangs must not keep a machine from going off: the container has ended by itself when its agent did.
_PATIENCE_S = 20.0
_TRIES = 3
_PAUSE_S = 0.2


class Record(NamedTuple):
    """Who made the container, and where the passwords for its image may lie."""

    engine: str
    private: str


def container_name(root: Path) -> str:
    """What the container of a node is called. The same job may have a namesake under another home."""
    return f"stoker-{root.name}-{zlib.crc32(os.fsencode(root)):08x}"


def record_of(root: Path) -> Path:
    return root / "container.json"


def write_record(root: Path, record: Record) -> None:
    draft = root / ".container.json.tmp"
    draft.write_text(json.dumps(record._asdict()))
    draft.replace(record_of(root))


def read_record(root: Path) -> Record | None:
    """None: there is none, or it was not written by an agent."""
    try:
        found = json.loads(record_of(root).read_text())
        record = Record(**{name: str(found[name]) for name in Record._fields})
    except (OSError, ValueError, LookupError, TypeError):
        return None
    # The training may write here, too: nothing but what an agent would have written is run or removed.
    sound = record.engine in ("docker", "podman") and Path(record.private).name == container_name(root)
    return record if sound else None


def sweep(root: Path) -> None:
    """Remove the container that the node's agent left, if it left one. Never raises; repeating is harmless."""
    record = read_record(root)
    if record is None:
        return
    shutil.rmtree(record.private, ignore_errors=True)
    shutil.rmtree(root / "door", ignore_errors=True)
    for _ in range(_TRIES):
        # An engine that is itself about to take it away may say that it cannot.
        if remove(record.engine, container_name(root)):
            record_of(root).unlink(missing_ok=True)
            return
        time.sleep(_PAUSE_S)


def remove(engine: str, name: str) -> bool:
    """End a container and take it off the disk. False: the engine did not answer."""
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
    complaint = ended.stderr.lower()
    gone = ("no such container", "no container with name or id", "already in progress")
    return ended.returncode == 0 or any(words in complaint for words in gone)
