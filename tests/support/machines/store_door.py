"""The door through which a cloud's S3 is reached, by the test and by the machines, and that can be shut.

S3 itself listens on loopback, where machines cannot reach it. Who finds the door shut gets HTTP 500, as S3 sends it.
"""

from __future__ import annotations

import socket
import threading
from typing import Literal

Who = Literal["nobody", "machines", "test", "everyone"]

_BODY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>InternalError</Code><Message>shut</Message></Error>'
_SHUT = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY
_CHUNK = 1 << 16


class StoreDoor:
    """Passes connections at `host` on to a port of loopback, in threads."""

    def __init__(self, host: str, upstream_port: int) -> None:
        self._host = host
        self._upstream_port = upstream_port
        self._shut_for: Who = "nobody"
        self._lock = threading.Lock()
        self._open: set[tuple[socket.socket, socket.socket, str]] = set()
        self._listener = socket.create_server((host, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self, who: Who) -> None:
        """From now on these find it shut, on connections that they have too; "nobody" opens it again."""
        with self._lock:
            self._shut_for = who
            cut = [(near, far) for near, far, peer in self._open if self._finds_it_shut(peer)]
        for pair in cut:
            for end in pair:
                _hang_up(end)

    def _finds_it_shut(self, peer: str) -> bool:
        match self._shut_for:
            case "everyone":
                return True
            case "nobody":
                return False
            case "test":
                return peer == self._host
            case "machines":
                return peer != self._host

    def _accept(self) -> None:
        while True:
            near, (peer, _) = self._listener.accept()
            threading.Thread(target=self._serve, args=(near, peer), daemon=True).start()

    def _serve(self, near: socket.socket, peer: str) -> None:
        with near:
            if self._finds_it_shut(peer):
                _refuse(near)
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._upstream_port))
            except OSError:
                return
            with far:
                self._join(near, far, peer)

    def _join(self, near: socket.socket, far: socket.socket, peer: str) -> None:
        pair = (near, far, peer)
        with self._lock:
            if self._finds_it_shut(peer):
                return
            self._open.add(pair)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
        back.start()
        _pass_on(near, far)
        back.join()
        with self._lock:
            self._open.discard(pair)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One end hung up without a word: so does the other.
        for end in (source, target):
            _hang_up(end)


def _refuse(near: socket.socket) -> None:
    near.settimeout(2.0)
    try:
        head = b""
        while b"\r\n\r\n" not in head and (data := near.recv(_CHUNK)):
            head += data
        near.sendall(_SHUT)
        near.shutdown(socket.SHUT_WR)
        # To close before all was read would reset the connection, and the answer might never be seen.
        while near.recv(_CHUNK):
            pass
    except OSError:
        pass  # the client has gone


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already
