"""The checkpoint folder of an attempt before its training starts: made, held, restored or cleared."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from checkpoint_world import JOB, World, content, manifest_keys, memory_store, write

from stoker.agent.checkpoints import folder_record
from stoker.agent.checkpoints.folder_replacement import OWN, hold_folder
from stoker.agent.checkpoints.restore_folder import RestoreFolder, take_baseline
from stoker.agent.confinement import Confinement
from stoker.agent.output_files import Baseline
from stoker.model.errors import SetupFailed
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Spec
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import TRUST_ALL


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    (tmp_path / "node/code").mkdir(parents=True)
    return NodePaths(tmp_path / "node")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With one checkpoint of `JOB`."""
    store = memory_store()
    world = World(tmp_path / "before", store).begin()
    world.save("step-1", {"model": "1"}, step=1)
    world.tick()
    return store


def spec(folder: str | tuple[str, ...] = "checkpoints") -> Spec:
    return Spec("name", run=("python", "train.py"), checkpoints=Checkpoints(dir=folder))


def confined(paths: NodePaths) -> Confinement:
    return Confinement((paths.root,), lambda _text: None)


def test_a_restore_fills_the_folder_and_the_rest_is_moved_aside_and_named(paths: NodePaths, store: Store) -> None:
    opened = RestoreFolder.open(paths, spec(), JOB)
    assert opened.folder == paths.code / "checkpoints" and opened.folder.is_dir()
    for number in range(3):
        write(opened.folder / f"half-{number}", "half")
    told: list[tuple[int, int]] = []
    restored = opened.restore(store, 0, manifest_keys(store)[0], TRUST_ALL, lambda *moved: told.append(moved))
    assert content(opened.folder) == {"step-1/model": b"1"}
    assert (restored.key, restored.step) == (manifest_keys(store)[0], 1)
    assert told and told[-1][0] == told[-1][1] > 0
    assert opened.aside == ["half-0", "half-1", "half-2"]
    aside = paths.code / ".checkpoints.replaced"
    where = f"in no checkpoint, moved from {opened.folder} to {aside}"
    assert opened.aside_text == f"half-0, half-1, half-2: {where}"
    assert content(aside) == {f"half-{number}": b"half" for number in range(3)}
    write(opened.folder / "late", "half")
    opened.clear(store)
    assert content(opened.folder) == {}, "what was restored is deleted, and the rest moved"
    assert opened.aside_text == f"half-0, half-1, half-2 and 1 more: {where}"


def test_only_files_that_are_checkpoints_are_moved_aside(paths: NodePaths, store: Store) -> None:
    opened = RestoreFolder.open(paths, spec("*.pt"), JOB)
    write(paths.code / "train.py", "code")
    write(paths.code / "half.pt", "half")
    opened.clear(store)
    assert opened.aside == ["half.pt"]
    assert content(paths.code) == {"train.py": b"code"}


def test_a_folder_of_the_nodes_own_is_remembered_beside_it(paths: NodePaths) -> None:
    opened = RestoreFolder.open(paths, spec(), JOB)
    assert opened.record.path == paths.root / "checkpoint-folder.json"
    assert json.loads(opened.record.path.read_text()) == {"before": {}, "folders_before": [], "restored": {}}
    assert RestoreFolder.open(paths, spec(), JOB).record == opened.record
    assert list(opened.folder.iterdir()) == [], "a folder of this node's own needs no lock"


def test_an_absolute_folder_is_held_for_one_job(paths: NodePaths, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    other = hold_folder(folder, "job-2")
    with pytest.raises(SetupFailed) as refused:
        RestoreFolder.open(paths, spec(str(folder)), JOB)
    assert refused.value.user
    assert f"checkpoints.dir: {folder} is used by job-2" in str(refused.value)
    os.close(other)
    opened = RestoreFolder.open(paths, spec(str(folder)), JOB)
    assert opened.record.path == folder / f"{OWN}{JOB}.json"
    with pytest.raises(SetupFailed):
        RestoreFolder.open(paths, spec(str(folder)), "job-2")


def test_in_a_container_the_folder_is_made_and_kept_by_its_handle(paths: NodePaths, store: Store) -> None:
    opened = RestoreFolder.open(paths, spec("out/saves"), JOB, confined(paths))
    assert opened.folder.is_dir()
    opened.folder.rename(paths.code / "moved")
    write(paths.code / "moved/half", "half")
    opened.restore(store, 0, manifest_keys(store)[0], TRUST_ALL, None)
    assert content(paths.code / "moved") == {"step-1/model": b"1", ".tmp-replaced/half": b"half"}
    assert opened.aside_text.endswith(f"moved from {opened.folder} to {opened.folder}/.tmp-replaced")


def test_in_a_container_a_link_in_the_place_of_the_folder_is_refused(paths: NodePaths, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (paths.code / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupFailed, match=r"checkpoints\.dir: checkpoints is not a folder, or is a link") as refused:
        RestoreFolder.open(paths, spec(), JOB, confined(paths))
    assert refused.value.user
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_lay_there_before_is_kept_for_the_next_agent_without_what_was_restored(
    paths: NodePaths, store: Store
) -> None:
    write(paths.code / "train.py", "code")
    opened = RestoreFolder.open(paths, spec(), JOB)
    write(opened.folder / "data", "of others")
    restored = opened.restore(store, 0, manifest_keys(store)[0], TRUST_ALL, None)
    baseline = take_baseline(paths, spec(), restored)
    assert str(paths.code / "train.py") in baseline.files
    assert str(opened.folder / "step-1/model") not in baseline.files
    assert Baseline.read(paths.baseline) == baseline
    assert str(opened.folder / "step-1/model") in take_baseline(paths, spec(), None).files


def test_a_folder_with_too_many_files_is_refused_with_advice(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write(paths.code / f"checkpoints/{number}", "mine")
    monkeypatch.setattr(folder_record, "MAX_RECORD_BYTES", 500)
    with pytest.raises(SetupFailed) as refused:
        RestoreFolder.open(paths, spec(), JOB)
    assert refused.value.user
    assert str(refused.value) == (
        f"checkpoints.dir: {paths.code}/checkpoints has 20 files and 0 folders, too many to tell them from "
        "checkpoints; name a folder for checkpoints alone"
    )
