"""Which files one save consists of, learnt from saves that were observed and never committed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, checkpoints, restored_content

from stoker.agent.checkpoints.file_numbers import counts_time, generation_of, newest_counts
from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.save_cycles import _SaveUnderWay
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.store.base import Store

LIMIT_S = 60.0
DIED = TrainingEnd("died")


class Saver:
    """A program that writes JSON files, one after the other, at times that the test chooses."""

    def __init__(self, world: World) -> None:
        self.world, self.now_s = world, time.time() - 1000

    def write(self, path: str, step: int, *, after_s: float = 0.02, replace: bool = False) -> None:
        self.now_s += after_s
        target = self.world.folder / path
        target.parent.mkdir(exist_ok=True)
        part = target.with_name("x.tmp") if replace else target
        part.write_text(json.dumps({"step": step}))
        os.utime(part, (self.now_s, self.now_s))
        part.replace(target)

    def save(self, *paths: str, step: int, looks: int = 2) -> None:
        for path in paths:
            self.write(path, step)
        self.world.tick(looks)
        self.now_s += 0.5 * looks

    def die(self) -> None:
        self.world.alive = False
        self.world.sync.final(LIMIT_S, DIED)


@pytest.fixture
def store() -> Store:
    return checkpoint_world.memory_store()


@pytest.fixture
def saver(tmp_path: Path, store: Store) -> Saver:
    return Saver(World(tmp_path, store).begin())


def steps(store: Store, back: Path) -> dict[str, int]:
    if not checkpoints(store):
        return {}
    return {path: json.loads(data)["step"] for path, data in restored_content(store, back).items()}


def test_a_file_that_was_written_twice_shows_its_shape(saver: Saver, store: Store, tmp_path: Path) -> None:
    """Killed right after its second save: nothing was ever committed."""
    saver.save("model.json", step=1, looks=1)
    saver.write("model.json", 2)
    saver.die()
    assert steps(store, tmp_path / "back") == {"model.json": 2}


def test_a_single_save_shows_nothing(saver: Saver, store: Store) -> None:
    saver.save("model.json", step=1, looks=1)
    saver.die()
    assert checkpoints(store) == []


@pytest.mark.parametrize("names", ["epoch-{:03d}.json", "model_step{}.json", "e=1-iter={}.json"])
def test_numbered_files_show_the_shape_of_a_save(saver: Saver, store: Store, tmp_path: Path, names: str) -> None:
    """All of them appeared since the last look."""
    for n in (1, 2):
        saver.write(names.format(n), n)
    saver.die()
    assert steps(store, tmp_path / "back") == {names.format(n): n for n in (1, 2)}


@pytest.mark.parametrize("names", ["rank{}.json", "model-0000{}-of-00003.json", "ckpt_{}.json", "part-{}.json"])
def test_parts_of_one_save_show_nothing(saver: Saver, store: Store, names: str) -> None:
    for n in (1, 2):
        saver.write(names.format(n), n)
    saver.die()
    assert checkpoints(store) == []


@pytest.mark.parametrize("half", [False, True])
def test_numbered_folders_show_the_shape_of_a_save(saver: Saver, store: Store, tmp_path: Path, half: bool) -> None:
    names = ("model.json", "optimizer.json")
    for n in (10, 20):
        saver.save(*(f"checkpoint-{n}/{name}" for name in names[: 1 if half and n == 20 else 2]), step=n, looks=1)
    saver.die()
    found = {path.partition("/")[0] for path in steps(store, tmp_path / "back")}
    assert found == ({"checkpoint-10"} if half else {"checkpoint-10", "checkpoint-20"})


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("order", [("a.json", "b.json"), ("b.json", "a.json")])
@pytest.mark.parametrize("half", [False, True])
def test_files_that_are_overwritten_together(
    saver: Saver, store: Store, tmp_path: Path, order: tuple[str, str], half: bool, replace: bool
) -> None:
    for step in (1, 2):
        for path in order:
            saver.write(path, step, replace=replace)
        saver.world.tick(3)
        saver.now_s += 1
    for path in order[: 1 if half else 2]:
        saver.write(path, 3, replace=replace)
    saver.die()
    # The second was copied when it was known what belongs to it.
    whole = 2 if half else 3
    assert steps(store, tmp_path / "back") == {"a.json": whole, "b.json": whole}


def test_files_written_within_a_tick_have_no_order(saver: Saver, store: Store, tmp_path: Path) -> None:
    """Sorted by name, `weights` would be the last, and the first half of the third save a whole one."""
    for step in (1, 2):
        saver.write("weights.json", step)
        saver.write("meta.json", step, after_s=0.0)
        saver.world.settle()
        saver.now_s += 40
        assert steps(store, tmp_path / f"back-{step}") == {"weights.json": step, "meta.json": step}
    saver.write("weights.json", 3)
    saver.write("meta.json", 3, after_s=0.0)
    saver.world.tick()
    saver.now_s += 1
    saver.write("weights.json", 4)
    saver.die()
    assert steps(store, tmp_path / "back") == {"weights.json": 2, "meta.json": 2}


def test_pauses_inside_a_save_teach_no_smaller_one(saver: Saver, store: Store, tmp_path: Path) -> None:
    """Each pause is as long as the time between saves."""
    for step in range(1, 30):
        for path in ("model.json", "optimizer.json"):
            saver.write(path, step)
            saver.world.tick(3)
            saver.now_s += 1.5
            found = steps(store, tmp_path / f"back-{step}-{path}")
            assert len(set(found.values())) <= 1
    assert checkpoints(store)


def test_a_program_that_never_rests_is_committed_after_a_few_seconds(
    saver: Saver, store: Store, tmp_path: Path
) -> None:
    """Not after half a minute: a save that is whole by its shape and its format is copied in a calm moment."""
    for step in range(1, 9):
        saver.save("model.json", step=step)
    assert checkpoints(store)
    found = steps(store, tmp_path / "back")
    saver.write("model.json", 0)
    (saver.world.folder / "model.json").write_text('{"step": 1')
    saver.die()
    assert steps(store, tmp_path / "again") == found


@pytest.mark.parametrize("away_s", [-1_000_000.0, 1_000_000.0])
def test_times_of_another_clock_show_no_calm(saver: Saver, store: Store, away_s: float) -> None:
    """Written between any two looks, by a program that sets the times of its files, as `cp -p` and rsync do."""
    saver.now_s = time.time() + away_s
    for step in range(1, 30):
        saver.save("model.json", step=step, looks=1)
    assert checkpoints(store) == []
    saver.world.tick(2)
    assert checkpoints(store)


def test_a_folder_that_is_being_removed_is_no_calm(saver: Saver, store: Store) -> None:
    """Each look sees one more file of an old save gone, while the new one is whole and calm."""
    for step in range(1, 20):
        (saver.world.folder / "old").mkdir(exist_ok=True)
        (saver.world.folder / "old" / f"{step}.json").write_text("{}")
    saver.world.settle()
    before = len(checkpoints(store))
    for step in range(1, 20):
        if step % 2:
            saver.write(f"checkpoint-{step}/model.json", step)
            saver.write(f"checkpoint-{step}/optimizer.json", step)
        (saver.world.folder / "old" / f"{step}.json").unlink()
        saver.world.tick()
        saver.now_s += 0.5
    assert len(checkpoints(store)) == before


def test_a_folder_that_is_half_removed_is_not_committed(saver: Saver, store: Store, tmp_path: Path) -> None:
    """The program, which never rests, had to wait in the middle of removing an old save."""
    for step in (1, 2):
        saver.save(f"checkpoint-{step}/a.json", f"checkpoint-{step}/b.json", step=step)
    saver.world.settle()
    for step in range(3, 9):
        saver.save(f"checkpoint-{step}/a.json", f"checkpoint-{step}/b.json", step=step, looks=1)
        (saver.world.folder / f"checkpoint-{step - 2}" / "a.json").unlink()
        saver.world.tick(2)
        found = steps(store, tmp_path / f"back-{step}")
        assert sorted(path.partition("/")[0] for path in found if path.endswith("a.json")) == sorted(
            path.partition("/")[0] for path in found if path.endswith("b.json")
        )
        (saver.world.folder / f"checkpoint-{step - 2}" / "b.json").unlink()
        saver.world.tick()
    saver.world.tick(8)
    assert set(steps(store, tmp_path / "back").values()) == {7, 8}


def test_a_commit_of_many_saves_teaches_the_shape_of_one(saver: Saver, store: Store, tmp_path: Path) -> None:
    for n in (1, 2, 3):
        saver.save(f"epoch-{n}.json", step=n, looks=1)
    saver.world.settle()
    saver.now_s += 60
    assert len(steps(store, tmp_path / "back")) == 3
    saver.write("epoch-4.json", 4)
    saver.die()
    assert len(steps(store, tmp_path / "again")) == 4


@pytest.mark.parametrize(
    ("path", "generation", "time"),
    [
        ("epoch-003.json", (3,), True),
        ("epoch=3-step=40.ckpt", (3, 40), True),
        ("checkpoint-200/optimizer.pt", (200,), False),
        ("global_step40/mp_rank_00_model_states.pt", (40,), True),
        ("checkpoint-00001-of-00002.pt", (), False),
        ("rng_state_0.pth", (), False),
        ("rank3.pt", (), False),
        ("footstep5", (), False),
    ],
)
def test_numbers_that_count_saves(path: str, generation: tuple[int, ...], time: bool) -> None:
    assert (generation_of(path), counts_time(path)) == (generation, time)


def test_the_newest_generation_is_counted() -> None:
    paths = [f"epoch-{n}-shard-{part}.pt" for n, parts in ((1, 4), (2, 1)) for part in range(parts)]
    assert newest_counts(paths) == {"epoch-#-shard-#.pt": 1}


def test_a_file_that_only_some_saves_write_holds_nothing_up(saver: Saver, store: Store, tmp_path: Path) -> None:
    """It would be waited for again and again, as long as saves follow one another closely."""
    for step in range(1, 60):
        saver.save("last.json", *(["best.json"] if step == 3 else []), step=step, looks=10)
    found = steps(store, tmp_path / "back")
    assert found["best.json"] == 3
    assert found["last.json"] >= 57


def test_a_file_without_a_format_is_copied_while_its_writer_lives(saver: Saver, store: Store) -> None:
    for step in range(1, 9):
        saver.now_s += 1
        path = saver.world.folder / "weights.bin"
        path.write_bytes(bytes([step]) * 100)
        os.utime(path, (saver.now_s, saver.now_s))
        saver.world.tick(2)
    assert checkpoints(store)


def test_a_file_that_is_smaller_than_before_is_not_copied(saver: Saver, store: Store) -> None:
    for step in range(1, 9):
        saver.now_s += 1
        path = saver.world.folder / "weights.bin"
        path.write_bytes(bytes([step]) * (100 - step))
        os.utime(path, (saver.now_s, saver.now_s))
        saver.world.tick(2)
    assert checkpoints(store) == []


def test_a_hard_link_to_a_save_is_no_write(saver: Saver, store: Store, tmp_path: Path) -> None:
    for step in (1, 2):
        saver.write(f"step-{step}.json", step)
        last = saver.world.folder / "last.json"
        last.unlink(missing_ok=True)
        last.hardlink_to(saver.world.folder / f"step-{step}.json")
        saver.world.tick(2)
        saver.now_s += 1
    saver.die()
    assert steps(store, tmp_path / "back") == {"step-1.json": 1, "step-2.json": 2, "last.json": 2}


@pytest.mark.parametrize("half", [False, True])
def test_files_of_all_ranks_are_of_one_save(saver: Saver, store: Store, tmp_path: Path, half: bool) -> None:
    """All have one role, and come in any order: all may differ from the last commit and be of two saves."""
    ranks = ["ckpt_0.json", "ckpt_1.json", "ckpt_2.json"]
    saver.save(*ranks, step=1, looks=80)
    assert set(steps(store, tmp_path / "first").values()) == {1}
    saver.save(*reversed(ranks), step=2, looks=1)
    for path in ranks[: 1 if half else 3]:
        saver.write(path, 3)
    saver.die()
    assert steps(store, tmp_path / "back") == dict.fromkeys(ranks, 1 if half else 3)


def test_the_newest_file_is_compared_with_the_others() -> None:
    save = _SaveUnderWay()
    for path in ("epoch-1.pt", "epoch-2.pt", "loss-9.txt"):
        save.add(File(path, Signature(1, 1, 1, 1, 1), 0o644))
    assert save.newest_beside("epoch-2.pt", "epoch-#.pt") == generation_of("epoch-1.pt")
    assert save.newest_beside("epoch-3.pt", "epoch-#.pt") == generation_of("epoch-2.pt")
    assert save.newest_beside("loss-9.txt", "loss-#.txt") is None
