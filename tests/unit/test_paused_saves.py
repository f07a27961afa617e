"""A program that pauses between two files of a save, for longer than the folder takes to settle.

It may evaluate, or gather the state of its optimizer, between two calls of `torch.save`. The first commit is made in
the middle of its first save: nothing shows what belongs to it. From the second save on, no checkpoint mixes two saves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, checkpoints, restored_content, write

from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.errors import StoreUnavailable
from stoker.store.base import Store
from stoker.testing.memory_store import MemoryStore

memory = checkpoint_world.memory
NAMES = ("model", "optimizer", "rng")
SAVES = 5


class Program:
    """Writes the files of each save with these pauses between them, and rests between two saves."""

    def __init__(self, world: World, layout: str, pauses: tuple[float, ...], rest_s: float) -> None:
        self.world, self.layout, self.pauses, self.rest_s = world, layout, pauses, rest_s
        self._began_s = time.time() - 100_000

    def write(self, name: str, step: int) -> None:
        """One file, stamped with the time of the test's clock."""
        paths = {
            "folders": f"step-{step}/{name}.bin",
            "numbered": f"{name}-step-{step}.bin",
            "parts": f"{name}/weights.bin",
        }
        path = self.world.folder / paths.get(self.layout, f"{name}.bin")
        # Renamed into its place, as good programs do, or written over.
        draft = path if self.layout == "over" else path.with_name(f".tmp-{name}")
        write(draft, f"{step:09}")
        now_s = self._began_s + self.world.clock.s
        os.utime(draft, (now_s, now_s))
        draft.replace(path)

    def wait(self, seconds: float) -> None:
        self.world.tick(rounds=round(seconds / 0.5))

    def save(self, step: int) -> Iterator[str]:
        """Save, and yield after each file."""
        for name, pause_s in zip(NAMES, (*self.pauses, self.rest_s), strict=False):
            self.write(name, step)
            yield name
            self.wait(pause_s)

    def run(self, saves: int = SAVES, after: int = 0) -> None:
        for step in range(after + 1, after + saves + 1):
            for _ in self.save(step):
                pass


def refuse(*_: object, **__: object) -> None:
    """Any write to a store that is down."""
    raise StoreUnavailable("it is down")


def newest_save(files: dict[str, bytes]) -> dict[str, int]:
    """The files that a program would load, and their steps: the newest folder, or the newest number of each kind."""
    found = {path: int(data) for path, data in files.items() if path != "config.bin"}
    folder = max((path.rpartition("/")[0] for path in found if path.startswith("step-")), default="")
    newest: dict[str, int] = {}
    for path, step in found.items():
        if path.startswith(folder):
            name = path.partition("-step-")[0] if not folder else path
            newest[name] = max(newest.get(name, 0), step)
    return newest


def saved_steps(store: Store, back: Path) -> list[dict[str, int]]:
    return [newest_save(restored_content(store, back / str(n), one.key)) for n, one in enumerate(checkpoints(store))]


