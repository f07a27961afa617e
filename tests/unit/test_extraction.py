"""A folder that is extracted into: what each call makes, replaces and refuses."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.store import safe_extraction as extracting
from stoker.store.safe_extraction import Extraction, PathObstructed, inner_parts


@pytest.fixture
def extraction(tmp_path: Path) -> Iterator[Extraction]:
    with Extraction(tmp_path / "above" / "target") as made:
        yield made


def write(handle: int, data: bytes) -> None:
    os.write(handle, data)
    os.close(handle)


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "a/..", "../a", "a/./b", "a\0b"])
def test_only_paths_below_the_folder_are_paths(path: str) -> None:
    with pytest.raises(PathObstructed, match="is not a path below a folder"):
        inner_parts(path)


def test_parts_of_a_path() -> None:
    assert inner_parts("a/b c/..d") == ("a", "b c", "..d")


def test_a_link_is_the_folder_only_where_a_person_named_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Extraction(tmp_path / "link") as made:
        write(made.create("file"), b"1")
    assert (tmp_path / "real" / "file").read_bytes() == b"1"
    with pytest.raises(OSError, match="link"):
        Extraction(tmp_path / "link", follow=False)


def test_folders_are_made_with_their_times(extraction: Extraction) -> None:
    for _ in range(2):
        extraction.make_folder("a/b", 5 * 10**9)
    assert (extraction.folder / "a/b").stat().st_mtime == 5
    extraction.make_folder("a/c")
    assert (extraction.folder / "a/c").stat().st_mtime > 10**9


def test_a_new_file_takes_no_ones_place_and_another_takes_any_but_a_folders(extraction: Extraction) -> None:
    write(extraction.create("a/file", 0o600), b"1")
    assert stat.S_IMODE((extraction.folder / "a/file").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        extraction.create("a/file")
    write(extraction.create("a/usual"), b"")
    (extraction.folder / "a/made").touch()
    assert (extraction.folder / "a/usual").stat().st_mode == (extraction.folder / "a/made").stat().st_mode
    extraction.make_link("a/link", "file")
    with pytest.raises(FileExistsError):
        extraction.make_link("a/link", "other")
    for name in ("file", "link"):
        write(extraction.create_anew(f"a/{name}", 0o640), b"2")
        assert not (extraction.folder / "a" / name).is_symlink()
        assert (extraction.folder / "a" / name).read_bytes() == b"2"
        assert stat.S_IMODE((extraction.folder / "a" / name).stat().st_mode) == 0o640
    with pytest.raises(PathObstructed, match=r"target/a is a folder, and a file is to be there; remove it"):
        extraction.create_anew("a")


def test_only_a_plain_file_of_its_own_is_opened(extraction: Extraction) -> None:
    (extraction.folder / "own").write_bytes(b"12345")
    handle = extraction.open_file("own")
    assert os.read(handle, 9) == b"12345" and os.pwrite(handle, b"x", 0) == 1
    os.close(handle)
    (extraction.folder / "second").hardlink_to(extraction.folder / "own")
    (extraction.folder / "link").symlink_to("own")
    os.mkfifo(extraction.folder / "pipe")
    for name in ("own", "link", "pipe", "none"):
        with pytest.raises(OSError, match=r".") as refused:
            extraction.open_file(name)
        assert ("is not a plain file of its own" in str(refused.value)) == (name in ("own", "pipe"))
    with pytest.raises(FileNotFoundError):
        extraction.open_file("never/made")
    assert not (extraction.folder / "never").exists()


def test_files_and_links_move_from_one_folder_to_another(extraction: Extraction, tmp_path: Path) -> None:
    with Extraction(tmp_path / "other") as other:
        other.write("a/file", b"new")
        other.make_link("a/link", "file")
        extraction.write("a/file", b"old")
        for name in ("file", "link"):
            extraction.move_from(other, f"a/{name}")
        assert (extraction.folder / "a/file").read_bytes() == b"new"
        assert (extraction.folder / "a/link").readlink() == Path("file")
        assert list((tmp_path / "other" / "a").iterdir()) == []
        other.write("a/dir", b"file")
        extraction.make_folder("a/dir")
        with pytest.raises(PathObstructed, match="a/dir is a folder, and a file is to be there"):
            extraction.move_from(other, "a/dir")


def test_what_is_kept_takes_no_place_and_goes_through_no_link(extraction: Extraction, tmp_path: Path) -> None:
    with Extraction(tmp_path / "other") as other:
        other.write("x", b"1")
        assert extraction.keep_from(other, "x", "kept/x")
        assert (extraction.folder / "kept/x").read_bytes() == b"1" and not (tmp_path / "other" / "x").exists()
        other.write("x", b"2")
        assert not extraction.keep_from(other, "x", "kept/x"), "something is there"
        (extraction.folder / "link").symlink_to(tmp_path)
        assert not extraction.keep_from(other, "x", "link/x"), "a link is in the way"
        (extraction.folder / "broken").symlink_to("nowhere")
        assert not extraction.keep_from(other, "x", "broken")
        assert (tmp_path / "other" / "x").read_bytes() == b"2"


def test_links_give_way_to_folders_and_files_do_not(extraction: Extraction) -> None:
    (extraction.folder / "link").symlink_to("elsewhere")
    extraction.write("link/file", b"1")
    assert not (extraction.folder / "link").is_symlink() and (extraction.folder / "link/file").is_file()
    with pytest.raises(
        PathObstructed, match="link/file is there and is not a folder; remove it, or name another folder"
    ):
        extraction.write("link/file/inner", b"1")


def test_staged_files_are_given_their_paths_modes_and_times(extraction: Extraction) -> None:
    with extraction.staging("mine-") as staging:
        (place,) = extraction.folder.glob("mine-*")
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        with staging.new_file("0") as file:
            file.write_bytes(b"12345")
        with pytest.raises(FileExistsError), staging.new_file("0"):
            pass
        assert staging.read("0", 3) == b"123"
        staging.place("0", "a/file", mode=0o751, modified_ns=7 * 10**9)
        with staging.new_file("plain"):
            pass
        staging.place("plain", "a/plain")
        staging.place_link("a/link", "file")
        staging.place_link("a/link", "other")
        with staging.new_file("left"):
            pass
        with pytest.raises(PathObstructed, match="is a folder"):
            staging.place("left", "a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        staging.read("0", 3)  # Its handle is closed: the number may be another file's by now.
    found = (extraction.folder / "a/file").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime) == (0o751, 7.0)
    (extraction.folder / "usual").touch()
    assert (extraction.folder / "a/plain").stat().st_mode == (extraction.folder / "usual").stat().st_mode
    (extraction.folder / "usual").unlink()
    assert (extraction.folder / "a/link").readlink() == Path("other")
    assert [path.name for path in extraction.folder.iterdir()] == ["a"]


def test_a_staged_file_keeps_its_mode_and_time_where_none_is_given(extraction: Extraction) -> None:
    with extraction.staging() as staging:
        with staging.new_file("0") as file:
            file.write_bytes(b"1")
        before = next(extraction.folder.glob(".tmp-fetch-*/0")).stat()
        staging.place("0", "file")
    found = (extraction.folder / "file").stat()
    assert (found.st_mode, found.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_one_that_keeps_changing_is_given_up(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tries = os.open, [0]

    def busy(path: str, flags: int, *args: int, **named: int) -> int:
        if path in ("busy", "folder"):
            tries[0] += 1
            raise FileExistsError(17, "File exists") if path == "busy" else FileNotFoundError(2, "none")
        return opened(path, flags, *args, **named)

    monkeypatch.setattr(extracting.os, "open", busy)
    for path in ("busy", "folder/file"):
        tries[0] = 0
        with pytest.raises(PathObstructed, match=f"target/{path[:4]}.*: another process keeps changing it"):
            extraction.create_anew(path)
        assert 2 < tries[0] < 1000


def test_a_file_that_may_not_be_removed_is_an_error_and_not_tried_again(
    extraction: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an immutable file, or a file of another user in a sticky folder."""
    write(extraction.create_anew("kept"), b"1")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(extracting.os, "unlink", refuse)
    with pytest.raises(PermissionError, match="Operation not permitted"):
        extraction.create_anew("kept")
    assert (extraction.folder / "kept").read_bytes() == b"1"


