"""Retries and plain HTTP for a machine that boots: standard library alone, Python 3.6 or newer."""

import hashlib
import http.client
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

# How long each problem is retried. A new machine gets its identity and the permissions of a bucket late, its network
# later.
ANSWER_S = 240.0
ROLE_S = 90.0
DENIED_S = 45.0
ABSENT_S = 5.0
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = 20.0
_CHUNK = 1 << 20
_LIMIT_VARIABLE = "STOKER_BOOT_PATIENCE_S"


class BootFailed(Exception):
    """The boot cannot succeed. The message says why, and what to do about it."""


class RetryableFailure(Exception):
    """A problem that may disappear within `patience_s`. If it does not, `failure` is the message of BootFailed."""

    def __init__(self, failure: str, patience_s: float) -> None:
        super().__init__(failure)
        self.failure = failure
        self.patience_s = patience_s


def retry(attempt: "Callable[[], T]") -> T:
    """Repeat the attempt until it succeeds. Raises BootFailed if a problem outlasts its patience."""
    began = time.monotonic()
    most_s = float(os.environ.get(_LIMIT_VARIABLE) or ANSWER_S)
    pause_s = 0.1
    while True:
        try:
            return attempt()
        except RetryableFailure as problem:
            left_s = began + min(problem.patience_s, most_s) - time.monotonic()
            if left_s <= 0:
                raise BootFailed(problem.failure) from None
        time.sleep(min(pause_s, left_s))
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def limit_retries(most_s: float) -> None:
    """Limit every later `retry` of this process to this time."""
    os.environ[_LIMIT_VARIABLE] = str(min(most_s, float(os.environ.get(_LIMIT_VARIABLE) or most_s)))


def send_request(
    method: str,
    url: str,
    headers: "Mapping[str, str]",
    data: bytes,
    take: "Callable[[http.client.HTTPResponse], object]",
    refused: "Callable[[http.client.HTTPResponse], object]",
    remedy: str,
) -> None:
    """Send one request and pass a 2xx answer to `take`, any other to `refused`.

    Raises RetryableFailure, whose message ends with `remedy`, if there is no answer.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=_TIMEOUT_S)
    path = parts.path + ("?" + parts.query if parts.query else "")
    try:
        connection.request(method, path, body=data or None, headers=dict(headers))
        answer = connection.getresponse()
        if 200 <= answer.status < 300:
            take(answer)
        else:
            refused(answer)
    except ssl.SSLError as error:
        raise RetryableFailure(
            f"{parts.netloc} cannot be trusted: {error} — the image needs CA certificates", 30.0
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise RetryableFailure(f"{parts.netloc} does not answer: {error!r} — {remedy}", ANSWER_S) from None
    finally:
        connection.close()


def save_body(answer: http.client.HTTPResponse, target: Path) -> str:
    """Write the body of an answer to a file. Returns its SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for chunk in iter(lambda: answer.read(_CHUNK), b""):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()
