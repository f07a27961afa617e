"""A training that puts other things in the place of the files through which it talks to its agent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stoker.agent.checkpoints.commit_queue import CommitQueue
from stoker.agent.checkpoints.save_protocol import MARKER, read_json
from stoker.agent.logs.log_pump import last_lines

T = TypeVar("T")


def at_once(question: Callable[[], T]) -> T:
    """The answer, from somebody who must not be kept waiting for it."""
    answers: list[T] = []
    asking = threading.Thread(target=lambda: answers.append(question()), daemon=True)
    asking.start()
    asking.join(30)
    assert answers, "still waiting"
    return answers[0]


def test_a_log_that_is_a_pipe_has_no_last_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.log")
    assert at_once(lambda: last_lines(tmp_path / "train.log")) == ()


def test_requests_that_are_none_hold_up_no_save(tmp_path: Path) -> None:
    channel, folder = tmp_path / "channel", tmp_path / "checkpoints"
    requests = channel / "commits"
    requests.mkdir(parents=True)
    (folder / "good").mkdir(parents=True)
    os.mkfifo(requests / "00000001.json")
    (requests / "00000002.json").mkdir()
    (requests / "00000002.json" / "inside").touch()
    (requests / "00000003.json").write_text("[" * 50_000)
    (requests / "00000004.json").write_text(json.dumps({"sequence": 4, "name": "../../up", "number": 1}))
    (requests / "00000005.json").write_text(json.dumps({"sequence": 5, "name": "good", "number": 1}))
    queue = CommitQueue(channel, folder)
    assert [request.name for request in at_once(queue.waiting)] == ["good"]
    assert [entry.name for entry in requests.iterdir()] == ["00000005.json"]
    os.mkfifo(folder / "good" / MARKER)
    assert at_once(lambda: read_json(folder / "good" / MARKER)) is None
