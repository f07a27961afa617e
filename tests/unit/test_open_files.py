"""Which files a process may still write to, open or mapped."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from owned_groups import LEADERLESS, python

from stoker.agent.checkpoints.folder_snapshot import FolderView
from stoker.processes import open_for_writing, stat_of

ME = {os.getpid()}


def open_in(folder: Path, members: set[int] = ME) -> set[str]:
    """The open files of a folder that has just been scanned."""
    view = FolderView(folder, lambda aliased: open_for_writing(members, folder, (), aliased))
    view.scan()
    return set(view.open_files().files)


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


class TestOtherNames:
    def test_a_link_to_a_file_elsewhere_is_open_while_that_file_is(self, tmp_path: Path) -> None:
        folder, disk = tmp_path / "folder", tmp_path / "disk"
        folder.mkdir()
        disk.mkdir()
        for name in ("written", "mapped", "read"):
            (disk / name).write_bytes(b"x" * 4096)
            (folder / name).symlink_to(disk / name)
        with (folder / "written").open("r+b"), (folder / "read").open("rb"), (disk / "other").open("wb"):
            assert open_in(folder) == {"written"}
            with (disk / "mapped").open("r+b") as file:
                shared = mmap.mmap(file.fileno(), 4096)
            assert open_in(folder) == {"written", "mapped"}
            shared.close()
        assert open_in(folder) == set()

    def test_a_hard_link_is_open_under_each_of_its_names(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        with (tmp_path / "draft").open("wb") as file:
            os.link(tmp_path / "draft", folder / "a")
            os.link(tmp_path / "draft", folder / "b")
            file.write(b"1")
            assert open_in(folder) == {"a", "b"}
            (tmp_path / "draft").unlink()
            assert open_in(folder) == {"a", "b"}, "the kernel calls it deleted"
            (folder / "a").unlink()
            (folder / "c").write_bytes(b"2")
            os.link(folder / "c", folder / "d")
            os.link(folder / "b", folder / "e")
            assert open_in(folder) == {"b", "e"}

    def test_a_file_elsewhere_is_not_asked_for_its_status(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path / "linked")
        (tmp_path / "linked").write_bytes(b"")
        with (tmp_path / "elsewhere").open("wb") as elsewhere:
            if "ino:" not in Path(f"/proc/self/fdinfo/{elsewhere.fileno()}").read_text():
                pytest.skip("this kernel does not tell the inode without it")
            view = FolderView(folder, lambda aliased: open_for_writing(ME, folder, (), aliased))
            view.scan()

            def hang(*_words: object, **_more: object) -> None:
                raise AssertionError("its disk may not answer")

            monkeypatch.setattr(os, "stat", hang)
            assert not view.open_files().files

    def test_a_name_that_ends_like_that_of_a_deleted_file(self, tmp_path: Path) -> None:
        name = "model (deleted)"
        with (tmp_path / name).open("wb"):
            assert open_in(tmp_path) == {name}
            (tmp_path / name).unlink()
            assert open_in(tmp_path) == set()
            (tmp_path / name).write_bytes(b"another")
            assert open_in(tmp_path) == set()
        with (tmp_path / "model").open("wb"):
            (tmp_path / "model").unlink()
            assert open_in(tmp_path) == set(), "it is another file that has this name"

    @pytest.mark.parametrize("name", ["new\nline", "back\\012slash", "re\rturn", "model (deleted)", " a  b ", "ü✓"])
    def test_odd_names_of_mapped_files(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"x" * 4096)
        (tmp_path / "other").write_bytes(b"x" * 4096)
        handle = os.open(tmp_path / name, os.O_RDWR)
        shared = mmap.mmap(handle, 4096)
        os.close(handle)
        try:
            assert open_in(tmp_path) == {name}
        finally:
            shared.close()


def test_the_files_of_a_process_whose_first_thread_has_ended(tmp_path: Path) -> None:
    work = """
def work():
    import mmap
    files = [open(sys.argv[1] + "/" + name, "r+b") for name in ("written", "mapped")]
    kept = mmap.mmap(files[1].fileno(), 4096)
    print("ready", flush=True)
    time.sleep(3600)
goes_on(work)
"""
    for name in ("written", "mapped", "other"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    child = subprocess.Popen(python(LEADERLESS + work, tmp_path), stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        while (stat := stat_of(child.pid)) is not None and not stat.leaderless:
            time.sleep(0.005)
        found = open_for_writing({child.pid}, tmp_path)
        assert set(found.files) == {tmp_path / "written", tmp_path / "mapped"}
    finally:
        child.kill()
        child.wait()
