"""Observations of each file of a checkpoint folder: changes, open handles, writers that died.

Two moments matter most: just before the training is signalled to end, and its end. A file that was quiet at the first
moment and looks the same at the second was not touched by the ending.

A file is *unsettled* as long as it may be half written: it is open for writing, it changed a moment ago, or its writer
died while holding it open. A unit is unsettled if it has an unsettled file, or lost a file a moment ago.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from stoker.agent.checkpoints.folder_snapshot import Files, Signature, top_folder_of
from stoker.processes import OpenFile, expecting, has_survivor

# A file that has been held open for this long and has hardly grown is a log: it is whole wherever it ends. One that was
# written without growing is no log: its program writes over it in place.
STREAM_S = 60.0
STREAM_BYTES = 64 * 1024 * 1024
# A file with such a name that is held open is a log from the start.
_LOG_NAMES = (".log", ".jsonl")
_LOG_PARTS = ("tfevents",)
# A file that was open when its writer died has to rest for this long before it counts as whole: processes that save and
# end, such as `cp`, look the same. A training that lost one of its processes has ended by then: torchrun gives the
# others 30 s.
WRITER_DIED_S = 60.0


@dataclass
class PreSignalState:
    """The folder and the processes just before the training was signalled to end."""

    at: float
    files: Mapping[str, Signature]
    # The unsettled files and units, without logs.
    unsettled: set[str]
    unsettled_units: set[str]
    open: set[str]
    members: frozenset[int]
    # The processes that live on after SIGTERM, and whether any writing process is among them.
    expecting: frozenset[int]
    survives: bool
    # Files that were open, with the signature they had when they were first seen closed.
    closed_as: dict[str, Signature] = field(default_factory=dict)
    # Writers of files that have been seen open since.
    writers: dict[str, frozenset[int]] = field(default_factory=dict)

    def begun_since(self, path: str, now: Signature) -> bool:
        """Return True if the file was begun anew after the signal, and therefore by a process that survived it."""
        if path in self.open:
            return path in self.closed_as and self.closed_as[path] != now
        return self.files.get(path) != now

    def by_survivor(self, path: str) -> bool:
        """Return True if the file's writer lives on after SIGTERM, or was started since."""
        writers = self.writers.get(path)
        if not writers:
            return self.survives
        return any(pid in self.expecting or pid not in self.members for pid in writers)


class _LogFiles:
    """Recognises logs among the files that are held open, by their name, by append mode, or by slow growth."""

    def __init__(self) -> None:
        # When each file was first seen open and not closed since, with the size and inode it had then.
        self._opened: dict[str, tuple[float, int, int]] = {}
        self._appended: set[str] = set()
        # The signatures that open files were last seen with, and those that were written without growing.
        self._seen: dict[str, Signature] = {}
        self._written_over: set[str] = set()

    def note_open(self, path: str, file: OpenFile, seen: Signature, now: float) -> None:
        before = self._seen.get(path)
        self._seen[path] = seen
        if before is not None and before.modified_ns != seen.modified_ns and seen.size == before.size:
            self._written_over.add(path)
        since, size, inode = self._opened.get(path, (now, seen.size, seen.inode))
        if inode != seen.inode or seen.size < size:
            since, size, inode = now, seen.size, seen.inode
            self._written_over.discard(path)
        self._opened[path] = (since, size, inode)
        name = path.rpartition("/")[2].lower()
        if file.appending or name.endswith(_LOG_NAMES) or any(part in name for part in _LOG_PARTS):
            self._appended.add(path)

    def note_removed(self, path: str) -> None:
        for known in (self._opened, self._seen):
            known.pop(path, None)
        self._written_over.discard(path)

    def retain(self, files: Files, found_open: Mapping[str, OpenFile]) -> None:
        """Forget files that were closed or removed."""
        self._opened = {path: since for path, since in self._opened.items() if path in found_open}
        self._seen = {path: seen for path, seen in self._seen.items() if path in found_open}
        self._written_over &= found_open.keys()
        self._appended = {path for path in self._appended if path in files or path in found_open}

    def held_open(self, files: Files, now: float) -> set[str]:
        """Return the logs that are open."""
        return {
            path
            for path, (since, size, _) in self._opened.items()
            if path in files
            and (path in self._appended or self._hardly_grows(path, files[path].size - size, now - since))
        }

    def _hardly_grows(self, path: str, by_bytes: int, open_s: float) -> bool:
        return open_s >= STREAM_S and by_bytes < STREAM_BYTES and path not in self._written_over

    def held_in_place(self, now: float) -> set[str]:
        """Return files that have been open for long and are written over in place: they count as closed."""
        return {path for path in self._written_over if now - self._opened[path][0] >= STREAM_S}

    def all(self, files: Files, now: float) -> set[str]:
        """Return the files that are or were logs, including removed ones."""
        return self.held_open(files, now) | self._appended


