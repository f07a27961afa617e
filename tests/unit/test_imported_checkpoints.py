"""`resume_from`: what is copied into a job, what it is called there, and what ends the copying."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_world import JOB, World, checkpoints, content, memory_store, write

from stoker.agent.checkpoints import resume_from
from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable
from stoker.agent.checkpoints.restore import restore
from stoker.agent.checkpoints.resume_from import FromFolder, FromJob, FromUrl, import_checkpoint, parse_source
from stoker.model import keys
from stoker.model.errors import StoreUnavailable, UserError
from stoker.model.node_facts import Manifest
from stoker.store.checkpoint_manifests import decode, encode
from stoker.store.checkpoints import RestoreError, list_checkpoints
from stoker.testing.memory_store import Fault, MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def source(tmp_path: Path, memory: MemoryStore) -> World:
    """A job with two checkpoints of one name, and one of another."""
    world = World(tmp_path, memory, keep=100).begin()
    for number, name in enumerate(["best", "best", "last"]):
        world.save(name, {"model": f"{number}", "same": "same", "twin": "same"}, step=number)
        world.tick()
    return world


def test_a_path_is_told_by_its_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_source("~/x") == FromFolder(Path("/home/me/x"))
    assert parse_source("~") == FromFolder(Path("/home/me"))
    monkeypatch.chdir(tmp_path)
    assert parse_source("runs/1") == FromFolder(Path("runs/1"))
    assert parse_source("/runs/1") == FromFolder(Path("/runs/1"))
    assert parse_source(".") == FromFolder(Path())
    assert parse_source("run") == FromJob("run")
    (tmp_path / "run").mkdir()
    assert parse_source("run") == FromFolder(Path("run"))
    assert parse_source("job:") == FromJob("job", None)


def test_a_job_that_has_checkpoints_of_its_own_imports_none(tmp_path: Path, memory: MemoryStore, source: World) -> None:
    newest = checkpoints(memory)[-1].key
    assert import_checkpoint(memory, JOB, FromFolder(tmp_path / "nothing")) == newest


def test_of_two_of_that_name_an_older_one_is_taken_only_if_the_newer_was_pruned(
    memory: MemoryStore, source: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = checkpoints(memory)[1]
    blob = next(blob for blob in newer.manifests[0].files if blob.path.endswith("model"))
    memory.delete([keys.blob(JOB, 0, blob.name)])
    with pytest.raises(RestoreError, match="missing from the store"):
        import_checkpoint(memory, "next", FromJob(JOB, "best"))
    assert list_checkpoints(memory, "next") == []
    monkeypatch.setattr(resume_from, "find_checkpoint", lambda *_arguments, **_options: None)
    import_checkpoint(memory, "next", FromJob(JOB, "best"))
    assert [one.step for one in list_checkpoints(memory, "next")] == [0]


def test_equal_bytes_are_copied_once_and_not_again_by_the_next_try(
    tmp_path: Path, memory: MemoryStore, source: World
) -> None:
    sent: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        sent.extend([key] if method == "put_file" else [])
        return Fault() if method == "create" else None

    senders: dict[int, BlobSender] = {}
    client = memory.client(faults)
    with pytest.raises(StoreUnavailable):
        import_checkpoint(client, "next", FromJob(JOB), senders=senders)
    # The model, its marker, and the bytes of two files.
    assert len(sent) == 3
    with pytest.raises(StoreUnavailable):
        import_checkpoint(client, "next", FromJob(JOB), senders=senders)
    assert len(sent) == 3
    key = import_checkpoint(memory, "next", FromJob(JOB), senders=senders)
    restore(memory, "next", 0, key, tmp_path / "back")
    assert content(tmp_path / "back") == {"last/model": b"2", "last/same": b"same", "last/twin": b"same"}


def test_modes_are_kept_and_the_ordinal_is_the_one_that_was_asked_for(tmp_path: Path, memory: MemoryStore) -> None:
    write(tmp_path / "base/run.sh", "x")
    (tmp_path / "base/run.sh").chmod(0o755)
    first = import_checkpoint(memory, "a", FromFolder(tmp_path / "base"), ordinal=7)
    assert first == "00000000/000007-base"
    key = import_checkpoint(memory, "b", FromJob("a"), ordinal=9)
    assert key == "00000000/000009-base"
    restore(memory, "b", 0, key, tmp_path / "back")
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o755


class Stop(Exception):
    pass


def stop_after(calls: int) -> Callable[[], None]:
    left = iter(range(calls))

    def check() -> None:
        if next(left, None) is None:
            raise Stop

    return check


@pytest.mark.parametrize("kind", ["job", "folder", "url"])
def test_it_can_be_ended_between_any_two_files_and_imports_nothing_then(
    tmp_path: Path, memory: MemoryStore, source: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = memory_store(is_local=False)
    for name in ("a", "sub/b"):
        write(tmp_path / "base" / name, name)
        bucket.put(name, name.encode())
    monkeypatch.setattr(resume_from, "open_store", lambda _url: bucket)
    sources = {"job": FromJob(JOB), "folder": FromFolder(tmp_path / "base"), "url": FromUrl("s3://bucket/base")}
    scratch = tmp_path / "work"
    scratch.mkdir()
    calls = 0
    while True:
        try:
            import_checkpoint(memory, "next", sources[kind], scratch=scratch, check=stop_after(calls))
        except Stop:
            assert list_checkpoints(memory, "next") == []
            assert list(scratch.iterdir()) == []
            calls += 1
        else:
            break
    # Once for each file (of a bucket twice: when it is fetched, and when it is sent), and before it counts.
    assert calls == {"job": 5, "folder": 3, "url": 5}[kind]
    assert len(list_checkpoints(memory, "next")) == 1
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("my run é", "my-run--"),
        (".hidden", "hidden"),
        ("...", "imported"),
        ("n" * 120, "n" * 100),
        ("a_b+c=1-2.3", "a_b+c=1-2.3"),
    ],
)
def test_it_is_called_after_the_folder_as_far_as_a_key_allows(
    tmp_path: Path, memory: MemoryStore, folder: str, name: str
) -> None:
    write(tmp_path / folder / "model", "1")
    import_checkpoint(memory, "next", FromFolder(tmp_path / folder))
    (found,) = list_checkpoints(memory, "next")
    assert found.name == name


def test_a_marker_names_the_save_and_a_strange_one_hurts_nothing(tmp_path: Path, memory: MemoryStore) -> None:
    write(tmp_path / "base/model", "1")
    marker = tmp_path / "base/.stoker-checkpoint.json"
    for number, (tree, name, step) in enumerate(
        [({"name": "best", "step": 5}, "best", 5), ({"step": "five"}, "base", None), ({"name": 7}, "7", None)]
    ):
        marker.write_text(json.dumps(tree))
        import_checkpoint(memory, f"job-{number}", FromFolder(tmp_path / "base"))
        (found,) = list_checkpoints(memory, f"job-{number}")
        assert (found.name, found.step) == (name, step)
        assert f"{name}/model" in {blob.path for blob in found.manifests[0].files}


def test_a_folder_that_changes_while_it_is_read_is_the_users_mistake(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_arguments: object) -> None:
        raise FileUnstable("model")

    write(tmp_path / "base/model", "1")
    monkeypatch.setattr(BlobSender, "send", send)
    with pytest.raises(UserError, match="model changed while it was read"):
        import_checkpoint(memory, "next", FromFolder(tmp_path / "base"))


def test_a_bucket_with_a_name_that_no_folder_can_hold_is_refused(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = memory_store(is_local=False)
    bucket.put("model", b"m")
    bucket.put("b" * 256, b"a name that no folder can hold")
    monkeypatch.setattr(resume_from, "open_store", lambda _url: bucket)
    with pytest.raises(UserError, match=r"s3://bucket/runs/base/ cannot be a checkpoint: b+: its path is longer than"):
        import_checkpoint(memory, "next", FromUrl("s3://bucket/runs/base/"))
    bucket.delete(["b" * 256])
    key = import_checkpoint(memory, "next", FromUrl("s3://bucket/runs/base/"))
    assert key == "00000000/000000-base"
    restore(memory, "next", 0, key, tmp_path / "back")
    assert content(tmp_path / "back") == {"model": b"m"}


def test_a_file_that_leaves_the_bucket_meanwhile_is_told(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = memory_store(is_local=False)
    bucket.put("model", b"m")
    monkeypatch.setattr(resume_from, "open_store", lambda _url: bucket)
    monkeypatch.setattr(bucket, "get_file", lambda *_arguments: None)
    with pytest.raises(UserError, match="s3://bucket/base/model was removed while it was read"):
        import_checkpoint(memory, "next", FromUrl("s3://bucket/base"))


# ── A place that is taken ─────────────────────────────────────────────────────────────────────────────────────────────

PLACE = keys.manifest("next", "00000000/000000-base")


class Taken:
    """A folder to import, and the manifest that an import of it writes."""

    def __init__(self, root: Path, memory: MemoryStore) -> None:
        write(root / "base/model", "1")
        self.memory = memory
        self.source = FromFolder(root / "base")
        import_checkpoint(memory, "next", self.source)
        found = memory.get(PLACE)
        assert found is not None
        self.manifest = decode(found.data)

    def put(self, data: bytes | Manifest) -> None:
        self.memory.put(PLACE, data if isinstance(data, bytes) else encode(data))

    def again(self, faults: Callable[[str, str], Fault | None] = lambda _method, _key: None) -> str:
        """As one that saw no checkpoint in its list, since the other was on its way."""
        hidden = pytest.MonkeyPatch()
        hidden.setattr(resume_from, "list_checkpoints", lambda *_arguments, **_options: [])
        try:
            return import_checkpoint(self.memory.client(faults), "next", self.source)
        finally:
            hidden.undo()


@pytest.fixture
def taken(tmp_path: Path, memory: MemoryStore) -> Taken:
    return Taken(tmp_path, memory)


def test_the_manifest_of_a_try_before_is_ones_own_though_its_uploads_differ(taken: Taken) -> None:
    assert taken.again() == "00000000/000000-base"
    found = taken.memory.get(PLACE)
    assert found is not None and decode(found.data) == taken.manifest


def test_the_manifest_of_another_checkpoint_is_not_ones_own(taken: Taken) -> None:
    (blob,) = taken.manifest.files
    for other in (replace(taken.manifest, files=(replace(blob, size=2),)), b"junk"):
        taken.put(other)
        with pytest.raises(RestoreError, match="taken by another checkpoint"):
            taken.again()


def test_a_place_that_cannot_be_looked_at_is_asked_again(taken: Taken) -> None:
    with pytest.raises(StoreUnavailable):
        taken.again(lambda method, key: Fault() if method == "get" and key == PLACE else None)


def test_bytes_that_change_on_the_node_are_not_imported(
    memory: MemoryStore, source: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_file = BlobSender.send_file

    def changing(self: BlobSender, path: Path) -> tuple[str, str]:
        path.write_text("changed")
        return send_file(self, path)

    monkeypatch.setattr(BlobSender, "send_file", changing)
    with pytest.raises(RestoreError, match=r"changed while it was copied$"):
        import_checkpoint(memory, "next", FromJob(JOB, "last"))
    assert list_checkpoints(memory, "next") == []


def test_a_folder_with_a_name_that_no_checkpoint_can_hold_is_refused(tmp_path: Path, memory: MemoryStore) -> None:
    write(tmp_path / "base/model", "1")
    (tmp_path / "base" / os.fsdecode(b"b\xff")).write_text("2")
    with pytest.raises(UserError) as refused:
        import_checkpoint(memory, "next", FromFolder(tmp_path / "base"))
    what = "b\\xff: its name is not UTF-8; choose another one"
    assert str(refused.value) == f"resume_from: {tmp_path / 'base'} cannot be a checkpoint: {what}"
    assert list_checkpoints(memory, "next") == []
