"""Which files are whole when a training was told to end and went by itself, by what was seen of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, manifest_keys, restored_content, write

from stoker.agent.checkpoints import folder_watcher
from stoker.agent.checkpoints.companion_units import CompanionUnits
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature
from stoker.agent.checkpoints.format_check import FormatCheck
from stoker.agent.checkpoints.save_shape import SaveShapes
from stoker.agent.checkpoints.whole_saves import SaveJudge, TrainingEnd
from stoker.agent.checkpoints.write_history import STREAM_BYTES, STREAM_S, WRITER_DIED_S, PreSignalState, WriteHistory
from stoker.model.node_facts import BlobRef
from stoker.processes import OpenFile, WritableFiles
from stoker.testing.memory_store import MemoryStore

memory = checkpoint_world.memory

ROOT, WORKER, YOUNG = 10, 11, 99
SETTLE_S, PATIENCE_S = 2.0, 30.0
LEFT = TrainingEnd("left", root=ROOT, alone=True, succeeded=True)


def signature(version: int = 1, size: int = 100, inode: int = 7) -> Signature:
    return Signature(1, inode, size, version * 1_000_000_000, version * 1_000_000_000)


def files(**versions: int) -> Files:
    """`files(a=1, sub__b=2)`: how often each was written; two underscores for a slash, and `.pt` at the end."""
    found = {f"{name.replace('__', '/')}.pt": version for name, version in versions.items()}
    return {path: File(path, signature(version), 0o644) for path, version in found.items()}


class Scene:
    """A folder as it was when the training was told, and as it is at its end."""

    def __init__(
        self, before: Files, *, at: float = 100.0, survives: bool = True, expecting: tuple[int, ...] = (ROOT,)
    ) -> None:
        self.history = WriteHistory(SETTLE_S, PATIENCE_S)
        self.before = before
        self.at = at
        self.history.note_files(before, 0.0)
        self.members = frozenset({ROOT, WORKER})
        self.history.members = self.members
        self.mark = PreSignalState(
            at=at,
            files={path: file.signature for path, file in before.items()},
            unsettled=set(),
            unsettled_units=set(),
            open=set(),
            members=self.members,
            expecting=frozenset(expecting),
            survives=survives,
        )
        self.shapes = SaveShapes()
        self.checks: dict[str, FormatCheck] = {}

    def knows(self, *paths: str) -> Scene:
        """A save of these files was committed before."""
        blobs = {path: BlobRef(path, "d", 100) for path in paths}
        self.shapes.learn(blobs, {})
        return self

    def held(self, now: Files, end: TrainingEnd = LEFT, changed: tuple[str, ...] = ()) -> dict[str, str]:
        """The reasons by unit, when the training has ended with these files."""
        self.history.pre_signal = self.mark
        self.history.note_files(now, self.at + 1.0)
        self.history.end()
        known = self.mark.files
        differ = [path for path in now if known.get(path) != now[path].signature or path in changed]
        judge = SaveJudge(
            now,
            differ,
            self.history,
            self.shapes,
            CompanionUnits(),
            {},
            lambda path: self.checks.get(path, FormatCheck("unknown")),
            (),
        )
        return {unit: held.reason for unit, held in judge.at_end(end).items()}


# ── A training that went by itself ────────────────────────────────────────────────────────────────────────────────────


def test_a_save_that_began_after_the_notice_ran_to_its_end() -> None:
    assert Scene(files(a=1)).held(files(a=2)) == {}
    assert Scene({}).held(files(a=2, s__b=1)) == {}


def test_a_save_of_a_process_that_dies_of_the_signal_may_be_cut_off() -> None:
    scene = Scene(files(a=1), survives=False)
    assert scene.held(files(a=2)) == {"": "it was written just before the training ended"}
    scene = Scene(files(a=1))
    scene.mark.writers["a.pt"] = frozenset({WORKER})
    assert scene.held(files(a=2)) == {"": "it was written just before the training ended"}
    for survivor in (ROOT, YOUNG):
        scene = Scene(files(a=1))
        scene.mark.writers["a.pt"] = frozenset({WORKER, survivor})
        assert scene.held(files(a=2)) == {}


def test_a_file_that_was_open_when_the_training_was_told_is_cut_off_unless_it_was_begun_anew() -> None:
    scene = Scene(files(a=1))
    scene.mark.open.add("a.pt")
    assert scene.held(files(a=2)) == {"": "it was being written when the training ended"}
    # It was seen closed, and is as it was then: its writer went on, but did not begin it anew.
    scene = Scene(files(a=1))
    scene.mark.open.add("a.pt")
    scene.mark.closed_as["a.pt"] = signature(2)
    assert scene.held(files(a=2)) == {"": "it was being written when the training ended"}
    scene = Scene(files(a=1))
    scene.mark.open.add("a.pt")
    scene.mark.closed_as["a.pt"] = signature(2)
    assert scene.held(files(a=3)) == {}


def test_a_file_whose_format_shows_its_end_is_whole_however_it_was_written() -> None:
    scene = Scene(files(a=1))
    scene.mark.open.add("a.pt")
    scene.checks["a.pt"] = FormatCheck("whole")
    scene.knows("a.pt")
    assert scene.held(files(a=2)) == {}
    scene.checks["a.pt"] = FormatCheck("broken", "its end is missing")
    assert scene.held(files(a=2)) == {"": "its end is missing"}
    scene.shapes.learn({"a.pt": BlobRef("a.pt", "d", 100)}, {}, forms={"a.pt": "zip:members"})
    for form, held in (("zip:members", {}), ("zip:fewer", {"": "it was being written when the training ended"})):
        scene.checks["a.pt"] = FormatCheck("plausible", form=form)
        assert scene.held(files(a=2)) == held


def writer_died_holding(scene: Scene, path: str, writer: int) -> None:
    """A file was open since the notice, and is not any more, and neither is its writer."""
    scene.history.pre_signal = scene.mark
    scene.history.scanned_at = scene.at
    scene.history.note_open({path: OpenFile(frozenset({writer}), False)}, scene.members, lambda _: signature(2))
    scene.history.note_open({}, frozenset(), lambda _: signature(2))


def test_a_writer_that_exits_with_success_has_closed_its_file() -> None:
    scene = Scene(files(a=1))
    writer_died_holding(scene, "a.pt", ROOT)
    assert scene.held(files(a=2)) == {}
    # Of several processes the command alone is known to have succeeded.
    several = replace(LEFT, alone=False)
    scene = Scene(files(a=1))
    writer_died_holding(scene, "a.pt", ROOT)
    assert scene.held(files(a=2), several) == {}
    scene = Scene(files(a=1), expecting=(ROOT, WORKER))
    writer_died_holding(scene, "a.pt", WORKER)
    assert scene.held(files(a=2), several) == {"": "it was being written when the training ended"}
    scene = Scene(files(a=1))
    writer_died_holding(scene, "a.pt", ROOT)
    quiet = TrainingEnd("left", root=ROOT, alone=True)
    assert scene.held(files(a=2), quiet) == {"": "it was being written when the training ended"}


@pytest.mark.parametrize(("usual", "kept"), [(100, True), (111, True), (112, False)])
def test_a_writer_that_exits_with_success_may_have_left_a_thread_in_the_middle_of_a_save(
    usual: int, kept: bool
) -> None:
    scene = Scene(files(a=1))
    scene.shapes.learn({"a.pt": BlobRef("a.pt", "d", usual)}, {})
    writer_died_holding(scene, "a.pt", ROOT)
    assert scene.held(files(a=2)) == ({} if kept else {"": "it was being written when the training ended"})


def test_a_writer_that_fails_may_have_given_up_in_the_middle() -> None:
    failed = TrainingEnd("left", root=ROOT, alone=True, failed=True)
    assert Scene(files(a=1)).held(files(a=2), failed) == {"": "it was being written when the training ended"}
    several = replace(failed, alone=False)
    assert Scene(files(a=1)).held(files(a=2), several) == {}, "which of them failed is not known"
    scene = Scene(files(a=1))
    scene.mark.writers["a.pt"] = frozenset({ROOT})
    assert scene.held(files(a=2), several) == {"": "it was being written when the training ended"}


def test_a_save_that_was_under_way_must_have_all_its_files() -> None:
    scene = Scene(files(a=2, b=1)).knows("a.pt", "b.pt")
    scene.mark.unsettled.add("a.pt")
    scene.mark.unsettled_units.add("")
    assert scene.held(files(a=2, b=1), changed=("a.pt",)) == {"": "its save stopped before b.pt was written"}
    scene = Scene(files(a=2, b=1)).knows("a.pt", "b.pt")
    scene.mark.unsettled.add("a.pt")
    scene.mark.unsettled_units.add("")
    assert scene.held(files(a=2, b=2), changed=("a.pt",)) == {}


def test_a_first_save_that_was_under_way_shows_nothing_of_what_belongs_to_it() -> None:
    scene = Scene(files(a=2))
    scene.mark.unsettled.add("a.pt")
    scene.mark.unsettled_units.add("")
    reason = "it was saved just before the end, and no earlier save shows what belongs to it"
    assert scene.held(files(a=2), changed=("a.pt",)) == {"": reason}
    # It went on after the notice: where its files are shown to be whole, all of it came.
    scene = Scene(files(a=2))
    scene.mark.unsettled.add("a.pt")
    scene.checks["a.pt"] = FormatCheck("whole")
    assert scene.held(files(a=2, b=1), changed=("a.pt",)) == {}
    scene = Scene(files(a=2))
    scene.mark.unsettled.add("a.pt")
    assert scene.held(files(a=2, b=1), changed=("a.pt",)) == {"": reason}


@pytest.mark.parametrize("survives", [True, False], ids=["left", "died"])
def test_a_quiet_save_that_lacks_files_is_waited_for_and_held_until_they_are_overdue(survives: bool) -> None:
    """A program that fails between two files of a save may take a while to end."""
    now = files(a=2, b=1)
    scene = Scene(now, at=PATIENCE_S / 2, survives=survives).knows("a.pt", "b.pt")
    assert scene.held(now, changed=("a.pt",)) == {"": "its save stopped before b.pt was written"}
    scene = Scene(now, at=PATIENCE_S * 2, survives=survives).knows("a.pt", "b.pt")
    assert scene.held(now, changed=("a.pt",)) == {}


def test_what_was_quiet_when_the_training_was_told_is_whole() -> None:
    scene = Scene(files(a=2)).knows("a.pt")
    assert scene.held(files(a=2), changed=("a.pt",)) == {}
    scene = Scene(files(a=2), survives=False).knows("a.pt")
    assert scene.held(files(a=2), changed=("a.pt",)) == {}


@pytest.mark.parametrize("alone", [True, False])
def test_a_training_that_failed_may_have_left_out_files_of_its_save(alone: bool) -> None:
    """Alone, or as a launcher that gave its worker some time and then ended it."""
    failed = TrainingEnd("left", root=ROOT, alone=alone, failed=True)
    scene = Scene({}).knows("s/a.pt", "s/b.pt")
    scene.checks["s/a.pt"] = FormatCheck("whole")
    assert scene.held(files(s__a=2), failed) == {"s": "its save stopped before s/b.pt was written"}
    scene = Scene({}).knows("s/a.pt", "s/b.pt")
    scene.checks["s/a.pt"] = FormatCheck("whole")
    assert scene.held(files(s__a=2)) == {}, "with success it meant to save no more"


def test_a_file_that_is_shown_to_be_whole_speaks_for_no_other() -> None:
    died = TrainingEnd("died")
    scene = Scene({}).knows("a.pt", "b.pt")
    scene.checks["a.pt"] = FormatCheck("whole")
    assert scene.held(files(a=2, b=2), died) == {"": "it was written just before the training ended"}
    scene = Scene({}).knows("a.pt", "b.pt")
    scene.checks |= {"a.pt": FormatCheck("whole"), "b.pt": FormatCheck("whole")}
    assert scene.held(files(a=2, b=2), died) == {}


def test_a_folder_that_was_being_removed_at_the_end_is_held_back_and_one_that_lies_still_is_not() -> None:
    scene = Scene(files(step_1__a=1, step_1__b=1, step_2__a=1)).knows("step_0/a.pt", "step_0/b.pt")
    died = TrainingEnd("died")
    assert scene.held(files(step_1__b=1, step_2__a=1), died) == {"step_1": "files of it were being removed"}


def test_what_was_open_at_the_end_is_not_whole() -> None:
    end = replace(LEFT, open=frozenset({"a.pt"}))
    assert Scene({}).held(files(a=2), end) == {"": "it was being written when the training ended"}


# ── What was seen of the files ────────────────────────────────────────────────────────────────────────────────────────


def opened(
    history: WriteHistory, now: float, found: Files, *paths: str, writer: int = ROOT, appending: bool = False
) -> None:
    history.note_files(found, now)
    handles = {path: OpenFile(frozenset({writer}), appending) for path in paths}
    history.note_open(handles, frozenset({ROOT}), lambda path: found[path].signature if path in found else None)


def test_a_file_whose_writer_died_with_it_open_is_doubtful_for_a_while() -> None:
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    opened(history, 0.0, files(a=1), "a.pt", writer=WORKER)
    assert history.last_seen_open("a.pt") and history.writer_died_holding() == set()
    opened(history, 5.0, files(a=1))
    assert (
        history.writer_died_holding() == {"a.pt"} and history.last_seen_open("a.pt") and "a.pt" in history.unsettled(())
    )
    opened(history, 5.0 + WRITER_DIED_S - 1.0, files(a=1))
    assert history.writer_died_holding() == {"a.pt"}
    opened(history, 5.0 + WRITER_DIED_S, files(a=1))
    assert history.writer_died_holding() == set() and "a.pt" not in history.unsettled(())


def test_a_file_that_is_written_again_is_no_longer_one_that_died_open() -> None:
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    opened(history, 0.0, files(a=1), "a.pt", writer=WORKER)
    opened(history, 5.0, files(a=1))
    opened(history, 6.0, files(a=2))
    assert history.writer_died_holding() == set()
    opened(history, 7.0, files(a=2), "a.pt", writer=WORKER)
    opened(history, 8.0, files(a=2))
    assert history.writer_died_holding() == {"a.pt"}
    opened(history, 9.0, files(a=2), "a.pt")
    assert history.writer_died_holding() == set()
    opened(history, 10.0, files(a=2))
    assert history.writer_died_holding() == set(), "its writer lives"


def test_a_log_that_is_held_open_is_known_by_its_handles_its_name_or_its_time() -> None:
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    named = {
        name: File(name, signature(), 0o644) for name in ("a.log", "b.jsonl", "events.out.tfevents.1", "c.pt", "d.pt")
    }
    opened(history, 0.0, named, "a.log", "b.jsonl", "events.out.tfevents.1", "c.pt")
    assert history.open_logs() == {"a.log", "b.jsonl", "events.out.tfevents.1"}
    opened(history, STREAM_S - 1.0, named, "c.pt")
    assert history.open_logs() == set() and history.logs() == {"a.log", "b.jsonl", "events.out.tfevents.1"}
    opened(history, STREAM_S, named, "c.pt")
    assert history.open_logs() == {"c.pt"}
    grown = named | {"c.pt": File("c.pt", signature(size=100 + STREAM_BYTES), 0o644)}
    opened(history, STREAM_S + 1.0, grown, "c.pt")
    assert history.open_logs() == set(), "it grows too fast for a log"
    opened(history, 200.0, named, "d.pt", appending=True)
    assert history.open_logs() == {"d.pt"}


def test_a_file_that_is_begun_anew_is_no_longer_held_open_for_long() -> None:
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    opened(history, 0.0, files(a=1), "a.pt")
    for smaller in (File("a.pt", signature(2, size=50), 0o644), File("a.pt", signature(2, inode=8), 0o644)):
        opened(history, STREAM_S - 1.0, {"a.pt": smaller}, "a.pt")
        opened(history, STREAM_S + 1.0, {"a.pt": smaller}, "a.pt")
        assert history.open_logs() == set()
        opened(history, 2 * STREAM_S, {"a.pt": smaller}, "a.pt")
        assert history.open_logs() == {"a.pt"}
        history = WriteHistory(SETTLE_S, PATIENCE_S)
        opened(history, 0.0, files(a=1), "a.pt")


def test_a_file_that_is_written_over_in_place_is_no_log_however_long_it_is_open() -> None:
    """A mapped file, or one handle for all saves: it rests when nothing is written, and only then."""
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    for second in range(int(STREAM_S) + 10):
        opened(history, second, files(a=second, b=1), "a.pt", "b.pt")
    assert history.open_logs() == {"b.pt"}, "nothing was written to this one"
    assert history.unsettled({"b.pt"}) == {"a.pt"}, "it was written a moment ago"
    opened(history, STREAM_S + 20.0, files(a=second, b=1), "a.pt", "b.pt")
    assert history.unsettled({"b.pt"}) == set()
    opened(history, STREAM_S + 21.0, files(b=1))
    opened(history, STREAM_S + 22.0, files(a=1, b=1), "a.pt")
    assert history.unsettled(()) == {"a.pt"}, "it is another file"


@pytest.mark.parametrize(("size", "kept"), [(98, False), (99, True), (120, True)])
def test_a_training_that_finishes_may_have_left_a_thread_in_the_middle_of_a_save(
    tmp_path: Path, memory: MemoryStore, size: int, kept: bool
) -> None:
    """Ending closes the files of all threads. A save that is much smaller than the one before was not finished."""
    world = World(tmp_path, memory).begin()
    write(world.folder / "model.bin", bytes(110))
    world.settle()
    world.open = {"model.bin"}
    write(world.folder / "model.bin", b"1" * size)
    world.tick()
    world.open, world.alive = set(), False
    world.sync.final(60.0, TrainingEnd())
    newest = restored_content(memory, tmp_path / "back")
    assert newest == {"model.bin": b"1" * size if kept else bytes(110)}


SLEEPER = """
import signal, sys, time
if sys.argv[1] == "catches":
    signal.signal(signal.SIGTERM, print)
