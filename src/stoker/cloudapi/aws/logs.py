"""Write to CloudWatch Logs from a machine, with its role's credentials. Standard library alone.

https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html

The limits below are the service's. Sequence tokens are no longer needed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stoker.cloudapi.aws.container import metadata
from stoker.cloudapi.aws.imds import Imds, ImdsError
from stoker.cloudapi.aws.signed_calls import STALE, SignedCalls, rpc_headers
from stoker.cloudapi.aws.sigv4 import Credentials
from stoker.cloudapi.http_exchange import NoAnswer

# Limits of one PutLogEvents: its messages in UTF-8, plus 26 bytes each.
MOST_BATCH_BYTES = 1_048_576
EVENT_OVERHEAD_BYTES = 26
MOST_BATCH_EVENTS = 10_000
MOST_BATCH_SPAN_MS = 24 * 3600 * 1000
# The service accepts 1 MiB since April 2025; consumers behind it (subscriptions, exports) accept this much.
MOST_EVENT_BYTES = 256 * 1024 - EVENT_OVERHEAD_BYTES

_GROUP = re.compile(r"[A-Za-z0-9_./#-]{1,512}")
# The metadata service provides new credentials five minutes before the old ones expire.
_CREDENTIALS_FOR_S = 120.0


class CloudWatchLogsError(OSError):
    """CloudWatch Logs refused, or did not answer (then `code` is empty)."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class LogEvent(NamedTuple):
    """One line. `size` is its size in a batch."""

    at_ms: int
    message: str
    size: int


def is_group(name: str) -> bool:
    """Tell if this is a valid name of a log group."""
    return _GROUP.fullmatch(name) is not None


def event(at_ms: int, message: str) -> LogEvent:
    """Build an event with its size. The service accepts no empty message."""
    text = message or " "
    return LogEvent(at_ms, text, len(text.encode()) + EVENT_OVERHEAD_BYTES)


def log_stream(job: str, attempt: int, rank: int) -> str:
    """Name of a node's log in CloudWatch: one stream for each job, attempt and node."""
    return f"{job}/{attempt}/{rank}"


class CloudWatchLogs:
    """The service in this machine's region. Not thread-safe. Every method raises CloudWatchLogsError."""

    def __init__(self, imds: Imds | None = None, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._imds = imds or metadata(environ)
        self._endpoint = environ.get("AWS_ENDPOINT_URL_LOGS") or environ.get("AWS_ENDPOINT_URL")
        self._region = ""
        self._credentials: Credentials | None = None
        self._credentials_until_s = 0.0
        self._calls = SignedCalls()

    def create_stream(self, group: str, stream: str) -> None:
        """Create a stream, unless it exists."""
        self._make("CreateLogStream", {"logGroupName": group, "logStreamName": stream})

    def create_group(self, group: str) -> bool:
        """Create a group. False: it existed already."""
        return self._make("CreateLogGroup", {"logGroupName": group})

    def retain(self, group: str, days: int) -> None:
        """Let the group delete older events."""
        self.call("PutRetentionPolicy", {"logGroupName": group, "retentionInDays": days})

    def put(self, group: str, stream: str, events: Sequence[LogEvent]) -> int:
        """Write a batch that is within the limits.

        Returns how many events the service accepted and dropped: too old, or from a clock that is hours ahead.
        """
        log_events = [{"timestamp": each.at_ms, "message": each.message} for each in events]
        answer = self.call("PutLogEvents", {"logGroupName": group, "logStreamName": stream, "logEvents": log_events})
        rejected = answer.get("rejectedLogEventsInfo")
        return _dropped(rejected, len(events)) if isinstance(rejected, dict) else 0

    def call(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request. It is repeated at once after refreshing stale credentials or the clock offset."""
        try:
            return self._call(operation, params)
        except CloudWatchLogsError as error:
            if error.code not in STALE:
                raise
            self._credentials = None
        return self._call(operation, params)

    def _make(self, operation: str, params: Mapping[str, Any]) -> bool:
        try:
            self.call(operation, params)
        except CloudWatchLogsError as error:
            if error.code != "ResourceAlreadyExistsException":
                raise
            return False
        return True

    def _call(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(params, ensure_ascii=False, separators=(",", ":")).encode()
        headers = rpc_headers(f"Logs_20140328.{operation}")
        try:
            url = self._url()
            reply = self._calls.post(url, "logs", self._region, self._role(), headers, body)
        except (ImdsError, NoAnswer) as error:
            raise CloudWatchLogsError("", str(error)) from None
        if reply.code:
            raise CloudWatchLogsError(reply.code, reply.refusal(operation))
        return reply.tree

    def _url(self) -> str:
        """Return the address of the service in the machine's own region, which need not be the bucket's."""
        if not self._region:
            self._region = self._imds.get("meta-data/placement/region") or ""
            if not self._region:
                raise CloudWatchLogsError("", "the metadata service does not report the region")
        if not self._endpoint:
            domain = self._imds.get("meta-data/services/domain") or "amazonaws.com"
            self._endpoint = f"https://logs.{self._region}.{domain}"
        return f"{self._endpoint.rstrip('/')}/"

    def _role(self) -> Credentials:
        if self._credentials is None or time.monotonic() >= self._credentials_until_s:
            self._credentials = self._imds.credentials()
            self._credentials_until_s = time.monotonic() + _CREDENTIALS_FOR_S
        if self._credentials is None:
            raise CloudWatchLogsError("", "the machine has no instance profile")
        return self._credentials


def _dropped(rejected: Mapping[str, Any], count: int) -> int:
    """https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_RejectedLogEventsInfo.html"""
    old = max(int(rejected.get("expiredLogEventEndIndex") or 0), int(rejected.get("tooOldLogEventEndIndex") or 0))
    new = rejected.get("tooNewLogEventStartIndex")
    return min(count, old + (count - int(new) if new is not None else 0))
