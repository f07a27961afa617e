"""Environments that are kept in a store, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.agent.environment.archive import list_folder
from stoker.agent.environment.store_cache import StoreCache
from stoker.model import keys
from stoker.testing.memory_store import Fault, MemoryStore

HERE = "linux-x86_64 glibc-2.36 cpython-311"
NOW = datetime.now(timezone.utc)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder such as an environment is."""
    folder = tmp_path / "made"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/tool").write_text("#!/bin/sh\n")
    (folder / "bin/tool").chmod(0o755)
    (folder / "lib/site").mkdir(parents=True)
    (folder / "lib/empty").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib/site/__init__.py").touch()
    for number in range(20):
        (folder / f"lib/site/m{number}.py").write_bytes(bytes([number]) * (7 * number))
    (folder / "lib/site/large.so").write_bytes(os.urandom(1234))
    for place, path in enumerate(sorted(folder.rglob("*.*"))):
        os.utime(path, (1000 + place, 1000 + place))
    return folder


def store(faults: Callable[[str, str], Fault | None] | None = None) -> MemoryStore:
    return MemoryStore(lambda: NOW, faults=faults)


def keep(kept_in: MemoryStore, folder: Path, key: str = "k", job: str = "job-abcd") -> bool:
    return StoreCache(kept_in, job).upload(key, HERE, folder, list_folder(folder))


def restore(kept_in: MemoryStore, folder: Path, key: str = "k", job: str = "job-abcd") -> bool:
    """False: nothing is kept."""
    found = StoreCache(kept_in, job).find(key)
    if found is not None:
        StoreCache(kept_in, job).restore(found, key, HERE, folder)
    return found is not None


def picture(folder: Path) -> dict[str, object]:
    """All that there is, with modes and times."""
    return {
        str(path.relative_to(folder)): (
            path.readlink()
            if path.is_symlink()
            else None
            if path.is_dir()
            else (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime_ns // 10**9)
        )
        for path in folder.rglob("*")
    }


def parts(kept_in: MemoryStore, place: str = keys.ENVIRONMENTS) -> list[str]:
    return [meta.key for meta in kept_in.list(place) if len(meta.key.rpartition("/")[2]) == 64]


def truncate(kept_in: MemoryStore, key: str) -> None:
    found = kept_in.get(key)
    assert found is not None
    kept_in.put(key, found.data[:-1])
