"""Tests of `SaveCycles`, look by look: what is learnt of one save from files that are written again and again."""

from __future__ import annotations

import pytest

from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.save_cycles import SaveCycles


class Looks:
    """A folder that is looked at. Each look names what was done since the last one, in words.

    `a@20`: `a` was written after 20 ms, from its beginning; `a@20=5`: and has 5 bytes, not 10. `+a@20`: it was
    replaced. `!a@20`: it is open. `*a@20`: it is whole by its format. `-a`: it was removed. `~a`: its status changed.
    """

    def __init__(self) -> None:
        self.cycles = SaveCycles()
        self.files: dict[str, File] = {}
        self.whole: set[str] = set()
        self.inode = 0

    def look(self, words: str) -> None:
        opened = set()
        for word in words.split():
            path, _, when = word.lstrip("+!*-~").partition("@")
            if word[0] == "-":
                del self.files[path]
                continue
            ms, _, size = when.partition("=")
            self.inode += 1
            old = self.files[path].signature if path in self.files else Signature(1, self.inode, 0, 0, 0)
            if word[0] == "~":
                self.files[path] = File(path, old._replace(changed_ns=old.changed_ns + 1), 0o644)
                continue
            inode = self.inode if word[0] == "+" else old.inode
            at_ns = int(ms) * 1_000_000
            self.files[path] = File(path, Signature(1, inode, int(size or 10), at_ns, at_ns), 0o644)
            (self.whole.add if word[0] == "*" else self.whole.discard)(path)
            opened |= {path} if word[0] == "!" else set()
        self.cycles.note(dict(self.files), opened, self.whole.__contains__)


def seen(looks: str) -> Looks:
    """A folder that was empty at first; looks are separated by `|`."""
    folder = Looks()
    folder.look("")
    for words in looks.split("|"):
        folder.look(words)
    return folder


def learnt(looks: str, unit: str = "") -> dict[str, int] | None:
    shape = seen(looks).cycles.shape(unit)
    return None if shape is None else dict(shape.counts)


MODEL = {"model": 1}
BOTH = {"model": 1, "state": 1}
SHARDS = {"ckpt_#": 2}
EPOCH = {"epoch-#": 1}


@pytest.mark.parametrize(
    ("looks", "shape"),
    [
        # One save: what comes after it is not known.
        ("model@0", None),
        ("model@0 | state@100", None),
        ("model@0 | model@1000", MODEL),
        ("model@0 | +model@1000=99", MODEL),
        # It grows: its save goes on. It was whole: then it is written again.
        ("model@0 | model@1000=99", None),
        ("*model@0 | model@1000=99", MODEL),
        # A link to it is no write.
        ("model@0 | ~model", None),
        # It was open when it was seen: it was not written before it is seen closed.
        ("model@0 | !model@500=5 | model@1000", MODEL),
        ("!model@0 | model@1000", None),
        # Written twice between two looks counts once; not in the look after.
        ("model@0 state@50 | model@1000 state@1050", None),
        ("model@0 | state@50 | model@1000 state@1050", BOTH),
        ("model@0 | state@50 | | model@1000 state@1050 | model@2000", BOTH),
        # Seen with the other at first, and before it when all had rested.
        ("model@0 state@50 | | model@1000 | state@1050 | model@2000", BOTH),
        # A cycle that begins with another file than the first was not seen from its beginning.
        ("model@0 state@50 | state@1000 | | model@1050 | state@2000", None),
        # A file that is gone was of no save; one that is never written again, neither.
        ("model@0 | state@50 | -state | model@1000", None),
        ("other@0 model@50 | -other | model@1000 | model@2000", MODEL),
        # The save was not observed to its end: a file was written in the meantime.
        ("model@0 | state@50 | model@1000 | model@2000", MODEL),
    ],
)
def test_a_file_that_is_written_again_ends_the_save_before(looks: str, shape: dict[str, int] | None) -> None:
    assert learnt(looks) == shape


