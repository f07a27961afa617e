"""A guard beside a process that governs: it hands the jobs over when that process ends without doing so itself.

    python -m stoker.governor.handover_guard PIPE STORE

A closed terminal, a lost connection or a SIGTERM can be handled by the process; SIGKILL, a crash or a stop (Ctrl-Z)
cannot. The guard is a small process in a session of its own. It holds the reading end of a pipe whose writing end only
the guarded process has, so the kernel closes the pipe however that process ends. The guarded process writes one line
for each job, one for each pass of its governor, and one when it has handed over or nothing is left to govern.

The module imports only the standard library until it takes over: a guard costs little while it waits.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# Neither `typing` nor `pathlib` is imported, since the guard's process needs neither.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# A governor passes every 15 seconds at the slowest. A process that was silent for longer is stopped, or hangs.
SILENT_S = 90.0
_READ_BYTES = 4096
_JOB, _PASS, _RELEASED = b"job ", b"pass", b"released"


class HandoverGuard:
    """The guarded process's side. Its methods never raise: a guard only backs up the other ways to hand over."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self.jobs: list[str] = []
        self._lock = threading.Lock()
        self._pipe: int | None = None
        # Why there is no guard; None while there is one.
        self.problem: str | None = None
        self._start()

    def job(self, job: str) -> None:
        """Guard this job from now on."""
        self.jobs.append(job)
        self._tell(_JOB + job.encode())

    def passed(self) -> None:
        """Report that the guarded process has completed a pass."""
        self._tell(_PASS)

    def release(self) -> None:
        """End the guard, after the jobs have ended or were handed over."""
        with self._lock, suppress(OSError):
            self._write(_RELEASED)
        self.close()

    def close(self) -> None:
        """Close the pipe. Without `release` before, the guard takes over now."""
        with self._lock:
            if self._pipe is not None:
                os.close(self._pipe)
                self._pipe = None

    def _tell(self, line: bytes) -> None:
        with self._lock:
            if self._pipe is None:
                return
            try:
                self._write(line)
            except BrokenPipeError:
                # The guard was killed, or took over while this process was stopped.
                os.close(self._pipe)
                self._pipe = None
                self._start()

    def _write(self, line: bytes) -> None:
        if self._pipe is not None:
            # A full pipe means that the guard is stopped: the lines already in it are enough.
            with suppress(BlockingIOError):
                os.write(self._pipe, line + b"\n")

    def _start(self) -> None:
        from stoker.governor.background import files_for

        try:
            reader, self._pipe = os.pipe()
            try:
                os.set_blocking(self._pipe, False)
                _spawn(self._store_url, reader, files_for(self._store_url)[1])
            finally:
                os.close(reader)
            self.problem = None
            for job in self.jobs:
                self._write(_JOB + job.encode())
        except OSError as error:
            self.problem = str(error)


@contextmanager
def guarding(store_url: str) -> Iterator[HandoverGuard]:
    """A guard for as long as the block runs. It takes over where an exception leaves the block, unless that is a
    person's mistake before there was a job."""
    guard = HandoverGuard(store_url)
    try:
        yield guard
    except BaseException as error:  # Ctrl-C, too, must not leave the job without a governor; raised again
        from stoker.model.errors import UserError

        if isinstance(error, UserError) and not guard.jobs:
            guard.release()
        else:
            guard.close()
        raise
    guard.release()


def _spawn(store_url: str, reader: int, output: Path) -> None:
    from stoker.processes.detached import start_detached

    start_detached("stoker.governor.handover_guard", (str(reader), store_url), output, reader)


# ── The guard's own process ───────────────────────────────────────────────────────────────────────────────────────────


def watch(
    pipe: int, silent_s: float = SILENT_S, monotonic: Callable[[], float] = time.monotonic
) -> tuple[str, ...] | None:
    """Wait until the guarded process ends or falls silent. Returns the jobs to take over; None: it released them.

    Silence before the first job does not count: inputs may be uploaded for hours. The monotonic clock stands still
    while the computer sleeps, so a closed lid is no silence.
    """
    jobs: list[str] = []
    rest, heard_s = b"", None
    while True:
        left_s = None if heard_s is None else max(0.0, heard_s + silent_s - monotonic())
        if not select.select([pipe], [], [], left_s)[0]:
            return tuple(jobs)
        data = os.read(pipe, _READ_BYTES)
        if not data:
            return tuple(jobs)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == _RELEASED:
                return None
            if line.startswith(_JOB):
                jobs.append(line.removeprefix(_JOB).decode())
            heard_s = monotonic()


def main() -> None:
    pipe, store_url = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(pipe, False)
    jobs = watch(pipe)
    if jobs is None:
        return
    # Closed first, so that a process that was only stopped notices and starts another guard.
    os.close(pipe)
    from stoker.governor.background import take_over

    take_over(store_url, jobs)


if __name__ == "__main__":
    main()
