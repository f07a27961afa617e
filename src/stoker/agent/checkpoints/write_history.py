"""What was seen of each file of a checkpoint folder: changes, open handles, writers that died.

Two moments matter most: just before the training is told to end, and its end. What was quiet at the first and looks
the same at the second was not touched by the ending.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stoker.agent.checkpoints.folder_snapshot import Files, Signature, unit_of
from stoker.processes import OpenFile, expecting, has_survivor

# A file held open for so long that has hardly grown is a log: any beginning of it is whole.
STREAM_S = 60.0
STREAM_BYTES = 64 * 1024 * 1024
# A file of such a name that is held open is a log from the start.
_LOG_NAMES = (".log", ".jsonl")
_LOG_PARTS = ("tfevents",)
# A file that was open when its writer died rests so long before it counts as whole: processes that save and end, such
# as `cp`, do the same. By then a training that lost one of its processes has ended: torchrun gives the others 30 s.
DIED_OPEN_S = 60.0


@dataclass
class Mark:
    """The folder just before the training was told to end."""

    at: float
    files: Mapping[str, Signature]
    # Changed shortly before, or open; and the units that these and removed files lie in.
    hot: set[str]
    hot_units: set[str]
    open: set[str]
    members: frozenset[int]
    # The processes that live on after SIGTERM, and whether any of those that write is among them.
    expecting: frozenset[int]
    survives: bool
    # Files that were open then, as they looked when they were first seen closed.
    closed_as: dict[str, Signature] = field(default_factory=dict)
    # Writers of files that were seen open since.
    writers: dict[str, frozenset[int]] = field(default_factory=dict)

    def begun_since(self, path: str, now: Signature) -> bool:
        """Whether the file was begun anew after the training was told, and so by a process that had lived on."""
        if path in self.open:
            return path in self.closed_as and self.closed_as[path] != now
        return self.files.get(path) != now

    def by_survivor(self, path: str) -> bool:
        """Whether its writer is one that lives on after SIGTERM, or was started since."""
        writers = self.writers.get(path)
        if not writers:
            return self.survives
        return any(pid in self.expecting or pid not in self.members for pid in writers)


class WriteHistory:
    """Observations of one folder, by relative path. Not thread-safe: FolderWatch holds a lock around it."""

    def __init__(self, settle_s: float, patience_s: float) -> None:
        self._settle_s = settle_s
        self._patience_s = patience_s
        self.looked_at = float("-inf")
        # When the training was seen to have ended: nothing settles after that.
        self.ended_at: float | None = None
        self.changed_at: dict[str, float] = {}
        self.removed_at: dict[str, float] = {}
        self.open: dict[str, OpenFile] = {}
        self.members: frozenset[int] = frozenset()
        self._files: Files = {}
        # When a file was first seen open, never closed since, and how large it was; whether all handles append.
        self._opened: dict[str, tuple[float, int, int]] = {}
        self._appended: set[str] = set()
        self._died_open: dict[str, tuple[float, Signature]] = {}
        # The smallest that a file was seen since it was last committed.
        self._smallest: dict[str, int] = {}
        # How often each file was begun anew since it was last committed, also of files that were removed.
        self.rounds: dict[str, int] = {}
        # Processes that were seen to write here.
        self._writers: set[int] = set()
        self.mark: Mark | None = None

    # ── Observing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def note_files(self, files: Files, now: float) -> None:
        """The folder was scanned."""
        before, self._files, self.looked_at = self._files, files, now
        for path, file in files.items():
            known = before.get(path)
            if known is None or known.signature != file.signature:
                if known is None or self._is_begun_anew(path, known.signature, file.signature, now):
                    self.rounds[path] = self.rounds.get(path, 0) + 1
                self.changed_at[path] = now
                self._note_change(path, file.signature)
        for path in before.keys() - files.keys():
            for kept in (self.changed_at, self._smallest, self._died_open, self._opened):
                kept.pop(path, None)
            self.removed_at[unit_of(path)] = now

    def _is_begun_anew(self, path: str, before: Signature, seen: Signature, now: float) -> bool:
        """Whether a write begins the file again, rather than going on with it."""
        calm = now - self.changed_at.get(path, now) >= self._settle_s
        return before.inode != seen.inode or seen.size < before.size or (seen.size == before.size and calm)

    def _note_change(self, path: str, signature: Signature) -> None:
        self._smallest[path] = min(self._smallest.get(path, signature.size), signature.size)
        died = self._died_open.get(path)
        if died is not None and died[1] != signature:
            del self._died_open[path]

    def note_open(
        self, found: Mapping[str, OpenFile], members: frozenset[int], signature: Callable[[str], Signature | None]
    ) -> None:
        """Which files are open for writing now. `signature` gives how a file looks at this moment."""
        for path, was in self.open.items():
            if path in found:
                continue
            seen = signature(path)
            if seen is None:
                continue
            if self.mark is not None and path in self.mark.open:
                self.mark.closed_as.setdefault(path, seen)
            if not was.writers & members and path not in self._logs():
                self._died_open[path] = (self.looked_at, seen)
        for path, file in found.items():
            self._died_open.pop(path, None)
            self._writers |= file.writers
            seen = signature(path)
            if seen is not None:
                self._smallest[path] = min(self._smallest.get(path, seen.size), seen.size)
                self._note_stream(path, file, seen)
            if self.mark is not None:
                self.mark.writers[path] = self.mark.writers.get(path, frozenset()) | file.writers
        self._opened = {path: since for path, since in self._opened.items() if path in found}
        self._appended = {path for path in self._appended if path in self._files or path in found}
        self.open, self.members = dict(found), members

    def _note_stream(self, path: str, file: OpenFile, seen: Signature) -> None:
        since, size, inode = self._opened.get(path, (self.looked_at, seen.size, seen.inode))
        if inode != seen.inode or seen.size < size:
            since, size, inode = self.looked_at, seen.size, seen.inode
        self._opened[path] = (since, size, inode)
        name = path.rpartition("/")[2].lower()
        if file.appending or name.endswith(_LOG_NAMES) or any(part in name for part in _LOG_PARTS):
            self._appended.add(path)

    def set_mark(self) -> None:
        """The training is about to be told to end; everything was looked at just now."""
        since = self.looked_at - self._settle_s
        logs = self._logs()
        hot = self.hot(logs)
        units = {unit_of(path) for path in hot} | {unit for unit, at in self.removed_at.items() if at > since}
        expect = expecting(self.members, signal.SIGTERM)
        writers = self._writers & self.members
        self.mark = Mark(
            at=self.looked_at,
            files={path: file.signature for path, file in self._files.items()},
            hot=hot,
            hot_units=units,
            open={path for path in self.open if path not in logs},
            members=self.members,
            expecting=expect,
            survives=bool(writers & expect) if writers else has_survivor(self.members, expect),
        )

    def end(self) -> None:
        """The training has ended, and everything was looked at just now. Only the first call counts."""
        if self.ended_at is None:
            self.ended_at = self.looked_at

    def committed(self, paths: Collection[str]) -> None:
        for path in paths:
            self._smallest.pop(path, None)
        self.rounds = {path: count for path, count in self.rounds.items() if path in self._files and path not in paths}

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def streams(self) -> set[str]:
        """Files held open that are logs."""
        return {
            path
            for path, (since, size, _) in self._opened.items()
            if path in self._files
            and (
                path in self._appended
                or (self.looked_at - since >= STREAM_S and self._files[path].signature.size - size < STREAM_BYTES)
            )
        }

    def _logs(self) -> set[str]:
        return self.streams() | self._appended

    def logs(self) -> set[str]:
        """Files that are or were logs: they are whole wherever they end."""
        return self._logs() & self._files.keys()

    def hot(self, streams: Collection[str]) -> set[str]:
        """Files that are open or changed a moment ago, or whose writer died with them open."""
        open_now = self.open.keys() & self._files.keys()
        return (open_now | self.changed_lately() | self.died_open()) - set(streams)

    def changed_lately(self) -> set[str]:
        since = self._now - self._settle_s
        return {path for path in self._files if self.changed_at[path] > since}

    def may_go_on(self, paths: Iterable[str]) -> bool:
        """Whether one of these changed so short ago that more files of the same save may follow."""
        return any(self.changed_at[path] > self._now - self._patience_s for path in paths)

    def died_open(self) -> set[str]:
        """Files of the folder whose writers died with them open, not long ago."""
        recent = {path for path, (at, _) in self._died_open.items() if self._now - at < DIED_OPEN_S}
        return recent & self._files.keys()

    @property
    def _now(self) -> float:
        return self.looked_at if self.ended_at is None else self.ended_at

    def closed_before_told(self, path: str) -> bool:
        """Whether it was closed, by a process that was alive, when the training was told, and is as it was then."""
        mark = self.mark
        if mark is None or path in mark.open or path in self._died_open:
            return False
        return path in self._files and mark.files.get(path) == self._files[path].signature

    def last_seen_open(self, path: str) -> bool:
        return path in self.open or path in self._died_open

    def shaken(self) -> set[str]:
        """What the ending may have cut off: written shortly before the training was told or since, and one of its
        processes has died."""
        mark = self.mark
        if mark is None or mark.members <= self.members:
            return set()
        begun = {path for path, file in self._files.items() if mark.files.get(path) != file.signature}
        return (mark.hot & self._files.keys()) | begun

    @property
    def since_removed_s(self) -> float:
        """How long ago a file was seen to be gone, at the last look."""
        return self.looked_at - max(self.removed_at.values(), default=float("-inf"))

    def removed_lately(self, unit: str) -> bool:
        return self._now - self.removed_at.get(unit, float("-inf")) < self._settle_s

    def grew(self, path: str) -> bool:
        """Whether it was seen smaller than it is: it was written from its beginning, not over what it held."""
        return path in self._files and self._smallest.get(path, 1 << 62) < self._files[path].signature.size