print(flush=True)
time.sleep(1000)
"""


@pytest.fixture
def process() -> Iterator[Callable[[bool], int]]:
    """Processes that catch SIGTERM, or die of it."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(catches: bool) -> int:
        words = [sys.executable, "-S", "-c", SLEEPER, "catches" if catches else "dies"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        running.append(child)
        return child.pid

    yield begin
    for child in running:
        child.kill()
        child.communicate()


def test_the_mark_says_what_moved_and_who_lives_on(process: Callable[[bool], int]) -> None:
    survivor, victim = process(True), process(False)
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    history.note_files(files(old=1, s__gone=1), 0.0)
    now = files(old=1, new=1, t__open=1) | {"x.log": File("x.log", signature(), 0o644)}
    history.note_files(now, 10.0)
    members = frozenset({survivor, victim})
    handles = {"t/open.pt": OpenFile(frozenset({victim}), False), "x.log": OpenFile(frozenset({survivor}), True)}
    history.note_open(handles, members, lambda path: now[path].signature if path in now else None)
    history.record_pre_signal()
    mark = history.pre_signal
    assert mark is not None and mark.at == 10.0 and mark.members == members
    assert mark.unsettled == {"new.pt", "t/open.pt"} and mark.unsettled_units == {"", "t", "s"}
    assert mark.open == {"t/open.pt"}, "a log is whole wherever it ends"
    assert mark.expecting == {survivor} and mark.files == {path: file.signature for path, file in now.items()}
    assert mark.survives, "one of those that write lives on"
    assert mark.by_survivor("new.pt") and mark.begun_since("new.pt", signature(2))
    assert not mark.begun_since("new.pt", signature(1)) and mark.begun_since("other.pt", signature(1))


@pytest.mark.parametrize(("writer", "survives"), [(0, False), (1, True)])
def test_those_who_write_decide_whether_a_save_goes_on(
    process: Callable[[bool], int], writer: int, survives: bool
) -> None:
    processes = [process(False), process(True)]
    history = WriteHistory(SETTLE_S, PATIENCE_S)
    opened(history, 0.0, files(a=1), "a.pt", writer=processes[writer])
    history.members = frozenset(processes)
    history.record_pre_signal()
    assert history.pre_signal is not None and history.pre_signal.survives is survives
    quiet = WriteHistory(SETTLE_S, PATIENCE_S)
    quiet.members = frozenset(processes)
    quiet.record_pre_signal()
    assert quiet.pre_signal is not None and quiet.pre_signal.survives, (
        "where none was seen to write, any that lives on may"
    )


def test_what_was_closed_before_the_notice_and_is_as_it_was_is_whole() -> None:
    scene = Scene(files(a=1, b=1, c=1))
    history = scene.history
    assert history.closed_before_signal("a.pt") is False, "there is no mark yet"
    history.pre_signal = scene.mark
    scene.mark.open.add("b.pt")
    history.note_files(files(a=1, b=1, c=2), 101.0)
    assert history.closed_before_signal("a.pt") is True
    assert [history.closed_before_signal(path) for path in ("b.pt", "c.pt", "none.pt")] == [False] * 3
    history._writer_died_holding["a.pt"] = (100.0, signature())
    assert history.closed_before_signal("a.pt") is False


def test_a_process_that_died_since_the_notice_shakes_what_was_being_written() -> None:
    scene = Scene(files(a=1, b=1))
    history = scene.history
    assert history.maybe_cut_off() == set()
    history.pre_signal = scene.mark
    scene.mark.unsettled |= {"a.pt", "gone.pt"}
    history.note_files(files(a=1, b=1, c=1), 101.0)
    assert history.maybe_cut_off() == set(), "all of them live"
    history.members = frozenset({ROOT})
    assert history.maybe_cut_off() == {"a.pt", "c.pt"}


# ── The sync, told that the training is about to hear ─────────────────────────────────────────────────────────────────


def test_what_the_training_saves_after_the_notice_is_committed(
    tmp_path: Path, memory: MemoryStore, process: Callable[[bool], int]
) -> None:
    world = World(tmp_path, memory).begin()
    world.write(a="old")
    world.settle()
    assert len(manifest_keys(memory)) == 1
    pid = process(True)
    watch = world.sync._rounds.watch
    watch.view = replace(watch.view, writing=lambda _: WritableFiles({}, frozenset({pid})))
    world.sync.before_signal()
    mark = watch.history.pre_signal
    assert mark is not None and mark.survives
    world.write(a="saved after the notice")
    watch.view = replace(watch.view, writing=lambda _: WritableFiles({}, frozenset()))
    world.sync.final(30.0, TrainingEnd("left", root=pid, alone=True, succeeded=True))
    assert len(manifest_keys(memory)) == 2 and world.sync.status().held_back is None


def test_a_folder_that_takes_long_to_scan_is_marked_as_it_was_last_seen(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory).begin()
    watch = world.sync._rounds.watch
    world.write(a="1")
    watch.scan()
    world.write(b="1")
    watch._scan_cost_s = folder_watcher._MAX_SCAN_BEFORE_SIGNAL_S + 1.0
    watch.record_pre_signal()
    assert watch.history.pre_signal is not None and set(watch.history.pre_signal.files) == {"a.pt"}
    watch._scan_cost_s = 0.0
    watch.record_pre_signal()
    assert set(watch.history.pre_signal.files) == {"a.pt", "b.pt"}
    assert watch.lock.acquire(timeout=1.0)
    watch.lock.release()
