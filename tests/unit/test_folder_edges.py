"""A store in a folder while others write, delete and fill the disk under its hands."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import disk
from stoker.store.folder import FolderStore

PARTIAL = ".stoker-partial"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "store")
    made.put("a/b/c", b"hello")
    return made


def files(store: FolderStore) -> list[str]:
    root = Path(store.url.removeprefix("file://"))
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def keys(store: FolderStore, prefix: str = "") -> list[str]:
    return [meta.key for meta in store.list(prefix)]


def test_a_full_disk_that_is_told_on_closing_gives_no_name(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network filesystems do."""
    dup, close, copies = os.dup, os.close, set[int]()

    def copied(file: int) -> int:
        copies.add(made := dup(file))
        return made

    def closed(file: int) -> None:
        close(file)
        if file in copies:
            copies.discard(file)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "dup", copied)
    monkeypatch.setattr(os, "close", closed)
    with pytest.raises(StoreUnavailable, match="Disk quota exceeded"):
        store.put("a/b/c", b"other")
    monkeypatch.undo()
    found = store.get("a/b/c")
    assert found is not None and found.data == b"hello" and files(store) == ["a/b/c"]


def test_an_object_as_large_as_it_may_be_is_read_and_a_larger_one_is_named(store: FolderStore) -> None:
    found = store.get("a/b/c", limit=5)
    assert found is not None and found.data == b"hello"
    with pytest.raises(StoreError, match="a/b/c has 5 bytes, more than the 4 it may have"):
        store.get("a/b/c", limit=4)


@pytest.mark.parametrize(("start", "found"), [(0, b"hello"), (3, b"lo"), (5, b""), (9, b"")])
def test_what_follows_a_place_is_read_and_nothing_beyond_the_end(store: FolderStore, start: int, found: bytes) -> None:
    assert store.get_from("a/b/c", start) == found
    assert store.get_from("a/b/none", start) is None


@pytest.mark.parametrize("key", [PARTIAL, f"{PARTIAL}/x", f"{PARTIAL}/x/y"])
def test_a_key_among_unfinished_files_is_refused(store: FolderStore, key: str) -> None:
    with pytest.raises(StoreError, match="unfinished files are stored there"):
        store.put(key, b"x")
    assert store.create(f"{PARTIAL}-not", b"x") and keys(store) == [f"{PARTIAL}-not", "a/b/c"]


def test_folders_are_removed_with_their_last_object_and_no_earlier(store: FolderStore, tmp_path: Path) -> None:
    store.put("a/d", b"x")
    store.delete(["a/none", "a/b", "a/b/c"])
    assert sorted(path.name for path in (tmp_path / "store" / "a").iterdir()) == ["d"]
    store.delete(["a/d"])
    assert not (tmp_path / "store" / "a").exists() and (tmp_path / "store").is_dir()


def test_folders_are_made_and_removed_however_deep_a_key_is(store: FolderStore, tmp_path: Path) -> None:
    deep = "/".join(["deep"] * 50)
    for number, write in enumerate((store.put, store.create)):
        write(f"{number}/{deep}/k", b"x")
    assert keys(store, "0/") == [f"0/{deep}/k"]
    store.delete([f"0/{deep}/k", f"1/{deep}/k"])
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [PARTIAL, "a"]


