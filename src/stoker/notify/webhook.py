"""A plain webhook: one POST of JSON, answered with any 2xx. Standard library alone."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from stoker.core.telling import Letter
from stoker.notify import address
from stoker.notify.body import body
from stoker.notify.senders import TIMEOUT_S, NotSent, Send

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
    opener = urllib.request.build_opener(_Stay)

    def send(letter: Letter) -> None:
        data = json.dumps(body(letter), ensure_ascii=False).encode(errors="backslashreplace")
        request = urllib.request.Request(bare, data, {**headers, "X-Stoker-Message": letter.id}, method="POST")
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            raise NotSent(address.scrubbed(_refusal(error), url)) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise NotSent(address.scrubbed(f"does not answer: {why}", url)) from None

    return send


def _refusal(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        return f"answers with {error.code}: it is elsewhere now; name the new address"
    try:
        said = error.read(_MOST_ANSWER).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        said = ""
    return f"answers with {error.code}{f': {said}' if said else ''}"
