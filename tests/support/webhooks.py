"""A webhook on loopback that keeps what it was sent, and fails as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hook:
    """What it was sent, and how it answers."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 204
    hangs_s: float = 0.0
    closes: bool = False
    location: str = ""
    says: bytes = b""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(told["kind"], told["job"]) for body in self.bodies for told in body["events"]]


@contextmanager
def webhook() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            hook.over.wait(hook.hangs_s)
            if hook.closes:
                self.close_connection = True
                self.connection.close()
                return
            hook.bodies.append(json.loads(data))
            hook.headers.append(dict(self.headers))
            self.send_response(hook.status)
            if hook.location:
                self.send_header("Location", hook.location)
            self.end_headers()
            self.wfile.write(hook.says)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook/s3cr3t-key"
    try:
        yield hook
    finally:
        hook.over.set()
        server.shutdown()
        server.server_close()
