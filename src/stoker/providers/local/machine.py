"""A local node as its agent sees it."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

from stoker.model.node_facts import NoticeFact
from stoker.providers.local.folder import NodeFolder, read_json, ring
from stoker.store.home import home

# Below the ports that the kernel gives to outgoing connections (32768 and up by default), which come and go.
_FIRST_PORT = 20000
_PORTS = 12000


class LocalMachine:
    """One of possibly many nodes on this computer: they share its address, so ports are what tells them apart."""

    def __init__(self, node_dir: Path) -> None:
        self._node = NodeFolder(node_dir.absolute())
        self._seen: tuple[int, int] | None = None
        self._notice: NoticeFact | None = None

    def notice(self) -> NoticeFact | None:
        """The notice in force. `grace_s` is what was left of the grace when this object first saw the notice."""
        try:
            status = self._node.notice.stat()
        except OSError:
            return self._notice  # Final: once given, a notice stays.
        version = (status.st_mtime_ns, status.st_ino)
        if version != self._seen:
            tree = read_json(self._node.notice)
            if tree is not None:
                self._notice = NoticeFact(
                    hard=bool(tree["hard"]),
                    source=str(tree["source"]),
                    at=datetime.fromisoformat(str(tree["at"]).replace("Z", "+00:00")),
                    # The monotonic clock is the same for every process of one boot of one computer.
                    grace_s=max(0.0, float(tree["deadline"]) - time.monotonic()),
                )
                self._seen = version
        return self._notice

    def address(self) -> str:
        """All nodes of this computer reach each other here."""
        return "127.0.0.1"

    def master_port(self, preferred: int) -> int:
        """A port that nobody listens on. `preferred` would be every job's, so the node's own name picks instead."""
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
        """Whoever waits for this store's nodes is woken at once."""
        ring(self._node.root)

    def power_off(self) -> None:
        """End this process, from whichever thread; its supervisor does the rest. Does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
