"""Bytes that uploads move are counted while they move, and not for ever."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore as ObstoreMemory

from stoker.store import bucket, folder, hashed_copy
from stoker.store.base import open_store
from stoker.store.upload_progress import UPLOADS, UploadProgress


def test_a_try_counts_its_bytes_as_they_move(tmp_path: Path) -> None:
    uploads = UploadProgress()
    with (tmp_path / "a").open("wb") as file:
        with uploads.one_try(file.fileno()) as moved:
            moved(10)
            assert uploads.total == 10
            moved(5)
        with uploads.one_try(file.fileno()) as moved:
            moved(15)
    assert uploads.total == 30, "another upload of the same file counts again"


def test_tries_that_fail_count_a_few_times_only(tmp_path: Path) -> None:
    uploads = UploadProgress()
    with (tmp_path / "a").open("wb") as file, (tmp_path / "b").open("wb") as other:
        for _ in range(10):
            with pytest.raises(OSError), uploads.one_try(file.fileno()) as moved:
                moved(100)
                raise OSError
        assert uploads.total == 300
        with uploads.one_try(other.fileno()) as moved:
            moved(7)
            assert uploads.total == 307, "other files count all the same"
        with uploads.one_try(file.fileno()) as moved:
            moved(100)
            assert uploads.total == 307
            moved(1)
            assert uploads.total == 308, "it got further than ever"


@pytest.mark.parametrize("way", ["kernel", "user"])
def test_a_folder_counts_a_large_file_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(hashed_copy, "_STRIDE", 1 << 20)
    if way == "user":
        monkeypatch.setattr(hashed_copy, "copy_in_kernel", lambda *_, **__: None)
    counts: list[int] = []
    real = UPLOADS.one_try

    def watched(file: int) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def inner() -> Any:
            with real(file) as moved:

                def note(count: int) -> None:
                    moved(count)
                    counts.append(UPLOADS.total)

                yield note

        return inner()

    monkeypatch.setattr(folder.UPLOADS, "one_try", watched)
    (tmp_path / "large").write_bytes(b"x" * (4 << 20))
    before = UPLOADS.total
    open_store(str(tmp_path / "store")).put_file(tmp_path / "large", lambda digest: digest)
    assert UPLOADS.total - before == 4 << 20
    assert len(set(counts)) >= 4, "long before the whole file is there"


def test_a_bucket_counts_reading_and_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bucket(bucket.BucketStore):
        def _remove(self, page: list[str]) -> None: ...

        def _translated(self, error: Exception) -> Exception: ...  # type: ignore[override]

        def _check_absent(self, error: Exception) -> None: ...

    assert datetime.now(timezone.utc)
    client = ObstoreMemory()
    store = Bucket("mem://", client, client)  # type: ignore[abstract]
    (tmp_path / "large").write_bytes(b"x" * (20 << 20))
    seen: list[int] = []
    before = UPLOADS.total
    put = obstore.put

    def watched(client: Any, key: str, parts: Any, **more: Any) -> Any:
        seen.append(UPLOADS.total - before)
        return put(client, key, parts, **more)

    monkeypatch.setattr(bucket.obstore, "put", watched)
    store.put_file(tmp_path / "large", lambda digest: digest)
    assert seen == [12 << 20], "the hashing, less the first part"
    assert UPLOADS.total - before == 32 << 20
