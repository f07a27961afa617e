"""A folder at one moment: which files it has, how they look, and what is sent of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write

from stoker.agent.checkpoints import folder_snapshot
from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import Signature, copy_stable, pinned_path, scan, signature_of
from stoker.agent.checkpoints.unreadable_files import FileUnreadable
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged
from stoker.testing.memory_store import Fault, MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


def test_only_files_and_links_that_can_be_restored_are_seen(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    write(tmp_path / "sub/é", "1")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("a name that is no text")
    (tmp_path / "gone").symlink_to("/nowhere/at/all")
    (tmp_path / "inside").symlink_to("sub")
    found = scan(tmp_path)
    assert sorted(path for path, file in found.items() if not file.problem) == ["a", "inside", "sub/é"]
    assert [path for path, file in found.items() if file.problem] == ["\udcff"]
    assert (found["inside"].link, found["inside"].size) == ("sub", 3)
    assert (found["a"].link, found["a"].size, stat.S_ISREG(found["a"].mode)) == (None, 1, True)
    assert scan(tmp_path / "nothing") == {}


def test_folders_in_folders_are_followed_to_a_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_snapshot, "MAX_DEPTH", 2)
    write(tmp_path / "1/2/deep", "1")
    write(tmp_path / "1/2/3/too-deep", "1")
    write(tmp_path / "z", "1")
    assert sorted(scan(tmp_path)) == ["1/2/3/", "1/2/deep", "z"]


def test_a_path_that_is_too_long_to_be_restored_is_left_out(tmp_path: Path) -> None:
    parts = ["n" * 200] * 21
    handle = os.open(tmp_path, os.O_RDONLY)
    for part in parts:
        os.mkdir(part, dir_fd=handle)
        inner = os.open(part, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("model", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)
    write(tmp_path / "n" / ("m" * 200) / ("o" * 200), "1")
    assert sorted((len(path), bool(file.problem)) for path, file in scan(tmp_path).items()) == [
        (403, False),
        (4226, True),
    ]


def test_a_link_to_a_file_elsewhere_is_read_as_that_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    write(tmp_path / "base.bin", "12345")
    (tmp_path / "folders").mkdir()
    folder.mkdir()
    (folder / "base.bin").symlink_to(tmp_path / "base.bin")
    (folder / "whole").symlink_to(tmp_path / "folders")
    (folder / "self").symlink_to(folder / "sub" / "x")
    found = scan(folder)
    assert sorted(found) == ["base.bin", "self"]
    assert (found["base.bin"].link, found["base.bin"].size) == (None, 5)
    assert found["self"].link == "sub/x"
    assert "whole is left out: a link out of the checkpoint folder" in caplog.text
    assert signature_of(folder / "base.bin", found["base.bin"]) == found["base.bin"].signature
    assert signature_of(folder / "self", found["self"]) == found["self"].signature
    assert signature_of(folder / "nothing", found["base.bin"]) is None


def test_files_that_no_disk_holds_are_never_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "memory", "1")
    folder = tmp_path / "folder"
    write(folder / "a", "1")
    (folder / "memory").symlink_to(tmp_path / "memory")
    for name, target in (("kmsg", "/proc/kmsg"), ("environ", "/proc/self/environ"), ("sys", "/sys/kernel/notes")):
        (folder / name).symlink_to(target)
    assert sorted(scan(folder)) == ["a", "memory"]
    assert "kmsg is left out: a link out of the checkpoint folder, to /proc/kmsg" in caplog.text
    caplog.clear()
    assert sorted(scan(folder)) == ["a", "memory"]
    assert caplog.text == "", "this is said once"


def test_links_out_of_the_folder_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "base.bin", "12345")
    write(tmp_path / "folder/a", "1")
    (tmp_path / "folder/b").symlink_to("a")
    (tmp_path / "folder/base.bin").symlink_to(tmp_path / "base.bin")
    assert sorted(scan(tmp_path / "folder")) == ["a", "b", "base.bin"]
    assert sorted(scan(tmp_path / "folder", links_out=False)) == ["a", "b"]


def test_a_file_is_as_new_as_its_bytes_or_its_status() -> None:
    assert Signature(1, 2, 3, 50, 60).newest_ns == 60
    assert Signature(1, 2, 3, 70, 60).newest_ns == 70


def test_a_file_that_only_grew_may_be_held_where_that_is_enough(tmp_path: Path) -> None:
    write(tmp_path / "log", "1")
    file = scan(tmp_path)["log"]
    write(tmp_path / "log", "12")
    with pinned_path(tmp_path / "log", file, exact=False) as held:
        assert held.read_text() == "12"
    with pytest.raises(FileChanged), pinned_path(tmp_path / "log", file):
        pass
    (tmp_path / "log").rename(tmp_path / "log.1")
    write(tmp_path / "log", "1")
    with pytest.raises(FileChanged), pinned_path(tmp_path / "log", file, exact=False):
        pass


def test_a_copy_of_a_file_that_changed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", "1")
    file = scan(tmp_path)["a"]
    assert copy_stable(tmp_path / "a", file, tmp_path / "copy") is True
    assert (tmp_path / "copy").read_text() == "1"
    write(tmp_path / "a", "2")
    assert copy_stable(tmp_path / "a", file, tmp_path / "copy") is False
    now = scan(tmp_path)["a"]
    monkeypatch.setattr(folder_snapshot, "signature_of", lambda _path, _file: None)
    assert copy_stable(tmp_path / "a", now, tmp_path / "copy") is False, "while it was copied"


# ── Sending ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Sending:
    """A folder whose files are sent; the clock that dates the sending is the test's."""

    def __init__(self, root: Path, memory: MemoryStore) -> None:
        self.folder = root / "folder"
        self.folder.mkdir()
        self.later_ns = 10_000_000_000
        self.keys: list[str] = []
        self.before_put: Callable[[], None] = lambda: None
        self.now_s = 50.0
        self.sender = BlobSender(
            memory.client(self.faults),
            JOB,
            0,
            scratch=root / "scratch",
            workers=1,
            wall_ns=lambda: (
                max((path.lstat().st_ctime_ns for path in self.folder.iterdir()), default=0) + self.later_ns
            ),
            monotonic=lambda: self.now_s,
        )

    def faults(self, method: str, key: str) -> Fault | None:
        if method == "put_file":
            self.keys.append(key)
            self.now_s += 2.0
            self.before_put()
        return None

    def outgoing(self, *, copied_ns: int | None = None) -> list[OutgoingFile]:
        return [OutgoingFile(file, self.folder / file.path, copied_ns) for file in scan(self.folder).values()]

    def send(self, **options: int) -> dict[str, BlobRef]:
        return self.sender.send(self.outgoing(**options))


