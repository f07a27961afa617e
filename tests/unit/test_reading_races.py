"""Folders of a training that change, or cannot be read, at the very moment at which they are read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_world import JOB, World, checkpoints, memory_store, ordinary_permissions, restored_content, write
from test_sync import Meddling

from stoker.agent import output_walk
from stoker.agent.checkpoints import file_copies, folder_record, folder_snapshot
from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.file_copies import FileCopier
from stoker.agent.checkpoints.folder_record import walk
from stoker.agent.checkpoints.folder_snapshot import File, scan
from stoker.agent.checkpoints.unreadable_files import FileUnreadable
from stoker.agent.confinement import opened_folder
from stoker.agent.output_files import Baseline
from stoker.agent.output_links import FoundLink, choose_links
from stoker.agent.output_walk import BASELINE, walk_files
from stoker.store.base import StoredFile

SCANDIR = os.scandir


class Entry:
    """An entry of a folder that cannot be examined any more."""

    def __init__(self, entry: os.DirEntry[str], number: int) -> None:
        self.name, self._number = entry.name, number

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        raise OSError(self._number, os.strerror(self._number))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return False


class Listing:
    """The listing of a folder, of which the entries `lost` cannot be examined."""

    def __init__(self, folder: Any, lost: dict[str, int]) -> None:
        with SCANDIR(folder) as found:
            self._entries = [Entry(one, lost[one.name]) if one.name in lost else one for one in found]

    def __enter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __exit__(self, *_: object) -> None:
        pass


def losing(monkeypatch: pytest.MonkeyPatch, module: Any, **lost: int) -> None:
    """Let the module find these entries in folders, and fail to examine them."""
    listing = SimpleNamespace(**{**vars(os), "scandir": lambda folder: Listing(folder, lost)})
    monkeypatch.setattr(module, "os", listing)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write(tmp_path / "folder" / name, name)
    return tmp_path / "folder"


# ── Files that vanish ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_vanishes_before_the_record_is_made_is_none_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, folder_record, b=errno.ENOENT)
    with opened_folder(folder) as handle:
        assert [path for path, _ in walk(handle)] == ["a", "c"]
    losing(monkeypatch, folder_record, b=errno.EIO)
    with opened_folder(folder) as handle, pytest.raises(OSError, match="Input/output"):
        list(walk(handle))


def test_an_output_that_vanishes_is_left_out_and_one_that_cannot_be_examined_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, output_walk, a=errno.ENOENT, b=errno.EIO)
    found = {one[0]: one for one in walk_files(folder, None, BASELINE)}
    assert list(found) == ["b", "c"]
    _path, status, problem, _ = found["b"]
    assert status is None and problem is not None and "Input/output error" in problem
    assert found["c"][1] is not None and found["c"][2] is None


def test_a_file_that_vanishes_while_it_is_sent_has_changed(folder: Path, tmp_path: Path) -> None:
    store = memory_store()

    class Removing:
        def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
            source.unlink()
            return store.put_file(source, key)

    sender = BlobSender(Removing(), JOB, 0, scratch=tmp_path, workers=1)  # type: ignore[arg-type]
    file = scan(folder)["a"]
    with pytest.raises(FileUnstable, match=r"^a$"):
        sender.send([OutgoingFile(file, folder / "a", 1)])


def test_a_file_that_no_checkpoint_can_hold_is_not_sent(folder: Path, tmp_path: Path) -> None:
    store = memory_store()
    files = [OutgoingFile(one, folder / path) for path, one in scan(folder).items()]
    files[1] = OutgoingFile(files[1].file._replace(problem="its name is too long"), files[1].source)
    with pytest.raises(FileUnreadable) as refused:
        BlobSender(store, JOB, 0, scratch=tmp_path, workers=1).send(files)
    assert str(refused.value) == f"{files[1].file.path}: its name is too long"
    assert not refused.value.may_pass
    assert list(store.list("")) == [], "nothing of it is sent"


def test_a_file_that_vanishes_before_it_is_held_is_left_for_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory_store()).begin()
    hold_all, gone = FileCopier.hold_all, list[bool]()

    def vanishing(self: FileCopier, files: Any, *, may_link: bool) -> Any:
        if not gone:
            gone.append(True)
            (world.folder / "old.pt").unlink()
        return hold_all(self, files, may_link=may_link)

    monkeypatch.setattr(FileCopier, "hold_all", vanishing)
    world.write(model="1", old="0")
    world.settle()
    assert gone and world.sync.status().error is None
    assert restored_content(world.store, tmp_path / "back") == {"model.pt": b"1"}


def test_a_restored_file_that_is_gone_again_hides_no_other(tmp_path: Path) -> None:
    store = memory_store()
    first = World(tmp_path, store).begin()
    first.write(a="1", b="2")
    first.settle()
    second = World(tmp_path, store, claim=2).restore_newest()
    (second.folder / "a.pt").unlink()
    second.begin()
    second.write(c="3")
    second.settle()
    before, after = ({blob.path: blob.upload for blob in one.manifests[0].files} for one in checkpoints(store))
    assert after.keys() == {"b.pt", "c.pt"}
    assert after["b.pt"] == before["b.pt"], "it is not sent again"


# ── Files that cannot be held ─────────────────────────────────────────────────────────────────────────────────────────


HANDLES = (errno.EMFILE, errno.ENFILE)
LINKS = (errno.EXDEV, errno.EMLINK, errno.ENOSPC)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("number", [*HANDLES, *LINKS, errno.ESTALE])
def test_files_are_not_held_where_handles_or_links_are_used_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, many: bool
) -> None:
    """Few files are held by handles, and many by links."""

    def failing(_copier: FileCopier, _file: File) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_copies, "MAX_SENT_HANDLES", 2 if many else 3)
    monkeypatch.setattr(FileCopier, "_link" if many else "hold", failing)
    copier, files = FileCopier(folder, tmp_path / "held"), list(scan(folder).values())
    if number in (LINKS if many else HANDLES):
        assert copier.hold_all(files, may_link=True) is None
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            copier.hold_all(files, may_link=True)


def test_files_that_were_overtaken_are_sent_without_copies_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = memory_store(), list[str]()

    def meddle(source: Path) -> None:
        sent.append(source.name)
        if len(sent) == 1:
            write(world.folder / "model.pt", "2")

    world = World(tmp_path, Meddling(store, meddle)).begin()  # type: ignore[arg-type]
    monkeypatch.setattr(file_copies.shutil, "disk_usage", lambda _folder: SimpleNamespace(free=0))
    world.write(model="1")
    while not sent:
        world.tick()
    # The change is seen, and the folder settles.
    world.tick()
    world.tick(every_s=10.0)
    assert world.sync.status().error is None
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"2"}
    assert sent == ["model.pt", "model.pt"], "a copy has another name"


# ── Scans ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "problem"),
    [(errno.EMFILE, "the agent cannot read it now (Too many open files)"), (errno.EIO, ""), (errno.ENOENT, None)],
)
def test_a_folder_that_cannot_be_listed_is_named_where_that_matters(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, problem: str | None
) -> None:
    write(folder / "sub" / "inner", "x")
    tops: list[int] = []

    def scandir(handle: Any) -> Any:
        tops.append(handle)
        if len(tops) % 2 == 0:
            raise OSError(number, os.strerror(number))
        return SCANDIR(handle)

    monkeypatch.setattr(folder_snapshot.os, "scandir", scandir)
    assert sorted(scan(folder)) == ["a", "b", "c"]
    found = scan(folder, closed_folders=True)
    assert sorted(found) == ["a", "b", "c", *(["sub/"] if problem is not None else [])]
    if problem is not None:
        assert stat.S_ISDIR(found["sub/"].mode) and found["sub/"].problem == problem


def test_a_single_file_that_the_kernel_mounted_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstat = os.fstat

    class Elsewhere:
        """A folder on another device than its files."""

        def __init__(self, found: os.stat_result) -> None:
            self.st_dev = found.st_dev + 1

    pseudo = {"b"}
    elsewhere = SimpleNamespace(**{**vars(os), "fstat": lambda handle: Elsewhere(fstat(handle))})
    monkeypatch.setattr(folder_snapshot, "os", elsewhere)
    monkeypatch.setattr(folder_snapshot, "_is_pseudo", lambda _handle, name: name in pseudo)
    assert sorted(scan(folder)) == ["a", "c"]
    pseudo.clear()
    assert sorted(scan(folder)) == ["a", "b", "c"], "of another disk"


def test_a_link_to_a_file_that_may_not_be_looked_at_is_named_where_that_matters(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "closed" / "file", "x")
    (folder / "b").unlink()
    (folder / "b").symlink_to(tmp_path / "closed" / "file")
    (tmp_path / "closed").chmod(0o000)
    try:
        with ordinary_permissions():
            assert sorted(scan(folder)) == ["a", "c"]
            found = scan(folder, closed_folders=True)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert sorted(found) == ["a", "b", "c"] and stat.S_ISDIR(found["b"].mode)


def test_a_folder_of_before_that_cannot_be_read_stays_one_of_before(folder: Path) -> None:
    write(folder / "closed/inner", "x")
    (folder / "closed").chmod(0o000)
    try:
        with ordinary_permissions():
            found = Baseline.take([folder])
    finally:
        (folder / "closed").chmod(0o700)
    assert found.has(folder, "closed/", 0, 0)
    assert sorted(found.files) == [f"{folder}/{name}" for name in ("a", "b", "c", "closed/")]


def test_a_link_out_of_all_folders_is_no_output(folder: Path, tmp_path: Path) -> None:
    links = {"away": FoundLink(folder / "away", "/etc"), "best": FoundLink(folder / "best", "a")}
    assert choose_links(links, [(folder, "")], ["a"]) == ({"best": "a"}, {"away": "a link out of the folder"})
