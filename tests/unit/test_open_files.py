"""Which files a process may still write to, open or mapped."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from stoker.processes import open_for_writing


class TestOpenForWriting:
    def test_what_may_still_change(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        (folder / "deep").mkdir(parents=True)
        for name in ("read", "append", "deep/both", "mapped", "private", "closed", "deleted"):
            (folder / name).write_bytes(b"x" * 4096)
        (tmp_path / "folder-beside").write_bytes(b"")
        link = tmp_path / "link"
        link.symlink_to(folder)
        me = {os.getpid()}
        with (
            (folder / "read").open("rb"),
            (folder / "append").open("ab"),
            (folder / "deep/both").open("r+b"),
            (folder / "deleted").open("wb"),
            (folder / "new").open("wb"),
            (tmp_path / "folder-beside").open("wb"),
        ):
            (folder / "deleted").unlink()
            with (folder / "mapped").open("r+b") as file:
                shared = mmap.mmap(file.fileno(), 4096)
            with (folder / "private").open("rb") as file:
                private = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE)
            # CPython keeps its own descriptor of what it maps; another process would not.
            expected = {"append", "deep/both", "new", "mapped"}
            assert set(open_for_writing(me, folder).files) == {folder / name for name in expected}
            assert set(open_for_writing(me, link).files) == {link / name for name in expected}
            assert set(open_for_writing([], folder).files) == set()
            shared.close()
            private.close()
        assert set(open_for_writing(me, folder).files) == set()

    def test_a_mapping_alone_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "mapped"
        path.write_bytes(b"x" * 4096)
        code = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
kept = mmap.mmap(file, 4096)
os.closerange(3, 64)
print("ready", flush=True)
time.sleep(3600)
"""
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            held = {os.readlink(f"/proc/{child.pid}/fd/{n}") for n in os.listdir(f"/proc/{child.pid}/fd")}  # noqa: PTH115, PTH208
            assert str(path) not in held
            assert set(open_for_writing({child.pid}, tmp_path).files) == {path}
        finally:
            child.kill()
            child.wait()
        assert set(open_for_writing({child.pid}, tmp_path).files) == set()
