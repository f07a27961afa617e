"""Watch a checkpoint folder that a script writes to, and record what differs from the last commit.

A script that does not use `stoker.train` gives no sign when a save is whole. So the folder is scanned, open files are
polled, and everything observed is recorded here; `commit_chooser` decides from it what can be committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.checkpoints.commit_contents import CommitContents
from stoker.agent.checkpoints.file_numbers import generation_of, newest_of_each_kind
from stoker.agent.checkpoints.folder_snapshot import Files, FolderView, Signature, pinned_path, top_folder_of
from stoker.agent.checkpoints.format_check import CachedFormatChecks, FormatCheck, check_format
from stoker.agent.checkpoints.save_cycles import SaveCycles
from stoker.agent.checkpoints.save_shape import SaveShapes
from stoker.agent.checkpoints.unreadable_files import FileUnreadable
from stoker.agent.checkpoints.write_history import WriteHistory
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged
from stoker.store.hashed_copy import copy_hashed

# A scan before the training is signalled must not delay the signal longer than this.
_MAX_SCAN_BEFORE_SIGNAL_S = 1.0


@dataclass
class LastCommit:
    """The last commit of the folder: the signatures its files had in the folder, and the blobs that hold them."""

    signatures: dict[str, Signature] = field(default_factory=dict)
    blobs: dict[str, BlobRef] = field(default_factory=dict)
    # The monotonic time of the folder's state that was committed.
    as_of: float = float("-inf")
    # How often each unit had been begun, where the commit has it as it was then.
    begun: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DirtyFiles:
    """Files that differ from the last commit, their size, and since when there have been any."""

    files: Files = field(default_factory=dict)
    size_bytes: int = 0
    since: float | None = None


class FolderWatch:
    """Observations of one checkpoint folder.

    One thread commits; other threads may call `scan`, `record_pre_signal` and `poll_open_files`. `lock` guards
    everything that a scan changes.
    """

    def __init__(
        self,
        view: FolderView,
        *,
        settle_s: float,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
        check: Callable[[Path, str], FormatCheck] = check_format,
    ) -> None:
        self.view = view
        self._monotonic = monotonic
        self.lock = threading.RLock()
        self.files: Files = {}
        self.dirty = DirtyFiles()
        self.last_commit = LastCommit()
        self.cycles = SaveCycles()
        self.shapes = SaveShapes(self.cycles.shape, self.cycles.had_shape)
        self.history = WriteHistory(settle_s, patience_s=patience_s)
        # The logs as of the last scan, for the thread that copies saves: it does not take the lock.
        self.logs: Collection[str] = ()
        self._checks = CachedFormatChecks(view.folder, check, monotonic)
        self._other_ranks: Mapping[str, Signature] = {}
        self._scan_cost_s = self._poll_at = 0.0

    # ── Observing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def scan(self) -> None:
        """Scan the folder. Raises nothing: unreadable files count as absent."""
        with self.lock:
            began_s = time.monotonic()
            now = self._monotonic()
            found = self.view.scan()
            self._scan_cost_s = time.monotonic() - began_s
            self.files = {path: file for path, file in found.items() if self._other_ranks.get(path) != file.signature}
            self.history.note_files(self.files, now)
            self._compare()
            if self.dirty.files:
                self._note_open()
            since = now if self.dirty.since is None else self.dirty.since
            self.dirty = replace(self.dirty, since=since if self.dirty.files else None)
            history = self.history
            self.logs = history.logs()
            skip = history.open.keys() | self.logs | history.writer_died_holding()
            self.cycles.note(self.files, skip, lambda path: self.check(path).state == "whole")

    def record_pre_signal(self) -> None:
        """Record the folder just before the training is signalled to end."""
        if not self.lock.acquire(timeout=_MAX_SCAN_BEFORE_SIGNAL_S):
            return
        try:
            if self._scan_cost_s < _MAX_SCAN_BEFORE_SIGNAL_S:
                self.scan()
            self._note_open()
            self.history.record_pre_signal()
        finally:
            self.lock.release()

    def note_end(self) -> None:
        """Scan the folder, and record that the training has ended. Only the first call counts."""
        with self.lock:
            if self.history.ended_at is None:
                self.scan()
                self.history.end()

    def poll_open_files(self, cpu_share: float) -> None:
        """Record which files are open now, without a scan; at most so often that it takes this share of a core."""
        if time.monotonic() < self._poll_at or not self.lock.acquire(blocking=False):
            return
        try:
            began_s = time.monotonic()
            self._note_open()
            took_s = time.monotonic() - began_s
            self._poll_at = time.monotonic() + took_s * (1 / cpu_share - 1)
        finally:
            self.lock.release()

    def maybe_half_written(self) -> Collection[str]:
        """Return the files that may be half written at this moment, however long ago they were written."""
        with self.lock:
            self._note_open()
            return self.history.maybe_half_written()

    def check(self, path: str) -> FormatCheck:
        """Check a file of the last scan by its format."""
        return self._checks.check(self.files.get(path))

    def note_unreadable(self, error: FileUnreadable) -> None:
        """Record that a file could not be read to its end, as on a failing disk. After a while it is tried again."""
        file = self.files.get(error.path)
        if file is not None:
            self._checks.note_unreadable(file, error)

    def read_again(self) -> None:
        """Read files that could not be read again at once, and then sooner than before: the training has ended."""
        self._checks.read_again()

    def torn(self, open_at_end: Collection[str]) -> frozenset[str]:
        """Return the uncommitted files that are broken by their format, or were open when their writer ended and are
        not shown to be whole by it."""

        def is_torn(path: str) -> bool:
            state = self.check(path).state
            was_open = path in open_at_end or self.history.last_seen_open(path)
            return state == "broken" or (was_open and state != "whole")

        with self.lock:
            return frozenset(filter(is_torn, self.dirty.files.keys() - self.history.logs()))

    @property
    def dirty_s(self) -> float:
        """How long there have been uncommitted files, as of the last scan."""
        return 0.0 if self.dirty.since is None else self.history.scanned_at - self.dirty.since

    def longest_pause_s(self, paths: Iterable[str]) -> float:
        """Return the longest time between two files of a save that these files are of, as far as it is known."""
        units = {top_folder_of(path) for path in paths}
        pauses = [(self.shapes.longest_pause_s(unit), self.cycles.companions.longest_pause_s(unit)) for unit in units]
        return round(max(map(max, pauses), default=0.0), 3)

    # ── Commits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def set_restored(
        self, blobs: dict[str, BlobRef], signatures: Mapping[str, Signature], other_ranks: Mapping[str, Signature]
    ) -> None:
        """Treat the restored files as the last commit; `blobs` are this rank's.

        The files of `other_ranks` are not this rank's to commit, as long as their signatures stay the same.
        """
        self.last_commit.blobs = blobs
        self.last_commit.signatures.update(signatures)
        self._other_ranks = other_ranks
        self.files = {path: file for path, file in self.files.items() if path not in other_ranks}
        self._compare()
        self.learn_restored({}, read=False)

    def note_commit(self, contents: CommitContents, blobs: Mapping[str, BlobRef]) -> None:
        """Record a finished commit, and learn from it which files one save consists of."""
        with self.lock:
            last = self.last_commit
            forms = {path: form for path, file in contents.files.items() if (form := self._checks.known_form(file))}
            self.shapes.learn(blobs, last.blobs, contents.logs, forms, contents.files)
            self.history.note_commit(contents.files.keys())
            carried = {path: last.signatures[path] for path in contents.carried if path in last.signatures}
            committed = {path: file.signature for path, file in contents.files.items()}
            as_of = min(contents.as_of, self.history.scanned_at)
            begun = self._begun_as_committed({top_folder_of(path) for path in contents.carried}, committed)
            self.last_commit = LastCommit(carried | committed, dict(blobs), as_of, begun)
            self._compare()
            self.dirty = replace(self.dirty, since=self._monotonic() if self.dirty.files else None)
            self._checks.retain(self.files.values())

    def _begun_as_committed(self, carried: Set[str], committed: Mapping[str, Signature]) -> dict[str, int]:
        """Return how often each unit had been begun when it was in the committed state, where that is known."""
        changed = {
            top_folder_of(path)
            for path, signature in committed.items()
            if path not in self.files or self.files[path].signature != signature
        }
        before = {unit: nth for unit, nth in self.last_commit.begun.items() if unit in carried}
        now = self.cycles.companions.begun()
        return {unit: nth for unit, nth in now.items() if unit not in changed | carried} | before

    def note_half_written(self, paths: Collection[str]) -> None:
        """After a restart of the agent: these files were open when the training died, and may be half written."""
        for path in self.files.keys() & paths:
            self.history.note_writer_died(path, self.files[path].signature)

    def mark_quiet(self, before_ns: int) -> None:
        """After a restart of the agent: files last written before this time were quiet when the training died."""
        for path, file in self.files.items():
            if file.signature.modified_ns < before_ns:
                # The rest of its save may be missing all the same.
                self.history.mark_quiet(path, (before_ns - file.signature.modified_ns) / 1e9)

    def mark_quiet_and_written(self, before_ns: int) -> None:
        """After a crash of the machine: files last written before this time were quiet, and are on the disk.

        Of newer files, bytes may be lost although names, sizes and times are there. So these are read in full and
        compared with the last commit.
        """
        for path, file in self.files.items():
            # A program may set the time of a write back, but not that of a change.
            if file.signature.newest_ns < before_ns or self._is_committed(path):
                self.history.mark_quiet(path)
            else:
                self.history.maybe_lost.add(path)

    def _is_committed(self, path: str) -> bool:
        """Return True if the file has the very bytes that it has in the last commit."""
        file, blob = self.files[path], self.last_commit.blobs.get(path)
        if blob is None or file.size != blob.size or file.link is not None:
            return False
        try:
            with pinned_path(self.view.folder / path, file) as pinned, pinned.open("rb") as reader:
                return copy_hashed(reader.readinto, lambda _read: None)[0] == blob.digest
        except (OSError, FileChanged):
            return False

    def learn_restored(self, before: Mapping[str, BlobRef], *, read: bool = True) -> None:
        """Learn from the last commit what a save consists of; later saves are compared with it.

        `before` is the commit before it, if known. `read`: its files are in the folder, and their formats are checked.
        """
        blobs = self.last_commit.blobs
        forms = {path: form for path in blobs if read and path in self.files and (form := self.check(path).form)}
        written = [path for path, blob in blobs.items() if path not in before or before[path].digest != blob.digest]
        if before:
            self.cycles.companions.expect(unit for path in written if not generation_of(unit := top_folder_of(path)))
            self.last_commit.begun = self.cycles.companions.begun()
        self.shapes.learn(blobs if before else newest_of_each_kind(blobs), before, (), forms)

    def _compare(self) -> None:
        signatures = self.last_commit.signatures
        files = {path: file for path, file in self.files.items() if signatures.get(path) != file.signature}
        self.dirty = replace(self.dirty, files=files, size_bytes=sum(file.size for file in files.values()))

    def _note_open(self) -> None:
        self.history.note_open(*self.view.open_files(), self._signature_now)

    def _signature_now(self, path: str) -> Signature | None:
        try:
            return Signature.of((self.view.folder / path).stat())
        except OSError:
            return None
