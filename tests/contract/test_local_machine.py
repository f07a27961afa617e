"""A node's own side on this computer: its ports, the governors it wakes, and how it switches itself off."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import local_nodes
from local_nodes import PATIENCE_S

from stoker.providers.local.machine import LocalMachine
from stoker.providers.local.provider import LocalProvider

# Fixtures that all tests of nodes on this computer share.
way, home, acting, provider = local_nodes.way, local_nodes.home, local_nodes.acting, local_nodes.provider


class TestMachine:
    def test_ports_differ_between_nodes_and_are_free(self, tmp_path: Path) -> None:
        import socket

        first, second = LocalMachine(tmp_path / "job-1-1-0-aa"), LocalMachine(tmp_path / "job-1-2-0-bb")
        port = first.master_port(29500)
        assert port != second.master_port(29500)
        assert first.address() == "127.0.0.1"
        with socket.socket() as taken:
            taken.bind((first.address(), port))
            taken.listen()
            assert first.master_port(29500) != port

    def test_waking_reaches_a_waiting_provider(self, provider: LocalProvider) -> None:
        provider.root.mkdir(parents=True)
        machine = LocalMachine(provider.root / "node")
        assert not provider.wait(0.0)
        machine.wake_governors()
        machine.wake_governors()
        assert provider.wait(PATIENCE_S)
        assert not provider.wait(0.0)
        machine.wake_governors()
        assert provider.wait(0.0)

    def test_waking_never_raises(self, tmp_path: Path) -> None:
        LocalMachine(tmp_path / "nowhere" / "node").wake_governors()

    def test_giving_back_ends_the_process_from_any_thread(self, tmp_path: Path) -> None:
        code = """
            import sys, threading, time
            from pathlib import Path
            from stoker.providers.local.machine import LocalMachine
            print("last words")
            threading.Thread(target=LocalMachine(Path(sys.argv[1])).give_back).start()
            time.sleep(3600)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"last words\n")
