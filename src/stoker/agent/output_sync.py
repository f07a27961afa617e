"""Bring outputs to the store as plain files, while the training runs and once more at its end.

Each file is put as a whole when it has not changed for a moment. What is removed from the folder stays in the store.
`output_versions` names what is written: a version that lands late never counts.
`output_files` decides which files are outputs; those that the training left beside its code are only put at the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, hold, signature_of
from stoker.agent.output_files import MOST_NAMED, LeftOut, Output, OutputFiles, Source
from stoker.agent.output_versions import OutputWriter
from stoker.model.errors import StoreError
from stoker.model.node_facts import KeptOutputs, LeftOutput
from stoker.store.base import FileChanged, Store, can_be_key

log = logging.getLogger(__name__)

SETTLE_S = 1.0
# A file that never stops changing, such as a log, is put this often all the same.
BUSY_S = 30.0
NEAR_LOOK_S = 1.0
FAR_LOOK_S = 5.0
LOOK_SHARE = 0.01
MAX_LOOK_S = 60.0
# Files up to this size pass through memory. Of larger ones that are rewritten, plain names follow at the end only.
WHOLE_BYTES = 8 * 1024 * 1024
# What S3 allows for a key, less what comes before the path.
_PATH_BYTES = 900
_MOST_STUMBLES = 5
_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
_POLL_S = 0.2
# How often a deadline that moved is looked at.
_JOIN_S = 0.1


@dataclass(frozen=True)
class OutputStatus:
    """How far the outputs are."""

    files: int = 0
    unsynced_bytes: int = 0
    bytes_moved: int = 0
    error: str | None = None


class OutputSync:
    """One node's outputs. Rank 0's lie directly under the claim, the others' in `rank-<r>/`.

    `nodes` is how many there are: no node replaces the files of another (see `OutputWriter`).
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
        self._store = store
        self._writer = OutputWriter(store, job, claim, rank, boot, nodes=nodes)
        self._outputs = OutputFiles([Source(outputs, whole=True)]) if isinstance(outputs, Path) else outputs
        self._settle_s = settle_s
        self._busy_s = busy_s
        self._monotonic = monotonic
        self._files: Files = {}
        self._sources: dict[str, Path] = {}
        # Of the files beside the code, those that are not kept: known at the end.
        self._left_out: list[LeftOut] = []
        self._changed_at: dict[str, float] = {}
        self._dirty_since: dict[str, float] = {}
        self._stored: dict[str, Signature] = {}
        self._refused: dict[str, str] = {}
        self._bytes_moved = 0
        self._failures = 0
        self._error: str | None = None
        self._look_at = self._retry_at = float("-inf")
        self._wake = threading.Event()
        self._until: float | None = None
        self._held = self._closing = False
        # At the end: everything is in the store, and plain names are to follow.
        self._whole = self._publishes = False
        self._thread: threading.Thread | None = None
        self._status = OutputStatus()

    def start(self) -> None:
        """Begin to sync in the background."""
        self._thread = threading.Thread(target=self._run, name="output-sync", daemon=True)
        self._thread.start()

    def status(self) -> OutputStatus:
        """As of the last round. Safe to call from any thread."""
        return self._status

    def hold(self) -> None:
        """Send nothing more until `final`: what the line carries now is for the checkpoints."""
        self._held = True

    def close(self) -> None:
        """Stop without a last round."""
        self._closing = True
        self._wake.set()

    def final(self, deadline_s: float, until_s: Callable[[], float] | None = None, *, publish: bool = False) -> bool:
        """Put everything that is there, after the training is dead. False: not all of it within the time.

        A call to the store that hangs is left behind on its thread. `until_s` gives an end (by this object's clock)
        that may turn up meanwhile and be sooner. With `publish`, plain names are brought up to date where there is
        time: readers of Stoker do not need it. Call it once.
        """
        self._publishes = publish
        self._until = self._monotonic() + deadline_s
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="output-sync", daemon=True)
            self._thread.start()
        while self._thread.is_alive():
            if until_s is not None:
                self._until = min(self._until, until_s())
            left_s = self._until - self._monotonic()
            if left_s <= 0:
                break
            self._thread.join(timeout=min(left_s, _JOIN_S))
        return (self._whole or not self._thread.is_alive()) and not self._dirty()

    def keep_saves(self, folder: Path, files: Files) -> None:
        """Keep these files of the checkpoint folder, too. Call it before `final`."""
        self._outputs.keep_saves(folder, files)

    def report(self) -> KeptOutputs:
        """What of this node is in the store, and what is not, and why. For after `final`."""
        missing = [LeftOut(file.path, file.size, self._error or "there was no time left") for file in self._dirty()]
        refused = [LeftOut(path, self._size(path), why) for path, why in self._refused.items() if why]
        left_out = sorted([*self._left_out, *missing, *refused], key=lambda one: (-one.size, one.path))
        return KeptOutputs(
            files=len(self._stored),
            size=sum(signature.size for signature in self._stored.values()),
            left_out=len(left_out),
            left_out_size=sum(one.size for one in left_out),
            named=tuple(LeftOutput(one.path, one.size, one.why) for one in left_out[:MOST_NAMED]),
        )

    def _size(self, path: str) -> int:
        return self._files[path].size if path in self._files else 0

    def tick(self, *, final: bool = False) -> None:
        """One round: look, and put what has settled, or everything at the end."""
        now = self._monotonic()
        if final or now >= self._look_at:
            self._look(final=final)
        elif not self._status.unsynced_bytes and self._error is None:
            return
        if now >= self._retry_at:
            try:
                for file in self._ready(final=final):
                    if (self._held or self._until is not None) and not final:
                        break
                    self._put(file)
                    if self._until is not None and self._monotonic() >= self._until:
                        break
                self._error, self._failures = None, 0
            except (StoreError, OSError) as error:
                self._note_failure(error)
        self._refresh()

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closing and self._until is None:
            try:
                self.tick()
            except Exception as error:
                # Whatever it is, one bad round must not end the syncing.
                log.exception("output sync")
                self._note_failure(error)
            self._wake.wait(_POLL_S)
        if self._until is not None:
            self._finish()

    def _finish(self) -> None:
        assert self._until is not None
        self._retry_at, self._failures = float("-inf"), 0
        stumbles = 0
        while self._monotonic() < self._until and not self._closing:
            try:
                self.tick(final=True)
            except Exception as error:
                # Nothing may keep the agent from writing how the training ended.
                log.exception("last output sync")
                self._note_failure(error)
                stumbles += 1
                if stumbles == _MOST_STUMBLES:
                    # No fault of the store's, which would pass: a machine is not to be paid for until the deadline.
                    self._left_out.append(LeftOut(".", 0, f"the rest cannot be kept: {self._error}"))
                    return
            if self._error is None and not self._dirty():
                self._whole = True
                self._publish()
                return
            time.sleep(min(_POLL_S, max(0.0, self._until - self._monotonic())))

    def _publish(self) -> None:
        """Bring the plain names of large files up to date. Best effort: pulls do not need it."""
        for path in sorted(self._writer.behind & self._stored.keys()) if self._publishes else ():
            if self._closing or (self._until is not None and self._monotonic() >= self._until):
                return
            source, file = self._sources[path], self._files[path]
            try:
                with nullcontext(source) if file.link is not None else hold(source, file, exact=False) as held:
                    self._writer.publish(path, held)
            except (StoreError, OSError) as error:
                log.warning("%s has an older version under its plain name: %s", path, error)

    def _look(self, *, final: bool) -> None:
        began, now = time.thread_time(), self._monotonic()
        found: dict[str, Output] = self._outputs.declared()
        if final:
            beside, left_out = self._outputs.beside(found)
            self._left_out = [*self._outputs.unkept(found), *left_out]
            # Declared ones first: there may not be time for everything.
            found = {**found, **beside}
        before, self._files = self._files, {path: output.file for path, output in found.items()}
        self._sources = {path: output.source for path, output in found.items()}
        for path, file in self._files.items():
            known = before.get(path)
            if known is None or known.signature != file.signature:
                self._changed_at[path] = now
                self._dirty_since.setdefault(path, now)
        for path in before.keys() - self._files.keys():
            for memory in (self._changed_at, self._dirty_since, self._stored):
                memory.pop(path, None)
        cost_s = (time.thread_time() - began) / LOOK_SHARE
        least_s = NEAR_LOOK_S if self._store.near else FAR_LOOK_S
        self._look_at = now + min(max(min(least_s, self._settle_s), cost_s), MAX_LOOK_S)

    def _dirty(self) -> list[File]:
        return [
            file
            for path, file in self._files.items()
            if self._stored.get(path) != file.signature and path not in self._refused
        ]

    def _ready(self, *, final: bool) -> list[File]:
        now = self._monotonic()
        return [
            file
            for file in self._dirty()
            if final
            or now - self._changed_at[file.path] >= self._settle_s
            or (now - self._dirty_since.get(file.path, now) >= self._busy_s and file.size <= WHOLE_BYTES)
        ]

    def _put(self, file: File) -> None:
        source = self._sources[file.path]
        if not can_be_key(self._writer.plain_key(file.path)) or len(file.path.encode()) > _PATH_BYTES:
            log.warning("%s is not synced: its name cannot be kept in the store", file.path)
            self._refused[file.path] = "its name cannot be kept in the store"
            return
        try:
            if not source.is_file():
                # A link to a folder: what is in it is found where it is.
                self._refused[file.path] = ""
                return
            with nullcontext(source) if file.link is not None else hold(source, file, exact=False) as held:
                stored = self._put_bytes(file, source, held)
            if not stored:
                return
        except (FileNotFoundError, FileChanged):
            return
        except PermissionError as error:
            # One file that nobody may read must not hold up the others.
            self._refused[file.path] = f"cannot be read ({error.strerror})"
            return
        if signature_of(source, file) == file.signature:
            self._stored[file.path] = file.signature
        self._dirty_since.pop(file.path, None)

    def _put_bytes(self, file: File, source: Path, held: Path) -> bool:
        """Read from `held`, and see at `source` whether it changed. False: once more later."""
        with held.open("rb") as reader:
            data = reader.read(WHOLE_BYTES + 1)
        if len(data) <= WHOLE_BYTES:
            # Caught in the middle of a write: once more later. But what never rests is a log, whole at any length.
            waited_s = self._monotonic() - self._dirty_since.get(file.path, self._monotonic())
            patient = self._until is None and waited_s < self._busy_s
            if patient and signature_of(source, file) != file.signature:
                return False
            self._bytes_moved += self._writer.write(file.path, data)
            return True
        # Too large for memory: in parts.
        del data
        try:
            self._bytes_moved += self._writer.write_file(file.path, held)
        except FileChanged:
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        if self._failures == 0:
            log.warning("outputs cannot be brought to the store now: %s", error)
        self._error = f"{type(error).__name__}: {error}"
        self._retry_at = self._monotonic() + min(_BACKOFF_S * 2**self._failures, _MAX_BACKOFF_S)
        self._failures = min(self._failures + 1, 10)

    def _refresh(self) -> None:
        self._status = OutputStatus(
            files=len(self._files),
            unsynced_bytes=sum(file.size for file in self._dirty()),
            bytes_moved=self._bytes_moved,
            error=self._error,
        )