@dataclass
class _Uncommitted:
    """A file since its last commit: when its writing was begun, at the earliest, and the smallest size it was seen
    with."""

    begun_at: float
    smallest: int


class _UncommittedFiles:
    """Files that were written since they were last committed."""

    def __init__(self) -> None:
        self._files: dict[str, _Uncommitted] = {}
        # How often each file was begun anew, removed files included.
        self.rounds: dict[str, int] = {}

    def note_size(self, path: str, size: int, since: float) -> None:
        """Record the present size of a file. `since` is when its writing was begun, if it was committed until now."""
        known = self._files.setdefault(path, _Uncommitted(since, size))
        known.smallest = min(known.smallest, size)

    def note_begin(self, path: str, at: float, *, anew: bool) -> None:
        """Record that the writing of a file was begun, or went on after a rest. `anew`: from the beginning."""
        self._files[path].begun_at = at
        if anew:
            self.rounds[path] = self.rounds.get(path, 0) + 1

    def note_removed(self, path: str) -> None:
        self._files.pop(path, None)

    def note_commit(self, paths: Collection[str], present: Collection[str]) -> None:
        """Forget the committed `paths`, and the rounds of files that are not `present`."""
        for path in paths:
            self._files.pop(path, None)
        self.rounds = {path: count for path, count in self.rounds.items() if path in present and path not in paths}

    def paths(self) -> Set[str]:
        return self._files.keys()

    def begun_at(self, path: str) -> float:
        """Return when the writing of an uncommitted file was begun, at the earliest."""
        return self._files[path].begun_at

    def was_smaller(self, path: str, size: int) -> bool:
        return path in self._files and self._files[path].smallest < size


