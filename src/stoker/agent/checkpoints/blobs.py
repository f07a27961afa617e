"""Send files to the store as blobs, each once.

The digest is of the bytes that were sent, and counts only if the file's signature was the same before and after. A file
whose signature is known is not read again, unless it could have been written since within one tick of the clock that
stamps files (as git treats entries that are "racily clean").

Every upload has a name of its own, `<digest>-<upload>`, and no name is used again. So a delete that lands late, after
its reply was lost, cannot remove the same bytes that were uploaded since. Bytes are not sent twice as long as this
agent knows an upload of them that is in the store: its own, or one that it has just restored.
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

from stoker.agent.checkpoints.folder_snapshot import File, Signature, pinned_path, signature_of
from stoker.agent.checkpoints.unreadable_files import FileUnreadable, naming_unreadable
from stoker.model import keys
from stoker.model.node_facts import BlobRef
from stoker.store.base import FileChanged, Store
from stoker.store.checkpoint_manifests import check_files
from stoker.store.parallel import run_all

# The coarsest clock of any filesystem in use has steps of two seconds.
RACY_NS = 2_000_000_000
# A shorter transfer says more about latency than about the rate of the store.
_MIN_MEASURED_S = 0.05


class FileUnstable(Exception):
    """A file changed while it was read: try again later."""


class SendAbandoned(Exception):
    """The caller wants to do something else first."""


@dataclass(frozen=True)
class OutgoingFile:
    """A file to send, read from `source`. `copied_ns` is when a copy was begun; the copy itself never changes."""

    file: File
    source: Path
    copied_ns: int | None = None


class _AlreadyStored(Exception):
    """The store has these bytes already, under a name that this agent knows."""


class _KnownUploads:
    """The uploads of one rank that this agent knows. Thread-safe, because several threads send."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The uploads that are in the store for certain, by digest.
        self._durable: dict[str, str] = {}
        # Digests that some thread is sending now.
        self._sending: dict[str, threading.Event] = {}
        # The names of all uploads that this agent sent, tried to send, or restored.
        self._names: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    def get(self, digest: str | None) -> str | None:
        """Return the upload of these bytes that is in the store for certain."""
        return self._durable.get(digest) if digest is not None else None

    def add_name(self, digest: str, upload: str) -> None:
        """Record that an upload is about to be sent: it may reach the store from now on."""
        self._names.add(_name(digest, upload))

    def add(self, digest: str, upload: str) -> None:
        """Record an upload that is in the store for certain."""
        with self._lock:
            self._durable[digest] = upload
        self._names.add(_name(digest, upload))

    def forget(self, names: Collection[str]) -> None:
        self._durable = {
            digest: upload for digest, upload in self._durable.items() if _name(digest, upload) not in names
        }
        self._names.difference_update(names)

    @contextmanager
    def one_sender(self) -> Iterator[Callable[[str], None]]:
        """Let only one thread at a time send the same bytes.

        Gives a function to call with the digest before anything is sent. It waits for another thread that sends the
        same bytes, and raises _AlreadyStored when they are in the store.
        """
        begun: list[str] = []

        def begin(digest: str) -> None:
            while digest not in begun:
                with self._lock:
                    if digest in self._durable:
                        raise _AlreadyStored(digest)
                    other = self._sending.get(digest)
                    if other is None:
                        self._sending[digest] = threading.Event()
                        begun.append(digest)
                        return
                other.wait()

        try:
            yield begin
        finally:
            with self._lock:
                for digest in begun:
                    self._sending.pop(digest).set()


