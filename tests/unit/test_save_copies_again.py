"""Copies of saves where a burst of writes goes on, or the folder cannot be watched now."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest
from checkpoint_world import World, memory_store
from test_save_copies import NEVER_S, Copying, copies_of, until

from stoker.agent.checkpoints import save_copies
from stoker.agent.checkpoints.folder_events import FolderEvent, FolderEvents
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.processes import OpenFile, WritableFiles
from stoker.store.base import FileChanged


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(tmp_path)


class Heard:
    """Events of a folder that the test makes up."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def read(self) -> list[FolderEvent]:
        return [FolderEvent(path) for path in self._paths]


@pytest.mark.parametrize("error", [FileChanged("model"), OSError(errno.EIO, "Input/output error")])
def test_a_burst_goes_on_while_its_files_cannot_be_copied(
    copying: Copying, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    copying.write("model")
    with monkeypatch.context() as failed:
        failed.setattr(copying.copies, "_copy_changed", failing)
        assert copying.copies._take(Heard()) is False  # type: ignore[arg-type]
    assert copying.copies.bursts == 0
    assert copying.copies._take(Heard()) is True  # type: ignore[arg-type]
    assert copying.copies.bursts == 1


@pytest.mark.parametrize("changes", ["written", "opened", "died"])
def test_a_burst_goes_on_where_something_happened_while_it_was_copied(copying: Copying, changes: str) -> None:
    members, opened = frozenset({1, 2}), {copying.folder / "model": OpenFile(frozenset({1}), False)}
    looks = [WritableFiles({}, members)]
    looks.append(
        WritableFiles(opened if changes == "opened" else {}, members - {2} if changes == "died" else members | {3})
    )
    copying.copies._view.writing = lambda _: looks.pop(0)
    copying.write("model")
    assert copying.copies._take(Heard(*(["model"] if changes == "written" else []))) is False  # type: ignore[arg-type]
    assert copying.copies.bursts == 0
    looks[:] = [WritableFiles({}, members), WritableFiles({}, members | {3})]
    assert copying.copies._take(Heard()) is True  # type: ignore[arg-type]
    assert copying.copies.bursts == 1


def whole(size: int) -> bytes:
    """A JSON document of this size, which is whole by its format."""
    return b"[" + b" " * (size - 2) + b"]"


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(("size", "smaller", "before"), [(1000, whole(400), 0), (1000, whole(400)[:-1], 1000)])
def test_a_file_that_is_whole_by_its_format_may_shrink(
    copying: Copying, copied: bool, size: int, smaller: bytes, before: int
) -> None:
    path = copying.folder / "state.json"
    for content in (whole(size), smaller):
        path.write_bytes(content)
        files = scan(copying.folder)
        copies = copying.copies._copy_changed(files) if copied else None
        if copied:
            path.write_bytes(b"{")  # The copy counts, whatever happens to the file.
        copying.copies._close(files, copies, frozenset())
    last = copying.copies._observed.bursts.last
    assert last is not None
    assert last.before == {"state.json": before}


def is_watching() -> bool:
    return any(thread.name == "save-copies" for thread in threading.enumerate())


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("a bug")])
def test_a_folder_that_cannot_be_watched_now_is_watched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    made: list[Path] = []

    def failing(folder: Path) -> FolderEvents:
        made.append(folder)
        if len(made) == 1:
            raise error
        return FolderEvents(folder)

    monkeypatch.setattr(save_copies, "FolderEvents", failing)
    monkeypatch.setattr(save_copies, "_WATCH_AGAIN_S", 0.01)
    world = World(tmp_path, memory_store(), monotonic=time.monotonic, settle_s=NEVER_S, busy_s=NEVER_S)
    world.sync = world.make()
    world.sync.start()
    until(lambda: copies_of(world).calm_s(0.0) is not None or not is_watching())
    assert is_watching() and len(made) == 2
    world.sync.close()
