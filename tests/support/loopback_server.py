"""The parts that the servers of fake clouds share: the record of their calls, and a server on loopback."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from http.server import ThreadingHTTPServer
from typing import Any


class ReplyLost(Exception):
    """The call was carried out, and its reply never arrives."""


class CallRecord:
    """The calls that a cloud got, and requests that did not fit. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._broken: list[str] = []

    def count(self, operation: str) -> None:
        with self._lock:
            self._calls[operation] += 1

    def remember(self, problem: str) -> None:
        """Keep the line that says what was wrong with a request."""
        with self._lock:
            self._broken.append(problem)

    def take_calls(self, reset: bool) -> dict[str, int]:
        with self._lock:
            found = dict(self._calls)
            if reset:
                self._calls.clear()
            return found

    def broken(self, reset: bool) -> list[str]:
        """Requests that did not fit, with what was wrong."""
        with self._lock:
            found = list(self._broken)
            if reset:
                self._broken.clear()
            return found


class LoopbackServer(ThreadingHTTPServer):
    """A server of a fake cloud. Its threads end with the process."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that went away are no news; anything else is the cloud's own fault and belongs in its log.
        if not isinstance(sys.exc_info()[1], (ConnectionError, ValueError)):
            super().handle_error(request, client_address)
