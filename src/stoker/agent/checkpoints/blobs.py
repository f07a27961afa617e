"""Bring files to the store as blobs, each once.

The digest is of the bytes sent, and counts only if the file's signature was the same before and after. A file whose
signature is known is not even read again, unless it could have been written since within one tick of the clock that
files are stamped with (as git treats what is "racily clean").

Every upload has a name of its own, `<digest>-<upload>`, and none is used again. So a delete that lands late, after its
reply was lost, cannot remove the same bytes that were uploaded since. Bytes are not sent twice only as long as this
agent knows an upload of theirs that is in the store: its own, or one that it has just restored.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import File, Signature, hold, signature_of
from stoker.model import keys
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged, Store
from stoker.store.checkpoint_manifests import check_files
from stoker.store.parallel import run_all

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


class _Durable(Exception):
    """The store has these bytes already, under a name that this agent knows."""


class BlobSender:
    """Sends the files of one rank. `send` is called by one thread at a time; the counters may be read by any."""

    def __init__(
        self,
        store: Store,
        job: str,
        rank: int,
        *,
        scratch: Path,
        workers: int,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._job = job
        self._rank = rank
        self._scratch = scratch
        self._workers = workers
        self._wall_ns = wall_ns
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._digests: dict[Signature, str] = {}
        # The uploads of this rank that are in the store for certain, by digest.
        self._durable: dict[str, str] = {}
        # Digests that are just being sent, by whatever thread.
        self._sending: dict[str, threading.Event] = {}
        # The names of all that this agent sent or tried to send, or restored.
        self._names: set[str] = set()
        self.bytes_moved = 0
        self.bytes_left = 0
        # How fast the store took what was last sent; None: nothing was.
        self.bytes_per_s: float | None = None
        # What was sent since the last commit, for estimates alone: a digest is not always remembered.
        self._sent: set[Signature] = set()

    def remember(self, signature: Signature, blob: BlobRef) -> None:
        """The file of that signature is this blob, which was just read from the store."""
        self._digests[signature] = blob.digest
        self._durable[blob.digest] = blob.upload
        self._names.add(blob.name)

    @property
    def names(self) -> frozenset[str]:
        """The objects that may be in the store because of this agent, or that it restored."""
        return frozenset(self._names)

    def forget_blobs(self, names: Collection[str]) -> None:
        """These are about to be removed from the store: the bytes are sent anew if they are needed again."""
        self._durable = {
            digest: upload for digest, upload in self._durable.items() if _name(digest, upload) not in names
        }
        self._names.difference_update(names)

    def forget_files(self, present: Collection[Signature]) -> None:
        """Keep what is known of these files alone."""
        self._digests = {signature: self._digests[signature] for signature in present if signature in self._digests}

    def upload_of(self, digest: str) -> str | None:
        """The upload of these bytes that this agent knows to be in the store."""
        return self._durable.get(digest)

    def send_file(self, path: Path) -> tuple[str, str]:
        """Make one file durable that does not change meanwhile. Its digest, and the upload. Raises as `send`."""
        return self._put(path)[:2]

    def send(self, files: Sequence[Outgoing], proceed: Callable[[], bool] = lambda: True) -> dict[str, BlobRef]:
        """Make every file durable; the blobs by path, oldest first, so that a restore can keep the order of age.

        Raises Unstable when a file changed, Abandoned when `proceed` says so (asked before each file), StoreError when
        the store fails or there are too many files, OSError when one cannot be read. What was sent by then is not sent
        again.
        """
        check_files([one.file.path for one in files])
        files = sorted(files, key=lambda one: (one.file.signature.modified_ns, one.file.path))
        self.bytes_left = sum(one.file.size for one in files)
        began_s, moved_before = self._monotonic(), self.bytes_moved

        def send_one(one: Outgoing) -> BlobRef:
            if not proceed():
                raise Abandoned
            digest, upload = self._known(one) or self._send(one)
            with self._lock:
                self.bytes_left -= one.file.size
                self._sent.add(one.file.signature)
            mode = one.file.mode & 0o177777
            return BlobRef(path=one.file.path, digest=digest, size=one.file.size, mode=mode, upload=upload)

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
            if file.signature not in self._sent and self._digests.get(file.signature) not in self._durable
        )

    def forget_sent(self) -> None:
        """A commit was made: what was sent for it is nobody's estimate any more."""
        self._sent.clear()

    def _note_rate(self, moved: int, took_s: float) -> None:
        # Less says more about the way there than about the store.
        if moved and took_s >= _MEASURABLE_S:
            self.bytes_per_s = moved / took_s

    def _known(self, one: Outgoing) -> tuple[str, str] | None:
        if one.file.link is not None:
            digest = hashlib.sha256(one.file.link.encode()).hexdigest()
        else:
            digest = self._digests.get(one.file.signature, "")
        upload = self._durable.get(digest)
        return (digest, upload) if upload is not None else None

    def _send(self, one: Outgoing) -> tuple[str, str]:
        """Send the file, unless its bytes are known to be there. The digest, and the upload."""
        file = one.file
        if file.link is not None:
            return self._send_link(file.link)
        begun_ns = self._wall_ns() if one.copied_ns is None else one.copied_ns
        self._check(one)
        try:
            if one.copied_ns is None:
                with hold(one.source, file) as held:
                    digest, upload, size = self._put(held)
            else:
                digest, upload, size = self._put(one.source)
        except (FileNotFoundError, FileChanged):
            raise Unstable(file.path) from None
        self._check(one)
        if size != file.size:
            raise Unstable(file.path)
        with self._lock:
            if file.signature.newest_ns + RACY_NS <= begun_ns:
                self._digests[file.signature] = digest
        return digest, upload

    def _check(self, one: Outgoing) -> None:
        if one.copied_ns is None and signature_of(one.source, one.file) != one.file.signature:
            raise Unstable(one.file.path)

    def _send_link(self, link: str) -> tuple[str, str]:
        data = link.encode()
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = self._scratch / f"link-{hashlib.sha256(data).hexdigest()}-{threading.get_ident()}"
        path.write_bytes(data)
        try:
            return self._put(path)[:2]
        finally:
            path.unlink(missing_ok=True)

    def _put(self, path: Path) -> tuple[str, str, int]:
        """The digest, the upload and the size of a file whose bytes are in the store then."""
        # Never the one of a try before: that may have landed, and have been collected.
        upload = secrets.token_hex(8)
        with self._one_at_a_time() as begin:

            def key(digest: str) -> str:
                begin(digest)
                self._names.add(_name(digest, upload))
                return keys.blob(self._job, self._rank, _name(digest, upload))

            try:
                sent = self._store.put_file(path, key)
            except _Durable as known:
                (digest,) = known.args
                return digest, self._durable[digest], path.stat().st_size
            with self._lock:
                self.bytes_moved += sent.moved
                self._durable[sent.digest] = upload
            return sent.digest, upload, sent.size

    @contextmanager
    def _one_at_a_time(self) -> Iterator[Callable[[str], None]]:
        """Gives a function to call with the digest, before anything is sent: it waits for another thread that sends the
        same bytes, and raises _Durable when they are there."""
        begun: list[str] = []

        def begin(digest: str) -> None:
            while digest not in begun:
                with self._lock:
                    if digest in self._durable:
                        raise _Durable(digest)
                    rival = self._sending.get(digest)
                    if rival is None:
                        self._sending[digest] = threading.Event()
                        begun.append(digest)
                        return
                rival.wait()

        try:
            yield begin
        finally:
            with self._lock:
                for digest in begun:
                    self._sending.pop(digest).set()


def _name(digest: str, upload: str) -> str:
    return BlobRef(path="", digest=digest, size=0, upload=upload).name
