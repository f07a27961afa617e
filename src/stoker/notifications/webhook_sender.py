"""Send to a plain webhook: one POST of JSON, answered with any 2xx. Standard library alone."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from stoker.model import channel_address
from stoker.notifications.events import Message
from stoker.notifications.json_body import body
from stoker.notifications.senders import MESSAGE_TIMEOUT_S, STEP_TIMEOUT_S, NotSent, Send, SenderUnavailable

# Bytes of a refusal's body that are quoted in the problem.
_MAX_ANSWER = 200


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the body names jobs, and the address may be a secret; neither goes where an answer says."""

    def redirect_request(self, *_: Any) -> None:
        return None


def open_webhook(url: str) -> Send:
    """Return a sender that posts to this address. The usual proxy variables apply."""
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": "stoker"}
    host = parts.netloc.rpartition("@")[2]
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    bare = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))

    def send(message: Message) -> None:
        data = json.dumps(body(message), ensure_ascii=False).encode(errors="backslashreplace")
        request = urllib.request.Request(bare, data, {**headers, "X-Stoker-Message": message.id}, method="POST")
        connection = _CuttableConnection()
        cut_off = threading.Timer(MESSAGE_TIMEOUT_S, connection.cut)
        cut_off.daemon = True
        cut_off.start()
        try:
            with connection.opener.open(request, timeout=STEP_TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            raise NotSent(channel_address.without_keys(_refusal(error), url)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            # Another computer may resolve the name, or have a route.
            is_local = isinstance(why, (socket.gaierror, ConnectionRefusedError)) or _has_no_route(why)
            why = f"no whole answer within {MESSAGE_TIMEOUT_S:g} s" if connection.is_cut else why
            problem = channel_address.without_keys(f"does not answer: {why}", url)
            raise SenderUnavailable(problem) if is_local else NotSent(problem) from None
        finally:
            cut_off.cancel()

    return send


class _CuttableConnection:
    """The connection of one message, which `cut` ends: timeouts alone do not end an answer that trickles in."""

    def __init__(self) -> None:
        self.is_cut = False
        self._sockets: list[socket.socket] = []
        self.opener = urllib.request.build_opener(_NoRedirects, self._Plain(self), self._Secure(self))

    def cut(self) -> None:
        self.is_cut = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _add(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self.is_cut:
            # Connecting took longer than the whole message may: a host of several addresses, or a slow handshake.
            self.cut()

    def recording(self, kind: type[http.client.HTTPConnection]) -> Any:
        connection = self

        class Recording(kind):  # type: ignore[valid-type,misc]
            def connect(self) -> None:
                super().connect()
                connection._add(self.sock)

        return Recording

    class _Plain(urllib.request.HTTPHandler):
        def __init__(self, connection: _CuttableConnection) -> None:
            super().__init__()
            self._kind = connection.recording(http.client.HTTPConnection)

        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(self._kind, req)

    class _Secure(urllib.request.HTTPSHandler):
        def __init__(self, connection: _CuttableConnection) -> None:
            super().__init__()
            self._kind = connection.recording(http.client.HTTPSConnection)

        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(self._kind, req)


def _has_no_route(why: object) -> bool:
    return isinstance(why, OSError) and why.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


def _refusal(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        return f"answers with {error.code}: it is elsewhere now; name the new address"
    try:
        text = error.read(_MAX_ANSWER).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        text = ""
    return f"answers with {error.code}{f': {text}' if text else ''}"
