"""Bring files to the store as blobs, each once.

The digest is of the bytes sent, and counts only if the file's signature was the same before and after. A file whose
signature is known is not even read again, unless it could have been written since within one tick of the clock that
files are stamped with (as git treats what is "racily clean").
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker import layout
from stoker.agent.snapshot import File, Signature, signature_of
from stoker.model import BlobRef
from stoker.parallel import run_all
from stoker.store import FileChanged, Store

# The coarsest clock of any filesystem in use has steps of two seconds.
RACY_NS = 2_000_000_000
_MEASURABLE_S = 0.05


class Unstable(Exception):
    """A file changed while it was read: try again later."""


class Abandoned(Exception):
    """The caller wants to do something else first."""


@dataclass(frozen=True)
class Outgoing:
    """A file to send, read from `source`. `copied_ns` is when a copy was begun; the copy itself never changes."""

    file: File
    source: Path
    copied_ns: int | None = None


class BlobSender:
    """Sends the files of one rank. `send` is called by one thread at a time; the counters may be read by any.

    `damaged` are blobs that were found to be wrong: these are sent again although the store has them.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        rank: int,
        *,
        scratch: Path,
        workers: int,
        damaged: Iterable[str] = (),
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._job = job
        self._rank = rank
        self._scratch = scratch
        self._workers = workers
        self._damaged = set(damaged)
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._digests: dict[Signature, str] = {}
        # Blobs of this rank that are in the store for certain.
        self.durable: set[str] = set()
        self.bytes_moved = 0
        self.bytes_left = 0
        # How fast the store took what was last sent; None: nothing was.
        self.bytes_per_s: float | None = None
        # What was sent since the last commit, for estimates alone: a digest is not always remembered.
        self._sent: set[Signature] = set()

    def remember(self, signature: Signature, digest: str) -> None:
        """The file of that signature has this digest, and its blob was just read from the store."""
        self._digests[signature] = digest
        self.durable.add(digest)

    def forget_blobs(self, digests: Iterable[str]) -> None:
        """These were removed from the store: they must be sent again if they are needed again."""
        self.durable.difference_update(digests)

    def forget_files(self, present: Collection[Signature]) -> None:
        """Keep what is known of these files alone."""
        self._digests = {signature: self._digests[signature] for signature in present if signature in self._digests}

    def send(self, files: Sequence[Outgoing], proceed: Callable[[], bool] = lambda: True) -> dict[str, BlobRef]:
        """Make every file durable; the blobs by path, oldest first, so that a restore can keep the order of age.

        Raises Unstable when a file changed, Abandoned when `proceed` says so (asked before each file), StoreError when
        the store fails, OSError when a file cannot be read. What was sent by then is not sent again.
        """
        files = sorted(files, key=lambda one: (one.file.signature.modified_ns, one.file.path))
        self.bytes_left = sum(one.file.size for one in files)
        began_s, moved_before = self._monotonic(), self.bytes_moved

        def send_one(one: Outgoing) -> BlobRef:
            if not proceed():
                raise Abandoned
            digest = self._known(one) or self._send(one)
            with self._lock:
                self.bytes_left -= one.file.size
                self._sent.add(one.file.signature)
            return BlobRef(path=one.file.path, digest=digest, size=one.file.size, mode=one.file.mode & 0o177777)

        try:
            blobs = run_all([partial(send_one, one) for one in files], self._workers)
        finally:
            self.bytes_left = 0
            self._note_rate(self.bytes_moved - moved_before, self._monotonic() - began_s)
        return {blob.path: blob for blob in blobs}

    def bytes_to_send(self, files: Iterable[File]) -> int:
        """About how much of these the store still lacks."""
        return sum(
            file.size
            for file in files
            if file.signature not in self._sent and self._digests.get(file.signature) not in self.durable
        )

    def forget_sent(self) -> None:
        """A commit was made: what was sent for it is nobody's estimate any more."""
        self._sent.clear()

    def _note_rate(self, moved: int, took_s: float) -> None:
        # Less says more about the way there than about the store.
        if moved and took_s >= _MEASURABLE_S:
            self.bytes_per_s = moved / took_s

    def _known(self, one: Outgoing) -> str | None:
        if one.file.link is not None:
            digest = hashlib.sha256(one.file.link.encode()).hexdigest()
        else:
            digest = self._digests.get(one.file.signature, "")
        return digest if digest in self.durable else None

    def _send(self, one: Outgoing) -> str:
        file = one.file
        if file.link is not None:
            return self._send_link(file.link)
        begun_ns = self._wall_ns() if one.copied_ns is None else one.copied_ns
        self._check(one)
        try:
            digest, size = self._put(one.source)
        except (FileNotFoundError, FileChanged):
            raise Unstable(file.path) from None
        self._check(one)
        if size != file.size:
            raise Unstable(file.path)
        with self._lock:
            if file.signature.newest_ns + RACY_NS <= begun_ns:
                self._digests[file.signature] = digest
        return digest

    def _check(self, one: Outgoing) -> None:
        if one.copied_ns is None and signature_of(one.source, one.file) != one.file.signature:
            raise Unstable(one.file.path)

    def _send_link(self, link: str) -> str:
        data = link.encode()
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = self._scratch / f"link-{hashlib.sha256(data).hexdigest()}-{threading.get_ident()}"
        path.write_bytes(data)
        try:
            return self._put(path)[0]
        finally:
            path.unlink(missing_ok=True)

    def _put(self, path: Path) -> tuple[str, int]:
        def key(digest: str) -> str:
            return layout.blob(self._job, self._rank, digest)

        sent = self._store.put_file(path, key)
        if key(sent.digest) in self._damaged:
            if not sent.moved:
                # The store takes the damaged blob for this one. Whatever refers to it is broken anyway.
                self._store.delete([key(sent.digest)])
                sent = self._store.put_file(path, key)
            self._damaged.discard(key(sent.digest))
        with self._lock:
            self.bytes_moved += sent.moved
            self.durable.add(sent.digest)
        return sent.digest, sent.size
