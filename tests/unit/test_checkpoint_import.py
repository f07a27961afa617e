"""Importing checkpoints: from another job, a folder or a bucket."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import saved_checkpoints
from checkpoint_world import (
    JOB,
    World,
    assert_sound,
    content,
    manifest_keys,
    memory_store,
    write,
)
from saved_checkpoints import blob_of, saved

from stoker.agent.checkpoints.restore import restore
from stoker.agent.checkpoints.resume_from import FromFolder, FromJob, FromUrl, import_checkpoint, parse_source
from stoker.agent.checkpoints.save_protocol import numbered_saves
from stoker.model.errors import StoreUnavailable, UserError
from stoker.store.base import Store
from stoker.store.checkpoints import (
    RestoreError,
    list_checkpoints,
)
from stoker.testing.memory_store import Fault
from tests.support.newest_checkpoint import restore_newest

memory = saved_checkpoints.memory
store = saved_checkpoints.store


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("gpt-7f3k", FromJob("gpt-7f3k")),
        ("gpt-7f3k:step-900", FromJob("gpt-7f3k", "step-900")),
        ("s3://bucket/x", FromUrl("s3://bucket/x")),
        ("file:///data/a%20b", FromFolder(Path("/data/a b"))),
        ("/data/x", FromFolder(Path("/data/x"))),
        ("./x", FromFolder(Path("x"))),
        ("here", FromFolder(Path("here"))),
    ],
)
def test_sources_are_told_apart(text: str, source: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert parse_source(text) == source


def other_job(tmp_path: Path, store: Store) -> None:
    """`JOB` has three checkpoints; the job `next` has none."""
    saved(tmp_path, store)


def imported(store: Store, tmp_path: Path) -> dict[str, bytes]:
    restored = restore_newest(store, "next", tmp_path / "imported")
    assert restored is not None
    return content(tmp_path / "imported")


@pytest.mark.parametrize(("name", "step"), [(None, 2), ("step-0", 0)])
def test_a_checkpoint_of_another_job_becomes_ones_own(
    tmp_path: Path, store: Store, name: str | None, step: int
) -> None:
    other_job(tmp_path, store)
    key = import_checkpoint(store, "next", FromJob(JOB, name))
    assert key == f"00000000/000000-step-{step}"
    for meta in list(store.list(f"work/{JOB}/")):
        store.delete([meta.key])
    assert imported(store, tmp_path)[f"step-{step}/model"] == f"model {step}".encode()
    assert list_checkpoints(store, "next")[0].step == step
    assert import_checkpoint(store, "next", FromJob(JOB, name)) == key


def test_a_checkpoint_pruned_meanwhile_gives_way_to_the_next(tmp_path: Path, store: Store) -> None:
    other_job(tmp_path, store)
    store.delete([blob_of(store, 2, "optimizer")])
    assert import_checkpoint(store, "next", FromJob(JOB)) == "00000000/000000-step-1"
    assert imported(store, tmp_path)["step-1/model"] == b"model 1"


def test_what_was_asked_for_by_name_is_not_replaced_by_another(tmp_path: Path, store: Store) -> None:
    other_job(tmp_path, store)
    store.put(blob_of(store, 2, "optimizer"), b"flipped")
    with pytest.raises(RestoreError):
        import_checkpoint(store, "next", FromJob(JOB, "step-2"))
    assert list_checkpoints(store, "next") == []
    with pytest.raises(UserError, match="step-9"):
        import_checkpoint(store, "next", FromJob(JOB, "step-9"))
    with pytest.raises(UserError, match="no checkpoint"):
        import_checkpoint(store, "next", FromJob("unheard-of"))


def test_shards_are_imported_for_every_rank(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    for world in ranks:
        world.save("s", {"same": f"{world.rank}"}, sharded=True)
        world.tick()
    key = import_checkpoint(store, "next", FromJob(JOB))
    for rank in range(2):
        restore(store, "next", rank, key, tmp_path / f"back-{rank}")
        assert content(tmp_path / f"back-{rank}") == {"s/same": f"{rank}".encode()}


def test_a_folder_of_plain_files_is_imported(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "my run" / "model.pt", "m")
    write(tmp_path / "my run" / "sub" / "x", "x")
    key = import_checkpoint(store, "next", FromFolder(tmp_path / "my run"))
    assert key == "00000000/000000-my-run"
    assert imported(store, tmp_path) == {"model.pt": b"m", "sub/x": b"x"}
    write(tmp_path / "my run" / "model.pt", "changed")
    assert import_checkpoint(store, "next", FromFolder(tmp_path / "my run")) == key
    assert imported(store, tmp_path) == {"model.pt": b"m", "sub/x": b"x"}


def test_a_single_save_is_imported_where_the_script_looks_for_it(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store)
    world.save("step-5", {"model": "5"}, step=5)
    import_checkpoint(store, "next", FromFolder(world.folder / "step-5"))
    assert imported(store, tmp_path) == {"step-5/model": b"5"}
    assert [name for _, name in numbered_saves(tmp_path / "imported")] == ["step-5"]
    assert list_checkpoints(store, "next")[0].step == 5


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_with_nothing_in_it_is_the_users_mistake(tmp_path: Path, store: Store, make: bool) -> None:
    if make:
        (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        import_checkpoint(store, "next", FromFolder(tmp_path / "empty"))


def test_plain_files_in_a_bucket_are_imported(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = memory_store(is_local=False)
    bucket.put("model.pt", b"m")
    bucket.put("sub/x", b"x")
    monkeypatch.setattr("stoker.agent.checkpoints.resume_from.open_store", lambda url: bucket)
    assert import_checkpoint(store, "next", FromUrl("s3://bucket/base")) == "00000000/000000-base"
    assert imported(store, tmp_path) == {"model.pt": b"m", "sub/x": b"x"}
    empty = memory_store(is_local=False)
    monkeypatch.setattr("stoker.agent.checkpoints.resume_from.open_store", lambda url: empty)
    with pytest.raises(UserError, match="nothing at"):
        import_checkpoint(store, "third", FromUrl("s3://bucket/none"))


@pytest.mark.parametrize("after", [False, True])
def test_an_import_can_be_repeated_whichever_call_failed(tmp_path: Path, after: bool) -> None:
    for failing in range(100):
        memory = memory_store()
        other_job(tmp_path / f"{failing}", memory)
        calls = iter(range(10**9))
        client = memory.client(
            lambda *_, calls=calls, failing=failing: Fault(after) if next(calls) == failing else None
        )  # type: ignore[misc]
        try:
            import_checkpoint(client, "next", FromJob(JOB))
        except StoreUnavailable:
            assert import_checkpoint(client, "next", FromJob(JOB)) == "00000000/000000-step-2"
            assert imported(memory, tmp_path / f"{failing}")["step-2/model"] == b"model 2"
        else:
            assert failing > 5
            return
    raise AssertionError("there are more calls than were failed")


def test_an_imported_checkpoint_is_the_oldest_and_pruned_like_any_other(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "base" / "model", "base")
    key = import_checkpoint(store, JOB, FromFolder(tmp_path / "base"))
    world = World(tmp_path, store, keep=1).restore(key).begin()
    world.save("step-1", {"model": "1"})
    world.tick()
    # It was restored last, so it stays as long as this attempt trains.
    assert manifest_keys(store) == [key, "00000001/000001-step-1"]
    second = World(tmp_path, store, keep=1, claim=2).restore_newest().begin()
    second.save("step-2", {"model": "2"})
    second.tick()
    assert manifest_keys(store) == ["00000001/000001-step-1", "00000002/000001-step-2"]
    assert_sound(store)


def test_the_marker_of_a_save_is_plain_json(tmp_path: Path, store: Store) -> None:
    world = saved(tmp_path, store, steps=1)
    marker = json.loads((world.folder / "step-0" / ".stoker-checkpoint.json").read_text())
    assert marker == {"name": "step-0", "number": 1, "step": 0}
    assert os.access(world.folder / "step-0", os.R_OK)
