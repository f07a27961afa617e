"""What a training did lately, as its agent tells it: what moves is seen, and what cannot be seen is never idle."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.health.activity import PERIOD_S, ActivityRecorder
from stoker.agent.health.activity_probe import ActivityProbe, ActivitySample, count_unreadable_accelerators
from stoker.model.node_facts import Activity
from stoker.model.usage_series import unpack

TICKS = os.sysconf("SC_CLK_TCK")
# Seconds of a clock that is not the wall's.
BEGAN_S = 5000.0
MINUTE = round(60 / PERIOD_S)


# ── Sight ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_process(
    proc: Path, pid: int, *, ticks: Sequence[int] = (0, 0, 0, 0), moved: int = 0, disk: int = 0, net: int = 0
) -> None:
    """As the kernel shows one. Its name is as unkind as names can be."""
    folder = proc / str(pid)
    (folder / "net").mkdir(parents=True)
    told = " ".join(str(each) for each in ticks)
    (folder / "stat").write_text(f"{pid} (a) b (c 9 9) S 1 {pid} {pid} 0 -1 0 0 0 0 0 {told} 20 0 3 0 100 0 0\n")
    (folder / "io").write_text(f"rchar: {moved}\nwchar: {moved}\nsyscr: 7\nread_bytes: {disk}\nwrite_bytes: {disk}\n")
    (folder / "net" / "dev").write_text(
        f"Inter-|   Receive\n face |bytes    packets\n    lo: {net} 1 0 0 0\n  eth0:{net} 2 0 0 0\n"
    )


def look_at(
    proc: Path,
    *members: int,
    shared: bool = True,
    gpus: Sequence[float | None] = (),
    agent: int | None = None,
    sending: bool = False,
) -> ActivitySample:
    return ActivityProbe(
        lambda: gpus, lambda: set(members), shared=shared, agent=agent, sending=lambda: sending, proc=proc
    )()


def test_processors_count_with_those_of_children_that_were(tmp_path: Path) -> None:
    add_process(tmp_path, 10, ticks=(TICKS, 2 * TICKS, 3 * TICKS, 4 * TICKS))
    add_process(tmp_path, 11, ticks=(0, TICKS // 2, 0, 0))
    add_process(tmp_path, 12, ticks=(TICKS, 0, 0, 0))
    assert look_at(tmp_path, 10, 11).cpu_s == 10.5, "and nobody else's"


def test_what_is_read_and_written_counts(tmp_path: Path) -> None:
    add_process(tmp_path, 10, moved=100, net=7)
    add_process(tmp_path, 11, moved=20, net=7)
    assert look_at(tmp_path, 10, 11).moved == 240
    assert look_at(tmp_path, 10, 11, shared=False).moved == 240 + 14, "the network's once, of all interfaces"


def test_what_is_mapped_into_memory_counts_as_disks_move_it(tmp_path: Path) -> None:
    add_process(tmp_path, 10, moved=100, disk=4096)
    assert look_at(tmp_path, 10).moved == 200 + 8192


@pytest.mark.parametrize("shared", [True, False])
def test_of_one_that_nobody_may_look_into_nothing_is_known(shared: bool, tmp_path: Path) -> None:
    add_process(tmp_path, 10, ticks=(TICKS, 0, 0, 0), moved=100)
    add_process(tmp_path, 11, ticks=(TICKS, 0, 0, 0), moved=100)
    # As it is of another user's: there, and not to be read.
    (tmp_path / "11" / "io").unlink()
    (tmp_path / "11" / "io").mkdir()
    assert look_at(tmp_path, 10, 11, shared=shared) == ActivitySample((), 2.0, None)
    (tmp_path / "11" / "io").rmdir()
    assert look_at(tmp_path, 10, 11, shared=shared).moved is None, "a kernel that does not count"


def test_processes_that_are_gone_say_nothing(tmp_path: Path) -> None:
    add_process(tmp_path, 11, ticks=(TICKS, 0, 0, 0), moved=5)
    assert look_at(tmp_path, 10, 11) == ActivitySample((), 1.0, 10.0)
    for shared in (True, False):
        assert look_at(tmp_path, 10, shared=shared) == ActivitySample((), None, None)
        assert look_at(tmp_path, shared=shared) == ActivitySample((), None, None), "there is nobody"


@pytest.mark.parametrize("text", ["", "10 (python) S 1", "10 (python) S 1 2 3 4 5 6 7 8 9 10 a b c d", "rchar: x\n"])
def test_what_makes_no_sense_is_unknown(text: str, tmp_path: Path) -> None:
    add_process(tmp_path, 10)
    for name in ("stat", "io", "net/dev"):
        (tmp_path / "10" / name).write_text(text)
    assert look_at(tmp_path, 10).cpu_s is None
    assert look_at(tmp_path, 10).moved is None


def test_an_agent_at_work_is_seen_by_what_it_writes_and_what_disks_move(tmp_path: Path) -> None:
    add_process(tmp_path, 5, ticks=(9 * TICKS, 0, 0, 0), moved=100, disk=7, net=50)
    add_process(tmp_path, 10, ticks=(TICKS, 0, 0, 0), moved=10, net=3)
    assert look_at(tmp_path, 10, agent=5) == ActivitySample((), 1.0, 20.0, 114.0), (
        "it reads all day, and always runs a little"
    )
    assert look_at(tmp_path, 10, agent=5, shared=False).moved == 20 + 100, "it sees the network of the whole machine"
    assert look_at(tmp_path, agent=5) == ActivitySample((), 0.0, 0.0, 114.0), "it is alone at it"
    assert look_at(tmp_path, agent=6).carried is None
    assert look_at(tmp_path, 10, sending=True).sending and not look_at(tmp_path, 10).sending


def test_where_somebody_works_whom_nobody_sees_nothing_is_known(tmp_path: Path) -> None:
    add_process(tmp_path, 5, moved=100)
    assert ActivityProbe(lambda: (), lambda: None, shared=True, agent=5, proc=tmp_path)() == ActivitySample(
        (), None, None, 100.0
    )


def test_shares_of_accelerators(tmp_path: Path) -> None:
    assert look_at(tmp_path, gpus=(0.0, None, 55.0, 100.0)).gpus == (0.0, None, 0.55, 1.0)


def test_where_no_save_can_be_sent_none_is() -> None:
    assert not ActivityProbe(lambda: (), lambda: {os.getpid()}, shared=True)().sending


def test_this_very_process_can_be_seen() -> None:
    sight = ActivityProbe(lambda: (), lambda: {os.getpid()}, shared=False)
    before = sight()
    assert before.cpu_s is not None and before.moved is not None
    while (now := sight()).cpu_s == before.cpu_s:
        sum(range(100_000))
    assert now.cpu_s is not None and now.cpu_s > before.cpu_s
    assert now.moved is not None and now.moved > before.moved, "looking is reading"


def test_accelerators_that_nobody_can_read_are_counted(tmp_path: Path) -> None:
    assert count_unreadable_accelerators(tmp_path) == 0
    for name in ("accel/accel0", "accel/accel1", "neuron0", "hl0", "hl_controlD0", "nvidia0", "null", "vfio/vfio"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert count_unreadable_accelerators(tmp_path) == 4


@pytest.mark.parametrize("name", ["accel", "vfio/"])
def test_tpus_are_accelerators(name: str, tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    for number in range(4):
        (tmp_path / f"{name}{number}").touch()
    assert count_unreadable_accelerators(tmp_path) == 4


# ── The recorder ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Recorded:
    """A recorder with a clock, and looks that the test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.now_s = BEGAN_S
        self.recorder = ActivityRecorder(
            lambda: pytest.fail("the test looks itself"), monotonic=lambda: self.now_s, **options
        )
        # The looks are the test's.
        monkeypatch.setattr(self.recorder, "_run", lambda: None)
        assert self.recorder.report() is None, "the training has not begun"
        self.recorder.begin()

    def look(
        self, *gpus: float | None, cpu_s: float | None = 0.0, moved: float | None = 0.0, times: int = 1
    ) -> Activity:
        for _ in range(times):
            self.now_s += PERIOD_S
            self.recorder.take(ActivitySample(gpus, cpu_s, moved))
        return self.fact()

    def fact(self) -> Activity:
        found = self.recorder.report()
        assert found is not None
        return found

    def work(self) -> list[float | None]:
        """Second by second, whether it was at work."""
        (found,) = unpack(self.fact().work[0]) or [[]]
        return found

    def shares(self) -> dict[float, list[list[float | None]] | None]:
        return {series.period_s: unpack(series) for series in self.fact().utilization}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def test_silence_lasts_since_it_began_or_something_moved(recorded: Recorded) -> None:
    recorded.now_s += 100
    assert recorded.fact().silent_s == 100
    recorded.recorder.note_step(None)
    assert recorded.fact().silent_s == 100
    recorded.recorder.note_step(0)
    assert recorded.fact().silent_s == 0
    recorded.now_s += 30
    for step in (0, None):
        recorded.recorder.note_step(step)
    assert recorded.fact().silent_s == recorded.fact().stepped_s == 30, "the same step again is no step"
    recorded.recorder.note_step(1)
    assert recorded.fact().silent_s == 0
    recorded.now_s += 30
    recorded.recorder.note_step(0)
    assert recorded.fact().silent_s == 0, "some count anew in each epoch"


