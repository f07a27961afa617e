"""Rounds of the output sync: when it looks, what it sends in one, and what it cannot keep."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoint_world import JOB, memory_store, write
from output_world import LIMIT_S, World, world

from stoker.agent import output_sync
from stoker.agent.output_files import OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.store.base import FileChanged
from stoker.testing.memory_store import Fault

__all__ = ["world"]

# ── When it looks, and what is ready ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_local", "settle_s", "cost_s", "expected_s"),
    [
        (True, 10.0, 0.0, 1.0),
        (False, 10.0, 0.0, 5.0),
        (True, 0.25, 0.0, 0.25),
        (True, 10.0, 0.02, 2.0),  # A hundredth of the time at most goes into looking.
        (True, 10.0, 5.0, 60.0),
    ],
)
def test_looks_are_apart_by_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, settle_s: float, cost_s: float, expected_s: float
) -> None:
    world = World(tmp_path, is_local=is_local, settle_s=settle_s)
    spent = iter([7.0, 7.0 + cost_s])
    monkeypatch.setattr(output_sync, "time", SimpleNamespace(thread_time=lambda: next(spent), sleep=time.sleep))
    world.sync.tick()
    assert world.sync._scan_at == pytest.approx(world.clock.s + expected_s)


def test_between_looks_nothing_is_looked_for(world: World) -> None:
    world.tick()
    world.write("a", "1")
    world.clock.s += 0.9
    world.sync.tick()
    assert world.sync.status().files == 0
    world.clock.s += 0.1
    world.sync.tick()
    assert world.sync.status().files == 1


def test_a_file_rests_from_its_last_change_on(world: World) -> None:
    world.write("a", "1")
    world.tick()
    world.clock.s += 0.9
    world.sync._scan_at = 0.0
    world.sync.tick()
    assert world.plain() == {}
    world.write("a", "22")
    world.sync._scan_at = 0.0
    world.tick(every_s=0.9)
    assert world.plain() == {}
    world.tick(every_s=1.0)
    assert world.plain() == {"a": b"22"}


def test_a_log_that_never_rests_is_put_every_now_and_then(world: World) -> None:
    for number in range(200):
        world.write("log", f"{number:03d}")
        world.tick()
    assert len([name for name in world.written if name == "log"]) in (5, 6), (
        "of 100 s: thrice, under two names but once"
    )


def test_a_large_file_that_never_rests_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    for number in range(100):
        world.write("large", f"{number:011d}")
        world.write("small", f"{number:010d}")
        world.tick()
    assert "small" in world.written and "large" not in world.written


def test_a_file_that_is_caught_in_the_middle_of_a_write_is_put_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, writing = output_sync.signature_of, [True]

    def changed(path: Path, file: object) -> object:
        if writing[0]:
            write(path, path.read_text() + "x")
        return own(path, file)  # type: ignore[arg-type]

    monkeypatch.setattr(output_sync, "signature_of", changed)
    world.write("a", "1")
    world.tick(rounds=20)
    assert world.plain() == {} and world.sync.status().unsynced_bytes > 0
    writing[0] = False
    world.tick(rounds=8)
    assert world.plain()["a"].startswith(b"1x")
    assert world.sync.status().unsynced_bytes == 0


def test_a_file_that_changed_while_it_was_sent_is_sent_again(world: World) -> None:
    def change(_method: str, _key: str) -> None:
        if not world.written:
            world.write("a", "22")

    world.before = change
    world.write("a", "1")
    world.tick(rounds=8)
    assert world.plain() == {"a": b"22"} and world.sync.status().unsynced_bytes == 0


def test_a_large_file_that_changes_in_the_middle_is_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    own, changes = world.sync._writer.write_file, [1]

    def write_file(path: str, held: Path) -> int:
        if changes:
            changes.pop()
            raise FileChanged("it changed")
        return own(path, held)

    monkeypatch.setattr(world.sync._writer, "write_file", write_file)
    world.write("large", "1" * 20)
    world.tick(rounds=4)
    assert world.plain() == {"large": b"1" * 20}
    assert world.sync.status() == output_sync.OutputStatus(files=1, unsynced_bytes=0, bytes_moved=20)


def test_a_file_of_exactly_the_size_that_memory_takes_passes_through_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    parts: list[str] = []
    own = world.sync._writer.write_file
    monkeypatch.setattr(world.sync._writer, "write_file", lambda path, held: parts.append(path) or own(path, held))
    world.write("whole", "1" * 10)
    world.write("parts", "1" * 11)
    world.tick(rounds=6)
    assert parts == ["parts"] and set(world.plain()) == {"whole", "parts"}


def test_nothing_more_is_sent_while_it_is_held_but_everything_at_the_end(world: World) -> None:
    world.sync.pause()
    world.write("a", "1")
    world.tick(rounds=10)
    assert world.plain() == {}
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"1"}


def test_of_a_file_that_was_removed_nothing_is_reported(world: World) -> None:
    world.write("a", "1")
    world.write("b", "22")
    world.tick(rounds=6)
    (world.folder / "a").unlink()
    assert world.sync.final(LIMIT_S)
    report = world.sync.report()
    assert (report.files, report.size, report.left_out) == (1, 2, 0)


def test_a_file_that_is_removed_and_made_again_rests_anew(world: World) -> None:
    world.write("a", "1")
    world.tick(every_s=30.0)
    (world.folder / "a").unlink()
    world.tick(every_s=30.0)
    world.write("a", "2")
    world.tick(every_s=30.0)
    assert world.plain() == {}, "it is as new as any other"


# ── What cannot be kept ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_gone_when_it_is_to_be_sent_and_is_written_anew_is_sent(world: World) -> None:
    """Other files are sent between the scan and the file's turn, which may take minutes."""
    world.write("a", "1")
    world.write("b", "1")
    world.tick(rounds=2)

    def remove_other(_method: str, key: str) -> Fault | None:
        (world.folder / ("b" if key.endswith("a") else "a")).unlink(missing_ok=True)
        return None

    world.before = remove_other
    world.tick()
    world.before = lambda _method, _key: None
    assert len(world.plain()) == 1
    world.write("a", "2")
    world.write("b", "2")
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"2", "b": b"2"}


def test_names_that_no_store_takes_are_reported_with_their_size_and_folders_by_a_link_are_not(world: World) -> None:
    long = "/".join(["d" * 200] * 4 + ["e" * 97])
    world.write(long, "long")
    world.write(long[:-1], "just fits")
    world.write("new\nline", "odd")
    world.write("real/a", "1")
    (world.folder / "link").symlink_to("real")
    assert world.sync.final(LIMIT_S)
    report = world.sync.report()
    assert set(world.plain()) == {"real/a", long[:-1]}
    assert [(one.path, one.size, one.why) for one in report.named] == [
        (long, 4, "its name cannot be kept in the store"),
        ("new\\nline", 3, "its name cannot be kept in the store"),
    ]
    assert (report.left_out, report.left_out_size) == (2, 7)


def test_of_what_is_left_out_the_largest_is_named_first_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "MOST_NAMED", 2)
    for name, size in (("a", 1), ("b", 3), ("c", 3), ("d", 2)):
        write(tmp_path / "work" / name, "x" * size)
    sync = OutputSync(memory_store(), JOB, 1, 0, OutputFiles([], OutputSource(tmp_path / "work"), most_bytes=0))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert [one.path for one in report.named] == ["b", "c"]
    assert (report.left_out, report.left_out_size) == (4, 9)