LAYOUTS = ["flat", "over", "folders", "numbered", "parts"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rest_s", [4.0, 8.0, 25.0, 100.0])
@pytest.mark.parametrize("pauses", [(3.0,), (6.0,), (3.0, 3.0), (1.0, 5.0), (5.0, 1.0), (20.0,), (40.0, 3.0)])
def test_no_checkpoint_mixes_two_saves(
    memory: MemoryStore, tmp_path: Path, layout: str, rest_s: float, pauses: tuple[float, ...]
) -> None:
    world = World(tmp_path, memory, keep=1000).begin()
    Program(world, layout, pauses, rest_s).run()
    found = saved_steps(memory, tmp_path / "back")
    mixed = [one for one in found if len(set(one.values())) > 1]
    partial = [one for one in found if len(one) <= len(pauses)]
    assert not mixed
    # Only the first save may be in the store without its last files.
    assert all(set(one.values()) == {1} for one in partial), partial
    whole = {min(one.values()) for one in found if one not in partial}
    assert whole >= set(range(3, SAVES)), found


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rest_s", [8.0, 100.0])
@pytest.mark.parametrize("pauses", [(3.0,), (3.0, 3.0), (40.0, 3.0)])
def test_a_program_that_resumes_mixes_no_saves_either(
    memory: MemoryStore, tmp_path: Path, layout: str, rest_s: float, pauses: tuple[float, ...]
) -> None:
    first = World(tmp_path, memory, keep=1000).begin()
    Program(first, layout, pauses, rest_s).run(3)
    first.alive = False
    first.sync.final(60.0, TrainingEnd("died"))
    (before,) = {*saved_steps(memory, tmp_path / "back")[-1].values()}
    assert before == 3
    key = checkpoints(memory)[-1].key
    second = World(tmp_path, memory, claim=2, keep=1000).restore_newest()
    second.clock.s = first.clock.s + 100
    second.begin()
    assert second.restored is not None and second.restored.key == key
    Program(second, layout, pauses, rest_s).run(4, after=3)
    found = saved_steps(memory, tmp_path / "again")
    assert [one for one in found if len(set(one.values())) > 1] == []
    assert {step for one in found if len(one) > len(pauses) for step in one.values()} >= {3, 4, 5, 6}, found


@pytest.mark.parametrize("layout", ["flat", "over"])
def test_a_file_that_is_written_once_is_not_waited_for_in_every_save(
    memory: MemoryStore, tmp_path: Path, layout: str
) -> None:
    world = World(tmp_path, memory, keep=1000).begin()
    program = Program(world, layout, (3.0,), 60.0)
    program.write("config", 0)
    program.run(5)
    found = saved_steps(memory, tmp_path / "back")
    assert [one for one in found if len(set(one.values())) > 1] == []
    assert {step for one in found if len(one) == 2 for step in one.values()} >= {2, 3, 4, 5}, found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rest_s", [8.0, 100.0])
def test_saves_that_the_store_could_not_take_are_not_mixed_with_the_next(
    memory: MemoryStore, tmp_path: Path, layout: str, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory, keep=1000).begin()
    program = Program(world, layout, (3.0, 3.0), rest_s)
    program.run(3)

    with monkeypatch.context() as patch:
        for method in ("put", "create"):
            patch.setattr(memory, method, refuse)
        program.run(2, after=3)
        (*_, last) = program.save(6)
        assert last == "rng"
    program.run(3, after=6)
    found = saved_steps(memory, tmp_path / "back")
    assert [one for one in found if len(set(one.values())) > 1] == []
    assert {SAVES + 4} <= {step for one in found if len(one) == 3 for step in one.values()}, found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pauses", [(3.0,), (3.0, 3.0), (40.0, 3.0)])
@pytest.mark.parametrize("waited_s", [0.0, 2.5, 39.0])
def test_a_program_that_dies_between_two_files_continues_from_the_save_before(
    memory: MemoryStore, tmp_path: Path, layout: str, pauses: tuple[float, ...], waited_s: float
) -> None:
    world = World(tmp_path, memory).begin()
    program = Program(world, layout, pauses, 8.0)
    program.run(3)
    for _ in program.save(4):
        program.wait(min(waited_s, pauses[0]))
        break
    world.alive = False
    world.sync.final(60.0, TrainingEnd("died"))
    newest = saved_steps(memory, tmp_path / "back")[-1]
    assert set(newest.values()) == {3} and len(newest) == len(pauses) + 1


def test_a_folder_of_the_save_before_is_committed_though_the_next_save_has_begun(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its companion stays as it was committed, and both are of one save."""
    world = World(tmp_path, memory).begin()
    program = Program(world, "parts", (), 0.0)
    program.write("model", 1)
    program.wait(5)
    with monkeypatch.context() as patch:
        for method in ("put", "put_file", "create"):
            patch.setattr(memory, method, refuse)
        program.write("optimizer", 1)
        program.wait(5)
        # Nothing shows that it was written to its end.
        program.write("model", 2)
        world.tick()
    world.alive = False
    world.sync.final(60.0, TrainingEnd("died"))
    assert saved_steps(memory, tmp_path / "back")[-1] == {"model/weights.bin": 1, "optimizer/weights.bin": 1}