@pytest.mark.parametrize(
    ("looks", "shape"),
    [
        # Numbers that count time count saves, however close they lie.
        ("epoch-1@0", None),
        ("epoch-1@0 epoch-2@1", EPOCH),
        ("epoch-1@0 | epoch-2@1", EPOCH),
        # Others count saves if they lie apart, skip numbers or are high.
        ("ckpt_0@0 | ckpt_1@250", None),
        ("ckpt_0@0 | ckpt_1@251", {"ckpt_#": 1}),
        ("ckpt_0@5000 | ckpt_1@5010", None),
        ("ckpt_0@0 | !ckpt_1@300 | ckpt_1@301", None),
        ("ckpt_0@0 | ckpt_2@10", {"ckpt_#": 1}),
        ("ckpt_15@0 | ckpt_16@10", None),
        ("ckpt_16@0 | ckpt_17@10", {"ckpt_#": 1}),
        # Files that are overwritten, or written downwards, are parts.
        ("ckpt_0@0 ckpt_1@20 | ckpt_0@1000 ckpt_1@1020", SHARDS),
        ("ckpt_1@0 ckpt_0@20 | ckpt_1@1000 ckpt_0@1020", SHARDS),
        ("ckpt_0@0 | ckpt_1@1000 | ckpt_0@2000 | ckpt_1@3000 | ckpt_0@4000 | ckpt_1@5000", SHARDS),
        ("ckpt_0@0 ckpt_1@10 ckpt_2@20 | | ckpt_0@1000", {"ckpt_#": 3}),
        ("ckpt_1@0 ckpt_0@20 | ckpt_2@1000 | ckpt_3@2000", None),
        # Until then it looked as if each were a save.
        ("ckpt_0@0 | ckpt_9@1000 ckpt_5@1001", None),
        # An epoch that is written again counts saves still.
        (
            "epoch-1-a@0 epoch-1-b@20 | epoch-1-a@1000 epoch-1-b@1020 | epoch-2-a@2000 | epoch-3-a@3000",
            {"epoch-#-a": 1},
        ),
        # Files of two numbers are two saves, of which one was not seen to its end.
        ("epoch-1-a@0 epoch-1-b@20 | epoch-2-b@1000 epoch-2-a@1020", {"epoch-#-a": 1, "epoch-#-b": 1}),
        ("epoch-1-a@0 | epoch-2-b@1000 | epoch-2-a@1020", None),
        ("epoch-1-a@0 epoch-1-b@20 | epoch-2-b@1000", {"epoch-#-a": 1, "epoch-#-b": 1}),
        # Files of other names have numbers of their own.
        ("epoch-5-a@0 | step-1-b@20 | step-2-b@1000 | step-3-b@2000", {"step-#-b": 1}),
        ("ckpt_0@0 save_0@10 | save_0@1000", None),
        # Parts that have a number beside that of their save; of two numbers the second counts.
        ("ckpt_1_rank0@0 ckpt_1_rank1@10 | ckpt_2_rank0@1000", {"ckpt_#_rank#": 2}),
        ("ckpt_3_save_0@0 | ckpt_3_save_1@10", None),
        ("ckpt_20_save_0@0 | ckpt_20_save_1@10", None),
        ("ckpt_3_save_0@0 | ckpt_3_save_3@10", {"ckpt_#_save_#": 1}),
    ],
)
def test_the_next_number_ends_the_save_before(looks: str, shape: dict[str, int] | None) -> None:
    assert learnt(looks) == shape


def test_what_lies_there_at_first_is_of_no_save() -> None:
    folder = Looks()
    folder.look("old@0 model@0")
    folder.look("model@1000")
    assert folder.cycles.shape("") is None
    folder.look("model@2000")
    assert dict(folder.cycles.shape("").counts) == MODEL  # type: ignore[union-attr]


def test_each_kind_of_folder_has_a_shape_of_its_own() -> None:
    looks = "model@0 checkpoint-10/a@0 checkpoint-10/b@20 best/a@30 | checkpoint-20/a@1000 best/a@1030"
    assert learnt(looks) is None
    assert learnt(looks, "checkpoint-30") == {"checkpoint-#/a": 1, "checkpoint-#/b": 1}
    assert learnt(looks, "best") == {"best/a": 1}
    assert learnt(looks, "another") is None


@pytest.mark.parametrize(
    ("looks", "last"),
    [
        ("model@0 | state@50 | model@1000 state@1050 | model@2000", {"state"}),
        # Within a tick of the clock; then only one order is possible.
        ("model@0 | state@5 | model@1000 state@1005 | model@2000", {"model", "state"}),
        ("model@0 | state@5 | model@1000 state@1050 | model@2000", {"state"}),
        # The order changed from save to save: nothing is known.
        ("model@0 | a@50 | b@100 | model@1000 b@1050 a@1100 | model@2000", None),
    ],
)
def test_the_file_that_came_last_is_the_one_that_did_so_each_time(looks: str, last: set[str] | None) -> None:
    shape = seen(looks).cycles.shape("")
    assert (None if shape is None else shape.last) == last


def test_a_file_is_compared_with_what_it_was_when_the_last_save_was_finished() -> None:
    folder = seen("model@0=10 | model@1000=8")
    at = Signature(1, 1, 10, 0, 0)
    for size, shrank in ((9, True), (10, False), (11, False)):
        assert folder.cycles.shrank(File("model", at._replace(size=size), 0o644)) is shrank
    assert folder.cycles.shrank(File("other", at, 0o644))
    assert folder.cycles.shrank(File("unheard-of/model", at, 0o644))
