"""The entry points of deployed governors: what they are made of, what they answer, and how they switch their tick."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.deploy import aws_entry_point, gcp_entry_point
from stoker.governor.serverless.event_governor import CallResult, EventGovernor
from stoker.model.errors import InvalidRequest, Transient

CLOCK = "projects/p/locations/l/jobs/tick"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A deployment's variables, no governor kept from another test, and logging as it was afterwards."""
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("STOKER_RULE", "stoker-tick")
    monkeypatch.setenv("STOKER_CLOCK", CLOCK)
    monkeypatch.setenv("STOKER_ALARM_TOPIC", "arn:topic")
    monkeypatch.setattr(aws_entry_point, "_cached_governor", None)
    monkeypatch.setattr(gcp_entry_point, "_cached_governor", None)
    loggers = (logging.getLogger(), logging.getLogger("stoker"))
    levels = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EventGovernor, Any]]:
    """The events that wakers were given, in place of a pass."""
    found: list[tuple[EventGovernor, Any]] = []

    def handle(self: EventGovernor, event: Any) -> CallResult:
        found.append((self, event))
        return CallResult(jobs=["a-aaaa"], active=1, actions=["a-aaaa: Launch: x"])

    monkeypatch.setattr(EventGovernor, "handle", handle)
    return found


ANSWER = {"jobs": ["a-aaaa"], "active": 1, "actions": 1, "problems": 0, "ignored": 0}

# ── Lambda ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Events:
    """EventBridge, and who asks for it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.called: list[tuple[str, str]] = []

    def get(self, service: str, region: str | None) -> Events:
        self.asked.append((service, region))
        return self

    def enable_rule(self, Name: str) -> None:
        self.called.append(("enable", Name))

    def disable_rule(self, Name: str) -> None:
        self.called.append(("disable", Name))


def test_the_rule_is_switched_on_and_off() -> None:
    bridge = Events()
    rule = aws_entry_point.TickRule("stoker-tick", "eu-west-1", bridge)  # type: ignore[arg-type]
    rule.on()
    rule.off()
    assert bridge.called == [("enable", "stoker-tick"), ("disable", "stoker-tick")]
    assert bridge.asked == [("events", "eu-west-1")] * 2


def test_lambda_answers_in_short_and_keeps_its_governor(handled: list[tuple[EventGovernor, Any]]) -> None:
    assert aws_entry_point.handler({"source": "stoker.tick"}, None) == ANSWER
    assert aws_entry_point.handler({"source": "stoker.tick"}, None) == ANSWER
    (first, event), (second, _) = handled
    assert first is second, "a warm call makes nothing anew"
    assert event == aws_entry_point.events.of_aws({"source": "stoker.tick"})
    assert first.governor.name == aws_entry_point.NAME and first.store.url == first.governor.fleet.store_url
    assert logging.getLogger("stoker").level == logging.INFO and logging.getLogger().level == logging.WARNING


# ── Cloud Run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Scheduler:
    """Cloud Scheduler, which refuses what is so already."""

    def __init__(self, state: str, error: Exception | None = None) -> None:
        self.state = state
        self.error = error
        self.sent: list[tuple[str, str, object]] = []
        self.asked: list[tuple[str, str]] = []

    def send(self, method: str, path: str, body: object, *, service: str, what: str) -> None:
        self.sent.append((method, path, service))
        if self.error is not None:
            raise self.error

    def get(self, path: str, *, service: str) -> dict[str, str]:
        self.asked.append((path, service))
        return {"state": self.state}


def test_the_scheduler_job_is_resumed_and_paused() -> None:
    api = Scheduler("ENABLED")
    job = gcp_entry_point.SchedulerJob(CLOCK, api)  # type: ignore[arg-type]
    job.on()
    job.off()
    assert api.sent == [
        ("POST", f"/v1/{CLOCK}:resume", "cloudscheduler"),
        ("POST", f"/v1/{CLOCK}:pause", "cloudscheduler"),
    ]
    assert api.asked == []


@pytest.mark.parametrize(
    ("verb", "state", "raises"),
    [("on", "ENABLED", False), ("on", "PAUSED", True), ("off", "PAUSED", False), ("off", "ENABLED", True)],
)
def test_a_refusal_counts_only_where_the_job_is_not_so_already(verb: str, state: str, raises: bool) -> None:
    api = Scheduler(state, InvalidRequest("it is so already"))
    switch = getattr(gcp_entry_point.SchedulerJob(CLOCK, api), verb)  # type: ignore[arg-type]
    if raises:
        with pytest.raises(InvalidRequest):
            switch()
    else:
        switch()
    assert api.asked == [(f"/v1/{CLOCK}", "cloudscheduler")]


def test_any_other_error_of_the_scheduler_is_passed_on() -> None:
    api = Scheduler("ENABLED", Transient("no answer"))
    with pytest.raises(Transient):
        gcp_entry_point.SchedulerJob(CLOCK, api).on()  # type: ignore[arg-type]
    assert api.asked == []


MESSAGE = {"message": {"data": "e30=", "attributes": {"kind": "tick"}}}


class Request:
    """An HTTP request of Flask's."""

    def get_json(self, *, silent: bool, force: bool) -> object:
        assert silent and force, "whatever its type is said to be, and whatever it is"
        return MESSAGE


def test_a_push_is_answered_in_json(handled: list[tuple[EventGovernor, Any]]) -> None:
    text, status, headers = gcp_entry_point.wake(Request())
    assert (json.loads(text), status, headers) == (ANSWER, 200, {"Content-Type": "application/json"})
    ((event_governor, event),) = handled
    assert event == gcp_entry_point.events.of_message(MESSAGE)
    assert (
        event_governor.governor.name == gcp_entry_point.NAME
        and event_governor.store.url == event_governor.governor.fleet.store_url
    )
    assert logging.getLogger("stoker").level == logging.INFO


def test_a_cloud_event_is_handled_by_the_same_governor(handled: list[tuple[EventGovernor, Any]]) -> None:
    gcp_entry_point.wake(Request())
    gcp_entry_point.on_event(type("Event", (), {"data": MESSAGE})())
    assert handled[0][0] is handled[1][0] and handled[0][1] == handled[1][1]


def test_one_governor_is_for_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, lock, second = [0], [0], threading.Lock(), threading.Event()

    def handle(_self: EventGovernor, _event: Any) -> CallResult:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        second.wait(0.05)
        with lock:
            inside[0] -= 1
        return CallResult()

    monkeypatch.setattr(EventGovernor, "handle", handle)
    threads = [threading.Thread(target=gcp_entry_point.wake, args=(Request(),)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == [1]
