"""Single rounds of committing one rank's checkpoints: choose a strategy, commit, prune, record what failed.

Saves that the script asked for through `stoker.train` are committed as requested; as soon as there is one such
request, the folder is no longer watched for other saves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, SendAbandoned
from stoker.agent.checkpoints.commit_chooser import CommitChooser
from stoker.agent.checkpoints.commit_queue import CommitQueue
from stoker.agent.checkpoints.commit_schedule import Deadlines, LastAlive, PruneSchedule, RetryBackoff
from stoker.agent.checkpoints.folder_commits import FolderCommits
from stoker.agent.checkpoints.folder_snapshot import Signature
from stoker.agent.checkpoints.folder_watcher import FolderWatch
from stoker.agent.checkpoints.following_commits import FollowingCommits
from stoker.agent.checkpoints.gang_commits import LeadingCommits
from stoker.agent.checkpoints.loose_files import LooseFiles
from stoker.agent.checkpoints.manifest_writer import ManifestWriter
from stoker.agent.checkpoints.prune import Pruner
from stoker.agent.checkpoints.requested_commits import RequestedCommits
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.unreadable_files import FileUnreadable
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model.errors import StoreError
from stoker.model.node_facts import BlobRef, CheckpointRef
from stoker.store.checkpoints import list_checkpoints

log = logging.getLogger(__name__)

# How long a rank with nothing new waits, at the end, for a last commit of rank 0 to join.
FOLLOW_PATIENCE_S = 15.0
# How long written bytes may exist in memory alone. The kernel writes them after 30 s and looks every 5 s
# (`vm.dirty_expire_centisecs`, `vm.dirty_writeback_centisecs`); btrfs commits every 30 s, XFS and ext4 sooner; the rest
# is for the writing. Names, sizes and times may reach the disk long before the bytes.
WRITEBACK_S = 60.0


@dataclass(frozen=True)
class SyncStatus:
    """Which checkpoints are in the store, and what is not yet. `last` is this rank's newest commit in this attempt, and
    `last_age_s` is how long ago its save was begun: what the training did since then is in no checkpoint.

    `files` counts this rank's own: files that were restored from other ranks and not touched since are excluded.
    """

    last: CheckpointRef | None = None
    last_age_s: float | None = None
    unsynced_bytes: int = 0
    files: int = 0
    # How many saves of the script wait to be committed.
    waiting: int = 0
    # Saves that were passed over for newer ones, because the store is slower than the script.
    skipped: int = 0
    commits: int = 0
    bytes_moved: int = 0
    error: str | None = None
    # Which part of the folder cannot be committed, and why; None: all of it can.
    held_back: str | None = None


class CommitRounds:
    """The parts that commit one rank's checkpoints, and one round of their work. Rounds are one thread's."""

    def __init__(self, options: SyncOptions, deadlines: Deadlines) -> None:
        self._options = options
        self._deadlines = deadlines
        self.sender = BlobSender(
            options.store,
            options.job,
            options.rank,
            scratch=options.scratch,
            workers=options.workers,
            monotonic=options.monotonic,
        )
        self.manifests = ManifestWriter(options)
        self.queue = CommitQueue(options.channel, options.folder, options.selection)
        settle_s, busy_s, clock = options.effective_settle_s, options.busy_s, options.monotonic
        self.watch = FolderWatch(options.view, settle_s=settle_s, patience_s=busy_s, monotonic=clock)
        self.chooser = CommitChooser(self.watch, settle_s=settle_s, busy_s=busy_s, monotonic=clock, say=options.say)
        self.requested = RequestedCommits(options, self.queue, self.sender, self.manifests, deadlines.seconds_left)
        self.loose = LooseFiles(options, self.queue, lambda: self.requested.committed)
        self.training_end = TrainingEnd("died") if options.recovering else TrainingEnd()
        several = FollowingCommits if options.rank else LeadingCommits
        self.folder_commits: FolderCommits = (several if options.nodes > 1 else FolderCommits)(
            options,
            self.watch,
            self.chooser,
            self.sender,
            self.manifests,
            lambda: self.training_end,
            deadlines.seconds_left,
        )
        self.pruning = PruneSchedule(Pruner(options, self.sender))
        self.backoff = RetryBackoff(clock, deadlines)
        # The last round found that a commit has to wait, without a failure.
        self._put_off = False

    # ── Before the first round ────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Take the folder as it is for the restored checkpoint."""
        self.watch.scan()
        restored = self._options.restored
        parts = {} if restored is None else {part.blob.path: part for part in restored.files}
        own: dict[str, BlobRef] = {}
        signatures: dict[str, Signature] = {}
        other_ranks: dict[str, Signature] = {}
        # In the order of the manifest, oldest first: which file a save writes last is learnt from it.
        for path, part in parts.items():
            file = self.watch.files.get(path)
            if file is None:
                continue
            if part.rank != self._options.rank:
                other_ranks[path] = file.signature
            else:
                self.sender.remember(file.signature, part.blob)
                own[path] = part.blob
            signatures[path] = file.signature
        self.watch.set_restored(own, signatures, other_ranks)
        self.loose.restored = signatures

    def compare_restored(self, key: str) -> None:
        """Learn from the checkpoint before the restored one which files one save writes. Tried once only."""
        options = self._options
        try:
            stored = [
                one.manifests.get(options.rank)
                for one in list_checkpoints(options.store, options.job)
                if one.key <= key
            ]
        except StoreError as error:
            log.debug("earlier checkpoints are not read: %s", error)
            return
        before = stored[-2] if len(stored) > 1 else None
        restored = stored[-1] if stored else None
        self.watch.shapes.resumed_pause_s = 0.0 if restored is None else restored.pause_s
        self.watch.learn_restored({} if before is None else {blob.path: blob for blob in before.files})

    def recall(self, last_alive: LastAlive) -> None:
        """After a restart of the agent: read what the store has of this folder, so that nothing is committed twice.

        Raises StoreError.
        """
        options = self._options
        own = [item for item in self.manifests.read() if item.place.rank == options.rank and item.manifest]
        newest = max(own, key=lambda item: item.place, default=None)
        manifest = newest.manifest if newest is not None else None
        if manifest is None:
            listed = list_checkpoints(options.store, options.job, trust=options.trust)
            complete = [one for one in listed if one.complete]
            manifest = complete[-1].manifests.get(options.rank) if complete else None
        self.watch.last_commit.blobs = {} if manifest is None else {blob.path: blob for blob in manifest.files}
        self.watch.shapes.resumed_pause_s = 0.0 if manifest is None else manifest.pause_s
        self.loose.stored_sizes = {path: blob.size for path, blob in self.watch.last_commit.blobs.items()}
        self.watch.learn_restored({}, read=False)
        self.watch.note_end()
        self.watch.note_half_written(last_alive.maybe_half_written)
        if last_alive.same_boot:
            # Files that were written shortly before the agent died may be half written.
            self.watch.mark_quiet(last_alive.at_ns - int(options.effective_settle_s * 1e9))
        else:
            writeback_s = max(WRITEBACK_S, options.effective_settle_s)
            self.watch.mark_quiet_and_written(last_alive.at_ns - int(writeback_s * 1e9))

    # ── Rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_final(self) -> None:
        """Try at once, in the first final round, what failed before."""
        self.backoff.reset()
        self.watch.read_again()
        self.requested.unreadable.read_again()

    def attempt(self, *, final: bool) -> bool:
        """Run one round. Return True if something was done. After a failure the next try comes later and later."""
        if not self.backoff.is_due:
            return False
        self._put_off = False
        try:
            done = self._advance(final=final)
        except (FileUnstable, SendAbandoned) as reason:
            log.debug("commit put off: %r", reason)
            self._put_off = True
            return False
        except FileUnreadable as error:
            # The next round leaves its unit out.
            self.watch.note_unreadable(error)
            if error.may_pass:
                self.backoff.note_unreadable()
            self._put_off = True
            return False
        except (StoreError, OSError) as error:
            self.backoff.note_failure(error)
            return False
        self.backoff.note_success(unreadable=self.chooser.disk_fails or self.requested.unreadable.disk_fails)
        return done

    def _advance(self, *, final: bool) -> bool:
        if final and not self.queue.used:
            # Before anything that may fail: while that is tried again, half-written files would come to rest.
            self.watch.note_end()
        # A manifest in doubt goes before everything else.
        self.manifests.resume()
        commits = self.requested if self.queue.used or self.queue.waiting() else self.folder_commits
        if self.queue.used:
            self.chooser.drop_copies()
            self.folder_commits.decline()
            if not final:
                self.loose.report_if_due()
        done = commits.advance(final=final)
        may_prune = not self._options.recovering and self._deadlines.allow_pruning()
        self.pruning.prune_if_due(self.manifests.commits, allowed=may_prune)
        return done

    def is_unclear(self) -> bool:
        """Return True if the last round left something to try again."""
        waiting = not self.queue.used and self.folder_commits.is_waiting
        failed = self.backoff.error is not None or self.backoff.unreadable_since_s is not None
        return waiting or self._put_off or failed or self.manifests.in_doubt

    def needs_no_leader(self) -> bool:
        """Return True if this rank need not wait for a commit of rank 0: it follows none, or rank 0 has finished.

        In the second case the next round reads rank 0's commits once more, so that it sees the last one.
        """
        if not isinstance(self.folder_commits, FollowingCommits):
            return True
        if self._options.lead_finished():
            self.folder_commits.ask_at_once()
            return True
        return False

    def all_done(self, began: float, *, needs_no_leader: bool) -> bool:
        """Return True if a final round, of a series that began at that time, left nothing to commit."""
        if self.queue.used:
            return self.requested.is_done()
        if needs_no_leader or not self.folder_commits.may_join:
            return True
        # Rank 0 may be about to commit a save that this rank has to join.
        return not self.watch.dirty.files and self._options.monotonic() - began >= FOLLOW_PATIENCE_S

    def status(self) -> SyncStatus:
        """Return the status after a round."""
        commits = self.requested if self.queue.used else self.folder_commits
        return SyncStatus(
            unsynced_bytes=commits.unsynced_bytes(),
            files=commits.files,
            waiting=len(self.requested.waiting),
            skipped=self.requested.skipped,
            commits=self.manifests.commits,
            bytes_moved=self.sender.bytes_moved,
            error=self.backoff.error or self.pruning.error,
            held_back=self.requested.unreadable.held_back if self.queue.used else self.folder_commits.held_back,
        )
