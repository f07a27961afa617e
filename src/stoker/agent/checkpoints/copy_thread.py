"""The thread that copies rank 0's newest whole checkpoint to `checkpoints.copy_to` while the job trains.

A copy is a service beside the checkpoints in the store, from which attempts resume: no training waits for it, and a
failure is a warning. Of checkpoints that come faster than they can be copied, the newest is copied next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker.agent.checkpoints.plain_copy import CopyTaken, PlainCopy
from stoker.model.errors import StokerError, StoreDenied, StoreUnavailable, describe_error
from stoker.model.node_facts import CheckpointRef
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import IMPORTED, TrustedClaims
from stoker.store.checkpoints import Checkpoint, RestoreError, list_checkpoints

log = logging.getLogger(__name__)

# How often the newest commit is looked at, which is in memory.
_POLL_S = 0.2
# How often the store is asked for the other ranks' parts of a commit.
_GANG_POLL_S = 2.0
# The pause after a failure.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
# How long the last copy waits for the other ranks' parts of the newest commit.
_GANG_WAIT_S = 30.0
# How long the last copy is tried while the URL does not answer: the machine is paid for.
_TRY_FOR_S = 60.0
_JOIN_S = 0.1
_MOST_NAMED = 3
_NEEDED = "the machine needs to list, read, write and delete there"


@dataclass(frozen=True)
class CopySource:
    """The job whose checkpoints are copied. `last` returns rank 0's newest commit of this attempt."""

    store: Store
    job: str
    last: Callable[[], CheckpointRef | None]
    trust: TrustedClaims
    nodes: int


class _Stopped(Exception):
    """The copy was ended from outside."""


class CheckpointCopies:
    """Copies of one attempt. Call `start` when the training starts and `final` when its last commit is made.

    `make` opens the URL, which may fail as every copy may; it is given what a copy calls between two files.
    """

    def __init__(
        self,
        source: CopySource,
        make: Callable[[Callable[[], None]], PlainCopy],
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._make = make
        self._say = say
        self._monotonic = monotonic
        self._copy: PlainCopy | None = None
        # The newest commit that was looked at, and the newest that was copied. An attempt begins by looking: the one
        # before it may have committed what it had no time to copy.
        self._seen: str | None = ""
        self._copied: str | None = None
        # The newest that could not be read from the store: it is passed over.
        self._damaged: str | None = None
        self._final_since: float | None = None
        self._closing = self._paused = self._given_up = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-copies", daemon=True)
        # Why the files at the URL are not those of the newest checkpoint.
        self.warning: str | None = None

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def pause(self) -> None:
        """Leave the bandwidth to the last commit, between two files. `final` goes on."""
        self._paused = True

    def final(self, until_s: Callable[[], float]) -> None:
        """Copy the newest checkpoint, unless it is copied. Returns when that is done, has failed, or there is no time.

        `until_s` gives an end by this object's clock, which may move.
        """
        # In this order: a thread that sees the end, and is paused, would take everything as done.
        self._paused = False
        self._final_since = self._monotonic()
        self._wake.set()
        while self._thread.is_alive():
            left_s = until_s() - self._monotonic()
            if left_s <= 0:
                break
            self._thread.join(timeout=min(left_s, _JOIN_S))
        if self._thread.is_alive():
            self._warn("the newest checkpoint is not copied: there was no time left; it is safe in the store")
        self.close()

    def close(self) -> None:
        """Stop between two files."""
        self._closing = True
        self._wake.set()

    # ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing and not self._given_up:
            final = self._final_since is not None
            delay_s = _POLL_S
            try:
                done = self._round()
                pause_s = _FIRST_PAUSE_S
                if done and final:
                    return
                if not done:
                    delay_s = _GANG_POLL_S if self._source.nodes > 1 else _POLL_S
            except _Stopped:
                log.debug("a copy was ended between two files")
            except CopyTaken as error:
                self._warn(f"{error}; this job's stay in the store")
                self._given_up = True
            except Exception as error:
                # The edge of the thread: a copy that fails, for any reason, is a warning.
                if not isinstance(error, StokerError):
                    log.exception("checkpoint copies")
                need = f"{_NEEDED}; " if isinstance(error, StoreDenied) else ""
                self._warn(f"checkpoints are not copied: {describe_error(error)}; {need}they are safe in the store")
                if final and (not isinstance(error, StoreUnavailable) or self._final_for(_TRY_FOR_S)):
                    return
                delay_s, pause_s = pause_s, min(2 * pause_s, _LONGEST_PAUSE_S)
            self._wake.wait(delay_s)
            self._wake.clear()

    def _round(self) -> bool:
        """Copy the newest whole checkpoint if it is new; return whether nothing is left to do until the next commit."""
        last = self._source.last()
        key = last.key if last is not None else None
        if self._paused or key == self._seen:
            return True
        if self._copy is None:
            copy = replace(self._make(self._check), trains=lambda: self._final_since is None)
            copy.claim()
            self._copy = copy
        newest = self._newest()
        if newest is not None and newest.key not in (self._copied, self._damaged):
            try:
                self._take(self._copy, newest)
            except RestoreError as error:
                self._pass_over(newest, error)
                return False
        complete = key is None or (newest is not None and newest.key >= key)
        if not complete:
            if not self._final_for(_GANG_WAIT_S):
                return False
            self._warn(
                "the newest checkpoint is not copied: other nodes' parts are missing; no attempt resumes from it"
            )
        self._seen = key
        return True

    def _take(self, copy: PlainCopy, checkpoint: Checkpoint) -> None:
        left_out = copy.copy(checkpoint)
        self._copied, self.warning = checkpoint.key, None
        if left_out:
            more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
            named = ", ".join(left_out[:_MOST_NAMED]) + more
            self._warn(f"not copied, since they are links or have names that no bucket takes: {named}")

    def _pass_over(self, failed: Checkpoint, error: RestoreError) -> None:
        """Try this one no more: it was removed, since there is a newer one, or is damaged, which no try mends."""
        newest = self._newest()
        if newest is not None and newest.key == failed.key:
            self._warn(f"checkpoint {failed.name} is not copied: {error}; the next one will be")
        else:
            log.info("checkpoint copies: %s", error)
        self._damaged = failed.key

    def _newest(self) -> Checkpoint | None:
        source = self._source
        listed = list_checkpoints(source.store, source.job, trust=source.trust)
        # An imported checkpoint is where it came from.
        own = [one for one in listed if one.complete and one.place.claim != IMPORTED]
        return max(own, key=lambda one: one.place, default=None)

    def _final_for(self, seconds: float) -> bool:
        return self._final_since is not None and self._monotonic() - self._final_since > seconds

    def _check(self) -> None:
        if self._closing or self._paused:
            raise _Stopped

    def _warn(self, text: str) -> None:
        if text != self.warning:
            self._say(f"checkpoints.copy_to: {text}")
        self.warning = text
