"""A restore into a folder that holds more than checkpoints: nothing of others is deleted."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import write

from stoker.agent.checkpoints.folder_replacement import (
    FolderInUse,
    FolderRecord,
    hold_folder,
    make_staging,
    replace_contents,
)

OLD_NS = 10**18


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".stoker-folder.")
    }


def stored(*texts: str) -> frozenset[tuple[int, str]]:
    return frozenset((len(text), hashlib.sha256(text.encode()).hexdigest()) for text in texts)


class Restores:
    """Attempts of one job, one after the other, that share a folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "saves"
        self.aside = root / ".saves.replaced"
        self.folder.mkdir()

    def restore(self, files: dict[str, str], in_store: tuple[str, ...] = ()) -> list[str]:
        record = FolderRecord.open(self.folder / ".stoker-folder.job.json")
        staging = make_staging(self.folder)
        for path, text in files.items():
            write(staging / "new" / path, text)
        (staging / "new").mkdir(exist_ok=True)
        moved = replace_contents(staging / "new", self.folder, record, lambda: stored(*in_store))
        (staging / "new").rmdir() if not any((staging / "new").iterdir()) else None
        for left in sorted(staging.rglob("*"), reverse=True):
            left.rmdir()
        staging.rmdir()
        return moved

    def mine(self, path: str, text: str) -> None:
        """A file that was there before the job."""
        write(self.folder / path, text)
        os.utime(self.folder / path, ns=(OLD_NS, OLD_NS))


@pytest.fixture
def job(tmp_path: Path) -> Restores:
    return Restores(tmp_path)


def test_files_of_people_stay_over_many_restarts(job: Restores) -> None:
    job.mine("thesis.txt", "precious")
    job.mine("deep/photo", "precious too")
    for attempt in range(5):
        job.restore({f"step-{attempt}/model": str(attempt)})
        assert tree(job.folder) == {
            "thesis.txt": "precious",
            "deep/photo": "precious too",
            f"step-{attempt}/model": str(attempt),
        }
    assert not job.aside.exists()


def test_what_is_in_no_checkpoint_is_moved_and_never_deleted(job: Restores) -> None:
    job.restore({})
    for attempt in range(3):
        write(job.folder / "half.pt", f"half {attempt}")
        write(job.folder / "whole.pt", "whole")
        moved = job.restore({"step-1": "1"}, in_store=("whole",))
        assert moved == ["half.pt"]
        assert tree(job.folder) == {"step-1": "1"}
    assert sorted(tree(job.aside).values()) == ["half 0", "half 1", "half 2"]


def test_a_file_of_people_that_a_checkpoint_replaces_is_moved(job: Restores) -> None:
    job.mine("model.pt", "mine")
    job.restore({"model.pt": "the job's"})
    assert tree(job.folder) == {"model.pt": "the job's"}
    assert tree(job.aside) == {"model.pt": "mine"}


def test_what_a_restore_wrote_and_a_script_changed_is_moved(job: Restores) -> None:
    job.restore({"log": "1", "model": "1"})
    write(job.folder / "log", "1 and 2")
    job.restore({"model": "2"})
    assert tree(job.folder) == {"model": "2"}
    assert tree(job.aside) == {"log": "1 and 2"}


