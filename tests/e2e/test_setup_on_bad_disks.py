"""A machine that refuses what the set-up needs: told in one line, and tried again only where that may help."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import World

from tests.support.package_index import make_wheel, package_index


@pytest.fixture(autouse=True)
def _index(monkeypatch: pytest.MonkeyPatch, world: World) -> Iterator[None]:
    with package_index(make_wheel("alpha", "1.0", files={"alpha/large": os.urandom(24_000_000)})) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(world.root / "uv-cache"))
        yield


def test_what_the_machine_refuses_is_named(world: World) -> None:
    world.write("import alpha")
    (world.code / "requirements.txt").write_text("alpha\n")
    world.home.mkdir(parents=True, exist_ok=True)
    (world.home / "environments").write_text("in the way")
    summary = world.ended(world.submit())
    assert summary.outcome == "failed"
    reasons = {attempt.reason for attempt in summary.attempts}
    assert all(f"the machine failed in the set-up: {world.home}/environments" in reason for reason in reasons), reasons
    assert any("the machine failed in the set-up" in line for line in world.lines(summary.id))


@pytest.fixture
def small(world: World) -> Iterator[Path]:
    """A disk that is too small for what is installed, and large enough for an agent."""
    folder = world.home / "environments"
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("no file system of one's own can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_not_tried_five_times(world: World, small: Path) -> None:
    world.write("import alpha")
    (world.code / "requirements.txt").write_text("alpha\n")
    summary = world.ended(world.submit())
    assert summary.outcome == "failed", world.story(summary.id)
    (attempt,) = summary.attempts
    assert "resources.disk" in attempt.reason, attempt.reason
