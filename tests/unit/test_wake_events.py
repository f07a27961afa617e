"""What wakes a serverless governor: AWS's documented events, Pub/Sub's messages, and whatever else somebody sends."""

from __future__ import annotations

import base64
import copy
import json
from types import SimpleNamespace
from typing import Any

import aws_events
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.aws_template import alarm_pattern, patterns
from stoker.external_jobs.aws_account import SageMakerAccount
from stoker.external_jobs.gpu_alarms import WantedAlarm
from stoker.external_jobs.gpu_alarms import alarm_prefix as alarm_prefix
from stoker.governor.serverless.events import (
    IgnoredEvent,
    JobWake,
    MachineWake,
    Tick,
    TrainingWake,
    WakeEvent,
    of_aws,
    of_message,
)

MACHINE = MachineWake("ec2", aws_events.INSTANCE, aws_events.REGION)
WARNED = MachineWake("ec2", aws_events.INSTANCE, aws_events.REGION, warned=True)
TRAINING = TrainingWake(aws_events.TRAINING, aws_events.REGION)


def message(told: object) -> dict[str, Any]:
    data = base64.b64encode(json.dumps(told).encode()).decode()
    return {"message": {"data": data, "messageId": "1"}, "subscription": "projects/p/subscriptions/s"}


@pytest.mark.parametrize(
    ("event", "woken"),
    [
        (aws_events.spot_warning(), WARNED),
        (aws_events.rebalance(), WARNED),
        (aws_events.interruptible(), WARNED),
        (aws_events.interruptible(formerly=True), WARNED),
        (aws_events.block_ends(), Tick()),
        (aws_events.block_ends(formerly=True), Tick()),
        (aws_events.state_change("terminated"), MACHINE),
        (aws_events.training(), TRAINING),
        (aws_events.alarm(), TRAINING),
        (aws_events.alarm(expression=True), TRAINING),
        (aws_events.alarm_elsewhere("stoker-any"), TRAINING),
        (aws_events.tick(), Tick()),
        ({"stoker": {"jobs": ["spirals-bcd2"]}}, JobWake("spirals-bcd2")),
        ({"stoker": {"tick": True}}, Tick()),
    ],
)
def test_what_aws_sends(event: dict[str, Any], woken: WakeEvent) -> None:
    assert of_aws(event) == (woken,)


def test_several_records_and_jobs_are_each_told() -> None:
    both = {"Records": [*aws_events.alarm("a")["Records"], *aws_events.alarm("b")["Records"], {"Sns": {}}]}
    assert [type(each) for each in of_aws(both)] == [TrainingWake, TrainingWake, IgnoredEvent]
    told = of_aws({"stoker": {"jobs": ["a-bcdf", "../b", 7]}})
    assert told[0] == JobWake("a-bcdf") and [type(each) for each in told[1:]] == [IgnoredEvent, IgnoredEvent]


def test_what_pubsub_sends() -> None:
    assert of_message(message({"stoker": {"jobs": ["spirals-bcd2"]}})) == (JobWake("spirals-bcd2"),)
    assert of_message(message({"stoker": {"tick": True}})) == (Tick(),)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        "text",
        {},
        {"detail-type": "Something Else", "region": "us-east-1"},
        aws_events.spot_warning("i-0; rm -rf /"),
        {**aws_events.spot_warning(), "region": "nowhere"},
        {**aws_events.spot_warning(), "detail": None},
        {**aws_events.training(), "detail": {"TrainingJobName": "a/b"}},
        {"Records": []},
        {"Records": [None, {"Sns": {"Message": "{"}}, {"Sns": {"Message": "[" * 100_000}}]},
        {"stoker": None},
        {"stoker": {"jobs": []}},
        {"stoker": {"jobs": ["UPPER"]}},
    ],
)
def test_what_is_nothing(payload: object) -> None:
    assert all(isinstance(each, IgnoredEvent) for each in of_aws(payload))


