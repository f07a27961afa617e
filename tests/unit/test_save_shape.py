"""Tests of `SaveShapes`: the files that one save consists of, learnt from commits."""

from __future__ import annotations

from collections import Counter

from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.save_shape import TICK_NS, SaveShapes, Shape, shape_of
from stoker.model.node_facts import BlobRef

MODEL, STATE = "checkpoint-1/model.bin", "checkpoint-1/state.json"


def blob(path: str, digest: str = "a", size: int = 10) -> BlobRef:
    return BlobRef(path, digest * 64, size)


def blobs(*files: BlobRef) -> dict[str, BlobRef]:
    return {file.path: file for file in files}


def file(path: str, tick: int = 0, size: int = 10) -> File:
    return File(path, Signature(1, hash(path), size, tick * TICK_NS, tick * TICK_NS), 0o644)


def learnt(before: dict[str, BlobRef], after: dict[str, BlobRef]) -> SaveShapes:
    shapes = SaveShapes()
    shapes.learn(after, before)
    return shapes


def test_the_shape_is_of_files_that_changed() -> None:
    kept, config = blob("config.json"), blob("ckpt.pt")
    shapes = learnt(blobs(kept, config), blobs(kept, blob("ckpt.pt", "b")))
    assert shapes.missing("", [file("ckpt.pt")]) is None
    assert shapes.missing("", [file("config.json")]) == "ckpt.pt"


def test_a_commit_that_changed_nothing_teaches_nothing() -> None:
    shapes = learnt(blobs(blob(MODEL)), blobs(blob(MODEL)))
    assert not shapes.knows("checkpoint-1") and shapes.missing("checkpoint-1", [file(MODEL)]) == ""
    assert not shapes.same_size(MODEL, 10)


def test_a_file_that_is_missing_is_named_by_its_role() -> None:
    shapes = learnt({}, blobs(blob(MODEL), blob(STATE)))
    assert shapes.knows("checkpoint-2")
    second = "checkpoint-2/model.bin", "checkpoint-2/state.json"
    assert shapes.missing("checkpoint-2", [file(second[0])]) is not None
    assert shapes.missing("checkpoint-2", [file(second[0]), file(second[1], 5)]) is None


def test_the_file_that_a_save_writes_last_has_to_be_the_newest() -> None:
    shapes = SaveShapes()
    paths = {path: file(path, tick) for tick, path in enumerate(("a.bin", "b.json"), start=5)}
    shapes.learn(blobs(blob("a.bin"), blob("b.json")), {}, files=paths)
    assert shapes.missing("", [file("a.bin", 20), file("b.json", 30)]) is None
    assert shapes.missing("", [file("a.bin", 40), file("b.json", 30)]) == "b.json"


def test_streams_are_of_no_save() -> None:
    shapes = SaveShapes()
    shapes.learn(blobs(blob("ckpt.pt"), blob("events.log")), {}, open_logs={"events.log"})
    assert shapes.missing("", [file("ckpt.pt")]) is None


def test_a_save_that_began_again_is_seen() -> None:
    shapes = learnt({}, blobs(blob(MODEL), blob(STATE)))
    assert not shapes.exceeded("checkpoint-2", {"checkpoint-2/model.bin": 1, "checkpoint-2/state.json": 1})
    assert shapes.exceeded("checkpoint-2", {"checkpoint-2/model.bin": 2})
    assert not SaveShapes().exceeded("checkpoint-2", {"checkpoint-2/model.bin": 9})


def test_sizes_are_of_the_newest_commit_and_by_role() -> None:
    shapes = learnt({}, blobs(blob(MODEL, size=100)))
    assert shapes.same_size("checkpoint-2/model.bin", 100) and not shapes.same_size("checkpoint-2/model.bin", 99)
    shapes.learn(blobs(blob(MODEL, "b", size=200)), blobs(blob(MODEL, size=100)), forms={MODEL: "zip:1"})
    assert not shapes.same_size(MODEL, 100) and shapes.same_size(MODEL, 200)
    assert shapes.same_form("checkpoint-7/model.bin", "zip:1") and not shapes.same_form(MODEL, "zip:2")


def test_files_within_a_tick_have_no_known_order() -> None:
    assert shape_of([file("a", 1), file("b", 3), file("c", 3)]).last == {"b", "c"}
    assert shape_of([file("a", 1), file("b", 3)]).last == {"b"}


def test_an_observed_shape_counts_until_a_commit_teaches_one() -> None:
    seen = Shape(shape_of([file("a.bin"), file("b.json", 2)]).counts, frozenset({"b.json"}))
    shapes = SaveShapes(lambda _unit: seen)
    assert shapes.knows("") and shapes.missing("", [file("a.bin", 5)]) == "b.json"
    assert shapes.missing("", [file("a.bin", 5), file("b.json", 9)]) is None


