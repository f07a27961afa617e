"""What of a folder is committed: without its newest save, or a save from its copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checkpoint_world import write

from stoker.agent.checkpoints.commit_contents import CommitContents, before_newest, from_copies
from stoker.agent.checkpoints.file_copies import FileCopy, SaveCopy
from stoker.agent.checkpoints.file_numbers import hide_generations, newest_counts, newest_of_each_kind, number_of
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, scan
from stoker.model.node_facts import BlobRef


def file(path: str, at: int) -> File:
    return File(path, Signature(1, 7, 10, at, at), 0o100644)


def files(**times: int) -> Files:
    """`files(step_1__model=5)`: written at 5."""
    named = {name.replace("__", "/").replace("_", "-"): at for name, at in times.items()}
    return {path: file(path, at) for path, at in named.items()}


def blobs(*paths: str) -> dict[str, BlobRef]:
    return {path: BlobRef(path, "d" * 64, 10) for path in paths}


def without_newest(found: Files, *committed: str, streams: tuple[str, ...] = ()) -> list[str] | None:
    contents = CommitContents(found, frozenset(), {}, frozenset(streams))
    news = {path: one for path, one in found.items() if path not in committed}
    earlier = before_newest(contents, news, blobs(*committed))
    return None if earlier is None else sorted(earlier.files)


def test_the_newest_of_several_numbered_saves_is_left_out() -> None:
    found = files(step_1__m=1, step_9__m=5, step_9__o=6, step_10__m=8, step_10__o=9)
    assert without_newest(found, "step-1/m") == ["step-1/m", "step-9/m", "step-9/o"]


def test_one_new_save_is_not_left_out() -> None:
    assert without_newest(files(step_1__m=1, step_2__m=5), "step-1/m") is None


def test_saves_are_told_apart_only_where_one_of_their_kind_was_committed() -> None:
    assert without_newest(files(step_2__m=5, step_3__m=8)) is None
    assert without_newest(files(epoch_1__m=1, step_2__m=5, step_3__m=8), "epoch-1/m") is None
    assert without_newest(files(m=1, step_2__m=5, step_3__m=8), "m") is None


def test_saves_of_two_kinds_are_not_told_apart() -> None:
    found = files(step_1__m=1, epoch_1__m=1, step_2__m=5, epoch_2__m=8)
    assert without_newest(found, "step-1/m", "epoch-1/m") is None
    assert without_newest(files(step_1__m=1, step_2__m=5, latest=6), "step-1/m") is None


def test_what_was_touched_since_the_newest_save_began_is_of_unknown_age() -> None:
    found = files(step_1__m=1, step_2__m=8, step_3__m=8, step_3__o=9)
    assert without_newest(found, "step-1/m") is None
    found = files(step_1__m=1, step_2__m=7, step_3__m=8, step_3__o=9)
    assert without_newest(found, "step-1/m") == ["step-1/m", "step-2/m"]


def test_a_log_may_be_written_at_any_time() -> None:
    found = files(step_1__m=1, step_2__m=5, step_3__m=8, log=9)
    assert without_newest(found, "step-1/m", streams=("log",)) == ["log", "step-1/m", "step-2/m"]


def test_a_save_that_is_written_again_is_no_new_one() -> None:
    found = files(step_1__m=1, step_2__m=5, step_3__m=8)
    news = {path: one for path, one in found.items() if path != "step-1/m"}
    last = blobs("step-1/m", "step-2/m")
    assert before_newest(CommitContents(found, frozenset(), {}, frozenset()), news, last) is None


# ── From copies ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Copied:
    """A folder with two files that were copied, and one that was not."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "folder"
        for name in ("a.json", "b.json", "old.bin"):
            write(self.folder / name, "[1]")
        self.files = scan(self.folder)
        self.kept = {}
        for name in ("a.json", "b.json"):
            write(root / "copies" / name, "[1]")
            self.kept[name] = FileCopy(root / "copies" / name, 5)

    def choose(
        self, committed: dict[str, Signature] | None = None, last: dict[str, BlobRef] | None = None, *logs: str
    ) -> CommitContents | None:
        save = SaveCopy(self.files, self.kept, 77.0, 70.0)
        grown = {path: one for path, one in scan(self.folder).items() if path in logs}
        return from_copies(save, self.folder, committed or {}, last or {}, grown)

    def signatures(self, *paths: str) -> dict[str, Signature]:
        return {path: self.files[path].signature for path in paths}


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def test_a_save_is_taken_from_its_copies_and_the_rest_from_the_folder(copied: Copied) -> None:
    contents = copied.choose()
    assert contents is not None
    assert (contents.files, contents.copies, contents.carried) == (copied.files, copied.kept, {})
    assert (contents.to_copy, contents.logs, contents.as_of) == (frozenset(), frozenset(), 77.0)


