"""The two log services as a copy of the log sees them: what is made, what is repeated, what is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.logs import cloudwatch
from stoker.agent.logs.cloud_copy import BatchRefused, SinkLine
from stoker.agent.logs.cloud_logging import CloudLoggingSink, open_cloud_logging
from stoker.agent.logs.cloudwatch import CloudWatchSink, open_cloudwatch
from stoker.cloudapi.aws.logs import CloudWatchLogsError
from stoker.cloudapi.google.logs import CloudLoggingError as GoogleLogsError
from stoker.model.node_config import NodeConfig

LINES = [SinkLine(7, 1000, "a", 1), SinkLine(8, 2000, "", 0)]


class CloudWatch:
    """Groups and streams in memory. `errors`: what the next call of this name raises."""

    def __init__(self, *groups: str) -> None:
        self.groups = set(groups)
        self.calls: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.dropped = 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def put(self, _group: str, _stream: str, events: list[Any]) -> int:
        self._call("put")
        self.events = events
        return self.dropped

    def create_stream(self, group: str, _stream: str) -> None:
        self._call("stream")
        if group not in self.groups:
            raise error("ResourceNotFoundException")

    def create_group(self, group: str) -> bool:
        self._call("group")
        made = group not in self.groups
        self.groups.add(group)
        return made

    def retain(self, _group: str, days: int) -> None:
        self._call(f"retain {days}")


def error(code: str) -> CloudWatchLogsError:
    return CloudWatchLogsError(code, f"it says {code}")


def sink(service: CloudWatch) -> CloudWatchSink:
    return CloudWatchSink(service, "/jobs", "stream")  # type: ignore[arg-type]


def test_a_group_and_a_stream_are_made_once_and_the_group_forgets() -> None:
    service = CloudWatch()
    copy = sink(service)
    for _ in range(2):
        copy.put(LINES)
    assert service.calls == ["stream", "group", "retain 30", "stream", "put", "put"]
    assert copy.note is None and copy.field == "logs.cloudwatch: /jobs"


def test_a_group_that_is_there_is_left_as_it_is() -> None:
    service = CloudWatch("/jobs")
    sink(service).put(LINES)
    assert service.calls == ["stream", "put"]


def test_a_stream_that_may_not_be_made_is_asked_for_again() -> None:
    service = CloudWatch("/jobs")
    service.errors = {"stream": [error("AccessDeniedException")]}
    copy = sink(service)
    with pytest.raises(CloudWatchLogsError):
        copy.put(LINES)
    copy.put(LINES)
    assert service.calls == ["stream", "stream", "put"]


def test_a_stream_that_was_deleted_is_made_again_and_other_trouble_makes_none() -> None:
    service = CloudWatch("/jobs")
    copy = sink(service)
    copy.put(LINES)
    for code, expected in (
        ("ThrottlingException", ["put"]),
        ("ResourceNotFoundException", ["stream", "put"]),
    ):
        service.errors = {"put": [error(code)]}
        with pytest.raises(CloudWatchLogsError, match=code):
            copy.put(LINES)
        service.calls.clear()
        copy.put(LINES)
        assert service.calls == expected


@pytest.mark.parametrize(
    "code", ["InvalidParameterException", "SerializationException", "RequestEntityTooLargeException"]
)
def test_what_is_refused_for_good_is_not_sent_again(code: str) -> None:
    service = CloudWatch("/jobs")
    service.errors = {"put": [error(code)]}
    copy = sink(service)
    with pytest.raises(BatchRefused, match=code):
        copy.put(LINES)
    service.calls.clear()
    copy.put(LINES)
    assert service.calls == ["put"], "the stream is there"


def test_a_retention_that_may_not_be_set_is_tried_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(cloudwatch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    service = CloudWatch()
    service.errors = {"retain 30": [error("AccessDeniedException")]}
    copy = sink(service)
    copy.put(LINES)
    assert copy.note == f"logs.cloudwatch: /jobs keeps everything for ever: {error('AccessDeniedException')}"
    clock[0] += 59.0
    copy.put(LINES)
    assert service.calls.count("retain 30") == 1
    clock[0] += 1.0
    copy.put(LINES)
    assert service.calls.count("retain 30") == 2 and copy.note is None
    clock[0] += 1000.0
    copy.put(LINES)
    assert service.calls.count("retain 30") == 2


def test_a_retention_that_is_owed_is_not_forgotten_with_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node made the group again meanwhile: the one that made it first still owes it."""
    clock = [1000.0]
    monkeypatch.setattr(cloudwatch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    service = CloudWatch()
    service.errors = {"retain 30": [error("AccessDeniedException")], "put": [error("ResourceNotFoundException")]}
    copy = sink(service)
    with pytest.raises(CloudWatchLogsError):
        copy.put(LINES)
    own = service.create_stream
    service.groups.clear()

    def create_stream(group: str, stream: str) -> None:
        try:
            own(group, stream)
        finally:
            service.groups.add(group)

    service.create_stream = create_stream  # type: ignore[method-assign]
    clock[0] += 100.0
    copy.put(LINES)
    assert service.calls.count("retain 30") == 2


def test_lines_that_were_not_taken_are_told() -> None:
    service = CloudWatch("/jobs")
    copy = sink(service)
    copy.put(LINES)
    assert copy.note is None
    service.dropped = 2
    copy.put(LINES)
    assert copy.note == "logs.cloudwatch: 2 lines were not taken: the machine's clock is wrong"
    assert copy.size("ab") > copy.size("a") > 0


def test_each_node_and_attempt_has_its_own_stream() -> None:
    config = NodeConfig("", "local", "job", 1, 3, 4, "us-central1-a.42")
    first, second = open_cloudwatch("/jobs", config, 1), open_cloudwatch("/jobs", config, 2)
    assert first.field == "logs.cloudwatch: /jobs" and first._stream != second._stream
    assert open_cloud_logging("my-log", config, 1).field == "logs.cloud_logging: my-log"


# ── Google's ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class CloudLogging:
    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.entries: list[Any] = []

    def write(self, entries: list[Any]) -> int:
        self.entries = entries
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_entries_are_numbered_so_that_none_counts_twice_and_none_is_empty() -> None:
    service = CloudLogging()
    copy = CloudLoggingSink(service, "my-log")  # type: ignore[arg-type]
    copy.put(LINES)
    first, second = service.entries
    prefix, _, number = first[1].partition("-")
    assert (len(prefix), number) == (12, "000000000007")
    assert (first[0], first[2]) == (1000, "a") and tuple(second) == (2000, f"{prefix}-000000000008", " ")
    other = CloudLoggingSink(service, "my-log")  # type: ignore[arg-type]
    other.put(LINES)
    assert service.entries[0][1] != first[1]


def test_lines_that_cloud_logging_did_not_take_are_counted() -> None:
    copy = CloudLoggingSink(CloudLogging(0, 2, 3), "my-log")  # type: ignore[arg-type]
    copy.put(LINES)
    assert copy.note is None
    copy.put(LINES)
    copy.put(LINES)
    assert copy.note == "logs.cloud_logging: 5 lines were not taken: the machine's clock is wrong"


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "413", "PERMISSION_DENIED", "UNAVAILABLE"])
def test_each_refusal_of_cloud_logging_is_told_as_it_is_meant(status: str) -> None:
    copy = CloudLoggingSink(CloudLogging(GoogleLogsError(status, "no")), "my-log")  # type: ignore[arg-type]
    with pytest.raises(BatchRefused if status in ("INVALID_ARGUMENT", "413") else GoogleLogsError) as failed:
        copy.put(LINES)
    assert ("roles/logging.logWriter" in str(failed.value)) == (status == "PERMISSION_DENIED")
    if isinstance(failed.value, GoogleLogsError):
        assert failed.value.status == status
