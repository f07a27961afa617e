"""Where one save ends and the next begins, told by the order and the pauses of writes, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stoker.agent.checkpoints.folder_events import FolderEvent
from stoker.agent.checkpoints.save_bursts import PAUSE_S, SaveBursts, _Counter


@dataclass
class Sized:
    size: int


@dataclass
class Program:
    """Writes files, and is watched as `SaveCopies` does it: what is known to be whole is a number of a burst."""

    files: dict[str, Sized] = field(default_factory=dict)
    now: float = 100.0
    count: int = 0
    candidate: int = 0
    whole: int = 0
    suspect: bool = False
    # A save is under way; the bursts that ended in the middle of one, and those that were ever taken for whole.
    half: bool = False
    halves: set[int] = field(default_factory=set)
    was: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bursts = SaveBursts({path: file.size for path, file in self.files.items()}, 1.0)

    def write(self, path: str, size: int = 100, *, source: str | None = None) -> None:
        self.files[path] = Sized(size)
        if source is not None:
            del self.files[source]
        self.note(FolderEvent(path, source))

    def remove(self, path: str) -> None:
        del self.files[path]
        self.note(FolderEvent(path, gone=True))

    def note(self, event: FolderEvent) -> None:
        self.bursts.note([event], self.now)
        if self.candidate and self.bursts.has_come_round():
            self.whole, self.candidate = self.candidate, 0
            self.was.add(self.whole)

    def rest(self, seconds: float) -> None:
        """Nothing is written for so long."""
        self.now += seconds
        if not self.bursts._under_way.order or seconds < self.bursts.quiet_s:
            return
        if self.bursts.close(self.files, (), lambda _path: False, suspect=self.suspect):
            if self.candidate and self.bursts.was_whole():
                self.whole = self.candidate
                self.was.add(self.whole)
            self.count += 1
            self.halves |= {self.count} if self.half else set()
            self.candidate = self.count


def test_a_save_is_whole_when_the_next_one_begins() -> None:
    program = Program()
    for _ in range(3):
        program.write("model.bin")
        program.write("optimizer.bin")
        program.rest(0.3)
    assert program.whole == 2
    program.write("model.bin", 10)
    assert program.whole == 3


def test_the_first_save_is_whole_when_the_second_is_like_it() -> None:
    program = Program()
    program.write("weights.bin")
    program.rest(1.0)
    program.write("weights.bin", 10)
    assert program.whole == 0
    program.write("weights.bin", 100)
    program.rest(1.0)
    assert program.whole == 1


def test_a_save_with_pauses_is_not_taken_for_two() -> None:
    program = Program()
    for _ in range(10):
        program.write("model.bin")
        program.rest(0.7)
        program.write("optimizer.bin")
        program.rest(0.1)
    assert program.whole == 0


def test_pauses_inside_of_saves_are_learnt() -> None:
    program = Program()
    for _ in range(6):
        program.write("model.bin")
        program.rest(0.2)
        program.write("optimizer.bin")
        program.rest(1.0)
    # Two bursts each at first, then one.
    assert program.whole == program.count - 1 == 6
    program.write("model.bin")
    assert program.whole == program.count == 7


@pytest.mark.parametrize("size", [20, 100])
def test_a_file_that_is_written_in_two_steps_is_not_whole_after_the_first(size: int) -> None:
    program = Program()
    for _ in range(8):
        program.half = True
        program.write("weights.bin", size)
        program.rest(0.1)
        program.write("weights.bin", 100)
        program.half = False
        program.rest(1.0)
    assert program.whole
    assert not program.was & program.halves


@pytest.mark.parametrize("pause_s", [0.06, 0.3])
def test_a_status_that_is_written_twice_in_a_save_ends_none(pause_s: float) -> None:
    program = Program()
    for _ in range(8):
        program.half = True
        program.write("status")
        program.write("model.bin")
        program.rest(pause_s)
        program.write("status")
        program.write("optimizer.bin")
        program.half = False
        program.rest(0.3)
    assert not program.was & program.halves


def test_a_file_that_only_some_saves_write() -> None:
    program = Program()
    for step in range(1, 10):
        program.write("last.bin")
        assert program.whole == (step - 1 if step > 2 else 0)
        program.write("last.txt")
        if step % 3 == 0:
            program.write("best.bin")
        program.rest(0.1)


def test_a_file_that_only_the_first_saves_write() -> None:
    program = Program()
    for step in range(1, 10):
        program.write("last.bin")
        assert program.whole == (step - 1 if step > 2 else 0)
        if step < 5:
            program.write("best.bin")
        program.rest(0.1)


def test_a_database_that_begins_with_its_journal() -> None:
    program = Program()
    for step in range(1, 6):
        program.write("state.db-journal")
        assert program.whole == (step - 1 if step > 2 else 0)
        program.write("state.db")
        program.remove("state.db-journal")
        program.rest(0.1)


def test_a_burst_that_does_not_fit_is_forgotten_in_time() -> None:
    program = Program()
    for step in range(1, 40):
        program.write("last.bin")
        if step == 4:
            program.rest(0.07)
            program.write("best.bin")
        program.rest(0.1)
        assert program.whole <= 4 or program.count > 12
    assert program.whole == program.count - 1


@pytest.mark.parametrize("waits_after", ["epoch", "last"])
def test_a_program_that_has_to_wait_in_the_middle_of_a_save(waits_after: str) -> None:
    """That save is not known to be whole; later ones are."""
    program = Program()
    for step in range(1, 21):
        program.half = True
        for name in ("epoch", "last", *(("best",) if step % 3 == 0 else ())):
            program.write(f"{name}.bin")
            if step == 12 and name == waits_after:
                program.rest(0.07)
        program.half = False
        program.rest(0.1)
    assert program.halves
    assert not program.was & program.halves
    assert program.whole == program.count - 1


def test_files_that_are_written_at_times_of_their_own_show_nothing() -> None:
    """One thread saves with a pause, another writes that it is alive."""
    program = Program()
    for _ in range(3):
        program.write("alive")
        program.rest(0.1)
    whole = program.whole
    for _ in range(5):
        for path in ("model.bin", "optimizer.bin"):
            program.write(path)
            program.rest(0.1)
            program.write("alive")
            program.rest(0.1)
    assert program.whole <= whole + 1


def test_numbers_that_count_saves_come_round_and_those_of_parts_do_not() -> None:
    numbered, parts = Program(), Program()
    for step in range(1, 5):
        numbered.write(f"epoch-{step}.bin")
        numbered.write("last.bin")
        numbered.rest(0.3)
        for rank in range(4):
            parts.write(f"rank-{rank}.bin")
            parts.rest(0.3)
    assert (numbered.whole, parts.whole) == (3, 0)


def test_numbers_that_only_go_up_in_strides_count_saves() -> None:
    program = Program()
    for step in range(100, 1000, 100):
        program.write(f"model_{step}.bin")
        program.rest(0.3)
    assert program.whole == program.count - 1


def test_a_random_name_is_what_it_is_renamed_to() -> None:
    program = Program()
    for name in ("k3x", "q9a", "zz1", "b07"):
        program.write(f"tmp{name}")
        assert program.whole == (2 if program.count == 3 else 0)
        program.write("weights.bin", source=f"tmp{name}")
        program.rest(0.1)
    program.write("tmpend")
    program.write("weights.bin", source="tmpend")
    assert program.whole == program.count == 4


def test_a_save_that_is_removed_first_is_not_whole_without_it() -> None:
    program = Program()
    for _ in range(4):
        for path in list(program.files):
            program.remove(path)
        program.rest(2 * PAUSE_S)
        program.write("model.bin")
        program.write("optimizer.bin")
        program.rest(0.5)
    assert program.whole == 3


def test_a_folder_that_is_half_removed_is_not_kept() -> None:
    program = Program()
    for step in range(1, 9):
        for name in ("model", "optimizer"):
            program.write(f"step-{step}/{name}.bin")
        if step > 2:
            program.half = True
            program.remove(f"step-{step - 2}/model.bin")
            program.rest(0.15 if step == 6 else 0.0)
            program.half = False
            program.remove(f"step-{step - 2}/optimizer.bin")
        program.rest(0.2)
    assert program.halves
    assert not program.was & program.halves
    assert program.whole == program.count - 1


def test_a_process_that_ended_shows_nothing() -> None:
    program = Program()
    for step in range(5):
        program.suspect = step > 2
        program.write("weights.bin")
        program.rest(0.1)
    assert program.whole == 3


def test_a_program_that_becomes_faster_is_followed() -> None:
    program = Program()
    for seconds in [3.0] * 4 + [0.1] * 12:
        program.write("weights.bin")
        program.rest(seconds)
    assert program.bursts.quiet_s == PAUSE_S
    assert program.whole == program.count - 1


def test_one_pause_alone_is_not_waited_for() -> None:
    program = Program()
    program.write("a")
    program.rest(0.6)
    program.write("a")
    assert program.bursts.quiet_s == PAUSE_S
    program.rest(0.8)
    program.write("a")
    assert program.bursts.quiet_s == pytest.approx(0.4), "half of the longer one"
    program.rest(9.0)
    program.write("a")
    program.rest(9.0)
    program.write("a")
    assert program.bursts.quiet_s == 1.0, "never longer than this"


def test_files_that_are_gone_again_are_no_burst() -> None:
    program = Program()
    program.write("draft")
    program.remove("draft")
    program.rest(0.3)
    assert not program.bursts._under_way.order
    assert (program.count, program.bursts.last) == (0, None)


def test_a_burst_of_files_that_no_event_told_of_is_known_by_what_changed() -> None:
    """Writes through a mapping make no event."""
    bursts = SaveBursts({}, 1.0)
    bursts.note([FolderEvent("a")], 5.0)
    files = {"a": Sized(1), "mapped": Sized(2), "quiet": Sized(3)}
    assert bursts.close(files, ["mapped", "vanished"], lambda _path: False, suspect=False) is True
    last = bursts.last
    assert last is not None
    assert (last.names, last.first, last.ended_at) == (frozenset({"a", "mapped"}), "a", 5.0)
    assert bursts.close(files, [], lambda _path: False, suspect=False) is False


def test_nothing_begins_a_burst_but_an_event() -> None:
    bursts = SaveBursts({}, 1.0)
    bursts.note([], 5.0)
    assert bursts._under_way.order == {}
    assert bursts.has_come_round() is False
    assert bursts.was_whole() is False


def test_a_file_that_is_much_smaller_is_cut_off_unless_its_format_says_that_it_is_whole() -> None:
    for whole in (False, True):
        program = Program()
        for size in (1000, 1000, 100, 100):
            program.write("a.bin", size)
            program.now += 1.0
            program.bursts.close(program.files, (), lambda _path, whole=whole: whole, suspect=False)
        bursts = program.bursts
        assert bursts.last is not None
        # By the third, which shrank.
        assert bursts._previous is not None
        assert bursts._previous.before == {"a.bin": 0 if whole else 1000}
        assert bursts.last.before == {"a.bin": 100}


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        ([1, 2, 3], False),
        ([1, 3], False),
        ([1, 3, 5], True),
        ([1, 3, 4], False),
        (list(range(17)), True),
        (list(range(16)), False),
        ([1, 3, 5, 5], False),
        ([1, 3, 5, 6], True),
        ([5, 7, 9, 1, 3], False),
    ],
)
def test_numbers_count_saves_if_they_go_up_in_strides_or_for_long(numbers: list[int], counts: bool) -> None:
    counter = _Counter()
    for number in numbers:
        counter.add(number)
    assert counter.counts_saves is counts
