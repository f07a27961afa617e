"""A node's log in Google's Cloud Logging, labelled by job, attempt and node. See `logcopy`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from stoker.agent.logs.cloud_copy import Limits, Line, Refused
from stoker.cloudapi.google import logs
from stoker.cloudapi.google.logs import CloudLogging, Entry, LogsError, Source
from stoker.model.node_config import NodeConfig

_LIMITS = Limits(
    batch_bytes=logs.MOST_REQUEST_BYTES,
    batch_lines=logs.MOST_ENTRIES,
    line_bytes=logs.MOST_TEXT_BYTES,
    # A project's quota is 2000 requests a second, for all its machines.
    pause_s=0.05,
)
_NEVER = ("INVALID_ARGUMENT", "413")


def open_cloud_logging(log: str, config: NodeConfig, attempt: int) -> CloudLoggingSink:
    """Where this node's lines go. Nobody is asked yet."""
    # `us-central1-a.4242424242424242424`
    zone, _, number = config.instance.partition(".")
    marks = logs.labels(config.job, attempt, config.rank)
    return CloudLoggingSink(CloudLogging(log, marks, Source(number, zone)), log)


class CloudLoggingSink:
    """One log. It needs no making."""

    name = "Cloud Logging"
    limits = _LIMITS

    def __init__(self, service: CloudLogging, log: str) -> None:
        self._service = service
        self._log = log
        # Of this process alone: an agent that is started again counts anew. Lines of one time stay in order by it.
        self._prefix = uuid.uuid4().hex[:12]
        self._dropped = 0

    @property
    def field(self) -> str:
        return f"logs.cloud_logging: {self._log}"

    @property
    def note(self) -> str | None:
        if not self._dropped:
            return None
        return f"logs.cloud_logging: {self._dropped} lines were not taken: the machine's clock is wrong"

    def size(self, text: str) -> int:
        return logs.text_size(text)

    def put(self, lines: Sequence[Line]) -> None:
        entries = [Entry(line.at_ms, f"{self._prefix}-{line.number:012d}", line.text or " ") for line in lines]
        try:
            self._dropped += self._service.write(entries)
        except LogsError as error:
            if error.status in _NEVER:
                raise Refused(str(error)) from error
            if error.status == "PERMISSION_DENIED":
                raise LogsError(error.status, f"{error} (the service account needs roles/logging.logWriter)") from error
            raise


assert logs.MOST_TEXT_BYTES * 6 + logs.ENTRY_OVERHEAD_BYTES <= logs.MOST_REQUEST_BYTES, "or the longest line never fits"
