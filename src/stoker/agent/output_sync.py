"""Bring outputs to the store as plain files, while the training runs and once more at its end.

Each file is put as a whole when it has not changed for a moment. A file that is removed from the folder stays in the
store. `output_versions` chooses the keys, so that a version that lands late never counts. `output_files` decides which
files are outputs; those that the training left beside its code are only sent at the end.
"""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import File, Files, pinned_path, signature_of
from stoker.agent.checkpoints.unreadable_files import printable
from stoker.agent.output_files import MOST_NAMED, LocalOutput, OutputFiles, OutputSource, SkippedFile
from stoker.agent.output_tracker import OutputTracker
from stoker.agent.output_versions import OutputWriter
from stoker.model.errors import StoreError
from stoker.model.keys import is_unfinished_output
from stoker.model.node_facts import OmittedOutput, OutputLink, SavedOutputs
from stoker.store.base import FileChanged, Store, is_valid_key
from stoker.store.upload_progress import UPLOADS

log = logging.getLogger(__name__)

SETTLE_S = 1.0
# A file that never stops changing, such as a log, is sent this often all the same.
BUSY_S = 30.0
# The pause between two scans of the folders: at least this, and so long that scans take this share of one core.
LOCAL_SCAN_S = 1.0
REMOTE_SCAN_S = 5.0
SCAN_SHARE = 0.01
MAX_SCAN_S = 60.0
# Files up to this size pass through memory. The plain names of larger files that are rewritten follow at the end only.
WHOLE_BYTES = 8 * 1024 * 1024
# The longest key that S3 allows, less the part before the path.
_PATH_BYTES = 900
# So many unexpected errors end the last sync.
_MOST_ERRORS = 5
_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
# In the last sync a file that cannot be read is tried for so long: a network mount may come back, a broken disk does
# not.
_READ_FOR_S = 60.0
_POLL_S = 0.2
# How often a deadline that may have moved is read.
_JOIN_S = 0.1


@dataclass(frozen=True)
class OutputStatus:
    """How far the outputs are."""

    files: int = 0
    unsynced_bytes: int = 0
    bytes_moved: int = 0
    error: str | None = None


@dataclass
class _Backoff:
    """The last error, and when to try again after it."""

    error: str | None = None
    failures: int = 0
    retry_at: float = float("-inf")

    def fail(self, error: Exception, now_s: float) -> None:
        if self.failures == 0:
            log.warning("outputs cannot be brought to the store now: %s", error)
        self.error = f"{type(error).__name__}: {error}"
        self.retry_at = now_s + min(_BACKOFF_S * 2**self.failures, _MAX_BACKOFF_S)
        self.failures = min(self.failures + 1, 10)

    def succeed(self) -> None:
        self.error, self.failures = None, 0


@dataclass
class _LastSync:
    """The last sync, once it was asked for."""

    until_s: float | None = None
    # Bring plain names up to date at the end.
    publish: bool = False
    # Everything is in the store; plain names may follow.
    complete: bool = False