class WriteHistory:
    """Observations of one folder, by relative path. Not thread-safe: FolderWatch guards it with its lock.

    A file counts as recently changed for `settle_s`; more files of the same save may follow for `patience_s`.
    """

    def __init__(self, settle_s: float, patience_s: float) -> None:
        self._settle_s = settle_s
        self._patience_s = patience_s
        self.scanned_at = float("-inf")
        # When the training was seen to have ended. Time stops there: files do not settle after the end.
        self.ended_at: float | None = None
        self.changed_at: dict[str, float] = {}
        # When a file was last removed from each unit.
        self.removed_at: dict[str, float] = {}
        self.open: dict[str, OpenFile] = {}
        self.members: frozenset[int] = frozenset()
        self.pre_signal: PreSignalState | None = None
        self._uncommitted = _UncommittedFiles()
        # Files that were written so shortly before a crash of the machine that bytes of them may be lost.
        self.maybe_lost: set[str] = set()
        self._files: Files = {}
        self._log_files = _LogFiles()
        # When a writer was seen to have died while holding a file open, and the signature that the file had then.
        self._writer_died_holding: dict[str, tuple[float, Signature]] = {}
        # Processes that were seen to write in the folder.
        self._writers: set[int] = set()

    # ── Observing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def note_files(self, files: Files, now: float) -> None:
        """Record a scan of the folder."""
        first = self.scanned_at == float("-inf")
        # A change that is seen now was made after the scan before.
        earliest = now if first else self.scanned_at
        before, self._files, self.scanned_at = self._files, files, now
        for path, file in files.items():
            known = before.get(path)
            if known is None or known.signature != file.signature:
                # Files of the first scan were begun before anybody looked.
                anew = not first and (known is None or self._is_begun_anew(path, known.signature, file.signature, now))
                rested = now - self.changed_at.get(path, now) >= self._settle_s
                self._uncommitted.note_size(path, file.size, earliest)
                if anew or rested:
                    self._uncommitted.note_begin(path, earliest, anew=anew)
                self.changed_at[path] = now
                died = self._writer_died_holding.get(path)
                if died is not None and died[1] != file.signature:
                    del self._writer_died_holding[path]
        for path in before.keys() - files.keys():
            self.changed_at.pop(path, None)
            self._writer_died_holding.pop(path, None)
            self._uncommitted.note_removed(path)
            self._log_files.note_removed(path)
            self.removed_at[top_folder_of(path)] = now

    def _is_begun_anew(self, path: str, before: Signature, seen: Signature, now: float) -> bool:
        """Return True if a write began the file again, rather than continuing it."""
        calm = now - self.changed_at.get(path, now) >= self._settle_s
        return before.inode != seen.inode or seen.size < before.size or (seen.size == before.size and calm)

    def note_open(
        self, found: Mapping[str, OpenFile], members: frozenset[int], signature: Callable[[str], Signature | None]
    ) -> None:
        """Record which files are open for writing now. `signature` gives the present signature of a file."""
        for path, was in self.open.items():
            if path in found:
                continue
            seen = signature(path)
            if seen is None:
                continue
            if self.pre_signal is not None and path in self.pre_signal.open:
                self.pre_signal.closed_as.setdefault(path, seen)
            if not was.writers & members and path not in self._log_files.all(self._files, self.scanned_at):
                self.note_writer_died(path, seen)
        for path, file in found.items():
            self._writer_died_holding.pop(path, None)
            self._writers |= file.writers
            seen = signature(path)
            if seen is not None:
                self._uncommitted.note_size(path, seen.size, self.scanned_at)
                self._log_files.note_open(path, file, seen, self.scanned_at)
            if self.pre_signal is not None:
                writers = self.pre_signal.writers
                writers[path] = writers.get(path, frozenset()) | file.writers
        self._log_files.retain(self._files, found)
        self.open, self.members = dict(found), members

    def note_writer_died(self, path: str, signature: Signature) -> None:
        """Record that the writer of a file has died while holding it open."""
        self._writer_died_holding[path] = (self.scanned_at, signature)

    def record_pre_signal(self) -> None:
        """Record the state just before the training is signalled to end. Files and handles were observed just now."""
        since = self.scanned_at - self._settle_s
        logs = self._log_files.all(self._files, self.scanned_at)
        unsettled = self.unsettled(logs)
        units = {top_folder_of(path) for path in unsettled} | {
            unit for unit, at in self.removed_at.items() if at > since
        }
        expect = expecting(self.members, signal.SIGTERM)
        writers = self._writers & self.members
        self.pre_signal = PreSignalState(
            at=self.scanned_at,
            files={path: file.signature for path, file in self._files.items()},
            unsettled=unsettled,
            unsettled_units=units,
            open={path for path in self.open if path not in logs},
            members=self.members,
            expecting=expect,
            survives=bool(writers & expect) if writers else has_survivor(self.members, expect),
        )

    def mark_quiet(self, path: str, longer_s: float = float("inf")) -> None:
        """Record that the file had been settled for so long when it was first seen."""
        self.changed_at[path] = self._now - self._settle_s - longer_s

    def end(self) -> None:
        """Record that the training has ended; everything was observed just now. Only the first call counts."""
        if self.ended_at is None:
            self.ended_at = self.scanned_at

    def note_commit(self, paths: Collection[str]) -> None:
        self._uncommitted.note_commit(paths, self._files.keys())

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open_logs(self) -> set[str]:
        """Return the logs that are held open."""
        return self._log_files.held_open(self._files, self.scanned_at)

    def logs(self) -> set[str]:
        """Return the files that are or were logs: they are whole wherever they end."""
        return self._log_files.all(self._files, self.scanned_at) & self._files.keys()

    def unsettled(self, open_logs: Collection[str]) -> set[str]:
        """Return the unsettled files, without `open_logs`."""
        open_now = (self.open.keys() & self._files.keys()) - self._log_files.held_in_place(self._now)
        return (open_now | self.changed_lately() | self.writer_died_holding()) - set(open_logs)

    def maybe_half_written(self) -> set[str]:
        """Return the files that may be half written however long they have rested, logs excluded. Files that no scan
        has seen yet are among them."""
        opened = self.open.keys() - self._log_files.held_in_place(self._now)
        return (opened | self.writer_died_holding() | self.maybe_cut_off()) - self.open_logs()

    def save_span(self, paths: Set[str], pause_s: float = 0.0) -> tuple[float, float] | None:
        """Return when the newest save among these uncommitted files was begun, at the earliest, and when it was last
        written. None if none of the files was seen to change.

        Files that were written at about the same time belong to one save; `pause_s` is the longest known pause in one.
        """
        changed = paths & self._uncommitted.paths() & self.changed_at.keys()
        newest_first = sorted(changed, key=lambda path: -self.changed_at[path])
        if not newest_first:
            return None
        begun, ended = self._uncommitted.begun_at(newest_first[0]), self.changed_at[newest_first[0]]
        for path in newest_first:
            if self.changed_at[path] >= begun - max(self._settle_s, pause_s):
                begun = min(begun, self._uncommitted.begun_at(path))
        return begun, ended

    def changed_lately(self) -> set[str]:
        since = self._now - self._settle_s
        return {path for path in self._files if self.changed_at[path] > since}

    def may_go_on(self, paths: Iterable[str], patience_s: float = 0.0) -> bool:
        """Return True if one of these files changed so recently that more files of the same save may follow.

        `patience_s` is how long to wait for them, where that is longer than usual.
        """
        since = self._now - max(self._patience_s, patience_s)
        return any(self.changed_at[path] > since for path in paths)

    def writer_died_holding(self) -> set[str]:
        """Return files whose writers died recently with the files open."""
        recent = {path for path, (at, _) in self._writer_died_holding.items() if self._now - at < WRITER_DIED_S}
        return recent & self._files.keys()

    @property
    def _now(self) -> float:
        return self.scanned_at if self.ended_at is None else self.ended_at

    def closed_before_signal(self, path: str) -> bool:
        """Return True if a living process had closed the file before the signal, and it is unchanged since."""
        state = self.pre_signal
        if state is None or path in state.open or path in self._writer_died_holding:
            return False
        return path in self._files and state.files.get(path) == self._files[path].signature

    def last_seen_open(self, path: str) -> bool:
        return path in self.open or path in self._writer_died_holding

    def maybe_cut_off(self) -> set[str]:
        """Return files that the ending may have cut off: one process of the training has died since the signal.

        These are files that were written shortly before the signal or after it.
        """
        state = self.pre_signal
        if state is None or state.members <= self.members:
            return set()
        begun = {path for path, file in self._files.items() if state.files.get(path) != file.signature}
        return (state.unsettled & self._files.keys()) | begun

    @property
    def rounds(self) -> Mapping[str, int]:
        """How often each file was begun anew since it was last committed, removed files included."""
        return self._uncommitted.rounds

    @property
    def since_removed_s(self) -> float:
        """How long before the last scan a file was seen to be removed."""
        return self.scanned_at - max(self.removed_at.values(), default=float("-inf"))

    def removed_lately(self, unit: str) -> bool:
        return self._now - self.removed_at.get(unit, float("-inf")) < self._settle_s

    def grew(self, path: str) -> bool:
        """Return True if the file was seen smaller than it is: it was written from its beginning, not over old data."""
        return path in self._files and self._uncommitted.was_smaller(path, self._files[path].size)
