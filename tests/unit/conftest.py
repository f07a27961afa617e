"""What all unit tests share."""

from __future__ import annotations

import time

import pytest


@pytest.fixture(autouse=True)
def free_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scans cost nothing, unless a test says otherwise: a scan that a busy computer makes dear is followed by a
    longer pause, and worlds with a virtual clock wait for a fixed time."""
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
