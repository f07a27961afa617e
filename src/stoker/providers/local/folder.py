"""A node's folder: what its maker, its supervisor, its agent and the provider tell each other.

node.json        what the agent is told (stoker.model.node_config)
machine.json     what the supervisor is told
alive            locked as long as the supervisor lives: it cannot be fooled by a reused pid, nor by kill -9
state.json       who the supervisor is; when the node is gone, that it is: a tombstone, never taken back
terminate        appears when somebody wants the machine off
interrupt.json   appears when somebody wants it reclaimed
notice.json      appears when it will be reclaimed; its deadline is in this computer's monotonic time
sessions         sessions of its processes, where there are no cgroups
left             appears when the agent's exit is in the store (stoker.model.node_config)
container.json   its agent may have a container (stoker.processes.container_sweep)
node.log         the supervisor's own words
agent.log        the agent's
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


class State(NamedTuple):
    """What a supervisor says of itself, or what was found out about it after its death."""

    phase: NodePhase
    process: Process
    cgroup: str | None
    computer: str
    at: float
    reason: str


class NodeFolder:
    """The files of one node, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = path.name
        self.root = path.parent
        # What its processes are known by. The same store and job may have a namesake under another STOKER_HOME.
        self.owner = f"{path.name}-{zlib.crc32(os.fsencode(path)):08x}"
        self.config = path / "node.json"
        self.settings = path / "machine.json"
        self.alive = path / "alive"
        self.state = path / "state.json"
        self.terminate = path / "terminate"
        self.interrupt = path / "interrupt.json"
        self.notice = path / "notice.json"
        self.sessions = path / "sessions"
        self.left = path / "left"
        self.container = path / "container.json"
        self.log = path / "node.log"
        self.agent_log = path / "agent.log"
        self.live = path.parent / "live" / path.name

    def read_state(self) -> State | None:
        """None: no supervisor ever got as far as to say that it is there (or the disk lost what it said)."""
        tree = read_json(self.state)
        if tree is None:
            return None
        # The training can write here, too: what is not of the right kind is as good as nothing.
        if any(not isinstance(tree.get(key), kind) for key, kind in _STATE_KINDS.items()):
            return None
        process = Process(tree["pid"], tree["started"], tree["boot"])
        return State(tree["phase"], process, tree.get("cgroup"), tree["computer"], tree["at"], tree["reason"])

    def write_state(self, state: State) -> None:
        pid, started, boot = state.process
        rest = {key: value for key, value in state._asdict().items() if key != "process"}
        write_json(self.state, {**rest, "pid": pid, "started": started, "boot": boot})


def computer() -> str:
    """This computer's own name: a home folder may be shared with others, whose processes cannot be seen from here."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:  # noqa: PTH123 - no more than needed at start-up
            name = file.read().strip()
    except OSError:
        name = ""
    return name or os.uname().nodename


# Nothing that is written here comes near this.
_MOST_BYTES = 1024 * 1024


def read_json(path: Path) -> dict[str, Any] | None:
    """None when there is no such file, or it holds no JSON object (a disk that lost power)."""
    try:
        # The training can write here, too: a pipe must not block whoever looks, for then nobody would end this node.
        with open(path, "rb", opener=_open_at_once) as file:
            tree = json.loads(file.read(_MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, BlockingIOError, ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def write_json(path: Path, tree: dict[str, Any]) -> None:
    """Readers see the old text or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(tree))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def open_lock(path: Path, *, create: bool = False) -> int:
    """A descriptor to lock with. Not inherited unless passed on; the lock lives as long as any copy of it."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)


def try_lock(handle: int, *, exclusive: bool) -> bool:
    """Whether the lock was had without waiting. A shared one tells that nobody holds it, without being in the way."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ring(root: Path) -> None:
    """Wake whoever waits for something to happen on this root. Best effort."""
    try:
        # A byte longer each time: two rings within one tick of the file system's clock still differ.
        handle = os.open(root / "wake", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b".")
        finally:
            os.close(handle)
    except OSError:
        return


def stamp() -> str:
    """Now, as people read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
