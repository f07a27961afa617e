"""Pages about the policy show what is printed and sent."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from pages import DOCS, blocks

from stoker.cli import main
from stoker.notifications.events import Notification, compose
from stoker.notifications.json_body import body


def shown(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(DOCS / page) if block.language == language]


@pytest.mark.parametrize(
    ("page", "job", "code"),
    [
        (
            "governance.md",
            (
                "tags: {project: cats, ticket: AB-12}\nlimits: {max_runtime: 7d}\n"
                "resources: {provider: ec2, region: us-east-1, machine: [g5.xlarge]}\n"
            ),
            1,
        ),
        ("notifications.md", "tags: {stage: sweep}\n", 0),
    ],
)
def test_what_a_policy_says_to_a_job(
    page: str, job: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    (tmp_path / "policy.yaml").write_text(shown(page, "yaml")[0])
    (tmp_path / "job.yaml").write_text(f"run: python train.py\n{job}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["--store", str(tmp_path / "store"), "policy", "test", "job.yaml", "--policy", "policy.yaml"])
    printed = capsys.readouterr().out
    (console,) = [text for text in shown(page, "console") if "$ stoker policy test" in text]
    _, _, answer = console.partition("$ stoker policy test")
    told = answer.partition("\n")[2].partition("$ ")[0]
    assert (left.value.code, printed) == (code, told if told.endswith("\n") else f"{told}\n")


def test_what_a_webhook_is_sent() -> None:
    (page,) = [json.loads(text) for text in shown("notifications.md", "json")]
    (event,) = page["events"]
    stream, _, seq = event.pop("id").rpartition("/")
    given = {name: value for name, value in event.items() if value is not None}
    told = Notification(**{**given, "at": datetime.fromisoformat(event["at"].replace("Z", "+00:00")), "seq": int(seq)})
    assert stream == told.job
    assert body(compose(page["id"], page["store"], (told,))) == {**page, "events": [{"id": f"{stream}/{seq}", **event}]}
