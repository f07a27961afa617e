"""Remove old checkpoints: manifests first, then the blobs that no manifest needs any more.

Each rank prunes its own, on the thread that commits, so a blob is never removed while a commit that needs it is being
made. A crash between the two leaves blobs without a manifest, and so does an upload that lands late. They are found by
a list, and removed only when they are old: a manifest of an earlier attempt that was being sent when its machine was
reclaimed may still land and need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from stoker.agent.checkpoints.blobs import BlobSender
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.model import keys
from stoker.model.node_facts import Manifest
from stoker.store.checkpoint_manifests import Cache, ManifestKey, StoredManifest, read_manifests
from stoker.store.checkpoints import group_by_save

# Retained saves of which other ranks have not committed their part yet. They wait for the slowest rank, but not for
# ever.
_INCOMPLETE = 8
# Blobs are listed at the first pruning and then in every so many; in between, this agent knows what it sent.
_LIST_EVERY = 50
# The age by the store's clock at which a blob without a manifest is removed. No request is in flight for so long:
# obstore gives up after minutes, and so do the stores.
ORPHANED_FOR = timedelta(hours=1)


class Pruner:
    """Retains the newest `keep` complete checkpoints and the one that was restored last."""

    def __init__(self, options: SyncOptions, sender: BlobSender) -> None:
        self._options = options
        self._store = options.store
        self._sender = sender
        self._cache: Cache = {}
        self._rounds = 0
        # The blobs of the last list, with the time each was written.
        self._listed: dict[str, datetime] = {}
        # Blobs that were to be removed when the store failed. They stay useless: no name is used again.
        self._useless: set[str] = set()

    def prune(self) -> None:
        """Run one round. Raises StoreError; objects that were not removed then are removed by a later round."""
        options = self._options
        root = keys.checkpoints(options.job)
        stored = read_manifests(self._store, options.job, root, trust=options.trust, cache=self._cache)
        last_restored = options.restored.key if options.restored is not None else None
        doomed = removable(stored, options.claim, options.rank, options.kept, last_restored)
        self._store.delete([keys.manifest(options.job, place.key) for place in doomed])
        present = {(item.meta.key, item.meta.etag) for item in stored if item.place not in doomed}
        self._cache = {seen: manifest for seen, manifest in self._cache.items() if seen in present}
        own = [item for item in stored if item.place.rank == options.rank and item.place not in doomed]
        if any(item.manifest is None for item in own):
            # A manifest that cannot be read may need any blob.
            return
        needed = {blob.name for item in own if item.manifest for blob in item.manifest.files}
        # The newest manifest was written a moment ago, so its time serves as the store's clock.
        self._remove_blobs(needed, max(item.meta.modified for item in stored) if stored else None)

    def _remove_blobs(self, needed: set[str], now: datetime | None) -> None:
        prefix = f"{keys.blobs(self._options.job)}{self._options.rank}/"
        if self._rounds % _LIST_EVERY == 0:
            self._listed = {meta.key[len(prefix) :]: meta.modified for meta in self._store.list(prefix)}
        self._rounds += 1
        own = self._sender.names
        orphans = {name for name, modified in self._listed.items() if now is not None and now - modified > ORPHANED_FOR}
        self._useless |= (own | orphans) - needed
        # Forgotten before they are removed: if the reply is lost, they may be gone.
        self._sender.forget_blobs(self._useless)
        self._store.delete([prefix + name for name in sorted(self._useless)])
        self._listed = {name: modified for name, modified in self._listed.items() if name not in self._useless}
        self._useless = set()


def removable(
    stored: Sequence[StoredManifest], claim: int, rank: int, keep: int, last_restored: str | None
) -> set[ManifestKey]:
    """Return the manifests of this rank that may be removed, as an agent of that claim sees it.

    Never removed: those of the newest `keep` complete checkpoints, the one that was restored last, and anything at all
    once a newer claim has committed, since then another attempt decides.
    """
    if any(item.place.claim > claim for item in stored):
        return set()
    complete = [checkpoint for checkpoint in group_by_save(stored) if checkpoint.complete]
    kept = _places(manifest for one in complete[-keep:] for manifest in one.manifests.values())
    restored = _places(
        manifest for one in group_by_save(stored) if one.key == last_restored for manifest in one.manifests.values()
    )
    old = _places(manifest for one in complete[:-keep] for manifest in one.manifests.values())
    own = sorted(item.place for item in stored if item.place.rank == rank)
    unreadable = {item.place for item in stored if item.manifest is None}
    own_kept = [place for place in own if place in kept]
    doomed, waiting = set(), []
    for place in own:
        if place in kept or place in restored:
            continue
        if place in unreadable:
            # A manifest of a newer Stoker, perhaps: it is removed when it would be if it could be read.
            past = len(complete) >= keep and bool(own_kept) and place < own_kept[0]
        elif own_kept:
            # An incomplete save is not waited for once a newer one is complete.
            past = place in old or place < own_kept[-1]
        else:
            past = place in old or any(place.claim < one.claim for one in kept)
        if past:
            doomed.add(place)
        else:
            waiting.append(place)
    return doomed | set(waiting[: -(keep + _INCOMPLETE)])


def _places(manifests: Iterable[Manifest]) -> set[ManifestKey]:
    return {ManifestKey(one.claim, one.ordinal, one.name, one.rank) for one in manifests}
