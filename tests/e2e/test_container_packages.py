"""What is installed in a container, by a real docker: Debian packages as root, and packages from an index or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import World
from test_secrets_nowhere import found_in

from tests.support.deb_repository import deb_repository, make_deb
from tests.support.engines import IMAGE, Docker, why_no_docker
from tests.support.package_index import make_wheel, package_index

pytestmark = pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")

PASSWORD = "hunter2-Zm9v%#'x&9"


@pytest.fixture
def engine(engine: Docker, world: World, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """No packages but those of the tests."""
    monkeypatch.setenv("COMPANY_TOKEN", PASSWORD)
    monkeypatch.setenv("UV_CACHE_DIR", str(world.root / "uv-cache"))
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    return engine


def contained(**run: Any) -> dict[str, Any]:
    # Its own network has no way to a repository on loopback.
    return {"image": IMAGE, "run": {"network": "host", **run}}


@pytest.mark.parametrize("user", [None, "1000:1000"])
def test_debian_packages_as_root_whoever_trains(world: World, engine: Docker, user: str | None) -> None:
    world.write("import os\nprint(open('/usr/share/stoker-tiny/version').read(), 'as', os.getuid(), flush=True)\n")
    run = {} if user is None else {"user": user}
    with deb_repository(make_deb("stoker-tiny", "1.7"), password=PASSWORD) as repository:
        mirror = {"url": f"[trusted=yes] {repository.url} ./", "secret": "env:COMPANY_TOKEN"}
        job = world.submit(environment={"apt": ["stoker-tiny"], "apt_mirror": mirror, "container": contained(**run)})
        ended = world.ended(job)
    assert ended.phase == "succeeded", world.story(job)
    lines = world.lines(job)
    assert "1.7" in lines and (" as 0" if user is None else " as 1000") in lines
    assert found_in(world.root, PASSWORD) == []


def test_wheels_in_a_container(world: World, engine: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write("import alpha, sys\nprint('alpha', alpha.__version__, sys.version_info[:2], flush=True)\n")
    (world.code / "requirements.txt").write_text("alpha\n")
    python = engine.ask(
        "run", "--rm", "--entrypoint=python3", IMAGE, "-c", "import sys; print(sys.version[:4])"
    ).strip()
    with package_index(make_wheel("alpha", "1.0", tag=f"cp{python.replace('.', '')}-none-any")) as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        wishes = {"wheels": "pack", "python": python, "container": contained()}
        job = world.submit(environment=wishes)
    ended = world.ended(job)
    assert ended.phase == "succeeded", world.story(job)
    assert f"alpha 1.0 ({python.replace('.', ', ')})" in world.lines(job)


def test_another_user_has_environments_of_its_own(world: World, engine: Docker) -> None:
    """It may change them, and is given nothing of what others use."""
    world.write(
        """
import alpha, os, pathlib, sys
mark = pathlib.Path(sys.prefix, "mark")
mark.touch()
mark.unlink()
print("alpha", alpha.__version__, "as", os.getuid(), "in", sys.prefix, flush=True)
"""
    )
    (world.code / "requirements.txt").write_text("alpha\n")
    shelf = world.home / "environments"
    told = []
    with package_index(make_wheel("alpha", "1.0")) as index:
        for user in ("0", "1234:1234", "1234:1234"):
            environment = {"index": {"url": index.url}, "container": contained(user=user)}
            job = world.submit(nodes=2, environment=environment)
            assert world.ended(job).phase == "succeeded", world.story(job)
            told.append([line for line in world.lines(job) if line.startswith("alpha")])
    roots, first, again = told
    assert [" ".join(line.split()[:4]) for line in roots] == ["alpha 1.0 as 0"] * 2
    assert [" ".join(line.split()[:4]) for line in first] == ["alpha 1.0 as 1234"] * 2
    assert first == again and f"in {shelf}/of-1234/" in first[0]
    owners = {path.lstat().st_uid for path in shelf.rglob("*") if not path.is_relative_to(shelf / "of-1234")}
    assert owners == {0} and shelf.stat().st_uid == 0
    made = Path(first[0].split(" in ")[1])
    assert {path.lstat().st_uid for path in (made, made / "lib", shelf / "of-1234" / "cache")} == {1234}
