"""What is not kept of the outputs, for its number, its size or its errors, and what is said about it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from checkpoint_world import JOB, memory_store, write
from output_node import LIMIT_S, began, paths, spec, touch_later

from stoker.agent import job_folders
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource, SkippedFile
from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.model.node_config import NodePaths

__all__ = ["paths"]


def test_over_the_bound_results_come_before_caches_and_the_newest_first(tmp_path: Path) -> None:
    work = tmp_path / "work"
    touch_later(work / ".cache/newest", "x" * 10, 4000.0)
    touch_later(work / "old.pt", "x" * 10, 1000.0)
    touch_later(work / "new.pt", "x" * 10, 2000.0)
    touch_later(work / "small", "x", 500.0)
    files = OutputFiles([], OutputSource(work), most_bytes=21)
    found, left_out = files.beside({})
    assert set(found) == {"new.pt", "old.pt", "small"}
    assert left_out == [SkippedFile(".cache/newest", 10, "more than 2.1e-08 GB in all")]
    found, left_out = OutputFiles([], OutputSource(work), most_files=1).beside({})
    assert set(found) == {"new.pt"} and len(left_out) == 3


@pytest.mark.parametrize("crowd", ["samples/{}.png", "{}", "samples/{}/image.png", "model-{}.json", "samples/step.{}"])
def test_a_crowd_of_files_does_not_push_out_the_model(tmp_path: Path, crowd: str) -> None:
    work = tmp_path / "work"
    touch_later(work / "out/model.pt", "the model", 1_000_000)
    touch_later(work / "metrics.csv", "1,2", 1_000_001)
    for number in range(700):
        touch_later(work / crowd.format(number), "x", 1_000_010 + number)
    found, left_out = OutputFiles([], OutputSource(work), most_files=500).beside({})
    assert {"out/model.pt", "metrics.csv"} <= set(found) and (len(found), len(left_out)) == (500, 202)
    assert crowd.format(699) in found, "of a crowd the newest come first"


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(work / "fine", "1")
    write(work / "core.123", b"\x7fELF and more")
    write(work / "core.py", "code")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(work)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    (work / "data").symlink_to("/etc")
    (work / "latest").symlink_to("fine")
    write(work / "env/pyvenv.cfg", "x")
    found, left_out = OutputFiles([], OutputSource(work)).beside({})
    assert set(found) == {"fine", "core.py"}
    assert {one.path: one.why for one in left_out} == {
        "core.123": "a core dump",
        "pipe": "not a regular file",
        "socket": "not a regular file",
        "data": "a link out of the folder",
        "env": "a Python environment",
    }


def test_declared_files_that_cannot_be_kept_are_told_as_well(paths: NodePaths) -> None:
    job = spec(outputs=["artifacts", "*.png"])
    write(paths.code / "old.png.tmp", "packed with the code")
    baseline = began(paths, job)
    write(paths.code / "artifacts/fine", "1")
    (paths.code / "artifacts/latest").symlink_to("fine")
    os.mkfifo(paths.code / "artifacts/pipe")
    write(paths.code / "artifacts/model.pt.tmp", "half")
    write(paths.code / "artifacts/part.partial", "half")
    (paths.code / "artifacts/null").symlink_to("/dev/null")
    os.mkfifo(paths.code / "pipe.png")
    write(paths.code / "beside.tmp", "half")
    write(paths.code / "run.pyc", "made again")
    sync = OutputSync(memory_store(), JOB, 1, 0, job_folders.output_files(paths, job, baseline))
    assert sync.final(LIMIT_S)
    report = sync.report()
    unfinished = "its name says that it is unfinished"
    assert {one.path: one.why for one in report.named} == {
        "artifacts/pipe": "not a regular file",
        "artifacts/model.pt.tmp": unfinished,
        "artifacts/part.partial": unfinished,
        "artifacts/null": "a link out of the folder",
        "pipe.png": "not a regular file",
        "beside.tmp": unfinished,
    }
    assert (report.files, report.left_out) == (2, 6)


def test_what_could_not_be_kept_before_the_training_either_is_not_told(tmp_path: Path) -> None:
    """A link that was packed with the code, and one whose target is kept by its own name, stand before a new pipe."""
    (tmp_path / "a-packed").symlink_to("/dev/null")
    write(tmp_path / "model/weights", "1")
    baseline = Baseline.take([tmp_path])
    (tmp_path / "latest").symlink_to("model")
    write(tmp_path / "none-of-them/weights", "1")
    os.mkfifo(tmp_path / "pipe")
    takes = OutputSource(tmp_path, takes=lambda path: not path.startswith("none"))
    whole = OutputSource(tmp_path, takes_all=True)
    pipe = SkippedFile("pipe", 0, "not a regular file")
    link = SkippedFile("a-packed", len("/dev/null"), "a link out of the folder")
    assert OutputFiles([takes], baseline=baseline).unstorable({}) == [pipe]
    assert OutputFiles([whole], baseline=baseline).unstorable({}) == [link, pipe], "all of it is the job's own"
    assert OutputFiles([takes, whole], baseline=baseline).unstorable({}) == [pipe, link]


def test_the_report_of_the_end(tmp_path: Path) -> None:
    store = memory_store()
    work = tmp_path / "work"
    write(work / "a", "12")
    write(work / "b", "3456")
    os.mkfifo(work / "pipe")
    sync = OutputSync(store, JOB, 1, 0, OutputFiles([], OutputSource(work)))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert (report.files, report.size, report.left_out) == (2, 6, 1)
    assert {meta.key for meta in store.list(keys.outputs(JOB, 1))} == {
        f"{keys.outputs(JOB, 1)}a",
        f"{keys.outputs(JOB, 1)}b",
    }


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    memory = memory_store()
    client = memory.client()
    client.outage(True)
    write(tmp_path / "work/a", "12")
    sync = OutputSync(client, JOB, 1, 0, OutputFiles([], OutputSource(tmp_path / "work")))
    assert not sync.final(0.3)
    report = sync.report()
    assert (report.files, report.left_out, report.left_out_size) == (0, 1, 2)
    assert report.named[0].path == "a" and report.named[0].why


def test_a_file_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store()
    write(tmp_path / "out/a", "secret")
    write(tmp_path / "out/b", "1")
    real = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        # A file is held open while it is read, and named by its handle.
        named = self.readlink() if self.is_relative_to("/proc/self/fd") else self
        if named.name == "a":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    sync = OutputSync(store, JOB, 1, 0, tmp_path / "out")
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert report.files == 1
    assert [(one.path, one.why) for one in report.named] == [("a", "cannot be read (Permission denied)")]


@pytest.mark.parametrize("place", [".hidden/a", "cache/a", "caches/a", "tmp/a", "temp/a", "sub/tmp/a", ".a"])
def test_where_there_is_not_room_for_everything_temporary_files_come_last(tmp_path: Path, place: str) -> None:
    touch_later(tmp_path / place, "1", 3000.0)
    touch_later(tmp_path / "tmp.txt", "1", 2000.0)
    touch_later(tmp_path / "old", "1", 1000.0)
    found, left_out = OutputFiles([], OutputSource(tmp_path), most_files=2).beside({})
    assert set(found) == {"tmp.txt", "old"} and [one.path for one in left_out] == [place]
