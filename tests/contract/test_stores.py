"""The contract, on every store there is."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker.store import Store, open_store
from stoker.testing.memory import MemoryStore
from stoker.testing.servers import isolated, pytest_isolated
from stoker.testing.store_contract import StoreContract


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

else:

    def test_buckets_in_a_network_of_their_own() -> None:
        pytest_isolated(__file__, "-k", "TestS3 or TestGcs")
