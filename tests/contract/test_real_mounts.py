"""Buckets that are really mounted, with FUSE, by the programs that Debian has. Only loopback can be reached."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.inputs import mount
from stoker.agent.inputs.service import Inputs
from stoker.model.errors import SetupFailed
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.model.spec import Input
from stoker.processes.unmounting import mounted_below, unmount_below
from stoker.store.base import open_store
from tests.support.servers import isolated, pytest_isolated

if not os.access("/dev/fuse", os.R_OK | os.W_OK):
    pytest.skip("/dev/fuse cannot be used here", allow_module_level=True)

if isolated():

    @pytest.fixture
    def node(tmp_path: Path) -> Iterator[Any]:
        paths = NodePaths(tmp_path / "node")
        paths.root.mkdir()
        said: list[str] = []
        config = NodeConfig("", "local", "job", 1, 0, 1, "node")
        yield SimpleNamespace(
            paths=paths, config=config, inputs=tmp_path / "inputs", say=said.append, said=said, machine=None
        )
        unmount_below(tmp_path)

    @pytest.fixture(params=["rclone", "s3fs"])
    def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        name: str = request.param
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name}; scripts/need-tools.sh installs it")
        monkeypatch.setattr(mount, "TOOLS", {"s3": (name,)})
        return name

    def fill(url: str) -> None:
        for key, data in {"a.txt": b"a", "sub/b.txt": b"b" * 100_000}.items():
            open_store(url).put(key, data)

    def bring(node: Any, source: str) -> Path:
        return Path(Inputs(node, lambda: None).provide({"data": Input(source, mode="mount")})["data"])

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def servers(node: Any) -> list[int]:
        """Those that serve what is mounted below this node's folder. The dead have no command line."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            except OSError:
                continue  # It has ended meanwhile.
            if os.fsencode(node.paths.root.parent) + b"/" in words:
                found.append(int(entry.name))
        return found

    def test_a_bucket_is_read_where_it_is_mounted(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        where = bring(node, s3_url)
        assert where == node.paths.mounts / "data"
        assert sorted(str(path.relative_to(where)) for path in where.rglob("*")) == ["a.txt", "sub", "sub/b.txt"]
        assert (where / "sub/b.txt").read_bytes() == b"b" * 100_000
        assert node.said == [f"inputs.data: {s3_url} is mounted read-only with {tool}"]
        with pytest.raises(OSError, match="Read-only"):
            (where / "new").write_bytes(b"x")
        with pytest.raises(OSError, match="Read-only"):
            (where / "a.txt").unlink()
        assert open_store(s3_url).head("a.txt") is not None

    def test_nothing_is_left_of_it(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        bring(node, s3_url)
        (server,) = servers(node)
        assert unmount_below(node.paths.mounts) == []
        assert list((node.paths.mounts / "data").iterdir()) == []
        until(lambda: server not in servers(node))

    def test_what_a_dead_server_left_is_swept(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        where = bring(node, s3_url)
        (server,) = servers(node)
        os.kill(server, signal.SIGKILL)
        until(lambda: server not in servers(node))
        with pytest.raises(OSError):
            list(where.iterdir())
        assert mounted_below(node.paths.root) == [str(where)]
        # A second life mounts it anew.
        assert (bring(node, s3_url) / "a.txt").read_bytes() == b"a"
        assert unmount_below(node.paths.root) == []

    def reader(path: Path) -> subprocess.Popen[bytes]:
        """Somebody who waits for an answer that will not come."""
        started = subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: "fuse" in (told := waits_for(started.pid)) or "request_wait" in told)
        return started

    def waits_for(pid: int) -> str:
        return Path(f"/proc/{pid}/wchan").read_text()

    def test_whoever_waits_for_it_fails_when_it_is_cut(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        inputs = Inputs(node, lambda: None)
        where = Path(inputs.provide({"data": Input(s3_url, mode="mount")})["data"])
        (server,) = servers(node)
        os.kill(server, signal.SIGSTOP)
        waiting = reader(where / "sub/b.txt")
        inputs.abort()
        assert waiting.wait(30) == 1
        inputs.abort()
        assert unmount_below(node.paths.mounts) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="who is not root cannot have the kernel's files about FUSE mounted")
    def test_a_connection_is_aborted_whatever_its_server_does(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        where = bring(node, s3_url)
        (server,) = servers(node)
        os.kill(server, signal.SIGSTOP)
        waiting = reader(where / "sub/b.txt")
        # In a view of the file system of its own: not every machine has them mounted.
        aborting = (
            f"from pathlib import Path; from stoker.processes.unmounting import abort_below\n"
            f"abort_below(Path({str(node.paths.mounts)!r}))\n"
        )
        mounting_them = 'mount -t fusectl none /sys/fs/fuse/connections; exec "$@"'
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", mounting_them, "sh", sys.executable, "-c", aborting], check=True
        )
        assert waiting.wait(30) == 1
        assert server in servers(node)
        os.kill(server, signal.SIGKILL)

    def test_one_object_is_a_file_in_a_mount(tool: str, s3_url: str, node: Any) -> None:
        fill(s3_url)
        assert bring(node, f"{s3_url}/sub/b.txt").read_bytes() == b"b" * 100_000

    def test_a_mount_of_a_folder_with_spaces(tool: str, s3_url: str, tmp_path: Path, node: Any) -> None:
        fill(s3_url)
        node.paths = NodePaths(tmp_path / "a node")
        node.paths.root.mkdir()
        assert (bring(node, s3_url) / "a.txt").read_bytes() == b"a"
        assert unmount_below(tmp_path / "a node") == []

    def test_what_is_not_there_is_told_before_it_is_mounted(tool: str, s3_url: str, node: Any) -> None:
        with pytest.raises(SetupFailed, match=rf"^inputs\.data: there is nothing at {s3_url}$"):
            bring(node, s3_url)
        assert servers(node) == []

    def test_a_program_that_fails_is_quoted(s3_url: str, node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(s3_url)
        folder = node.paths.root / "bin"
        folder.mkdir()
        (folder / "s3fs").write_text("#!/bin/sh\necho cannot do that >&2\nexit 7\n")
        (folder / "s3fs").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setattr(mount, "TOOLS", {"s3": ("s3fs",)})
        with pytest.raises(SetupFailed, match=r"^inputs\.data: s3fs ended with 7: cannot do that$"):
            bring(node, s3_url)

    def test_a_notice_interrupts_a_mount(s3_url: str, node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(s3_url)
        folder = node.paths.root / "bin"
        folder.mkdir()
        (folder / "s3fs").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
        (folder / "s3fs").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setattr(mount, "TOOLS", {"s3": ("s3fs",)})
        looks: list[int] = []

        def leave() -> None:
            looks.append(len(servers(node)))
            if looks[-1]:
                raise InterruptedError("told to go")

        with pytest.raises(SetupFailed):  # an OSError of the test's: whatever it is, it ends the wait
            Inputs(node, leave).provide({"data": Input(s3_url, mode="mount")})
        assert servers(node) == []

else:

    def test_mounts_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
