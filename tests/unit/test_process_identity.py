"""A process is told from every other, dead or alive, that has its number or its name."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from owned_groups import python, until

from stoker.processes import Process, boot_id, process_table, stat_of


class TestProcess:
    def test_me(self) -> None:
        me = Process.me()
        assert me == Process.of(os.getpid())
        assert me.alive
        assert me.boot == boot_id()

    def test_a_zombie_is_not_alive(self) -> None:
        child = subprocess.Popen(["true"])
        until(lambda: (stat := stat_of(child.pid)) is not None and stat.state == "Z", "the zombie")
        assert Process.of(child.pid) is None
        child.wait()
        assert stat_of(child.pid) is None

    def test_a_leader_that_ended_before_its_threads_is_alive(self) -> None:
        code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(3600,)).start(); "
        child = subprocess.Popen(python(code + "ctypes.CDLL(None).pthread_exit(None)"))
        until(lambda: (stat := stat_of(child.pid)) is not None and stat.state == "Z", "the leader to end")
        process = Process.of(child.pid)
        assert process is not None
        process.signal(signal.SIGKILL)
        child.wait()
        assert not process.alive

    def test_a_signal_reaches_the_process_and_no_other(self) -> None:
        child = subprocess.Popen(["sleep", "3600"])
        process = Process.of(child.pid)
        assert process is not None
        for mistaken in (process._replace(started=process.started + 1), process._replace(boot="another")):
            assert not mistaken.alive
            assert not mistaken.signal(signal.SIGKILL)
        assert process.alive
        assert process.signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        assert not process.signal(signal.SIGTERM)

    def test_without_pidfd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(38, "not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse)
        child = subprocess.Popen(["sleep", "3600"])
        process = Process.of(child.pid)
        assert process is not None
        assert not process._replace(started=1).signal(signal.SIGKILL)
        assert process.signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM

    def test_names_cannot_confuse_the_table(self, tmp_path: Path) -> None:
        program = tmp_path / ") Z 1 ("
        program.symlink_to("/bin/sleep")
        child = subprocess.Popen([program, "3600"])
        try:
            until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == ") Z 1 (\n", "the program to be started")
            stat = process_table()[child.pid]
            assert (stat.parent, stat.alive) == (os.getpid(), True)
        finally:
            child.kill()
            child.wait()
