"""Tests of `FolderWatch`, look by look: what of a folder is committed, and when."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Literal

import pytest

from stoker.agent.checkpoints.commit_chooser import CommitChooser
from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.folder_snapshot import FolderView
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.format_check import FormatCheck
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.node_facts import BlobRef
from stoker.processes import OpenFile, WritableFiles

SETTLE_S, BUSY_S = 2.0, 30.0


class Folder:
    """A folder that is watched. Time passes between looks; files have the times that the test counts upwards."""

    def __init__(self, root: Path) -> None:
        self.root, self.now, self.written = root, 1000.0, 0
        self.open: dict[str, bool] = {}
        self.members = frozenset({1})
        self.broken: set[str] = set()
        self.states: dict[str, Literal["whole", "unknown"]] = {}
        view = FolderView(root, self.writing)
        self.watch = FolderWatch(
            view, settle_s=SETTLE_S, patience_s=BUSY_S, monotonic=lambda: self.now, check=self.check
        )
        self.chooser = CommitChooser(self.watch, settle_s=SETTLE_S, busy_s=BUSY_S, monotonic=lambda: self.now)

    def writing(self, _aliased: object) -> WritableFiles:
        files = {self.root / path: OpenFile(frozenset({1}), appending) for path, appending in self.open.items()}
        return WritableFiles(files | {Path("/elsewhere/x"): OpenFile(frozenset({1}), False)}, self.members)

    def check(self, _path: Path, name: str) -> FormatCheck:
        if name in self.broken:
            return FormatCheck("broken", "it is torn")
        return FormatCheck(self.states.get(name, "unknown"))

    def write(self, *paths: str, size: int = 10) -> None:
        for path in paths:
            self.written += 1
            target = self.root / path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(bytes([self.written % 256]) * size)
            os.utime(target, (1_000_000 + self.written, 1_000_000 + self.written))

    def look(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.watch.scan()

    def choose(self, after_s: float = 1.0) -> CommitContents | None:
        self.look(after_s)
        return self.chooser.choose()

    def commit(self) -> None:
        """As it is, once it has settled."""
        self.look()
        contents = self.choose(SETTLE_S)
        assert contents is not None
        self.take(contents)

    def take(self, contents: CommitContents) -> None:
        files = {
            path: BlobRef(path, f"{file.signature.modified_ns:064d}", file.size)
            for path, file in contents.files.items()
        }
        self.watch.note_commit(contents, contents.carried | files)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def chosen(contents: CommitContents | None) -> tuple[set[str], set[str], set[str]] | None:
    """The files, those of them that are copied, and what stays as it was committed."""
    return None if contents is None else (set(contents.files), set(contents.to_copy), set(contents.carried))


def test_a_folder_settles_when_nothing_was_written_for_a_while(folder: Folder) -> None:
    assert folder.choose() is None, "nothing is there"
    folder.write("a", "s/b")
    assert folder.choose() is None
    assert folder.choose(SETTLE_S - 0.1) is None
    assert chosen(folder.choose(0.1)) == ({"a", "s/b"}, set(), set())


def test_a_folder_does_not_settle_while_a_file_is_open(folder: Folder) -> None:
    folder.write("a")
    folder.open = {"a": False}
    folder.look()
    assert folder.choose(SETTLE_S) is None
    folder.open = {}
    assert chosen(folder.choose(0.5)) == ({"a"}, set(), set()), "its writer lives, and closed it"


@pytest.mark.parametrize("state", ["whole", "unknown"])
def test_a_file_whose_writer_ended_settles_only_if_its_format_shows_it_whole(
    folder: Folder, state: Literal["whole", "unknown"]
) -> None:
    folder.states["a"] = state
    folder.write("a")
    folder.open = {"a": False}
    folder.look()
    folder.open, folder.members = {}, frozenset()
    folder.look()
    assert folder.choose(SETTLE_S - 1.1) is None
    contents = folder.choose(SETTLE_S)
    assert chosen(contents) == (({"a"}, set(), set()) if state == "whole" else None)


def test_a_log_that_is_held_open_is_copied_and_is_no_reason_to_commit(folder: Folder) -> None:
    folder.write("a", "run.bin")
    folder.open = {"run.bin": True}
    folder.look()
    contents = folder.choose(SETTLE_S)
    assert contents is not None and contents.logs == {"run.bin"}
    assert chosen(contents) == ({"a", "run.bin"}, {"run.bin"}, set())
    folder.take(contents)
    folder.write("run.bin", size=20)
    folder.look()
    assert set(folder.watch.dirty.files) == {"run.bin"}
    assert folder.choose(SETTLE_S) is None


def test_a_file_that_was_removed_is_no_reason_to_commit(folder: Folder) -> None:
    folder.write("a", "b")
    folder.commit()
    (folder.root / "b").unlink()
    folder.look()
    assert folder.choose(SETTLE_S) is None


def test_a_folder_of_which_a_file_was_removed_settles_as_late_as_after_a_write(folder: Folder) -> None:
    folder.write("a", "c")
    folder.look()
    (folder.root / "c").unlink()
    assert folder.choose(SETTLE_S - 0.5) is None
    assert folder.choose(SETTLE_S - 0.1) is None, "the rest of it may be removed as well"
    assert chosen(folder.choose(0.1)) == ({"a"}, set(), set())


def test_a_unit_with_a_broken_file_stays_as_it_was(folder: Folder) -> None:
    folder.write("s/a", "s/b", "t/a")
    folder.commit()
    folder.write("s/a", "s/b", "t/a")
    folder.broken = {"a"}
    folder.look()
    assert folder.choose(SETTLE_S) is None, "nothing that is new is whole"
    assert (folder.chooser.held_back or "")[3:] == " (and 1 more) is not part of the checkpoint: it is torn"
    folder.write("new")
    folder.look()
    contents = folder.choose(SETTLE_S)
    assert chosen(contents) == ({"new"}, set(), {"s/a", "s/b", "t/a"})
    assert contents is not None and [each.unit for each in contents.left_out] == ["s", "t"]
    folder.take(contents)
    assert set(folder.watch.dirty.files) == {"s/a", "s/b", "t/a"}
    folder.broken = set()
    folder.write("s/a", "s/b", "t/a", "new")
    folder.commit()
    assert folder.chooser.held_back is None
    assert folder.watch.dirty.files == {}


def test_what_is_uncommitted_is_counted(folder: Folder) -> None:
    folder.write("a", size=7)
    folder.look()
    assert (set(folder.watch.dirty.files), folder.watch.dirty.size_bytes) == ({"a"}, 7)
    folder.commit()
    assert (folder.watch.dirty.files, folder.watch.dirty.size_bytes) == ({}, 0)
    folder.write("b", size=5)
    folder.look()
    assert (set(folder.watch.dirty.files), folder.watch.dirty.size_bytes) == ({"b"}, 5)


def test_files_of_other_ranks_are_left_alone_as_long_as_they_look_the_same(folder: Folder) -> None:
    folder.write("mine", "theirs")
    folder.look()
    folder.watch.set_restored({}, {}, other_ranks={"theirs": folder.watch.files["theirs"].signature})
    assert set(folder.watch.files) == set(folder.watch.dirty.files) == {"mine"}
    folder.look()
    assert set(folder.watch.files) == {"mine"}
    folder.write("theirs")
    folder.look()
    assert set(folder.watch.files) == {"mine", "theirs"}


# ── A folder that never settles ───────────────────────────────────────────────────────────────────────────────────────


def busy(folder: Folder, *paths: str, until_s: float) -> CommitContents | None:
    """These files grow once a second, for so long; what is chosen in the last look."""
    contents = None
    for _ in range(int(until_s) + 1):
        folder.write(*paths, size=folder.written + 11)
        contents = folder.choose()
    return contents


def test_a_folder_that_has_been_changing_for_long_is_committed_from_copies_in_a_calm_moment(folder: Folder) -> None:
    folder.write("still/a")
    folder.commit()
    assert busy(folder, "s/a", "s/b", until_s=BUSY_S) is None, "it is written this moment"
    assert folder.choose(0.2) is None
    assert chosen(folder.choose(0.05)) == ({"still/a", "s/a", "s/b"}, {"s/a", "s/b"}, set())


def test_before_that_it_is_waited_for(folder: Folder) -> None:
    busy(folder, "a", until_s=BUSY_S - 2)
    assert folder.choose(0.25) is None


def test_if_no_calm_moment_comes_for_as_long_again_what_is_closed_is_copied(folder: Folder) -> None:
    assert busy(folder, "a", until_s=2 * BUSY_S - 1) is None
    folder.write("a", size=10_000)
    assert chosen(folder.choose()) == ({"a"}, {"a"}, set())


@pytest.mark.parametrize("late", [False, True])
def test_what_is_open_is_left_out_with_all_of_its_unit(folder: Folder, late: bool) -> None:
    folder.write("s/a", "s/b")
    folder.commit()
    folder.write("early")
    folder.look()
    folder.open = {"s/a": False}
    folder.write("s/a")
    busy(folder, "t/x", *(["late"] if late else []), until_s=BUSY_S)
    # What is beside the folders was written after a save began that is not whole: it may refer to it.
    taken = {"t/x"} if late else {"t/x", "early"}
    assert chosen(folder.choose(0.5)) == (taken, {"t/x"}, {"s/a", "s/b"})


def test_a_save_that_is_not_whole_began_with_its_first_file(folder: Folder) -> None:
    folder.write("s/a", "beside", "s/b")
    folder.open = {"s/a": False}
    busy(folder, "t/x", until_s=BUSY_S)
    assert chosen(folder.choose(0.5)) == ({"t/x"}, {"t/x"}, set())


def test_a_file_that_was_removed_a_moment_ago_is_no_calm(folder: Folder) -> None:
    folder.write("old/a", "old/b")
    folder.commit()
    busy(folder, "new/a", until_s=BUSY_S)
    (folder.root / "old" / "b").unlink()
    folder.look(0.1)
    assert folder.choose(0.2) is None
    contents = folder.choose(0.1)
    assert chosen(contents) == ({"new/a"}, {"new/a"}, {"old/a", "old/b"}), "the rest of it may be removed as well"


def test_a_save_of_a_known_shape_is_copied_in_the_first_calm_moment(folder: Folder) -> None:
    folder.write("a")
    folder.commit()
    folder.write("a")
    assert folder.choose(0.5) is None
    folder.write("a")
    assert folder.choose(1.0) is None
    assert folder.choose(0.5) is None
    assert chosen(folder.choose(0.5)) == ({"a"}, {"a"}, set())


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DIED, FINISHED = TrainingEnd("died"), TrainingEnd("finished")


def test_at_the_end_all_is_taken_that_is_new_unless_it_may_be_torn(folder: Folder) -> None:
    folder.write("s/a")
    folder.look()
    assert chosen(folder.chooser.choose_final(FINISHED)) == ({"s/a"}, set(), set())
    contents = folder.chooser.choose_final(DIED)
    assert contents is None
    assert (
        folder.chooser.held_back == "s/a is not part of the checkpoint: it was written just before the training ended"
    )
    contents = folder.chooser.choose_final(DIED, even_if_unchanged=True)
    assert contents is not None and [each.unit for each in contents.left_out] == ["s"]
    assert chosen(contents) == (set(), set(), set())


def test_at_the_end_nothing_is_taken_where_nothing_is_new_unless_it_is_wanted(folder: Folder) -> None:
    folder.write("a")
    folder.commit()
    assert folder.chooser.choose_final(FINISHED) is None
    contents = folder.chooser.choose_final(FINISHED, even_if_unchanged=True)
    assert contents is not None and chosen(contents) == ({"a"}, set(), set())
    assert folder.chooser.saved_at(contents) == folder.now, "no save has begun since: nothing is lost"


def test_what_was_written_before_an_agent_was_started_again_is_quiet(folder: Folder) -> None:
    folder.write("s/a", "t/a")
    folder.look()
    folder.watch.mark_quiet(folder.watch.files["t/a"].signature.modified_ns)
    assert chosen(folder.chooser.choose_final(DIED)) == ({"s/a"}, set(), set())


def test_the_mark_is_of_the_folder_as_it_is_then(folder: Folder) -> None:
    folder.write("a")
    folder.look()
    folder.write("b")
    folder.open = {"b": False}
    folder.now += 1.0
    folder.watch.record_pre_signal()
    mark = folder.watch.history.pre_signal
    assert mark is not None
    assert (set(mark.files), mark.open, mark.at) == ({"a", "b"}, {"b"}, folder.now)


def test_only_files_of_the_folder_are_seen_open(folder: Folder) -> None:
    folder.open = {"a": False, "s/b": True}
    found = folder.watch.view.open_files()
    assert (set(found.files), found.members) == ({"a", "s/b"}, frozenset({1}))
    assert found.files["s/b"].appending
    folder.watch.poll_open_files(0.5)
    assert set(folder.watch.history.open) == {"a", "s/b"}


def test_a_folder_that_is_gone_has_no_files(folder: Folder) -> None:
    folder.write("a")
    folder.look()
    shutil.rmtree(folder.root)
    folder.look()
    assert folder.watch.files == {}
    assert folder.chooser.choose() is None


def test_after_a_crash_what_cannot_be_read_may_have_lost_bytes(folder: Folder) -> None:
    folder.write("kept", "replaced", "gone", "changed")
    folder.look()
    digests = {path: hashlib.sha256((folder.root / path).read_bytes()).hexdigest() for path in folder.watch.files}
    digests["changed"] = "0" * 64
    folder.watch.last_commit.blobs = {path: BlobRef(path, digest, 10) for path, digest in digests.items()}
    folder.write("replaced")
    (folder.root / "gone").unlink()
    folder.watch.mark_quiet_and_written(0)
    assert folder.watch.history.maybe_lost == {"replaced", "gone", "changed"}