class OutputSync:
    """Syncs one node's outputs. Rank 0's lie directly under the claim, the others' in `rank-<r>/`.

    `nodes` is the number of nodes: no node replaces the files of another (see `OutputWriter`).
    """

    def __init__(
        self,
        store: Store,
        job: str,
        claim: int,
        rank: int,
        outputs: Path | OutputFiles,
        *,
        boot: int = 0,
        nodes: int = 1,
        settle_s: float = SETTLE_S,
        busy_s: float = BUSY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = OutputWriter(store, job, claim, rank, boot, nodes=nodes)
        self._outputs = OutputFiles([OutputSource(outputs, takes_all=True)]) if isinstance(outputs, Path) else outputs
        self._tracker = OutputTracker(settle_s, busy_s)
        self._monotonic = monotonic
        self._least_scan_s = LOCAL_SCAN_S if store.is_local else REMOTE_SCAN_S
        self._scan_at = float("-inf")
        # Files that are not stored; those beside the code are known at the end, as are the links that are kept.
        self._skipped: list[SkippedFile] = []
        self._links: list[OutputLink] = []
        self._backoff = _Backoff()
        self._wake = threading.Event()
        self._last = _LastSync()
        self._paused = self._closing = False
        self._thread: threading.Thread | None = None
        self._status = OutputStatus()

    def start(self) -> None:
        """Begin to sync in the background."""
        self._thread = threading.Thread(target=self._run, name="output-sync", daemon=True)
        self._thread.start()

    def status(self) -> OutputStatus:
        """The status after the last round. Safe to call from any thread."""
        return self._status

    def pause(self) -> None:
        """Send nothing more until `final`: the bandwidth is for the checkpoints."""
        self._paused = True

    def close(self) -> None:
        """Stop without a last round."""
        self._closing = True
        self._wake.set()

    def final(
        self, deadline_s: float | None, until_s: Callable[[], float] | None = None, *, publish: bool = False
    ) -> bool:
        """Send everything, after the training is dead; return whether all of it was sent in time. Call it once.

        A call to the store that hangs is left behind on its thread. `until_s` gives an end by this object's clock,
        which may move while this waits; the sooner of both counts. None as `deadline_s`: `until_s` alone counts. With
        `publish`, plain names are brought up to date if there is time: readers of Stoker do not need them.
        """
        latest_s = float("inf") if deadline_s is None else self._monotonic() + deadline_s
        self._last.publish = publish
        self._last.until_s = latest_s if until_s is None else min(latest_s, until_s())
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="output-sync", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            if until_s is not None:
                self._last.until_s = min(latest_s, until_s())
            left_s = self._last.until_s - self._monotonic()
            if left_s <= 0:
                break
            self._thread.join(timeout=min(left_s, _JOIN_S))
        return self._last.complete

    def keep_saves(self, folder: Path, files: Files, torn: Collection[str] = (), loose: Collection[str] = ()) -> None:
        """Store these files of the checkpoint folder, too: as perhaps unfinished, except for `loose` ones that are not
        `torn`. Call it before `final`."""
        self._outputs.keep_saves(folder, files, torn, loose)

    def stored_saves(self) -> list[str]:
        """Return the perhaps unfinished files of `keep_saves` that are in the store, by their stored paths. Call it
        after `final`."""
        return sorted(filter(is_unfinished_output, self._tracker.stored))

    def stored_loose(self) -> list[str]:
        """Return the loose files of `keep_saves` that are in the store, by their stored paths. Call it after
        `final`."""
        loose, sources = self._outputs.loose, self._tracker.sources
        return sorted(path for path in self._tracker.stored if sources.get(path) in loose)

    def report(self) -> SavedOutputs:
        """Return which outputs of this node are in the store, and which are not, and why. Call it after `final`."""
        why = self._backoff.error or "there was no time left"
        unreadable = {path: failure.why for path, failure in self._tracker.failures()}
        missing = [SkippedFile(file.path, file.size, unreadable.get(file.path, why)) for file in self._tracker.dirty()]
        skipped = [*self._skipped, *missing, *self._tracker.refused()]
        skipped.sort(key=lambda one: (-one.size, one.path))
        stored = self._tracker.stored
        return SavedOutputs(
            files=len(stored),
            size=sum(signature.size for signature in stored.values()),
            left_out=len(skipped),
            left_out_size=sum(one.size for one in skipped),
            named=tuple(OmittedOutput(printable(one.path), one.size, one.why) for one in skipped[:MOST_NAMED]),
            links=tuple(replace(link, path=self._writer.stored_path(link.path)) for link in self._links),
            unfinished=sum(1 for path in stored if is_unfinished_output(path)),
        )

    def tick(self, *, final: bool = False) -> None:
        """Do one round: scan, and send files that have settled; with `final`, send everything."""
        now = self._monotonic()
        if final or now >= self._scan_at:
            self._scan(final=final)
        elif not self._status.unsynced_bytes and self._status.error is None:
            return
        if now >= self._backoff.retry_at:
            try:
                self._send_ready(final=final)
                self._backoff.succeed()
            except StoreError as error:
                self._backoff.fail(error, self._monotonic())
        self._status = OutputStatus(
            files=len(self._tracker.files),
            unsynced_bytes=sum(file.size for file in self._tracker.dirty()),
            bytes_moved=self._writer.bytes_moved,
            error=self._backoff.error or self._describe_unreadable(),
        )

    # ── On the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closing and self._last.until_s is None:
            try:
                self.tick()
            except Exception as error:
                # Edge of the thread: one bad round must not end the syncing.
                log.exception("output sync")
                self._backoff.fail(error, self._monotonic())
            self._wake.wait(_POLL_S)
        if self._last.until_s is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._last.until_s is not None
        self._backoff.retry_at, self._backoff.failures = float("-inf"), 0
        self._tracker.forget_failures()
        errors = 0
        while self._monotonic() < self._last.until_s and not self._closing:
            try:
                self.tick(final=True)
            except Exception as error:
                # Edge of the thread: nothing may keep the agent from writing the exit.
                log.exception("last output sync")
                self._backoff.fail(error, self._monotonic())
                errors += 1
                if errors == _MOST_ERRORS:
                    # Not a fault of the store, which would pass: the machine must not be paid for until the deadline.
                    self._skipped.append(SkippedFile(".", 0, f"the rest cannot be kept: {self._backoff.error}"))
                    return
            if self._backoff.error is None and not self._tracker.dirty():
                self._last.complete = True
                self._publish()
                return
            time.sleep(min(_POLL_S, max(0.0, self._last.until_s - self._monotonic())))

    def _is_over(self) -> bool:
        return self._last.until_s is not None and self._monotonic() >= self._last.until_s

    def _publish(self) -> None:
        """Bring the plain names of large files up to date. Best effort: pulls do not need it."""
        if not self._last.publish:
            return
        for path in sorted(self._writer.behind & self._tracker.stored.keys()):
            if self._closing or self._is_over():
                return
            source, file = self._tracker.sources[path], self._tracker.files[path]
            try:
                with nullcontext(source) if file.link is not None else pinned_path(source, file, exact=False) as pinned:
                    self._writer.publish(path, pinned)
            except (StoreError, OSError) as error:
                log.warning("%s has an older version under its plain name: %s", path, error)

    def _scan(self, *, final: bool) -> None:
        began, now = time.thread_time(), self._monotonic()
        found: dict[str, LocalOutput] = self._outputs.declared()
        if final:
            beside, left_out = self._outputs.beside(found)
            self._skipped = [*self._outputs.unstorable(found), *left_out]
            # Declared files first: there may not be time for everything.
            found = {**found, **beside}
            self._links, not_kept = self._outputs.links(found)
            self._skipped += not_kept
        self._tracker.update(found, now)
        cost_s = (time.thread_time() - began) / SCAN_SHARE
        least_s = min(self._least_scan_s, self._tracker.settle_s)
        self._scan_at = now + min(max(least_s, cost_s), MAX_SCAN_S)

    def _send_ready(self, *, final: bool) -> None:
        now = self._monotonic()
        for file in self._tracker.dirty() if final else self._tracker.ready(now, WHOLE_BYTES):
            if not self._tracker.may_read(file.path, now):
                continue
            if (self._paused or self._last.until_s is not None) and not final:
                break
            self._put(file)
            if self._is_over():
                break

    def _put(self, file: File) -> None:
        source = self._tracker.sources[file.path]
        if not is_valid_key(self._writer.plain_key(file.path)) or len(file.path.encode()) > _PATH_BYTES:
            log.warning("%s is not synced: its name cannot be kept in the store", printable(file.path))
            self._tracker.refuse(file, "its name cannot be kept in the store")
            return
        try:
            if not source.is_file():
                # A link to a folder, whose files are found under their own paths; or removed since the scan.
                # Only a folder that cannot be read is found as a file.
                self._tracker.refuse(file, "cannot be read" if stat.S_ISDIR(file.mode) else "")
                return
            with nullcontext(source) if file.link is not None else pinned_path(source, file, exact=False) as pinned:
                sent = self._put_bytes(file, source, pinned)
            if not sent:
                return
        except (FileNotFoundError, FileChanged):
            return
        except PermissionError as error:
            # One file that cannot be read must not hold up the others.
            self._tracker.refuse(file, _describe(error))
            return
        except OSError as error:
            # Of reading this file: errors of the store are StoreErrors.
            self._note_unreadable(file, error)
            return
        self._tracker.mark_sent(file, unchanged=signature_of(source, file) == file.signature)

    def _note_unreadable(self, file: File, error: OSError) -> None:
        """Try this file again later. In the last sync it is given up after a while: the machine is paid for."""
        now, why = self._monotonic(), _describe(error)
        failure = self._tracker.fail(file.path, why, now)
        if failure.count == 1:
            log.warning("%s %s", file.path, why)
        if self._last.until_s is not None and now - failure.since_s >= _READ_FOR_S:
            self._tracker.refuse(file, why)

    def _describe_unreadable(self) -> str | None:
        """Name a file that cannot be read now; None if there is none."""
        return next((f"{path} {failure.why}" for path, failure in self._tracker.failures()), None)

    def _put_bytes(self, file: File, source: Path, pinned: Path) -> bool:
        """Send the bytes of `pinned`; return False if `source` changed meanwhile, to be sent in a later round."""
        with pinned.open("rb") as reader:
            data = reader.read(WHOLE_BYTES + 1)
        if len(data) <= WHOLE_BYTES:
            # A file caught in the middle of a write waits. A file that never rests is a log, whole at any length.
            can_wait = self._last.until_s is None and not self._tracker.is_overdue(file.path, self._monotonic())
            if can_wait and signature_of(source, file) != file.signature:
                return False
            self._writer.write(file.path, data)
            # An empty file is progress, too.
            UPLOADS.add(len(data) + 1)
            return True
        # Too large for memory: sent in parts.
        del data
        try:
            self._writer.write_file(file.path, pinned)
        except FileChanged:
            return False
        return True


def _describe(error: OSError) -> str:
    return f"cannot be read ({error.strerror or error})"
