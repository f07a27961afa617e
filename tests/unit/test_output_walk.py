"""The walk through an output folder: links, closed folders, other disks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import write

from stoker.agent import output_files, output_walk
from stoker.agent.confinement import Confinement, opened_folder
from stoker.agent.output_files import Baseline, OutputFiles, OutputSource, SkippedFile


def test_links_of_a_container_are_read_as_the_file_inside_that_they_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(folder / "sub/real", "1")
    for name, target in {
        "one": "sub/real",
        "sub/two": "../one",
        "loop": "pool",
        "pool": "loop",
        "gone": "nowhere",
    }.items():
        (folder / name).symlink_to(target)
    files = OutputFiles(
        [OutputSource(folder, "x/", takes_all=True)], confinement=Confinement((tmp_path,), lambda _: None)
    )
    found = files.declared()
    assert {path: output.source for path, output in found.items()} == {
        f"x/{name}": folder / "sub/real" for name in ("sub/real", "one", "sub/two")
    }
    assert all(output.file.path == path and output.file.link is None for path, output in found.items())


def test_links_that_lead_out_of_the_output_folder_are_left_out_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    write(tmp_path / "secret", "content")
    write(folder / "runs/1/model", "1")
    for name, target in (
        ("abs", tmp_path / "secret"),
        ("up", "../secret"),
        ("second", "abs"),
        ("passwd", "/etc/passwd"),
        ("zero", "/dev/zero"),
        ("kmsg", "/proc/kmsg"),
        ("root", "/"),
        ("runs/latest", "1"),
        ("model", "runs/latest/model"),
    ):
        (folder / name).symlink_to(target)
    outputs = OutputFiles([OutputSource(folder, takes_all=True)])
    found = outputs.declared()
    assert sorted(found) == ["model", "runs/1/model"] and found["model"].source.read_text() == "1"
    left_out = {one.path: one.why for one in outputs.unstorable(found)}
    named = ("abs", "up", "second", "passwd", "zero", "kmsg", "root")
    assert left_out == dict.fromkeys(named, "a link out of the folder")


def test_a_new_file_by_a_link_out_of_the_folder_is_data_of_others(tmp_path: Path) -> None:
    write(tmp_path / "data", "theirs")
    write(tmp_path / "work/a", "1")
    (tmp_path / "work/b").symlink_to(tmp_path / "data")
    (tmp_path / "work/c").symlink_to("a")
    assert set(OutputFiles([OutputSource(tmp_path / "work")]).declared()) == {"a", "c"}


def walked(folder: Path) -> dict[str, str | None]:
    return {found.path: found.problem for found in output_walk.walk_files(folder, None, output_walk.OUTPUTS)}


def test_a_folder_that_cannot_be_looked_into_is_told_and_one_that_is_gone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "file", "1")
    assert walked(tmp_path / "missing") == {}
    assert walked(tmp_path / "file") == {".": "cannot be read (Not a directory)"}
    for name in ("work/a", "work/closed/b", "work/gone/c", "work/open/d"):
        write(tmp_path / name, "1")
    own = os.open

    def refuse(path: Any, *arguments: Any, **more: Any) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        if path == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return own(path, *arguments, **more)

    monkeypatch.setattr(output_files.os, "open", refuse)
    expected = {"a": None, "closed": "cannot be read (Permission denied)", "open/d": None}
    assert walked(tmp_path / "work") == expected
    _, left_out = OutputFiles([], OutputSource(tmp_path / "work", "pre/")).beside({})
    assert left_out == [SkippedFile("pre/closed", 0, "cannot be read (Permission denied)")]
    unkept = OutputFiles([OutputSource(tmp_path / "work", "pre/")]).unstorable({})
    assert unkept == left_out


def test_folders_on_another_disk_are_told_unless_everything_is_wanted(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    write(tmp_path / "sub/b", "1")
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        here = os.fstat(handle).st_dev
        other, same, every = (
            {found.path: found.problem for found in output_walk._walk_in(handle, "", output_walk.OUTPUTS, device)}
            for device in (here + 1, here, None)
        )
    finally:
        os.close(handle)
    assert other == {"a": None, "sub": "lies on another disk"}
    assert same == every == {"a": None, "sub/b": None}


def test_unfinished_folders_are_told_and_hold_nothing_of_the_baseline(tmp_path: Path) -> None:
    write(tmp_path / "step-1.tmp/model", "half")
    write(tmp_path / ".stoker-x/y", "own")
    write(tmp_path / "a", "1")
    assert walked(tmp_path) == {"a": None, "step-1.tmp": "its name says that it is unfinished"}
    assert set(Baseline.take([tmp_path]).files) == {str(tmp_path / "a"), str(tmp_path / ".stoker-x/y")}


def test_no_handle_stays_open_after_a_walk(tmp_path: Path) -> None:
    write(tmp_path / "sub/deep/a", "1")
    write(tmp_path / "env/pyvenv.cfg", "1")

    def handles() -> int:
        found = []
        for handle in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found.append(str(handle.readlink()))
        return sum(one.startswith(str(tmp_path)) for one in found)

    walked(tmp_path)
    assert handles() == 0


def test_a_file_that_is_gone_or_closed_is_no_core_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "core", b"\x7fELF")
    write(tmp_path / "scored", b"\x7fELF")
    status = (tmp_path / "core").stat()
    with opened_folder(tmp_path) as folder:
        assert output_walk.find_problem(folder, "sub/core", status) == "a core dump"
        assert output_walk.find_problem(folder, "scored", status) is None
        assert output_walk.find_problem(folder, "core.77", status) is None, "it is gone by now"
        write(tmp_path / "core.1", b"text")
        assert output_walk.find_problem(folder, "core.1", status) is None
        assert output_walk.find_problem(folder, "not\udcffutf-8", status) == "its name is not UTF-8; choose another one"
        # Put in its place since it was found: neither is opened.
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("scored")
        assert output_walk.find_problem(folder, "pipe", status) == "cannot be read (is not a plain file)"
        assert "symbolic links" in (output_walk.find_problem(folder, "link", status) or "")

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(output_walk, "open_plain", refuse)
        assert output_walk.find_problem(folder, "scored", status) == "cannot be read (Permission denied)"
