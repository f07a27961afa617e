"""A restore into a folder that holds more than checkpoints: nothing of others is deleted."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import write

from stoker.agent.checkpoints import folder_record, folder_replacement
from stoker.agent.checkpoints.folder_record import FolderRecord, TooManyFiles
from stoker.agent.checkpoints.folder_replacement import FolderInUse, hold_folder, replace_contents, staging_folder

OLD_NS = 10**18


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".stoker-folder.")
    }


def stored(files: dict[str, str]) -> dict[str, set[tuple[int, str]]]:
    return {path: {(len(text), hashlib.sha256(text.encode()).hexdigest())} for path, text in files.items()}


class Restores:
    """Attempts of one job, one after the other, that share a folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "saves"
        self.aside = root / ".saves.replaced"
        self.folder.mkdir()

    def record(self) -> FolderRecord:
        return FolderRecord.open(self.folder / ".stoker-folder.job.json", self.folder)

    def restore(self, files: dict[str, str], in_store: dict[str, str] | None = None) -> list[str]:
        record = self.record()
        with staging_folder(self.folder) as staging:
            for path, text in files.items():
                write(staging / "new" / path, text)
            (staging / "new").mkdir(exist_ok=True)
            return replace_contents(staging / "new", self.folder, record, lambda: stored(in_store or {}))

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
        moved = job.restore({"step-1": "1"}, in_store={"whole.pt": "whole"})
        assert moved == ["half.pt"]
        assert tree(job.folder) == {"step-1": "1"}
    assert sorted(tree(job.aside).values()) == ["half 0", "half 1", "half 2"]


def test_files_of_people_stay_although_a_checkpoint_has_the_same_bytes(job: Restores) -> None:
    job.mine(".gitkeep", "")
    job.mine("notes/base.json", "{}")
    job.record()
    for attempt in range(3):
        in_store = {"new/DONE": "", "new/state.json": "{}", ".gitkeep": "", "notes/base.json": "{}"}
        assert job.restore({"new/DONE": "", "new/state.json": str(attempt)}, in_store) == []
        assert tree(job.folder).keys() == {".gitkeep", "notes/base.json", "new/DONE", "new/state.json"}


def test_a_file_of_people_that_the_job_changed_is_moved_and_never_deleted(job: Restores) -> None:
    job.mine("last.pt", "mine")
    job.mine("state.json", "mine")
    job.record()
    write(job.folder / "last.pt", "of the job")
    # Only touched.
    write(job.folder / "state.json", "mine")
    assert job.restore({"last.pt": "of the job"}, {"last.pt": "of the job", "state.json": "mine"}) == ["state.json"]
    assert tree(job.folder) == {"last.pt": "of the job"}
    assert job.restore({"other": "1"}, {"last.pt": "of the job"}) == ["last.pt"]
    assert tree(job.aside) == {"last.pt": "of the job", "state.json": "mine"}
    # From now on both names are the job's.
    write(job.folder / "last.pt", "of the job")
    assert job.restore({"other": "1"}, {"last.pt": "of the job"}) == []
    assert tree(job.folder) == {"other": "1"}


def test_a_file_of_the_job_with_an_old_time_does_not_stay(job: Restores) -> None:
    job.mine("thesis.txt", "precious")
    job.restore({})
    # As `tar`, `rsync` and `cp -p` leave them.
    for name in ("extracted/half.pt", "saved.pt"):
        write(job.folder / name, name)
        os.utime(job.folder / name, ns=(OLD_NS, OLD_NS))
    assert job.restore({"model": "1"}, {"saved.pt": "saved.pt"}) == ["extracted/half.pt"]
    assert tree(job.folder) == {"thesis.txt": "precious", "model": "1"}


