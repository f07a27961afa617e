"""Write a rank's manifests: each once and in order, even if replies are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.model.node_facts import BlobRef, CheckpointRef, Manifest
from stoker.store.checkpoint_manifests import Cache, ManifestKey, StoredManifest, encode, read_manifests

# A commit of a watched folder that adds less than this to the restored files is no save of the script: the script wrote
# its settings, or began a log. A save of so few bytes beside files a hundred times as large is not expected.
_ADDED_BYTES = 1024 * 1024
_ADDED_SHARE = 0.01

# The store may answer "exists" and then "absent", when a concurrent write failed after all. More often than this, it is
# an outage.
_MAX_ABSENT = 5


@dataclass(frozen=True)
class ManifestDraft:
    """A manifest whose blobs are all durable. `on_written` is called with its key when it is in the store.

    `saved_at` is when its save was begun, by the monotonic clock.
    """

    manifest: Manifest
    on_written: Callable[[str], None]
    saved_at: float

    def with_next_ordinal(self) -> ManifestDraft:
        ordinal, generation = self.manifest.ordinal + 1, self.manifest.generation
        if generation == -self.manifest.ordinal:
            generation = -ordinal
        return replace(self, manifest=replace(self.manifest, ordinal=ordinal, generation=generation))


@dataclass
class _Ordinals:
    """The numbers of one rank's manifests in one attempt."""

    # Ordinals to skip after those in the store.
    gap: int
    # The newest ordinal that is used; None: not read from the store yet.
    newest: int | None = None
    # The difference between the ordinal and the sequence number of a request, once one was committed.
    offset: int | None = None


class ManifestWriter:
    """Writes the manifests of one rank in one attempt.

    A draft that may or may not be in the store (*in doubt*) goes before everything else. It must not be forgotten, or
    its blobs could be pruned.
    """

    def __init__(self, options: SyncOptions) -> None:
        self._options = options
        self._store = options.store
        # A manifest that an earlier agent was sending when it died may still land: its number is left out.
        self._ordinals = _Ordinals(gap=1 if options.recovering else 0)
        restored = options.restored.files if options.restored is not None else ()
        self._restored_sizes = {part.blob.digest: part.blob.size for part in restored}
        self._cache: Cache = {}
        self._draft: ManifestDraft | None = None
        self.commits = 0
        # The newest commit of this attempt, and when its save was begun by the monotonic clock.
        self.last: tuple[CheckpointRef, float] | None = None
        self._last_place: ManifestKey | None = None

    @property
    def in_doubt(self) -> bool:
        """True while a manifest may or may not be in the store."""
        return self._draft is not None

    def read(self) -> list[StoredManifest]:
        """Read the manifests of this attempt, of every rank."""
        options = self._options
        root = f"{keys.checkpoints(options.job)}{keys.number(options.claim)}/"
        return read_manifests(self._store, options.job, root, trust=options.trust, cache=self._cache)

    def next_ordinal(self) -> int:
        """Return one more than the newest ordinal of this rank in this claim."""
        ordinals = self._ordinals
        if ordinals.newest is None:
            own = [item.place.ordinal for item in self.read() if item.place.rank == self._options.rank]
            ordinals.newest = max(own, default=0) + ordinals.gap
        return ordinals.newest + 1

    def ordinal_of(self, sequence: int) -> int:
        """Return the ordinal of a request: ordinals keep the order of requests, whenever these are committed."""
        if self._ordinals.offset is None:
            self._ordinals.offset = max(0, self.next_ordinal() - sequence)
        return sequence + self._ordinals.offset

    def manifest(
        self,
        name: str,
        ordinal: int,
        files: tuple[BlobRef, ...],
        *,
        ranks: tuple[int, ...] = (0,),
        step: int | None = None,
        generation: int = 0,
        pause_s: float = 0.0,
    ) -> Manifest:
        return Manifest(
            name=name,
            job=self._options.job,
            claim=self._options.claim,
            rank=self._options.rank,
            ordinal=ordinal,
            committed_at=self._options.now(),
            files=files,
            ranks=ranks,
            step=step,
            generation=generation,
            pause_s=pause_s,
        )

    def publish(self, draft: ManifestDraft) -> None:
        """Write the manifest. After StoreError it is in doubt, and `resume` must be called until it is not.

        Raises CheckpointTooLarge for a manifest that no reader would accept: it is never written, and not in doubt.
        """
        self.resume()
        encode(draft.manifest)
        self._draft = draft
        self.resume()

    def resume(self) -> None:
        """Send the draft in doubt again, if there is one. Raises StoreError."""
        absent = 0
        while self._draft is not None:
            draft = self._draft
            manifest = draft.manifest
            place = ManifestKey(manifest.claim, manifest.ordinal, manifest.name, manifest.rank)
            key, data = keys.manifest(self._options.job, place.key), encode(manifest)
            own = True if self._store.create(key, data) else self._is_own(key, data)
            if own is None:
                absent += 1
                if absent >= _MAX_ABSENT:
                    raise StoreUnavailable(f"{key} is neither stored nor can be created")
            elif own:
                self._draft = None
                self._note(place, manifest, draft.saved_at)
                draft.on_written(place.key)
            else:
                # Another agent's manifest, such as that of a restarted one: take the next ordinal, and shift all that
                # follow.
                self._draft = draft.with_next_ordinal()
                if self._ordinals.offset is not None:
                    self._ordinals.offset += 1

    def _is_own(self, key: str, data: bytes) -> bool | None:
        """Return True if the stored object is what was sent, and only the reply was lost. None: there is no object."""
        try:
            found = self._store.get(key, limit=len(data))
        except (StoreUnavailable, StoreDenied):
            raise
        except StoreError:
            # The stored object is larger.
            return False
        return None if found is None else found.data == data

    def _note(self, place: ManifestKey, manifest: Manifest, saved_at: float) -> None:
        self._ordinals.newest = max(self._ordinals.newest or 0, place.ordinal)
        self.commits += 1
        # Part of an older save may be committed after a newer save: that does not make it the newest.
        if self._last_place is None or place > self._last_place:
            self._last_place = place
            is_save = self._is_save(manifest)
            ref = CheckpointRef(place.key, manifest.name, manifest.step, manifest.committed_at, is_save)
            self.last = (ref, saved_at if self.last is None else max(saved_at, self.last[1]))

    def _is_save(self, manifest: Manifest) -> bool:
        """Return False for a commit of a watched folder that adds next to nothing to the restored files."""
        if manifest.generation >= 0:
            return True  # The script asked for it.
        added = sum(blob.size for blob in manifest.files if blob.digest not in self._restored_sizes)
        return added >= min(_ADDED_BYTES, _ADDED_SHARE * sum(self._restored_sizes.values()))
