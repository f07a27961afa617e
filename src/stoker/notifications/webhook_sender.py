"""A plain webhook: one POST of JSON, answered with any 2xx. Standard library alone."""

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
from stoker.notifications.events import Letter
from stoker.notifications.json_body import body
from stoker.notifications.senders import ALL_S, TIMEOUT_S, NotHere, NotSent, Send

# What an answer says is told to people, as far as anybody reads it.
_MOST_ANSWER = 200


class _Stay(urllib.request.HTTPRedirectHandler):
    """The body names jobs, and the address may be a secret: neither goes where the answer says."""

    def redirect_request(self, *_: Any) -> None:
        return None


def open_webhook(url: str) -> Send:
    """What posts to this address. The usual variables for proxies are heeded."""
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": "stoker"}
    host = parts.netloc.rpartition("@")[2]
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    bare = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))

    def send(letter: Letter) -> None:
        data = json.dumps(body(letter), ensure_ascii=False).encode(errors="backslashreplace")
        request = urllib.request.Request(bare, data, {**headers, "X-Stoker-Message": letter.id}, method="POST")
        line = _Line()
        cut_off = threading.Timer(ALL_S, line.cut)
        cut_off.daemon = True
        cut_off.start()
        try:
            with line.opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            raise NotSent(channel_address.scrubbed(_refusal(error), url)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            # Another computer may know the name, or have a way there.
            here = isinstance(why, (socket.gaierror, ConnectionRefusedError)) or _is_way(why)
            why = f"no whole answer within {ALL_S:g} s" if line.is_cut else why
            told = channel_address.scrubbed(f"does not answer: {why}", url)
            raise NotHere(told) if here else NotSent(told) from None
        finally:
            cut_off.cancel()

    return send


class _Line:
    """What one message goes through. Timeouts alone end no answer that comes a letter at a time."""

    def __init__(self) -> None:
        self.is_cut = False
        self._sockets: list[socket.socket] = []
        self.opener = urllib.request.build_opener(_Stay, self._Plain(self), self._Secure(self))

    def cut(self) -> None:
        self.is_cut = True
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def remember(self, kind: type[http.client.HTTPConnection]) -> Any:
        line = self

        class Remembered(kind):  # type: ignore[valid-type,misc]
            def connect(self) -> None:
                super().connect()
                line._sockets.append(self.sock)

        return Remembered

    class _Plain(urllib.request.HTTPHandler):
        def __init__(self, line: _Line) -> None:
            super().__init__()
            self._kind = line.remember(http.client.HTTPConnection)

        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(self._kind, req)

    class _Secure(urllib.request.HTTPSHandler):
        def __init__(self, line: _Line) -> None:
            super().__init__()
            self._kind = line.remember(http.client.HTTPSConnection)

        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(self._kind, req)


def _is_way(why: object) -> bool:
    return isinstance(why, OSError) and why.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


def _refusal(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        return f"answers with {error.code}: it is elsewhere now; name the new address"
    try:
        said = error.read(_MOST_ANSWER).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        said = ""
    return f"answers with {error.code}{f': {said}' if said else ''}"
