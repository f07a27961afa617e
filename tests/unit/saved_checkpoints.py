"""Checkpoints in a store, for tests that restore and import them."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import (
    JOB,
    World,
    checkpoints,
    memory_store,
)

from stoker.model import keys
from stoker.store.base import Store, open_store
from stoker.testing.memory_store import MemoryStore


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory_store() if request.param == "memory" else open_store(str(tmp_path / "store"))


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


def saved(tmp_path: Path, store: Store, steps: int = 3, claim: int = 1) -> World:
    world = World(tmp_path, store, keep=100, claim=claim).begin()
    for step in range(steps):
        world.save(f"step-{step}", {"model": f"model {step}", "sub/optimizer": f"optimizer {step}"}, step=step)
        world.tick()
    return world


def blob_of(store: Store, number: int, path: str) -> str:
    """Where the bytes of a file of the n-th checkpoint are."""
    manifest = checkpoints(store)[number].manifests[0]
    (blob,) = [blob for blob in manifest.files if blob.path.endswith(path)]
    return keys.blob(JOB, 0, blob.name)
