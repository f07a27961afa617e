"""Environments in the store: what one machine has made, the next one fetches.

An environment is kept under the digest of everything that went into it. Its parts are named by their own digests, and
a manifest, written last and never changed, names them: it exists when its manifest does. A copy that is not whole, or
not what its names say, is told, taken away and made again. None of this is needed: without it a machine makes its own.
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
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

from stoker.agent.environment.archive import (
    PART_BYTES,
    Listing,
    lay_links,
    lay_out,
    read_part,
    with_compiled,
    write_part,
)
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StokerError, StoreDenied
from stoker.store.base import Store
from stoker.store.parallel import run_all

_log = logging.getLogger(__name__)

# The training computes meanwhile: two of its cores at most, and only while it has no use for them.
_PACKING_THREADS = 2
_LEAST_NICE = 19
_FETCHING_THREADS = 8
_QUICK_LEVEL = 1
# By then most trainings have imported what they need.
_BEGIN_AFTER_S = 30.0
# More than any listing takes; what is larger is not one.
_MANIFEST_LIMIT = 16 * 1024**2
_WORTH_TELLING_S = 1.0
_LOOK_EVERY_S = 0.2
# How exact the time of the last use is: a write each time would be too many.
_USED_EVERY = timedelta(days=1)


class Damaged(StokerError):
    """There is a copy, and it cannot be used. `keys` must go before another one can take its place."""

    def __init__(self, reason: str, *keys: str) -> None:
        super().__init__(reason)
        self.keys = keys


class _Superseded(StokerError):
    """Somebody else has kept it meanwhile, or nobody waits for it any more."""


@dataclass(frozen=True)
class Part:
    """So many bytes in the store, and their SHA-256."""

    digest: str
    size: int


@dataclass(frozen=True)
class Kept:
    """The manifest. `compressed`: the listing and each part are deflated."""

    key: str
    # The machine that it was made on: processor and C library.
    platform: str
    listing: Part
    parts: tuple[Part, ...]
    part_bytes: int
    # What its files take on the disk.
    size: int
    compressed: bool = False
    version: int = 1


@dataclass(frozen=True)
class Found:
    """A copy, and where it is kept."""

    place: str
    kept: Kept


@dataclass(frozen=True)
class Cache:
    """The environments that a job's machines may use, in one store."""

    store: Store
    job: str

    @property
    def _places(self) -> tuple[str, str]:
        """Shared by all jobs; and one's own, for machines that may touch nothing else."""
        return keys.environments(), keys.environments(self.job)

    def find(self, key: str) -> Found | None:
        """The copy that was kept; None where there is none, or it may not be read.

        Raises Damaged for one that cannot be read, StoreError when the store does not answer.
        """
        for place in self._places:
            manifest = keys.environment_manifest(place, key)
            try:
                found = self.store.get(manifest, limit=_MANIFEST_LIMIT)
            except StoreDenied as error:
                _log.info("%s", error)
                continue
            if found is not None:
                try:
                    return Found(place, codec.loads(Kept, found.data, where=manifest))
                except CodecError as error:
                    raise Damaged(f"its manifest cannot be read ({error})", manifest) from None
        return None

    def restore(self, found: Found, key: str, platform: str, folder: Path) -> None:
        """Make the folder what was kept. May be repeated.

        Raises Damaged for a copy that is not whole or not of this kind, StoreError when the store does not answer.
        """
        place, kept = found.place, found.kept
        manifest = keys.environment_manifest(place, key)
        if (kept.key, kept.platform) != (key, platform):
            raise Damaged(f"it was made for {kept.platform}, and this is {platform}", manifest)
        try:
            listing = Listing.load(self._fetch(place, kept, kept.listing))
        except CodecError as error:
            raise Damaged(f"its listing cannot be read ({error})", manifest) from None
        spans = listing.parts(kept.part_bytes) if kept.part_bytes > 0 else []
        if len(spans) != len(kept.parts):
            raise Damaged("its manifest and its listing do not agree", manifest)
        if folder.exists():
            shutil.rmtree(folder)

        def bring(part: Part, begin: int, end: int) -> None:
            data = self._fetch(place, kept, part)
            if len(data) != end - begin:
                raise Damaged("a part has another length than it should", manifest)
            write_part(folder, listing, begin, data)

        try:
            lay_out(folder, listing)
            calls = [partial(bring, part, *span) for part, span in zip(kept.parts, spans, strict=True)]
            if calls:
                run_all(calls, min(_FETCHING_THREADS, 2 + (os.cpu_count() or 1)))
            lay_links(folder, listing)
        except (CodecError, FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise Damaged(f"its listing makes no sense ({error})", manifest) from None
        self._mark_used(place, key)

    def _fetch(self, place: str, kept: Kept, part: Part) -> bytes:
        manifest = keys.environment_manifest(place, kept.key)
        name = keys.environment_part(place, kept.key, part.digest)
        found = self.store.get(name)
        if found is None:
            raise Damaged("a part of it is missing", manifest)
        if hashlib.sha256(found.data).hexdigest() != part.digest:
            raise Damaged("a part of it is not what was kept", manifest, name)
        try:
            return zlib.decompress(found.data) if kept.compressed else found.data
        except zlib.error as error:
            raise Damaged(f"a part of it is not what was kept ({error})", manifest, name) from None

    def names(self, found: Found) -> tuple[str, ...]:
        """The keys of everything that is kept of a copy."""
        kept = found.kept
        parts = [keys.environment_part(found.place, kept.key, part.digest) for part in (kept.listing, *kept.parts)]
        return (keys.environment_manifest(found.place, kept.key), *parts)

    def discard(self, damaged: Damaged) -> None:
        """Take a copy away that cannot be used, as far as this machine may. Raises StoreError."""
        with suppress(StoreDenied):
            self.store.delete(damaged.keys)

    def keep(
        self, key: str, platform: str, folder: Path, listing: Listing, wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Put the folder into the store, as it was when it was listed. False: somebody else's copy is there.

        Idempotent, and may be left at any point: what has no manifest counts for nothing. `wanted` is asked before
        each part. Raises Changed when a file was written to meanwhile, StoreError.
        """
        denied: StoreDenied | None = None
        for place in self._places:
            try:
                return self._keep(place, key, platform, folder, listing, wanted)
            except StoreDenied as error:
                denied = error
            except _Superseded:
                return False
        assert denied is not None
        raise denied

    def _keep(
        self, place: str, key: str, platform: str, folder: Path, listing: Listing, wanted: Callable[[], bool]
    ) -> bool:
        manifest = keys.environment_manifest(place, key)
        # A folder is as quick as the disk; over a network, half as many bytes are worth a little of the processor.
        compressed = not self.store.near

        def send(data: bytes | bytearray) -> Part:
            if not wanted() or self.store.head(manifest) is not None:
                raise _Superseded(key)
            sent = zlib.compress(data, _QUICK_LEVEL) if compressed else bytes(data)
            part = Part(hashlib.sha256(sent).hexdigest(), len(sent))
            name = keys.environment_part(place, key, part.digest)
            there = self.store.head(name)
            if there is None or there.size != part.size:
                self.store.put(name, sent)
            return part

        first = send(listing.dump())
        calls = [partial(_send_part, send, folder, listing, *span) for span in listing.parts(PART_BYTES)]
        parts = tuple(run_all(calls, _PACKING_THREADS)) if calls else ()
        kept = Kept(key, platform, first, parts, PART_BYTES, listing.size, compressed)
        if self.store.create(manifest, codec.dumps(kept)):
            return True
        self._withdraw(place, kept)
        return False

    def _withdraw(self, place: str, mine: Kept) -> None:
        """Two made the same, and the other was faster: what only this one sent is of no use to anybody."""
        found = self.store.get(keys.environment_manifest(place, mine.key), limit=_MANIFEST_LIMIT)
        if found is None:
            return
        try:
            theirs = codec.loads(Kept, found.data)
        except CodecError:
            return
        needed = {part.digest for part in (theirs.listing, *theirs.parts)}
        mine_alone = {part.digest for part in (mine.listing, *mine.parts)} - needed
        self.store.delete(keys.environment_part(place, mine.key, digest) for digest in mine_alone)

    def _mark_used(self, place: str, key: str) -> None:
        """Best effort: without it the copy is pruned too early, and made again."""
        name = keys.environment_used(place, key)
        try:
            there = self.store.head(name)
            if there is None or datetime.now(timezone.utc) - there.modified > _USED_EVERY:
                self.store.put(name, b"")
        except StokerError as error:
            _log.info("%s", error)


def _send_part(send: Callable[[bytearray], Part], folder: Path, listing: Listing, begin: int, end: int) -> Part:
    return send(read_part(folder, listing, begin, end))


class Keeping:
    """Puts an environment into the store behind the training's back, on threads that nobody has to wait for.

    It begins a while after the training, when that has imported what it needs: what was compiled then is kept, too.
    """

    def __init__(
        self, cache: Cache, key: str, platform: str, folder: Path, listing: Listing, say: Callable[[str], None]
    ) -> None:
        self._wanted = True
        self._hurry = threading.Event()
        self._say = say
        self._keep = partial(cache.keep, key, platform, folder)
        self._folder = folder
        self._listing = listing
        self._thread = threading.Thread(target=self._run, daemon=True, name="keep-environment")
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            # Linux knows this for each thread, and those that it starts inherit it: they give way to everybody else.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_NICE)
        self._hurry.wait(_BEGIN_AFTER_S)
        began_s = time.monotonic()
        try:
            listing = with_compiled(self._listing, self._folder)
            if self._keep(listing, lambda: self._wanted):
                self._say(
                    f"the environment ({listing.size / 1e6:,.0f} MB) is kept in the store for the next time; "
                    f"that took {time.monotonic() - began_s:.1f} s"
                )
        except (StokerError, OSError) as error:
            self._say(f"the environment is not kept for the next time: {error}")

    def settle(self, until_s: Callable[[], float]) -> None:
        """Wait for it, until that monotonic time and no longer; then it is left as it is."""
        self._hurry.set()
        self._thread.join(_WORTH_TELLING_S if until_s() > time.monotonic() else 0.0)
        if self._thread.is_alive() and (left_s := until_s() - time.monotonic()) > 0:
            self._say(f"the environment is still being kept for the next time; that gets {left_s:.0f} s more")
        while self._thread.is_alive() and time.monotonic() < until_s():
            self._thread.join(_LOOK_EVERY_S)
        self._wanted = False