def test_each_move_is_progress_whatever_the_step_is(recorded: Recorded) -> None:
    recorded.recorder.note_step(7, 1)
    assert recorded.fact().first_step, "what it did before may have been compiling"
    recorded.now_s += 30
    recorded.recorder.note_step(9, 1)
    assert recorded.fact().stepped_s == 30, "steps that come in turn are no moves"
    recorded.recorder.note_step(9, 2)
    told = recorded.fact()
    assert (told.stepped_s, told.longest_step_s, told.first_step) == (0, 30, False)
    recorded.now_s += 10
    recorded.recorder.note_step(9, 3)
    assert recorded.fact().longest_step_s == 30


def test_of_several_moves_at_once_none_is_the_first(recorded: Recorded) -> None:
    recorded.recorder.note_step(2, 2)
    assert recorded.fact().stepped_s == 0 and not recorded.fact().first_step


def test_lines_of_the_log_are_no_steps(recorded: Recorded) -> None:
    assert recorded.fact().stepped_s is None, "it has never reported one"
    recorded.recorder.note_step(7)
    for _ in range(10):
        recorded.now_s += 60
        recorded.recorder.note_output(b"still syncing\n")
        recorded.recorder.note_metrics({"loss": recorded.now_s})
        recorded.recorder.note_step(7)
    told = recorded.fact()
    assert (told.silent_s, told.stepped_s, told.longest_step_s) == (0, 600, 0)
    recorded.recorder.note_step(8)
    assert (recorded.fact().stepped_s, recorded.fact().longest_step_s) == (0, 600)


