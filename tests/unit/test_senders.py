"""Letters to real services on loopback: a webhook, Apprise, and SNS with a queue behind it."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import boto3
import pytest
import requests

from stoker.model import codec
from stoker.notifications import webhook_sender as webhook_module
from stoker.notifications.apprise_sender import truncate
from stoker.notifications.events import Notification, compose
from stoker.notifications.json_body import body
from stoker.notifications.senders import NotSent, PartlySent, SenderUnavailable, open_sender
from stoker.notifications.sns_sender import _sns_text
from tests.support.servers import moto_server, s3_server
from tests.support.sim_data import at
from tests.support.webhooks import webhook

pytestmark = pytest.mark.slow

EVENT = Notification(
    "failed", "gpt-7f3k", at(0), "exit code 1 – “NaN”", seq=9, name="gpt", tags={"team": "nlp"}, cost=1.5
)
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
    with pytest.raises(SenderUnavailable, match=r"slack://… is no address that Apprise knows"):
        open_sender("slack://s3cr3t")


class _Answer:
    content, text, headers, reason = b"ok", "ok", dict[str, str](), "OK"

    def __init__(self, status_code: int = 200) -> None:
        self.status_code = status_code

    def json(self) -> dict[str, Any]:
        return {"ok": True}


CHATS = {
    "discord": "discord://123456789012345678/" + "a" * 68,
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general",
    "tgram": "tgram://123456789:ABCdefghijklmnopqrstuvwxyz123456789/12345",
}


@pytest.fixture
def posts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What services of the network would have been sent."""
    found: list[str] = []

    def post(*_: Any, **named: Any) -> _Answer:
        sent = named.get("data") or named.get("json")
        found.append(sent if isinstance(sent, str) else json.dumps(sent))
        return _Answer(404 if "#gone" in found[-1] else 200)

    for name in ("post", "request"):
        monkeypatch.setattr(requests, name, post)
    return found


@pytest.mark.parametrize("chat", CHATS)
def test_what_a_script_said_is_words_and_calls_nobody(chat: str, posts: list[str]) -> None:
    reason = (
        'File "t.py" in <module>: <!channel> @everyone <@U123> <https://evil.example|here> [x](https://evil.example)'
    )
    open_sender(CHATS[chat])(compose("m", "s3://b/p", (replace(EVENT, reason=reason),)))
    (sent,) = posts
    for call in ("!channel", "@everyone", "@U123", "evil.example|", "]("):
        assert call not in sent
    assert "<module>" not in sent or chat != "tgram", "HTML there"
    assert "module" in sent


@pytest.mark.parametrize("chat", CHATS)
def test_what_is_too_long_comes_in_parts(chat: str, posts: list[str]) -> None:
    storm = tuple(replace(EVENT, job=f"gpt-{n:04d}", reason="x" * 300) for n in range(20))
    message = compose("m", "s3://b/p", storm)
    open_sender(CHATS[chat])(message)
    assert 1 <= len(posts) <= 5 and "gpt-0000" in "".join(posts[:2])
    assert "gpt-0019" in posts[-1] or "more lines" in posts[-1]
    assert all(len(post) < {"discord": 2500, "tgram": 5000}.get(chat, 40000) for post in posts)


def test_of_several_behind_one_address_one_is_gone(posts: list[str]) -> None:
    with pytest.raises(PartlySent, match=r"^some receivers were not reached: .*404"):
        open_sender(CHATS["slack"] + "/#gone")(LETTER)
    posts.clear()
    with pytest.raises(NotSent) as caught:
        open_sender(CHATS["slack"].replace("#general", "#gone"))(LETTER)
    assert not isinstance(caught.value, PartlySent)


def test_cut_to_whole_lines() -> None:
    text = "\n".join(f"line {n} {'x' * 50}" for n in range(20))
    short = truncate(text, 400)
    assert len(short) <= 400 and short.splitlines()[-1] == "… and 14 more lines"
    assert truncate(text, 5000) == text and len(truncate("y" * 900, 100)) <= 100


@pytest.mark.parametrize("how", ["head", "body", "continue"])
def test_who_answers_a_letter_at_a_time_is_cut_off(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "MESSAGE_TIMEOUT_S", 2.0)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            line, _ = server.accept()
            line.recv(65536)
            with suppress(OSError):
                line.sendall({"body": b"HTTP/1.1 500 no\r\nContent-Length: 150\r\n\r\n"}.get(how, b""))
                line.sendall(b"HTTP/1.1 200 OK\r\nX: " if how == "head" else b"")
                while not over.wait(0.05):
                    line.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" if how == "continue" else b"a")
            line.close()

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        began_s = time.monotonic()
        # One that said 200 has it, whatever else it meant to say.
        said = {"continue": "no whole answer within 2 s", "body": "answers with 500"}.get(how)
        with pytest.raises(NotSent, match=said) if said else nullcontext():
            open_sender(f"http://127.0.0.1:{server.getsockname()[1]}/x")(LETTER)
        assert time.monotonic() - began_s < 30.0, "it drips for ever"
        over.set()
        thread.join()


def test_a_connection_that_is_made_too_late_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class AtOnce(threading.Timer):
        """The time for the message is over before the connection is made."""

        def start(self) -> None:
            self.function()

    monkeypatch.setattr("stoker.notifications.webhook_sender.threading.Timer", AtOnce)
    with webhook() as hook:
        hook.hangs_s = 20.0
        began_s = time.monotonic()
        with pytest.raises(NotSent, match="no whole answer within"):
            open_sender(hook.url)(LETTER)
        assert time.monotonic() - began_s < webhook_module.STEP_TIMEOUT_S
        hook.over.set()


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
    storm = tuple(Notification("reclaimed", f"job-{n}", at(0), "x" * 300, seq=3, name="ж" * 40) for n in range(400))
    open_sender(arn)(compose("m-2", "s3://b/p", storm, {"resumed": 5}))
    (got,) = received(clients[1], url)
    data = json.loads(got["Message"])
    assert data["more"]["resumed"] == 5
    assert len(data["events"]) + data["more"]["reclaimed"] == 400


@pytest.mark.parametrize("reason", ['"' * 299, "\\" * 300, "ж" * 300, "exit code 1"])
def test_quotes_within_quotes_fit_too(reason: str) -> None:
    storm = tuple(Notification("failed", f"job-{n}", at(0), reason, seq=3, tags={"team": "nlp"}) for n in range(400))
    message = _sns_text(compose("m-2", "s3://b/p", storm))
    data = json.loads(json.loads(message)["sqs"])
    assert len(message) <= 250_000 and len(data["events"]) + data["more"].get("failed", 0) == 400
    assert len(message) > 150_000 or data["more"] == {}, "no more is dropped than need be"


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
    with pytest.raises(SenderUnavailable, match=r"SNS needs boto3; pip install 'stoker\[aws\]'"):
        open_sender("sns:arn:aws:sns:us-east-1:123456789012:nobody")
