"""Send a node's log to CloudWatch Logs: one stream for each attempt and rank. See `cloud_copy`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stoker.agent.logs.cloud_copy import BatchRefused, SinkLimits, SinkLine
from stoker.cloudapi.aws import logs
from stoker.cloudapi.aws.logs import CloudWatchLogs, CloudWatchLogsError
from stoker.model.node_config import NodeConfig

# The retention of groups that Stoker creates. An existing group keeps its own retention.
RETENTION_DAYS = 30
_RETENTION_AGAIN_S = 60.0
_LIMITS = SinkLimits(
    batch_bytes=logs.MOST_BATCH_BYTES,
    batch_lines=logs.MOST_BATCH_EVENTS,
    line_bytes=logs.MOST_EVENT_BYTES,
    span_ms=logs.MOST_BATCH_SPAN_MS,
    # Calls for one stream are spaced at least this far apart.
    pause_s=0.2,
)
_NEVER = ("InvalidParameterException", "SerializationException", "RequestEntityTooLargeException")


def open_cloudwatch(group: str, config: NodeConfig, attempt: int) -> CloudWatchSink:
    """Make the sink for this node's lines. Sends no request yet."""
    return CloudWatchSink(CloudWatchLogs(), group, logs.log_stream(config.job, attempt, config.rank))


class CloudWatchSink:
    """One stream of one group; both are created where they do not exist."""

    name = "CloudWatch"
    limits = _LIMITS

    def __init__(self, service: CloudWatchLogs, group: str, stream: str) -> None:
        self._service = service
        self._group = group
        self._stream = stream
        self._ready = False
        self._owes_retention = False
        self._retention_at_s = 0.0
        self._note: str | None = None

    @property
    def field(self) -> str:
        return f"logs.cloudwatch: {self._group}"

    @property
    def note(self) -> str | None:
        return self._note

    def size(self, text: str) -> int:
        return logs.event(0, text).size

    def put(self, lines: Sequence[SinkLine]) -> None:
        if not self._ready:
            self._open()
        try:
            events = [logs.event(line.at_ms, line.text) for line in lines]
            dropped = self._service.put(self._group, self._stream, events)
        except CloudWatchLogsError as error:
            if error.code in _NEVER:
                raise BatchRefused(str(error)) from error
            # The stream or the group may have been deleted meanwhile.
            self._ready = error.code != "ResourceNotFoundException"
            raise
        if dropped:
            self._note = f"logs.cloudwatch: {dropped} lines were not taken: the machine's clock is wrong"
        self._set_retention()

    def _open(self) -> None:
        """Create the stream, and the group where there is none."""
        try:
            self._service.create_stream(self._group, self._stream)
        except CloudWatchLogsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            self._owes_retention = self._service.create_group(self._group) or self._owes_retention
            self._set_retention()
            self._service.create_stream(self._group, self._stream)
        self._ready = True

    def _set_retention(self) -> None:
        """Set the retention of a group that Stoker created, so that nothing is stored for ever.

        Tried again now and then after a failure, which is no reason not to send.
        """
        if not self._owes_retention or time.monotonic() < self._retention_at_s:
            return
        self._retention_at_s = time.monotonic() + _RETENTION_AGAIN_S
        try:
            self._service.retain(self._group, RETENTION_DAYS)
        except CloudWatchLogsError as error:
            self._note = f"logs.cloudwatch: {self._group} keeps everything for ever: {error}"
        else:
            self._owes_retention = False
            self._note = None


assert logs.MOST_EVENT_BYTES + logs.EVENT_OVERHEAD_BYTES <= logs.MOST_BATCH_BYTES, "or a batch takes no longest line"
