"""The list of files that nodes share out, as it is kept: the same for all who read it, and nothing else is believed."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timezone

import pytest

from stoker.agent.inputs import shard_list
from stoker.maintenance.delete import remove_job
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable, UserError
from stoker.store.base import Meta
from stoker.testing.memory_store import MemoryStore

URL = "s3://bucket/data"
KEY = keys.shared_files("job-1", "data")
FILES = tuple(
    Meta(key, size, shard_list.UNKNOWN_TIME, etag)
    for key, size, etag in (("a", 0, ""), ("b/ä %25", 10**13, '"x-2"'), ("b/\udcff\n", 1, "e"))
)


def utcnow() -> datetime:
    return datetime.now(timezone.utc)


def never() -> tuple[Meta, ...]:
    raise AssertionError("nobody should look")


def forged(*entries: object, url: str = URL, files: object = None, digest: str | None = None) -> bytes:
    """A list as somebody else may have written it."""
    metas = [
        Meta(entry[0], entry[1], shard_list.UNKNOWN_TIME, entry[2]) for entry in entries if isinstance(entry, tuple)
    ]
    if digest is None:
        digest = shard_list.listing_digest(url, metas) if all(isinstance(meta.key, str) for meta in metas) else ""
    head = {"url": url, "files": len(entries) if files is None else files, "digest": digest}
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in (head, *entries)))


def test_what_was_found_first_is_what_everybody_gets() -> None:
    store = MemoryStore(utcnow)
    assert shard_list.agree(store, KEY, URL, lambda: FILES) == FILES
    assert shard_list.agree(store, KEY, URL, never) == FILES
    assert shard_list.pack(URL, FILES) == shard_list.pack(URL, FILES)


def test_thousands_of_files_are_shared_out_as_well() -> None:
    store = MemoryStore(utcnow)
    files = tuple(
        Meta(f"part-{number:06d}", number, shard_list.UNKNOWN_TIME, f"{number:032x}") for number in range(3000)
    )
    assert shard_list.agree(store, KEY, URL, lambda: files) == files
    assert shard_list.agree(store, KEY, URL, never) == files


def test_the_forger_of_these_tests_can_write_a_list() -> None:
    assert shard_list.unpack(forged(("a", 1, "e")), URL) == (Meta("a", 1, shard_list.UNKNOWN_TIME, "e"),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        gzip.compress(b""),
        gzip.compress(b"[]\n"),
        gzip.compress(b"[" * 10_000),
        shard_list.pack(URL, FILES)[:-10],
        shard_list.pack(URL, FILES[1:])[:-8] + shard_list.pack(URL, FILES)[-8:],
        shard_list.pack("s3://bucket/other", FILES),
        forged(("a", 1, "e"), digest="0" * 64),
        forged(("a", 1, "e"), files=0),
        forged(("a", 1, "e"), files=0, digest=shard_list.listing_digest(URL, ())),
        forged(("a", 1, "e"), files=2),
        forged(("a", 1, "e"), files=-1),
        forged(files=-1),
        forged(url="s3://bucket/other", digest=shard_list.listing_digest(URL, ())),
        forged(("a", 1, "e"), files=10**9),
        forged(("a", 1, "e"), files="1"),
        forged(("a", -1, "e")),
        forged(("a", 1.5, "e")),
        forged(("a", 1, None)),
        forged((["a"], 1, "e")),
        forged(("../up", 1, "e")),
        forged(("/etc/passwd", 1, "e")),
        forged(("a//b", 1, "e")),
        forged(("a/./b", 1, "e")),
        forged(("a/..", 1, "e")),
        forged(("", 1, "e")),
        forged(("nul\0", 1, "e")),
        forged(("\ud800", 1, "e")),
        forged(("x" * 40_000, 1, "e")),
        forged("abc"),
    ],
    ids=lambda data: str(len(data)),
)
def test_what_makes_no_sense_is_told(data: bytes) -> None:
    store = MemoryStore(utcnow)
    store.put(KEY, data)
    with pytest.raises(
        shard_list.ShardListUnreadable, match=rf"^the list of its files in the store, {KEY}, is malformed; submit"
    ):
        shard_list.agree(store, KEY, URL, never)


def test_a_list_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_list, "_MAX_UNPACKED_BYTES", 1000)
    long = tuple(Meta(f"{n:03d}", 1, shard_list.UNKNOWN_TIME, "") for n in range(200))
    with pytest.raises(UserError, match=r"^200 files are more than the nodes can divide; pack them into fewer$"):
        shard_list.pack(URL, long)
    with pytest.raises(ValueError):
        shard_list.unpack(forged(*((meta.key, 1, "") for meta in long)), URL)


def test_more_files_than_are_allowed_are_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = shard_list.pack(URL, FILES)
    monkeypatch.setattr(shard_list, "MAX_FILES", len(FILES))
    assert shard_list.unpack(packed, URL) == FILES and shard_list.pack(URL, FILES) == packed
    monkeypatch.setattr(shard_list, "MAX_FILES", len(FILES) - 1)
    with pytest.raises(ValueError, match="a list of 3 files"):
        shard_list.unpack(packed, URL)
    with pytest.raises(UserError):
        shard_list.pack(URL, FILES)


def test_a_list_that_was_written_meanwhile_counts_and_one_that_cannot_be_found_is_asked_for_again() -> None:
    store = MemoryStore(utcnow)

    def find() -> tuple[Meta, ...]:
        store.put(KEY, shard_list.pack(URL, FILES))
        return FILES[:1]

    assert shard_list.agree(store, KEY, URL, find) == FILES
    empty = MemoryStore(utcnow)
    empty.create = lambda *_: False  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable, match="exists and cannot be read"):
        shard_list.agree(empty, KEY, URL, lambda: FILES)


def test_a_list_that_is_too_large_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(utcnow)
    store.put(KEY, shard_list.pack(URL, FILES))
    monkeypatch.setattr(shard_list, "MAX_BYTES", 10)
    with pytest.raises(shard_list.ShardListUnreadable):
        shard_list.agree(store, KEY, URL, never)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreDenied("no")])
def test_a_store_that_does_not_tell_is_no_list_without_sense(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(utcnow)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(store, "get", fail)
    with pytest.raises(type(error)):
        shard_list.agree(store, KEY, URL, never)


def test_it_goes_with_the_job() -> None:
    store = MemoryStore(utcnow)
    shard_list.agree(store, KEY, URL, lambda: FILES)
    remove_job(store, "job-1")
    assert [meta.key for meta in store.list("")] == [keys.removed("job-1")]


def test_a_list_may_have_empty_files_and_be_as_large_as_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (("a", 0, "e"), ("b", 1, ""))
    lines = [len(json.dumps(entry)) + 1 for entry in entries]
    monkeypatch.setattr(shard_list, "_MAX_UNPACKED_BYTES", sum(lines))
    assert [meta.size for meta in shard_list.unpack(forged(*entries), URL)] == [0, 1]
    monkeypatch.setattr(shard_list, "_MAX_UNPACKED_BYTES", sum(lines) - 1)
    with pytest.raises(ValueError, match="an entry is malformed"):
        shard_list.unpack(forged(*entries), URL)