class BlobSender:
    """Sends the files of one rank. One thread at a time calls `send`; any thread may read the counters."""

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
        self._uploads = _KnownUploads()
        # Guards the counters and the digests, which worker threads change.
        self._lock = threading.Lock()
        self._digests: dict[Signature, str] = {}
        self.bytes_moved = 0
        self.bytes_left = 0
        # The rate at which the store took the last files; None: nothing was measured yet.
        self.bytes_per_s: float | None = None
        # Files that were sent since the last commit, for estimates alone: a digest is not always remembered.
        self._sent: set[Signature] = set()

    def remember(self, signature: Signature, blob: BlobRef) -> None:
        """Record that the file with this signature is this blob, which was just read from the store."""
        self._digests[signature] = blob.digest
        self._uploads.add(blob.digest, blob.upload)

    @property
    def names(self) -> frozenset[str]:
        """The objects that may be in the store because of this agent, or that it restored."""
        return self._uploads.names

    def forget_blobs(self, names: Collection[str]) -> None:
        """Forget blobs that are about to be removed from the store: their bytes are sent anew if needed again."""
        self._uploads.forget(names)

    def forget_files(self, present: Collection[Signature]) -> None:
        """Forget the digests of all files but these."""
        self._digests = {signature: self._digests[signature] for signature in present if signature in self._digests}

    def upload_of(self, digest: str) -> str | None:
        """Return the upload of these bytes that this agent knows to be in the store."""
        return self._uploads.get(digest)

    def send_file(self, path: Path) -> tuple[str, str]:
        """Make one file durable that does not change meanwhile. Return digest and upload. Raises as `send`."""
        return self._put(path)[:2]

    def send(self, files: Sequence[OutgoingFile], proceed: Callable[[], bool] = lambda: True) -> dict[str, BlobRef]:
        """Make every file durable. Return the blobs by path, oldest first, so that a restore can keep the order of age.

        Raises FileUnstable when a file changed, FileUnreadable when one cannot be read or kept, SendAbandoned when
        `proceed` (asked before each file) returns False, StoreError when the store fails or there are too many files.
        Files that were sent by then are not sent again.
        """
        check_files([one.file.path for one in files])
        unkept = next((one.file for one in files if one.file.problem), None)
        if unkept is not None:
            raise FileUnreadable(unkept.path, unkept.problem, may_pass=False)
        files = sorted(files, key=lambda one: (one.file.signature.modified_ns, one.file.path))
        self.bytes_left = sum(one.file.size for one in files)
        began_s, moved_before = self._monotonic(), self.bytes_moved

        def send_one(one: OutgoingFile) -> BlobRef:
            if not proceed():
                raise SendAbandoned
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

    def has(self, file: File) -> bool:
        """Return True if the store is known to have the bytes of this file: it need not be read again."""
        return self._known(OutgoingFile(file, Path())) is not None

    def bytes_to_send(self, files: Iterable[File]) -> int:
        """Estimate how many bytes of these files the store still lacks."""
        return sum(
            file.size
            for file in files
            if file.signature not in self._sent and self._uploads.get(self._digests.get(file.signature)) is None
        )

    def forget_sent(self) -> None:
        """Reset the estimates after a commit: files that were sent for it no longer count as sent."""
        self._sent.clear()

    def _note_rate(self, moved: int, took_s: float) -> None:
        if moved and took_s >= _MIN_MEASURED_S:
            self.bytes_per_s = moved / took_s

    def _known(self, one: OutgoingFile) -> tuple[str, str] | None:
        if one.file.link is not None:
            digest = hashlib.sha256(one.file.link.encode()).hexdigest()
        else:
            digest = self._digests.get(one.file.signature, "")
        upload = self._uploads.get(digest)
        return (digest, upload) if upload is not None else None

    def _send(self, one: OutgoingFile) -> tuple[str, str]:
        """Send the file, unless its bytes are known to be in the store. Return digest and upload."""
        file = one.file
        if file.link is not None:
            return self._send_link(file.link)
        begun_ns = self._wall_ns() if one.copied_ns is None else one.copied_ns
        self._check(one)
        try:
            with naming_unreadable(file.path):
                if one.copied_ns is None:
                    with pinned_path(one.source, file) as pinned:
                        digest, upload, size = self._put(pinned)
                else:
                    digest, upload, size = self._put(one.source)
        except (FileNotFoundError, FileChanged):
            raise FileUnstable(file.path) from None
        self._check(one)
        if size != file.size:
            raise FileUnstable(file.path)
        with self._lock:
            if file.signature.newest_ns + RACY_NS <= begun_ns:
                self._digests[file.signature] = digest
        return digest, upload

    def _check(self, one: OutgoingFile) -> None:
        if one.copied_ns is None and signature_of(one.source, one.file) != one.file.signature:
            raise FileUnstable(one.file.path)

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
        """Put the bytes of a file into the store. Return digest, upload and size."""
        # Never the upload of an earlier try: that may have landed, and have been collected.
        upload = secrets.token_hex(8)
        with self._uploads.one_sender() as begin:

            def key(digest: str) -> str:
                begin(digest)
                self._uploads.add_name(digest, upload)
                return keys.blob(self._job, self._rank, _name(digest, upload))

            try:
                sent = self._store.put_file(path, key)
            except _AlreadyStored as known:
                (digest,) = known.args
                known_upload = self._uploads.get(digest)
                assert known_upload is not None
                return digest, known_upload, path.stat().st_size
            with self._lock:
                self.bytes_moved += sent.moved
            self._uploads.add(sent.digest, upload)
            return sent.digest, upload, sent.size


def _name(digest: str, upload: str) -> str:
    return BlobRef(path="", digest=digest, size=0, upload=upload).name