def test_what_is_in_the_last_commit_is_taken_from_there(copied: Copied) -> None:
    same = copied.signatures("a.json", "old.bin")
    contents = copied.choose(same, blobs("a.json"))
    assert contents is not None
    assert contents.carried == blobs("a.json")
    assert sorted(contents.files) == ["b.json", "old.bin"]
    assert list(contents.copies) == ["b.json"]


def test_a_save_that_is_new_in_nothing_is_not_committed_again(copied: Copied) -> None:
    assert copied.choose(copied.signatures("a.json", "b.json"), blobs("a.json", "b.json")) is None


def test_a_log_is_taken_as_it_is_now(copied: Copied) -> None:
    write(copied.folder / "a.json", "[1, 2]")
    committed = copied.signatures("a.json")
    contents = copied.choose(committed, blobs("a.json"), "a.json")
    assert contents is not None
    assert contents.carried == {}
    assert contents.files["a.json"].size == 6
    assert (contents.to_copy, contents.logs) == (frozenset({"a.json"}), frozenset({"a.json"}))
    assert list(contents.copies) == ["b.json"]


def test_a_save_of_which_something_is_not_whole_any_more_is_not_taken(copied: Copied) -> None:
    write(copied.folder / "old.bin", "changed")
    assert copied.choose() is None


def test_a_copy_that_its_format_calls_broken_is_not_taken(copied: Copied) -> None:
    write(copied.kept["a.json"].path, "[1")
    assert copied.choose() is None


def test_a_file_that_is_held_open_counts_as_long_as_it_is_what_it_was(tmp_path: Path, copied: Copied) -> None:
    held = tmp_path / "copies/held.json"
    write(held, "[1]")
    status = held.stat()
    kept = FileCopy(held, 5, Signature.of(status))
    (tmp_path / "link").hardlink_to(held)
    assert kept.is_intact(), "another name changes its status alone"
    copied.kept["a.json"] = kept
    assert copied.choose() is not None
    os.utime(held, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert kept.is_intact() is False
    assert copied.choose() is None
    held.unlink()
    assert kept.is_intact() is False


# ── Numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("epoch-3.pt", "epoch-#.pt"),
        ("ckpt_2.pt", "ckpt_2.pt"),
        ("ckpt_4.pt", "ckpt_4.pt"),
        ("ckpt_5.pt", "ckpt_#.pt"),
        ("step=12-loss=0.25.ckpt", "step=#-loss=#.ckpt"),
        ("model-0.25.pt", "model-0.25.pt"),
    ],
)
def test_numbers_that_count_saves_for_certain_are_hidden(path: str, hidden: str) -> None:
    assert hide_generations(path, 4) == hidden


def test_parts_are_counted_whatever_their_order() -> None:
    assert newest_counts(["rank0.pt", "rank1.pt", "x"]) == {"rank#.pt": 2, "x": 1}
    assert newest_counts(["epoch-2-a0", "epoch-2-a1", "epoch-1-a0"]) == {"epoch-#-a#": 2}


def test_of_numbered_folders_the_newest_is_what_the_next_save_is_like() -> None:
    found = newest_of_each_kind(blobs("step-9/a", "step-10/a", "step-10/b", "best/a", "top"))
    assert sorted(found) == ["best/a", "step-10/a", "step-10/b", "top"]
    assert sorted(newest_of_each_kind(blobs("step-0/a"))) == ["step-0/a"]


def test_a_folder_has_a_number_if_it_has_exactly_one() -> None:
    assert number_of("checkpoint-200") == ("checkpoint-#", 200)
    assert number_of("7") == ("#", 7)
    assert [number_of(unit) for unit in ("", "best", "a-1-b-2")] == [None, None, None]
