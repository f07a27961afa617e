"""What the real gcloud asks Compute Engine for: run in a place with loopback only, it answers on stdout.

    python gcloud_recorder.py <COMMANDS.json >REQUESTS.json

Each command is a list of words behind `gcloud`; each request has its method, path and body. A POST is refused, so that
gcloud ends there. Exits with 77 where more than loopback could be reached.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOT_ISOLATED = 77
_TIMEOUT_S = 120

recorded: list[dict[str, Any]] = []


class Recorder(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        # A zone or a region that gcloud looks at first.
        self._answer(200, {"name": self.path.partition("?")[0].rpartition("/")[2], "status": "UP", "items": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        recorded.append({"method": "POST", "path": self.path.partition("?")[0], "body": json.loads(body)})
        self._answer(400, {"error": {"code": 400, "message": "recorded", "errors": [{"reason": "recorded"}]}})

    def _answer(self, status: int, told: dict[str, Any]) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> int:
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        return NOT_ISOLATED
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_address[1]}/compute/v1/"
    with tempfile.TemporaryDirectory() as config:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": config,
            "CLOUDSDK_CONFIG": config,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": origin,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": "vision-1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }
        for words in json.load(sys.stdin):
            before = len(recorded)
            done = subprocess.run(["gcloud", *words], env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S)
            if len(recorded) != before + 1:
                print(done.stderr, file=sys.stderr)
                return 1
    # Links are links wherever the server is.
    print(json.dumps(recorded).replace(origin, ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
