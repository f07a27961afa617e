"""Keep a node's checkpoints safe in the store while it trains.

Blobs first, then a create-only manifest: a checkpoint exists when its manifest does. A script asks for commits through
`stoker.train`; for one that knows nothing of Stoker the folder itself is watched (see checkpoints/). A store that is
down is tried again for ever, and training never waits for it.

Of several nodes whose scripts know nothing, rank 0 leads: it commits when its folder settles and names the ranks that
have files; each of these then commits its own folder under the same name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from stoker.agent.checkpoints.blobs import Abandoned, BlobSender, Unstable
from stoker.agent.checkpoints.commit_requests import CommitQueue
from stoker.agent.checkpoints.commit_strategies import FolderCommits, FollowingCommits, RequestedCommits
from stoker.agent.checkpoints.folder_snapshot import Files, Selection, Signature
from stoker.agent.checkpoints.folder_watcher import BUSY_S, FolderWatch
from stoker.agent.checkpoints.manifest_writer import Publisher, utc_now
from stoker.agent.checkpoints.prune import Pruner
from stoker.agent.checkpoints.restore import Restored
from stoker.agent.checkpoints.whole_units import TrainingEnd
from stoker.model.errors import StoreError
from stoker.model.node_facts import CheckpointRef
from stoker.processes import Writing
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import FAR_WORKERS, NEAR_WORKERS, Trust
from stoker.store.checkpoints import list_checkpoints

log = logging.getLogger(__name__)

NEAR_SETTLE_S = 2.0
FAR_SETTLE_S = 5.0
# On several nodes rank 0 waits a little longer, so that it knows which others are saving, too.
GANG_SETTLE_S = 10.0
# A folder that changes all the time is not committed more often than this.
NEAR_SPACING_S = 5.0
FAR_SPACING_S = 20.0
# How often rank 0's commits are looked for by the others.
NEAR_FOLLOW_S = 1.0
FAR_FOLLOW_S = 10.0
# How long a rank that has nothing new waits, at the end, for a last commit of rank 0 to join.
FOLLOW_PATIENCE_S = 15.0
# How soon a save of the script is seen. Each look costs a quarter of a millisecond of a processor that should train.
POLL_S = 0.2
_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_LAST_BACKOFF_S = 2.0
# Pruning at the very end is worth it only when there is time to spare.
_PRUNE_SPARE_S = 5.0
_PRESSED_SPARE_S = 30.0
_STAMP_EVERY_S = 1.0
_NEVER = float("-inf")
# Share of a core that looking for open files may take while the training saves for the last time.
_POLL_SHARE = 0.2
# How often a deadline that moved is looked at.
_JOIN_S = 0.1


@dataclass(frozen=True)
class SyncStatus:
    """What is safe, and what is not yet. `last` is this rank's newest commit in this attempt.

    `files` are this rank's own: what was restored from other ranks and not touched since is not counted.
    """

    last: CheckpointRef | None = None
    last_age_s: float | None = None
    unsynced_bytes: int = 0
    files: int = 0
    # How long something has been waiting to be safe, and how many saves of the script wait.
    lag_s: float = 0.0
    waiting: int = 0
    # Saves passed over for newer ones, because the store is slower than the script.
    skipped: int = 0
    commits: int = 0
    bytes_moved: int = 0
    error: str | None = None
    # What of the folder cannot be committed, and why; None: nothing.
    held_back: str | None = None


class CheckpointSync:
    """One rank's commits in one attempt. `start` it when the training starts, `final` it when the training is dead.

    `channel` is the folder shared with the training; `scratch` one of the agent's own, on the same disk as `folder` if
    possible, and the same for every agent of this node. `writing` gives the files under `folder` that the training
    has open for writing. `peers` gives the ranks whose `status().files` is not 0. `lead_finished`: rank 0 will commit
    nothing more. `trust` tells which manifests count; without it the log is asked. `selection` says which files of the
    folder are checkpoints. `recovering`: this agent was restarted and never trains; it only calls `final`, and prunes
    nothing.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        claim: int,
        rank: int,
        nodes: int,
        folder: Path,
        *,
        channel: Path,
        scratch: Path,
        keep: int = 3,
        writing: Callable[[], Writing] = lambda: Writing({}, frozenset()),
        peers: Callable[[], Iterable[int]] = tuple,
        lead_finished: Callable[[], bool] = lambda: False,
        restored: Restored | None = None,
        trust: Trust | None = None,
        recovering: bool = False,
        selection: Selection | None = None,
        settle_s: float | None = None,
        busy_s: float = BUSY_S,
        spacing_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        if settle_s is None:
            settle_s = NEAR_SETTLE_S if store.near else FAR_SETTLE_S
            settle_s = max(settle_s, GANG_SETTLE_S) if nodes > 1 and rank == 0 else settle_s
        if spacing_s is None:
            spacing_s = NEAR_SPACING_S if store.near else FAR_SPACING_S
        self._store, self._job, self._claim, self._rank, self._nodes = store, job, claim, rank, nodes
        self._folder = folder
        self._peers = peers
        self._lead_finished = lead_finished
        self._restored, self._recovering = restored, recovering
        self._settle_s = settle_s
        self._monotonic = monotonic
        self._scratch, self._stamp = scratch, scratch / "alive"
        keep = max(1, keep)
        self._sender = BlobSender(
            store,
            job,
            rank,
            scratch=scratch,
            workers=NEAR_WORKERS if store.near else FAR_WORKERS,
            monotonic=monotonic,
        )
        known = [part.blob for part in restored.parts] if restored is not None else []
        self._publisher = Publisher(
            store,
            job,
            claim,
            rank,
            restored=known,
            trust=trust,
            recovering=recovering,
            monotonic=monotonic,
            now=now,
        )
        self._trust = trust
        self._pruner = Pruner(
            store,
            job,
            claim,
            rank,
            keep=keep,
            last_restored=restored.key if restored is not None else None,
            sender=self._sender,
            trust=trust,
        )
        self._watch = FolderWatch(
            folder, writing, settle_s=settle_s, busy_s=busy_s, monotonic=monotonic, selection=selection
        )
        self._queue = CommitQueue(channel, folder, selection.confinement if selection is not None else None)
        self._requested = RequestedCommits(
            self._queue,
            folder,
            self._sender,
            self._publisher,
            rank=rank,
            nodes=nodes,
            keep=keep,
            hurry=self._seconds_left,
            confinement=selection.confinement if selection is not None else None,
        )
        self._watched = self._make_watched(scratch, spacing_s)
        self._prune_due = self._put_off = self._compared = False
        self._committed = 0
        self._retry_at = self._stamp_at = _NEVER
        self._failures = 0
        self._error: str | None = None
        self._prune_error: str | None = None
        self._waiting_since: float | None = None
        self._lock = threading.Lock()
        self._status = SyncStatus()
        self._wake = threading.Event()
        self._until: float | None = None
        # When the training has to be over: from the notice on.
        self._pressed_until: float | None = None
        self._closing = False
        self._end = TrainingEnd("died") if recovering else TrainingEnd()
        self._open_at_kill: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None

    def _make_watched(self, scratch: Path, spacing_s: float) -> FolderCommits:
        parts = (self._watch, self._folder, scratch, self._sender, self._publisher)
        if self._rank and self._nodes > 1:
            return FollowingCommits(
                *parts,
                ranks=self._ranks,
                end=lambda: self._end,
                spacing_s=spacing_s,
                monotonic=self._monotonic,
                rank=self._rank,
                follow_s=NEAR_FOLLOW_S if self._store.near else FAR_FOLLOW_S,
            )
        return FolderCommits(
            *parts,
            ranks=self._ranks,
            end=lambda: self._end,
            spacing_s=spacing_s,
            monotonic=self._monotonic,
        )

    # ── what others call ──────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Take the folder as it is for what was restored, and begin to watch it."""
        self.begin()
        if self._nodes == 1:
            # Of several nodes, all would have to keep the same save.
            self._watch.keep_copies(self._scratch / "saves")
        self._thread = threading.Thread(target=self._run, name="checkpoint-sync", daemon=True)
        self._thread.start()

    def poke(self) -> None:
        """Look at once."""
        self._wake.set()

    def status(self) -> SyncStatus:
        """As of the last round. Safe to call from any thread."""
        last = self._publisher.last
        with self._lock:
            status = self._status
        if last is None:
            return status
        return replace(status, last=last[0], last_age_s=self._monotonic() - last[1])

    @property
    def sending(self) -> bool:
        """Whether it is bringing something to the store at this moment, which may take long."""
        return self._sender.bytes_left > 0

    def press(self, seconds: float) -> None:
        """There is notice: in so many seconds `final` is called, or the machine is gone.

        From now on every second is for what can be resumed from: nothing waits out a failure or a pause between
        commits, or for pruning, and of several saves the one that is safe in time goes first.
        """
        self._pressed_until = self._monotonic() + seconds
        self._retry_at, self._failures = _NEVER, 0
        self._watched.hurry()
        self._wake.set()

    def before_signal(self) -> None:
        """The training is about to be told to end: remember what it is writing. Takes about as long as one scan."""
        self._watch.mark()

    def watch_writers(self) -> None:
        """See which files are open. To be called often while it saves for the last time; most calls do nothing."""
        self._watch.poll(_POLL_SHARE)

    def before_kill(self) -> None:
        """Everything that still runs is about to be killed: what it has open stays half written."""
        self._open_at_kill |= self._watch.open_now().files.keys()

    def final(
        self, deadline_s: float, end: TrainingEnd | None = None, until_s: Callable[[], float] | None = None
    ) -> CheckpointRef | None:
        """Commit what is there, after every process of the training is dead or stopped. `end` says how that came.

        Units that may be half written stay as they were in the last commit. Returns this rank's newest commit of the
        attempt, and not much later than `deadline_s`; a call to the store that hangs is left behind on its thread.
        `until_s` gives an end (by this object's clock) that may turn up meanwhile and be sooner. Call it once.
        """
        if end is not None:
            self._end = replace(end, open=end.open | self._open_at_kill)
        log.info("last commit: %.1f s left, the training has %s", deadline_s, self._end.how)
        began = self._monotonic()
        self._until = began + deadline_s
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="checkpoint-sync", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            if until_s is not None and until_s() < self._until:
                self.press(until_s() - self._monotonic())
                self._until = until_s()
            left_s = self._until - self._monotonic()
            if left_s <= 0:
                break
            self._thread.join(timeout=min(left_s, _JOIN_S))
        return self.status().last

    def uncommitted(self) -> Files:
        """The files of the folder that are in no commit as they are. For after `final`, and for scripts that save by
        themselves: saves of `stoker.train` are whole, or not there."""
        return {} if self._queue.used else {path: file for path, file in self._watch.dirty().items() if not file.link}

    def close(self) -> None:
        """Stop without a last commit, between two calls to the store."""
        self._closing = True
        self._watch.drop_copies()
        self._wake.set()

    def begin(self) -> None:
        """What `start` does first; for those who call `tick` themselves."""
        self._touch()
        self._watch.look()
        parts = {} if self._restored is None else {part.blob.path: part for part in self._restored.parts}
        foreign: dict[str, Signature] = {}
        for path, file in self._watch.files.items():
            part = parts.get(path)
            if part is None:
                continue
            if part.rank != self._rank:
                foreign[path] = file.signature
            else:
                self._sender.remember(file.signature, part.blob)
                self._watch.last[path] = part.blob
            self._watch.committed[path] = file.signature
        # Oldest first, as in a manifest: which file a save writes last is learnt from it.
        self._watch.last = {path: self._watch.last[path] for path in parts if path in self._watch.last}
        self._watch.set_foreign(foreign)
        self._watch.learn_restored({}, read=False)

    def tick(self) -> float:
        """One round; how many seconds to wait before the next."""
        if self._restored is not None and not self._compared:
            self._compare_restored(self._restored.key)
        if self._monotonic() >= self._stamp_at:
            self._touch()
        self._attempt(final=False)
        self._refresh()
        return POLL_S

    def _compare_restored(self, key: str) -> None:
        """Learn from the checkpoint before the restored one which files one save writes. Not worth a second try."""
        self._compared = True
        try:
            stored = [
                one.manifests.get(self._rank) for one in list_checkpoints(self._store, self._job) if one.key <= key
            ]
        except StoreError as error:
            log.debug("earlier checkpoints are not read: %s", error)
            return
        before = stored[-2] if len(stored) > 1 else None
        self._watch.learn_restored({} if before is None else {blob.path: blob for blob in before.files})

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closing:
            if self._until is not None:
                self._finish()
                return
            self._wake.clear()
            try:
                delay_s = self.tick()
            except Exception as error:
                # Whatever it is, one bad round must not end the saving.
                log.exception("checkpoint sync")
                self._note_failure(error)
                delay_s = _BACKOFF_S
            if self._until is None:
                self._wake.wait(delay_s)

    def _attempt(self, *, final: bool) -> bool:
        """Whether something was done. What fails is tried again later, and later and later."""
        if self._monotonic() < self._retry_at:
            return False
        self._put_off = False
        try:
            done = self._advance(final=final)
        except (Unstable, Abandoned) as reason:
            log.debug("commit put off: %r", reason)
            self._put_off = True
            return False
        except (StoreError, OSError) as error:
            self._note_failure(error)
            return False
        self._error, self._failures = None, 0
        return done

    def _advance(self, *, final: bool) -> bool:
        self._publisher.resume()
        commits = self._requested if self._queue.used or self._queue.waiting() else self._watched
        if self._queue.used:
            self._watch.drop_copies()
        done = commits.advance(final=final)
        if self._publisher.commits != self._committed:
            self._committed, self._prune_due = self._publisher.commits, True
        if self._prune_due and self._may_prune():
            self._prune_due = False
            self._prune()
        return done

    def _prune(self) -> None:
        try:
            self._pruner.prune()
            self._prune_error = None
        except StoreError as error:
            # It must not hold up commits. The next one is followed by another pruning.
            log.warning("old checkpoints cannot be removed now: %s", error)
            self._prune_error = f"{type(error).__name__}: {error}"

    def _may_prune(self) -> bool:
        if self._recovering:
            return False
        if self._pressed_until is None:
            return self._until is None or self._monotonic() + _PRUNE_SPARE_S < self._until
        # A cloud's promises are not to be used up; and before the end another save may come.
        return self._until is not None and self._monotonic() + _PRESSED_SPARE_S < self._until

    def _seconds_left(self) -> float | None:
        """Once they are counted."""
        ends = [end for end in (self._until, self._pressed_until) if end is not None]
        return max(0.0, min(ends) - self._monotonic()) if ends else None

    def _note_failure(self, error: Exception) -> None:
        if self._failures == 0:
            log.warning("checkpoints cannot be brought to the store now: %s", error)
        self._error = f"{type(error).__name__}: {error}"
        longest_s = _MAX_BACKOFF_S if self._seconds_left() is None else _LAST_BACKOFF_S
        self._retry_at = self._monotonic() + min(_BACKOFF_S * 2**self._failures, longest_s)
        self._failures = min(self._failures + 1, 10)

    def _finish(self) -> None:
        """Round after round until there is nothing left to do, or no time."""
        assert self._until is not None
        self._retry_at, self._failures = _NEVER, 0
        began, recalled, alone = self._monotonic(), not self._recovering, False
        if self._recovering and not self._stamp.exists():
            # No training ever began here.
            return
        while self._monotonic() < self._until and not self._closing:
            try:
                if not recalled:
                    self._recall()
                    recalled = True
                # Asked before the round: what rank 0 committed last is then seen in it.
                alone = self._is_alone()
                busy = self._attempt(final=True)
            except StoreError as error:
                self._note_failure(error)
                busy = False
            except Exception as error:
                # Nothing may keep the agent from writing how the training ended.
                log.exception("last commit")
                self._note_failure(error)
                busy = False
            self._refresh()
            unclear = self._put_off or self._error is not None or self._publisher.in_doubt
            if not busy and not unclear and self._all_done(began, alone):
                return
            if not busy:
                self._wake.clear()
                self._wake.wait(min(POLL_S, max(0.0, self._until - self._monotonic())))

    def _all_done(self, began: float, alone: bool) -> bool:
        if self._queue.used:
            return not self._queue.waiting()
        if alone or not self._watched.files:
            return True
        # Rank 0 may be about to commit a save that this rank has to join.
        return not self._watch.dirty() and self._monotonic() - began >= FOLLOW_PATIENCE_S

    def _is_alone(self) -> bool:
        """Whether no commit of another rank can make this one commit."""
        if not isinstance(self._watched, FollowingCommits):
            return True
        if self._lead_finished():
            self._watched.look_again()
            return True
        return False

    def _recall(self) -> None:
        """After a restart: what the store has of this folder, so that nothing is committed twice."""
        own = [item for item in self._publisher.read() if item.place.rank == self._rank and item.manifest]
        newest = max(own, key=lambda item: item.place, default=None)
        manifest = newest.manifest if newest is not None else None
        if manifest is None:
            complete = [one for one in list_checkpoints(self._store, self._job, trust=self._trust) if one.complete]
            manifest = complete[-1].manifests.get(self._rank) if complete else None
        self._watch.last = {} if manifest is None else {blob.path: blob for blob in manifest.files}
        self._watch.learn_restored({}, read=False)
        self._watch.look()
        # What was written when the agent last lived may be half written.
        self._watch.forget_rest(self._stamp.stat().st_mtime_ns - int(self._settle_s * 1e9))

    def _ranks(self) -> tuple[int, ...]:
        if self._nodes == 1:
            return (0,)
        return tuple(sorted({0, *(rank for rank in self._peers() if 0 <= rank < self._nodes)}))

    def _touch(self) -> None:
        self._stamp_at = self._monotonic() + _STAMP_EVERY_S
        try:
            self._stamp.parent.mkdir(parents=True, exist_ok=True)
            self._stamp.touch()
        except OSError as error:
            log.debug("no stamp: %s", error)

    def _refresh(self) -> None:
        commits = self._requested if self._queue.used else self._watched
        unsynced = commits.unsynced_bytes()
        now = self._monotonic()
        if not unsynced:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        with self._lock:
            self._status = SyncStatus(
                unsynced_bytes=unsynced,
                files=commits.files,
                lag_s=0.0 if self._waiting_since is None else now - self._waiting_since,
                waiting=len(self._requested.waiting),
                skipped=self._requested.skipped,
                commits=self._publisher.commits,
                bytes_moved=self._sender.bytes_moved,
                error=self._error or self._prune_error,
                held_back=None if self._queue.used else self._watch.held_back,
            )
