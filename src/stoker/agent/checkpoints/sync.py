"""Keep a node's checkpoints safe in the store while it trains.

Blobs are sent first, then a create-only manifest: a checkpoint exists when its manifest does. A script asks for commits
through `stoker.train`; for a script that does not, the folder itself is watched. While the store is down, commits are
tried again for ever, and the training never waits for them.

Of several nodes whose scripts do not use `stoker.train`, rank 0 leads: it proposes a save when its folder settles, and
commits when the other ranks have chosen their parts of it. Each of these then commits its part under the same name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from stoker.agent.checkpoints.commit_rounds import CommitRounds, SyncStatus
from stoker.agent.checkpoints.commit_schedule import FIRST_BACKOFF_S, AliveStamp, Deadlines
from stoker.agent.checkpoints.folder_snapshot import Files
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.errors import StoreError
from stoker.model.node_facts import CheckpointRef

__all__ = ["CheckpointSync", "SyncOptions", "SyncStatus"]

log = logging.getLogger(__name__)

# The interval of rounds: how soon a save of the script is seen. Each round costs a quarter of a millisecond of a
# processor that should train.
POLL_S = 0.2
# The share of a core that polling open files may take while the training saves for the last time.
_POLL_CPU_SHARE = 0.2
# How long the last commit is tried while a file of it cannot be read: a network mount may come back, a broken disk does
# not.
_READ_FOR_S = 60.0
# How often `final` checks a deadline that may move.
_DEADLINE_CHECK_S = 0.1


class CheckpointSync:
    """One rank's commits in one attempt. Call `start` when the training starts, and `final` when it is dead."""

    def __init__(self, options: SyncOptions) -> None:
        self._options = options
        self._deadlines = Deadlines(options.monotonic)
        self._rounds = CommitRounds(options, self._deadlines)
        self._alive = AliveStamp(options.scratch / "alive", self._rounds.watch.maybe_half_written, options.monotonic)
        self._compared = False
        self._open_at_kill: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._status = SyncStatus()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._closing = False

    # ── For other threads ─────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Treat the folder, as it is, as the restored checkpoint, and begin to watch it."""
        self.begin()
        if self._options.nodes == 1:
            # With several nodes, all of them would have to copy the same save.
            self._rounds.chooser.start_copies(self._options.scratch / "saves")
        self._thread = threading.Thread(target=self._run, name="checkpoint-sync", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run the next round at once."""
        self._wake.set()

    def status(self) -> SyncStatus:
        """Return the status as of the last round. Safe to call from any thread."""
        last = self._rounds.manifests.last
        with self._lock:
            status = self._status
        if last is None:
            return status
        return replace(status, last=last[0], last_age_s=self._options.monotonic() - last[1])

    @property
    def is_sending(self) -> bool:
        """True while files are being sent to the store, which may take long."""
        return self._rounds.sender.bytes_left > 0

    def hurry(self, seconds: float) -> None:
        """React to a notice: `final` is called in this many seconds, or the machine is gone.

        From now on all time is used for checkpoints to resume from. No commit waits for the pause after a failure, for
        the pause between commits or for pruning, and of several saves the one that is safe in time goes first.
        """
        self._deadlines.notice_at = self._options.monotonic() + seconds
        self._rounds.backoff.reset()
        self._rounds.folder_commits.hurry()
        self._wake.set()

    def before_signal(self) -> None:
        """Record what the training is writing just before it is signalled to end. Takes about as long as one scan."""
        self._rounds.watch.record_pre_signal()

    def watch_writers(self) -> None:
        """Record which files are open. Call it often while the training saves for the last time; most calls do
        nothing."""
        self._rounds.watch.poll_open_files(_POLL_CPU_SHARE)

    def before_kill(self) -> None:
        """Record the open files just before all remaining processes are killed: these files stay half written."""
        self._open_at_kill |= self._rounds.watch.view.open_files().files.keys()

    def final(
        self, deadline_s: float | None, end: TrainingEnd | None = None, until_s: Callable[[], float] | None = None
    ) -> CheckpointRef | None:
        """Commit the folder after every process of the training is dead or stopped. `end` says how it ended.

        Units that may be half written stay as they were in the last commit. Returns this rank's newest commit of the
        attempt, not much later than `deadline_s`; a call to the store that hangs is left behind on its thread.
        `until_s` gives an end by this object's clock, which may move while this waits; the sooner of both counts. None
        as `deadline_s`: `until_s` alone counts. Call it once.
        """
        monotonic = self._options.monotonic
        latest_s = float("inf") if deadline_s is None else monotonic() + deadline_s

        def end_s() -> float:
            return latest_s if until_s is None else min(latest_s, until_s())

        if end is not None:
            self._rounds.training_end = replace(end, open=end.open | self._open_at_kill)
        final_at = self._deadlines.final_at = end_s()
        left_s = final_at - monotonic()
        log.info("last commit: %.1f s left, the training has %s", left_s, self._rounds.training_end.how)
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="checkpoint-sync", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            found_s = end_s()
            if found_s < final_at:
                self.hurry(found_s - monotonic())
            final_at = self._deadlines.final_at = found_s
            left_s = final_at - monotonic()
            if left_s <= 0:
                break
            self._thread.join(timeout=min(left_s, _DEADLINE_CHECK_S))
        return self.status().last

    def uncommitted(self) -> Files:
        """Return the files of the folder that are in no commit as they are. Call it after `final`.

        Of a script that uses `stoker.train`: the newest save, if it could not be committed.
        """
        if self._rounds.queue.used:
            return self._rounds.requested.uncommitted()
        return {path: file for path, file in self._rounds.watch.dirty.files.items() if not file.link}

    def torn(self) -> Collection[str]:
        """Return which of the uncommitted and loose files were being written at the end, or are broken by their
        format."""
        rounds = self._rounds
        loose = self.loose()
        if loose:
            rounds.watch.scan()
        return rounds.watch.torn(rounds.training_end.open).intersection(self.uncommitted() | loose)

    def loose(self) -> Files:
        """Return the files that a script which uses `stoker.train` wrote into the folder without it: see `loose_files`.

        Call it after `final`.
        """
        return self._rounds.loose.find() if self._rounds.queue.used else {}

    def close(self) -> None:
        """Stop without a final commit, between two calls to the store."""
        self._closing = True
        self._rounds.chooser.drop_copies()
        self._wake.set()

    # ── Rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Do the first part of `start`, for callers that call `tick` themselves."""
        self._rounds.begin()
        self._alive.touch()

    def tick(self) -> float:
        """Run one round, and return how many seconds to wait before the next."""
        if self._options.restored is not None and not self._compared:
            self._compared = True
            self._rounds.compare_restored(self._options.restored.key)
        self._alive.touch_if_due()
        self._rounds.attempt(final=False)
        self._refresh()
        return POLL_S

    def _run(self) -> None:
        while not self._closing:
            if self._deadlines.final_at is not None:
                self._finish()
                return
            self._wake.clear()
            try:
                delay_s = self.tick()
            except Exception as error:
                # The edge of the thread: one failed round, for any reason, must not end the saving.
                log.exception("checkpoint sync")
                self._rounds.backoff.note_failure(error)
                delay_s = FIRST_BACKOFF_S
            if self._deadlines.final_at is None:
                self._wake.wait(delay_s)

    def _finish(self) -> None:
        """Run final rounds until nothing is left to do, or no time."""
        rounds, monotonic = self._rounds, self._options.monotonic
        rounds.begin_final()
        began, needs_no_leader = monotonic(), False
        last_alive = self._alive.read() if self._options.recovering else None
        if self._options.recovering and last_alive is None:
            # No training ever began in this folder.
            return
        while self._final_s_left() > 0 and not self._closing:
            busy = False
            try:
                if last_alive is not None:
                    rounds.recall(last_alive)
                    last_alive = None
                # Asked before the round, so that the round sees the last commit of rank 0.
                needs_no_leader = rounds.needs_no_leader()
                busy = rounds.attempt(final=True)
            except StoreError as error:
                rounds.backoff.note_failure(error)
            except Exception as error:
                # The edge of the thread: nothing may keep the agent from writing how the training ended.
                log.exception("last commit")
                rounds.backoff.note_failure(error)
            self._refresh()
            if not busy and not rounds.is_unclear() and rounds.all_done(began, needs_no_leader=needs_no_leader):
                return
            unreadable_since_s = rounds.backoff.unreadable_since_s
            if unreadable_since_s is not None and monotonic() - unreadable_since_s >= _READ_FOR_S:
                # No fault of the store, which would pass: the machine must not be paid for until the end.
                log.warning("the last commit is given up: %s", rounds.backoff.error or rounds.status().held_back)
                return
            if not busy:
                self._wake.clear()
                self._wake.wait(min(POLL_S, max(0.0, self._final_s_left())))

    def _final_s_left(self) -> float:
        assert self._deadlines.final_at is not None
        return self._deadlines.final_at - self._options.monotonic()

    def _refresh(self) -> None:
        status = self._rounds.status()
        with self._lock:
            self._status = status
