"""Record what a training did lately: whether its accelerators, its processors, its step and its log moved.

These are facts for the governor's rules about jobs that stand still; nothing is decided here. A value that cannot be
read is never reported as idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from stoker.agent.health.activity_probe import ActivitySample
from stoker.core.failure_diagnosis import AGENT_PREFIX
from stoker.model.node_facts import Activity, Series
from stoker.model.usage_series import FINEST_S, pack

PERIOD_S = FINEST_S
# At work: this much of one core, or so many bytes a second, between two samples. A process that only waits polls less.
_CORE_SHARE = 0.05
_BYTES_PER_S = 100_000.0
# An accelerator with at most this utilization is idle.
_IDLE_SHARE = 0.01
# A person keeps a process stopped for longer than this. A profiler that samples stops it for moments.
_SESSION_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Options:
    """How a recorder samples."""

    period_s: float
    # Accelerators whose utilization cannot be read.
    unreadable: int
    # Before the training, bytes that the agent moves are progress: a download writes no log, and takes long.
    agent_io_counts: bool


@dataclass
class _Times:
    """Moments of the recording, in monotonic seconds."""

    began_s: float | None = None
    # The last sign of life, and the last sample; both known once the recording began.
    moved_s: float = 0.0
    sampled_s: float = 0.0
    # The last time that it waited for another node.
    waited_s: float | None = None
    # The last sign of a save.
    saving_s: float | None = None


@dataclass
class _Steps:
    """The steps that the training reported."""

    newest: tuple[int | None, int] | None = None
    only_first: bool = False
    at_s: float | None = None
    longest_s: float = 0.0

    def note(self, step: int, moves: int, now_s: float) -> bool:
        """Take a report; return whether it is progress."""
        reported = (step, moves) if not moves else (None, moves)
        if reported == self.newest:
            return False
        self.only_first = self.newest is None and moves <= 1
        self.newest = reported
        if self.at_s is not None:
            self.longest_s = max(self.longest_s, now_s - self.at_s)
        self.at_s = now_s
        return True


@dataclass
class _DebugSession:
    """When the present session with a debugger began, and when the last one ended."""

    since_s: float | None = None
    released_s: float | None = None


@dataclass
class _IdleTime:
    """How long all accelerators were seen idle, and whether all were ever read at once."""

    total_s: float = 0.0
    was_read: bool = False


class ActivityRecorder:
    """Samples every few seconds, in a thread of its own: a broken GPU can make a sample hang for ever."""

    def __init__(
        self,
        probe: Callable[[], ActivitySample],
        *,
        unreadable: int = 0,
        agent_io_counts: bool = False,
        period_s: float = PERIOD_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._options = _Options(period_s, unreadable, agent_io_counts)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._utilization = PeriodMeans()
        self._work = PeriodMeans()
        self._previous: tuple[float, ActivitySample] | None = None
        self._times = _Times()
        self._steps = _Steps()
        self._debug = _DebugSession()
        self._idle = _IdleTime()
        self._checkpoints: Hashable = None
        self._metrics: dict[str, float] = {}

    def begin(self, *, sample: bool = True) -> None:
        """Start the clocks now, or anew. With `sample`, start the thread too if it does not run yet."""
        with self._lock:
            self._times.began_s = self._times.moved_s = self._times.sampled_s = self._monotonic()
        if sample and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="activity", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Does not wait for a sample that hangs."""
        self._stopping.set()

    def note_output(self, data: bytes) -> None:
        """Take more of the log. Lines of the agent itself are no sign of life."""
        if any(line.strip() and not line.startswith(AGENT_PREFIX.encode()) for line in data.splitlines()):
            self._move()

    def note_step(self, step: int | None, moves: int = 0) -> None:
        """Take the newest step of the training, and how often it moved on (`StepCount`).

        Each move is progress, whatever its step: some trainings count anew in each epoch.
        """
        with self._lock:
            now = self._monotonic()
            if step is not None and self._steps.note(step, moves, now):
                self._times.moved_s = now

    def note_checkpoints(self, state: Hashable) -> None:
        """Take the state of the checkpoint folder, in any terms: a change means that the training saves."""
        with self._lock:
            if self._checkpoints is not None and state != self._checkpoints:
                self._times.saving_s = self._monotonic()
            self._checkpoints = state

    def note_metrics(self, values: Mapping[str, float]) -> None:
        """Take the newest metrics, with or without a step: where no steps are reported, new values are progress."""
        if values != self._metrics:
            self._metrics = dict(values)
            self._move()

    def note_waiting(self) -> None:
        """Record that it waits for another node now. Call this again and again while it does."""
        with self._lock:
            self._times.waited_s = self._times.moved_s = self._monotonic()

    def report(self) -> Activity | None:
        """Return the activity for the next heartbeat; None before `begin`."""
        now = self._monotonic()
        with self._lock:
            if self._times.began_s is None:
                return None
            fresh = self._is_fresh(now)
            period_s, waited_s = self._options.period_s, self._times.waited_s
            return Activity(
                silent_s=round(now - self._times.moved_s, 3),
                work=self._work.pack(period_s) if fresh else (),
                utilization=self._utilization.pack(period_s) if fresh else (),
                devices=len(self._utilization.newest) + self._options.unreadable,
                waits=waited_s is not None and now - waited_s < 3 * period_s,
                stepped_s=_since(now, self._steps.at_s),
                longest_step_s=round(self._steps.longest_s, 3),
                first_step=self._steps.only_first,
                saving_s=_since(now, self._times.saving_s),
                debugged_s=_since(now, self._debug.since_s) if fresh else None,
                released_s=_since(now, self._debug.released_s),
            )

    def idle_s(self, devices: int) -> float | None:
        """How long all accelerators were known to be idle.

        None if some of them, or of the `devices` that the machine should have, cannot be read.
        """
        with self._lock:
            readable, unreadable = len(self._utilization.newest), self._options.unreadable
            if not devices and not readable and not unreadable:
                return 0.0
            all_read = self._idle.was_read and not unreadable and readable >= devices
            return round(self._idle.total_s, 3) if all_read else None

    def take(self, sample: ActivitySample) -> None:
        """Record one more sample."""
        now = self._monotonic()
        with self._lock:
            if self._is_paused(now, sample):
                self._times.sampled_s = now
                self._previous = (now, sample)
                return
            if len(sample.gpus) != len(self._utilization.newest):
                # A device came or went: earlier values are of other devices.
                self._utilization = PeriodMeans()
            elif not self._is_fresh(now):
                # The values in between are not known: no window may reach over the gap.
                self._utilization.add([None] * len(sample.gpus))
            if not self._is_fresh(now):
                self._work.add([None])
            self._note_idle(now, sample)
            self._times.sampled_s = now
            self._utilization.add(sample.gpus)
            self._note_work(now, sample)

    def _move(self) -> None:
        with self._lock:
            self._times.moved_s = self._monotonic()

    def _run(self) -> None:
        while not self._stopping.wait(self._options.period_s):
            try:
                self.take(self._probe())
            except Exception:  # noqa: BLE001 - edge of a thread: without it a standstill could not be seen any more
                _log.exception("sampling the training's activity failed")

    def _is_paused(self, now: float, sample: ActivitySample) -> bool:
        """Stop all clocks while a debugger holds the training. After a long session they begin anew."""
        times, steps, debug = self._times, self._steps, self._debug
        if sample.debugged:
            passed_s = max(0.0, now - times.sampled_s)
            debug.since_s = now if debug.since_s is None else debug.since_s
            times.moved_s = min(now, times.moved_s + passed_s)
            if steps.at_s is not None:
                steps.at_s = min(now, steps.at_s + passed_s)
            return True
        if debug.since_s is not None and now - debug.since_s >= _SESSION_S:
            debug.released_s = times.moved_s = now
            if steps.at_s is not None:
                steps.at_s = now
        debug.since_s = None
        return False

    def _note_idle(self, now: float, sample: ActivitySample) -> None:
        if not sample.gpus or None in sample.gpus:
            return
        self._idle.was_read = True
        if self._is_fresh(now) and all(share is not None and share <= _IDLE_SHARE for share in sample.gpus):
            self._idle.total_s += now - self._times.sampled_s

    def _is_fresh(self, now: float) -> bool:
        """Return whether the last sample is recent enough to be reported."""
        return now - self._times.sampled_s < 3 * self._options.period_s

    def _note_work(self, now: float, sample: ActivitySample) -> None:
        if self._previous is None:
            self._previous = (now, sample)
            return
        (at_s, before), self._previous = self._previous, (now, sample)
        passed_s = now - at_s
        busy = _rose(before.cpu_s, sample.cpu_s, _CORE_SHARE * passed_s)
        moved = _rose(before.moved, sample.moved, _BYTES_PER_S * passed_s)
        carried = _rose(before.carried, sample.carried, _BYTES_PER_S * passed_s)
        if carried and self._options.agent_io_counts:
            self._times.moved_s = now
        if sample.sending:
            self._times.saving_s = now
        if busy or moved or carried or sample.sending:
            self._work.add([1.0])
        else:
            # A process that cannot be read may be at work.
            self._work.add([None if busy is None or moved is None or carried is None else 0.0])


