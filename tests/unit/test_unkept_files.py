"""A save with a file that no checkpoint can hold: it is not committed as if it were whole, and the person hears why."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import JOB, World, checkpoints, memory_store, restored_content, write

from stoker.agent.checkpoints.folder_snapshot import MAX_DEPTH, LinkWarnings, placed, scan
from stoker.agent.checkpoints.save_copies import SaveCopies
from stoker.agent.checkpoints.unreadable_files import printable
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.store.checkpoint_manifests import PATH_DEPTH, safe_path

store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world

LATIN = os.fsdecode(b"latin1-\xe9")
NOT_UTF8 = "its name is not UTF-8; choose another one"
TOO_DEEP = "it lies deeper than 99 folders; save it higher up"
LONG = "/".join(["d" * 250] * 17)


def make(folder: Path, path: str) -> None:
    """Write a file step by step: its path may be longer than one call takes."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        *folders, name = path.split("/")
        for each in folders:
            Path(each).mkdir(exist_ok=True)
            os.chdir(each)
        Path(name).write_bytes(b"1")
    finally:
        os.chdir(here)


# In each of these a file is missing that the script wrote; with the unit that it holds back, and the reason.
UNKEPT = [
    (LATIN, "latin1-\\xe9", NOT_UTF8),
    (f"step-2/{LATIN}", "step-2/latin1-\\xe9", NOT_UTF8),
    (f"step-2/{LATIN}/model", "step-2/latin1-\\xe9/model", NOT_UTF8),
    (f"step-2/{LATIN}.log", "step-2/latin1-\\xe9.log", NOT_UTF8),
    ("step-2/" + "e/" * 99 + "model", "step-2/" + "e/" * 99, TOO_DEEP),
    ("step-2/" + "e/" * 250 + "model", "step-2/" + "e/" * 99, TOO_DEEP),
    (f"step-2/{LONG}/m", f"step-2/{LONG}/m", "its path is longer than 4000 bytes, or a name in it than 255;"),
]


@pytest.mark.parametrize(("path", "shown", "why"), UNKEPT, ids=range(len(UNKEPT)))
@pytest.mark.parametrize("at_end", [False, True])
def test_its_unit_is_held_back_and_the_person_hears_why(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, shown: str, why: str, at_end: bool
) -> None:
    write(world.folder / "step-1/model", "1")
    write(world.folder / "state", "1")
    world.settle()
    write(world.folder / "step-2/model", "2")
    if "/" not in path:
        write(world.folder / "state", "2")
    make(world.folder, path)
    if at_end:
        world.sync.final(60.0, TrainingEnd("finished"))
    else:
        world.settle()
    found = restored_content(world.store, tmp_path / "back")
    newer = {"step-2/model": b"2"} if "/" not in path else {}
    assert found == {"step-1/model": b"1", "state": b"1"} | newer
    told = world.sync.status().held_back
    assert told is not None and told.startswith(f"{printable(shown, 120)} is not part of the checkpoint: {why}")
    assert told in [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_path_as_deep_as_readers_accept_is_kept(world: World, tmp_path: Path) -> None:
    path = "e/" * MAX_DEPTH + "model"
    assert safe_path(path) and path.count("/") + 1 == PATH_DEPTH
    write(world.folder / path, "1")
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {path: b"1"}
    assert world.sync.status().held_back is None


def test_once_the_file_is_gone_the_save_is_committed(world: World, tmp_path: Path) -> None:
    make(world.folder, LATIN)
    write(world.folder / "model", "1")
    world.settle()
    assert not checkpoints(world.store)
    (world.folder / LATIN).unlink()
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"model": b"1"}
    assert world.sync.status().held_back is None


@pytest.mark.parametrize(("error", "why"), [(13, "the agent cannot read"), (24, "the agent cannot read it now")])
def test_files_that_cannot_be_listed_are_not_passed_over(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, why: str
) -> None:
    write(world.folder / "a", "1")
    write(world.folder / "step-1/model", "1")
    real = os.open

    def refuse(path: object, *rest: object, **more: object) -> int:
        if path == "step-1":
            raise OSError(error, os.strerror(error))
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("stoker.agent.checkpoints.folder_snapshot.os.open", refuse)
    found = scan(world.folder, closed_folders=True)
    assert found.keys() == {"a", "step-1/"}
    # A folder that could not be read before the training either is not the job's.
    taken = Baseline({f"{world.folder}/step-1/": (0, 0)})
    assert taken.has_file(world.folder, found["step-1/"]) and not taken.has_file(world.folder, found["a"])
    world.settle()
    # A folder is a unit of its own: the files beside it are committed.
    assert restored_content(world.store, tmp_path / "back") == {"a": b"1"}
    assert (world.sync.status().held_back or "").startswith(f"step-1/ is not part of the checkpoint: {why}")


def test_what_vanishes_meanwhile_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "step-1/model", "1")
    real = os.open

    def vanish(path: object, *rest: object, **more: object) -> int:
        if path == "step-1":
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("stoker.agent.checkpoints.folder_snapshot.os.open", vanish)
    assert scan(tmp_path, closed_folders=True) == {}


