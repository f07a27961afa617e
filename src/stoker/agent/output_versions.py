"""Write outputs so that no request that lands late brings an older version of a file back.

The first version of a file is created under its plain name. Every later version gets a name that is never used again,
`rewritten/<claim>/<boot>.<n>/<path>`. The highest number counts for readers (`stoker.read.outputs`); lower ones are
deleted. A plain name may therefore hold any version that was ever written to it. It is kept up to date for people and
tools that read the bucket themselves, but readers ignore it if the file was rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.store.base import Store

# Names of the folders with other nodes' outputs.
_RANK_FOLDER = re.compile(r"rank-[0-9]+(/|$)")


class OutputWriter:
    """Writes the outputs of one node. One writer for each boot; a later boot has higher numbers.

    With several `nodes`, rank 0's own files in a folder called `rank-<r>` are stored below `rank-0/`, since `rank-<r>/`
    holds the outputs of another node.
    """

    def __init__(self, store: Store, job: str, claim: int, rank: int, boot: int, *, nodes: int) -> None:
        self._store = store
        self._job, self._claim, self._boot = job, claim, boot
        self._folder = f"rank-{rank}/" if rank else ""
        self._clashes = nodes > 1 and rank == 0
        self._plain = keys.outputs(job, claim)
        self._number = 0
        # Paths whose plain name was written, or may have been.
        self._begun: set[str] = set()
        # Keys of versions that are in the store, or may be, by stored path.
        self._versions: dict[str, set[str]] | None = {} if boot == 0 else None
        self.bytes_moved = 0
        # Large files whose plain name holds an older version.
        self.behind: set[str] = set()

    def plain_key(self, path: str) -> str:
        """Return the key of a file's first version."""
        return self._plain + self.stored_path(path)

    def stored_path(self, path: str) -> str:
        """Return the path of a file in the claim's outputs."""
        below = "rank-0/" if self._clashes and _RANK_FOLDER.match(path) else ""
        return f"{self._folder}{below}{path}"

    def write(self, path: str, data: bytes) -> None:
        """Store a file that fits into memory. Its size counts once, however often it was sent. Raises StoreError."""
        self.bytes_moved += self._place(path, lambda key: len(data) if self._store.create(key, data) else None)
        if self.stored_path(path) in self._known():
            self._store.put(self.plain_key(path), data)
            self.behind.discard(path)

    def write_file(self, path: str, pinned: Path) -> None:
        """Store a large file. `publish` brings its plain name up to date. Raises StoreError, OSError."""

        def send(key: str) -> int | None:
            sent = self._store.put_file(pinned, lambda _digest: key)
            return sent.moved if sent.moved or not sent.size else None

        self.bytes_moved += self._place(path, send)
        if self.stored_path(path) in self._known():
            self.behind.add(path)

    def publish(self, path: str, pinned: Path) -> None:
        """Write a large file under its plain name, once it does not change any more. Raises StoreError, OSError."""
        self._store.put_file(pinned, lambda _digest: self.plain_key(path), replace=True)
        self.behind.discard(path)

    def _place(self, path: str, send: Callable[[str], int | None]) -> int:
        """Write to a key that was never written before. `send` returns None if an object is there already."""
        known, stored = self._known(), self.stored_path(path)
        if self._boot == 0 and path not in self._begun:
            self._begun.add(path)
            sent = send(self.plain_key(path))
            if sent is not None:
                return sent
        while True:
            # A new number for every try: an earlier request may still land.
            self._number += 1
            key = keys.output_version(self._job, self._claim, self._boot, self._number, stored)
            lower = known.setdefault(stored, set())
            known[stored] = lower | {key}
            sent = send(key)
            if sent is not None:
                break
        try:
            self._store.delete(sorted(lower))
            known[stored] = {key}
        except StoreError:
            pass  # The highest number counts. The others are deleted with the next version, or with the job.
        return sent

    def _known(self) -> dict[str, set[str]]:
        """Return the known versions by path. A later boot finds those of earlier boots in the store."""
        if self._versions is None:
            found: dict[str, set[str]] = {}
            prefix = keys.output_versions(self._job, self._claim)
            for meta in self._store.list(prefix):
                version = keys.read_output_version(meta.key[len(prefix) :])
                if version is not None and version[2].startswith(self._folder):
                    found.setdefault(version[2], set()).add(meta.key)
            self._versions = found
        return self._versions
