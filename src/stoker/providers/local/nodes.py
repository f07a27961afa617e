"""Make, find and end the nodes of one root. Any process may call any of these functions at any time, concurrently.

A node's lock is the only certain evidence. The process that holds it exclusively is the node's supervisor, starts the
supervisor, or cleans up after it. If the lock is free and the state is not `gone`, the supervisor is dead: a machine
without a power supply is off, so the process that finds it ends the node's remaining processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.model.errors import Transient
from stoker.model.offerings import InstanceState
from stoker.processes import NODE, TRAINING, Process, boot_id, find_group
from stoker.processes.container_sweep import sweep
from stoker.processes.detached import absolute_environment
from stoker.processes.exec_sessions import EXEC, kill_joined
from stoker.processes.unmounting import unmount_below
from stoker.providers.base import TerminateResult
from stoker.providers.local.capabilities import RETAIN_GONE_S
from stoker.providers.local.folder import (
    NodeFolder,
    NodeState,
    computer_id,
    open_lock,
    read_json,
    try_lock,
    write_json,
)

# How long one probe may take to end the processes of a dead node; the next probe continues.
KILL_S = 2.0
# How long a launch waits while another process seems to be starting the same node.
START_S = 5.0
# Variables about a training that the launcher itself may be part of: the new node is not part of it.
_TRAINING_VARIABLES = {
    NODE,
    TRAINING,
    EXEC,
    "STOKER_JOB",
    "STOKER_ATTEMPT",
    "STOKER_CHECKPOINT_DIR",
    "STOKER_OUTPUT_DIR",
    "STOKER_PARAMS",
    "STOKER_NOTICE_FILE",
    "STOKER_SECRETS",
}
_DRAFT = ".new-"
_TRASH = ".old-"


@contextmanager
def launching(root: Path) -> Iterator[None]:
    """Allow one launcher at a time on a root: counts made under this lock stay true while it is held."""
    (root / "live").mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = open_lock(root / "lock", create=True)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def live_nodes(root: Path) -> list[NodeFolder]:
    """Every node that is not known to be gone, by name."""
    try:
        names = sorted(entry.name for entry in (root / "live").iterdir())
    except FileNotFoundError:
        return []
    return [NodeFolder(root / name) for name in names]


def make_folder(root: Path, params: Mapping[str, Any]) -> NodeFolder:
    """Make the node's folder unless it exists. Only under `launching`. The folder appears complete or not at all."""
    config = params["node"]
    node = NodeFolder(root / config["instance"])
    if node.path.exists():
        return node
    draft = root / f"{_DRAFT}{node.instance}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    settings = {key: params[key] for key in ("spot", "grace_s", "reclaim_after_s") if key in params}
    write_json(draft / node.config.name, config)
    write_json(draft / node.settings.name, {**settings, "created_at": time.time()})
    (draft / node.alive.name).touch(mode=0o600)
    # Before the folder: a node whose folder exists is always listed.
    node.live.touch()
    draft.rename(node.path)
    return node


def start_supervisor(node: NodeFolder) -> subprocess.Popen[bytes] | None:
    """Power the machine on if it never was. None: it was, or another process is starting it."""
    lock = open_lock(node.alive)
    try:
        deadline = time.monotonic() + START_S
        while not try_lock(lock, exclusive=True):
            # Held by a supervisor, or for a moment by a probe.
            if node.state.exists() or time.monotonic() >= deadline:
                return None
            time.sleep(0.002)
        if node.state.exists():
            return None
        if node.terminate.exists():
            _record_gone(node, None, "terminated before it was started")
            return None
        # The supervisor inherits the lock, so that it is never free in between. Close it here without unlocking: the
        # lock belongs to the open file, which both processes share.
        with node.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "stoker.providers.local.supervisor", str(node.path), str(lock)],
                env=_environment(),
                # Python imports from its working directory; the node's own folder will hold the user's code.
                cwd=node.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
    finally:
        os.close(lock)


def probe(node: NodeFolder) -> InstanceState:
    """Return the node's state, and end the remaining processes of a node whose supervisor died. `gone` is final.

    Raises Transient for a node of another computer that shares this folder, if its lock is not held.
    """
    try:
        lock = open_lock(node.alive)
    except (FileNotFoundError, NotADirectoryError):
        return _end_without_lock_file(node)
    try:
        if not try_lock(lock, exclusive=False):
            return _state_while_locked(node)
        if not node.state.exists():
            if not node.log.exists():
                return "pending"  # Made, never started: its launcher died, and any launcher may start it.
            return _end_never_ran(node, lock)
        unreadable = NodeState("running", Process(0, 0, boot_id()), None, computer_id(), 0.0, "unreadable")
        state = node.read_state() or unreadable
        return "gone" if state.phase == "gone" else _end_dead_node(node, lock, state)
    finally:
        os.close(lock)


def terminate(node: NodeFolder) -> TerminateResult:
    """Switch the machine off at once, without grace, as clouds do. Repeating is harmless."""
    state = probe(node)
    if state == "gone":
        return "gone"
    try:
        node.terminate.touch()
    except OSError:
        pass  # A full disk: the signal has the same effect.
    recorded = node.read_state()
    if recorded is not None:
        recorded.process.signal(signal.SIGTERM)
        return "requested"
    return "gone" if _cancel(node) else "requested"


