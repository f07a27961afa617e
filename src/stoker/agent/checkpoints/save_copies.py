"""Keep a copy of the last save that is known to be whole, for a program that saves faster than its folder settles.

After each burst of writes, while all files are closed, the changed files are copied. The copy counts as a save once the
next burst shows that the one before was whole (save_bursts). A program that is killed during a save, or right after
one, therefore resumes from the save before. Copies take a small share of a core and a bounded part of the disk: there
are at most two saves, and a file that was renamed into place is held open instead of copied (file_copies).
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.checkpoints.file_copies import FileCopier, FileCopy, SaveCopy, SaveTooLarge
from stoker.agent.checkpoints.folder_events import FolderEvent, FolderEvents
from stoker.agent.checkpoints.folder_snapshot import File, Files, FolderView, Signature
from stoker.agent.checkpoints.format_check import CachedFormatChecks, check_format
from stoker.agent.checkpoints.save_bursts import SaveBursts
from stoker.store.base import FileChanged

log = logging.getLogger(__name__)

# The share of a core that copying may take.
_CPU_SHARE = 0.05
# Events that come within this time are read together, because a large file is written in many pieces. The time grows
# with the length of the burst.
_GATHER_S, _MAX_GATHER_S = 0.01, 0.05
# The interval between two looks at files that are open or mapped; it doubles up to the maximum.
_RETRY_S, _MAX_RETRY_S = 0.05, 0.5
# The interval after which watching a folder is tried again, where it failed.
_WATCH_AGAIN_S = 5.0
# The longest time to wait for the last events.
_FINISH_S = 2.0
# How many bursts are remembered.
_MOST_SPANS = 100


@dataclass
class _Observation:
    """Knowledge about the folder since it has been watched without a gap. Lost events make all of it invalid."""

    bursts: SaveBursts
    # The folder and its copies after the last burst.
    files: Files = field(default_factory=dict)
    copies: Mapping[str, FileCopy] = field(default_factory=dict)
    # The last burst as a save, until the next burst shows that it was whole.
    candidate: SaveCopy | None = None
    # Files that were renamed into place during the burst under way.
    renamed: set[str] = field(default_factory=set)
    # How many bursts each process has lived through.
    bursts_by_process: dict[int, int] = field(default_factory=dict)
    # When to look next, when the burst under way began, and the time before which no copy is made.
    look_at: float | None = None
    begun_at: float | None = None
    not_before: float = float("-inf")
    retry_s: float = _RETRY_S


class SaveCopies:
    """Copies of the saves in one folder, made by a thread of their own.

    Other threads may call `newest`, `calm_s`, `finish` and `drop`. `logs` gives the files that are whole wherever they
    end; `committed` gives the signatures of the files in the last commit; `max_quiet_s` bounds the pause that ends a
    burst.
    """

    def __init__(
        self,
        view: FolderView,
        scratch: Path,
        *,
        logs: Callable[[], Collection[str]],
        committed: Callable[[], Mapping[str, Signature]],
        max_quiet_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._copier = FileCopier(view.folder, scratch)
        self._logs, self._committed = logs, committed
        self._max_quiet_s = max_quiet_s
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # Guards the events, because `calm_s` and `finish` use them from other threads.
        self._lock = threading.Lock()
        self._events: FolderEvents | None = None
        self._wrote_at: float | None = None
        self._whole: SaveCopy | None = None
        # When the last bursts of writes began and ended.
        self._spans: deque[tuple[float, float]] = deque(maxlen=_MOST_SPANS)
        # How many bursts of writes have ended.
        self.bursts = 0
        self._observed = self._new_observation()

    def start(self) -> None:
        shutil.rmtree(self._copier.scratch, ignore_errors=True)
        self._thread = threading.Thread(target=self._run, name="save-copies", daemon=True)
        self._thread.start()

    def newest(self) -> SaveCopy | None:
        """Return the newest save that is known to be whole."""
        return self._whole

    def calm_s(self, at: float) -> float | None:
        """Return for how long nothing had been written or removed at time `at`; 0 if something was since.

        None: not known, because the folder is not watched.
        """
        with self._lock:
            if self._events is None or self._wrote_at is None:
                return None
            return 0.0 if self._events.pending() else at - self._wrote_at

    def burst_begin(self, begun: float, ended: float) -> float:
        """Return when the first of the bursts in this time began; `begun` where none is known.

        Bursts include the writing of files under temporary names, which no scan sees.
        """
        current = self._observed.begun_at
        spans = [*self._spans, *([(current, float("inf"))] if current is not None else [])]
        return min((first for first, last in spans if first <= ended and last >= begun), default=begun)

    def finish(self) -> None:
        """Process the last events of a training that has ended, and stop."""
        self._stop.set()
        with self._lock:
            if self._events is not None:
                self._events.interrupt()
        if self._thread is not None:
            self._thread.join(timeout=_FINISH_S)

    def drop(self) -> None:
        """Stop, and free all copies."""
        self.finish()
        self._whole = self._observed.candidate = None

    # ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except OSError as error:
                log.debug("saves are not watched: %s", error)
            except Exception:
                # The edge of the thread: after any error the folder is still committed when it settles.
                log.exception("copies of saves")
            self._wrote_at = None
            self._stop.wait(_WATCH_AGAIN_S)

    def _watch(self) -> None:
        events = FolderEvents(self._view.folder)
        with self._lock:
            self._events = events
        try:
            # Scanned after watching began, so that no write falls between the two.
            self._observed = self._new_observation(self._view.scan())
            self._wrote_at = self._monotonic()
            while not self._stop.is_set():
                self._round(events)
            self._note(self._read(events))
        finally:
            with self._lock:
                self._events = None
            events.close()

    def _new_observation(self, files: Files | None = None) -> _Observation:
        """Start anew: conclusions of an earlier observation do not hold. The last whole save stays valid."""
        files = files or {}
        bursts = SaveBursts({path: file.size for path, file in files.items()}, self._max_quiet_s)
        return _Observation(bursts, files)

    def _round(self, events: FolderEvents) -> None:
        state = self._observed
        if events.wait(None if state.look_at is None else state.look_at - self._monotonic()):
            burst_s = self._monotonic() - (state.begun_at or self._monotonic())
            self._stop.wait(min(max(_GATHER_S, burst_s / 100), _MAX_GATHER_S))
            self._note(self._read(events))
        elif state.look_at is not None and self._monotonic() >= state.look_at:
            began_s = time.thread_time()
            if self._take(events):
                state.look_at, state.begun_at, state.retry_s = None, None, _RETRY_S
                state.not_before = self._monotonic() + (time.thread_time() - began_s) / _CPU_SHARE
            elif not self._stop.is_set():
                state.retry_s = min(2 * state.retry_s, _MAX_RETRY_S)
                state.look_at = self._monotonic() + state.retry_s

    def _read(self, events: FolderEvents) -> list[FolderEvent]:
        """Read the events of files other than logs."""
        with self._lock:
            logs = self._logs()
            takes = self._view.selection.takes
            found = [event for event in events.read() if event.path not in logs and takes(event.path)]
            if found:
                self._wrote_at = self._monotonic()
            return found

    def _note(self, events: list[FolderEvent]) -> bool:
        """Add events to the burst under way. Return False if there are none."""
        if not events:
            return False
        state = self._observed
        now = self._monotonic()
        state.begun_at = state.begun_at or now
        state.bursts.note(events, now)
        for event in events:
            (state.renamed.add if event.source is not None else state.renamed.discard)(event.path)
        if state.candidate is not None and state.bursts.has_come_round():
            self._whole, state.candidate = state.candidate, None
        state.retry_s = _RETRY_S
        state.look_at = max(now + state.bursts.quiet_s, state.not_before)
        return True

    def _take(self, events: FolderEvents) -> bool:
        """Copy the changed files, and end the burst. Return False if something is being written."""
        logs = set(self._logs())
        before = self._view.open_files()
        if set(before.files) - logs:
            return False
        files = {path: file for path, file in self._view.scan().items() if path not in logs}
        copies: Mapping[str, FileCopy] | None
        try:
            # A save with a file that no checkpoint can hold is never committed.
            copies = None if any(file.problem for file in files.values()) else self._copy_changed(files)
        except SaveTooLarge as reason:
            log.debug("a save is not copied: %s", reason)
            copies = None
        except (FileChanged, OSError) as error:
            log.debug("a save changed while it was copied: %s", error)
            return False
        # The copies are valid only if nothing was written meanwhile, no file was opened, and no process died, which
        # would have closed a half-written file.
        if self._note(self._read(events)):
            return False
        after = self._view.open_files()
        if set(after.files) - logs or not before.members <= after.members:
            return False
        self._close(files, copies, after.members)
        return True

    def _copy_changed(self, files: Files) -> Mapping[str, FileCopy]:
        state = self._observed
        return self._copier.copy_changed(
            files, earlier=state.files, copies=state.copies, renamed=state.renamed, committed=self._committed()
        )

    def _close(self, files: Files, copies: Mapping[str, FileCopy] | None, members: frozenset[int]) -> None:
        """End the burst, which left these files. `copies` is None where the save was too large to be copied."""
        state = self._observed
        ended = {pid for pid in state.bursts_by_process if pid not in members}
        # A process that ended while it wrote has closed its file half written. Processes that lived through one burst
        # only are workers that come and go; they did not write.
        suspect = any(state.bursts_by_process[pid] > 1 for pid in ended)
        state.bursts_by_process = {pid: state.bursts_by_process.get(pid, 0) + 1 for pid in members}
        changed = [path for path, file in files.items() if not _is_same(state.files.get(path), file)]

        def is_whole(path: str) -> bool:
            copy = copies.get(path) if copies is not None else None
            if copy is not None:
                return check_format(copy.path).state == "whole"
            return CachedFormatChecks(self._view.folder, check_format).check(files[path]).state == "whole"

        if not state.bursts.close(files, changed, is_whole, suspect=suspect):
            return
        self.bursts += 1
        now = self._monotonic()
        begun_at = state.begun_at if state.begun_at is not None else now
        self._spans.append((begun_at, now))
        if state.candidate is not None and state.bursts.was_whole():
            self._whole = state.candidate
        state.files, state.copies = files, copies or {}
        state.candidate = SaveCopy(files, state.copies, now, begun_at) if copies is not None else None
        state.renamed = set()


def _is_same(before: File | None, now: File) -> bool:
    """Return True if the file was not written. ctime is not compared: adding or removing a hard link changes it."""
    return before is not None and before.signature[:4] == now.signature[:4]
