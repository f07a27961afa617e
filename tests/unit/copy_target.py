"""A place that checkpoints are copied to, for tests of `checkpoints.copy_to`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from checkpoint_world import JOB, World, checkpoints, memory_store

from stoker.agent.checkpoints.copy_thread import CheckpointCopies, CopySource
from stoker.agent.checkpoints.plain_copy import PlainCopy
from stoker.model.node_facts import CheckpointRef
from stoker.store.checkpoint_copy import CopyRecord, list_files
from stoker.store.checkpoint_manifests import TRUST_ALL
from stoker.store.checkpoints import Checkpoint
from stoker.testing.memory_store import MemoryStore

NOON = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore(lambda: datetime.now(timezone.utc), url="memory://copies")


@pytest.fixture
def world(tmp_path: Path, memory: MemoryStore) -> World:
    return World(tmp_path, memory, keep=100).begin()


def commit(world: World, files: dict[str, str]) -> Checkpoint:
    """Commit these files as one save of this name."""
    world.save("save", files)
    world.tick()
    return checkpoints(world.store)[-1]


def copier(tmp_path: Path, memory: MemoryStore, target: MemoryStore, job: str = JOB, hours: int = 0) -> PlainCopy:
    own = CopyRecord(job, memory.url, NOON + timedelta(hours=hours))
    return PlainCopy(memory, target, own, tmp_path)


def contents(target: MemoryStore) -> dict[str, str]:
    return {path: read(target, path) for path in list_files(target)}


def read(target: MemoryStore, path: str) -> str:
    found = target.get(path)
    assert found is not None
    return found.data.decode()


def thread(memory: MemoryStore, copy: PlainCopy, said: list[str]) -> CheckpointCopies:
    def last() -> CheckpointRef | None:
        newest = checkpoints(memory)[-1:]
        return CheckpointRef(newest[0].key, newest[0].name) if newest else None

    source = CopySource(memory, JOB, last, TRUST_ALL, 1)
    return CheckpointCopies(source, lambda check: replace(copy, check=check), said.append)
