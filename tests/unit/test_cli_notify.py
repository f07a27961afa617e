"""Channels on the command line: tried, shown without their keys, and complained about."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.cli import cli
from stoker.model import channel_address
from stoker.notifications import apprise_sender
from stoker.notifications.events import Notification
from stoker.notifications.outbox import Outbox, add_events, mark_failed, start_sending
from stoker.notifications.outbox_store import OutboxStore
from stoker.policy import versions
from stoker.store.base import Store, open_store
from tests.support.webhooks import webhook


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return open_store(str(tmp_path / "store"))


def stoker(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), standalone_mode=False)


def told(result: Result) -> str:
    return result.output + str(result.exception or "")


def test_channels_are_tried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as good, webhook() as bad:
        bad.status = 403
        monkeypatch.setenv("CHAT", good.url)
        versions.write(store, f"notify: [{{to: 'env:CHAT', name: team}}, '{bad.url}']", "jane")
        tried = stoker("notify")
        assert tried.return_value == 2
        assert "✓ team (env:CHAT): accepted" in tried.output
        assert f"✗ webhook ({channel_address.masked(bad.url)}): answers with 403" in tried.output
        assert "s3cr3t" not in told(tried)
        assert good.bodies[0]["events"] == [] and good.bodies[0]["title"] == "Stoker notifications work"
        named = stoker("notify", good.url)
        assert f"✓ {channel_address.masked(good.url)}: accepted" in named.output and named.return_value == 0


def test_what_a_service_answers_steers_no_terminal(store: Store) -> None:
    with webhook() as bad:
        bad.status, bad.says = 401, b"\x1b]0;pwned\x07\x1b[2J gone"
        tried = CliRunner().invoke(cli, ["notify", bad.url], standalone_mode=False, color=True)
    said = tried.output.rpartition("401")[2]
    assert "gone" in said and "\x1b" not in said and "\x07" not in said


def test_mistakes_are_one_line_without_keys(store: Store) -> None:
    for words, expected in (
        (("notify",), "the policy has no `notify`; name an address"),
        (("notify", "s3cr3t"), "TO: expected an address"),
        (("iam", "ec2", "--bucket", "s3://bucket", "--notify", "s3cr3t"), "--notify: expected an address"),
    ):
        result = stoker(*words)
        assert expected in told(result) and "s3cr3t" not in told(result)


def test_a_provider_that_nobody_has_is_remarked_upon(store: Store, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("rules: [{providers: [ec3, gce, 'sage*']}]")
    done = stoker("policy", "set", "p.yaml")
    assert "warning: policy providers: no provider here is called ec3; did you mean ec2?" in told(done)
    assert told(done).count("warning") == 1 and versions.newest(store) == 1


def test_what_is_not_set_here_is_told_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    assert stoker("notify", "env:NOPE").output == "✗ env:NOPE: NOPE is not set here\n"
    versions.write(store, "notify: [{to: 'env:NOPE', name: team}]", "jane")
    assert stoker("notify").output == "✗ team (env:NOPE): NOPE is not set here\n"


def test_what_waits_is_sent_when_somebody_asks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(timezone.utc)
    event = Notification("failed", "gpt-1", now, "it broke", seq=3)
    with webhook() as hook:
        monkeypatch.setenv("CHAT", hook.url)
        box = Outbox(to="env:CHAT", name="team", named_by_jobs=True)
        waiting = add_events(box, [event, replace(event, seq=4)], {}, now)
        mailbox, channel = OutboxStore(store), channel_address.digest("env:CHAT")
        mailbox.change(channel, lambda _: waiting, now)
        assert "notify team: 2 events wait for a governor that can send them; `stoker govern` sends them" in (
            stoker("ps").output
        ), "nobody governs, so that nothing should wait"
        mailbox.change(
            channel, lambda box: mark_failed(start_sending(box, "m", "g", now), "answers with 503", now), now
        )  # type: ignore[arg-type]
        assert "failed 1×, 2 events wait; `stoker govern` sends them" in stoker("ps").output
        assert stoker("govern").exit_code == 0
        assert hook.events == [("failed", "gpt-1"), ("failed", "gpt-1")], "not in 20 seconds, but now"
    assert "notify team" not in stoker("ps").output


def test_a_policy_with_a_key_in_it_is_remarked_upon(store: Store, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("notify: ['https://hooks.example/s3cr3t']\n")
    done = stoker("policy", "set", "p.yaml")
    assert "https://hooks.example/… is stored in clear text" in done.output and "s3cr3t" not in done.output
    (tmp_path / "p.yaml").write_text("rules: []\nnotify:\n- {to: 'nosuch://s3cr3t'}\n")
    refused = stoker("policy", "set", "p.yaml")
    assert "p.yaml:3: notify[0].to: nosuch://… is no address that Apprise knows" in told(
        refused
    ) and "s3cr3t" not in told(refused)
    assert versions.newest(store) == 1


def test_who_would_hear_of_a_job(store: Store, tmp_path: Path) -> None:
    text = (
        "notify:\n- {to: 'slack://s3cr3t/b/c', events: [failed], for: {team: nlp}}\n- {to: 'env:X', for: {team: cv}}\n"
    )
    (tmp_path / "p.yaml").write_text(text)
    (tmp_path / "stoker.yaml").write_text("run: 'true'\ntags: {team: nlp}\nnotify: ['tgram://s3cr3t/1']\n")
    shown = stoker("policy", "test", "--policy", "p.yaml")
    assert "notified: slack (slack://…): failed\nnotified: notify[0] (tgram://…): everything\n" in shown.output
    assert "s3cr3t" not in shown.output
    data = json.loads(stoker("policy", "test", "--policy", "p.yaml", "--json").stdout)
    assert data["notify"] == {
        "slack": {"to": "slack://…", "events": ["failed"]},
        "notify[0]": {"to": "tgram://…", "events": []},
    }


@pytest.mark.parametrize("installed", [True, False])
def test_a_plan_shows_no_key(store: Store, tmp_path: Path, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apprise_sender, "is_installed", lambda: installed)
    to = "slack://s3cr3tAAA/s3cr3tBBB/s3cr3tCCCCCCCCCCCCCCCCCCC"
    if installed:
        monkeypatch.setattr(apprise_sender, "is_known", lambda _url: True)
    (tmp_path / "stoker.yaml").write_text(f"run: 'true'\nnotify: ['{to}']\n")
    for more in ((), ("--json",)):
        shown = stoker("run", "--dry-run", *more)
        assert "s3cr3t" not in told(shown), shown.output
    plan = stoker("run", "--dry-run").output
    assert "notify: slack://… is stored in clear text" in plan
    assert ("needs Apprise wherever a governor runs" in plan) is not installed


def test_ps_tells_what_nobody_is_told(store: Store) -> None:
    now = datetime.now(timezone.utc)
    event = Notification("failed", "gpt-1", now, "it broke", seq=3)
    mailbox = OutboxStore(store)

    def broken(box: object) -> object:
        empty = Outbox(to="slack://s3cr3t", name="team")
        return mark_failed(start_sending(add_events(empty, [event], {}, now), "m", "g", now), "answers with 401", now)

    mailbox.change("c1", broken, now)  # type: ignore[arg-type]
    shown = stoker("ps").output
    assert (
        "notify team: answers with 401; failed 1×, 1 event waits; `stoker govern` sends it" in shown
        and "s3cr3t" not in shown
    )
    late = now + timedelta(hours=9)
    mailbox.change("c1", lambda box: replace(box, lost=3, lost_at=late, waiting=(), failures=0), now)  # type: ignore[arg-type, type-var]
    assert "notify team: 3 events were given up" in stoker("ps").output


def test_what_governors_need_is_granted_where_it_is_asked_for() -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:training"
    words = ("iam", "ec2", "--bucket", "s3://bucket/p", "--policy", "governor")
    plain = json.loads(stoker(*words).stdout)
    assert not any("sns" in json.dumps(each) for each in plain["Statement"])
    granted = json.loads(stoker(*words, "--notify", f"sns:{topic}", "--notify", "aws-sm:chat").stdout)
    added = [each for each in granted["Statement"] if each not in plain["Statement"]]
    assert [(each["Sid"], each["Action"], each["Resource"]) for each in added] == [
        ("Tell", "sns:Publish", [topic]),
        ("ReadChannelSecrets", "secretsmanager:GetSecretValue", ["arn:aws:secretsmanager:*:*:secret:chat-??????"]),
    ]
    google = stoker("iam", "gce", "--bucket", "gs://bucket/p", "--policy", "governor", "--notify", "gcp-sm:chat")
    assert {"on": "secrets/chat", "role": "roles/secretmanager.secretAccessor"} in json.loads(google.stdout)["bindings"]
    for cloud, bucket in (("ec2", "s3://bucket/p"), ("gce", "gs://bucket/p")):
        for policy in ("governor", "node"):
            text = stoker("iam", cloud, "--bucket", bucket, "--policy", policy).output
            assert ("outbox/" in text) is (policy == "governor"), "no machine reads or writes notifications"
