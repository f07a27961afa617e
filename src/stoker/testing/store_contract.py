"""The promises of every store, as tests. Inherit, and give a `store` fixture that opens an empty one:

class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MyStore(...)
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import RECORD_BYTES, FileChanged, Store

# Common file names, and names that must survive URLs and XML.
ODD_KEYS = (
    "a b/c  d",
    "ünï/日本語/🙂",
    "100%",
    "x%20y/x%2Fy",
    "step-900@1.json",
    "a+b/c=d,e;f",
    "h#1",
    "q?x&y",
    "<tag>&amp;",
    "quote'\"",
    "~back\\slash|{}[]^`",
    "trailing ",
    ".hidden/.file",
    "..twice/...",
    "loss=0.1*(x)!$:",
)
BAD_KEYS = (
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "./a",
    "a/.",
    "nul\0",
    "line\nfeed",
    "\x7f",
    "half\ud800",
)

# Larger than one part of any store's transfer.
LARGE = 40 * 1024 * 1024 + 7


class StoreContract:
    """Every sentence of `stoker.store.base.Store`, as tests."""

    @pytest.fixture
    def other(self, store: Store) -> Store:
        """The same store, opened by a second client. Override it where that is possible."""
        return store

    # ── the place ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_url_is_the_same_for_everybody(self, store: Store, other: Store) -> None:
        assert store.url == other.url
        assert "://" in store.url
        assert not store.url.endswith("/")

    def test_near_is_told(self, store: Store) -> None:
        assert store.is_local in (True, False)

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        assert list(store.list("")) == []
        assert store.folders("") == []
        assert store.get("a/b") is None

    # ── get, get_from, head ───────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40, os.urandom(3_000_000)])
    def test_get_gives_back_what_was_put(self, store: Store, other: Store, data: bytes) -> None:
        store.put("a/b", data)
        found = other.get("a/b")
        assert found is not None
        assert found.data == data
        assert isinstance(found.data, bytes)
        assert found.meta.key == "a/b"
        assert found.meta.size == len(data)
        assert found.meta.etag
        assert found.meta.modified.utcoffset() == timedelta(0)

    def test_absent_is_none(self, store: Store, tmp_path: Path) -> None:
        store.put("a/b", b"x")
        for key in ("a/c", "c", "a/b/c", "a"):
            assert store.get(key) is None
            assert store.get_from(key, 0) is None
            assert store.head(key) is None
            assert store.get_file(key, tmp_path / "out") is None

    @pytest.mark.parametrize("size", [10, 2_500_000])
    def test_get_refuses_more_than_the_limit(self, store: Store, size: int) -> None:
        store.put("k", b"x" * size)
        found = store.get("k", limit=size)
        assert found is not None
        assert len(found.data) == size
        with pytest.raises(StoreError) as caught:
            store.get("k", limit=size - 1)
        # The store did answer, and did not refuse.
        assert not isinstance(caught.value, (StoreUnavailable, StoreDenied))

    def test_get_refuses_more_than_a_record(self, store: Store, tmp_path: Path) -> None:
        source = tmp_path / "source"
        with source.open("wb") as file:
            file.truncate(RECORD_BYTES + 1)
        store.put_file(source, lambda _digest: "k")
        with pytest.raises(StoreError):
            store.get("k")
        assert store.get("k", limit=RECORD_BYTES + 1) is not None

    def test_get_from_gives_the_rest(self, store: Store) -> None:
        data = os.urandom(2_500_000)
        store.put("small", b"0123456789")
        store.put("large", data)
        store.put("empty", b"")
        assert store.get_from("small", 0) == b"0123456789"
        assert store.get_from("small", 7) == b"789"
        assert store.get_from("small", 10) == b""
        assert store.get_from("small", 99) == b""
        assert store.get_from("empty", 0) == b""
        assert store.get_from("large", 0) == data
        assert store.get_from("large", 12_345) == data[12_345:]

    def test_head_get_and_list_agree(self, store: Store) -> None:
        store.put("a/b", b"hello")
        found = store.get("a/b")
        assert found is not None
        assert store.head("a/b") == found.meta
        assert list(store.list("a/")) == [found.meta]

    # ── put ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_put_overwrites_and_changes_the_etag(self, store: Store) -> None:
        etags = []
        for beat in range(5):
            store.put("k", b"beat %d" % beat)
            found = store.get("k")
            assert found is not None
            assert found.data == b"beat %d" % beat
            etags.append(found.meta.etag)
        assert len(set(etags)) == 5

    def test_time_does_not_go_back(self, store: Store) -> None:
        times = []
        for n in range(5):
            store.put("k", b"%d" % n)
            meta = store.head("k")
            assert meta is not None
            times.append(meta.modified)
        assert times == sorted(times)

    def test_put_may_be_repeated(self, store: Store) -> None:
        store.put("k", b"x")
        store.put("k", b"x")
        found = store.get("k")
        assert found is not None
        assert found.data == b"x"

    def test_readers_see_old_or_new_never_a_mixture(self, store: Store, other: Store) -> None:
        versions = {bytes([n]) * (50_000 + n) for n in range(8)}
        store.put("k", next(iter(versions)))
        stop = threading.Event()

        def write() -> None:
            try:
                for _ in range(10):
                    for data in versions:
                        store.put("k", data)
            finally:
                stop.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not stop.is_set():
                found = other.get("k")
                assert found is not None
                assert found.data in versions
                assert found.meta.size == len(found.data)
            writing.result()

    # ── create ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_create_writes_only_if_absent(self, store: Store, other: Store) -> None:
        assert store.create("a/k", b"first") is True
        assert other.create("a/k", b"second") is False
        assert store.create("a/k", b"first") is False
        found = other.get("a/k")
        assert found is not None
        assert found.data == b"first"
        store.put("a/p", b"put")
        assert store.create("a/p", b"created") is False
        store.delete(["a/k"])
        assert store.create("a/k", b"third") is True

    def test_sixteen_race_to_create_and_one_wins(self, store: Store, other: Store) -> None:
        with ThreadPoolExecutor(16) as pool:
            for n in range(10):
                start = threading.Barrier(16)
                key = f"race/{n:03d}"

                def create(me: int, key: str = key, start: threading.Barrier = start) -> bool:
                    start.wait()
                    return (store if me % 2 else other).create(key, b"%d" % me)

                won = list(pool.map(create, range(16)))
                assert won.count(True) == 1
                found = store.get(key)
                assert found is not None
                assert found.data == b"%d" % won.index(True)

    # ── list and folders ──────────────────────────────────────────────────────────────────────────────────────────────

    def test_list_is_sorted_by_key(self, store: Store) -> None:
        # `-` and `.` sort before the slash, digits and letters after it.
        keys = ["a-b", "a.b", "a/b", "a/b-c", "a/b.c/d", "a/b0", "a0", "b", "a/ü", "a/z", "B/c"]
        for key in keys:
            store.put(key, b"")
        assert [meta.key for meta in store.list("")] == sorted(keys)
        assert [meta.key for meta in store.list("a/")] == sorted(key for key in keys if key.startswith("a/"))

    def test_list_takes_whole_segments(self, store: Store) -> None:
        for key in ("job1/a", "job1/b/c", "job10/a", "job1-b/a", "job1x"):
            store.put(key, b"")
        assert [meta.key for meta in store.list("job1/")] == ["job1/a", "job1/b/c"]
        assert list(store.list("job/")) == []
        assert list(store.list("job1/a/")) == []

    def test_list_of_many_is_whole(self, store: Store) -> None:
        keys = [f"many/{n:05d}" for n in range(1_234)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), keys))
        assert [meta.key for meta in store.list("many/")] == keys
        store.delete(keys)
        assert list(store.list("many/")) == []

    def test_folders_are_what_lies_one_level_below(self, store: Store) -> None:
        for key in (
            "jobs/b/spec",
            "jobs/a/log/1",
            "jobs/a/log/2",
            "jobs/c-d/x/y/z",
            "jobs/file",
            "other/e/f",
        ):
            store.put(key, b"")
        assert store.folders("jobs/") == ["a", "b", "c-d"]
        assert store.folders("jobs/a/") == ["log"]
        assert store.folders("jobs/a/log/") == []
        assert store.folders("none/") == []
        assert store.folders("") == ["jobs", "other"]

    def test_folders_with_nothing_below_are_gone(self, store: Store) -> None:
        store.put("active/job/1", b"")
        store.put("active/job/2", b"")
        store.put("active/job2/1", b"")
        store.delete(["active/job/1"])
        assert store.folders("active/") == ["job", "job2"]
        store.delete(["active/job/2"])
        assert store.folders("active/") == ["job2"]
        assert store.create("active/job/3", b"")
        assert store.folders("active/") == ["job", "job2"]

    # ── delete ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_delete_takes_any_iterable_and_minds_no_absence(self, store: Store) -> None:
        for key in ("a/1", "a/2", "a/3", "a/30", "b"):
            store.put(key, b"")
        store.delete(key for key in ("a/1", "a/none", "none/at/all", "a/3"))
        store.delete(["a/1", "a"])
        store.delete([])
        assert [meta.key for meta in store.list("")] == ["a/2", "a/30", "b"]

    # ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_survive(self, store: Store, tmp_path: Path, key: str) -> None:
        store.put(key, key.encode())
        assert store.create(key, b"") is False
        found = store.get(key)
        assert found is not None
        assert found.data == key.encode()
        assert found.meta.key == key
        assert [meta.key for meta in store.list("")] == [key]
        folder, slash, _ = key.rpartition("/")
        if slash:
            assert [meta.key for meta in store.list(f"{folder}/")] == [key]
            assert store.folders("") == [key.partition("/")[0]]
        assert store.get_file(key, tmp_path / "out") == hashlib.sha256(key.encode()).hexdigest()
        store.delete([key])
        assert store.head(key) is None

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_keys_that_cannot_be_kept_are_refused(self, store: Store, tmp_path: Path, key: str) -> None:
        (tmp_path / "in").write_bytes(b"x")
        calls: list[Callable[[], object]] = [
            lambda: store.put(key, b""),
            lambda: store.create(key, b""),
            lambda: store.get(key),
            lambda: store.get_from(key, 0),
            lambda: store.head(key),
            lambda: store.delete([key]),
            lambda: store.put_file(tmp_path / "in", lambda _: key),
            lambda: store.get_file(key, tmp_path / "out"),
        ]
        for call in calls:
            with pytest.raises(StoreError):
                call()
        assert list(store.list("")) == []

    @pytest.mark.parametrize("prefix", ["a", "/", "a//", "../", "a/b"])
    def test_prefixes_are_whole_segments(self, store: Store, prefix: str) -> None:
        with pytest.raises(StoreError):
            list(store.list(prefix))
        with pytest.raises(StoreError):
            store.folders(prefix)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("size", [0, 1, 300_000, LARGE])
    def test_files_travel_by_digest(self, store: Store, other: Store, tmp_path: Path, size: int) -> None:
        data = os.urandom(size)
        digest = hashlib.sha256(data).hexdigest()
        source, again, target = tmp_path / "in", tmp_path / "again", tmp_path / "out"
        source.write_bytes(data)
        again.write_bytes(data)

        sent = store.put_file(source, lambda found: f"blobs/{found}")
        assert (sent.digest, sent.size, sent.moved) == (digest, size, size)
        sent = other.put_file(again, lambda found: f"blobs/{found}")
        assert (sent.digest, sent.size, sent.moved) == (digest, size, 0)

        assert [(meta.key, meta.size) for meta in store.list("")] == [(f"blobs/{digest}", size)]
        target.write_bytes(b"garbage of an earlier try" * 100)
        assert other.get_file(f"blobs/{digest}", target) == digest
        assert target.read_bytes() == data

    def test_put_file_does_not_overwrite(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(b"mine")
        store.put("k", b"theirs")
        assert store.put_file(tmp_path / "in", lambda _: "k").moved == 0
        found = store.get("k")
        assert found is not None
        assert found.data == b"theirs"

    @pytest.mark.parametrize("size", [5, 9_000_000])
    def test_put_file_replaces_when_it_is_asked_to(self, store: Store, tmp_path: Path, size: int) -> None:
        (tmp_path / "in").write_bytes(b"m" * size)
        store.put("k", b"theirs")
        assert store.put_file(tmp_path / "in", lambda _: "k", replace=True).moved == size
        found = store.head("k")
        assert found is not None and found.size == size

    def test_put_file_sends_nothing_when_the_key_is_refused(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(b"mine")

        def refuse(_digest: str) -> str:
            raise KeyError("known already")

        with pytest.raises(KeyError):
            store.put_file(tmp_path / "in", refuse)
        assert list(store.list("")) == []

    def test_put_file_of_nothing_is_the_callers_error(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            store.put_file(tmp_path / "none", lambda digest: f"blobs/{digest}")
        with pytest.raises(IsADirectoryError):
            store.put_file(tmp_path, lambda digest: f"blobs/{digest}")
        assert list(store.list("")) == []

    @pytest.mark.parametrize("size", [10, LARGE])
    def test_the_digest_is_of_the_bytes_sent(self, store: Store, tmp_path: Path, size: int) -> None:
        source = tmp_path / "in"
        source.write_bytes(b"x" * size)

        def key(digest: str) -> str:
            # The script rewrites its file at the worst moment: after it was hashed.
            with source.open("r+b") as file:
                file.seek(size // 2)
                file.write(b"y")
            return f"blobs/{digest}"

        try:
            sent = store.put_file(source, key)
        except FileChanged:
            assert list(store.list("")) == []
        else:
            assert store.get_file(f"blobs/{sent.digest}", tmp_path / "out") == sent.digest

    def test_target_that_cannot_be_written_is_the_callers_error(self, store: Store, tmp_path: Path) -> None:
        store.put("k", b"x")
        with pytest.raises(FileNotFoundError):
            store.get_file("k", tmp_path / "none" / "out")

    def test_sixteen_send_the_same_file(self, store: Store, other: Store, tmp_path: Path) -> None:
        data = os.urandom(400_000)
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / "in").write_bytes(data)

        def send(me: int) -> str:
            return (store if me % 2 else other).put_file(tmp_path / "in", lambda found: f"b/{found}").digest

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(send, range(16))) == {digest}
        assert [meta.key for meta in store.list("")] == [f"b/{digest}"]
        assert store.get_file(f"b/{digest}", tmp_path / "out") == digest
