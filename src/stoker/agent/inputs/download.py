"""Fetch the parts of an input that are missing: many at once, told as it goes on, and interrupted at any time.

Threads, each with one request at a time. Most inputs are many small objects, where what counts is how much is under way
at once; measured against obstore's own asynchronous calls, threads are as fast and need no second way to read a bucket.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from stoker.agent.inputs.cache import Kept, Part
from stoker.model.errors import NoCredentials, StoreUnavailable
from stoker.store.base import ObjectChanged
from stoker.store.safe_extraction import Extraction

THREADS = min(64, max(16, 2 * (os.cpu_count() or 1)))
# Between two lines in the job's log.
_TELL_EVERY_S = 5.0
_LOOK_EVERY_S = 0.05
_FLUSH_EVERY_S = 1.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# A machine may get its credentials a moment after its boot.
_CREDENTIALS_S = 60.0
# What a request costs beside its bytes, for guessing how long the rest takes.
_REQUEST_BYTES = 64 << 10


class Fetch:
    """One fetch of one input. Not reusable. `say` takes a line for the job's log."""

    def __init__(
        self,
        kept: Kept,
        parts: list[Part],
        say: Callable[[str], None],
    ) -> None:
        self._kept = kept
        self._bucket = kept.listing.bucket
        self._say = say
        self._waiting = deque(parts)
        self._left = len(parts)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._large: dict[str, _LargeFile] = {}
        for part in parts:
            if not part.whole:
                self._large.setdefault(part.meta.key, _LargeFile(part)).left += 1
        self._progress = _Progress(kept, parts)
        self._outage: StoreUnavailable | None = None
        self._told_outage = False
        self._lacking_since_s: float | None = None

    def run(self, check: Callable[[], None]) -> None:
        """Until every part is there. `check` is called all the time, and may raise.

        Raises ObjectChanged when an object is not any more what was listed, OSError for this machine's disk, and what
        a store raises when it refuses. One that does not answer is asked again until it does.
        """
        if not self._left:
            return
        # What is there may have been changed by a training that used it: no link in it is followed.
        with Extraction(self._kept.files, follow=False) as extraction:
            self._run(extraction, check)

    def _run(self, extraction: Extraction, check: Callable[[], None]) -> None:
        count = min(THREADS, self._left)
        workers = [
            threading.Thread(target=self._work, args=(extraction,), daemon=True, name="input") for _ in range(count)
        ]
        for worker in workers:
            worker.start()
        told_s = flushed_s = time.monotonic()
        try:
            while not self._over.wait(_LOOK_EVERY_S):
                check()
                now_s = time.monotonic()
                if now_s - flushed_s >= _FLUSH_EVERY_S:
                    self._kept.flush()
                    flushed_s = now_s
                self._tell_outage()
                if now_s - told_s >= _TELL_EVERY_S:
                    self._say(self._progress.text())
                    told_s = now_s
        finally:
            self._stop.set()
        # Those that are still at work write to files that somebody may begin to fill again.
        for worker in workers:
            while worker.is_alive():
                worker.join(_LOOK_EVERY_S)
                check()
        for file in self._large.values():
            file.close()
        extraction.close()
        self._kept.flush()
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
                self._bring(part, extraction)
                pause_s = _FIRST_PAUSE_S
                self._done(part)
            except ObjectChanged as error:
                self._fail(error)
            except StoreUnavailable as error:
                with self._lock:
                    self._waiting.appendleft(part)
                self._take_outage(error)
                self._stop.wait(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that runs this
                self._fail(error)

    def _bring(self, part: Part, extraction: Extraction) -> None:
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
        """Whether an empty object's name ends with a slash, which no listing tells: it is there, and not to be had.

        That is how some programs make folders.
        """
        return self._bucket.head(key) is None and next(iter(self._bucket.list(f"{key}/")), None) is not None

    def _done(self, part: Part) -> None:
        self._kept.note(part)
        with self._lock:
            self._left -= 1
            self._outage = None
            self._lacking_since_s = None
            file_done = part.whole or self._large[part.meta.key].take_part()
            self._progress.add(part, file_done)
            if not self._left:
                self._over.set()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()
        self._over.set()

    # ── A store that does not answer ──────────────────────────────────────────────────────────────────────────────────

    def _take_outage(self, error: StoreUnavailable) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._outage = error
            if not isinstance(error, NoCredentials):
                self._lacking_since_s = None
                return
            self._lacking_since_s = self._lacking_since_s or now_s
            given_up = now_s - self._lacking_since_s > _CREDENTIALS_S
        if given_up:
            self._fail(error)

    def _tell_outage(self) -> None:
        outage = self._outage
        if outage is None:
            self._told_outage = False
        elif not self._told_outage:
            self._told_outage = True
            self._say(f"{outage}; trying again")


class _LargeFile:
    """A file that comes in parts, several at once."""

    def __init__(self, part: Part) -> None:
        self._path = part.meta.key
        self._size = part.meta.size
        self._lock = threading.Lock()
        self._handle: int | None = None
        self.left = 0

    def write(self, part: Part, data: memoryview, extraction: Extraction) -> None:
        with self._lock:
            if self._handle is None:
                self._handle = self._open(extraction)
        _write(self._handle, data, part.begin)

    def take_part(self) -> bool:
        """Called once for each part that was written. Whether it was the last."""
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
            # What is there of it came in an earlier attempt.
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
    """How much is there, and how long the rest may take."""

    def __init__(self, kept: Kept, parts: list[Part]) -> None:
        self._files = len(kept.listing.files)
        self._bytes = kept.listing.size
        self._files_left = len({part.meta.key for part in parts})
        self._bytes_left = self._to_fetch = sum(part.end - part.begin for part in parts)
        self._requests_left = self._requests = len(parts)
        self._began_s = time.monotonic()

    def add(self, part: Part, file_done: bool) -> None:
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
    """For people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def time_text(seconds: float) -> str:
    """For people: 42 s, 3 min, 1.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _write(handle: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