def test_a_deletion_that_fails_midway_removes_the_folders_it_has_emptied(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("z", b"x")
    unlink = os.unlink

    def failing(path: str) -> None:
        if path.endswith("/z"):
            raise OSError(errno.EIO, "Input/output error")
        unlink(path)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        store.delete(["a/b/c", "z"])
    assert not (tmp_path / "store" / "a").exists() and keys(store) == ["z"]


def test_what_is_deleted_while_it_is_listed_is_left_out_and_the_rest_told(store: FolderStore, tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        store.put(f"d/{name}", b"x")
    listing = store.list("")
    assert next(listing).key == "a/b/c"
    assert next(listing).key == "d/1"
    (tmp_path / "store" / "d" / "2").unlink()
    assert [meta.key for meta in listing] == ["d/3"]


def test_one_unfinished_file_that_cannot_be_removed_keeps_no_other(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "store" / PARTIAL
    for name in ("1", "2", "3"):
        (partial / name).write_bytes(b"x")
        os.utime(partial / name, (0, 0))
    (partial / "new").write_bytes(b"x")
    genuine, refused = disk.remove_unlocked, list[str]()

    def remove(path: str) -> None:
        if not refused:
            refused.append(path)
            raise PermissionError(errno.EPERM, "not yours")
        genuine(path)

    monkeypatch.setattr(disk, "remove_unlocked", remove)
    (tmp_path / "in").write_bytes(b"x")
    store.put_file(tmp_path / "in", lambda _: "k")
    assert sorted(path.name for path in partial.iterdir()) == sorted([Path(refused[0]).name, "new"])


def test_a_store_without_hard_links_leaves_no_empty_folder(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreDenied, match="its filesystem has no hard links"):
        store.create("new/folder/k", b"x")
    assert not (tmp_path / "store" / "new").exists()


def test_an_error_on_linking_that_says_nothing_of_the_filesystem_is_an_outage(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        store.create("k", b"x")


def test_an_object_that_is_written_again_is_another_one(store: FolderStore, tmp_path: Path) -> None:
    first = store.head("a/b/c")
    assert first is not None and first.size == 5
    store.put("a/b/c", b"HELLO")
    os.utime(tmp_path / "store" / "a" / "b" / "c", ns=(0, round(first.modified.timestamp() * 1e9)))
    second = store.head("a/b/c")
    assert second is not None and second.etag != first.etag


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_is_sent_where_nothing_is_or_where_it_may_replace(
    store: FolderStore, tmp_path: Path, replace: bool
) -> None:
    (tmp_path / "in").write_bytes(b"newer")
    sent = store.put_file(tmp_path / "in", lambda _: "a/b/c", replace=replace)
    found = store.get("a/b/c")
    assert found is not None and found.data == (b"newer" if replace else b"hello")
    assert (sent.size, sent.moved) == (5, 5 if replace else 0)
    assert store.put_file(tmp_path / "in", lambda digest: f"n/{digest}", replace=replace).moved == 5


def test_what_cannot_be_read_is_the_stores_error_and_what_cannot_be_written_the_callers(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        store.get_file("a/b/c", tmp_path / "none" / "out")
    assert store.get_file("a/b/none", tmp_path / "out") is None and not (tmp_path / "out").exists()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "readv", fail)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        store.get_file("a/b/c", tmp_path / "out")
    monkeypatch.setattr(os, "read", fail)
    for read in (lambda: store.get("a/b/c"), lambda: store.get_from("a/b/c", 0)):
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            read()


def test_a_disk_that_fills_while_a_file_is_sent_is_the_stores_error(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "in").write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.put_file(tmp_path / "in", lambda digest: digest)
    assert files(store) == ["a/b/c"]


def test_a_place_where_no_folder_can_ever_be_made_is_denied() -> None:
    with pytest.raises(StoreDenied, match=r"cannot be used: no folder can be made in /proc$"):
        FolderStore(Path("/proc/stoker")).put("key", b"")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_an_object_that_cannot_be_opened_is_not_an_absent_one(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr(os, "stat", fail)
    for look in (lambda: store.get("a/b/c"), lambda: store.get_from("a/b/c", 0), lambda: store.head("a/b/c")):
        with pytest.raises(StoreDenied if number == errno.EACCES else StoreUnavailable):
            look()


def test_a_file_that_is_being_sent_is_swept_by_no_other(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    seen: list[Path] = []

    def key(digest: str) -> str:
        seen.extend((tmp_path / "store" / PARTIAL).iterdir())
        for path in seen:
            disk.remove_unlocked(str(path))
        return digest

    sent = store.put_file(tmp_path / "in", key)
    assert len(seen) == 1 and keys(store) == sorted([sent.digest, "a/b/c"])


def test_a_folder_is_near(store: FolderStore) -> None:
    assert store.is_local is True
