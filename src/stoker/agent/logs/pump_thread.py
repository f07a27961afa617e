"""A thread that moves data from the node's disk to the store, for as long as it takes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Literal

# The result of a turn: nothing is left to make durable; something waits for its time; there is more to do at once.
Turn = Literal["idle", "waiting", "busy"]

_FIRST_DELAY_S = 0.5
# An outage may last hours, and the store should be asked gently; but waiting longer than this does not help.
_LONGEST_DELAY_S = 30.0
# The longest pause while a caller waits in `drain`.
_HURRIED_DELAY_S = 0.5
# How often a deadline that may move is checked.
_LOOK_S = 0.1


class PumpThread:
    """Calls `turn(hurry)` again and again. A turn that raises is repeated later; it must lose nothing by raising."""

    def __init__(self, name: str, turn: Callable[[bool], Turn], poll_s: float) -> None:
        self._turn = turn
        self._poll_s = poll_s
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begun = 0
        # The number of the last turn that found nothing left to do.
        self._idle_turn = 0
        self._waiters = 0
        self._nudged = False
        self._stopping = False
        self._error: str | None = None

    @property
    def error(self) -> str | None:
        """The error of the last turn; None if it had none."""
        return self._error

    def start(self) -> None:
        self._thread.start()

    def drain(self, deadline_s: float, until_s: Callable[[], float] | None = None) -> bool:
        """Hurry, and wait until a turn that began after this call found everything durable. Return False if not in
        time.

        `until_s` gives an end (monotonic seconds) that may turn up meanwhile and be sooner.
        """
        deadline = time.monotonic() + deadline_s
        with self._changed:
            turns_before = self._begun
            self._waiters += 1
            self._nudge()
            try:
                while self._idle_turn <= turns_before:
                    sooner = deadline if until_s is None else min(deadline, until_s())
                    left_s = sooner - time.monotonic()
                    if left_s <= 0 or not self._thread.is_alive():
                        return False
                    self._changed.wait(min(left_s, 1.0 if until_s is None else _LOOK_S))
                return True
            finally:
                self._waiters -= 1

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread after its present turn, without draining."""
        with self._changed:
            self._stopping = True
            self._nudge()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _nudge(self) -> None:
        self._nudged = True
        self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                if self._stopping:
                    return
                self._nudged = False
                self._begun += 1
                number = self._begun
                hurry = self._waiters > 0
            found: Turn = "waiting"
            try:
                found = self._turn(hurry)
            except Exception as error:  # noqa: BLE001 - the edge of the thread: data on the disk must be tried again after any error
                failures += 1
                message: str | None = f"{type(error).__name__}: {error}"
                delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)
            else:
                failures, message = 0, None
                delay_s = 0.0 if found == "busy" else self._poll_s
            with self._changed:
                self._error = message
                if found == "idle":
                    self._idle_turn = number
                self._changed.notify_all()
                if self._waiters > 0:
                    delay_s = min(delay_s, _HURRIED_DELAY_S)
                if delay_s > 0:
                    self._changed.wait_for(lambda: self._nudged or self._stopping, delay_s)
