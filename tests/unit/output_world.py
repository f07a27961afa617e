"""An output folder, its sync, and the store that it writes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import JOB, Clock, memory_store, write

from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.testing.memory_store import Fault, MemoryStore

PREFIX = keys.outputs(JOB, 1)
LIMIT_S = 60.0


class World:
    """An output folder, a store that notes what is written, and a sync with a clock of its own."""

    def __init__(self, root: Path, *, is_local: bool = True, **more: float) -> None:
        self.folder = root / "out"
        self.folder.mkdir(parents=True)
        self.memory = memory_store(is_local=is_local)
        self.written: list[str] = []
        self.before: Callable[[str, str], Fault | None] = lambda _method, _key: None
        self.clock = Clock()
        self.client = self.memory.client(self._call)
        self.sync = OutputSync(self.client, JOB, 1, 0, self.folder, monotonic=self.clock, **more)

    def _call(self, method: str, key: str) -> Fault | None:
        fault = self.before(method, key)
        if method in ("create", "put", "put_file"):
            self.written.append(key.rpartition("/")[2])
        return fault

    def write(self, name: str, data: str | bytes) -> None:
        write(self.folder / name, data)

    def tick(self, rounds: int = 1, every_s: float = 0.5) -> None:
        for _ in range(rounds):
            self.clock.s += every_s
            self.sync.tick()

    def plain(self) -> dict[str, bytes]:
        return plain(self.memory)


def plain(store: MemoryStore) -> dict[str, bytes]:
    """What a person finds under plain names."""
    found = {}
    for meta in store.list(PREFIX):
        got = store.get(meta.key)
        assert got is not None
        found[meta.key[len(PREFIX) :]] = got.data
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
