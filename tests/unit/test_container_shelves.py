"""Environments of users of containers: each has a folder, and those of users who never come back go as well."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.agent.environment.local_cache import (
    UNUSED_FOR_S,
    EnvironmentLock,
    LocalCache,
    create_user_cache,
    prune_user_caches,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root trains as others")


def made(shelf: Path, key: str) -> EnvironmentLock:
    held = LocalCache(shelf).acquire(key, lambda: None, lambda _: None)
    held.folder.mkdir()
    (held.folder / "file").touch()
    held.finish()
    return held


def age(*paths: Path) -> None:
    for path in paths:
        then = time.time() - UNUSED_FOR_S - 1
        os.utime(path, (then, then))


def with_tools(environments: Path, uid: int) -> Path:
    shelf = create_user_cache(environments, uid, uid)
    (shelf / "tools" / "1").mkdir(parents=True)
    (shelf / "tools" / "1" / "uv").touch()
    return shelf


def test_a_users_folder_is_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    shelf = create_user_cache(tmp_path, 1234, 99)
    assert shelf == tmp_path / "of-1234" and (shelf.stat().st_uid, shelf.stat().st_gid) == (1234, 99)
    assert tmp_path.stat().st_mode & 0o777 == 0o711


def test_what_a_user_did_not_use_for_long_goes_whoever_trains(tmp_path: Path) -> None:
    shelf = with_tools(tmp_path, 1234)
    for key in ("old", "used", "new"):
        held = made(shelf, key)
        if key != "used":
            held.release()
        if key != "new":
            age(shelf / f"{key}.ready", shelf / f"{key}.lock")
    age(shelf)
    prune_user_caches(tmp_path)
    assert sorted(path.name for path in shelf.iterdir() if path.is_dir()) == ["new", "tools", "used"]
    assert (shelf / "tools" / "1" / "uv").exists()


def test_a_user_who_does_not_come_back_leaves_nothing(tmp_path: Path) -> None:
    gone, empty, starting = (with_tools(tmp_path, uid) for uid in (1, 2, 3))
    made(gone, "k").release()
    age(gone / "k.ready", gone / "k.lock", gone, empty, starting)
    (tmp_path / "other").mkdir()
    age(tmp_path / "other")
    # Somebody trains as this one just now, and has made nothing yet.
    create_user_cache(tmp_path, 3, 3)
    prune_user_caches(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["of-3", "other"]
    assert (starting / "tools" / "1" / "uv").exists()
    prune_user_caches(tmp_path / "not there")