def test_metrics_without_a_step_are_a_sign_of_life(recorded: Recorded) -> None:
    for value, silent_s in ((0.5, 0), (0.5, 60), (0.4, 0)):
        recorded.now_s += 60
        recorded.recorder.note_metrics({"loss": value})
        assert recorded.fact().silent_s == silent_s and recorded.fact().stepped_s is None


def test_a_folder_that_changes_or_is_sent_is_a_save(recorded: Recorded) -> None:
    recorded.recorder.note_checkpoints((0, 0))
    recorded.recorder.note_checkpoints((0, 0))
    assert recorded.fact().saving_s is None
    recorded.recorder.note_checkpoints((1, 4096))
    recorded.now_s += 5
    assert recorded.fact().saving_s == 5
    recorded.look()
    recorded.now_s += PERIOD_S
    recorded.recorder.take(ActivitySample((), 0.0, 0.0, 0.0, sending=True))
    assert recorded.fact().saving_s == 0


# ── Debuggers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def held(recorded: Recorded, seconds: int) -> Activity:
    for _ in range(seconds):
        recorded.now_s += 1.0
        recorded.recorder.take(ActivitySample((0.0,), 0.0, 0.0, debugged=True))
    return recorded.fact()


def test_clocks_stop_while_a_person_looks_into_it_and_begin_anew(recorded: Recorded) -> None:
    recorded.recorder.note_step(1)
    recorded.look(0.0, times=100)
    told = held(recorded, 600)
    assert (told.silent_s, told.stepped_s, told.debugged_s) == (100, 100, 599)
    assert told.released_s is None
    told = recorded.look(0.0)
    assert (told.silent_s, told.stepped_s, told.debugged_s, told.released_s) == (0, 0, None, 0)
    assert len((unpack(told.utilization[0]) or [[]])[0]) == 101, "what was seen meanwhile is not the training's"


def test_a_session_of_ten_seconds_begins_its_clocks_anew(recorded: Recorded) -> None:
    for seconds, released_s in ((10, None), (11, 0)):
        recorded.look(0.0, times=5)
        held(recorded, seconds - 1)
        recorded.now_s += 1.0
        recorded.recorder.take(ActivitySample((0.0,), 0.0, 0.0))
        assert recorded.fact().released_s == released_s and recorded.fact().stepped_s is None


