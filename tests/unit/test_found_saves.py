"""Files of a script that saves elsewhere are found, and it is told so."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.health import missing_saves
from stoker.agent.health.missing_saves import MissingSaves, find_saves
from stoker.agent.output_files import Baseline
from stoker.model.node_facts import CheckpointRef
from stoker.model.path_patterns import PathFilter


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for path in (
        "out/ckpt.pt",
        "out/deep/er/model.safetensors",
        "checkpoints/own.pt",
        "train.py",
        ".git/x.pt",
        "venv/y.pt",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    (tmp_path / "run/checkpoint-500").mkdir(parents=True)
    (tmp_path / "run/checkpoint-500/weights").write_text("x")
    (tmp_path / "old.pt").write_text("shipped with the code")
    os.utime(tmp_path / "old.pt", (1.0, 1.0))
    return tmp_path


def test_recent_files_that_look_like_saves_are_found(code: Path) -> None:
    found = find_saves(code, code / "checkpoints", since=1000.0)
    assert set(found) == {"out/ckpt.pt", "out/deep/er/model.safetensors", "run/checkpoint-500/"}
    assert find_saves(code / "nowhere", code, since=0.0) == ()


def test_files_that_came_with_the_code_are_no_saves(code: Path) -> None:
    """They are laid when the attempt starts, so their times tell nothing: nanoGPT has its dataset in `*.bin`."""
    (code / "data").mkdir()
    (code / "data/train.bin").write_text("dataset")
    (code / "run/checkpoint-0").mkdir()
    (code / "run/checkpoint-0/pretrained").write_text("x")
    baseline = Baseline.take([code])
    assert find_saves(code, code / "checkpoints", 1000.0, baseline) == ()
    (code / "out/ckpt.pt").write_text("a save of this attempt")
    (code / "run/checkpoint-10").mkdir()
    found = find_saves(code, code / "checkpoints", 1000.0, baseline)
    assert set(found) == {"out/ckpt.pt", "run/checkpoint-10/"}


def test_files_that_the_pattern_of_the_checkpoints_takes_are_not_elsewhere(code: Path) -> None:
    (code / "snapshot.pt").write_text("x")
    selection = Selection(takes=PathFilter(("*.pt",)).takes)
    assert "snapshot.pt" not in find_saves(code, code, 1000.0, selection=selection)


def test_the_search_is_bounded(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (code / "out" / f"{number}.pt").write_text("x")
    assert len(find_saves(code, code / "checkpoints", since=1000.0)) == 5
    monkeypatch.setattr(missing_saves, "_MOST_NAMES", 1)
    assert find_saves(code, code / "checkpoints", since=1000.0) == ()
    monkeypatch.setattr(missing_saves, "_MOST_NAMES", 1000)
    monkeypatch.setattr(missing_saves, "_LOOK_S", -1.0)
    assert find_saves(code, code / "checkpoints", since=1000.0) == ()


def watch(code: Path) -> tuple[MissingSaves, list[str]]:
    said: list[str] = []
    found = MissingSaves(code, code / "checkpoints", "checkpoints", said.append)
    found._since = 1000.0
    return found, said


def test_the_agent_says_it_once_and_keeps_it_in_its_warnings(code: Path) -> None:
    missing, said = watch(code)
    missing.check(SyncStatus(), 10.0)
    missing.settle()
    assert missing.elsewhere == ()
    missing.check(SyncStatus(), 20.0)
    missing.settle()
    assert missing.elsewhere and not said and missing.warning is None, "a machine that is lost has told its files"
    for trained_s in (301.0, 350.0, 700.0):
        missing.check(SyncStatus(), trained_s)
        missing.settle()
    assert (
        len(said) == 1 and said[0].startswith("warning: nothing has been saved in 5 min") and "out/ckpt.pt" in said[0]
    )
    assert missing.warning is not None and "11 min" in missing.warning
    missing.conclude(701.0)
    assert [missing.warning, bool(missing.elsewhere)] == [None, True], "it trains no longer"
    missing.check(SyncStatus(last=CheckpointRef("k", "n")), 800.0)
    assert missing.elsewhere == ()


def test_what_was_saved_elsewhere_is_found_at_the_end(code: Path) -> None:
    missing, said = watch(code)
    missing.conclude(0.5)
    assert missing.elsewhere and not said and missing.warning is None


def test_a_notice_is_a_reason_to_say_it_at_once(code: Path) -> None:
    missing, said = watch(code)
    missing.check(SyncStatus(), 5.0, noticed=True)
    missing.settle()
    assert len(said) == 1 and missing.elsewhere
    quiet, heard = watch(code)
    quiet.check(SyncStatus(), 5.0, leaving=True)
    quiet.settle()
    assert quiet.elsewhere and not heard, "what was saved is said when the training is over"
    full, heard = watch(code)
    full.check(SyncStatus(files=1), 900.0, noticed=True)
    full.settle()
    assert not heard and full.warning is None


def test_a_search_is_repeated_once_a_minute_while_there_is_no_checkpoint(code: Path) -> None:
    missing, _ = watch(code)
    missing.check(SyncStatus(), 14.9)
    missing.settle()
    assert missing.elsewhere == ()
    missing.check(SyncStatus(), 15.0)
    missing.settle()
    assert missing.elsewhere
    missing.elsewhere = ()
    missing.check(SyncStatus(), 74.9)
    missing.settle()
    assert missing.elsewhere == ()
    missing.check(SyncStatus(), 75.0)
    missing.settle()
    assert missing.elsewhere


def test_a_file_of_the_checkpoint_folder_takes_the_warning_back(code: Path) -> None:
    missing, said = watch(code)
    missing.check(SyncStatus(), 400.0)
    missing.settle()
    assert missing.warning is not None and missing.elsewhere and len(said) == 1
    missing.check(SyncStatus(files=1), 401.0)
    assert missing.warning is None and missing.elsewhere == ()
    missing.check(SyncStatus(), 402.0, noticed=True)
    missing.settle()
    assert len(said) == 1 and missing.warning is None, "it was said before, and the next look is not due"


def test_a_search_that_is_under_way_is_not_begun_again(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searching, release, count = threading.Event(), threading.Event(), [0]

    def find(*_: object) -> tuple[str, ...]:
        count[0] += 1
        searching.set()
        release.wait(60.0)
        return ()

    monkeypatch.setattr(missing_saves, "find_saves", find)
    missing, _ = watch(code)
    missing.check(SyncStatus(), 20.0)
    assert searching.wait(60.0)
    missing.check(SyncStatus(), 500.0)
    missing.settle(0.01)
    assert count == [1]
    release.set()
    missing.settle(60.0)
    missing.check(SyncStatus(), 500.0)
    missing.settle(60.0)
    assert count == [2]


SAVES = (
    *("pytorch_model.bin", "last.ckpt", "weights.h5", "weights.hdf5", "model.keras", "flax_model.msgpack", "step.npz"),
    *("state.orbax", "model.pdparams", "A.PT", "model.pth", "model.safetensors"),
    *("checkpoint-500/", "checkpoint_3/", "ckpt-1/", "ckpt_2/", "global_step100/", "Checkpoint-1/"),
)


@pytest.mark.parametrize("name", SAVES)
def test_saves_of_common_libraries_are_known_by_their_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir()
    (path.mkdir if name.endswith("/") else path.touch)()
    assert find_saves(tmp_path, tmp_path / "checkpoints", since=1000.0) == (f"out/{name}",)


@pytest.mark.parametrize(
    "folder",
    ["__pycache__", "node_modules", "site-packages", "venv", "env", "wandb", "mlruns", ".cache", "checkpoints"],
)
def test_folders_of_others_and_the_checkpoint_folder_are_not_searched(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "model.pt").touch()
    (tmp_path / "model.txt").touch()
    assert find_saves(tmp_path, tmp_path / "checkpoints", since=1000.0) == ()


def test_a_search_goes_six_folders_deep_and_follows_no_link(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in ("a/b/c/d/e/f/in.pt", "a/b/c/d/e/f/g/out.pt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.pt").touch()
    (code / "linked").symlink_to(tmp_path / "elsewhere")
    (code / "linked.pt").symlink_to(tmp_path / "elsewhere" / "x.pt")
    assert find_saves(code, code / "checkpoints", since=1000.0) == ("a/b/c/d/e/f/in.pt",)


def test_the_newest_saves_are_told_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new.pt", "checkpoint-9/", "old.pt")):
        path = tmp_path / name
        (path.mkdir if name.endswith("/") else path.touch)()
        os.utime(path, (10_000.0 - age, 10_000.0 - age))
    assert find_saves(tmp_path, tmp_path / "c", since=1000.0) == ("new.pt", "checkpoint-9/", "old.pt")
    assert find_saves(tmp_path, tmp_path / "c", since=9_999.0) == ("new.pt", "checkpoint-9/")


def test_files_beside_those_that_the_pattern_takes_are_elsewhere(tmp_path: Path) -> None:
    for name in ("taken.ckpt", "other.pt", "sub/taken.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    selection = Selection(takes=PathFilter(("*.ckpt",)).takes)
    found = find_saves(tmp_path, tmp_path, 1000.0, selection=selection)
    assert "other.pt" in found and "taken.ckpt" not in found


def test_a_file_that_came_with_the_code_and_was_changed_is_a_save(tmp_path: Path) -> None:
    (tmp_path / "same.pt").write_text("x")
    (tmp_path / "changed.pt").write_text("x")
    baseline = Baseline.take([tmp_path])
    (tmp_path / "changed.pt").write_text("longer")
    assert find_saves(tmp_path, tmp_path / "c", 1000.0, baseline) == ("changed.pt",)