def test_pipes_and_sockets_hold_nothing_to_save(world: World, tmp_path: Path) -> None:
    write(world.folder / "model", "1")
    os.mkfifo(world.folder / "pipe")
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"model": b"1"}
    assert world.sync.status().held_back is None


def test_a_save_of_stoker_train_is_refused_and_the_one_before_it_counts(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.save("step-1", {"model": "1"}, step=1)
    world.tick(3)
    world.save("step-2", {"model": "2", LATIN: "2"}, step=2)
    world.save("step-3", {"model": "3", "e/" * MAX_DEPTH + "model": "3"}, step=3)
    world.tick(6)
    assert [one.place.name for one in checkpoints(world.store)] == ["step-1"]
    told = world.sync.status().held_back
    assert told is not None and told.startswith("the save step-")
    reasons = " ".join(record.getMessage() for record in caplog.records)
    assert f"the save step-2 is not committed: step-2/latin1-\\xe9: {NOT_UTF8}" in reasons and TOO_DEEP in reasons
    world.save("step-4", {"model": "4"}, step=4)
    world.tick(3)
    assert [one.place.name for one in checkpoints(world.store)] == ["step-1", "step-4"]
    assert world.sync.status().held_back is None


def test_the_name_of_the_save_counts_for_the_depth(tmp_path: Path) -> None:
    write(tmp_path / ("e/" * (MAX_DEPTH - 1) + "model"), "1")
    write(tmp_path / ("e/" * MAX_DEPTH + "model"), "1")
    found = placed("step-1", scan(tmp_path).values())
    assert sorted((file.path.count("/"), bool(file.problem)) for file in found) == [(MAX_DEPTH, False), (100, True)]


def test_no_copy_of_a_save_lacks_such_a_file(world: World) -> None:
    """A copied save is committed as a whole, too."""
    make(world.folder, LATIN)
    write(world.folder / "model", "1")
    view = world.sync._options.view
    copies = SaveCopies(view, world.scratch, logs=lambda: (), committed=dict, max_quiet_s=1.0)

    class NoEvents:
        def read(self) -> list[object]:
            return []

    assert copies._take(NoEvents())  # type: ignore[arg-type]
    assert copies._observed.candidate is None and copies._observed.files.keys() == {LATIN, "model"}


# ── Links ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_link_to_no_file_is_left_out_and_the_person_hears_it_once(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "checkpoints"
    write(folder / "model", "1")
    (tmp_path / "data").mkdir()
    (folder / "data").symlink_to(tmp_path / "data")
    (folder / "gone\n[stoker] done").symlink_to(tmp_path / "gone")
    leave_out = LinkWarnings(said.append)
    for _ in range(2):
        assert scan(folder, leave_out=leave_out).keys() == {"model"}
    (told,) = said
    assert "data is left out: a link out of the checkpoint folder, to " in told or "gone\\n[stoker] done is" in told
    assert "\n" not in told


# ── Outputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("path", "shown", "why"),
    [
        (LATIN, "latin1-\\xe9", NOT_UTF8),
        (f"{LATIN}/model", "latin1-\\xe9/model", NOT_UTF8),
        ("e/" * 99 + "model", "e/" * 99 + "model", ""),
        ("e/" * 100 + "model", "e/" * 99 + "e", "lies deeper than 99 folders"),
        (f"{LONG}/m", f"{LONG}/m", "its path is longer than 4000 bytes"),
        ("/".join(["d" * 250] * 4), "/".join(["d" * 250] * 4), "its name cannot be kept in the store"),
    ],
    ids=range(6),
)
def test_outputs_that_are_not_kept_are_listed(tmp_path: Path, path: str, shown: str, why: str, declared: bool) -> None:
    folder = tmp_path / "outputs"
    write(folder / "result", "1")
    make(folder, path)
    source = OutputSource(folder, takes_all=declared)
    sync = OutputSync(
        memory_store(), JOB, 1, 0, OutputFiles([source] if declared else [], None if declared else source)
    )
    assert sync.final(60.0)
    report = sync.report()
    assert report.files == (1 if why else 2)
    assert [(one.path, one.why[: len(why)]) for one in report.named] == ([(shown, why)] if why else [])


def test_a_last_save_that_cannot_be_kept_is_listed_among_the_outputs(world: World, tmp_path: Path) -> None:
    make(world.folder, LATIN)
    write(world.folder / "model", "1")
    world.sync.final(60.0, TrainingEnd("finished"))
    files = world.sync.uncommitted()
    assert files.keys() == {LATIN, "model"}
    outputs = OutputFiles([], OutputSource(tmp_path / "work"))
    sync = OutputSync(memory_store(), JOB, 1, 0, outputs)
    sync.keep_saves(world.folder, files)
    assert sync.final(60.0)
    assert [(one.path, one.why) for one in sync.report().named] == [("checkpoints/latin1-\\xe9", NOT_UTF8)]
    assert sync.report().files == 1


def test_names_are_shown_on_one_line_without_steering() -> None:
    assert printable("a\n[stoker] b") == "a\\n[stoker] b"
    assert printable(os.fsdecode(b"\x1b[31m\xe9 \xe2\x80\xae")) == "\\x1b[31m\\xe9 \\u202e"
    assert printable("größe 失") == "größe 失"
    assert printable("a" * 100 + "b" * 100, 20) == "a" * 10 + "…" + "b" * 10