def test_clocks_that_are_set_back_or_forward_change_nothing(job: Restores) -> None:
    write(job.folder / "from-the-future", "mine")
    os.utime(job.folder / "from-the-future", ns=(4 * OLD_NS, 4 * OLD_NS))
    job.restore({"model": "1"})
    assert job.restore({"model": "2"}) == []
    assert tree(job.folder) == {"from-the-future": "mine", "model": "2"}


def test_a_copy_under_another_name_is_moved_although_its_bytes_are_in_a_checkpoint(job: Restores) -> None:
    job.restore({})
    write(job.folder / "best-so-far.pt", "weights")
    assert job.restore({}, {"epoch-3.pt": "weights"}) == ["best-so-far.pt"]
    assert tree(job.aside) == {"best-so-far.pt": "weights"}


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
    moved = replace_contents(None, job.folder, record, dict, lambda path: path.endswith(".pt"))
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
    write(tmp_path / ".tmp-restoring-x/new/model", "half")
    write(tmp_path / "model", "1")
    with staging_folder(tmp_path) as staging:
        assert list(staging.iterdir()) == []
        write(staging / "new/model", "2")
        assert len(list(tmp_path.iterdir())) == 2 and not (tmp_path / ".tmp-restoring-x").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_record_of_a_folder_is_read_again_and_made_anew_where_it_is_torn(job: Restores) -> None:
    path = job.folder / ".stoker-folder.job.json"
    job.mine("mine/notes", "mine")
    record = job.record()
    assert record.before == {"mine/notes": (4, OLD_NS)} and record.folders_before == {"mine"}
    record.restored = {"a": (1, 2)}
    record.write()
    write(job.folder / "later", "1")
    assert job.record() == record
    valid = '{"before": {}, "folders_before": [], "restored": {'
    for torn in ("", "[]", "{}", valid, valid + '"a": 1}}', '{"before": {}, "restored": {}}', "[" * 100_000):
        path.write_text(torn)
        again = job.record()
        assert again.restored == {} and again.before.keys() == {"mine/notes", "later"}
        assert job.record() == again
    assert sorted(one.name for one in job.folder.iterdir()) == [path.name, "later", "mine"]


def test_a_folder_with_too_many_files_is_refused(job: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_record, "MAX_RECORD_BYTES", 400)
    job.mine("a" * 100, "1")
    job.record()
    (job.folder / ".stoker-folder.job.json").unlink()
    job.mine("b" * 100, "1")
    with pytest.raises(TooManyFiles, match="2 files and 0 folders"):
        job.record()


@pytest.mark.parametrize("name", [".stoker-folder.job.json", ".stoker-folder.draft", ".stoker-folder.in-use"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "hard link"])
def test_a_job_that_replaces_the_files_of_stoker_writes_no_other_file(
    job: Restores, tmp_path: Path, name: str, kind: str
) -> None:
    job.restore({"model": "1"})
    victim = tmp_path / ".bashrc"
    victim.write_text("# mine")
    (job.folder / name).unlink(missing_ok=True)
    match kind:
        case "link":
            (job.folder / name).symlink_to(victim)
        case "dangling link":
            (job.folder / name).symlink_to(tmp_path / "new")
        case "pipe":
            os.mkfifo(job.folder / name)
        case _:
            os.link(victim, job.folder / name)
    if name.endswith("in-use") and kind != "hard link":
        with pytest.raises(OSError, match=r"plain file|symbolic links"):
            hold_folder(job.folder, "job")
    job.restore({"model": "2"})
    assert tree(job.folder) == {"model": "2"}
    assert victim.read_text() == "# mine" and not (tmp_path / "new").exists()
    (job.folder / name).unlink(missing_ok=True)


def test_a_record_that_is_too_large_is_not_read(job: Restores, monkeypatch: pytest.MonkeyPatch) -> None:
    job.restore({"model": "1"})
    with (job.folder / ".stoker-folder.job.json").open("r+b") as file:
        file.truncate(10 * 2**40)
    assert job.record().restored == {}


