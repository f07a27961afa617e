"""Tests of `WriteHistory`: what was observed of writes to the checkpoint folder."""

from __future__ import annotations

from stoker.agent.checkpoints.write_history import WriteHistory
from stoker.agent.snapshot import File, Signature
from stoker.processes.open_files import OpenFile

PATH = "ckpt.pt"
WRITER = 4711


def signature(size: int, at: int = 1, inode: int = 7) -> Signature:
    return Signature(1, inode, size, at, at)


class Folder:
    """One file, looked at every second."""

    def __init__(self) -> None:
        self.history = WriteHistory(settle_s=2.0, patience_s=5.0)
        self.now = 100.0

    def look(self, seen: Signature | None, *, after_s: float = 1.0, writer: int | None = None) -> None:
        self.now += after_s
        self.history.note_files({PATH: File(PATH, seen, 0o644)} if seen else {}, self.now)
        found = {PATH: OpenFile(frozenset({writer}), appending=False)} if writer is not None else {}
        alive = frozenset({writer}) if writer is not None else frozenset()
        self.history.note_open(found, alive, lambda _path: seen)


def test_a_file_whose_writer_died_is_suspect_until_it_is_written_again() -> None:
    folder = Folder()
    folder.look(signature(10), writer=WRITER)
    folder.look(signature(20), writer=None)
    assert folder.history.died_open() == {PATH}
    folder.look(signature(20))
    assert folder.history.died_open() == {PATH}
    folder.look(signature(50, at=9))
    assert folder.history.died_open() == set()


def test_a_write_that_goes_on_is_no_new_save() -> None:
    folder = Folder()
    for size in (10, 20, 30):
        folder.look(signature(size, at=size))
    assert folder.history.rounds == {PATH: 1}
    folder.look(signature(5, at=40))
    assert folder.history.rounds == {PATH: 2}, "cut, and begun anew"
    folder.look(signature(5, at=50))
    assert folder.history.rounds == {PATH: 2}, "too soon after the last change"
    folder.look(signature(5, at=60), after_s=2.0)
    assert folder.history.rounds == {PATH: 3}, "rewritten after a calm moment"
    folder.look(signature(9, at=70, inode=8))
    assert folder.history.rounds == {PATH: 4}, "replaced"


def test_a_commit_starts_the_count_again() -> None:
    folder = Folder()
    folder.look(signature(10))
    folder.history.committed([PATH])
    assert folder.history.rounds == {}


def test_a_file_that_is_gone_is_forgotten() -> None:
    folder = Folder()
    folder.look(signature(10), writer=WRITER)
    folder.look(signature(10))
    folder.look(None)
    folder.look(signature(10))
    assert folder.history.died_open() == set()
    assert folder.history.removed_at
