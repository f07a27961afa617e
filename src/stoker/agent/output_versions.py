"""Write outputs so that no request that lands late brings an older version of a file back.

The first version of a file is created under its plain name. Every later one gets a name that is never used again,
`rewritten/<claim>/<boot>.<n>/<path>`, and the highest number counts for readers (`stoker.read.outputs`); lower ones
are deleted. A plain name may therefore hold anything that was ever written to it: it is kept up to date for people and
tools that look into the bucket themselves, and decides nothing where a file was rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.store.base import Store

# How the folders of other nodes' outputs are called.
_OF_A_RANK = re.compile(r"rank-[0-9]+(/|$)")


class OutputWriter:
    """The outputs of one node. One writer a boot; a later boot's numbers are higher.

    Of several `nodes`, what rank 0 itself has in a folder called `rank-<r>` lies in `rank-0/`: the others' are there.
    """

    def __init__(self, store: Store, job: str, claim: int, rank: int, boot: int, *, nodes: int) -> None:
        self._store = store
        self._job, self._claim, self._boot = job, claim, boot
        self._folder = f"rank-{rank}/" if rank else ""
        self._clashes = nodes > 1 and rank == 0
        self._plain = keys.outputs(job, claim)
        self._number = 0
        # Paths whose plain name was, or may have been, written.
        self._begun: set[str] = set()
        # Keys of versions that are, or may be, in the store, by path there.
        self._versions: dict[str, set[str]] | None = {} if boot == 0 else None
        # Large files whose plain name holds an older version.
        self.behind: set[str] = set()

    def plain_key(self, path: str) -> str:
        """The name of a file's first version."""
        return self._plain + self._stored(path)

    def _stored(self, path: str) -> str:
        """The path in the claim's outputs."""
        below = "rank-0/" if self._clashes and _OF_A_RANK.match(path) else ""
        return f"{self._folder}{below}{path}"

    def write(self, path: str, data: bytes) -> int:
        """Make a file durable that fits into memory. Answers its bytes, however often they went. Raises StoreError."""
        sent = self._place(path, lambda key: len(data) if self._store.create(key, data) else None)
        if self._stored(path) in self._known():
            self._store.put(self.plain_key(path), data)
            self.behind.discard(path)
        return sent

    def write_file(self, path: str, held: Path) -> int:
        """Make a large file durable. Its plain name is brought up to date by `publish`. Raises StoreError, OSError."""

        def send(key: str) -> int | None:
            sent = self._store.put_file(held, lambda _digest: key)
            return sent.moved if sent.moved or not sent.size else None

        sent = self._place(path, send)
        if self._stored(path) in self._known():
            self.behind.add(path)
        return sent

    def publish(self, path: str, held: Path) -> None:
        """Write a large file under its plain name, once it does not change any more. Raises StoreError, OSError."""
        self._store.put_file(held, lambda _digest: self.plain_key(path), replace=True)
        self.behind.discard(path)

    def _place(self, path: str, send: Callable[[str], int | None]) -> int:
        """Write to a name that was never written before. `send` answers None where something is there already."""
        known, stored = self._known(), self._stored(path)
        if self._boot == 0 and path not in self._begun:
            self._begun.add(path)
            sent = send(self.plain_key(path))
            if sent is not None:
                return sent
        while True:
            # A new number for every try: an earlier one may yet land.
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
            pass  # The highest counts. They are deleted with the next version, or with the job.
        return sent

    def _known(self) -> dict[str, set[str]]:
        """The versions by path. A later boot finds those of the earlier ones in the store."""
        if self._versions is None:
            found: dict[str, set[str]] = {}
            prefix = keys.output_versions(self._job, self._claim)
            for meta in self._store.list(prefix):
                version = keys.read_output_version(meta.key[len(prefix) :])
                if version is not None and version[2].startswith(self._folder):
                    found.setdefault(version[2], set()).add(meta.key)
            self._versions = found
        return self._versions
