"""What Cloud Storage may answer, or not, and what is made of it. Runs where nothing but loopback can be reached."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from bucket_calls import CALLS, assert_changed_file_is_refused, assert_large_files_need_little_memory

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import bucket
from stoker.store.base import Store, open_store
from tests.support.gcs import GcsServer
from tests.support.servers import isolated, pytest_isolated


@pytest.fixture
def store(gcs_url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    # One is enough to see that there are any, and the pauses between them take their time.
    monkeypatch.setattr(bucket, "_RETRIES", 1)
    return open_store(gcs_url)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answers how often there would have been one."""
    paused: list[int] = []
    monkeypatch.setattr(bucket, "_pause", paused.append)
    return paused


if not isolated():

    def test_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)

else:
    # ── Conditions and rates ──────────────────────────────────────────────────────────────────────────────────────────

    def test_a_failed_precondition_is_existence(store: Store, gcs: GcsServer) -> None:
        gcs.fail(412, "PreconditionFailed", methods=("PUT",))
        assert store.create("k", b"x") is False

    def test_a_conflict_is_not_existence(store: Store, gcs: GcsServer, no_pauses: list[int]) -> None:
        gcs.fail(409, "Conflict", methods=("PUT",), times=2)
        assert store.create("k", b"x") is True
        assert len(no_pauses) == 2

    def test_a_lost_reply_to_a_create_is_somebodys_object(store: Store, gcs: GcsServer) -> None:
        gcs.lose_replies("PUT")
        # Whoever hears that looks whose it is.
        assert store.create("k", b"mine") is False
        found = store.get("k")
        assert found is not None and found.data == b"mine"

    def test_a_passing_error_is_tried_again(store: Store, gcs: GcsServer) -> None:
        gcs.fail(503, "ServiceUnavailable", methods=("PUT",), times=1)
        assert store.create("k", b"x") is True

    def test_a_name_that_is_written_too_often_is_written_a_moment_later(store: Store, gcs: GcsServer) -> None:
        gcs.rate_limit()
        started = time.monotonic()
        for beat in range(3):
            store.put("k", b"%d" % beat)
        found = store.get("k")
        assert found is not None and found.data == b"2"
        assert time.monotonic() - started >= 2.0

    def test_what_was_just_written_can_be_removed(store: Store, gcs: GcsServer) -> None:
        store.put("k", b"x")
        gcs.fail(429, "SlowDown", methods=("DELETE",), times=3)
        store.delete(["k", "none"])
        assert store.head("k") is None

    def test_whoever_loses_a_race_need_not_wait_for_the_word(
        store: Store, gcs: GcsServer, no_pauses: list[int]
    ) -> None:
        assert store.create("k", b"first") is True
        gcs.fail(429, "SlowDown", methods=("PUT",))
        assert store.create("k", b"second") is False
        assert no_pauses == []

    def test_too_many_requests_without_an_end_is_an_outage(store: Store, gcs: GcsServer, no_pauses: list[int]) -> None:
        gcs.fail(429, "SlowDown", methods=("PUT", "DELETE"))
        for call in ("put", "create", "delete"):
            with pytest.raises(StoreUnavailable):
                CALLS[call](store)
        assert len(no_pauses) >= 15

    # ── Refusals and silence ──────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize(
        ("status", "code", "error"),
        [
            (403, "AccessDenied", StoreDenied),
            (401, "AuthenticationRequired", StoreDenied),
            (400, "InvalidArgument", StoreDenied),
            (404, "NoSuchBucket", StoreDenied),
            (500, "InternalError", StoreUnavailable),
            (503, "ServiceUnavailable", StoreUnavailable),
            (429, "SlowDown", StoreUnavailable),
            (408, "RequestTimeout", StoreUnavailable),
        ],
    )
    def test_errors_are_told_apart(
        store: Store,
        gcs: GcsServer,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        status: int,
        code: str,
        error: type[StoreError],
    ) -> None:
        monkeypatch.setattr(bucket, "_pause", lambda _: None)
        gcs.fail(status, code)
        with pytest.raises(error) as caught:
            CALLS[call](store)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500

    def test_a_refusal_says_what_google_says(store: Store, gcs: GcsServer) -> None:
        gcs.fail(403, "AccessDenied")
        with pytest.raises(StoreDenied, match=r"gs://stoker-\w+/stoker/test refused: AccessDenied: Access denied"):
            store.get("k")

    @pytest.mark.parametrize("call", CALLS)
    def test_a_bucket_that_is_not_there_is_not_an_empty_one(gcs: GcsServer, call: str) -> None:
        with pytest.raises(StoreDenied, match="the bucket stoker-none does not exist"):
            CALLS[call](open_store("gs://stoker-none/prefix"))

    @pytest.mark.parametrize("call", CALLS)
    def test_nobody_listening_is_an_outage(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        monkeypatch.setattr(bucket, "_RETRIES", 1)
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
            with pytest.raises(StoreUnavailable):
                CALLS[call](open_store("gs://bucket"))

    def test_a_server_that_says_nothing_is_an_outage(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bucket, "_QUICK_TIMEOUT_S", 0.5)
        monkeypatch.setattr(bucket, "_RETRIES", 1)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}/")
            store = open_store("gs://bucket")
            for call in CALLS.values():
                with pytest.raises(StoreUnavailable):
                    call(store)

    def test_an_object_that_is_overwritten_while_it_is_read_is_not_pieced_together(
        store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = os.urandom(20_000_000), os.urandom(20_000_000)
        store.put("k", old)
        fetched = bucket.obstore.get

        def overwritten(client: object, key: str, **more: object) -> object:
            if more and b"new" not in seen:
                seen.append(b"new")
                store.put("k", new)
            return fetched(client, key, **more)

        seen: list[bytes] = []
        monkeypatch.setattr(bucket.obstore, "get", overwritten)
        with pytest.raises(StoreUnavailable, match="overwritten while it was read"):
            store.get("k", limit=len(old))
        assert seen

    # ── Many, and large ───────────────────────────────────────────────────────────────────────────────────────────────

    def test_absent_keys_do_not_keep_the_rest_from_being_removed(store: Store) -> None:
        there = [f"k{n:03d}" for n in range(120)]
        for key in there:
            store.put(key, b"")
        store.delete(f"{kind}{n:03d}" for n in range(120) for kind in ("absent", "k", "none"))
        assert list(store.list("")) == []

    def test_a_file_that_changes_while_it_is_sent_is_never_stored(gcs_url: str, gcs: GcsServer, tmp_path: Path) -> None:
        assert_changed_file_is_refused(gcs_url, tmp_path, gcs.open_uploads)

    def test_large_files_need_little_memory(gcs_url: str, tmp_path: Path) -> None:
        assert_large_files_need_little_memory(gcs_url, tmp_path)
