"""Send a node's log to Google Cloud Logging, labelled by job, attempt and node. See `cloud_copy`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from stoker.agent.logs.cloud_copy import BatchRefused, SinkLimits, SinkLine
from stoker.cloudapi.google import logs
from stoker.cloudapi.google.logs import CloudLogging, CloudLoggingError, GoogleLogEntry, GoogleLogSource
from stoker.model.node_config import NodeConfig

_LIMITS = SinkLimits(
    batch_bytes=logs.MOST_REQUEST_BYTES,
    batch_lines=logs.MOST_ENTRIES,
    line_bytes=logs.MOST_TEXT_BYTES,
    # The quota of a project is 2000 requests a second, for all its machines.
    pause_s=0.05,
)
_NEVER = ("INVALID_ARGUMENT", "413")


def open_cloud_logging(log: str, config: NodeConfig, attempt: int) -> CloudLoggingSink:
    """Make the sink for this node's lines. Sends no request yet."""
    # `us-central1-a.4242424242424242424`
    zone, _, number = config.instance.partition(".")
    marks = logs.labels(config.job, attempt, config.rank)
    return CloudLoggingSink(CloudLogging(log, marks, GoogleLogSource(number, zone)), log)


class CloudLoggingSink:
    """One log of Cloud Logging. It needs no creation."""

    name = "Cloud Logging"
    limits = _LIMITS

    def __init__(self, service: CloudLogging, log: str) -> None:
        self._service = service
        self._log = log
        # Unique for this process, because a restarted agent counts from 0 again. Lines with the same time are ordered
        # by it.
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

    def put(self, lines: Sequence[SinkLine]) -> None:
        entries = [GoogleLogEntry(line.at_ms, f"{self._prefix}-{line.number:012d}", line.text or " ") for line in lines]
        try:
            self._dropped += self._service.write(entries)
        except CloudLoggingError as error:
            if error.status in _NEVER:
                raise BatchRefused(str(error)) from error
            if error.status == "PERMISSION_DENIED":
                raise CloudLoggingError(
                    error.status, f"{error} (the service account needs roles/logging.logWriter)"
                ) from error
            raise


assert logs.MOST_TEXT_BYTES * 6 + logs.ENTRY_OVERHEAD_BYTES <= logs.MOST_REQUEST_BYTES, "or the longest line never fits"
