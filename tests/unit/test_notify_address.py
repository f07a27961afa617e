"""Addresses of channels: what they may be, and that none of their keys is ever shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from stoker.jobfile import parse_job, read_layer
from stoker.model import channel_address
from stoker.model.errors import SpecError, UserError
from stoker.notifications import apprise_sender, check_channels
from stoker.notifications.senders import SenderUnavailable, resolve_address

TOPIC = "arn:aws:sns:us-east-1:123456789012:training"


@pytest.mark.parametrize(
    ("text", "kind", "shown", "name", "clear"),
    [
        (TOPIC, "sns", TOPIC, "sns", False),
        (f"sns:{TOPIC}.fifo", "sns", f"sns:{TOPIC}.fifo", "sns", False),
        ("https://hooks.example/T0/B0/s3cr3t", "webhook", "https://hooks.example/…", "webhook", True),
        ("https://hooks.example", "webhook", "https://hooks.example", "webhook", False),
        ("https://joe:s3cr3t@hooks.example:8443/", "webhook", "https://hooks.example:8443/…", "webhook", True),
        ("http://127.0.0.1:80/hook", "webhook", "http://127.0.0.1:80/…", "webhook", False),
        ("slack://s3cr3tA/s3cr3tB/s3cr3tC", "apprise", "slack://…", "slack", True),
        ("mailto://joe:s3cr3t@example.com", "apprise", "mailto://…", "mailto", True),
        ("json://localhost:8080", "apprise", "json://…", "json", False),
        ("env:TEAM_SLACK", "reference", "env:TEAM_SLACK", "team-slack", False),
        ("aws-sm:team/slack#url", "reference", "aws-sm:team/slack#url", "team-slack-url", False),
        ("gcp-sm:slack@3", "reference", "gcp-sm:slack@3", "slack-3", False),
    ],
)
def test_kinds(text: str, kind: str, shown: str, name: str, clear: bool) -> None:
    assert (channel_address.address_kind(text), channel_address.masked(text), channel_address.default_name(text)) == (
        kind,
        shown,
        name,
    )
    assert channel_address.exposes_secret(text) is clear
    assert "s3cr3t" not in channel_address.masked(text) + channel_address.digest(text)
    assert channel_address.digest(text) == channel_address.digest(text) != channel_address.digest(text + "x")


@pytest.mark.parametrize(
    "text",
    ["", "s3cr3t", "env", "aws-ecr", "gcp-token", "aws-codeartifact:d", "sns:s3cr3t", "arn:aws:sqs:s3cr3t", "https://",
     "http://:s3cr3t@/", "https://h:s3cr3t/", "slack://a b s3cr3t", "slack:s3cr3t"],
)  # fmt: skip
def test_what_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        channel_address.address_kind(text)
    assert "s3cr3t" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"^--notify: "):
        check_channels.check_addresses([text], "--notify")


def test_what_others_say_is_scrubbed() -> None:
    url = "https://joe:s3cr3tpass@hooks.example/T0/s3cr3t%2Dkey?token=s3cr3tquery"
    said = f"cannot reach {url}: s3cr3t-key, s3cr3tpass and s3cr3tquery\n at hooks.example"
    assert (
        channel_address.without_keys(said, url) == "cannot reach https://hooks.example/…: …, … and … at hooks.example"
    )


def test_a_header_that_is_repeated_and_what_cannot_be_seen() -> None:
    url = "https://joe:hunter2secret@hooks.example/"
    header = base64.b64encode(b"joe:hunter2secret").decode()
    said = channel_address.without_keys(f"401: Authorization: Basic {header}\x1b]0;pwned\x07", url)
    assert header not in said and said.isprintable() and said.startswith("401: Authorization: Basic …")
    for text in ("https://hooks.example/s3cr3t\x01", "slack://a/b\u202e/c", "env:A\x00"):
        with pytest.raises(ValueError, match="cannot be seen"):
            channel_address.address_kind(text)


def test_a_topic_is_one_channel_however_it_is_written() -> None:
    assert (
        channel_address.digest(TOPIC)
        == channel_address.digest(f"sns:{TOPIC}")
        != channel_address.digest(f"sns:{TOPIC}2")
    )


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "169.254.170.2", "2852039166", "0xa9fea9fe", "169.254.43518", "[::ffff:169.254.169.254]",
     "[fe80::1]", "[fd00:ec2::254]", "metadata.google.internal", "Metadata.Google.Internal.", "metadata"],
)  # fmt: skip
def test_where_no_job_sends_a_governor(host: str) -> None:
    for scheme in ("http", "json"):
        assert channel_address.is_forbidden_target(f"{scheme}://{host}/x") and channel_address.is_forbidden_target(
            f"{scheme}://joe:pw@{host}:80/x"
        )
    with pytest.raises(SpecError, match=r"notify\[0\]: is an address inside a cloud's machines"):
        parse_job([read_layer(f"run: [python, train.py]\nnotify: ['http://{host}/x']\n", "stoker.yaml")], folder=Path())


def test_loopback_is_the_governors_own_only_where_that_is_somebody_elses() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "localhost", "a.localhost", "[::1]", "0.0.0.0", "2130706433"):
        assert not channel_address.is_forbidden_target(f"http://{host}/") and channel_address.is_forbidden_target(
            f"http://{host}/", loopback=True
        )
    for host in ("10.0.0.1", "hooks.example", "8.8.8.8"):
        assert not channel_address.is_forbidden_target(f"http://{host}/", loopback=True)


def test_a_job_has_few_addresses() -> None:
    many = ", ".join(f"env:A{n}" for n in range(11))
    with pytest.raises(SpecError, match="notify: at most 10 addresses"):
        parse_job([read_layer(f"run: [python, train.py]\nnotify: [{many}]\n", "stoker.yaml")], folder=Path())


def test_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "json://127.0.0.1:1")
    assert check_channels.address_warnings(["env:X", "env:X#url", TOPIC, "json://127.0.0.1:1"]) == ()
    (told,) = check_channels.address_warnings(["env:NOPE"], ["policy.yaml:3: notify[0].to"])
    assert told.startswith("policy.yaml:3: notify[0].to: env:NOPE is not set here; the governor needs it")
    (told,) = check_channels.address_warnings(["https://hooks.example/s3cr3t"])
    assert told.startswith("notify: https://hooks.example/… is stored in clear text") and "env:NAME" in told
    with pytest.raises(UserError, match=r"notify: nosuch://… is no address that Apprise knows"):
        check_channels.address_warnings(["nosuch://s3cr3t"])


def test_without_apprise_it_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise_sender, "is_installed", lambda: False)
    assert check_channels.address_warnings(["json://127.0.0.1:1"]) == (
        "notify: json://… needs Apprise wherever a governor runs; pip install 'stoker[notify]'",
    )
    with pytest.raises(SenderUnavailable, match=r"^json://… needs Apprise; pip install"):
        apprise_sender.open_apprise("json://127.0.0.1:1")


def test_references_are_followed_where_they_are_used() -> None:
    assert resolve_address("env:X#url", {"X": '{"url": "slack://a/b/c"}'}) == "slack://a/b/c"
    with pytest.raises(SenderUnavailable, match=r"env:X: X is not set where the governor runs$"):
        resolve_address("env:X", {})
    for kept in ("s3cr3t", "env:OTHER"):
        with pytest.raises(SenderUnavailable, match=r"^env:X: its value is no address$"):
            resolve_address("env:X", {"X": kept})
