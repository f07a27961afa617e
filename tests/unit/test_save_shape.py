"""Tests of `SaveShapes`: the files that one save consists of, learnt from commits."""

from __future__ import annotations

from stoker.agent.checkpoints.save_shape import TICK_NS, SaveShapes, Shape, shape_of
from stoker.agent.snapshot import File, Signature
from stoker.model import BlobRef

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
    shapes.learn(blobs(blob("ckpt.pt"), blob("events.log")), {}, streams={"events.log"})
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
