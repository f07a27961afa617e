"""Fetch the missing parts of an input: many at once, with progress in the log, and interruptible at any time.

It uses threads with one request each. Most inputs are many small objects, where the number of concurrent requests
matters; measured against obstore's asynchronous calls, threads are as fast and need no second way to read a bucket.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from stoker.agent.inputs.cache import CacheEntry, ObjectPart
from stoker.model.errors import NoCredentials, StoreUnavailable
from stoker.store.base import ObjectChanged
from stoker.store.safe_extraction import Extraction

THREADS = min(64, max(16, 2 * (os.cpu_count() or 1)))
# Interval of progress lines in the job's log.
_PROGRESS_EVERY_S = 5.0
_POLL_S = 0.05
_FLUSH_EVERY_S = 1.0
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
# A machine may get its credentials some time after its boot.
_CREDENTIALS_S = 60.0
# The overhead of a request in bytes, to estimate the remaining time.
_REQUEST_BYTES = 64 << 10


class InputDownload:
    """One download of one input. Not reusable. `say` writes a line to the job's log."""

    def __init__(
        self,
        entry: CacheEntry,
        parts: list[ObjectPart],
        say: Callable[[str], None],
    ) -> None:
        self._entry = entry
        self._bucket = entry.listing.bucket
        self._say = say
        self._waiting = deque(parts)
        self._left = len(parts)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._large: dict[str, _LargeFile] = {}
        for part in parts:
            if not part.whole:
                self._large.setdefault(part.meta.key, _LargeFile(part)).left += 1
        self._progress = _Progress(entry, parts)
        self._outage: StoreUnavailable | None = None
        self._outage_reported = False
        self._no_credentials_since_s: float | None = None

    def run(self, check: Callable[[], None]) -> None:
        """Fetch every part. `check` is called continuously, and may raise.

        Raises ObjectChanged if an object is no longer the one that was listed, OSError for this machine's disk, and the
        store's error if it refuses. A store that does not answer is retried until it does.
        """
        if not self._left:
            return
        # A training may have modified existing files, so no link is followed.
        with Extraction(self._entry.files, follow=False) as extraction:
            self._run(extraction, check)

    def _run(self, extraction: Extraction, check: Callable[[], None]) -> None:
        count = min(THREADS, self._left)
        workers = [
            threading.Thread(target=self._work, args=(extraction,), daemon=True, name="input") for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        reported_s = flushed_s = time.monotonic()
        try:
            while not self._finished.wait(_POLL_S):
                check()
                now_s = time.monotonic()
                if now_s - flushed_s >= _FLUSH_EVERY_S:
                    self._entry.flush()
                    flushed_s = now_s
                self._report_outage()
                if now_s - reported_s >= _PROGRESS_EVERY_S:
                    self._say(self._progress.text())
                    reported_s = now_s
        finally:
            self._stop.set()
        # Workers that are still running write to files that another process may begin to fill.
        for worker in workers:
            while worker.is_alive():
                worker.join(_POLL_S)
                check()
        for file in self._large.values():
            file.close()
        extraction.close()
        self._entry.flush()
        if self._error is not None:
            raise self._error

    def _work(self, extraction: Extraction) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            with self._lock:
                if not self._waiting:
                    return
                part = self._waiting.popleft()
            try:
                self._fetch_part(part, extraction)
                pause_s = _FIRST_PAUSE_S
                self._done(part)
            except ObjectChanged as error:
                self._fail(error)
            except StoreUnavailable as error:
                with self._lock:
                    self._waiting.appendleft(part)
                self._record_outage(error)
                self._stop.wait(pause_s)
                pause_s = min(_MAX_PAUSE_S, pause_s * 2)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that runs this
                self._fail(error)

    def _fetch_part(self, part: ObjectPart, extraction: Extraction) -> None:
        try:
            data = self._bucket.get_part(part.meta, part.begin, part.end)
        except ObjectChanged:
            if part.meta.size or not self._is_folder(part.meta.key):
                raise
            extraction.make_folder(part.meta.key)
            return
        if part.whole:
            handle = extraction.create_anew(part.meta.key, 0o444)
            try:
                _write(handle, data, 0)
            finally:
                os.close(handle)
        else:
            self._large[part.meta.key].write(part, data, extraction)

    def _is_folder(self, key: str) -> bool:
        """Tell if an empty object stands for a folder, which some programs create this way.

        Its name ends with a slash, which listings drop, so that it cannot be fetched.
        """
        return self._bucket.head(key) is None and next(iter(self._bucket.list(f"{key}/")), None) is not None

    def _done(self, part: ObjectPart) -> None:
        self._entry.record(part)
        with self._lock:
            self._left -= 1
            self._outage = None
            self._no_credentials_since_s = None
            file_done = part.whole or self._large[part.meta.key].part_written()
            self._progress.add(part, file_done)
            if not self._left:
                self._finished.set()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()
        self._finished.set()

    # ── A store that does not answer ──────────────────────────────────────────────────────────────────────────────────

    def _record_outage(self, error: StoreUnavailable) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._outage = error
            if not isinstance(error, NoCredentials):
                self._no_credentials_since_s = None
                return
            self._no_credentials_since_s = self._no_credentials_since_s or now_s
            given_up = now_s - self._no_credentials_since_s > _CREDENTIALS_S
        if given_up:
            self._fail(error)

    def _report_outage(self) -> None:
        outage = self._outage
        if outage is None:
            self._outage_reported = False
        elif not self._outage_reported:
            self._outage_reported = True
            self._say(f"{outage}; trying again")


class _LargeFile:
    """A file that is fetched in parts, several at once."""

    def __init__(self, part: ObjectPart) -> None:
        self._path = part.meta.key
        self._size = part.meta.size
        self._lock = threading.Lock()
        self._handle: int | None = None
        self.left = 0

    def write(self, part: ObjectPart, data: memoryview, extraction: Extraction) -> None:
        with self._lock:
            if self._handle is None:
                self._handle = self._open(extraction)
        _write(self._handle, data, part.begin)

    def part_written(self) -> bool:
        """Count a part that was written. Returns True for the last one."""
        with self._lock:
            self.left -= 1
            if self.left:
                return False
            assert self._handle is not None
            os.fchmod(self._handle, 0o444)
        self.close()
        return True

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _open(self, extraction: Extraction) -> int:
        try:
            # An existing file of the right size holds parts from an earlier attempt.
            found = extraction.open_file(self._path)
            if os.fstat(found).st_size == self._size:
                return found
            os.close(found)
        except OSError:
            pass
        made = extraction.create_anew(self._path, 0o644)
        os.truncate(made, self._size)
        return made


class _Progress:
    """The fetched amount and the estimated remaining time."""

    def __init__(self, entry: CacheEntry, parts: list[ObjectPart]) -> None:
        self._files = len(entry.listing.files)
        self._bytes = entry.listing.size
        self._files_left = len({part.meta.key for part in parts})
        self._bytes_left = self._to_fetch = sum(part.end - part.begin for part in parts)
        self._requests_left = self._requests = len(parts)
        self._began_s = time.monotonic()

    def add(self, part: ObjectPart, file_done: bool) -> None:
        self._bytes_left -= part.end - part.begin
        self._requests_left -= 1
        self._files_left -= file_done

    def text(self) -> str:
        took_s = max(0.001, time.monotonic() - self._began_s)
        rate = (self._to_fetch - self._bytes_left) / took_s
        all_work = self._to_fetch + self._requests * _REQUEST_BYTES
        left_work = self._bytes_left + self._requests_left * _REQUEST_BYTES
        done = f"{size_text(self._bytes - self._bytes_left)} of {size_text(self._bytes)}"
        files = f"{self._files - self._files_left} of {self._files} files"
        if left_work == all_work:
            return f"{done}, {files}"
        left_s = took_s * left_work / (all_work - left_work)
        return f"{done}, {files}, {size_text(rate)}/s, {time_text(left_s)} left"


def size_text(size: float) -> str:
    """Format a size for the user: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """Format a duration for the user: 42 s, 3 min, 1.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _write(handle: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
