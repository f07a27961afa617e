"""Letters to real services on loopback: a webhook, Apprise, and SNS with a queue behind it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import boto3
import pytest

from stoker import codec
from stoker.core.telling import Told, compose
from stoker.notify.body import body
from stoker.notify.senders import NotHere, NotSent, open_sender
from stoker.testing.servers import moto_server, s3_server
from stoker.testing.sim_data import at
from stoker.testing.webhooks import webhook

EVENT = Told("failed", "gpt-7f3k", at(0), "exit code 1 – “NaN”", seq=9, name="gpt", tags={"team": "nlp"}, cost=1.5)
LETTER = compose("m-1", "s3://b/p", (EVENT,))


def test_a_webhook_gets_words_and_data() -> None:
    with webhook() as hook:
        open_sender(hook.url)(LETTER)
        (got,), (headers,) = hook.bodies, hook.headers
    assert got == body(LETTER)
    assert (got["version"], got["id"], got["store"], got["title"]) == (1, "m-1", "s3://b/p", "gpt-7f3k failed")
    assert got["events"] == [
        {
            "id": "gpt-7f3k/9",
            "kind": "failed",
            "job": "gpt-7f3k",
            "name": "gpt",
            "tags": {"team": "nlp"},
            "at": codec.dump(at(0)),
            "reason": "exit code 1 – “NaN”",
            "rule": None,
            "audit": False,
            "attempt": None,
            "where": None,
            "cost": 1.5,
            "thing": None,
        }
    ]
    assert (headers["X-Stoker-Message"], headers["Content-Type"]) == ("m-1", "application/json")


def test_a_name_and_a_password_go_into_a_header() -> None:
    with webhook() as hook:
        open_sender(hook.url.replace("http://", "http://joe:p%40ss@"))(LETTER)
        assert hook.headers[0]["Authorization"] == "Basic am9lOnBAc3M="


def test_apprise_carries_words() -> None:
    with webhook() as hook:
        host = hook.url.removeprefix("http://").partition("/")[0]
        open_sender(f"json://{host}/hook/s3cr3t-key")(LETTER)
        (got,) = hook.bodies
        assert (got["title"], got["message"].splitlines()[0]) == (LETTER.title, LETTER.text.splitlines()[0])
        hook.status = 500
        with pytest.raises(NotSent) as caught:
            open_sender(f"json://{host}/hook/s3cr3t-key")(LETTER)
        assert "500" in str(caught.value) and "s3cr3t" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(NotHere, match=r"slack://… is no address that Apprise knows"):
        open_sender("slack://s3cr3t")


# ── SNS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["moto", "ministack"])
def aws(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    """A server with topics and queues, out of process; and the environment that clients of it need."""
    with moto_server() if request.param == "moto" else s3_server("sns", "sqs") as server:
        yield server.env


@pytest.fixture
def clients(aws: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    session = boto3.session.Session(region_name="us-east-1")
    return session.client("sns"), session.client("sqs")


def received(queues: Any, url: str) -> list[dict[str, Any]]:
    found = queues.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
    return [json.loads(message["Body"]) for message in found]


def subscribed(clients: tuple[Any, Any], name: str) -> tuple[str, str]:
    """A topic, and a queue behind it."""
    topics, queues = clients
    fifo = name.endswith(".fifo")
    arn = topics.create_topic(Name=name, Attributes={"FifoTopic": "true"} if fifo else {})["TopicArn"]
    url = queues.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})["QueueUrl"]
    attributes = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    topics.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=attributes["QueueArn"])
    return arn, url


def test_a_topic_passes_the_data_on_to_a_queue(clients: tuple[Any, Any]) -> None:
    arn, url = subscribed(clients, "training")
    open_sender(f"sns:{arn}")(LETTER)
    (got,) = received(clients[1], url)
    assert got["Subject"] == "[stoker] gpt-7f3k failed"
    assert json.loads(got["Message"]) == body(LETTER)
    assert got["MessageAttributes"]["id"]["Value"] == "m-1"


def test_a_storm_fits_into_a_message(clients: tuple[Any, Any]) -> None:
    arn, url = subscribed(clients, "storms")
    storm = tuple(Told("reclaimed", f"job-{n}", at(0), "x" * 300, seq=3, name="ж" * 40) for n in range(400))
    open_sender(arn)(compose("m-2", "s3://b/p", storm, {"resumed": 5}))
    (got,) = received(clients[1], url)
    data = json.loads(got["Message"])
    assert data["more"]["resumed"] == 5
    assert len(data["events"]) + data["more"]["reclaimed"] == 400


def test_a_fifo_topic_drops_what_it_has_seen(clients: tuple[Any, Any]) -> None:
    arn, url = subscribed(clients, "rows.fifo")
    send = open_sender(arn)
    send(LETTER)
    send(LETTER)
    assert len(received(clients[1], url)) == 1


def test_a_topic_that_is_not_there(clients: tuple[Any, Any]) -> None:
    with pytest.raises(NotSent, match="NotFound"):
        open_sender("sns:arn:aws:sns:us-east-1:123456789012:nobody")(LETTER)


def test_without_boto3_it_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(NotHere, match=r"SNS needs boto3; pip install 'stoker\[aws\]'"):
        open_sender("sns:arn:aws:sns:us-east-1:123456789012:nobody")