def test_a_link_whose_text_is_in_the_store_is_deleted_and_another_is_moved(job: Restores) -> None:
    job.restore({})
    (job.folder / "latest").symlink_to("step-1")
    (job.folder / "mine").symlink_to("elsewhere")
    assert job.restore({"model": "1"}, in_store={"latest": "step-1"}) == ["mine"]
    assert sorted(path.name for path in job.folder.iterdir() if not path.name.startswith(".")) == ["model"]
    assert (job.aside / "mine").is_symlink()


def test_the_same_size_does_not_make_it_the_same_file(job: Restores) -> None:
    job.restore({})
    write(job.folder / "a", "other")
    assert job.restore({}, in_store={"a": "whole"}) == ["a"]
    assert tree(job.aside) == {"a": "other"}


def test_a_pipe_is_neither_read_nor_lost(job: Restores) -> None:
    job.restore({})
    os.mkfifo(job.folder / "pipe")
    assert job.restore({}, in_store={"pipe": ""}) == ["pipe"]
    assert (job.aside / "pipe").is_fifo()


def test_the_store_is_asked_only_where_something_is_not_known(job: Restores) -> None:
    record = job.record()

    def never() -> dict[str, set[tuple[int, str]]]:
        raise AssertionError("asked")

    assert replace_contents(None, job.folder, record, never) == []
    staging = job.folder / ".tmp-restoring-x"
    write(staging / "new/step-1/model", "1")
    replace_contents(staging / "new", job.folder, record, never)
    assert replace_contents(None, job.folder, record, never) == []
    assert tree(job.folder) == {}


def test_empty_folders_of_people_and_of_stoker_stay(job: Restores) -> None:
    (job.folder / "old").mkdir()
    record = job.record()
    for name in ("new/inner", "not-chosen", ".tmp-replaced/kept"):
        (job.folder / name).mkdir(parents=True)
    os.utime(job.folder / "new", ns=(OLD_NS, OLD_NS))
    os.utime(job.folder / "old")
    replace_contents(None, job.folder, record, dict, lambda path: not path.startswith("not"))
    left = sorted(path.name for path in job.folder.iterdir() if path.is_dir())
    assert left == [".tmp-replaced", "not-chosen", "old"]
    assert (job.folder / ".tmp-replaced/kept").is_dir()


def test_stokers_own_files_are_never_moved(job: Restores) -> None:
    record = FolderRecord()
    own = (".stoker-lock", ".stoker-folder.other.json", ".tmp-replaced", ".tmp-restoring-x")
    for name in own:
        write(job.folder / name, "own")
    write(job.folder / "sub/.stoker-lock", "of a script")
    assert replace_contents(None, job.folder, record, dict) == ["sub/.stoker-lock"]
    assert sorted(path.name for path in job.folder.iterdir()) == sorted(own)


def test_folders_are_as_old_as_they_were(job: Restores) -> None:
    staging = job.folder / ".tmp-restoring-x"
    write(staging / "new/step-1/deep/model", "1")
    for number, name in enumerate(("step-1/deep", "step-1")):
        os.utime(staging / "new" / name, ns=(OLD_NS, OLD_NS + number))
    replace_contents(staging / "new", job.folder, FolderRecord(), dict)
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
    opened = folder_replacement.open_plain

    def failing(path: str, *args: Any) -> int:
        if path == "a":
            raise OSError(errno.EIO, "the disk")
        return opened(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(folder_replacement, "open_plain", failing)
        assert job.restore({}, in_store={"a": "whole"}) == ["a"]
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


def test_a_file_of_people_is_not_the_link_whose_text_it_has(job: Restores) -> None:
    job.mine("x", "model")
    record = job.record()
    with staging_folder(job.folder) as staging:
        write(staging / "new/model", "1")
        (staging / "new/x").symlink_to("model")
        assert replace_contents(staging / "new", job.folder, record, lambda: stored({})) == ["x"]
    assert (job.folder / "x").is_symlink()
    assert tree(job.aside) == {"x": "model"}
