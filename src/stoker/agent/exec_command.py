"""Run a user's command where the training runs, with the training's environment: `stoker exec`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.agent.container.pipes import exec_in_container
from stoker.model.node_config import NodePaths
from stoker.processes import NODE, TRAINING, environ_of, stat_of
from stoker.processes.container_sweep import read_record
from stoker.processes.exec_sessions import EXEC

# Variables of the user's own terminal.
_USER_VARIABLES = ("TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK")
_EXEC_MARK = f"{EXEC}=".encode()
_NOT_FOUND = 127
_NOT_RUN = 126


def run_command(root: Path, command: Sequence[str]) -> int:
    """Become the command, in the code folder, with the training's environment. Returns only on failure."""
    paths = NodePaths(root)
    found = training_environ(paths)
    if found is None:
        print("[stoker] the training does not run now: its environment is not there", file=sys.stderr)
    record = read_record(root)
    if record is not None:
        exec_in_container(record.engine, root, command, paths.code, shell_environ(found or {}))
    environ = shell_environ(os.environ if found is None else found)
    try:
        os.chdir(paths.code if paths.code.is_dir() else root)
        os.execvpe(command[0], list(command), environ)
    except FileNotFoundError:
        print(f"stoker: there is no program {command[0]!r} on this machine", file=sys.stderr)
        return _NOT_FOUND
    except OSError as error:
        print(f"stoker: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_RUN


def shell_environ(training: Mapping[str, str]) -> dict[str, str]:
    """Return the training's environment without the variables that mark its processes.

    So the command is not killed with the training, and the agent does not wait for it. On this computer it carries
    the mark with which it ends with its node.
    """
    environ = {name: value for name, value in training.items() if name not in (NODE, TRAINING)}
    return environ | {name: os.environ[name] for name in (*_USER_VARIABLES, EXEC) if name in os.environ}


def training_environ(paths: NodePaths) -> dict[str, str] | None:
    """Return the environment with which the node's training was started; None if none runs, or it may not be read."""
    # The channel is a folder of this node: its variable identifies the training.
    marker = b"STOKER_CHANNEL=" + os.fsencode(paths.channel)
    oldest: tuple[int, bytes] | None = None
    for name in os.listdir("/proc"):  # noqa: PTH208 - a name is all that is needed
        if not name.isdigit() or int(name) == os.getpid():
            continue
        stat = stat_of(int(name))
        try:
            data = environ_of(stat) if stat is not None else b""
        except OSError:
            continue  # The process has ended, or belongs to another user.
        words = data.split(b"\0")
        # Commands of `stoker exec` have the same environment, and may outlive a training.
        if marker not in words or any(word.startswith(_EXEC_MARK) for word in words):
            continue
        # The oldest process is the command itself: its children may have changed their environment.
        if stat is not None and (oldest is None or stat.started < oldest[0]):
            oldest = (stat.started, data)
    if oldest is None:
        return None
    pairs = (os.fsdecode(word).partition("=") for word in oldest[1].split(b"\0") if b"=" in word)
    return {name: value for name, _, value in pairs}