@pytest.mark.parametrize(
    "payload",
    [None, {}, {"message": 1}, {"message": {"data": "%%%"}}, {"message": {"data": "ew=="}}, message([1]), message({})],
)
def test_what_is_no_message(payload: object) -> None:
    assert all(isinstance(each, IgnoredEvent) for each in of_message(payload))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        found += paths(part, (*at, key))
    return found


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A documented event, one part of which is something else, or missing."""
    event = copy.deepcopy(draw(st.sampled_from([*aws_events.ALL, message({"stoker": {"jobs": ["a-bcdf"]}})])))
    at = draw(st.sampled_from(paths(event)))
    holder = event
    for key in at[:-1]:
        holder = holder[key]
    if draw(st.booleans()):
        holder[at[-1]] = draw(JSON)
    else:
        del holder[at[-1]]
    return event


@given(JSON | broken())
def test_nothing_that_is_sent_raises(payload: object) -> None:
    for read in (of_aws, of_message):
        for woken in read(payload):
            assert isinstance(woken, WakeEvent)
            if isinstance(woken, IgnoredEvent):
                assert len(woken.why) < 200


# ── The rules that call it ────────────────────────────────────────────────────────────────────────────────────────────


def matches(pattern: dict[str, Any], event: Any) -> bool:
    """As EventBridge matches: every field that a pattern names has one of its values."""
    if not isinstance(event, dict):
        return False
    return all(
        matches(wanted, event.get(name))
        if isinstance(wanted, dict)
        else any(is_one(event.get(name), w) for w in wanted)
        for name, wanted in pattern.items()
    )


def is_one(value: Any, wanted: Any) -> bool:
    return str(value).startswith(wanted["prefix"]) if isinstance(wanted, dict) else value == wanted


@pytest.mark.parametrize("event", [*aws_events.EC2, aws_events.training()])
def test_each_event_matches_one_rule(event: dict[str, Any]) -> None:
    assert sum(matches(pattern, event) for pattern in patterns().values()) == 1


def test_what_is_no_news_calls_nobody() -> None:
    others = [aws_events.state_change("running"), aws_events.state_change("pending"), aws_events.tick()]
    others.append({**aws_events.training(), "detail-type": "SageMaker Endpoint State Change"})
    assert not any(matches(pattern, event) for pattern in patterns().values() for event in others)


def test_alarms_of_this_store_are_passed_on_from_other_regions() -> None:
    pattern = alarm_pattern("s3://bucket/team")
    ours = f"{alarm_prefix('s3://bucket/team')}x-algo-1"
    assert matches(pattern, aws_events.alarm_elsewhere(ours))
    assert not matches(pattern, aws_events.alarm_elsewhere(f"{alarm_prefix('s3://another')}x-algo-1"))


def test_an_alarm_has_the_topic_of_its_own_region_or_none() -> None:
    """CloudWatch refuses another's."""
    put: list[Any] = []

    class Clients:
        def get(self, _service: str, _region: str) -> Any:
            return SimpleNamespace(put_metric_alarm=lambda **asked: put.append(asked["AlarmActions"]))

    topic = "arn:aws:sns:us-east-1:123456789012:stoker-alarms"
    for region in ("us-east-1", "us-west-2"):
        account = SageMakerAccount(region, Clients())  # type: ignore[arg-type]
        account.make_alarm(WantedAlarm("a", "x/algo-1", "stall", 1.0, 300, 3, True, account.usable_topic(topic)))
    assert put == [[topic], []]


def alarm_of(host: str, region: object = aws_events.REGION) -> dict[str, Any]:
    metric = {"metricStat": {"metric": {"dimensions": {"Host": host}}}}
    detail = {"configuration": {"metrics": [metric]}}
    return {**aws_events.alarm_elsewhere("stoker-any"), "detail": detail, "region": region}


@pytest.mark.parametrize(
    ("host", "region", "woken"),
    [
        ("bert/algo-1", "us-east-1", TrainingWake("bert", "us-east-1")),
        ("bert", "us-east-1", None),
        ("no job/algo-1", "us-east-1", None),
        ("bert/algo-1", "no region", None),
        ("bert/algo-1", None, None),
    ],
)
def test_an_alarm_wakes_only_for_a_host_of_a_training_job(host: str, region: object, woken: WakeEvent | None) -> None:
    (found,) = of_aws(alarm_of(host, region))
    assert found == (woken or IgnoredEvent("an alarm that is about no training job"))


@pytest.mark.parametrize(
    ("detail", "region"),
    [({"instance-id": "not one"}, "us-east-1"), ({"instance-id": aws_events.INSTANCE}, "no region"), ({}, "us-east-1")],
)
def test_an_event_that_names_no_machine_wakes_nobody(detail: dict[str, Any], region: str) -> None:
    (found,) = of_aws({**aws_events.spot_warning(), "detail": detail, "region": region})
    assert isinstance(found, IgnoredEvent) and "names no machine" in found.why


@pytest.mark.parametrize(
    ("detail", "region"), [({"TrainingJobName": "not one"}, "us-east-1"), ({"TrainingJobName": "bert"}, "no region")]
)
def test_an_event_that_names_no_training_job_wakes_nobody(detail: dict[str, Any], region: str) -> None:
    (found,) = of_aws({**aws_events.training(), "detail": detail, "region": region})
    assert isinstance(found, IgnoredEvent) and "names no training job" in found.why
