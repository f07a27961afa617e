"""Keep a copy of the last save that is known to be whole, of a program that saves faster than its folder settles.

After each burst of writes, while all files are closed, what changed is copied. The copy counts as a save once the next
burst shows that the one before was whole (save_bursts). So a program that is killed in the middle of a save, or right
after one, goes on from the save before. Copies take a small share of a core, and a bounded part of the disk: at most
two saves are kept, and a file that was renamed into its place is held open instead.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stoker.agent.checkpoints.folder_events import Event, FolderEvents
from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, copy_stable, hold, signature_of
from stoker.agent.checkpoints.format_check import check_format
from stoker.agent.checkpoints.save_bursts import SaveBursts
from stoker.processes import OpenFile
from stoker.store.base import FileChanged

log = logging.getLogger(__name__)

# Copies of one save take no more than this, and of the free disk no more than this part.
MOST_BYTES = 256 * 1024 * 1024
_FREE_PART = 0.1
# Handles that are held at most.
_MOST_HANDLES = 64
# What copying may take of a core.
_SHARE = 0.05
# Events are read together that come within this time: a large file is written in many pieces. In a long burst, later.
_GATHER_S, _MOST_GATHER_S = 0.01, 0.05
# While files are open or mapped, they are looked at again after so long, and later and later.
_RETRY_S, _MOST_RETRY_S = 0.05, 0.5
# A folder that cannot be watched is tried again after so long.
_WATCH_AGAIN_S = 5.0
# The last events are waited for no longer than this.
_FINISH_S = 2.0


class _TooLarge(Exception):
    """A file that changed is too large to be copied."""


@dataclass(frozen=True, eq=False)
class KeptFile:
    """The bytes that a file had. They go when nothing refers to this any more."""

    path: Path
    copied_ns: int
    # How the file looked, if it is held open and not copied.
    held: Signature | None = None

    def is_intact(self) -> bool:
        """Whether a file that is held open is what it was."""
        if self.held is None:
            return True
        try:
            # Another name, or none, changes its status alone.
            return Signature.of(self.path.stat())[:4] == self.held[:4]
        except OSError:
            return False


@dataclass(frozen=True, eq=False)
class KeptSave:
    """A folder as it was, without its logs. Files that are not in `kept` were not written since this was watched."""

    files: Files
    kept: Mapping[str, KeptFile]
    taken_at: float


class OpenNow(NamedTuple):
    """As `Writing`, by relative path."""

    files: dict[str, OpenFile]
    members: frozenset[int]


class SaveCopies:
    """Copies of one folder, made by a thread of their own. `newest`, `calm_s` and `finish` may be called by others.

    `scan` and `open_now` look at the folder; `takes` says of a path whether they see it. `logs` are files that are
    whole wherever they end; `committed` is how the files of the last commit looked.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        *,
        scan: Callable[[], Files],
        open_now: Callable[[], OpenNow],
        logs: Callable[[], Collection[str]],
        takes: Callable[[str], bool],
        committed: Callable[[], Mapping[str, Signature]],
        longest_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._scratch = folder, scratch
        self._scan, self._open_now, self._takes = scan, open_now, takes
        self._logs, self._committed = logs, committed
        self._longest_s = longest_s
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._events: FolderEvents | None = None
        self._lock = threading.Lock()
        self._wrote_at: float | None = None
        self._whole: KeptSave | None = None
        self._candidate: KeptSave | None = None
        self._count = 0
        # How many bursts of writes were seen to end.
        self.bursts = 0
        self._files: Files = {}
        self._forget()

    def start(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._thread = threading.Thread(target=self._run, name="save-copies", daemon=True)
        self._thread.start()

    def newest(self) -> KeptSave | None:
        """The newest save that is known to be whole."""
        return self._whole

    def calm_s(self, at: float) -> float | None:
        """For how long nothing had been written or removed at that time, nor was since; None: that is not known."""
        with self._lock:
            if self._events is None or self._wrote_at is None:
                return None
            return 0.0 if self._events.pending() else at - self._wrote_at

    def finish(self) -> None:
        """The training has ended: hear what it did last, and stop."""
        self._stop.set()
        with self._lock:
            if self._events is not None:
                self._events.interrupt()
        if self._thread is not None:
            self._thread.join(timeout=_FINISH_S)

    def drop(self) -> None:
        """Stop, and keep nothing."""
        self.finish()
        self._whole = self._candidate = None

    # ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._watch()
            except OSError as error:
                log.debug("saves are not watched: %s", error)
            except Exception:
                # Whatever it is, the folder is still committed when it settles.
                log.exception("copies of saves")
            self._wrote_at = None
            self._stop.wait(_WATCH_AGAIN_S)

    def _watch(self) -> None:
        events = FolderEvents(self._folder)
        with self._lock:
            self._events = events
        try:
            self._forget()
            self._files = self._scan()
            self._bursts = SaveBursts({path: file.size for path, file in self._files.items()}, self._longest_s)
            self._wrote_at = self._monotonic()
            while not self._stop.is_set():
                self._round(events)
            self._note(self._read(events))
        finally:
            with self._lock:
                self._events = None
            events.close()

    def _forget(self) -> None:
        """What was learnt holds no more. The last whole save stays one."""
        self._bursts = SaveBursts({}, self._longest_s)
        self._candidate = None
        self._files = {}
        self._kept: Mapping[str, KeptFile] = {}
        self._renamed: set[str] = set()
        self._seen: dict[int, int] = {}
        self._look_at: float | None = None
        self._begun_at: float | None = None
        self._not_before = float("-inf")
        self._retry_s = _RETRY_S

    def _round(self, events: FolderEvents) -> None:
        if events.wait(None if self._look_at is None else self._look_at - self._monotonic()):
            begun_s = self._monotonic() - (self._begun_at or self._monotonic())
            self._stop.wait(min(max(_GATHER_S, begun_s / 100), _MOST_GATHER_S))
            self._note(self._read(events))
        elif self._look_at is not None and self._monotonic() >= self._look_at:
            began_s = time.thread_time()
            if self._take(events):
                self._look_at, self._begun_at, self._retry_s = None, None, _RETRY_S
                self._not_before = self._monotonic() + (time.thread_time() - began_s) / _SHARE
            elif not self._stop.is_set():
                self._retry_s = min(2 * self._retry_s, _MOST_RETRY_S)
                self._look_at = self._monotonic() + self._retry_s

    def _read(self, events: FolderEvents) -> list[Event]:
        """The events that say that something was written besides logs."""
        with self._lock:
            logs = self._logs()
            found = [event for event in events.read() if event.path not in logs and self._takes(event.path)]
            if found:
                self._wrote_at = self._monotonic()
            return found

    def _note(self, found: list[Event]) -> bool:
        """Events came. False: none did."""
        if not found:
            return False
        now = self._monotonic()
        self._begun_at = self._begun_at or now
        self._bursts.note(found, now)
        for event in found:
            (self._renamed.add if event.source is not None else self._renamed.discard)(event.path)
        if self._candidate is not None and self._bursts.has_come_round():
            self._whole, self._candidate = self._candidate, None
        self._retry_s = _RETRY_S
        self._look_at = max(now + self._bursts.quiet_s, self._not_before)
        return True

    def _take(self, events: FolderEvents) -> bool:
        """Copy what changed. False: something is being written."""
        logs = set(self._logs())
        before = self._open_now()
        if set(before.files) - logs:
            return False
        files = {path: file for path, file in self._scan().items() if path not in logs}
        try:
            kept = self._keep(files)
        except _TooLarge as reason:
            log.debug("a save is not copied: %s", reason)
            kept = None
        except (FileChanged, OSError) as error:
            log.debug("a save changed while it was copied: %s", error)
            return False
        if self._note(self._read(events)):
            return False
        after = self._open_now()
        if set(after.files) - logs or not before.members <= after.members:
            return False
        self._close(files, kept, after.members)
        return True

    def _close(self, files: Files, kept: Mapping[str, KeptFile] | None, members: frozenset[int]) -> None:
        """A burst has ended, and what it left was copied. `kept` is None where it was too large."""
        ended = {pid for pid in self._seen if pid not in members}
        # A process that ended while it wrote has closed its file half written. Workers that come and go did not write.
        suspect = any(self._seen[pid] > 1 for pid in ended)
        self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in members}
        changed = [path for path, file in files.items() if not _is_same(self._files.get(path), file)]

        def is_whole(path: str) -> bool:
            copy = kept.get(path) if kept is not None else None
            return check_format(self._folder / path if copy is None else copy.path).state == "whole"

        if not self._bursts.close(files, changed, is_whole, suspect=suspect):
            return
        self.bursts += 1
        if self._candidate is not None and self._bursts.was_whole():
            self._whole = self._candidate
        self._files, self._kept = files, kept or {}
        self._candidate = KeptSave(files, self._kept, self._monotonic()) if kept is not None else None
        self._renamed = set()

    # ── Copies ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self, files: Files) -> Mapping[str, KeptFile]:
        """The bytes of all files that changed since this was watched and are in no commit.

        Raises _TooLarge, and FileChanged or OSError where a file changed again.
        """
        committed = self._committed()
        kept: dict[str, KeptFile] = {}
        budget = min(MOST_BYTES, int(_FREE_PART * shutil.disk_usage(self._folder).free))
        handles = 0
        for file in sorted(files.values(), key=lambda file: -file.signature.newest_ns):
            path, known = file.path, self._files.get(file.path)
            if file.link is not None or committed.get(path) == file.signature:
                continue
            if known is not None and known.signature == file.signature:
                # As it was in the burst before. One that was never copied, or is too much, is taken from the folder.
                if path in self._kept and file.size <= budget:
                    kept[path] = self._kept[path]
                    budget -= file.size if kept[path].held is None else 0
                continue
            if path in self._renamed and handles < _MOST_HANDLES:
                handles += 1
                kept[path] = self._hold(file)
            elif file.size > budget:
                raise _TooLarge(path)
            else:
                budget -= file.size
                kept[path] = self._copy(file)
        return kept

    def _copy(self, file: File) -> KeptFile:
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._count += 1
        # The name tells its format.
        target = self._scratch / f"{self._count}-{file.path.rpartition('/')[2][-100:]}"
        kept = KeptFile(target, time.time_ns())
        weakref.finalize(kept, _remove, target)
        if not copy_stable(self._folder / file.path, file, target):
            raise FileChanged(file.path)
        return kept

    def _hold(self, file: File) -> KeptFile:
        """Renamed into its place, it will be replaced by another file: its bytes stay as long as it is open."""
        source = self._folder / file.path
        with hold(source, file) as found:
            handle = os.open(found, os.O_RDONLY | os.O_CLOEXEC)
        kept = KeptFile(Path(f"/proc/self/fd/{handle}"), time.time_ns(), file.signature)
        weakref.finalize(kept, os.close, handle)
        if signature_of(source, file) != file.signature:
            raise FileChanged(file.path)
        return kept


def _is_same(before: File | None, now: File) -> bool:
    """Whether a file was not written. A link to it that was made or removed changes its status alone."""
    return before is not None and before.signature[:4] == now.signature[:4]


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
