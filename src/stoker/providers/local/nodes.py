"""Making, finding and ending the nodes of one root. Anybody may call anything at any time, in any number.

A node's lock tells what is known for sure. Whoever holds it exclusively is its supervisor, or is starting it, or is
burying it. When it is free and there is no tombstone, the supervisor is dead: a machine without a power supply is
off, so what is left of its processes is ended by whoever finds it.
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
from stoker.processes.unmounting import unmount_below
from stoker.providers.base import Terminated
from stoker.providers.local.capabilities import KEEP_GONE_S
from stoker.providers.local.folder import (
    NodeFolder,
    State,
    computer,
    open_lock,
    read_json,
    try_lock,
    write_json,
)

# How long one look at a dead node may take to end what is left of it; the next look goes on.
BURY_S = 2.0
# How long a launch waits while somebody else seems to be starting the same node.
START_S = 5.0
# What the environment says about the training that the launcher itself may be part of: the new node is no part of it.
_OF_TRAINING = {
    NODE,
    TRAINING,
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
    """One launcher at a time on a root: what is counted under this lock stays true while it is held."""
    (root / "live").mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = open_lock(root / "lock", create=True)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def live(root: Path) -> list[NodeFolder]:
    """Every node that is not known to be gone, by name."""
    try:
        names = sorted(entry.name for entry in (root / "live").iterdir())
    except FileNotFoundError:
        return []
    return [NodeFolder(root / name) for name in names]


def make(root: Path, params: Mapping[str, Any]) -> NodeFolder:
    """The node's folder, made if it is not there. Only under `launching`. The folder appears whole or not at all."""
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
    # Before the folder: a node that is there is always found.
    node.live.touch()
    draft.rename(node.path)
    return node


def start(node: NodeFolder) -> subprocess.Popen[bytes] | None:
    """Power the machine on, if it never was. None: it was, or somebody else is at it."""
    lock = open_lock(node.alive)
    try:
        deadline = time.monotonic() + START_S
        while not try_lock(lock, exclusive=True):
            # Held by a supervisor, or for a moment by somebody who looks.
            if node.state.exists() or time.monotonic() >= deadline:
                return None
            time.sleep(0.002)
        if node.state.exists():
            return None
        if node.terminate.exists():
            _entomb(node, None, "terminated before it was started")
            return None
        # The supervisor inherits the lock, so there is no moment at which nobody has it. It must not be unlocked
        # here, only closed: the lock belongs to the open file, and that is shared.
        with node.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "stoker.providers.local.node", str(node.path), str(lock)],
                env=_environment(),
                # Python imports from where it is started; the node's own folder will hold the user's code.
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
    """What the node is now. Ends what is left of one whose supervisor died. `gone` is never taken back.

    Raises Transient for a node of another computer that shares this folder, when its lock says nothing.
    """
    try:
        lock = open_lock(node.alive)
    except (FileNotFoundError, NotADirectoryError):
        return _bury_traceless(node)
    try:
        if not try_lock(lock, exclusive=False):
            return _held(node)
        if not node.state.exists():
            if not node.log.exists():
                return "pending"  # Made, never started: its launcher died, and anybody may launch it again.
            return _bury_stillborn(node, lock)
        state = node.read_state() or State("running", Process(0, 0, boot_id()), None, computer(), 0.0, "unreadable")
        return "gone" if state.phase == "gone" else _bury(node, lock, state)
    finally:
        os.close(lock)


def terminate(node: NodeFolder) -> Terminated:
    """Switch the machine off, hard, as clouds do. Repeating is harmless."""
    state = probe(node)
    if state == "gone":
        return "gone"
    try:
        node.terminate.touch()
    except OSError:
        pass  # A full disk: the signal says the same.
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
    """When the node was made, by this computer's clock."""
    created = (read_json(node.settings) or {}).get("created_at")
    # The training can write there, too.
    return float(created) if isinstance(created, (int, float)) and 0 < created < 1e11 else node.path.stat().st_mtime