def test_links_are_neither_followed_nor_lost(job: Restores, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/file", "of others")
    job.restore({})
    (job.folder / "step-1").symlink_to(tmp_path / "elsewhere")
    job.restore({"step-1/file": "restored"})
    assert (tmp_path / "elsewhere/file").read_text() == "of others"
    assert not (job.folder / "step-1").is_symlink()
    assert (job.folder / "step-1/file").read_text() == "restored"
    assert (job.aside / "step-1").is_symlink()


def test_a_folder_in_the_place_of_a_file_and_the_other_way_round(job: Restores) -> None:
    job.mine("a/inner", "mine")
    job.mine("b", "mine")
    job.restore({"a": "1", "b/inner": "2"})
    assert tree(job.folder) == {"a": "1", "b/inner": "2"}
    assert set(tree(job.aside)) == {"a/inner", "b"}


def test_saves_that_are_gone_leave_no_empty_folder(job: Restores) -> None:
    job.restore({"step-1/deep/model": "1"})
    job.restore({"step-2/deep/model": "2"})
    assert sorted(path.name for path in job.folder.iterdir() if path.is_dir()) == ["step-2"]


def test_files_that_are_not_chosen_are_not_looked_at(job: Restores) -> None:
    record = FolderRecord()
    write(job.folder / "train.py", "code")
    write(job.folder / "model.pt", "half")
    moved = replace_contents(None, job.folder, record, frozenset, lambda path: path.endswith(".pt"))
    assert moved == ["model.pt"]
    assert tree(job.folder) == {"train.py": "code"}


def test_one_job_at_a_time_has_a_folder(tmp_path: Path) -> None:
    first = hold_folder(tmp_path, "job-a")
    with pytest.raises(FolderInUse, match="job-a"):
        hold_folder(tmp_path, "job-b")
    # The attempt before has stopped training, but may not be quite gone.
    os.close(hold_folder(tmp_path, "job-a"))
    os.close(first)
    os.close(hold_folder(tmp_path, "job-b"))


def test_what_a_restore_that_was_cut_short_left_goes(tmp_path: Path) -> None:
    first = make_staging(tmp_path)
    write(first / "new/model", "half")
    write(tmp_path / "model", "1")
    second = make_staging(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([second.name, "model"])
    assert list(second.iterdir()) == []


def test_the_record_of_a_folder_is_read_again_and_made_anew_where_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / ".stoker-folder.job.json"
    record = FolderRecord.open(path)
    assert record.since_ns > 0
    record.restored = {"a": [1, 2]}
    record.write()
    assert FolderRecord.open(path) == record
    for torn in ("", "[]", "{}", '{"since_ns": 5, "restored": {"a": 1}}', '{"since_ns": "x", "restored": {}}'):
        path.write_text(torn)
        again = FolderRecord.open(path)
        assert again.restored == {} and again.since_ns > record.since_ns - 10**9
        assert FolderRecord.open(path) == again
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_link_whose_text_is_in_the_store_is_deleted_and_another_is_moved(job: Restores) -> None:
    job.restore({})
    (job.folder / "latest").symlink_to("step-1")
    (job.folder / "mine").symlink_to("elsewhere")
    assert job.restore({"model": "1"}, in_store=("step-1",)) == ["mine"]
    assert sorted(path.name for path in job.folder.iterdir() if not path.name.startswith(".")) == ["model"]
    assert (job.aside / "mine").is_symlink()


def test_the_same_size_does_not_make_it_the_same_file(job: Restores) -> None:
    job.restore({})
    write(job.folder / "a", "other")
    assert job.restore({}, in_store=("whole",)) == ["a"]
    assert tree(job.aside) == {"a": "other"}


def test_a_pipe_is_neither_read_nor_lost(job: Restores) -> None:
    job.restore({})
    os.mkfifo(job.folder / "pipe")
    assert job.restore({}, in_store=("",)) == ["pipe"]
    assert (job.aside / "pipe").is_fifo()


def test_the_store_is_asked_only_where_something_is_not_known(job: Restores) -> None:
    record = FolderRecord.open(job.folder / ".stoker-folder.job.json")

    def never() -> frozenset[tuple[int, str]]:
        raise AssertionError("asked")

    assert replace_contents(None, job.folder, record, never) == []
    staging = make_staging(job.folder)
    write(staging / "new/step-1/model", "1")
    replace_contents(staging / "new", job.folder, record, never)
    assert replace_contents(None, job.folder, record, never) == []
    assert tree(job.folder) == {}


def test_empty_folders_of_people_and_of_stoker_stay(job: Restores) -> None:
    record = FolderRecord.open(job.folder / ".stoker-folder.job.json")
    for name in ("old", "new/inner", "not-chosen", ".tmp-replaced/kept"):
        (job.folder / name).mkdir(parents=True)
    os.utime(job.folder / "old", ns=(OLD_NS, OLD_NS))
    replace_contents(None, job.folder, record, frozenset, lambda path: not path.startswith("not"))
    left = sorted(path.name for path in job.folder.iterdir() if path.is_dir())
    assert left == [".tmp-replaced", "not-chosen", "old"]
    assert (job.folder / ".tmp-replaced/kept").is_dir()


def test_stokers_own_files_are_never_moved(job: Restores) -> None:
    record = FolderRecord()
    own = (".stoker-lock", ".stoker-folder.other.json", ".tmp-replaced", ".tmp-restoring-x")
    for name in own:
        write(job.folder / name, "own")
    write(job.folder / "sub/.stoker-lock", "of a script")
    assert replace_contents(None, job.folder, record, frozenset) == ["sub/.stoker-lock"]
    assert sorted(path.name for path in job.folder.iterdir()) == sorted(own)


def test_folders_are_as_old_as_they_were(job: Restores) -> None:
    staging = make_staging(job.folder)
    write(staging / "new/step-1/deep/model", "1")
    for number, name in enumerate(("step-1/deep", "step-1")):
        os.utime(staging / "new" / name, ns=(OLD_NS, OLD_NS + number))
    replace_contents(staging / "new", job.folder, FolderRecord(), frozenset)
    assert (job.folder / "step-1/deep").stat().st_mtime_ns == OLD_NS
    assert (job.folder / "step-1").stat().st_mtime_ns == OLD_NS + 1


def test_where_there_is_no_place_beside_the_folder_files_are_moved_inside_it(job: Restores) -> None:
    job.restore({})
    write(job.aside, "a file in its place")
    write(job.folder / "half", "1")
    assert job.restore({}) == ["half"]
    write(job.folder / "half", "2")
    assert job.restore({}) == ["half"]
    inside = job.folder / ".tmp-replaced"
    assert tree(inside) == {"half": "1", "1/half": "2"}


def test_a_file_that_cannot_be_read_is_moved_and_not_deleted(job: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    job.restore({})
    write(job.folder / "a", "whole")
    opened = Path.open

    def failing(self: Path, *args: Any, **options: Any) -> Any:
        if self == job.folder / "a":
            raise OSError(errno.EIO, "the disk")
        return opened(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        assert job.restore({}, in_store=("whole",)) == ["a"]
    assert tree(job.aside) == {"a": "whole"}


def test_the_file_that_holds_a_folder_can_be_opened_again_by_the_same_user(tmp_path: Path) -> None:
    os.close(hold_folder(tmp_path, "job-1"))
    (held,) = tmp_path.iterdir()
    assert held.stat().st_mode & 0o600 == 0o600


def test_nothing_is_moved_through_a_link_in_the_place_that_files_are_moved_to(job: Restores, tmp_path: Path) -> None:
    job.restore({})
    (tmp_path / "elsewhere").mkdir()
    job.aside.symlink_to(tmp_path / "elsewhere")
    write(job.folder / "a", "other")
    job.restore({})
    assert tree(tmp_path / "elsewhere") == {}
