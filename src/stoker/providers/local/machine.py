"""A local node as its agent sees it."""

from __future__ import annotations

import hashlib
import socket
import time
from datetime import datetime
from pathlib import Path

from stoker.model.node_facts import NoticeFact
from stoker.providers.local.folder import NodeFolder, read_json, wake_waiters
from stoker.providers.node_side import end_process
from stoker.store.home import home

# Below the ports that the kernel assigns to outgoing connections (32768 and up by default), which come and go.
_FIRST_PORT = 20000
_PORTS = 12000


class LocalMachine:
    """One of possibly many nodes on this computer: they share its address, and differ in their ports."""

    def __init__(self, node_dir: Path) -> None:
        self._node = NodeFolder(node_dir.absolute())
        self._notice_version: tuple[int, int] | None = None
        self._notice: NoticeFact | None = None

    def notice(self) -> NoticeFact | None:
        """The notice in force. `grace_s` is the rest of the grace when this object first read the notice."""
        try:
            status = self._node.notice.stat()
        except OSError:
            return self._notice  # A notice is final: it stays even if the file is removed.
        version = (status.st_mtime_ns, status.st_ino)
        if version != self._notice_version:
            tree = read_json(self._node.notice)
            if tree is not None:
                self._notice = NoticeFact(
                    hard=bool(tree["hard"]),
                    source=str(tree["source"]),
                    at=datetime.fromisoformat(str(tree["at"]).replace("Z", "+00:00")),
                    # The monotonic clock is the same for every process of one boot of one computer.
                    grace_s=max(0.0, float(tree["deadline"]) - time.monotonic()),
                )
                self._notice_version = version
        return self._notice

    def address(self) -> str:
        """The address at which all nodes of this computer reach each other."""
        return "127.0.0.1"

    def master_port(self, preferred: int) -> int:
        """A free port. Derived from the node's name, because all jobs would share `preferred`."""
        start = int.from_bytes(hashlib.sha256(self._node.instance.encode()).digest()[:4], "big")
        for offset in range(_PORTS):
            port = _FIRST_PORT + (start + offset) % _PORTS
            if _is_free(port):
                return port
        return preferred

    @property
    def environments(self) -> Path:
        return home() / "environments"

    def wake_governors(self) -> None:
        """Wake the governors that wait for this store's nodes."""
        wake_waiters(self._node.root)

    def give_back(self) -> None:
        """End this process, from any thread; its supervisor does the rest. Does not return."""
        end_process()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
