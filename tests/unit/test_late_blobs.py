"""Blobs and manifests whose requests land late, and manifests that no attempt of the job wrote."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import JOB, World, assert_sound, blobs, checkpoints, manifest_keys, restored_content, write

from stoker.agent.checkpoints.blobs import BlobSender, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.checkpoints.resume_from import FromJob, import_checkpoint
from stoker.model import codec, keys
from stoker.model.errors import CodecError, UserError
from stoker.model.log_entries import Claimed, Event, Record, Submitted
from stoker.model.node_facts import BlobRef, Manifest
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.store import checkpoint_manifests, job_log
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import (
    CheckpointTooLarge,
    check_files,
    decode,
    encode,
    read_trusted_claims,
    trusted_claims,
)
from stoker.store.checkpoints import find_checkpoint, list_checkpoints
from stoker.testing.memory_store import MemoryStore
from tests.support.newest_checkpoint import restore_newest

OFFERING = Offering("sim", "m", "zone-a", spot=True)
memory, store = checkpoint_world.memory, checkpoint_world.store


def put_log(store: Store, job: str, *events: Event, **spec: object) -> None:
    data = codec.dumps(Submission(job, Spec(name="job", run="true", **spec), "test"))  # type: ignore[arg-type]
    store.put(keys.spec(job), data)
    for seq, event in enumerate((Submitted(codec.digest(data), "test"), *events), 1):
        assert job_log.append(store, job, seq, Record(job_log.new_token(), "test", "test", event))


def plant(store: Store, claim: int, ordinal: int = 1, rank: int = 0, *, job: str = JOB, **more: object) -> str:
    """A manifest that looks whole, written by somebody."""
    manifest = Manifest("step-9", job, claim, rank, ordinal, datetime.now(timezone.utc), ())
    key = keys.checkpoint_key(claim, ordinal, "step-9", rank)
    assert store.create(keys.manifest(job, key), encode(replace(manifest, **more)))  # type: ignore[arg-type]
    return key


# ── Deletes that land late ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_delete_that_lands_late_removes_no_blob_that_was_committed_again(tmp_path: Path, store: Store) -> None:
    """The same content is pruned, committed again, and only then do the deletes land once more."""
    world = World(tmp_path, store, keep=1).begin()
    gone: set[str] = set()
    for number, text in enumerate(["a", "b", "a", "b", "a"]):
        before = blobs(store)
        world.save(f"step-{number}", {"model": text, "same": "always"})
        world.tick()
        gone |= before - blobs(store)
        store.delete([keys.blob(JOB, 0, name) for name in gone])
        assert_sound(store)
    assert gone
    assert restored_content(store, tmp_path / "back") == {"step-4/model": b"a", "step-4/same": b"always"}


def test_no_name_is_used_twice(tmp_path: Path, memory: MemoryStore) -> None:
    written: list[str] = []
    client = memory.client(lambda method, key: written.append(key) if method == "put_file" else None)  # type: ignore[func-returns-value]
    for claim in (1, 2, 3):
        world = World(tmp_path / str(claim), client, keep=1, claim=claim).restore_newest().begin()
        for number in range(4):
            world.save(f"step-{number}", {"model": "ab"[number % 2]})
            world.tick()
    assert len(written) == len(set(written)) > 6


def test_equal_files_of_a_save_are_sent_once(tmp_path: Path, memory: MemoryStore) -> None:
    for name in "abcdefgh":
        write(tmp_path / "f" / name, "the same")
    sender = BlobSender(memory, JOB, 0, scratch=tmp_path, workers=8)
    sent = sender.send([OutgoingFile(file, tmp_path / "f" / file.path) for file in scan(tmp_path / "f").values()])
    assert len({blob.name for blob in sent.values()}) == 1 == memory.counts["put_file"]


def test_an_import_never_uses_a_key_again(tmp_path: Path, memory: MemoryStore) -> None:
    World(tmp_path, memory).begin()
    world = World(tmp_path / "other", memory).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    first = import_checkpoint(memory, "next", FromJob(JOB), ordinal=2)
    taken = {meta.key for meta in memory.list("work/next/")}
    memory.delete(taken)
    again = import_checkpoint(memory, "next", FromJob(JOB), ordinal=5)
    memory.delete(taken)
    assert first != again
    assert restore_newest(memory, "next", tmp_path / "back") is not None


# ── Manifests that count ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_manifest_of_a_claim_that_the_log_lacks_is_neither_restored_nor_stops_pruning(
    tmp_path: Path, store: Store
) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1), Claimed(OFFERING, 1))
    world = World(tmp_path, store, keep=1, claim=2, trust=read_trusted_claims(store, JOB)).begin()
    plant(store, 99999999)
    plant(store, 0)
    for number in range(3):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert [one.name for one in list_checkpoints(store, JOB)] == ["step-2"]
    assert blobs(store) == {blob.name for one in list_checkpoints(store, JOB) for blob in one.manifests[0].files}, (
        "and blobs are removed all the same"
    )
    assert find_checkpoint(store, JOB, "99999999/000001-step-9") is None
    restored = restore_newest(store, JOB, tmp_path / "back")
    assert restored is not None and restored.key.startswith("00000002/")


def test_only_claims_that_are_not_newer_count_for_an_agent(store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1), Claimed(OFFERING, 2))
    state = job_log.read(store, JOB)
    assert state is not None
    own, newer = plant(store, 2), plant(store, 3)
    plant(store, 1)  # The number of an entry that is no claim.
    assert [one.key for one in list_checkpoints(store, JOB, trust=trusted_claims(state, own=2))] == [own]
    assert [one.key for one in list_checkpoints(store, JOB)] == [own, newer]


def test_ranks_that_the_claim_does_not_have_do_not_count(store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 2))
    plant(store, 2, ranks=(0, 1), generation=1)
    plant(store, 2, rank=1, ranks=(0, 1), generation=1)
    plant(store, 2, 2, rank=2, ranks=(0, 2), generation=2)
    plant(store, 2, 2, ranks=(0, 2), generation=2)
    assert [(one.complete, sorted(one.manifests)) for one in list_checkpoints(store, JOB)] == [(True, [0, 1])]


def test_an_absurd_ordinal_is_not_where_the_next_commit_goes_on(tmp_path: Path, store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1))
    plant(store, 2, 999_999_999)
    world = World(tmp_path, store, claim=2).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    assert [one.key for one in list_checkpoints(store, JOB)] == ["00000002/000001-step-1"]


def test_an_imported_checkpoint_counts_only_for_a_job_that_resumes_from_elsewhere(store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1))
    put_log(store, "next", Claimed(OFFERING, 1), resume_from="other")
    plant(store, 0)
    plant(store, 0, job="next")
    assert list_checkpoints(store, JOB) == [] and len(list_checkpoints(store, "next")) == 1


@pytest.mark.parametrize("spec", [b"", b"[]", b"{}", b'{"spec": null}', None])
def test_a_job_whose_settings_cannot_be_read_did_not_ask_for_an_imported_checkpoint(
    store: Store, spec: bytes | None
) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1), resume_from="other")
    assert read_trusted_claims(store, JOB).imported
    store.delete([keys.spec(JOB)])
    if spec is not None:
        store.create(keys.spec(JOB), spec)
    trust = read_trusted_claims(store, JOB)
    assert (trust.imported, trust.claims) == (False, {2: 1})


def test_resume_from_another_job_goes_by_that_jobs_log(tmp_path: Path, store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1))
    plant(store, 99999999)
    with pytest.raises(UserError, match="has no checkpoint"):
        import_checkpoint(store, "next", FromJob(JOB))
    world = World(tmp_path, store, claim=2).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    assert import_checkpoint(store, "next", FromJob(JOB)).endswith("-step-1")


def test_a_removed_job_has_no_checkpoints(store: Store) -> None:
    put_log(store, JOB, Claimed(OFFERING, 1))
    plant(store, 2)
    store.create(keys.removed(JOB), b"")
    assert list_checkpoints(store, JOB) == []


# ── How large they may be ─────────────────────────────────────────────────────────────────────────────────────────────


def blob(number: int) -> BlobRef:
    return BlobRef(f"shard-{number:06d}", f"{number:064x}", number, upload=f"{number:016x}")


def test_a_manifest_reads_as_it_was_written() -> None:
    odd = replace(blob(3), path='a\n"b\\ü\u2028/c')
    manifest = Manifest("s", JOB, 2, 0, 1, datetime.now(timezone.utc), (blob(1), blob(2), odd), step=4)
    assert decode(encode(manifest)) == manifest


@pytest.mark.parametrize("change", ["fewer", "more", "rows", "head", "types", "long", "deep"])
def test_a_manifest_that_is_not_whole_is_refused(change: str) -> None:
    data = encode(Manifest("s", JOB, 2, 0, 1, datetime.now(timezone.utc), (blob(1), blob(2))))
    lines = data.split(b"\n")
    bad = {
        "fewer": b"\n".join(lines[:-2]) + b"\n",
        "more": data + lines[1] + b"\n",
        "rows": data + b"{}\n",
        "head": b"[]\n",
        "types": data.replace(b",420]", b',"420"]', 1),
        "long": data[:-1] + b" " * 100_000 + b"\n",
        "deep": lines[0] + b"\n" + b"[" * 20_000 + b"\n" + lines[2] + b"\n",
    }
    with pytest.raises(CodecError):
        decode(bad[change])


@pytest.mark.parametrize("kind", ["lists", "lines", "paths"])
def test_the_largest_manifest_takes_little_memory(kind: str) -> None:
    """However it is filled: what is parsed at once is one row. Measured in a process of its own."""
    script = f"""