def test_what_was_done_in_a_debugger_is_no_work_of_the_training(recorded: Recorded) -> None:
    recorded.look(times=2)
    recorded.now_s += PERIOD_S
    recorded.recorder.take(ActivitySample((), 100.0, 0.0, debugged=True))
    recorded.look(cpu_s=100.0)
    assert recorded.work() == [0.0, 0.0]


def test_what_a_debugger_holds_is_not_told_when_looks_hang(recorded: Recorded) -> None:
    assert held(recorded, 5).debugged_s == 4
    recorded.now_s += 3 * PERIOD_S
    assert recorded.fact().debugged_s is None


def test_a_profiler_that_stops_it_for_moments_resets_no_clock(recorded: Recorded) -> None:
    recorded.recorder.note_step(1)
    for _ in range(300):
        recorded.look(0.0, times=9)
        held(recorded, 1)
    told = recorded.look(0.0)
    assert told.stepped_s == told.silent_s == 300 * 9 + 1 and told.released_s is None


@pytest.mark.parametrize(
    ("data", "lives"),
    [
        (b"loss=0.5\n", True),
        (b"50%\r", True),
        (b"no end of a line", True),
        (b"\xff\xfe", True),
        (b"[stoker] saved\nloss=0.5\n", True),
        (b" [stoker] said by the script\n", True),
        (b"[stoker] saved\n", False),
        (b"[stoker] saved\n[stoker] asked to leave\n", False),
        (b"\n  \r\n", False),
        (b"", False),
    ],
)
def test_only_what_the_training_says_is_a_sign_of_life(data: bytes, lives: bool, recorded: Recorded) -> None:
    recorded.now_s += 50
    recorded.recorder.note_output(data)
    assert recorded.fact().silent_s == (0 if lives else 50)


def test_one_that_does_nothing_is_idle(recorded: Recorded) -> None:
    recorded.look(times=10)
    assert recorded.work() == [0.0] * 9


def test_processors_or_bytes_are_work(recorded: Recorded) -> None:
    recorded.look()
    recorded.look(cpu_s=0.05 * PERIOD_S)
    recorded.look(cpu_s=0.09 * PERIOD_S)
    recorded.look(cpu_s=1.0, moved=90_000 * PERIOD_S)
    recorded.look(cpu_s=1.0, moved=180_000 * PERIOD_S)
    recorded.look(cpu_s=1.0, moved=290_000 * PERIOD_S)
    # Some of its processes ended, and took their numbers with them.
    recorded.look(cpu_s=0.5, moved=0.0)
    assert recorded.work() == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], "a little is polling"


