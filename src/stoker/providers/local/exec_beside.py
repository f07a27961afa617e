"""Become a command beside a node's training, as `stoker exec` runs it: a process that ends with the node.

python -m stoker.providers.local.exec_beside NODE_DIR COMMAND…
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.processes import NODE, find_group
from stoker.processes.exec_sessions import join
from stoker.providers.local.folder import NodeFolder

_NOT_RUN = 126


def main(argv: list[str]) -> int:
    """Join the node, and become the command. Returns only on failure."""
    node = NodeFolder(Path(argv[0]))
    if _join(node):
        os.execv(sys.executable, [sys.executable, "-m", "stoker.agent", str(node.path), "--", *argv[1:]])
    print(f"stoker: {node.instance} is off", file=sys.stderr)
    return _NOT_RUN


def _join(node: NodeFolder) -> bool:
    state = node.read_state()
    if state is None or state.phase != "running":
        return False
    # The training can write the state: its cgroup counts only if it has this node's name.
    group = find_group(NODE, node.owner, state.process, folder=state.cgroup, sessions=node.sessions)
    if group is None:
        return False
    try:
        join(node.owner, group.folder)
    except ProcessLookupError:
        return False
    # Read again: the supervisor writes that the node is stopping before it kills what has joined.
    state = node.read_state()
    return state is not None and state.phase == "running"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