@pytest.fixture
def sending(tmp_path: Path, memory: MemoryStore) -> Sending:
    return Sending(tmp_path, memory)


def test_bytes_are_read_again_only_of_a_file_that_may_have_been_written_within_a_tick(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    sending.later_ns = 1_999_999_999
    first = sending.send()
    write(sending.folder / "a", "2")
    sending.send()
    assert len(sending.keys) == 2
    sending.later_ns = 2_000_000_000
    second = sending.send()
    assert sending.sender.bytes_to_send(scan(sending.folder).values()) == 0
    assert first["a"].digest != second["a"].digest
    (sending.folder / "a").rename(sending.folder / "b")
    (sending.folder / "b").rename(sending.folder / "a")
    sending.sender.forget_sent()
    sending.sender.forget_files([])
    assert sending.sender.bytes_to_send(scan(sending.folder).values()) == 1


def test_links_are_sent_as_what_they_say_and_once(sending: Sending, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (sending.folder / name).symlink_to("step-1")
    found = sending.send()
    assert found["one"].digest == found["two"].digest and found["one"].size == 6
    assert stat.S_ISLNK(found["one"].mode)
    sending.send()
    assert len(sending.keys) == 1
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_file_that_is_not_what_was_scanned_is_not_sent(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    stale = sending.outgoing()
    write(sending.folder / "a", "22")
    with pytest.raises(FileUnstable, match="a"):
        sending.sender.send(stale)
    (sending.folder / "a").unlink()
    with pytest.raises(FileUnstable):
        sending.sender.send(stale)
    write(sending.folder / "step-1/a", "1")
    stale = sending.outgoing()
    (sending.folder / "step-1/a").unlink()
    (sending.folder / "step-1").rmdir()
    write(sending.folder / "step-1", "a file in the place of the folder")
    with pytest.raises(FileUnstable):
        sending.sender.send(stale)
    assert sending.keys == []
    assert sending.sender.bytes_left == 0


def test_a_file_that_is_written_while_it_is_sent_is_not_taken_for_what_was_scanned(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    outgoing = sending.outgoing()
    sending.before_put = lambda: write(sending.folder / "a", "2")
    with pytest.raises(FileUnstable, match="a"):
        sending.sender.send(outgoing)
    sending.before_put = lambda: None
    sent = sending.send()["a"]
    assert sent.digest == hashlib.sha256(b"2").hexdigest()


def test_a_copy_that_has_another_size_is_not_the_file(sending: Sending, tmp_path: Path) -> None:
    write(sending.folder / "a", "12")
    (one,) = sending.outgoing(copied_ns=1)
    write(tmp_path / "copy", "123")
    with pytest.raises(FileUnstable):
        sending.sender.send([OutgoingFile(one.file, tmp_path / "copy", 1)])
    write(tmp_path / "copy", "12")
    assert sending.sender.send([OutgoingFile(one.file, tmp_path / "copy", 1)])["a"].size == 2


def test_how_fast_the_store_is_shows_in_what_was_sent_last(sending: Sending) -> None:
    assert sending.sender.bytes_per_s is None
    write(sending.folder / "a", "1234")
    sending.send()
    assert sending.sender.bytes_per_s == 2.0
    sending.send()
    assert sending.sender.bytes_per_s == 2.0, "nothing was sent"
    assert sending.sender.bytes_moved == 4
    write(sending.folder / "b", "123456")
    sending.send()
    assert sending.sender.bytes_per_s == 3.0, "what was sent before does not count"


def test_a_restored_file_is_not_read_again(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    (file,) = scan(sending.folder).values()
    restored = BlobRef("a", "d" * 64, 1, upload="u" * 16)
    assert not sending.sender.has(file)
    sending.sender.remember(file.signature, restored)
    assert sending.sender.has(file) and sending.sender.bytes_to_send([file]) == 0
    sent = sending.send()["a"]
    assert (sent.digest, sent.upload) == (restored.digest, restored.upload)
    assert sending.keys == []


def test_nothing_is_sent_of_a_save_with_a_file_that_no_checkpoint_can_hold(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    write(sending.folder / os.fsdecode(b"latin1-\xe9"), "1")
    with pytest.raises(FileUnreadable, match="its name is not UTF-8"):
        sending.send()
    assert sending.keys == []


def test_blobs_come_in_the_order_of_their_age(sending: Sending) -> None:
    for number, name in enumerate(("b", "c", "a")):
        write(sending.folder / name, name)
        os.utime(sending.folder / name, ns=(number, number))
    assert list(sending.send()) == ["b", "c", "a"]


def test_what_is_about_to_be_removed_is_sent_anew(sending: Sending) -> None:
    write(sending.folder / "a", "1")
    first = sending.send()["a"]
    assert sending.sender.names == {first.name}
    assert sending.sender.upload_of(first.digest) == first.upload
    sending.sender.forget_blobs({"another"})
    assert sending.send()["a"] == first
    sending.sender.forget_blobs({first.name})
    assert sending.sender.upload_of(first.digest) is None and sending.sender.names == frozenset()
    second = sending.send()["a"]
    assert second.name != first.name and second.digest == first.digest
