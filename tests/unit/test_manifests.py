"""Tests of what is believed of manifests, and of what is read of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from stoker.model import keys
from stoker.model.codec import CodecError
from stoker.model.errors import StoreUnavailable
from stoker.model.log_entries import Record, Submitted
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store import checkpoint_manifests, job_log
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import (
    MANIFEST_VERSION,
    MAX_ORDINAL,
    TRUST_ALL,
    TRUST_NONE,
    CheckpointTooLarge,
    ManifestKey,
    TrustedClaims,
    check_files,
    decode,
    encode,
    find_problem,
    read_manifests,
    read_trusted_claims,
)
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import EPOCH

TWO_AND_ONE = {1: 2, 3: 1}


@pytest.mark.parametrize(
    ("trust", "claim", "rank", "believed"),
    [
        (TRUST_ALL, 9, 99, True),
        (TRUST_ALL, 0, 99, True),
        (TRUST_NONE, 1, 0, False),
        (TRUST_NONE, 0, 0, False),
        (TrustedClaims(TWO_AND_ONE), 1, 1, True),
        (TrustedClaims(TWO_AND_ONE), 1, 2, False),
        (TrustedClaims(TWO_AND_ONE), 2, 0, False),
        (TrustedClaims(TWO_AND_ONE), 3, 0, True),
        (TrustedClaims(TWO_AND_ONE), 3, 1, False),
        # Imported from elsewhere, where that was asked for.
        (TrustedClaims(TWO_AND_ONE), 0, 5, True),
        (TrustedClaims(TWO_AND_ONE, imported=False), 0, 0, False),
        (TrustedClaims(TWO_AND_ONE, imported=False), 1, 0, True),
    ],
)
def test_the_ranks_of_claims_in_the_log_are_believed(
    trust: TrustedClaims, claim: int, rank: int, believed: bool
) -> None:
    assert trust.trusts(ManifestKey(claim, 1, "a", rank)) is believed
    assert trust.trusts(ManifestKey(claim, MAX_ORDINAL, "a", rank)) is believed
    assert trust.trusts(ManifestKey(claim, MAX_ORDINAL + 1, "a", rank)) is False


# ── Decoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PLACE = ManifestKey(1, 1, "a", 0)
BLOB = BlobRef(path="a.pt", digest="0" * 64, size=1, mode=0o644)
SAVE = Manifest("a", "j", 1, 0, 1, EPOCH, (BLOB, replace(BLOB, path="b.pt")))


def lines() -> list[bytes]:
    return encode(SAVE).splitlines(keepends=True)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(encode(SAVE)) == SAVE
    assert decode(encode(replace(SAVE, files=()))) == replace(SAVE, files=())


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b'["a",1]', "file 1: not a row of five"),
        (b"7", "file 1: not a row of five"),
        (b'["a","b","c",1,"644"]', "file 1: expected three texts and two whole numbers"),
        (b'["a","b",3,1,420]', "file 1: expected three texts and two whole numbers"),
        (b'["a","b","c",true,420]', "file 1: expected three texts and two whole numbers"),
        (b'["a","b","c",-1,420]', "file 1: expected a size and a mode of reasonable size"),
        (b'["a","b","c",9223372036854775808,420]', "file 1: expected a size and a mode of reasonable size"),
        (b'["a","b","c",1,-1]', "file 1: expected a size and a mode of reasonable size"),
        (b'["a","b","c",1,2147483648]', "file 1: expected a size and a mode of reasonable size"),
    ],
)
def test_a_row_that_is_not_a_file_is_named(row: bytes, why: str) -> None:
    head, _, second = lines()
    with pytest.raises(CodecError, match=f"^{why}$"):
        decode(head + row + b"\n" + second)
    with pytest.raises(CodecError, match=f"^{why.replace('file 1', 'file 2')}$"):
        decode(head + second + row + b"\n")


def test_the_largest_numbers_of_a_row_are_read() -> None:
    large = replace(
        SAVE, files=(replace(BLOB, size=2**63 - 1, mode=2**31 - 1), replace(BLOB, path="b", size=0, mode=0))
    )
    assert decode(encode(large)) == large


def test_a_manifest_that_lacks_files_or_has_more_than_it_says_is_refused() -> None:
    head, first, second = lines()
    with pytest.raises(CodecError, match=r"^1 of 2 files$"):
        decode(head + first)
    with pytest.raises(CodecError, match=r"^3 of 2 files$"):
        decode(head + first + second + second)
    with pytest.raises(CodecError, match="a line without an end"):
        decode((head + first + second)[:-1])


@pytest.mark.parametrize("count", [-1, 4])
def test_a_manifest_with_an_impossible_number_of_files_is_refused(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(checkpoint_manifests, "MAX_FILES", 3)
    head, first, second = lines()
    with pytest.raises(CodecError, match=f"^count: {count} files$"):
        decode(head.replace(b'"count":2', b'"count":%d' % count) + first + second)


def test_as_many_files_as_there_may_be_are_read_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_manifests, "MAX_FILES", 2)
    assert decode(encode(SAVE)) == SAVE
    with pytest.raises(CodecError, match=r"^more than 2 files$"):
        decode(encode(SAVE) + lines()[1])
    with pytest.raises(CheckpointTooLarge, match="it has 3 files, and at most 2 can be kept"):
        encode(replace(SAVE, files=(*SAVE.files, BLOB)))
    check_files(["a", "b"])
    with pytest.raises(CheckpointTooLarge, match="it has 3 files"):
        check_files(["a", "b", "c"])


def test_names_are_counted_before_anything_is_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_manifests, "MANIFEST_BYTES", 10_000)
    # Each has 130 bytes beside its name with its two quotes; a byte that is no text takes six.
    check_files(["abc"] * 74)
    check_files(["a\udc80"] * 71)
    for names in (["abc"] * 75, ["a\udc80"] * 72):
        with pytest.raises(CheckpointTooLarge, match=f"it has {len(names)} files"):
            check_files(names)


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stored(*saves: Manifest) -> MemoryStore:
    store = MemoryStore(lambda: EPOCH)
    for save in saves:
        place = ManifestKey(save.claim, save.ordinal, save.name, save.rank)
        store.put(f"{keys.checkpoints('j')}{place.key}.json", encode(save))
    return store


def read(store: Store, trust: TrustedClaims = TRUST_ALL) -> list[tuple[int, bool]]:
    """The ordinals of the manifests that are there, and whether each could be read."""
    found = read_manifests(store, "j", keys.checkpoints("j"), trust=trust)
    return [(one.place.ordinal, one.manifest is not None) for one in found]


def test_a_manifest_that_is_deleted_while_others_are_read_is_gone() -> None:
    store = stored(SAVE, replace(SAVE, ordinal=2))
    (first, _) = [meta.key for meta in store.list(keys.checkpoints("j"))]

    def delete(call: str, key: str) -> Fault | None:
        if (call, key) == ("get", first):
            store.delete([first])
        return None

    assert read(store.client(faults=delete)) == [(2, True)]


def test_a_manifest_that_cannot_be_read_counts_and_is_none(caplog: pytest.LogCaptureFixture) -> None:
    store = stored(SAVE, replace(SAVE, ordinal=2))
    store.put(f"{keys.checkpoints('j')}{ManifestKey(1, 3, 'a', 0).key}.json", b"{")
    store.put(f"{keys.checkpoints('j')}{ManifestKey(1, 4, 'a', 0).key}", encode(SAVE))
    store.put(f"{keys.checkpoints('j')}README.json", b"")
    assert read(store) == [(1, True), (2, True), (3, False)]
    assert "2 objects in" in caplog.text and "left out" in caplog.text


def test_manifests_that_are_more_than_memory_allows_are_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = stored(*(replace(SAVE, ordinal=number) for number in (1, 2, 3)))
    size = len(encode(SAVE))
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_BYTES", 2 * size)
    assert read(store) == [(1, False), (2, True), (3, True)], "the newest are read"
    assert "1 manifests are not read" in caplog.text
    caplog.clear()
    # One that is too large itself takes no room from the others, and is not requested.
    large = ManifestKey(1, 4, "a", 0)
    store.put(f"{keys.checkpoints('j')}{large.key}.json", b" " * (size + 1))
    monkeypatch.setattr(checkpoint_manifests, "MANIFEST_BYTES", size)
    store.counts.clear()
    assert read(store) == [(1, False), (2, True), (3, True), (4, False)]
    assert store.counts["get"] == 2
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_BYTES", 3 * size)
    assert read(store) == [(1, True), (2, True), (3, True), (4, False)]
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_MANIFESTS", 2)
    assert read(store) == [(1, False), (2, False), (3, True), (4, False)]


def test_a_store_that_does_not_answer_makes_no_claim_untrusted() -> None:
    """The spec says whether a checkpoint was imported; unknown is not "no"."""
    store = stored()
    assert job_log.append(store, "j", 1, Record("token", "test", "asked", Submitted("0" * 64, "owner")))

    def fail(call: str, key: str) -> Fault | None:
        return Fault() if (call, key) == ("get", keys.spec("j")) else None

    with pytest.raises(StoreUnavailable):
        read_trusted_claims(store.client(faults=fail), "j")
    for spec, imported in ((b"{", False), (b'{"spec":{}}', False), (b'{"spec":{"resume_from":"s3://b/x"}}', True)):
        store.put(keys.spec("j"), spec)
        assert read_trusted_claims(store, "j") == TrustedClaims({}, imported=imported)
    store.delete([keys.spec("j")])
    assert read_trusted_claims(store, "j") == TrustedClaims({}, imported=False)


# ── Validity ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": MANIFEST_VERSION + 1}, "is newer than this Stoker"),
        ({"job": "k"}, "does not say what its key says"),
        ({"claim": 2}, "does not say what its key says"),
        ({"ordinal": 2}, "does not say what its key says"),
        ({"name": "b"}, "does not say what its key says"),
        ({"rank": 1}, "does not say what its key says"),
        ({"ranks": (1,)}, r"^ranks \(1,\)$"),
        ({"ranks": (0, 0)}, r"^ranks \(0, 0\)$"),
        ({"ranks": (0, 2)}, r"^ranks \(0, 2\) of 2 nodes$"),
        ({"ranks": (0, -1)}, r"^ranks \(0, -1\) of 2 nodes$"),
        ({"files": (replace(BLOB, path="../a"),)}, "^path '../a'$"),
        ({"files": (BLOB, BLOB)}, "^path 'a.pt'$"),
        ({"files": (replace(BLOB, digest="0" * 63),)}, "^blob of 'a.pt'$"),
        ({"files": (replace(BLOB, upload="../../x"),)}, "^blob of 'a.pt'$"),
        ({"files": (BLOB, replace(BLOB, path="a.pt/b/c"))}, "^'a.pt' is a file and a folder$"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(changes: dict[str, Any], why: str) -> None:
    assert find_problem(SAVE, "j", PLACE, 2) is None
    assert find_problem(replace(SAVE, ranks=(0, 1)), "j", PLACE, 2) is None
    problem = find_problem(replace(SAVE, **changes), "j", PLACE, 2)
    assert problem is not None and re.search(why, problem)