def collect(root: Path, now: float) -> list[Path]:
    """Set aside the folders of nodes that are long gone, for the caller to remove. Only under `launching`."""
    trash = []
    for node in live(root):
        if not node.path.exists():
            node.live.unlink(missing_ok=True)
    for entry in list(root.iterdir()):
        if entry.name.startswith((_DRAFT, _TRASH)):
            trash.append(entry)  # Of somebody who did not live to finish.
            continue
        node = NodeFolder(entry)
        state = node.read_state() if entry.is_dir() else None
        if state is not None and state.phase == "gone" and now - state.at > KEEP_GONE_S and probe(node) == "gone":
            node.live.unlink(missing_ok=True)
            trash.append(entry.rename(root / f"{_TRASH}{entry.name}"))
    return trash


def _held(node: NodeFolder) -> InstanceState:
    state = node.read_state()
    if state is None:
        return "pending"
    return "running" if state.phase == "running" and not node.terminate.exists() else "stopping"


def _bury(node: NodeFolder, lock: int, state: State) -> InstanceState:
    """The lock is free and there is no tombstone: end what is left, then write one."""
    if state.computer != computer():
        raise Transient(f"{node.instance} belongs to another computer that shares {node.root}")
    if state.process.alive:
        return "running"  # On its way out, or a file system whose locks cannot be trusted.
    if not try_lock(lock, exclusive=True):
        return "stopping"  # Somebody else is at it.
    # Its agent died with its supervisor.
    sweep(node.path)
    group = find_group(NODE, node.owner, state.process, folder=state.cgroup, sessions=node.sessions)
    if group is not None:
        if not group.kill(BURY_S):
            return "stopping"
        group.close()
    unmount_below(node.path)
    _entomb(node, state, "its supervisor died")
    return "gone"


def _bury_stillborn(node: NodeFolder, lock: int) -> InstanceState:
    """Its supervisor was started and died before it said a word, so nothing ever ran here."""
    if not try_lock(lock, exclusive=True) or node.state.exists():
        return "pending"  # Somebody is starting it again this moment.
    try:
        _entomb(node, None, "its supervisor died before the machine was on")
    except OSError:
        return "pending"  # A full disk; the next look tries again.
    return "gone"


def _bury_traceless(node: NodeFolder) -> InstanceState:
    """It was never here, or is long gone, or somebody removed its folder while it ran.

    Then its processes still carry its mark, and the next attempt must not start beside them.
    """
    state = node.read_state()
    if state is not None and state.phase != "gone" and state.process.alive:
        return "running"  # Only its lock was removed.
    group = find_group(NODE, node.owner, Process(0, 0, boot_id()), folder=None)
    if group is not None and group.members() and not group.kill(BURY_S):
        return "stopping"
    # A supervisor whose agent was killed may be starting it again; it cannot, without the folder, and leaves.
    return "gone"


def _cancel(node: NodeFolder) -> bool:
    """Entomb a node that was made and never started, if nobody is starting it."""
    lock = open_lock(node.alive)
    try:
        if not try_lock(lock, exclusive=True) or node.state.exists():
            return False
        _entomb(node, None, "terminated before it was started")
        return True
    finally:
        os.close(lock)


def _entomb(node: NodeFolder, state: State | None, reason: str) -> None:
    """Only by the holder of the exclusive lock, when nobody is left."""
    process = state.process if state is not None else Process(0, 0, boot_id())
    try:
        node.write_state(State("gone", process, None, computer(), time.time(), reason))
    except OSError:
        # A full disk. A node that was started is found dead again by the next look; one that was not must be told.
        if state is None:
            raise


def _environment() -> dict[str, str]:
    """The launcher's own, as if the person had started the training by hand."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in _OF_TRAINING and not key.startswith("STOKER_INPUT_")
    }