def test_an_error_of_the_disk_is_not_taken_for_a_link(extraction: Extraction, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def fail(path: str, flags: int, *args: int, **named: int) -> int:
        if path == "folder":
            raise OSError(5, "Input/output error")
        return opened(path, flags, *args, **named)

    monkeypatch.setattr(extracting.os, "open", fail)
    with pytest.raises(OSError, match="Input/output error"):
        extraction.make_folder("folder")


def test_the_plain_files_that_change_are_told(tmp_path: Path) -> None:
    """Links, pipes and files with the same bytes are replaced without a word."""
    folder, replaced = tmp_path / "target", list[str]()
    folder.mkdir()
    for name, data in (
        ("same", b"12345"),
        ("longer", b"123456"),
        ("other", b"1234x"),
        ("first", b"x2345"),
        ("gone", b""),
    ):
        (folder / name).write_bytes(data)
    (folder / "long").write_bytes(b"1" * (2 << 20) + b"1")
    (folder / "long-same").write_bytes(b"1" * (2 << 20) + b"2")
    (folder / "link").symlink_to("same")
    os.mkfifo(folder / "pipe")
    with Extraction(folder, replaced=replaced) as extraction, extraction.staging() as staging:
        for name in ("same", "longer", "other", "first", "long", "long-same", "link", "pipe", "new"):
            with staging.new_file(name) as file:
                file.write_bytes(b"1" * (2 << 20) + b"2" if name.startswith("long-") or name == "long" else b"12345")
            staging.place(name, name)
        for path in ("gone", "link-new", "link"):
            staging.place_link(path, "same")
            staging.place_link(path, "same")
    assert replaced == ["longer", "other", "first", "long", "gone", "link"]
    assert (folder / "pipe").read_bytes() == b"12345" and (folder / "link").is_symlink()


def handles_of(path: Path) -> int:
    """How many handles of this process refer to the file."""
    found, inode = 0, path.stat().st_ino
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += handle.stat().st_ino == inode
    return found


def test_a_staged_file_that_another_process_replaced_is_not_placed(extraction: Extraction) -> None:
    with extraction.staging() as staging:
        with staging.new_file("0") as file:
            file.write_bytes(b"mine")
        (made,) = extraction.folder.glob(".tmp-fetch-*/0")
        made.rename(made.with_name("aside"))
        made.write_bytes(b"theirs")
        for use in (lambda: staging.place("0", "file"), lambda: staging.read("0", 9)):
            with pytest.raises(OSError, match="another process replaced it"):
                use()
        assert handles_of(made) == 0
    assert not (extraction.folder / "file").exists()


def test_a_file_that_was_deleted_just_before_is_no_obstacle(
    extraction: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the call that found it and the one that looks what it is."""
    write(extraction.create("folder"), b"")
    looked, stat_of = [0], os.stat

    def stat_gone(path: str, **named: object) -> os.stat_result:
        if path == "folder":
            looked[0] += 1
            (extraction.folder / "folder").unlink(missing_ok=True)
        return stat_of(path, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(extracting.os, "stat", stat_gone)
    extraction.make_folder("folder")
    monkeypatch.undo()
    assert looked[0] and (extraction.folder / "folder").is_dir()
