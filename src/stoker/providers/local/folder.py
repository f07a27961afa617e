"""A node's folder: the files through which its launcher, supervisor, agent and provider communicate."""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.processes import Process

NodePhase = Literal["running", "stopping", "gone"]


_STATE_KINDS: dict[str, type | tuple[type, ...]] = {
    "phase": str,
    "pid": int,
    "started": int,
    "boot": str,
    "cgroup": (str, type(None)),
    "computer": str,
    "at": (int, float),
    "reason": str,
}


class NodeState(NamedTuple):
    """The state of a node, written by its supervisor, or by the process that found the supervisor dead."""

    phase: NodePhase
    process: Process
    cgroup: str | None
    computer: str
    at: float
    reason: str


class _File:
    """A file of a node's folder: the attribute of a `NodeFolder` is its path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, node: NodeFolder, _: type[NodeFolder]) -> Path:
        return node.path / self._name


class NodeFolder:
    """The folder of one node and its files."""

    # The agent's configuration (stoker.model.node_config), and the supervisor's.
    config = _File("node.json")
    settings = _File("machine.json")
    # Locked while the supervisor lives: unlike a pid, the lock is not misleading after a reuse, nor after kill -9.
    alive = _File("alive")
    # The supervisor's process; once the phase is `gone`, the final record, which is never taken back.
    state = _File("state.json")
    # Requests to the supervisor: switch the machine off; reclaim it.
    terminate = _File("terminate")
    interrupt = _File("interrupt.json")
    # The notice of a reclaim to the agent. Its deadline is in this computer's monotonic time.
    notice = _File("notice.json")
    # Sessions of the node's processes, on computers without cgroups.
    sessions = _File("sessions")
    # Appears when the agent's exit is in the store (stoker.model.node_config).
    left = _File("left")
    # Appears when the agent may have a container (stoker.processes.container_sweep).
    container = _File("container.json")
    log = _File("node.log")
    agent_log = _File("agent.log")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = path.name
        self.root = path.parent
        # Marks the node's processes. Another STOKER_HOME may have a node of the same name, hence the path's digest.
        self.owner = f"{path.name}-{zlib.crc32(os.fsencode(path)):08x}"
        # Exists while the node is not known to be gone.
        self.live = path.parent / "live" / path.name

    def read_state(self) -> NodeState | None:
        """Read the state. None: no supervisor ever wrote one, or the file is damaged."""
        tree = read_json(self.state)
        if tree is None:
            return None
        # The training can write here, too: fields of the wrong type count as damage.
        if any(not isinstance(tree.get(key), kind) for key, kind in _STATE_KINDS.items()):
            return None
        process = Process(tree["pid"], tree["started"], tree["boot"])
        return NodeState(tree["phase"], process, tree.get("cgroup"), tree["computer"], tree["at"], tree["reason"])

    def write_state(self, state: NodeState) -> None:
        pid, started, boot = state.process
        rest = {key: value for key, value in state._asdict().items() if key != "process"}
        write_json(self.state, {**rest, "pid": pid, "started": started, "boot": boot})


def computer_id() -> str:
    """This computer's name. A home folder may be shared with computers whose processes cannot be seen from here."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:  # noqa: PTH123 - keeps start-up fast
            name = file.read().strip()
    except OSError:
        name = ""
    return name or os.uname().nodename


# Far above the size of any file that is written here.
_MOST_BYTES = 1024 * 1024


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object. None if there is no such file, or it holds no JSON object (after a power loss)."""
    try:
        # The training can write here, too: a pipe must not block the reader, which could then never end this node.
        with open(path, "rb", opener=_open_nonblocking) as file:
            return codec.parse_object(file.read(_MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, BlockingIOError, CodecError):
        return None


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Write atomically: readers see the old text or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(tree))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def open_lock(path: Path, *, create: bool = False) -> int:
    """Open a lock file. The descriptor is inherited only if passed on; the lock lives as long as any copy of it."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)


def try_lock(handle: int, *, exclusive: bool) -> bool:
    """Take the lock without waiting; False if it is held. A shared lock tests for a holder without excluding others."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wake_waiters(root: Path) -> None:
    """Wake the processes that wait for an event on this root. Best effort."""
    try:
        # One byte longer each time: two events within one tick of the file system's clock still differ.
        handle = os.open(root / "wake", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b".")
        finally:
            os.close(handle)
    except OSError:
        return


def utc_now() -> str:
    """The current time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
