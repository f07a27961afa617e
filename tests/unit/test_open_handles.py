"""Whatever looks at a checkpoint folder closes what it opened: an agent lives for weeks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_world import write

from stoker.agent.checkpoints.commit_queue import CommitQueue
from stoker.agent.checkpoints.folder_events import FolderEvents
from stoker.agent.checkpoints.folder_replacement import FolderInUse, hold_folder
from stoker.agent.checkpoints.folder_snapshot import Selection, copy_stable, pinned_path, scan
from stoker.agent.checkpoints.save_protocol import Lock, Save
from stoker.agent.confinement import Confinement
from stoker.store.base import FileChanged


def open_below(folder: Path) -> list[str]:
    """Files and folders below `folder` that this process has open."""
    return sorted(path for path in _opened() if path.startswith(os.fspath(folder)))


def _opened() -> Iterator[str]:
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            yield os.fspath(handle.readlink())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "checkpoints/step-1/sub/model.pt", "weights")
    write(tmp_path / "checkpoints/model.pt", "weights")
    return tmp_path / "checkpoints"


def confined(*anchors: Path) -> Confinement:
    return Confinement(anchors, lambda _text: None)


@pytest.mark.parametrize("in_container", [False, True])
def test_a_scan_closes_every_folder(folder: Path, in_container: bool) -> None:
    found = scan(folder, confinement=confined(folder) if in_container else None)
    assert sorted(found) == ["model.pt", "step-1/sub/model.pt"]
    assert open_below(folder) == []


def test_a_file_is_held_no_longer_than_it_is_needed(folder: Path, tmp_path: Path) -> None:
    file = scan(folder)["model.pt"]
    with pinned_path(folder / "model.pt", file) as held:
        assert held.read_text() == "weights"
        assert open_below(folder) == [str(folder / "model.pt")]
    assert copy_stable(folder / "model.pt", file, tmp_path / "copy")
    write(folder / "model.pt", "other weights")
    with pytest.raises(FileChanged), pinned_path(folder / "model.pt", file):
        pass
    assert open_below(folder) == []


@pytest.mark.parametrize("in_container", [False, True])
def test_a_queue_closes_the_folder_of_its_saves(tmp_path: Path, in_container: bool) -> None:
    folder, channel = tmp_path / "checkpoints", tmp_path / "channel"
    folder.mkdir()
    channel.mkdir()
    queue = CommitQueue(channel, folder, Selection(confinement=confined(folder) if in_container else None))
    for number in range(2):
        with Save(f"step-{number}", folder, channel, step=None, sharded=False, writers=1) as staging:
            write(staging / "model.pt", "weights")
    for request in queue.waiting():
        assert queue.in_folder(request)
        queue.answer(request, key="somewhere")
    queue.remove_old_saves(1)
    assert [path.name for path in folder.iterdir()] == ["step-1"]
    assert open_below(tmp_path) == []


def test_a_lock_is_closed_whether_it_was_had_or_not(tmp_path: Path) -> None:
    with Lock(tmp_path, None):
        with pytest.raises(TimeoutError), Lock(tmp_path, None, 0.0):
            pass
        assert open_below(tmp_path) == [str(tmp_path / ".stoker-lock")]
    assert open_below(tmp_path) == []


def test_a_folder_that_another_job_uses_is_not_held(tmp_path: Path) -> None:
    held = hold_folder(tmp_path, "job-a")
    try:
        with pytest.raises(FolderInUse) as refused:
            hold_folder(tmp_path, "job-b")
        assert refused.value.job == "job-a"
        assert len(open_below(tmp_path)) == 1
        os.close(hold_folder(tmp_path, "job-a"))
    finally:
        os.close(held)
    # The next job may have it, and its name is told from then on, though it is shorter.
    held = hold_folder(tmp_path, "b")
    with pytest.raises(FolderInUse) as refused:
        hold_folder(tmp_path, "job-a")
    os.close(held)
    assert refused.value.job == "b"
    assert open_below(tmp_path) == []


def test_a_watch_on_a_folder_is_closed_whether_it_was_had_or_not(folder: Path) -> None:
    def watches() -> int:
        return sum(path in ("anon_inode:inotify", "anon_inode:[eventfd]") for path in _opened())

    before = watches()
    events = FolderEvents(folder)
    assert watches() == before + 2
    events.close()
    with pytest.raises(OSError):
        FolderEvents(folder / "model.pt")
    assert watches() == before
