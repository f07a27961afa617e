"""Environments in the store: an environment that one machine has built is fetched by the next one.

An environment is stored under the digest of everything that decides its contents. Its parts are named by their own
digests. A manifest, written last and never changed, names the parts: the environment exists if its manifest does. A
copy that is incomplete, or that does not match its digests, is reported, removed and built again. The copies are an
optimisation: without them every machine builds its own environment.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.environment.archive import (
    PART_BYTES,
    FolderListing,
    create_folders,
    create_links,
    read_part,
    with_compiled,
    write_part,
)
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StokerError, StoreDenied
from stoker.store.base import Store
from stoker.store.parallel import run_all

_log = logging.getLogger(__name__)

# Uploads run beside the training: on two cores at most, and at the lowest priority.
_PACKING_THREADS = 2
_LEAST_NICE = 19
_FETCHING_THREADS = 8
_QUICK_LEVEL = 1
# Most trainings have imported their modules by then.
_BEGIN_AFTER_S = 30.0
# Larger than any real manifest.
_MANIFEST_LIMIT = 16 * 1024**2
# Larger than any part, and than the listing of a million files.
_OBJECT_LIMIT = 256 * 1024**2
_LOG_WAIT_AFTER_S = 1.0
_POLL_S = 0.2


class DamagedCopy(StokerError):
    """A stored copy cannot be used. `keys` must be deleted before another copy can replace it."""

    def __init__(self, reason: str, *keys: str) -> None:
        super().__init__(reason)
        self.keys = keys


class _Superseded(StokerError):
    """Another machine has stored the environment meanwhile, or the upload is no longer wanted."""


@dataclass(frozen=True)
class StoredPart:
    """An object in the store: its SHA-256 and its size."""

    digest: str
    size: int


@dataclass(frozen=True)
class EnvironmentManifest:
    """The manifest of an environment. `compressed`: the listing and each part are deflated."""

    key: str
    # The machine that it was built on: processor and C library.
    platform: str
    listing: StoredPart
    parts: tuple[StoredPart, ...]
    part_bytes: int
    # Size of its files on the disk.
    size: int
    compressed: bool = False
    version: int = 1


@dataclass(frozen=True)
class StoredEnvironment:
    """A stored environment: the prefix of its keys, and its manifest."""

    prefix: str
    manifest: EnvironmentManifest


@dataclass(frozen=True)
class StoreCache:
    """The environments in one store that a job's machines may use."""

    store: Store
    job: str

    @property
    def _prefixes(self) -> tuple[str, str]:
        """The prefixes to search: shared by all jobs, and the job's own for machines that may access nothing else."""
        return keys.environments(), keys.environments(self.job)

    def find(self, key: str) -> StoredEnvironment | None:
        """Return the stored copy; None if there is none, or if this machine may not read it.

        Raises DamagedCopy if its manifest is malformed, StoreError if the store does not answer.
        """
        for prefix in self._prefixes:
            manifest_key = keys.environment_manifest(prefix, key)
            try:
                found = self.store.get(manifest_key, limit=_MANIFEST_LIMIT)
            except StoreDenied as error:
                _log.info("%s", error)
                continue
            if found is not None:
                try:
                    return StoredEnvironment(prefix, codec.loads(EnvironmentManifest, found.data, where=manifest_key))
                except CodecError as error:
                    raise DamagedCopy(f"its manifest cannot be read ({error})", manifest_key) from None
        return None

    def restore(self, found: StoredEnvironment, key: str, platform: str, folder: Path) -> None:
        """Restore the stored copy into the folder. May be repeated.

        Raises DamagedCopy for a copy that is incomplete or of another platform, StoreError if the store does not
        answer.
        """
        prefix, manifest = found.prefix, found.manifest
        manifest_key = keys.environment_manifest(prefix, key)
        if (manifest.key, manifest.platform) != (key, platform):
            raise DamagedCopy(f"it was built for {manifest.platform}, and this is {platform}", manifest_key)
        try:
            listing = FolderListing.load(self._fetch(prefix, manifest, manifest.listing))
        except CodecError as error:
            raise DamagedCopy(f"its listing cannot be read ({error})", manifest_key) from None
        spans = listing.parts(manifest.part_bytes) if manifest.part_bytes > 0 else []
        if len(spans) != len(manifest.parts):
            raise DamagedCopy("its manifest and its listing do not agree", manifest_key)
        if folder.exists():
            shutil.rmtree(folder)

        def fetch_part(part: StoredPart, begin: int, end: int) -> None:
            data = self._fetch(prefix, manifest, part)
            if len(data) != end - begin:
                raise DamagedCopy("a part has the wrong length", manifest_key)
            write_part(folder, listing, begin, data)

        try:
            create_folders(folder, listing)
            calls = [partial(fetch_part, part, *span) for part, span in zip(manifest.parts, spans, strict=True)]
            if calls:
                run_all(calls, min(_FETCHING_THREADS, 2 + (os.cpu_count() or 1)))
            create_links(folder, listing)
        except (CodecError, FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise DamagedCopy(f"its listing is inconsistent ({error})", manifest_key) from None
        self._mark_used(prefix, key)

    def _fetch(self, prefix: str, manifest: EnvironmentManifest, part: StoredPart) -> bytes:
        manifest_key = keys.environment_manifest(prefix, manifest.key)
        name = keys.environment_part(prefix, manifest.key, part.digest)
        found = self.store.get(name, limit=_OBJECT_LIMIT)
        if found is None:
            raise DamagedCopy("a part of it is missing", manifest_key)
        if hashlib.sha256(found.data).hexdigest() != part.digest:
            raise DamagedCopy("a part of it does not match its digest", manifest_key, name)
        try:
            return zlib.decompress(found.data) if manifest.compressed else found.data
        except zlib.error as error:
            raise DamagedCopy(f"a part of it cannot be decompressed ({error})", manifest_key, name) from None

    def keys_of(self, found: StoredEnvironment) -> tuple[str, ...]:
        """Return all keys of a stored copy."""
        manifest = found.manifest
        parts = [
            keys.environment_part(found.prefix, manifest.key, part.digest)
            for part in (manifest.listing, *manifest.parts)
        ]
        return (keys.environment_manifest(found.prefix, manifest.key), *parts)

    def discard(self, damaged: DamagedCopy) -> None:
        """Delete a damaged copy, as far as this machine may. Raises StoreError."""
        with suppress(StoreDenied):
            self.store.delete(damaged.keys)

    def upload(
        self, key: str, platform: str, folder: Path, listing: FolderListing, wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Upload the folder as it was when it was listed. Returns False if another machine's copy is there.

        Idempotent, and may be interrupted at any point: parts without a manifest are ignored. `wanted` is called before
        each part. Raises FolderChanged if a file was modified meanwhile, StoreError.
        """
        denied: StoreDenied | None = None
        for prefix in self._prefixes:
            try:
                return self._upload(prefix, key, platform, folder, listing, wanted)
            except StoreDenied as error:
                denied = error
            except _Superseded:
                return False
        assert denied is not None
        raise denied

    def _upload(
        self, prefix: str, key: str, platform: str, folder: Path, listing: FolderListing, wanted: Callable[[], bool]
    ) -> bool:
        manifest_key = keys.environment_manifest(prefix, key)
        # A store in a folder is as quick as the disk; over a network, half as many bytes are worth some processor time.
        compressed = not self.store.is_local

        def send(data: bytes | bytearray) -> StoredPart:
            if not wanted() or self.store.head(manifest_key) is not None:
                raise _Superseded(key)
            sent = zlib.compress(data, _QUICK_LEVEL) if compressed else bytes(data)
            part = StoredPart(hashlib.sha256(sent).hexdigest(), len(sent))
            name = keys.environment_part(prefix, key, part.digest)
            existing = self.store.head(name)
            if existing is None or existing.size != part.size:
                self.store.put(name, sent)
            return part

        stored_listing = send(listing.dump())
        calls = [partial(_send_part, send, folder, listing, *span) for span in listing.parts(PART_BYTES)]
        parts = tuple(run_all(calls, _PACKING_THREADS)) if calls else ()
        manifest = EnvironmentManifest(key, platform, stored_listing, parts, PART_BYTES, listing.size, compressed)
        if self.store.create(manifest_key, codec.dumps(manifest)):
            return True
        self._withdraw(prefix, manifest)
        return False

    def _withdraw(self, prefix: str, mine: EnvironmentManifest) -> None:
        """Delete the parts that only this machine uploaded, after another machine was first to write the manifest."""
        found = self.store.get(keys.environment_manifest(prefix, mine.key), limit=_MANIFEST_LIMIT)
        if found is None:
            return
        try:
            theirs = codec.loads(EnvironmentManifest, found.data)
        except CodecError:
            return
        needed = {part.digest for part in (theirs.listing, *theirs.parts)}
        unneeded = {part.digest for part in (mine.listing, *mine.parts)} - needed
        self.store.delete(keys.environment_part(prefix, mine.key, digest) for digest in unneeded)

    def _mark_used(self, prefix: str, key: str) -> None:
        """Record the time of use. Best effort: if it fails, the copy is pruned too early and built again.

        Every use is one write: a node cannot know how old the last record is, because its clock is not the store's.
        """
        try:
            self.store.put(keys.environment_used(prefix, key), b"")
        except StokerError as error:
            _log.info("%s", error)


def _send_part(
    send: Callable[[bytearray], StoredPart], folder: Path, listing: FolderListing, begin: int, end: int
) -> StoredPart:
    return send(read_part(folder, listing, begin, end))


class BackgroundUpload:
    """Upload an environment in the background, on threads that do not delay the training.

    The upload begins some time after the training, when it has imported its modules: the compiled files are uploaded
    too.
    """

    def __init__(
        self,
        cache: StoreCache,
        key: str,
        platform: str,
        folder: Path,
        listing: FolderListing,
        say: Callable[[str], None],
    ) -> None:
        self._wanted = True
        self._begin = threading.Event()
        self._say = say
        self._upload = partial(cache.upload, key, platform, folder)
        self._folder = folder
        self._listing = listing
        self._thread = threading.Thread(target=self._run, daemon=True, name="keep-environment")
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            # Linux has a priority per thread, and threads inherit it: the upload yields to everything else.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_NICE)
        self._begin.wait(_BEGIN_AFTER_S)
        began_s = time.monotonic()
        try:
            listing = with_compiled(self._listing, self._folder)
            if self._upload(listing, lambda: self._wanted):
                self._say(
                    f"the environment ({listing.size / 1e6:,.0f} MB) is stored for the next time; "
                    f"that took {time.monotonic() - began_s:.1f} s"
                )
        except (StokerError, OSError) as error:
            self._say(f"the environment is not stored for the next time: {error}")

    def wait(self, until_s: Callable[[], float]) -> None:
        """Wait for the upload until this monotonic time at most, then cancel it."""
        self._begin.set()
        self._thread.join(_LOG_WAIT_AFTER_S if until_s() > time.monotonic() else 0.0)
        if self._thread.is_alive() and (left_s := until_s() - time.monotonic()) > 0:
            self._say(f"the environment is still being stored for the next time; waiting up to {left_s:.0f} s more")
        while self._thread.is_alive() and time.monotonic() < until_s():
            self._thread.join(_POLL_S)
        self._wanted = False
