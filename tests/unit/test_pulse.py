"""The agent's pulse, as systemd takes it."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from stoker.agent import systemd_watchdog
from stoker.agent.systemd_watchdog import start_watchdog


@pytest.mark.parametrize("abstract", [False, True])
def test_an_agent_shows_its_pulse_and_keeps_it_from_what_it_starts(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stoker-pulse-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name if abstract else name)
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        monkeypatch.setenv("WATCHDOG_USEC", "30000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        start_watchdog()
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def test_no_pulse_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    start_watchdog()


def test_the_pulse_comes_three_times_in_the_time_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[tuple[str, float]] = []
    beaten = threading.Event()

    def beat(address: str, every_s: float) -> None:
        beats.append((address, every_s))
        beaten.set()

    monkeypatch.setattr(systemd_watchdog, "_notify", beat)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    start_watchdog()
    assert beaten.wait(60) and beats == [("/run/notify", 10.0)]
