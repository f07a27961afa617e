"""One HTTP request to a cloud, without an SDK, a proxy or a retry. Standard library alone."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from email.message import Message
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stoker.model import codec
from stoker.model.errors import CodecError

TIMEOUT_S = 10.0


class NoAnswer(OSError):
    """The host did not answer. This says nothing about what was requested."""


class HttpAnswer(NamedTuple):
    """One answer. The names of `headers` are compared without case."""

    status: int
    headers: Message
    data: bytes


def exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout_s: float | None = None,
    most_bytes: int = 1 << 20,
) -> HttpAnswer:
    """Send one request and return its answer, whatever its status. Raises NoAnswer."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT_S if timeout_s is None else timeout_s)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body=body, headers=dict(headers))
        answer = connection.getresponse()
        return HttpAnswer(answer.status, answer.headers, answer.read(most_bytes))
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"{parts.netloc} does not answer: {error or type(error).__name__}") from None
    finally:
        connection.close()


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty for anything else."""
    try:
        return codec.parse_object(data.decode("utf-8", "replace") or "{}")
    except CodecError:
        return {}


def with_scheme(endpoint: str) -> str:
    """The address of an endpoint that may be written as a bare host, as Google's tools accept it."""
    return endpoint if "://" in endpoint else f"http://{endpoint}"