def _since(now: float, moment_s: float | None) -> float | None:
    return None if moment_s is None else round(now - moment_s, 3)


def _rose(before: float | None, now: float | None, least: float) -> bool | None:
    """Return whether a counter rose by `least` or more; None if it could not be read."""
    return None if before is None or now is None else now - before >= least


# Two minutes, an hour and a half, a day (`usage_series.LONGEST_S`): each period is made of so many of the one before.
_LEVELS = ((1, 120), (60, 90), (10, 144))


class PeriodMeans:
    """The values of some devices at all resolutions. The devices stay the same."""

    def __init__(self) -> None:
        self._levels = [_Level(count, most) for count, most in _LEVELS]

    @property
    def newest(self) -> Sequence[float | None]:
        """The last values, by device; empty if there are none."""
        return self._levels[0].newest

    def add(self, values: Sequence[float | None]) -> None:
        """Add the values of one more period, by device. None is a value that could not be read."""
        for level in self._levels:
            made = level.add(values)
            if made is None:
                return
            values = made

    def pack(self, period_s: float) -> tuple[Series, ...]:
        """Return all values for a heartbeat. `period_s` is the length of the finest period."""
        found = []
        for level in self._levels:
            period_s *= level.count
            found.append(level.pack(period_s))
        return tuple(each for each in found if each is not None)


class _Level:
    """Means over `count` values each, the newest `most` of them, by device. The devices stay the same."""

    def __init__(self, count: int, most: int) -> None:
        self.count = count
        self._made: deque[tuple[float | None, ...]] = deque(maxlen=most)
        self._open: list[Sequence[float | None]] = []
        self.newest: Sequence[float | None] = ()

    def add(self, values: Sequence[float | None]) -> Sequence[float | None] | None:
        """Add one more; return the period that it completed, or None."""
        self.newest = values
        self._open.append(values)
        if len(self._open) < self.count:
            return None
        made = tuple(_mean([each[device] for each in self._open]) for device in range(len(values)))
        self._made.append(made)
        self._open.clear()
        return made

    def pack(self, period_s: float) -> Series | None:
        if not self._made or not self.newest:
            return None
        return pack(period_s, [[period[device] for period in self._made] for device in range(len(self.newest))])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
