"""An agent that is killed alone: its stamp names the files that were open, and none of them counts as whole."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, age, checkpoints, restored_content, write
from test_sync import LIMIT_S
from test_sync_end import recovering

from stoker.agent.checkpoints.commit_schedule import AliveStamp
from stoker.processes import OpenFile, WritableFiles
from stoker.store.base import Store

# Fixtures that all tests of checkpoints share.
store = checkpoint_world.store


def killed(world: World) -> World:
    """The agent was killed, its training died with it, and the next agent takes over."""
    world.open.clear()
    world.alive = False
    return recovering(world)


def half_written(world: World, path: str) -> None:
    """The training wrote a part of the file long ago, and has it open still."""
    write(world.folder / path, "first half")
    age(world.folder, seconds=60)
    world.open.add(path)


def test_a_file_that_rested_while_it_was_open_is_not_whole(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(a__model="1", b__model="1")
    world.settle()
    write(world.folder / "a/model.pt", "2")
    half_written(world, "b/model.pt")
    world.tick(rounds=4)
    after = killed(world)
    after.sync.final(LIMIT_S)
    assert restored_content(store, tmp_path / "back") == {"a/model.pt": b"2", "b/model.pt": b"1"}
    held_back = after.sync.status().held_back or ""
    assert held_back.startswith(
        "b/model.pt is not part of the checkpoint: it was being written when the training ended"
    )
    assert "b/model.pt" in after.sync.torn()


def test_a_first_file_that_rested_while_it_was_open_is_no_checkpoint(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    half_written(world, "model.pt")
    world.tick(rounds=4)
    assert killed(world).sync.final(LIMIT_S) is None and not checkpoints(store)


def test_a_file_that_no_scan_has_seen_yet_is_among_them(tmp_path: Path, store: Store) -> None:
    """A scan of a large folder comes once a minute, and nothing is scanned while files are sent."""
    world = World(tmp_path, store).begin()
    world.tick(rounds=4)
    half_written(world, "model.pt")
    world.clock.advance(1.0)
    world.sync._alive.touch()
    assert killed(world).sync.final(LIMIT_S) is None and not checkpoints(store)


def test_a_file_whose_writer_had_died_with_it_open_is_not_whole(tmp_path: Path, store: Store) -> None:
    """One of several processes was killed; the others, and the agent, lived a few seconds longer."""
    world = World(tmp_path, store).begin()
    half_written(world, "model.pt")
    world.tick(rounds=4)
    world.open.clear()
    world.alive = False
    world.tick(rounds=8)
    assert killed(world).sync.final(LIMIT_S) is None and not checkpoints(store)


def test_a_file_that_was_closed_before_the_agent_was_last_seen_is_whole(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    half_written(world, "model.pt")
    world.tick(rounds=2)
    world.open.clear()
    world.tick(rounds=2)
    assert killed(world).sync.final(LIMIT_S) is not None
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"first half"}


def test_a_file_that_its_format_shows_to_be_whole_is_committed(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    write(world.folder / "1/state.json", '{"step": 1}')
    world.settle()
    write(world.folder / "2/state.json", '{"step": 2}')
    age(world.folder, seconds=60)
    world.open.add("2/state.json")
    world.tick(rounds=4)
    assert killed(world).sync.final(LIMIT_S) is not None
    assert set(restored_content(store, tmp_path / "back")) == {"1/state.json", "2/state.json"}


def test_a_log_that_is_always_open_holds_nothing_back(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writing(world: World, _aliased: object) -> WritableFiles:
        return WritableFiles({world.folder / "history.txt": OpenFile(frozenset({1}), True)}, frozenset({1}))

    with monkeypatch.context() as patched:
        patched.setattr(World, "writing", writing)
        world = World(tmp_path, store).begin()
        write(world.folder / "history.txt", "epoch 1")
        write(world.folder / "model.pt", "1")
        age(world.folder, seconds=60)
        world.tick(rounds=2)
    assert killed(world).sync.final(LIMIT_S) is not None
    assert set(restored_content(store, tmp_path / "back")) == {"history.txt", "model.pt"}


@pytest.mark.parametrize(
    "text", ["", "\0" * 40, "[]", '{"boot": 1}', '{"maybe_half_written": 1, "boot": ""}', "{" * 99]
)
def test_without_a_list_of_open_files_nothing_counts_as_whole(tmp_path: Path, store: Store, text: str) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="1")
    age(world.folder, seconds=60)
    (world.scratch / "alive").write_text(text)
    assert killed(world).sync.final(LIMIT_S) is None and not checkpoints(store)


def test_names_that_are_no_text_are_listed_too(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.pt")
    stamp = AliveStamp(tmp_path / "alive", lambda: [name], lambda: 0.0)
    stamp.touch()
    last = stamp.read()
    assert last is not None and last.same_boot and last.maybe_half_written == {name}


def test_a_file_that_is_opened_while_the_stamp_is_made_is_newer_than_the_stamp(tmp_path: Path) -> None:
    """Then it does not count as quiet, though it is not in the list."""
    opened = tmp_path / "model.pt"
    stamp = AliveStamp(tmp_path / "alive", lambda: _open_after(opened), lambda: 0.0)
    for _ in range(3):
        stamp.touch()
        last = stamp.read()
        assert last is not None and last.at_ns <= opened.stat().st_mtime_ns


def _open_after(path: Path) -> Collection[str]:
    before_ns = max(each.stat().st_mtime_ns for each in path.parent.iterdir())
    path.touch()
    while path.stat().st_mtime_ns <= before_ns:
        path.touch()
    return []


def test_the_stamp_is_whole_at_every_moment(tmp_path: Path) -> None:
    """An agent may be killed while it makes one: the list and its time are of the same stamp."""
    names: list[str] = []
    seen: list[tuple[int, object]] = []
    path = tmp_path / "alive"

    def observe() -> list[str]:
        if path.exists():
            seen.append((path.stat().st_mtime_ns, json.loads(path.read_text())["maybe_half_written"]))
        return names

    stamp = AliveStamp(path, observe, lambda: 0.0)
    stamp.touch()
    names = ["model.pt"]
    made_ns = path.stat().st_mtime_ns
    stamp.touch()
    assert seen == [(made_ns, [])]
    stamp.touch()
    assert seen[-1][1] == ["model.pt"]
