"""What the training did lately: whether its accelerators, its processors, its step and its log moved.

Facts for the governor's rules about jobs that stand still; nothing is decided here. What cannot be seen is never told
as idle.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.agent.logs import PREFIX
from stoker.model import Activity, Series
from stoker.series import FINEST_S, pack

PERIOD_S = FINEST_S
# Two minutes, an hour and a half, a day (`series.LONGEST_S`): each period made of so many of the one before.
_KEPT = ((1, 120), (60, 90), (10, 144))
# At work: this much of one core, or so many bytes a second, between two looks. A process that only waits polls less.
_CORE_SHARE = 0.05
_BYTES_PER_S = 100_000.0
# An accelerator that does no more than this does nothing.
_IDLE_SHARE = 0.01
# Accelerators that NVML does not know: TPUs (by either driver), Gaudi (by either driver), Inferentia and Trainium.
_OTHERS = ("accel[0-9]*", "vfio/[0-9]*", "accel/accel[0-9]*", "hl[0-9]*", "neuron[0-9]*")


def count_others(dev: Path = Path("/dev")) -> int:
    """How many accelerators are here that cannot be read."""
    return sum(1 for pattern in _OTHERS for _ in dev.glob(pattern))


_log = logging.getLogger(__name__)


class Look(NamedTuple):
    """What is seen at one moment. None is what cannot be read."""

    # Shares of one.
    gpus: tuple[float | None, ...]
    # Seconds that its processors were busy, since ever; and bytes that it moved.
    cpu_s: float | None
    moved: float | None
    # Bytes that the agent itself moved, and whether it is sending a save: a training may wait for that.
    carried: float | None = 0.0
    sending: bool = False


class ActivityRecorder:
    """Looks every few seconds, in a thread of its own: a broken GPU can make a look hang for ever."""

    def __init__(
        self,
        see: Callable[[], Look],
        *,
        others: int = 0,
        carrying: bool = False,
        period_s: float = PERIOD_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._see = see
        self._period_s = period_s
        # Accelerators that nobody here can read.
        self._others = others
        # Before the training what the agent carries is what moves: a download says nothing in the log, and takes long.
        self._carrying = carrying
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._series = _make_series()
        self._before: tuple[float, Look] | None = None
        self._began_s: float | None = None
        self._moved_s = 0.0
        self._worked_s: float | None = None
        self._looked_s = 0.0
        self._waited_s: float | None = None
        self._step: int | None = None
        # How long all accelerators were seen idle, and whether they were ever seen.
        self._idle_s = 0.0
        self._read = False

    def begin(self, *, looking: bool = True) -> None:
        """It starts now, whatever was before. Looks from here on, unless somebody does already."""
        with self._lock:
            self._began_s = self._moved_s = self._looked_s = self._monotonic()
            self._worked_s = self._began_s
        if looking:
            threading.Thread(target=self._run, name="activity", daemon=True).start()

    def stop(self) -> None:
        """Does not wait for a look that hangs."""
        self._stopping.set()

    def heard(self, data: bytes) -> None:
        """More of the log. What the agent itself says is no sign of life."""
        if any(line.strip() and not line.startswith(PREFIX.encode()) for line in data.splitlines()):
            self._move()

    def stepped(self, step: int | None) -> None:
        """The newest step of the training."""
        if step is not None and (self._step is None or step > self._step):
            self._step = step
            self._move()

    def waits(self) -> None:
        """It waits for somebody else, now: to be called all the time while it does."""
        with self._lock:
            self._waited_s = self._moved_s = self._monotonic()

    def fact(self) -> Activity | None:
        """For the next heartbeat; None before the training starts."""
        now = self._monotonic()
        with self._lock:
            if self._began_s is None:
                return None
            seen = self._sees(now)
            periods = [
                each.pack(period_s) for each, period_s in zip(self._series, _periods_s(self._period_s), strict=True)
            ]
            devices = len(self._series[0].newest) + self._others
            return Activity(
                silent_s=round(now - self._moved_s, 3),
                idle_s=None if self._worked_s is None or not seen else round(now - self._worked_s, 3),
                utilization=tuple(each for each in periods if each is not None) if seen else (),
                devices=devices,
                waits=self._waited_s is not None and now - self._waited_s < 3 * self._period_s,
            )

    def idle_s(self, devices: int) -> float | None:
        """How long all accelerators were known to be idle; None where some of them, or of the `devices` that should be
        here, cannot be read."""
        with self._lock:
            seen = len(self._series[0].newest)
            if not devices and not seen and not self._others:
                return 0.0
            return round(self._idle_s, 3) if self._read and not self._others and seen >= devices else None

    def _move(self) -> None:
        with self._lock:
            self._moved_s = self._monotonic()

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            try:
                self.take(self._see())
            except Exception:  # noqa: BLE001 - without it nobody would know whether the training stands still
                _log.exception("looking at what the training does failed")

    def take(self, look: Look) -> None:
        """One more look at it."""
        now = self._monotonic()
        with self._lock:
            if len(look.gpus) != len(self._series[0].newest):
                # A device came or went: what was seen before is of others.
                self._series = _make_series()
            elif not self._sees(now):
                # Nobody knows what they did meanwhile: no window may reach over it.
                self._add([None] * len(look.gpus))
            self._note_idle(now, look)
            self._looked_s = now
            self._add(look.gpus)
            self._note_work(now, look)

    def _note_idle(self, now: float, look: Look) -> None:
        if not look.gpus or None in look.gpus:
            return
        self._read = True
        if self._sees(now) and all(share is not None and share <= _IDLE_SHARE for share in look.gpus):
            self._idle_s += now - self._looked_s

    def _sees(self, now: float) -> bool:
        """Whether the last look is young enough to say something."""
        return now - self._looked_s < 3 * self._period_s

    def _add(self, values: Sequence[float | None]) -> None:
        for each in self._series:
            made = each.add(values)
            if made is None:
                return
            values = made

    def _note_work(self, now: float, look: Look) -> None:
        if self._before is None:
            self._before = (now, look)
            return
        (at_s, before), self._before = self._before, (now, look)
        passed_s = now - at_s
        busy = _rose(before.cpu_s, look.cpu_s, _CORE_SHARE * passed_s)
        moved = _rose(before.moved, look.moved, _BYTES_PER_S * passed_s)
        carried = _rose(before.carried, look.carried, _BYTES_PER_S * passed_s)
        if carried and self._carrying:
            self._moved_s = now
        if busy or moved or carried or look.sending:
            self._worked_s = now
        elif busy is None or moved is None or carried is None:
            # Nobody can see whether it works: it may.
            self._worked_s = None
        elif self._worked_s is None:
            self._worked_s = now


class Sight:
    """Looks at the processes of a training, or at those on the way to it."""

    def __init__(
        self,
        gpus: Callable[[], Sequence[float | None]],
        # None: somebody is at work whom nobody here can see.
        members: Callable[[], set[int] | None],
        *,
        # Others use this computer, too: what its network does says nothing about the training.
        shared: bool,
        sending: Callable[[], bool] = lambda: False,
        # The pid of the agent, where it is at work itself.
        agent: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._gpus = gpus
        self._members = members
        self._shared = shared
        self._sending = sending
        self._agent = agent
        self._proc = proc

    def __call__(self) -> Look:
        shares = tuple(None if share is None else share / 100 for share in self._gpus())
        members, carried = self._members(), 0.0 if self._agent is None else self._carried(self._agent)
        if members is None:
            return Look(shares, None, None, carried)
        return Look(shares, self._cpu_s(members), self._bytes(members), carried, self._sending())

    def _cpu_s(self, members: set[int]) -> float | None:
        """Of all that are there, and of their children that were."""
        ticks = [found for pid in members if (found := self._ticks(pid)) is not None]
        if not ticks and self._agent is not None:
            return 0.0  # The agent is alone at it.
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def _ticks(self, pid: int) -> int | None:
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return sum(int(fields[number]) for number in (11, 12, 13, 14))
        except (OSError, ValueError, IndexError):
            return None

    def _bytes(self, members: set[int]) -> float | None:
        """Read and written, and received where the machine is the training's own. One that nobody may look into may do
        anything."""
        found = [self._of_process(pid) for pid in members if self._is_there(pid)]
        # An agent sees the network of the whole machine, and so what daemons fetch for it.
        seeing = sorted(members) if self._agent is None else [self._agent]
        if not self._shared and seeing:
            received = (self._received(pid) for pid in seeing)
            found.append(next((each for each in received if each is not None), None))
        known = [each for each in found if each is not None]
        if not found and self._agent is not None:
            return 0.0
        return sum(known) if known and len(known) == len(found) else None

    def _is_there(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()

    def _of_process(self, pid: int) -> float | None:
        """As it asked for them, and as disks moved them: what it maps into its memory, it never asks for."""
        found = self._counted(pid, "rchar", "wchar", "read_bytes", "write_bytes")
        # One that ended at this moment did nothing more.
        return found if found is not None or self._is_there(pid) else 0.0

    def _carried(self, agent: int) -> float | None:
        """Without what it reads from memory: it reads all day what the kernel says of others."""
        return self._counted(agent, "wchar", "read_bytes", "write_bytes")

    def _counted(self, pid: int, *names: str) -> float | None:
        try:
            lines = (self._proc / str(pid) / "io").read_text().splitlines()
            parts = dict(line.split(": ") for line in lines)
            return float(sum(int(parts[name]) for name in names))
        except (OSError, ValueError, KeyError):
            return None

    def _received(self, pid: int) -> float | None:
        """By all interfaces that it sees: a container may have its own."""
        try:
            lines = (self._proc / str(pid) / "net" / "dev").read_text().splitlines()[2:]
            return float(sum(int(line.partition(":")[2].split()[0]) for line in lines))
        except (OSError, ValueError, IndexError):
            return None


class _Periods:
    """Means over `count` values each, the newest `most` of them, by device. The devices stay the same."""

    def __init__(self, count: int, most: int) -> None:
        self._count = count
        self._made: deque[tuple[float | None, ...]] = deque(maxlen=most)
        self._open: list[Sequence[float | None]] = []
        self.newest: Sequence[float | None] = ()

    def add(self, values: Sequence[float | None]) -> Sequence[float | None] | None:
        """Take one more. Answers the period that it completed."""
        self.newest = values
        self._open.append(values)
        if len(self._open) < self._count:
            return None
        made = tuple(_mean([each[device] for each in self._open]) for device in range(len(values)))
        self._made.append(made)
        self._open.clear()
        return made

    def pack(self, period_s: float) -> Series | None:
        if not self._made or not self.newest:
            return None
        return pack(period_s, [[period[device] for period in self._made] for device in range(len(self.newest))])


def _make_series() -> list[_Periods]:
    return [_Periods(count, most) for count, most in _KEPT]


def _periods_s(period_s: float) -> list[float]:
    found = []
    for count, _ in _KEPT:
        period_s *= count
        found.append(period_s)
    return found


def _rose(before: float | None, now: float | None, least: float) -> bool | None:
    """Whether by so much at least; None where nobody knows."""
    return None if before is None or now is None else now - before >= least


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