def interrupt(node: NodeFolder, grace_s: float, source: str) -> None:
    """Ask the supervisor to give notice."""
    write_json(node.interrupt, {"source": source, "grace_s": grace_s})
    recorded = node.read_state()
    if recorded is not None:
        recorded.process.signal(signal.SIGUSR1)


def created_at(node: NodeFolder) -> float:
    """The time when the node was made, by this computer's clock."""
    created = (read_json(node.settings) or {}).get("created_at")
    # The training can write this file, too.
    return float(created) if isinstance(created, (int, float)) and 0 < created < 1e11 else node.path.stat().st_mtime


def collect_gone(root: Path, now: float) -> list[Path]:
    """Move the folders of nodes that are long gone aside, for the caller to remove. Only under `launching`."""
    trash = []
    for node in live_nodes(root):
        if not node.path.exists():
            node.live.unlink(missing_ok=True)
    for entry in list(root.iterdir()):
        if entry.name.startswith((_DRAFT, _TRASH)):
            trash.append(entry)  # Left by a process that died before it finished.
            continue
        node = NodeFolder(entry)
        state = node.read_state() if entry.is_dir() else None
        if state is not None and state.phase == "gone" and now - state.at > RETAIN_GONE_S and probe(node) == "gone":
            node.live.unlink(missing_ok=True)
            trash.append(entry.rename(root / f"{_TRASH}{entry.name}"))
    return trash


def _state_while_locked(node: NodeFolder) -> InstanceState:
    state = node.read_state()
    if state is None:
        return "pending"
    return "running" if state.phase == "running" and not node.terminate.exists() else "stopping"


def _end_dead_node(node: NodeFolder, lock: int, state: NodeState) -> InstanceState:
    """End the processes of a node whose lock is free and whose state is not `gone`, then record it as gone."""
    if state.computer != computer_id():
        raise Transient(f"{node.instance} belongs to another computer that shares {node.root}")
    if state.process.alive:
        return "running"  # It is exiting, or the file system's locks cannot be trusted.
    if not try_lock(lock, exclusive=True):
        return "stopping"  # Another process is doing this.
    # The agent died with its supervisor; its container may not have.
    sweep(node.path)
    group = find_group(NODE, node.owner, state.process, folder=state.cgroup, sessions=node.sessions)
    if group is not None:
        if not (group.kill(KILL_S) and kill_joined(node.owner, KILL_S)):
            return "stopping"
        group.close()
    unmount_below(node.path)
    _record_gone(node, state, "its supervisor died")
    return "gone"


def _end_never_ran(node: NodeFolder, lock: int) -> InstanceState:
    """Record a node as gone whose supervisor died before it wrote a state, so that nothing ever ran on the node."""
    if not try_lock(lock, exclusive=True) or node.state.exists():
        return "pending"  # Another process is starting it right now.
    try:
        _record_gone(node, None, "its supervisor died before the machine was on")
    except OSError:
        return "pending"  # A full disk; the next probe tries again.
    return "gone"


def _end_without_lock_file(node: NodeFolder) -> InstanceState:
    """End the processes of a node without a lock file.

    Such a node was never here, or is long gone, or its folder was removed while it ran. In the last case its processes
    still carry its mark, and the next attempt must not start beside them.
    """
    state = node.read_state()
    if state is not None and state.phase != "gone" and state.process.alive:
        return "running"  # Only its lock was removed.
    group = find_group(NODE, node.owner, Process(0, 0, boot_id()), folder=None)
    if group is not None and group.members() and not group.kill(KILL_S):
        return "stopping"
    if not kill_joined(node.owner, KILL_S):
        return "stopping"
    # A supervisor whose agent was killed may try to restart it; without the folder it cannot, and exits.
    return "gone"


def _cancel(node: NodeFolder) -> bool:
    """Record a node as gone that was made and never started, unless another process is starting it."""
    lock = open_lock(node.alive)
    try:
        if not try_lock(lock, exclusive=True) or node.state.exists():
            return False
        _record_gone(node, None, "terminated before it was started")
        return True
    finally:
        os.close(lock)


def _record_gone(node: NodeFolder, state: NodeState | None, reason: str) -> None:
    """Write the final state. Only for the holder of the exclusive lock, once no process is left."""
    process = state.process if state is not None else Process(0, 0, boot_id())
    try:
        node.write_state(NodeState("gone", process, None, computer_id(), time.time(), reason))
    except OSError:
        # A full disk. The next probe finds a node that was started dead again; for one that was not, the caller needs
        # the error.
        if state is None:
            raise


def _environment() -> dict[str, str]:
    """The launcher's environment without its training's variables, as if the user had started the training by hand.

    Relative paths are made absolute: the node works in another folder.
    """
    return {
        key: value
        for key, value in absolute_environment().items()
        if key not in _TRAINING_VARIABLES and not key.startswith("STOKER_INPUT_")
    }
