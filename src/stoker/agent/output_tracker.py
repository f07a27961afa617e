"""Track which outputs of a node differ from those in the store, and which are ready to be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature
from stoker.agent.output_files import LocalOutput, SkippedFile

# The first pause before a file that could not be read is tried again; it doubles with each failure.
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


@dataclass(frozen=True)
class ReadFailure:
    """A file that could not be read `count` times in a row: why, since when, and when to try again."""

    why: str
    since_s: float
    count: int
    retry_at: float


class OutputTracker:
    """The outputs of the last scan, by path, and what became of each.

    A file is ready when it has not changed for `settle_s`. A small file that never rests, such as a log, is ready every
    `busy_s` all the same.
    """

    def __init__(self, settle_s: float, busy_s: float) -> None:
        self.settle_s = settle_s
        self._busy_s = busy_s
        self.files: Files = {}
        self.sources: dict[str, Path] = {}
        self.stored: dict[str, Signature] = {}
        # The versions of files that the store cannot take, and why; empty if nothing is missing without them.
        self._refused: dict[str, tuple[Signature, str]] = {}
        self._failures: dict[str, ReadFailure] = {}
        self._changed_at: dict[str, float] = {}
        self._dirty_since: dict[str, float] = {}

    def update(self, found: Mapping[str, LocalOutput], now_s: float) -> None:
        """Take the result of a scan. Files that are gone from the folder are forgotten; the store keeps them."""
        before, self.files = self.files, {path: output.file for path, output in found.items()}
        self.sources = {path: output.source for path, output in found.items()}
        for path, file in self.files.items():
            known = before.get(path)
            if known is None or known.signature != file.signature:
                self._changed_at[path] = now_s
                self._dirty_since.setdefault(path, now_s)
        for path in before.keys() - self.files.keys():
            self._changed_at.pop(path, None)
            self._dirty_since.pop(path, None)
            self.stored.pop(path, None)
            self._failures.pop(path, None)

    def dirty(self) -> list[File]:
        """The files whose present version is not in the store, except for those that it cannot take."""
        return [
            file
            for path, file in self.files.items()
            if self.stored.get(path) != file.signature and self._why_refused(file) is None
        ]

    def ready(self, now_s: float, whole_bytes: int) -> list[File]:
        """The dirty files to send now: those that have settled, and files up to `whole_bytes` that never rest."""
        return [
            file
            for file in self.dirty()
            if now_s - self._changed_at[file.path] >= self.settle_s
            or (self.is_overdue(file.path, now_s) and file.size <= whole_bytes)
        ]

    def is_overdue(self, path: str, now_s: float) -> bool:
        """Return whether a file has waited for so long that it is sent although it still changes."""
        return now_s - self._dirty_since.get(path, now_s) >= self._busy_s

    def mark_sent(self, file: File, *, unchanged: bool) -> None:
        """Record that a version of the file is in the store. `unchanged`: it is the version of the last scan."""
        if unchanged:
            self.stored[file.path] = file.signature
        self._dirty_since.pop(file.path, None)
        self._failures.pop(file.path, None)

    def fail(self, path: str, why: str, now_s: float) -> ReadFailure:
        """Record that a file could not be read. It is tried again after a pause, and holds up no other file."""
        before = self._failures.get(path)
        since_s, count = (now_s, 0) if before is None else (before.since_s, before.count)
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(count, 10), _MAX_PAUSE_S)
        found = self._failures[path] = ReadFailure(why, since_s, count + 1, now_s + pause_s)
        return found

    def may_read(self, path: str, now_s: float) -> bool:
        """Return whether no pause after a failure holds back this file."""
        failure = self._failures.get(path)
        return failure is None or now_s >= failure.retry_at

    def failures(self) -> list[tuple[str, ReadFailure]]:
        """The files that could not be read the last time, by path."""
        return sorted(self._failures.items())

    def forget_failures(self) -> None:
        """Try every file at once again."""
        self._failures.clear()

    def refuse(self, file: File, why: str) -> None:
        """Never send this version of the file. An empty `why` reports nothing to the user.

        A later one may be sent: a script may remove a file before its turn, and write it anew.
        """
        self._refused[file.path] = (file.signature, why)
        self._failures.pop(file.path, None)

    def refused(self) -> list[SkippedFile]:
        """The files that the store cannot take, with the reasons."""
        return [
            SkippedFile(path, file.size, why) for path, file in self.files.items() if (why := self._why_refused(file))
        ]

    def _why_refused(self, file: File) -> str | None:
        signature, why = self._refused.get(file.path, (None, ""))
        return why if signature == file.signature else None
