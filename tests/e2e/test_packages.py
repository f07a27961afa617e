"""Python packages: installed before the training starts, in an environment of their own, quick the second time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import World

from stoker.testing.package_index import PackageIndex, make_wheel, package_index

TRAIN = """\
import sys
from pathlib import Path
import alpha
print("alpha", alpha.__version__, "in", sys.prefix, flush=True)
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, world: World) -> Iterator[PackageIndex]:
    """An index on loopback that uv uses, with a cache that nobody else has."""
    wheels = [make_wheel("alpha", version, requires=("beta",)) for version in ("1.0", "2.0")]
    wheels += [make_wheel("beta", "1.0", scripts={"say-beta": "beta:main"})]
    with package_index(*wheels) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(world.root / "uv-cache"))
        yield served


def test_requirements_are_found_and_installed_once(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha<2\n")
    first = world.submit()
    world.ended(first)
    lines = world.lines(first)
    print("\n".join(lines))
    asked = len(index.requests)
    second = world.submit()
    world.ended(second)
    print("\n".join(world.lines(second)))
    assert len(index.requests) == asked
