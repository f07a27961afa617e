"""What a store in a bucket makes of each answer, over a bucket in memory: no server, and every answer at will."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import MemoryStore, S3Store

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.store import bucket
from stoker.store.base import FileChanged, ObjectChanged
from stoker.store.bucket import BucketStore

PART = 1000


class Bucket(BucketStore):
    """A bucket whose errors are all passing ones, and that says 429 while it is busy."""

    _busy_statuses = frozenset({429})

    def __init__(self) -> None:
        memory = MemoryStore()
        super().__init__("mem://bucket", memory, memory)

    def _translated(self, error: Exception) -> StoreError:
        return StoreUnavailable(f"{self._url}: {error}")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(bucket, "_PART", PART)
    monkeypatch.setattr(bucket, "_SMALL", 500)
    return Bucket()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(bucket, "_pause", found.append)
    return found


class Answers:
    """The calls of one of obstore's functions, and errors that it raises first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *errors: Exception) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._real: Callable[..., Any] = getattr(obstore, name)
        self._errors = list(errors)
        monkeypatch.setattr(obstore, name, self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls.append((args, named))
        if self._errors:
            raise self._errors.pop(0)
        return self._real(*args, **named)


def busy(number: int = 429) -> GenericError:
    return GenericError(f"status code: {number}, server busy")


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 500, 501, PART, PART + 1, 5 * PART, 5 * PART + 7])
def test_an_object_comes_back_whole_however_large_it_is(store: Bucket, tmp_path: Path, size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    store.put("k", data)
    found = store.get("k")
    assert found is not None and found.data == data and found.meta.size == size
    for start in {each for each in (0, 1, size // 2) if each < size}:
        assert store.get_from("k", start) == data[start:]
    assert store.get_file("k", tmp_path / "f") == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "f").read_bytes() == data
    assert store.head("k") == found.meta


@pytest.mark.parametrize(("limit", "raises"), [(10, False), (9, True)])
def test_an_object_larger_than_its_limit_is_refused(store: Bucket, limit: int, raises: bool) -> None:
    store.put("k", b"0123456789")
    if raises:
        with pytest.raises(StoreError, match="k has 10 bytes, more than the 9 it may have"):
            store.get("k", limit=limit)
    else:
        assert store.get("k", limit=limit) is not None


def test_what_is_not_there_is_absent(store: Bucket, tmp_path: Path) -> None:
    assert store.get("k") is None and store.get_from("k", 3) is None and store.head("k") is None
    assert store.get_file("k", tmp_path / "f") is None and not (tmp_path / "f").exists()
    store.delete(["k"])


def test_an_object_that_vanishes_between_two_parts_is_absent(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", b"x" * 3 * PART)
    checked: list[str] = []
    monkeypatch.setattr(store, "_check_absent", lambda error: checked.append(str(error)))
    Answers(monkeypatch, "get", FileNotFoundError("gone"))
    assert store.get_file("k", tmp_path / "f") is None
    assert checked == ["gone"], "absent only in a bucket that is there"


@pytest.mark.parametrize("call", ["get", "get_from", "head"])
def test_a_call_that_failed_is_translated(store: Bucket, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    Answers(monkeypatch, "head" if call == "head" else "get", busy(500))
    with pytest.raises(StoreUnavailable, match="mem://bucket: status code: 500"):
        store.get_from("k", 0) if call == "get_from" else getattr(store, call)("k")


def test_a_part_that_failed_is_translated(store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("k", b"x" * 3 * PART)
    Answers(monkeypatch, "get", busy(500))
    with pytest.raises(StoreUnavailable, match="status code: 500"):
        store.get_file("k", tmp_path / "f")


def test_nothing_is_left_to_read_beyond_the_end(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("k", b"0123")
    Answers(monkeypatch, "get", GenericError("status code: 416 Range Not Satisfiable"))
    assert store.get_from("k", 4) == b""


# ── One version ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_part_is_of_the_version_that_was_seen(store: Bucket) -> None:
    store.put("k", b"0123456789")
    meta = store.head("k")
    assert meta is not None
    assert bytes(store.get_part(meta, 2, 5)) == b"234" and bytes(store.get_part(meta, 0, 10)) == b"0123456789"
    store.put("k", b"9876543210")
    with pytest.raises(ObjectChanged, match="is not any more what it was"):
        store.get_part(meta, 2, 5)
    store.delete(["k"])
    with pytest.raises(ObjectChanged, match="is not there any more"):
        store.get_part(meta, 2, 5)


def test_a_server_that_knows_no_condition_is_not_believed(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("k", b"0123456789")
    meta = store.head("k")
    assert meta is not None
    store.put("k", b"0123456789abc")
    real = obstore.get

    def ignoring(client: Any, key: str, *, options: dict[str, Any]) -> Any:
        options.pop("if_match", None)
        return real(client, key, options=options)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "get", ignoring)
    with pytest.raises(ObjectChanged):
        store.get_part(meta, 0, 4)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (PreconditionError("412"), ObjectChanged, "not any more what it was"),
        (FileNotFoundError("NoSuchKey"), ObjectChanged, "not there any more"),
        (FileNotFoundError("NoSuchBucket"), StoreUnavailable, "NoSuchBucket"),
        (busy(500), StoreUnavailable, "status code: 500"),
    ],
)
def test_why_a_part_does_not_come_is_told_apart(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], text: str
) -> None:
    store.put("k", b"0123456789")
    meta = store.head("k")
    assert meta is not None
    Answers(monkeypatch, "get", error)
    with pytest.raises(kind, match=text):
        store.get_part(meta, 0, 4)


def test_a_part_that_came_short_is_not_taken(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("k", b"0123456789")
    meta = store.head("k")
    assert meta is not None
    monkeypatch.setattr(store, "_get_part", lambda *_: memoryview(b"012"))
    with pytest.raises(StoreUnavailable, match="came with 3 bytes instead of 4"):
        store.get_part(meta, 0, 4)


@pytest.mark.parametrize(("size", "client"), [(bucket._TINY, "quick"), (bucket._TINY + 1, "bulk")])
def test_little_is_fetched_by_the_client_that_fails_fast(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, size: int, client: str
) -> None:
    used: list[object] = []
    store._quick, store._bulk = "quick", "bulk"  # type: ignore[assignment]

    def part(by: object, _meta: object, begin: int, end: int) -> memoryview:
        used.append(by)
        return memoryview(bytes(end - begin))

    monkeypatch.setattr(store, "_get_part", part)
    store.get_part(None, 0, size)  # type: ignore[arg-type]
    assert used == [client]


# ── Absence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bucket_is_looked_for_once_where_an_answer_does_not_tell_it_from_the_object(
    store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Answers(monkeypatch, "list")
    store._check_absent(FileNotFoundError("NoSuchKey: the key does not exist"))
    assert listed.calls == [], "the answer told"
    store = Bucket()
    store._check_absent(FileNotFoundError("404"))
    store._check_absent(FileNotFoundError("404"))
    assert len(listed.calls) == 1


def test_a_bucket_that_is_not_there_has_no_absent_objects(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        store._check_absent(FileNotFoundError("NoSuchBucket"))
    Answers(monkeypatch, "list", FileNotFoundError("NoSuchBucket"))
    with pytest.raises(StoreUnavailable):
        store._check_absent(FileNotFoundError("404"))
    assert store._bucket_seen is False


@pytest.mark.parametrize("call", ["get", "get_from", "head", "delete", "get_file"])
def test_every_call_looks_whether_the_bucket_is_there(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    name = {"get": "get", "get_from": "get", "head": "head", "delete": "delete", "get_file": "head"}[call]
    Answers(monkeypatch, name, FileNotFoundError("NoSuchBucket"))
    arguments = {"get_from": ("k", 0), "delete": (["k"],), "get_file": ("k", tmp_path / "f")}.get(call, ("k",))
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        getattr(store, call)(*arguments)


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_object_is_created_once(store: Bucket, pauses: list[int]) -> None:
    assert store.create("k", b"mine") is True
    assert store.create("k", b"theirs") is False
    found = store.get("k")
    assert found is not None and found.data == b"mine" and pauses == []


def test_a_conflict_with_another_write_is_tried_again(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]
) -> None:
    conflict = AlreadyExistsError("status code: 409 Conflict")
    Answers(monkeypatch, "put", conflict, conflict)
    assert store.create("k", b"mine") is True and pauses == [0, 1]


def test_a_failed_condition_is_existence_without_a_look(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Answers(monkeypatch, "head")
    Answers(monkeypatch, "put", AlreadyExistsError("status code: 412 Precondition Failed"))
    assert store.create("k", b"mine") is False and heads.calls == []


def test_a_conflict_that_another_won_is_existence(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]
) -> None:
    store.put("k", b"theirs")
    Answers(monkeypatch, "put", AlreadyExistsError("status code: 409 Conflict"))
    assert store.create("k", b"mine") is False and pauses == []


def test_a_bucket_that_is_busy_with_that_name_is_waited_for(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]
) -> None:
    Answers(monkeypatch, "put", busy(), busy())
    assert store.create("k", b"mine") is True and pauses == [0, 1]
    Answers(monkeypatch, "put", busy())
    assert store.create("k", b"mine") is False and pauses == [0, 1], "it is there by now"


def test_a_name_that_stays_busy_is_told(store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]) -> None:
    Answers(monkeypatch, "put", *[busy()] * 100)
    with pytest.raises(StoreUnavailable, match="other writers keep k busy"):
        store.create("k", b"mine")
    assert pauses == list(range(bucket._CONFLICTS))


def test_an_error_that_will_not_pass_is_not_tried_again(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]
) -> None:
    puts = Answers(monkeypatch, "put", busy(403), busy(403))
    for write in (store.create, store.put):
        with pytest.raises(StoreUnavailable, match="status code: 403"):
            write("k", b"x")
    assert len(puts.calls) == 2 and pauses == []


def test_a_write_is_tried_again_while_the_bucket_is_busy(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, pauses: list[int]
) -> None:
    Answers(monkeypatch, "put", *[busy()] * (bucket._CONFLICTS - 1))
    store.put("k", b"x")
    assert pauses == list(range(bucket._CONFLICTS - 1))
    Answers(monkeypatch, "put", *[busy()] * bucket._CONFLICTS)
    with pytest.raises(StoreUnavailable):
        store.put("k", b"x")


def test_pauses_double_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bucket.time, "sleep", slept.append)
    for conflict in (0, 1, 2):
        bucket._pause(conflict)
    for pause_s, expected_s in zip(slept, (0.05, 0.1, 0.2), strict=True):
        assert 0.8 * expected_s <= pause_s <= 1.2 * expected_s


def test_what_is_deleted_goes_page_by_page(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_DELETE_PAGE", 2)
    keys = [f"k{number}" for number in range(5)]
    for key in keys:
        store.put(key, b"")
    deletes = Answers(monkeypatch, "delete")
    store.delete(keys)
    assert [args[1] for args, _ in deletes.calls] == [keys[:2], keys[2:4], keys[4:]]
    assert list(store.list("")) == []


def test_lists_and_folders(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a/x", "a/y/z", "b"):
        store.put(key, b"1")
    assert [meta.key for meta in store.list("")] == ["a/x", "a/y/z", "b"]
    assert [meta.key for meta in store.list("a/")] == ["a/x", "a/y/z"]
    assert store.folders("") == ["a"] and store.folders("a/") == ["y"]
    assert all(meta.modified.microsecond == 0 for meta in store.list("")), "the same time everywhere"
    Answers(monkeypatch, "list_with_delimiter", busy(500))
    with pytest.raises(StoreUnavailable):
        store.folders("")


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 10, PART - 1, PART, PART + 1, 4 * PART + 3])
@pytest.mark.parametrize("replace", [False, True])
def test_a_file_is_sent_once_and_told_of_as_it_goes(store: Bucket, tmp_path: Path, size: int, replace: bool) -> None:
    data, told = bytes(number % 251 for number in range(size)), list[int]()
    (tmp_path / "f").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    for turn in range(2):
        told.clear()
        sent = store.put_file_with_progress(tmp_path / "f", lambda found: f"by/{found}", told.append, replace=replace)
        assert (sent.digest, sent.size) == (digest, size) and sum(told) == size
        assert sent.moved == (size if turn == 0 or replace else 0)
    found = store.get(f"by/{digest}")
    assert found is not None and found.data == data
    plain = store.put_file(tmp_path / "f", lambda _: "plain")
    assert plain.moved == size and store.put_file(tmp_path / "f", lambda _: "plain", replace=True).moved == size


def test_a_file_that_changes_while_it_is_sent_never_appears(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3 * PART)

    def change(_: str) -> str:
        (tmp_path / "f").write_bytes(b"y" * 3 * PART)
        return "k"

    with pytest.raises(FileChanged, match="changed while it was being sent"):
        store.put_file(tmp_path / "f", change)
    assert store.head("k") is None


def test_a_disk_that_fails_while_a_file_is_sent_is_the_disks_error(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3 * PART)
    # The first reading, for the digest, is of another module, and succeeds.
    monkeypatch.setattr(bucket, "read_parts", lambda _file: _raising(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output error"):
        store.put_file(tmp_path / "f", lambda _: "k")
    assert store.head("k") is None


def _raising(error: Exception) -> Any:
    raise error
    yield


def test_a_bucket_that_fails_while_a_file_is_sent_is_told(
    store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3 * PART)
    Answers(monkeypatch, "put", busy(500))
    with pytest.raises(StoreUnavailable, match="status code: 500"):
        store.put_file(tmp_path / "f", lambda _: "k")


@pytest.mark.parametrize(("size", "chunk"), [(10 * PART, PART), (PART * 9_000 * 3, PART * 3)])
def test_parts_are_as_large_as_their_number_needs(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, size: int, chunk: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(obstore, "put", lambda *_, chunk_size, **__: asked.append(chunk_size))
    store._upload("k", None, size)  # type: ignore[arg-type]
    assert asked == [chunk]


# ── Clients ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_client_fails_fast_and_one_has_time() -> None:
    made: list[dict[str, Any]] = []

    def make(options: dict[str, Any]) -> int:
        made.append(options)
        return len(made)

    assert bucket.open_pair("s3://b", make, allow_http=True) == (1, 2)
    seconds = [each["client_options"]["timeout"].total_seconds() for each in made]
    retries = [each["retry_config"]["retry_timeout"].total_seconds() for each in made]
    assert seconds == [bucket._QUICK_TIMEOUT_S, bucket._BULK_TIMEOUT_S] and retries == [each / 2 for each in seconds]
    assert all(each["client_options"]["allow_http"] is True for each in made)


def test_a_megabyte_travels_in_one_request_and_more_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Bucket()
    whole = bytes(range(256)) * (9 << 12)
    store.put("small", whole[: 1 << 20])
    (tmp_path / "large").write_bytes(whole)
    sent = store.put_file(tmp_path / "large", lambda digest: f"blobs/{digest}")
    assert (sent.size, sent.digest) == (len(whole), hashlib.sha256(whole).hexdigest())
    calls = Answers(monkeypatch, "get").calls
    found = store.get("small")
    assert found is not None and found.data == whole[: 1 << 20] and len(calls) == 1
    calls.clear()
    found = store.get(f"blobs/{sent.digest}")
    assert found is not None and found.data == whole and len(calls) == 3, "one to see its size, and one for each 8 MiB"


def test_clients_take_what_they_are_told() -> None:
    """obstore passes over options whose names it does not know."""
    quick, bulk = bucket.open_pair("s3://b", lambda more: S3Store("b", region="r", **more), allow_http=False)
    for client, timeout_s, told in ((quick, 8, "8s"), (bulk, 120, "2m")):
        retry, options = client.retry_config, client.client_options
        assert retry is not None and options is not None
        assert (retry["max_retries"], retry["retry_timeout"]) == (4, timedelta(seconds=timeout_s / 2))
        assert timedelta(0) < retry["backoff"]["max_backoff"] < timedelta(seconds=4)
        assert (options["timeout"], options["connect_timeout"]) == (told, "3s")
        assert options["allow_http"] == "false"


def test_a_client_that_cannot_be_made_is_the_persons_mistake() -> None:
    def make(_: dict[str, Any]) -> int:
        raise ValueError("no such region\nand more")

    with pytest.raises(UserError, match="s3://b cannot be opened: no such region"):
        bucket.open_pair("s3://b", make, allow_http=False)


def test_it_is_far_and_says_where_it_is(store: Bucket) -> None:
    assert store.is_local is False and store.url == "mem://bucket"
    assert not isinstance(store._translated(busy()), StoreDenied)
