"""Times and intervals of the checkpoint sync: deadlines, retries after failures, pruning, the sign of life."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.prune import Pruner
from stoker.model import codec
from stoker.model.errors import CodecError, StoreError
from stoker.processes import boot_id

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
# The longest pause between two tries when there is a deadline.
_MAX_HURRIED_BACKOFF_S = 2.0
# Pruning at the very end is done only with this much time to spare …
_PRUNE_SPARE_S = 5.0
# … and after a notice with this much.
_PRUNE_SPARE_AFTER_NOTICE_S = 30.0
# The interval between two stamps; it is longer where a stamp would take more than this share of a core.
_STAMP_EVERY_S = 1.0
_MAX_STAMP_S = 60.0
_STAMP_CPU_SHARE = 0.01
# Far more than a training can have open.
_MAX_STAMP_BYTES = 64 * 1024 * 1024
_NEVER = float("-inf")


class Deadlines:
    """The ends that bound the sync, by its monotonic clock. Other threads may set them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # The end of the final commit, once it has begun.
        self.final_at: float | None = None
        # When the training has to be over, once there is a notice.
        self.notice_at: float | None = None

    def seconds_left(self) -> float | None:
        """Return the time until the earliest end; None while there is none."""
        ends = [end for end in (self.final_at, self.notice_at) if end is not None]
        return max(0.0, min(ends) - self._monotonic()) if ends else None

    def allow_pruning(self) -> bool:
        if self.notice_at is None:
            return self.final_at is None or self._monotonic() + _PRUNE_SPARE_S < self.final_at
        # The time that a cloud promised may turn out shorter, and before the final commit another save may come.
        return self.final_at is not None and self._monotonic() + _PRUNE_SPARE_AFTER_NOTICE_S < self.final_at


class RetryBackoff:
    """Pauses between tries while the store fails: they double up to a limit, which is shorter before a deadline."""

    def __init__(self, monotonic: Callable[[], float], deadlines: Deadlines) -> None:
        self._monotonic = monotonic
        self._deadlines = deadlines
        self._retry_at = _NEVER
        self._failures = 0
        # The last failure; None after a success.
        self.error: str | None = None
        # Since when files cannot be read that may be readable later. None after a success, and after a failure of the
        # store.
        self.unreadable_since_s: float | None = None

    @property
    def is_due(self) -> bool:
        return self._monotonic() >= self._retry_at

    def reset(self) -> None:
        """Allow the next try at once."""
        self._retry_at, self._failures, self.unreadable_since_s = _NEVER, 0, None

    def note_success(self, *, unreadable: bool = False) -> None:
        """Record a success; `unreadable`: of everything but files that cannot be read now, and may be later."""
        self.error, self._failures = None, 0
        if unreadable:
            self.note_unreadable()
        else:
            self.unreadable_since_s = None

    def note_unreadable(self) -> None:
        """Record that a file cannot be read now, and may be later. Nothing else waits for it."""
        if self.unreadable_since_s is None:
            self.unreadable_since_s = self._monotonic()

    def note_failure(self, error: Exception) -> None:
        if self._failures == 0:
            what = "brought to the store" if isinstance(error, StoreError) else "committed"
            log.warning("checkpoints cannot be %s now: %s", what, error)
        self.error = f"{type(error).__name__}: {error}"
        if not isinstance(error, OSError):
            self.unreadable_since_s = None
        else:
            self.note_unreadable()
        longest_s = _MAX_BACKOFF_S if self._deadlines.seconds_left() is None else _MAX_HURRIED_BACKOFF_S
        self._retry_at = self._monotonic() + min(FIRST_BACKOFF_S * 2**self._failures, longest_s)
        self._failures = min(self._failures + 1, 10)


class PruneSchedule:
    """Prunes once after each commit, as soon as that is allowed."""

    def __init__(self, pruner: Pruner) -> None:
        self.pruner = pruner
        self._commits = 0
        self._is_due = False
        # The last failure; None after a success.
        self.error: str | None = None

    def prune_if_due(self, commits: int, *, allowed: bool) -> None:
        """Prune if the number of commits has changed since the last pruning. A failure is recorded, not raised."""
        if commits != self._commits:
            self._commits, self._is_due = commits, True
        if not self._is_due or not allowed:
            return
        self._is_due = False
        try:
            self.pruner.prune()
            self.error = None
        except StoreError as error:
            # Commits must not wait for pruning. The next commit is followed by another try.
            log.warning("old checkpoints cannot be removed now: %s", error)
            self.error = f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class LastAlive:
    """When the agent before was last alive, by the clock that stamps files.

    `same_boot`: the machine has not been started anew since, so that everything that was written is there.
    `maybe_half_written` are files that were open for writing at that time, or whose writers had died with them open,
    however long ago they were written.
    """

    at_ns: int
    same_boot: bool
    maybe_half_written: frozenset[str] = frozenset()


class AliveStamp:
    """A file with the id of the machine's boot and the files that may be half written, for the next agent.

    An agent that is restarted reads from it that a training ran in this folder, until when files were watched, and
    which of them may be half written although they had rested. `observe` gives these as they are now.

    The stamp's own time is one just before they were observed: a file that was opened later was written later, too.
    """

    def __init__(self, path: Path, observe: Callable[[], Collection[str]], monotonic: Callable[[], float]) -> None:
        self.path = path
        self._observe = observe
        self._monotonic = monotonic
        self._touch_at = _NEVER
        self._written = ""

    def read(self) -> LastAlive | None:
        """Return what the agent before left; None if there is nothing: no training began here."""
        try:
            with self.path.open("rb") as file:
                at_ns, data = os.fstat(file.fileno()).st_mtime_ns, file.read(_MAX_STAMP_BYTES)
        except OSError as error:
            log.debug("no stamp: %s", error)
            return None
        try:
            tree = codec.parse(data)
            names = frozenset(str(name) for name in tree["maybe_half_written"])
            return LastAlive(at_ns, tree["boot"] == boot_id(), names)
        except (CodecError, LookupError, TypeError):
            # A crash of the machine emptied it. Any file may have been open: none counts as quiet.
            return LastAlive(0, same_boot=False)

    def touch_if_due(self) -> None:
        if self._monotonic() >= self._touch_at:
            self.touch()

    def touch(self) -> None:
        draft = self.path.with_name(f"{self.path.name}.draft")
        began_s = time.thread_time()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The clock that stamps files may be that of another machine.
            draft.touch()
            now_ns = draft.stat().st_mtime_ns
            text = json.dumps({"boot": boot_id(), "maybe_half_written": sorted(self._observe())})
            if text != self._written or not self.path.exists():
                draft.write_text(text, encoding="ascii")
                os.utime(draft, ns=(now_ns, now_ns))
                draft.replace(self.path)
                self._written = text
            else:
                os.utime(self.path, ns=(now_ns, now_ns))
        except OSError as error:
            log.debug("no stamp: %s", error)
        cost_s = (time.thread_time() - began_s) / _STAMP_CPU_SHARE
        self._touch_at = self._monotonic() + min(max(_STAMP_EVERY_S, cost_s), _MAX_STAMP_S)
