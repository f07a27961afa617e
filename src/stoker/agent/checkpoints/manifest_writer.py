"""Write a rank's manifests: each once, in order, whatever becomes of the replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.model.node_facts import BlobRef, CheckpointRef, Manifest
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import Cache, Place, Stored, Trust, encode, read_manifests

# A folder that is committed as it is, with so little more than what was restored, holds no save of the script: it wrote
# its settings, or began a log. A save of so few bytes beside files a hundred times as large is not expected.
_ADDED_BYTES = 1024 * 1024
_ADDED_SHARE = 0.01

# The store says "exists", then "absent": a rival's write that failed after all. More often than this is an outage.
_ROUNDS = 5


@dataclass(frozen=True)
class Draft:
    """A manifest whose blobs are all durable, and what to do when it is written."""

    manifest: Manifest
    done: Callable[[str], None]

    def moved_on(self) -> Draft:
        """The same with the next ordinal."""
        ordinal, generation = self.manifest.ordinal + 1, self.manifest.generation
        if generation == -self.manifest.ordinal:
            generation = -ordinal
        return replace(self, manifest=replace(self.manifest, ordinal=ordinal, generation=generation))


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class Publisher:
    """Publishes for one rank in one attempt. A draft whose fate is unknown goes before everything else.

    That matters: a manifest that may or may not be there must not be forgotten, or its blobs could be pruned.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        claim: int,
        rank: int,
        *,
        restored: Iterable[BlobRef] = (),
        trust: Trust | None = None,
        recovering: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self._restored = {blob.digest: blob.size for blob in restored}
        self._job = job
        self._claim = claim
        self._rank = rank
        self._trust = trust
        # What the agent before was sending when it died may still land: its number is left out.
        self._gap = 1 if recovering else 0
        self._monotonic = monotonic
        self._now = now
        self._cache: Cache = {}
        self._newest: int | None = None
        self._offset: int | None = None
        self._draft: Draft | None = None
        self.commits = 0
        # The newest commit of this attempt, and when it was made by the monotonic clock.
        self.last: tuple[CheckpointRef, float] | None = None
        self._last_place: Place | None = None

    @property
    def in_doubt(self) -> bool:
        return self._draft is not None

    def read(self) -> list[Stored]:
        """The manifests of this attempt, of every rank."""
        return read_manifests(
            self._store,
            self._job,
            f"{keys.checkpoints(self._job)}{keys.number(self._claim)}/",
            trust=self._trust,
            cache=self._cache,
        )

    def next_ordinal(self) -> int:
        """One more than the store has of this rank in this claim."""
        if self._newest is None:
            own = [item.place.ordinal for item in self.read() if item.place.rank == self._rank]
            self._newest = max(own, default=0) + self._gap
        return self._newest + 1

    def ordinal_of(self, sequence: int) -> int:
        """The ordinal of a request, so that requests are in order whenever they are committed."""
        if self._offset is None:
            self._offset = max(0, self.next_ordinal() - sequence)
        return sequence + self._offset

    def manifest(
        self,
        name: str,
        ordinal: int,
        files: tuple[BlobRef, ...],
        *,
        ranks: tuple[int, ...] = (0,),
        step: int | None = None,
        generation: int = 0,
    ) -> Manifest:
        return Manifest(
            name=name,
            job=self._job,
            claim=self._claim,
            rank=self._rank,
            ordinal=ordinal,
            committed_at=self._now(),
            files=files,
            ranks=ranks,
            step=step,
            generation=generation,
        )

    def publish(self, draft: Draft) -> None:
        """Write it. Raises StoreError: then it is in doubt, and `resume` must be called until it is not.

        Raises CheckpointTooLarge for one that no reader would take: that is never written, and not in doubt.
        """
        self.resume()
        encode(draft.manifest)
        self._draft = draft
        self.resume()

    def resume(self) -> None:
        """Send the draft in doubt again, if there is one."""
        absent = 0
        while self._draft is not None:
            draft = self._draft
            manifest = draft.manifest
            place = Place(manifest.claim, manifest.ordinal, manifest.name, manifest.rank)
            key, data = keys.manifest(self._job, place.key), encode(manifest)
            mine = True if self._store.create(key, data) else self._is_mine(key, data)
            if mine is None:
                absent += 1
                if absent >= _ROUNDS:
                    raise StoreUnavailable(f"{key} neither is there nor can be made")
            elif mine:
                self._draft = None
                self._note(place, manifest)
                draft.done(place.key)
            else:
                # Somebody's, such as an agent's that was restarted: the next place, and the same for all that follow.
                self._draft = draft.moved_on()
                if self._offset is not None:
                    self._offset += 1

    def _is_mine(self, key: str, data: bytes) -> bool | None:
        """Whether what is there is what was sent, and only the reply was lost. None: nothing is there after all."""
        try:
            found = self._store.get(key, limit=len(data))
        except (StoreUnavailable, StoreDenied):
            raise
        except StoreError:
            # Larger than mine.
            return False
        return None if found is None else found.data == data

    def _note(self, place: Place, manifest: Manifest) -> None:
        self._newest = max(self._newest or 0, place.ordinal)
        self.commits += 1
        # A part of an older save may be committed after a newer one: that does not make it the newest.
        if self._last_place is None or place > self._last_place:
            self._last_place = place
            is_save = self._is_save(manifest)
            ref = CheckpointRef(place.key, manifest.name, manifest.step, manifest.committed_at, is_save)
            self.last = (ref, self._monotonic())

    def _is_save(self, manifest: Manifest) -> bool:
        if manifest.generation >= 0:
            return True  # The script asked for it.
        added = sum(blob.size for blob in manifest.files if blob.digest not in self._restored)
        return added >= min(_ADDED_BYTES, _ADDED_SHARE * sum(self._restored.values()))
