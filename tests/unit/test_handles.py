"""Folders and files that are opened are closed again, however a call ends: a governor lives for months."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stoker.model.errors import StoreError
from stoker.store.disk import flush_folder, remove_unlocked
from stoker.store.folder import FolderStore
from stoker.store.safe_extraction import Extraction, PathObstructed


def handles(below: Path) -> list[str]:
    """What this process has open below a folder."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(handle.readlink()))
    return sorted(path for path in found if path.startswith(str(below)))


@contextmanager
def all_closed(below: Path) -> Iterator[None]:
    """Nothing below this folder is open afterwards that was not before."""
    before = handles(below)
    yield
    assert handles(below) == before


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "store")
    made.put("a/b", b"hello")
    os.mkfifo(tmp_path / "store" / "pipe")
    (tmp_path / "store" / "folder").mkdir()
    (tmp_path / "source").write_bytes(b"x" * 400_000)
    return made


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _: store.get("a/b"),
        lambda store, _: store.get("a/b", limit=1),
        lambda store, _: store.get("pipe"),
        lambda store, _: store.get("folder"),
        lambda store, _: store.get_from("a/b", 2),
        lambda store, _: store.get_from("a/b", -1),
        lambda store, _: store.head("a/b"),
        lambda store, _: list(store.list("")),
        lambda store, _: store.folders(""),
        lambda store, tmp: store.get_file("a/b", tmp / "target"),
        lambda store, tmp: store.get_file("a/b", tmp / "none" / "target"),
        lambda store, _: store.put("a/b", b"other"),
        lambda store, _: store.put("a/b/c", b"below a file"),
        lambda store, _: store.create("a/c", b"new"),
        lambda store, _: store.create("a/b", b"taken"),
        lambda store, tmp: store.put_file(tmp / "source", lambda digest: f"blobs/{digest}"),
        lambda store, tmp: store.put_file(tmp / "source", lambda _: "a/b"),
        lambda store, tmp: store.put_file(tmp / "source", lambda _: "a/b", replace=True),
        lambda store, tmp: store.put_file(tmp / "none", lambda _: "x"),
        lambda store, _: store.delete(["a/b", "none"]),
    ],
)
def test_a_folder_store_leaves_nothing_open(
    store: FolderStore, tmp_path: Path, call: Callable[[FolderStore, Path], object]
) -> None:
    with all_closed(tmp_path), suppress(StoreError, OSError):
        call(store, tmp_path)


def test_flushing_and_sweeping_leave_nothing_open(tmp_path: Path) -> None:
    with all_closed(tmp_path):
        flush_folder(str(tmp_path))
        (tmp_path / "old").touch()
        remove_unlocked(str(tmp_path / "old"))
    assert not (tmp_path / "old").exists()


def fill(extraction: Extraction) -> None:
    (extraction.folder / "sub").mkdir()
    (extraction.folder / "sub" / "file").write_bytes(b"12345")
    (extraction.folder / "sub" / "two").hardlink_to(extraction.folder / "sub" / "file")
    (extraction.folder / "own").write_bytes(b"own")
    os.mkfifo(extraction.folder / "pipe")
    (extraction.folder / "link").symlink_to("sub")


def closing(handle: int) -> None:
    os.close(handle)


def replaced(extraction: Extraction) -> None:
    with extraction.staging() as staging:
        with staging.new_file("0") as file:
            file.write_bytes(b"1")
        folder = next(extraction.folder.glob(".tmp-fetch-*"))
        (folder / "0").unlink()
        (folder / "0").write_bytes(b"another")
        staging.read("0", 10)


def staged(extraction: Extraction) -> None:
    with extraction.staging() as staging:
        with staging.new_file("0") as file:
            file.write_bytes(b"12345")
        assert staging.read("0", 3) == b"123"
        staging.place("0", "new/file", mode=0o600, modified_ns=10**9)
        staging.place_link("new/link", "file")
        with staging.new_file("left") as file:
            file.write_bytes(b"1")


@pytest.mark.parametrize(
    "call",
    [
        lambda extraction: extraction.make_folder("a/b/c", 10**9),
        lambda extraction: extraction.make_folder("own/inner"),
        lambda extraction: closing(extraction.create("new/file")),
        lambda extraction: extraction.create("own"),
        lambda extraction: closing(extraction.create_anew("own")),
        lambda extraction: extraction.create_anew("sub"),
        lambda extraction: closing(extraction.open_file("own")),
        lambda extraction: extraction.open_file("sub/file"),
        lambda extraction: extraction.open_file("pipe"),
        lambda extraction: extraction.open_file("none/at/all"),
        lambda extraction: extraction.make_link("sub/link", "file"),
        lambda extraction: extraction.make_folder("link/inner"),
        lambda extraction: extraction.write("sub/file", b"other"),
        lambda extraction: extraction.write("sub", b"a folder"),
        staged,
        replaced,
    ],
)
def test_an_extraction_leaves_nothing_open(tmp_path: Path, call: Callable[[Extraction], object]) -> None:
    with all_closed(tmp_path), Extraction(tmp_path / "target") as extraction:
        fill(extraction)
        with all_closed(tmp_path), suppress(PathObstructed, OSError):
            call(extraction)
        assert not list(extraction.folder.glob(".tmp-*"))


def test_an_extraction_may_be_closed_twice(tmp_path: Path) -> None:
    extraction = Extraction(tmp_path)
    extraction.close()
    # Its number is given to another file, which must stay open.
    other = os.open(tmp_path, os.O_RDONLY)
    extraction.close()
    os.close(other)
