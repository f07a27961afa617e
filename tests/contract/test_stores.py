"""The contract, on every store there is."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker.store.base import Store, open_store
from stoker.submit.uploads import ReportsUploadProgress
from stoker.testing.memory_store import MemoryStore
from stoker.testing.store_contract import StoreContract
from tests.support.servers import isolated, pytest_isolated


class Clock:
    """Moves a second at every look."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(Clock())

    @pytest.fixture
    def other(self, store: Store) -> Store:
        assert isinstance(store, MemoryStore)
        return store.client()


class TestFolder(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store((tmp_path / "the store").as_uri())

    @pytest.fixture
    def other(self, store: Store, tmp_path: Path) -> Store:
        return open_store(str(tmp_path / "the store"))


if isolated():

    class TestS3(StoreContract):
        @pytest.fixture
        def store(self, s3_url: str) -> Store:
            return open_store(s3_url)

        @pytest.fixture
        def other(self, store: Store, s3_url: str) -> Store:
            return open_store(s3_url + "/")

    class TestGcs(StoreContract):
        @pytest.fixture
        def store(self, gcs_url: str) -> Store:
            return open_store(gcs_url)

        @pytest.fixture
        def other(self, store: Store, gcs_url: str) -> Store:
            return open_store(gcs_url + "/")

    @pytest.mark.parametrize("cloud", ["s3_url", "gcs_url"])
    class TestTelling:
        def test_bytes_are_told_of_as_they_go(self, request: pytest.FixtureRequest, cloud: str, tmp_path: Path) -> None:
            store = open_store(request.getfixturevalue(cloud))
            assert isinstance(store, ReportsUploadProgress)
            (tmp_path / "large").write_bytes(b"x" * (20 << 20))
            (tmp_path / "small").write_bytes(b"x" * 100)
            heard: list[int] = []
            assert (
                store.put_file_with_progress(tmp_path / "large", lambda digest: digest, heard.append).moved == 20 << 20
            )
            assert len(heard) > 2 and sum(heard) == 20 << 20
            # What is there already has gone.
            for name in ("large", "small", "small"):
                heard.clear()
                store.put_file_with_progress(tmp_path / name, lambda digest: digest, heard.append)
                assert heard == [(tmp_path / name).stat().st_size]

else:

    def test_buckets_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__, "-k", "TestS3 or TestGcs or TestTelling")