def test_forms_are_by_role_and_of_the_newest_commit() -> None:
    shapes = SaveShapes()
    shapes.learn(blobs(blob("epoch-1.npz")), {}, (), {"epoch-1.npz": "zip:a"})
    assert shapes.same_form("epoch-2.npz", "zip:a")
    assert not shapes.same_form("epoch-2.npz", "zip:b")
    assert not shapes.same_form("other.npz", "zip:a")
    shapes.learn(blobs(blob("epoch-2.npz", "b")), blobs(blob("epoch-1.npz")), (), {"epoch-2.npz": "zip:b"})
    assert shapes.same_form("epoch-3.npz", "zip:b")
    assert not shapes.same_form("epoch-3.npz", "zip:a")


def test_a_file_is_never_empty_only_if_none_of_its_role_was_committed_so() -> None:
    shapes = learnt({}, blobs(blob("step-1/a"), blob("step-1/b", size=0)))
    assert shapes.never_empty("step-2/a")
    assert not shapes.never_empty("step-2/b")
    assert not shapes.never_empty("unheard-of")


def test_of_several_saves_in_one_commit_the_largest_tells_the_shape() -> None:
    shapes = learnt({}, blobs(blob("step-1/a"), blob("step-2/a"), blob("step-2/b"), blob("step-3/a")))
    assert shapes.missing("step-4", [file("step-4/a")]) == "step-#/b"
    assert shapes.missing("step-4", [file("step-4/a"), file("step-4/b", 5)]) is None


def test_files_once_written_within_a_tick_are_of_one_save_if_they_lie_close_together() -> None:
    shapes = SaveShapes()
    both = {path: file(path, 5) for path in ("a.bin", "b.bin")}
    shapes.learn(blobs(blob("a.bin"), blob("b.bin")), {}, files=both)
    assert shapes.missing("", [file("a.bin", 20), file("b.bin", 30)]) is None
    assert shapes.missing("", [file("a.bin", 20), file("b.bin", 31)]) == "a.bin"


def test_parts_of_two_saves_lie_further_apart_than_those_of_one() -> None:
    shapes = SaveShapes()
    parts = {f"rank{rank}.pt": file(f"rank{rank}.pt", tick) for rank, tick in ((0, 0), (1, 40))}
    shapes.learn(blobs(*(blob(path) for path in parts)), {}, files=parts)
    # As far apart as before, and a quarter more.
    assert shapes.missing("", [file("rank0.pt", 100), file("rank1.pt", 150)]) is None
    assert shapes.missing("", [file("rank0.pt", 100), file("rank1.pt", 151)]) == "rank#.pt"
    # Those of a new folder are of one save, however long it takes.
    folder = {f"step-1/rank{rank}.pt": file(f"step-1/rank{rank}.pt", tick) for rank, tick in ((0, 0), (1, 40))}
    shapes.learn(blobs(*(blob(path) for path in folder)), {}, files=folder)
    assert shapes.missing("step-2", [file("step-2/rank0.pt", 100), file("step-2/rank1.pt", 900)]) is None


def test_a_save_that_begins_with_something_new_is_not_known_by_what_was_observed() -> None:
    seen = Shape(Counter({"a": 1, "b": 1}), frozenset({"b"}))
    shapes = SaveShapes(lambda _unit: seen)
    assert shapes.missing("", [file("a", 5), file("b", 6)]) is None
    assert shapes.missing("", [file("extra", 4), file("a", 5), file("b", 6)]) is None, "written before the save"
    assert shapes.missing("", [file("extra", 5), file("a", 5), file("b", 6)]) == ""
    assert shapes.missing("", [file("a", 6), file("b", 5)]) == "b"
    assert shapes.missing("", [file("a", 6)]) == "b"


def test_what_was_observed_tells_how_many_files_one_of_several_saves_has() -> None:
    """A commit may hold several saves that lie side by side."""
    seen = Shape(Counter({"ckpt_#.pt": 1}), frozenset({"ckpt_#.pt"}))
    shapes = SaveShapes(lambda _unit: seen)
    shapes.learn(blobs(*(blob(f"ckpt_{number}.pt") for number in range(3))), {})
    assert not shapes.exceeded("", {"ckpt_3.pt": 1})
    assert shapes.exceeded("", {"ckpt_3.pt": 1, "ckpt_4.pt": 1})
    assert not SaveShapes().exceeded("", {"ckpt_3.pt": 9})