@pytest.mark.parametrize(("share", "works"), [(0.9, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("what", ["cpu_s", "moved", "carried"])
def test_what_is_work_is_work_in_each_second(what: str, share: float, works: float, recorded: Recorded) -> None:
    recorded.look()
    recorded.now_s += 2.0
    least = {"cpu_s": 0.05 * 2.0, "moved": 100_000 * 2.0, "carried": 100_000 * 2.0}[what]
    recorded.recorder.take(ActivitySample((), 0.0, 0.0, 0.0)._replace(**{what: share * least}))
    assert recorded.work() == [works]


def test_looks_that_come_rarely_count_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, period_s=5.0)
    recorded.recorder.take(ActivitySample((0.5,), 0.0, 0.0))
    recorded.now_s += 14.0
    assert recorded.fact().utilization
    recorded.now_s += 1.0
    assert not recorded.fact().utilization


def test_what_the_agent_sends_for_it_is_work_and_no_sign_of_life(recorded: Recorded) -> None:
    recorded.look(times=5)
    for carried, sending in ((0.0, True), (100_000 * PERIOD_S, False)):
        recorded.now_s += PERIOD_S
        recorded.recorder.take(ActivitySample((), 0.0, 0.0, carried, sending))
        assert recorded.work()[-1] == 1.0 and recorded.fact().silent_s > 5
    recorded.look()
    assert recorded.work()[-1] == 0.0
    recorded.now_s += PERIOD_S
    recorded.recorder.take(ActivitySample((), 0.0, 0.0, None))
    assert recorded.work()[-1] is None


def test_before_the_training_what_the_agent_carries_is_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, agent_io_counts=True)
    recorded.look(times=5)
    recorded.now_s += PERIOD_S
    recorded.recorder.take(ActivitySample((), 0.0, 0.0, 99_000 * PERIOD_S))
    assert recorded.fact().silent_s == 6 * PERIOD_S, "it always writes a little"
    recorded.now_s += PERIOD_S
    recorded.recorder.take(ActivitySample((), 0.0, 0.0, 199_000 * PERIOD_S))
    assert recorded.fact().silent_s == 0 and recorded.work()[-1] == 1.0
    assert recorded.look(cpu_s=1e6, moved=1e9).silent_s == PERIOD_S, "what others do is work"


def test_who_waits_for_others_says_so_while_it_does(recorded: Recorded) -> None:
    assert not recorded.look(times=9).waits
    recorded.recorder.note_waiting()
    assert recorded.fact().waits and recorded.fact().silent_s == 0
    assert not recorded.look(times=3).waits
    assert recorded.fact().silent_s == 3 * PERIOD_S, "and from then on something has to move"


@pytest.mark.parametrize("unseen", ["cpu_s", "moved"])
def test_work_that_cannot_be_seen_is_not_idleness(unseen: str, recorded: Recorded) -> None:
    recorded.look(times=10)
    missing = {unseen: None}
    recorded.look(**missing, times=5)  # type: ignore[arg-type]
    recorded.look(times=3)
    # Between the last look that saw nothing and the next, nothing is known either.
    assert recorded.work() == [*[0.0] * 9, *[None] * 6, 0.0, 0.0]


@pytest.mark.parametrize("unseen", ["cpu_s", "moved"])
def test_what_can_be_seen_is_enough_to_know_that_it_works(unseen: str, recorded: Recorded) -> None:
    for n in range(5):
        seen = {"cpu_s": 1.0 * n, "moved": 1e9 * n, unseen: None}
        recorded.look(**seen)  # type: ignore[arg-type]
    assert recorded.work() == [1.0] * 4


def test_a_look_that_hangs_says_nothing(recorded: Recorded) -> None:
    assert recorded.look(0.0, times=40).utilization
    recorded.now_s += 3 * PERIOD_S - 0.001
    assert recorded.fact().utilization and recorded.fact().work
    recorded.now_s += 0.001
    told = recorded.fact()
    assert (told.utilization, told.work, told.devices) == ((), (), 1)
    assert told.silent_s == 43 * PERIOD_S, "steps and lines are seen by others"


def test_the_first_look_may_hang(recorded: Recorded) -> None:
    recorded.now_s += 1000
    assert recorded.fact() == Activity(silent_s=1000)


def test_no_window_reaches_over_a_gap(recorded: Recorded) -> None:
    recorded.look(0.0, times=10)
    recorded.now_s += 600
    recorded.look(0.0, times=3)
    assert recorded.shares()[PERIOD_S] == [[*[0.0] * 10, None, *[0.0] * 3]]
    recorded.look(0.0, times=2 * MINUTE)
    assert recorded.shares()[60.0] == [[None, 0.0]]
    assert recorded.work()[-2 * MINUTE - 1 :].count(None) == 0 and 60.0 in [s.period_s for s in recorded.fact().work]
    (minutes,) = unpack(recorded.fact().work[1]) or [[]]
    assert minutes == [None, 0.0]


def test_means_at_three_resolutions(recorded: Recorded) -> None:
    assert recorded.look().utilization == (), "there are no accelerators"
    recorded.look(1.0, 0.5, times=MINUTE - 1)
    assert recorded.shares() == {PERIOD_S: [[1.0] * (MINUTE - 1), [0.5] * (MINUTE - 1)]}
    recorded.look(0.0, 0.5)
    assert recorded.shares()[60.0] == [[pytest.approx(1 - 1 / MINUTE, abs=0.0025)], [0.5]]
    recorded.look(0.0, 0.5, times=MINUTE * 9)
    shares = recorded.shares()
    assert list(shares) == [PERIOD_S, 60.0, 600.0]
    assert shares[PERIOD_S] == [[0.0] * 2 * MINUTE, [0.5] * 2 * MINUTE], "two minutes"
    minutes = shares[60.0]
    assert minutes is not None and minutes[0][1:] == [0.0] * 9 and minutes[1] == [0.5] * 10
    assert shares[600.0] == [[0.1], [0.5]]


def test_a_day_is_kept_and_fits_into_a_heartbeat(recorded: Recorded) -> None:
    told = recorded.look(*[0.5] * 8, times=MINUTE * (24 * 60 + 20))
    shares = recorded.shares()
    assert [len(device) for device in (shares[600.0] or [])] == [144] * 8
    assert [len(device) for device in (shares[60.0] or [])] == [90] * 8
    assert sum(len(series.data) for series in told.utilization) < 5000


def test_one_that_could_not_be_read_once_is_unknown_for_the_whole_period(recorded: Recorded) -> None:
    recorded.look(0.0, 0.0, times=10)
    recorded.look(None, 0.0)
    recorded.look(0.0, 0.0, times=2 * MINUTE - 11)
    assert recorded.shares()[PERIOD_S] == [[*[0.0] * 10, None, *[0.0] * (2 * MINUTE - 11)], [0.0] * 2 * MINUTE]
    assert recorded.shares()[60.0] == [[None, 0.0], [0.0, 0.0]]


def test_another_number_of_devices_is_another_story(recorded: Recorded) -> None:
    recorded.look(0.0, 0.0, times=MINUTE * 10)
    assert list(recorded.shares()) == [PERIOD_S, 60.0, 600.0]
    told = recorded.look(0.5)
    assert told.devices == 1
    assert recorded.shares() == {PERIOD_S: [[0.5]]}, "what was seen before was of others, however coarse"
    recorded.look(0.5, times=MINUTE - 1)
    assert recorded.shares()[60.0] == [[0.5]]


def test_accelerators_that_cannot_be_read_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(monkeypatch, unreadable=4)
    assert recorded.fact().devices == 4
    assert recorded.look(0.0, 0.0).devices == 6
    assert [series.devices for series in recorded.fact().utilization] == [2]


def test_it_looks_by_itself_and_goes_on_after_a_look_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    looks = threading.Semaphore(0)
    seen: list[ActivitySample] = []

    def see() -> ActivitySample:
        looks.release()
        seen.append(ActivitySample((0.5,), 1.0, 1.0))
        if len(seen) == 1:
            raise RuntimeError("the driver is gone")
        if len(seen) == 3:
            recorder.stop()
        return seen[-1]

    recorder = ActivityRecorder(see, period_s=0.01)
    recorder.begin()
    # The third begins when the second was taken.
    assert all(looks.acquire(timeout=60) for _ in range(3))
    found = recorder.report()
    assert found is not None and found.devices == 1 and "the driver is gone" in caplog.text


def test_it_looks_no_more_when_it_is_stopped() -> None:
    before = set(threading.enumerate())
    recorder = ActivityRecorder(lambda: ActivitySample((), 0.0, 0.0), period_s=0.01)
    recorder.begin()
    (thread,) = set(threading.enumerate()) - before
    recorder.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_times_are_told_to_the_millisecond(recorded: Recorded) -> None:
    recorded.recorder.note_step(1)
    recorded.recorder.note_checkpoints(1)
    recorded.recorder.note_checkpoints(2)
    recorded.now_s += 0.12345
    recorded.recorder.note_step(2)
    recorded.recorder.take(ActivitySample((0.0,), 0.0, 0.0))
    recorded.now_s += 0.25
    told = recorded.fact()
    assert (told.longest_step_s, told.silent_s, told.stepped_s, told.saving_s) == (0.123, 0.25, 0.25, 0.373)
    assert recorded.recorder.idle_s(1) == 0.123


# ── Waste ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_accelerators_are_idle_only_while_all_are_and_all_are_seen(recorded: Recorded) -> None:
    assert recorded.recorder.idle_s(2) is None, "nobody has looked yet"
    recorded.look(0.0, 0.01, times=10)
    idle_s = 10 * PERIOD_S
    assert recorded.recorder.idle_s(2) == idle_s
    recorded.look(0.0, 0.5, times=5)
    recorded.look(0.0, None, times=5)
    assert recorded.recorder.idle_s(2) == idle_s
    recorded.now_s += 600
    recorded.look(0.0, 0.0)
    assert recorded.recorder.idle_s(2) == idle_s, "nobody looked meanwhile"
    recorded.look(0.0, 0.0)
    assert recorded.recorder.idle_s(2) == idle_s + PERIOD_S
    assert recorded.recorder.idle_s(8) is None, "there are more of them than anybody can read"


def test_without_accelerators_none_is_idle_and_those_that_cannot_be_read_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded(monkeypatch)
    recorded.look(times=10)
    assert recorded.recorder.idle_s(0) == 0.0
    assert recorded.recorder.idle_s(1) is None
    foreign = Recorded(monkeypatch, unreadable=1)
    foreign.look(times=10)
    assert foreign.recorder.idle_s(0) is None
    unread = Recorded(monkeypatch)
    unread.look(None, times=10)
    assert unread.recorder.idle_s(1) is None
