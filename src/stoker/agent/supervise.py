"""Run the training, and end it well.

The training is a group of processes. It ends by itself, or it is asked to end: SIGTERM and the notice file with the
time that is left, then a last commit of its checkpoints while it is frozen, then SIGKILL. No process of it is alive
afterwards.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.runtime import Command, Run, Runtime, RuntimeGroup
from stoker.agent.training_environment import write_notice
from stoker.model.node_facts import ExitWhy, SaveTimes
from stoker.processes import Process, stat_of

# How often the training's end, and the reasons to end it, are checked. A wake-up costs tens of microseconds.
_POLL_S = 0.1
_ENDING_POLL_S = 0.02
# A process that is alive so long after SIGKILL waits in the kernel.
_DIES_WITHIN_S = 0.5
# How long to try before the machine is given up: a disk or a driver that stalls often answers again within a minute.
_GIVE_UP_S = 60.0

# Exit codes of programs that ended because they were asked to: 128 + SIGINT, 128 + SIGTERM.
_REQUESTED_CODES = (0, 130, 143)

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
# Programs that forward a signal to the one program that they run, whatever that is.
_INITS = frozenset({"tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"})


@dataclass(frozen=True)
class EndRequest:
    """A request that the training end now: why, and how long it has."""

    why: ExitWhy
    reason: str
    grace_s: float


@dataclass(frozen=True)
class TrainingOutcome:
    """How the training ended. `request` is None if it ended by itself."""

    code: int | None
    signal: int | None
    trained_s: float
    request: EndRequest | None = None
    save: SaveTimes | None = None
    # When the grace is over, in monotonic seconds.
    deadline_s: float | None = None


class TrainingSurvived(Exception):
    """Processes of the training cannot be ended. No exit may be written: the next attempt would train beside them."""

    def __init__(self, pids: Collection[int]) -> None:
        named = ", ".join(map(str, sorted(pids)))
        super().__init__(f"processes of the training cannot be ended (pid {named})")


class Observer(Protocol):
    """Watches which files the training writes. Every call is quick."""

    def before_signal(self) -> None: ...

    def watch_writers(self) -> None: ...

    def before_kill(self) -> None: ...


class Training:
    """One run of the command. Not reusable.

    `unblock` cuts mounts that may keep processes waiting in the kernel; `say` writes a message to the user.
    """

    # Set before the start. Called before each signal: afterwards a file that was cut off looks like a closed one.
    observer: Observer | None = None

    def __init__(
        self,
        runtime: Runtime,
        wake: threading.Event,
        unblock: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._runtime = runtime
        self._wake = wake
        self._unblock = unblock
        self._say = say
        self._gave_up = False
        self._root: Run | None = None
        self._ended_s: float | None = None
        # Known after `start`.
        self._started_s: float
        # Known after `notify`.
        self._notified_s: float | None = None
        self._deadline_s: float
        self._notified_alone: bool

    def start(self, command: Command, log: Path) -> None:
        """Start the command, its output at the end of `log`. Raises OSError when the program is not there."""
        self._root = self._runtime.spawn(command, log)
        self._started_s = time.monotonic()

    @property
    def trained_s(self) -> float:
        """Seconds from the start until now, or until the end."""
        if self._root is None:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._started_s

    @property
    def over_s(self) -> float:
        """Seconds since the end; 0 before it."""
        return 0.0 if self._ended_s is None else time.monotonic() - self._ended_s

    @property
    def asked_s(self) -> float | None:
        """Seconds since the training was asked to end; None if it was not."""
        return None if self._notified_s is None else time.monotonic() - self._notified_s

    @property
    def running(self) -> bool:
        return self._root is not None and self._ended_s is None

    def wait(self, reason_to_end: Callable[[], EndRequest | None]) -> EndRequest | None:
        """Wait until the training ends by itself (None), or there is a reason to end it."""
        assert self._root is not None
        while self._root.poll() is None:
            request = reason_to_end()
            if request is not None:
                return request
            self._wake.wait(_POLL_S)
            self._wake.clear()
        return None

    def finish(self) -> TrainingOutcome:
        """Clean up after the command ended by itself: no process that it forked may stay. Raises TrainingSurvived."""
        assert self._root is not None
        self._ended_s = time.monotonic()
        if self.observer is not None:
            self.observer.before_kill()
        # Before the wait: the output ends only when no process is left that might print.
        self.kill()
        code = self._root.wait()
        return TrainingOutcome(
            code=code if code >= 0 else None, signal=-code if code < 0 else None, trained_s=self.trained_s
        )

    def notify(self, request: EndRequest, notice: Path) -> float:
        """Ask the training to save and end; return the deadline, in monotonic seconds. On a notice this comes first.

        The notice file is written before the signal: a signal handler may read the file at once.
        """
        assert self._root is not None
        self._notified_s = time.monotonic()
        self._deadline_s = self._notified_s + request.grace_s
        members = _processes(self._runtime.group)
        targets = _targets(self._root.pid, members)
        self._notified_alone = members.keys() <= {self._root.pid}
        if self.observer is not None:
            # Directly before the signal: a save that begins after it can be finished within the grace.
            self.observer.before_signal()
        with suppress(OSError):
            # A full disk must not prevent the signal.
            write_notice(notice, request.grace_s, self._deadline_s - flush_reserve_s(request.grace_s), request.reason)
        for process in targets:
            process.signal(signal.SIGTERM)
        return self._deadline_s

    def end(
        self,
        request: EndRequest,
        notice: Path,
        commit_last: Callable[[float, TrainingEnd], bool],
        deadline: Callable[[], float | None] = lambda: None,
    ) -> TrainingOutcome:
        """After `notify`: wait for the training to end, then kill it. `commit_last(seconds, end)` stores its save.

        `deadline` returns a deadline in monotonic seconds, or None. It may come meanwhile, and be sooner than that of
        the request. Raises TrainingSurvived.
        """
        assert self._root is not None and self._notified_s is not None
        left, reserve_s = self._wait_until_gone(request, notice, deadline)
        saved_s = time.monotonic() - self._notified_s
        if not left:
            # Frozen, so that no file changes during the commit, and killed only after it: a kill closes torn files.
            self._runtime.group.freeze(timeout_s=min(1.0, reserve_s / 3))
            if self.observer is not None:
                self.observer.before_kill()
        seconds = max(0.1, self._deadline_s - time.monotonic() - reserve_s / 3)
        durable = commit_last(seconds, self._how_it_left() if left else TrainingEnd("died"))
        durable_s = time.monotonic() - self._notified_s
        self.kill()
        code = self._root.wait()
        self._ended_s = time.monotonic()
        return TrainingOutcome(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            trained_s=self.trained_s,
            request=request,
            save=SaveTimes(
                saved_s=saved_s if left else None,
                durable_s=durable_s if durable else None,
                ended_s=self._ended_s - self._notified_s,
                grace_s=self._deadline_s - self._notified_s,
            ),
            deadline_s=self._deadline_s,
        )

    def kill(self) -> None:
        """Kill every process of the training and of the set-up. Raises TrainingSurvived if some live on after a minute.

        A process that reads from a mount that does not answer dies only when the mount is cut. Mounts are cut only if
        a process survives SIGKILL: otherwise they stay, for files that are made durable afterwards.
        """
        group = self._runtime.group
        if group.kill(_DIES_WITHIN_S):
            return
        self._unblock()
        until_s = time.monotonic() + (0.0 if self._gave_up else _GIVE_UP_S)
        said = False
        while not group.kill():
            if time.monotonic() >= until_s:
                self._gave_up = True
                raise TrainingSurvived(group.members())
            if not said:
                said = True
                self._say(f"warning: {TrainingSurvived(group.members())}; trying again for {_GIVE_UP_S:g} s")

    def _how_it_left(self) -> TrainingEnd:
        """Return how the training ended, after all its processes ended by themselves."""
        assert self._root is not None
        code = self._root.wait()
        if code < 0 and code != -signal.SIGTERM:
            return TrainingEnd("died")
        return TrainingEnd(
            "left",
            root=self._root.pid,
            alone=self._notified_alone,
            succeeded=code in _REQUESTED_CODES,
            failed=code > 0 and code not in _REQUESTED_CODES,
        )

    def _wait_until_gone(
        self, request: EndRequest, notice: Path, deadline: Callable[[], float | None]
    ) -> tuple[bool, float]:
        """Return whether all processes ended by themselves, and the seconds of the grace reserved for the flush."""
        assert self._root is not None
        reserve_s, poll_at_s = flush_reserve_s(request.grace_s), 0.0
        while time.monotonic() < self._deadline_s - reserve_s:
            if self._root.poll() is not None and not self._runtime.group.members():
                return True, reserve_s
            if self.observer is not None:
                self.observer.watch_writers()
            if time.monotonic() >= poll_at_s:
                poll_at_s = time.monotonic() + _POLL_S
                sooner_s = deadline()
                if sooner_s is not None and sooner_s < self._deadline_s:
                    left_s = max(0.0, sooner_s - time.monotonic())
                    self._deadline_s, reserve_s = sooner_s, flush_reserve_s(left_s)
                    with suppress(OSError):
                        write_notice(notice, left_s, sooner_s - reserve_s, request.reason)
            time.sleep(_ENDING_POLL_S)
        return False, reserve_s


def flush_reserve_s(grace_s: float) -> float:
    """The part of a grace that is reserved for the end: the last commit, the log, the exit.

    A training that ends sooner leaves them the rest of its part, too.
    """
    return min(10.0, max(0.3, grace_s * 0.25))


def _processes(group: RuntimeGroup) -> dict[int, Process]:
    return {pid: process for pid in group.members() if (process := Process.of(pid)) is not None}


def _targets(root: int, members: Mapping[int, Process]) -> list[Process]:
    """Return the processes that get SIGTERM: the command, and through shells the programs that they run.

    Not the whole group: a data loader's workers that died of SIGTERM would break the very save that is asked for. A
    shell forwards no signal, so its children get one as well. An init forwards signals: its child gets the signal in
    its place, because many scripts take a second signal as a request to end without a save.
    """
    children: dict[int, list[int]] = {}
    for pid in members:
        stat = stat_of(pid)
        children.setdefault(stat.parent if stat else 0, []).append(pid)
    targets, todo = [], [root]
    while todo:
        pid = todo.pop()
        name, started = _name(pid), children.get(pid, [])
        if name not in _INITS or not started:
            targets.append(pid)
        if name in _SHELLS | _INITS:
            todo += started
    # Children first: a shell that dies of the signal leaves children that are not found through it any more.
    return [members[pid] for pid in reversed(targets) if pid in members]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
