"""What the training did lately: whether its accelerators, its processors, its step and its log moved.

Facts for the governor's rules about jobs that stand still; nothing is decided here. What cannot be seen is never told
as idle.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.agent.health.debuggers import is_debugged
from stoker.agent.health.periods import Periods
from stoker.agent.logs.log_pump import PREFIX
from stoker.model.node_facts import Activity
from stoker.model.usage_series import FINEST_S

PERIOD_S = FINEST_S
# At work: this much of one core, or so many bytes a second, between two looks. A process that only waits polls less.
_CORE_SHARE = 0.05
_BYTES_PER_S = 100_000.0
# An accelerator that does no more than this does nothing.
_IDLE_SHARE = 0.01
# A person keeps a process stopped for longer than this. A profiler that samples stops it for moments.
_SESSION_S = 10.0
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
    # A person has stopped a process of it, or looks into one with a debugger.
    debugged: bool = False


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
        self._series = Periods()
        self._work = Periods()
        self._before: tuple[float, Look] | None = None
        self._began_s: float | None = None
        # Known from `begin` on.
        self._moved_s: float
        self._looked_s: float
        self._waited_s: float | None = None
        self._told_step: tuple[int | None, int] | None = None
        self._first_step = False
        self._stepped_s: float | None = None
        self._longest_step_s = 0.0
        self._saving_s: float | None = None
        self._saved: Hashable = None
        self._reported: dict[str, float] = {}
        # When the present session with a debugger began, and when the last one ended.
        self._debugged_s: float | None = None
        self._released_s: float | None = None
        # How long all accelerators were seen idle, and whether they were ever seen.
        self._idle_s = 0.0
        self._read = False

    def begin(self, *, looking: bool = True) -> None:
        """It starts now, whatever was before. Looks from here on, unless somebody does already."""
        with self._lock:
            self._began_s = self._moved_s = self._looked_s = self._monotonic()
        if looking:
            threading.Thread(target=self._run, name="activity", daemon=True).start()

    def stop(self) -> None:
        """Does not wait for a look that hangs."""
        self._stopping.set()

    def heard(self, data: bytes) -> None:
        """More of the log. What the agent itself says is no sign of life."""
        if any(line.strip() and not line.startswith(PREFIX.encode()) for line in data.splitlines()):
            self._move()

    def stepped(self, step: int | None, moves: int = 0) -> None:
        """The newest step of the training, and how often it moved on (`StepCount`). Each move is progress, whatever the
        step is by now: some count anew each epoch."""
        with self._lock:
            told = (step, moves) if not moves else (None, moves)
            if step is None or told == self._told_step:
                return
            self._first_step = self._told_step is None and moves <= 1
            self._told_step = told
            now = self._monotonic()
            if self._stepped_s is not None:
                self._longest_step_s = max(self._longest_step_s, now - self._stepped_s)
            self._stepped_s = self._moved_s = now

    def saved(self, state: Hashable) -> None:
        """The state of its checkpoint folder, in any terms: a change means that it saves."""
        with self._lock:
            if self._saved is not None and state != self._saved:
                self._saving_s = self._monotonic()
            self._saved = state

    def reported(self, values: Mapping[str, float]) -> None:
        """The newest metrics, with or without a step. Where no steps are reported, new values are a sign of life."""
        if values != self._reported:
            self._reported = dict(values)
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
            devices = len(self._series.newest) + self._others
            return Activity(
                silent_s=round(now - self._moved_s, 3),
                work=self._work.pack(self._period_s) if seen else (),
                utilization=self._series.pack(self._period_s) if seen else (),
                devices=devices,
                waits=self._waited_s is not None and now - self._waited_s < 3 * self._period_s,
                stepped_s=_since(now, self._stepped_s),
                longest_step_s=round(self._longest_step_s, 3),
                first_step=self._first_step,
                saving_s=_since(now, self._saving_s),
                debugged_s=_since(now, self._debugged_s) if seen else None,
                released_s=_since(now, self._released_s),
            )

    def idle_s(self, devices: int) -> float | None:
        """How long all accelerators were known to be idle; None where some of them, or of the `devices` that should be
        here, cannot be read."""
        with self._lock:
            seen = len(self._series.newest)
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
            if self._is_paused(now, look):
                self._looked_s = now
                self._before = (now, look)
                return
            if len(look.gpus) != len(self._series.newest):
                # A device came or went: what was seen before is of others.
                self._series = Periods()
            elif not self._sees(now):
                # Nobody knows what they did meanwhile: no window may reach over it.
                self._series.add([None] * len(look.gpus))
            if not self._sees(now):
                self._work.add([None])
            self._note_idle(now, look)
            self._looked_s = now
            self._series.add(look.gpus)
            self._note_work(now, look)

    def _is_paused(self, now: float, look: Look) -> bool:
        """Stop all clocks while a debugger holds the training. What a person held for long begins anew afterwards."""
        if look.debugged:
            passed_s = max(0.0, now - self._looked_s)
            self._debugged_s = now if self._debugged_s is None else self._debugged_s
            self._moved_s = min(now, self._moved_s + passed_s)
            if self._stepped_s is not None:
                self._stepped_s = min(now, self._stepped_s + passed_s)
            return True
        if self._debugged_s is not None and now - self._debugged_s >= _SESSION_S:
            self._released_s = self._moved_s = now
            if self._stepped_s is not None:
                self._stepped_s = now
        self._debugged_s = None
        return False

    def _note_idle(self, now: float, look: Look) -> None:
        if not look.gpus or None in look.gpus:
            return
        self._read = True
        if self._sees(now) and all(share is not None and share <= _IDLE_SHARE for share in look.gpus):
            self._idle_s += now - self._looked_s

    def _sees(self, now: float) -> bool:
        """Whether the last look is young enough to say something."""
        return now - self._looked_s < 3 * self._period_s

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
        if look.sending:
            self._saving_s = now
        if busy or moved or carried or look.sending:
            self._work.add([1.0])
        else:
            # Where it cannot be seen whether it works, it may.
            self._work.add([None if busy is None or moved is None or carried is None else 0.0])


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
        debugged = is_debugged(members, self._proc)
        return Look(shares, self._cpu_s(members), self._bytes(members), carried, self._sending(), debugged)

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


def _since(now: float, moment_s: float | None) -> float | None:
    return None if moment_s is None else round(now - moment_s, 3)


def _rose(before: float | None, now: float | None, least: float) -> bool | None:
    """Whether by so much at least; None where nobody knows."""
    return None if before is None or now is None else now - before >= least
