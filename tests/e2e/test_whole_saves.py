"""Real programs that are told, killed and cut off while they save: a checkpoint is whole, or it is not one."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from training_world import TrainingWorld, content

from stoker.testing.memory_store import MemoryStore

# `slow` writes in pieces, so that a test can hit the middle of it. Every program saves once, quickly, and says so;
# then it begins to save slowly, and says that, too.
PRELUDE = """
import json, os, pathlib, signal, sys, time
C = pathlib.Path("checkpoints")

def slow(path, data, pieces=40, mode="wb"):
    with open(path, mode) as file:
        for n in range(pieces):
            file.write(data[n * len(data) // pieces:(n + 1) * len(data) // pieces])
            file.flush()
            if n == 2: print("writes", path, flush=True)
            time.sleep(0.05)

def quick(path, data):
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    with open(path, "wb") as file: file.write(data)

def go_on():
    while not pathlib.Path("go").exists(): time.sleep(0.01)
"""


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(lambda: datetime.now(timezone.utc))


@pytest.fixture
def world(tmp_path: Path, memory: MemoryStore) -> TrainingWorld:
    return TrainingWorld(tmp_path, memory)


def begin(world: TrainingWorld, script: str, *, first: bool = True, argv: tuple[str, ...] | None = None) -> None:
    """Start a program; with `first`, until its first save is committed."""
    world.start(PRELUDE + script, argv=argv)
    if first:
        world.said("saved 1")
        world.wait_for_commits(1)
    (world.folder.parent / "go").touch()


OVERWRITES = """
quick(C / "model.bin", b"1" * 4000)
print("saved 1", flush=True)
go_on()
slow(C / "model.bin", b"2" * 4000)
print("saved 2", flush=True)
time.sleep(600)
"""

ENDS = {
    "told": lambda world: world.tell(3.0),
    "killed": lambda world: world.kill(),
    "crashed": lambda world: world.kill(number=signal.SIGSEGV),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_file_whose_writer_dies_is_not_committed(world: TrainingWorld, end: str) -> None:
    """The file is closed by then: only a look before that can tell."""
    begin(world, OVERWRITES)
    world.said("writes")
    ENDS[end](world)
    assert world.newest() == {"model.bin": b"1" * 4000}
    assert world.commits() == 1


@pytest.mark.parametrize("end", ENDS)
def test_a_file_overwritten_in_place_keeps_its_size_and_is_not_committed(world: TrainingWorld, end: str) -> None:
    begin(
        world, OVERWRITES.replace('slow(C / "model.bin", b"2" * 4000)', 'slow(C / "model.bin", b"2" * 4000, 40, "r+b")')
    )
    world.said("writes")
    ENDS[end](world)
    assert world.newest() == {"model.bin": b"1" * 4000}


def test_a_file_that_was_quiet_before_it_was_told_is_committed(world: TrainingWorld) -> None:
    """It has no handler and dies at once: what it had finished saving counts."""
    begin(world, OVERWRITES)
    world.said("saved 2")
    time.sleep(world.settle_s + 0.7)
    world.tell(3.0)
    assert world.newest() == {"model.bin": b"2" * 4000}


EXITS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
"""


def test_a_handler_that_exits_in_the_middle_of_a_save(world: TrainingWorld) -> None:
    """The file is closed while its writer lives, and the exit code is 0; it is cut off all the same."""
    begin(world, EXITS + OVERWRITES)
    world.said("writes")
    ended = world.tell()
    assert ended.code == 0
    assert world.newest() == {"model.bin": b"1" * 4000}


def test_a_file_that_is_opened_between_the_last_look_and_the_signal(world: TrainingWorld) -> None:
    """It is empty, and of no known format; the program exits before it has written anything."""
    script = """
quick(C / "model.bin", b"1" * 4000)
print("saved 1", flush=True)
while not pathlib.Path("looked").exists(): time.sleep(0.01)
with open(C / "model.bin", "wb") as file:
    print("opened", flush=True)
    time.sleep(600)
"""
    begin(world, EXITS + script)

    class OpensLate:
        watch_writers, before_kill = world.sync.watch_writers, world.sync.before_kill

        @staticmethod
        def before_signal() -> None:
            world.sync.before_signal()
            (world.folder.parent / "looked").touch()
            world.said("opened")

    world.training.observer = OpensLate()
    ended = world.tell()
    assert ended.code == 0
    assert world.newest() == {"model.bin": b"1" * 4000}


def test_a_torch_archive_closed_by_an_exit_lacks_tensors(world: TrainingWorld) -> None:
    script = """
import torch, torch.serialization
class Slow(torch.serialization._open_zipfile_writer_file):
    def __enter__(self):
        writer = super().__enter__()
        record = writer.write_record
        class Paced:
            def write_record(self, *args):
                record(*args)
                if slowly:
                    print("writes", flush=True)
                    time.sleep(0.2)
            def __getattr__(self, name): return getattr(writer, name)
        return Paced()
torch.serialization._open_zipfile_writer = Slow
state = lambda n: {str(key): torch.full((100,), float(n)) for key in range(10)}
slowly = False
torch.save(state(1), str(C / "ckpt.pt"))
print("saved 1", flush=True)
go_on()
slowly = True
torch.save(state(2), str(C / "ckpt.pt"))
time.sleep(600)
"""
    begin(world, EXITS + script)
    before = world.newest()
    world.said("writes\nwrites")
    ended = world.tell()
    assert ended.code == 0
    assert world.newest() == before


SAVES_WHEN_TOLD = """
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("ready", flush=True)
go_on()
while not told: time.sleep(0.01)
{save}
sys.exit({code})
"""


@pytest.mark.parametrize(
    "save",
    [
        'slow(C / "model.bin", b"x" * 4000, 10)',
        '(C / "step-7").mkdir(); slow(C / "step-7/a", b"x" * 400, 4); slow(C / "step-7/b", b"x" * 400, 4)',
        '(C / "a.json").write_text("{}"); (C / "b").write_bytes(b"b")',
    ],
)
@pytest.mark.parametrize("code", [0, 143])
def test_the_first_save_of_all_is_made_when_it_is_told(world: TrainingWorld, save: str, code: int) -> None:
    begin(world, SAVES_WHEN_TOLD.format(save=save, code=code), first=False)
    world.said("ready")
    ended = world.tell()
    assert ended.code == code
    left = content(world.folder)
    assert left and world.newest() == left


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_through_a_shell_the_last_save_counts_too(world: TrainingWorld, shell: str) -> None:
    script = SAVES_WHEN_TOLD.format(save='slow(C / "model.bin", b"x" * 4000, 10); time.sleep(0.3)', code=0)
    begin(world, script, first=False, argv=(shell, "-c", f"{sys.executable} train.py; echo done"))
    world.said("ready")
    world.tell()
    assert world.newest() == {"model.bin": b"x" * 4000}


def test_a_save_that_was_under_way_is_finished_and_made_anew(world: TrainingWorld) -> None:
    script = """
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
quick(C / "a.bin", b"1" * 4000); quick(C / "b.bin", b"1" * 4000)
print("saved 1", flush=True)
go_on()
for n in (b"2", b"3"):
    slow(C / "a.bin", n * 4000, 20); slow(C / "b.bin", n * 4000, 20)
sys.exit(0)
"""
    begin(world, script)
    world.said("writes")
    world.tell()
    assert world.newest() == {"a.bin": b"3" * 4000, "b.bin": b"3" * 4000}


def test_a_disk_that_is_full_in_the_last_save(world: TrainingWorld) -> None:
    """The writer gives up with an error, and closes what it has of its file."""
    save = """
try:
    slow(C / "model.bin", b"x" * 4000, 10)
    raise OSError(28, "No space left on device")
finally:
    time.sleep(0.5)
"""
    begin(world, SAVES_WHEN_TOLD.format(save=save, code=0), first=False)
    world.said("ready")
    ended = world.tell()
    assert ended.code == 1
    assert world.newest() == {}


PAIR = """
quick(C / "model.json", b'{"step": 1}'); quick(C / "optimizer.json", b'{"step": 1}')
print("saved 1", flush=True)
go_on()
quick(C / "model.json", b'{"step": 2}')
print("half", flush=True)
time.sleep(PAUSE)
quick(C / "optimizer.json", b'{"step": 2}')
print("saved 2", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ENDS)
def test_between_two_files_of_one_save(world: TrainingWorld, end: str) -> None:
    """Each file is whole by itself; together they would be a mix of two saves."""
    begin(world, PAIR.replace("PAUSE", "600"))
    world.said("half")
    ENDS[end](world)
    assert {json.loads(data)["step"] for data in world.newest().values()} == {1}


def test_a_pause_between_two_files_of_one_save(world: TrainingWorld) -> None:
    """Longer than a folder takes to settle."""
    begin(world, PAIR.replace("PAUSE", "4"))
    seen = []
    world.said("half")
    while "saved 2" not in world.log.read_text() or world.commits() < 2:
        seen.append(world.commits())
        time.sleep(0.1)
    for _ in range(world.commits()):
        assert len({json.loads(data)["step"] for data in world.newest().values()}) == 1
    assert set(seen) == {1}
    world.kill()


FOLDERS = """
def save(n, names):
    (C / f"checkpoint-{n}").mkdir()
    for name in names:
        quick(C / f"checkpoint-{n}" / name, json.dumps({"step": n}).encode())
ALL = ["model.json", "optimizer.json", "trainer_state.json"]
save(100, ALL)
print("saved 1", flush=True)
go_on()
save(200, ALL[:PART])
quick(C / "latest", b"checkpoint-200")
print("half", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("part", [1, 2])
def test_a_folder_of_which_files_are_missing(world: TrainingWorld, end: str, part: int) -> None:
    """Nothing is open and every file is whole. What was written after it, which may name it, is left out as well."""
    begin(world, FOLDERS.replace("PART", str(part)))
    world.said("half")
    ENDS[end](world)
    assert {path.partition("/")[0] for path in world.newest()} == {"checkpoint-100"}


@pytest.mark.parametrize("end", ENDS)
def test_a_folder_that_has_all_its_files_is_rescued(world: TrainingWorld, end: str) -> None:
    begin(world, FOLDERS.replace("PART", "3").replace('quick(C / "latest", b"checkpoint-200")', ""))
    world.said("half")
    ENDS[end](world)
    newest = world.newest()
    assert {path.partition("/")[0] for path in newest} == {"checkpoint-100", "checkpoint-200"}
    assert len(newest) == 6


def test_a_folder_in_the_middle_of_its_removal_stays_whole(world: TrainingWorld) -> None:
    script = """
for n in (1, 2):
    (C / f"checkpoint-{n}").mkdir()
    for name in "ab": quick(C / f"checkpoint-{n}" / f"{name}.json", b'{}' + b' ' * n)
print("saved 1", flush=True)
go_on()
(C / "checkpoint-3").mkdir()
for name in "ab": quick(C / "checkpoint-3" / f"{name}.json", b'{"n": 3}')
(C / "checkpoint-1/a.json").unlink()
print("half", flush=True)
time.sleep(600)
"""
    begin(world, script)
    world.said("half")
    world.kill()
    assert sorted(world.newest()) == sorted(f"checkpoint-{n}/{name}.json" for n in (1, 2, 3) for name in "ab")


def test_a_worker_that_dies_in_a_save_while_the_others_live_on(world: TrainingWorld) -> None:
    """A launcher takes its time to notice. The file rests meanwhile, and is cut off."""
    script = """
import subprocess
if "worker" not in sys.argv:
    child = subprocess.Popen([sys.executable, sys.argv[0], "worker"])
    print("worker", child.pid, flush=True)
    child.wait()
    time.sleep(8)
    sys.exit(1)
quick(C / "model.bin", b"1" * 4000)
print("saved 1", flush=True)
go_on()
slow(C / "model.bin", b"2" * 4000)
"""
    begin(world, script)
    world.said("writes")
    # Until the agent has seen who writes.
    time.sleep(0.5)
    pid = next(int(line.split()[1]) for line in world.log.read_text().splitlines() if line.startswith("worker"))
    world.kill(pid=pid)
    assert world.newest() == {"model.bin": b"1" * 4000}
    assert world.commits() == 1


def test_a_child_that_saves_and_ends_is_no_accident(world: TrainingWorld) -> None:
    script = """
import subprocess
def save(n):
    subprocess.run([sys.executable, "save.py", str(n)], check=True)
save(1)
print("saved 1", flush=True)
go_on()
save(2)
sys.exit(0)
"""
    saver = PRELUDE + 'slow(C / "model.bin", sys.argv[1].encode() * 4000)'
    begin(world, f"pathlib.Path('save.py').write_text({saver!r})\n" + script, first=False)
    world.wait()
    assert world.newest() == {"model.bin": b"2" * 4000}


def test_what_a_child_still_writes_when_the_command_has_finished(world: TrainingWorld) -> None:
    """It is killed with the rest, in the middle of its file."""
    script = """
quick(C / "model.bin", b"1" * 4000)
print("saved 1", flush=True)
go_on()
if os.fork() == 0:
    slow(C / "model.bin", b"2" * 4000)
    os._exit(0)
time.sleep(1)
os._exit(0)
"""
    begin(world, script)
    assert world.wait().code == 0
    assert world.newest() == {"model.bin": b"1" * 4000}


def test_small_files_are_not_committed_without_the_large_one(tmp_path: Path, memory: MemoryStore) -> None:
    """A name that is written first, and weights that take longer than the folder may stay unsettled."""
    world = TrainingWorld(tmp_path, memory, settle_s=0.5)
    world.busy_s = 2.0
    script = """
quick(C / "latest.json", b'{"n": 1}')
print("half", flush=True)
slow(C / "weights.bin", b"1" * 4000, 100)
print("saved 1", flush=True)
time.sleep(600)
"""
    world.start(PRELUDE + script)
    world.said("half")
    while "saved 1" not in world.log.read_text():
        assert world.commits() == 0
        time.sleep(0.1)
    world.wait_for_commits(1)
    assert set(world.newest()) == {"latest.json", "weights.bin"}
    world.kill()


def test_a_log_that_is_open_at_the_end_holds_nothing_back(world: TrainingWorld) -> None:
    script = """
log = open(C / "train.log", "w")
print("begins", file=log, flush=True)
""" + SAVES_WHEN_TOLD.format(save='slow(C / "model.bin", b"x" * 4000, 10)', code=0)
    begin(world, script, first=False)
    world.said("ready")
    world.tell()
    assert set(world.newest()) == {"model.bin", "train.log"}


def test_a_hung_store_does_not_make_a_torn_file_whole(tmp_path: Path, memory: MemoryStore) -> None:
    """The last commit is tried for longer than a folder takes to settle."""
    client = memory.client()
    world = TrainingWorld(tmp_path, client, settle_s=0.5)
    world.start(PRELUDE + OVERWRITES.replace("go_on()", 'go_on(); quick(C / "side/x.bin", b"s"); time.sleep(2)'))
    world.said("saved 1")
    world.wait_for_commits(1)
    client.outage(True)
    (world.folder.parent / "go").touch()
    world.said("writes")
    threading.Timer(2.0, client.outage, [False]).start()
    world.kill()
    assert world.newest() == {"model.bin": b"1" * 4000, "side/x.bin": b"s"}


def test_what_is_held_back_is_told(world: TrainingWorld) -> None:
    begin(world, OVERWRITES)
    world.said("writes")
    # Until it was looked at once.
    time.sleep(0.8)
    world.kill()
    held = world.sync.status().held_back
    assert held == "model.bin is not part of the checkpoint: it was being written when the training ended"