import json, resource, sys
from datetime import datetime, timezone
from stoker.store.checkpoint_manifests import *
from stoker.model.node_facts import Manifest
from stoker.store import checkpoint_manifests as manifests
size = manifests.MANIFEST_BYTES
head = encode(Manifest("s", "j", 2, 0, 1, datetime.now(timezone.utc), ()))
head = head.replace(b'"count":0', b'"count":%d' % manifests.MAX_FILES)
row = {{
    "lists": b"[" + b"[]," * (size // 3) + b"[]]\\n",
    "lines": b"\\n" * size,
    "paths": b"".join(
        json.dumps(["/".join(["a"] * 90) + str(n), "0" * 64, "", 1, 1]).encode() + b"\\n" for n in range(60_000)
    ),
}}[{kind!r}]
data = (head + row)[:size]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    found = decode(data)
    assert find_problem(found, "j", Place(2, 1, "s", 0)) is None
except Exception as error:
    assert type(error).__name__ == "CodecError", error
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100 * 1024, f"{int(done.stdout) >> 10} MB"


def test_what_is_read_of_all_manifests_together_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for ordinal in range(1, 9):
        plant(store, 2, ordinal)
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_MANIFESTS", 3)
    assert [one.place.ordinal for one in list_checkpoints(store, JOB)] == [6, 7, 8], "the newest"
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_MANIFESTS", 100)
    size = next(iter(store.list(keys.checkpoints(JOB)))).size
    monkeypatch.setattr(checkpoint_manifests, "TOTAL_BYTES", 2 * size + 1)
    assert [one.place.ordinal for one in list_checkpoints(store, JOB)] == [7, 8]


def test_a_save_of_too_many_files_is_refused_in_one_line_before_anything_is_sent(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_manifests, "MAX_FILES", 20)
    world = World(tmp_path, memory).begin()
    with caplog.at_level(logging.WARNING):
        world.save("step-1", {f"shard-{n}": f"{n}" for n in range(30)})
        world.tick(rounds=3)
    told = world.sync.status().error or ""
    assert "31 files" in told and "at most 20" in told and "archive" in told and "\n" not in told
    assert memory.counts.get("put_file", 0) == 0 and manifest_keys(memory) == []
    # A later save that is small enough is committed.
    world.save("step-2", {"archive": "all"})
    world.tick(rounds=200)
    assert [one.name for one in checkpoints(memory)] == ["step-2"]


def test_a_manifest_is_never_written_that_no_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest("s", JOB, 2, 0, 1, datetime.now(timezone.utc), tuple(blob(n) for n in range(50)))
    monkeypatch.setattr(checkpoint_manifests, "MANIFEST_BYTES", len(encode(manifest)) - 1)
    with pytest.raises(CheckpointTooLarge, match="50 files"):
        encode(manifest)


@pytest.mark.parametrize("name", ["plain", "größe-文", "bytes-\udcff\udcfe", 'quotes"\\', "\x01\x02"])
def test_names_count_as_they_are_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the upload as after it: a checkpoint whose manifest is too large is refused before its files are sent."""
    files = tuple(replace(blob(n), path=f"{name * 30}-{n}") for n in range(20))
    manifest = Manifest("s", JOB, 2, 0, 1, datetime.now(timezone.utc), files)
    data = encode(manifest)
    assert decode(data) == manifest
    assert data.count(name.encode(errors="ignore")) >= 20 or not name.isprintable() or '"' in name
    monkeypatch.setattr(checkpoint_manifests, "MANIFEST_BYTES", len(data) - 1 - len(data.partition(b"\n")[0]))
    with pytest.raises(CheckpointTooLarge, match="20 files"):
        check_files([file.path for file in files])
