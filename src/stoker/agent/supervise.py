"""Run the training, and end it well.

The training is a group of processes. It ends by itself, or it is asked to: SIGTERM and the notice file with the time
that is left, then a frozen, consistent last look at its checkpoints, then SIGKILL. Nothing of it is alive afterwards.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.agent.checkpoints.whole_units import TrainingEnd
from stoker.agent.runtime import Command, Enclosure, Members, Run
from stoker.agent.training_environment import write_notice
from stoker.model.node_facts import ExitWhy, SaveTimes
from stoker.processes import Process, stat_of

# How often the training's end, and the reasons to end it, are looked at. A wake-up costs tens of microseconds.
_LOOK_EVERY_S = 0.1
_ENDING_LOOK_S = 0.02
# Whoever is alive so long after SIGKILL waits in the kernel.
_DIES_WITHIN_S = 0.5

# Exit codes of programs that were told to end, and did: 128 + SIGINT, 128 + SIGTERM.
_TOLD_CODES = (0, 130, 143)

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
# They pass a signal on to the one program that they run, whatever that is.
_INITS = frozenset({"tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"})


@dataclass(frozen=True)
class Ending:
    """Why the training must end now, and how long it has."""

    why: ExitWhy
    reason: str
    grace_s: float


@dataclass(frozen=True)
class Ended:
    """How the training ended. `ending` is None when it ended by itself."""

    code: int | None
    signal: int | None
    trained_s: float
    ending: Ending | None = None
    save: SaveTimes | None = None
    # When the grace is over, in monotonic seconds.
    deadline_s: float | None = None


class Observer(Protocol):
    """Watches which files the training writes. Each call is quick."""

    def before_signal(self) -> None: ...

    def watch_writers(self) -> None: ...

    def before_kill(self) -> None: ...


class Training:
    """One run of the command. Not reusable. `unblock` ends what may keep processes waiting in the kernel."""

    # Set before the start. It looks before anything is told or killed: afterwards a file that was cut off is closed.
    observer: Observer | None = None

    def __init__(self, enclosure: Enclosure, wake: threading.Event, unblock: Callable[[], None] = lambda: None) -> None:
        self._enclosure = enclosure
        self._wake = wake
        self._unblock = unblock
        self._root: Run | None = None
        self._ended_s: float | None = None
        # Known from `start` and from `tell` on.
        self._started_s: float
        self._told_s: float
        self._deadline_s: float
        self._told_alone: bool

    def start(self, command: Command, log: Path) -> None:
        """Start the command, its output at the end of `log`. Raises OSError when the program is not there."""
        self._root = self._enclosure.spawn(command, log)
        self._started_s = time.monotonic()

    @property
    def trained_s(self) -> float:
        """Seconds since the start, or until the end."""
        if self._root is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._started_s

    @property
    def over_s(self) -> float:
        """Seconds since its end; 0 as long as there was none."""
        return 0.0 if self._ended_s is None else time.monotonic() - self._ended_s

    @property
    def running(self) -> bool:
        return self._root is not None and self._ended_s is None

    def wait(self, reason_to_end: Callable[[], Ending | None]) -> Ending | None:
        """Until it ends by itself (None), or there is a reason to end it."""
        assert self._root is not None
        while self._root.poll() is None:
            ending = reason_to_end()
            if ending is not None:
                return ending
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()
        return None

    def finish(self) -> Ended:
        """After it ended by itself: nothing that it forked may stay."""
        assert self._root is not None
        self._ended_s = time.monotonic()
        if self.observer is not None:
            self.observer.before_kill()
        # First, since its output ends only when nobody is left who might print.
        self.kill()
        code = self._root.wait()
        return Ended(code=code if code >= 0 else None, signal=-code if code < 0 else None, trained_s=self.trained_s)

    def tell(self, ending: Ending, notice: Path) -> float:
        """Ask it to save and go. The first thing that happens on a notice. Answers the deadline, in monotonic seconds.

        The file comes before the signal: whoever gets the one may look at the other at once.
        """
        assert self._root is not None
        self._told_s = time.monotonic()
        self._deadline_s = self._told_s + ending.grace_s
        members = _processes(self._enclosure.group)
        targets = _targets(self._root.pid, members)
        self._told_alone = members.keys() <= {self._root.pid}
        if self.observer is not None:
            # The last thing before the training hears of it: what it begins to save from then on, it can finish.
            self.observer.before_signal()
        with suppress(OSError):
            # A disk that is full keeps nobody from being asked.
            write_notice(notice, ending.grace_s, self._deadline_s - reserve(ending.grace_s), ending.reason)
        _ask(targets)
        return self._deadline_s

    def end(
        self,
        ending: Ending,
        notice: Path,
        last_look: Callable[[float, TrainingEnd], bool],
        pressed: Callable[[], float | None] = lambda: None,
    ) -> Ended:
        """After `tell`: wait for it to go, then make it. `last_look(seconds, end)` makes durable what it saved.

        `pressed` gives a deadline (monotonic seconds) that may turn up meanwhile and leave less than the ending did.
        """
        assert self._root is not None
        left, reserve_s = self._wait_until_gone(ending, notice, pressed)
        saved_s = time.monotonic() - self._told_s
        if not left:
            self._enclosure.group.freeze(timeout_s=min(1.0, reserve_s / 3))
            if self.observer is not None:
                self.observer.before_kill()
        seconds = max(0.1, self._deadline_s - time.monotonic() - reserve_s / 3)
        durable = last_look(seconds, self._how_it_left() if left else TrainingEnd("died"))
        durable_s = time.monotonic() - self._told_s
        self.kill()
        code = self._root.wait()
        self._ended_s = time.monotonic()
        return Ended(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            trained_s=self.trained_s,
            ending=ending,
            save=SaveTimes(
                saved_s=saved_s if left else None,
                durable_s=durable_s if durable else None,
                ended_s=self._ended_s - self._told_s,
                grace_s=self._deadline_s - self._told_s,
            ),
            deadline_s=self._deadline_s,
        )

    def kill(self) -> None:
        """Leave nobody alive, of the set-up neither. Who reads from a mount that does not answer dies when it is cut.

        Only then: whoever dies at once leaves the mount as it is, to what is made durable afterwards.
        """
        if not self._enclosure.group.kill(_DIES_WITHIN_S):
            self._unblock()
            self._enclosure.group.kill()

    def _how_it_left(self) -> TrainingEnd:
        """After every process went by itself."""
        assert self._root is not None
        code = self._root.wait()
        if code < 0 and code != -signal.SIGTERM:
            return TrainingEnd("died")
        return TrainingEnd(
            "left",
            root=self._root.pid,
            alone=self._told_alone,
            succeeded=code in _TOLD_CODES,
            failed=code > 0 and code not in _TOLD_CODES,
        )

    def _wait_until_gone(self, ending: Ending, notice: Path, pressed: Callable[[], float | None]) -> tuple[bool, float]:
        """Whether it went by itself, and what is kept of the grace for what comes after it."""
        assert self._root is not None
        reserve_s, look_at_s = reserve(ending.grace_s), 0.0
        while time.monotonic() < self._deadline_s - reserve_s:
            if self._root.poll() is not None and not self._enclosure.group.members():
                return True, reserve_s
            if self.observer is not None:
                self.observer.watch_writers()
            if time.monotonic() >= look_at_s:
                look_at_s = time.monotonic() + _LOOK_EVERY_S
                sooner_s = pressed()
                if sooner_s is not None and sooner_s < self._deadline_s:
                    left_s = max(0.0, sooner_s - time.monotonic())
                    self._deadline_s, reserve_s = sooner_s, reserve(left_s)
                    with suppress(OSError):
                        write_notice(notice, left_s, sooner_s - reserve_s, ending.reason)
            time.sleep(_ENDING_LOOK_S)
        return False, reserve_s


def reserve(grace_s: float) -> float:
    """The part of a grace that is kept for what comes after the training: the last commit, the log, the exit.

    A training that goes sooner leaves them the rest of its part, too.
    """
    return min(10.0, max(0.3, grace_s * 0.25))


def _processes(group: Members) -> dict[int, Process]:
    return {pid: process for pid in group.members() if (process := Process.of(pid)) is not None}


def _targets(root: int, members: Mapping[int, Process]) -> list[Process]:
    """Those to be asked to go: the command, and through shells what they run.

    Not the whole group: a data loader's workers that died of SIGTERM would break the very save that is asked for. A
    shell passes no signal on, so what it runs is asked as well. An init does: what it runs is asked in its place, for
    many a script takes a second signal as a reason not to save.
    """
    children: dict[int, list[int]] = {}
    for pid in members:
        stat = stat_of(pid)
        children.setdefault(stat.parent if stat else 0, []).append(pid)
    targets, look = [], [root]
    while look:
        pid = look.pop()
        name, below = _name(pid), children.get(pid, [])
        if name not in _INITS or not below:
            targets.append(pid)
        if name in _SHELLS | _INITS:
            look += below
    # Children first: a shell that dies of the signal would otherwise leave them without a parent to be found by.
    return [members[pid] for pid in reversed(targets) if pid in members]


def _ask(targets: Iterable[Process]) -> None:
    for process in targets:
        process.signal(signal.SIGTERM)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
