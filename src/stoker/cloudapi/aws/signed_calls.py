"""Signed requests to the JSON services of AWS, with a correction of this machine's clock. Standard library alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from stoker.cloudapi.aws.sigv4 import Credentials, sign
from stoker.cloudapi.http_exchange import exchange, json_object

# Codes of rejected credentials. A wrong request time is one of the causes.
STALE = ("ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException")


class AwsReply(NamedTuple):
    """One answer. `code` is AWS's error code, empty for a success."""

    status: int
    tree: dict[str, Any]
    code: str = ""
    # The clocks differed, so that the same request may succeed now.
    clock_was_wrong: bool = False

    def refusal(self, operation: str) -> str:
        """The message of an unsuccessful answer."""
        detail = self.tree.get("message") or self.tree.get("Message") or ""
        return f"{operation} was answered with {self.code}{f': {detail}' if detail else ''}"


def rpc_headers(target: str) -> dict[str, str]:
    """The headers of a call by its target: the service's version and the operation."""
    return {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": target}


class SignedCalls:
    """Sends signed requests. Not thread-safe."""

    def __init__(self) -> None:
        # How far the service's clock is ahead of this machine's, measured when it rejects a request time.
        self._ahead = timedelta(0)

    def post(
        self, url: str, service: str, region: str, credentials: Credentials, headers: Mapping[str, str], body: bytes
    ) -> AwsReply:
        """Send one request. Raises NoAnswer."""
        now = datetime.now(timezone.utc) + self._ahead
        signed = sign("POST", url, credentials, region, now, headers, hashlib.sha256(body).hexdigest(), service)
        answer = exchange("POST", url, signed, body)
        tree = json_object(answer.data)
        if answer.status == 200:
            return AwsReply(200, tree)
        named = tree.get("__type") or answer.headers.get("x-amzn-errortype") or tree.get("code") or answer.status
        code = str(named).rpartition("#")[2].partition(":")[0]
        return AwsReply(answer.status, tree, code, code in STALE and self._adjust(answer.headers.get("Date") or ""))

    def _adjust(self, date: str) -> bool:
        """Measure the service's clock. Returns True if it differs from this machine's."""
        try:
            ahead = parsedate_to_datetime(date).astimezone(timezone.utc) - datetime.now(timezone.utc)
        except (ValueError, TypeError):
            return False
        # The service tolerates minutes; the rounding of a reply's date to seconds must not shift the clock.
        self._ahead = ahead if abs(ahead) > timedelta(minutes=1) else timedelta(0)
        return bool(self._ahead)
