"""Python packages: installed before the training starts, in an environment of their own, quick the second time."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator

import pytest
from harness import World, fields

from tests.support.package_index import PackageIndex, make_wheel, package_index

TRAIN = """\
import sys
import alpha
print("alpha", alpha.__version__, "in", sys.prefix, flush=True)
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, world: World) -> Iterator[PackageIndex]:
    """An index on loopback that uv uses, with a cache that nobody else has."""
    wheels = [make_wheel("alpha", version, requires=("beta",)) for version in ("1.0", "2.0")]
    with package_index(*wheels, make_wheel("beta", "1.0")) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(world.root / "uv-cache"))
        yield served


def test_requirements_are_found_announced_and_installed_once(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha<2\n")
    ran = world.cli("run", "--", "python", "train.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "requirements.txt is installed before the training starts" in ran.stderr
    assert f"alpha 1.0 in {world.home}/environments/" in ran.stdout
    asked = len(index.requests)
    second = world.submit()
    assert world.ended(second).phase == "succeeded"
    assert "[stoker] requirements.txt: its environment exists already" in world.lines(second)
    assert len(index.requests) == asked


def test_nodes_of_one_computer_make_it_once(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    job = world.submit(nodes=3)
    assert world.ended(job).phase == "succeeded", world.story(job)
    lines = world.lines(job)
    assert len([line for line in lines if line.startswith("alpha 2.0 in ")]) == 3
    assert len([line for line in lines if ": building an environment on Python" in line]) == 1
    assert len([path for path in index.requests if path.endswith("alpha-2.0-py3-none-any.whl")]) == 1


def test_a_package_that_is_nowhere_fails_the_attempt_as_a_mistake_of_the_users(
    world: World, index: PackageIndex
) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("no-such-package\n")
    job = world.submit()
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("failed",)], world.story(job)
    assert "environment.requirements: requirements.txt cannot be installed: No solution found" in summary.reason
    assert "no-such-package was not found in the package registry" in summary.reason


def test_what_the_set_up_installs_is_for_this_job_alone(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("beta\n")
    job = world.submit(setup="pip install 'alpha<2'")
    assert world.ended(job).phase == "succeeded", world.story(job)
    (line,) = [line for line in world.lines(job) if line.startswith("alpha ")]
    assert line.startswith(f"alpha 1.0 in {world.home}/nodes/")
    other = world.submit()
    assert world.ended(other).phase == "failed"
    assert any("No module named 'alpha'" in line for line in world.lines(other))


@pytest.mark.parametrize("requirements", [None, "none", "requirements.txt"])
def test_what_the_set_up_installs_is_not_in_the_users_own_python(
    world: World, index: PackageIndex, monkeypatch: pytest.MonkeyPatch, requirements: str | None
) -> None:
    """With no requirements, with none wanted, and with all of them there already."""
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("click\n")
    if requirements is None:
        (world.code / "requirements.txt").unlink()
    environment = {"requirements": requirements} if requirements else {}
    job = world.submit(setup="pip install 'alpha<2'", environment=environment)
    assert world.ended(job).phase == "succeeded", world.story(job)
    (line,) = [line for line in world.lines(job) if line.startswith("alpha ")]
    assert line.startswith(f"alpha 1.0 in {world.home}/nodes/")
    assert importlib.util.find_spec("alpha") is None, "it went into the Python of whoever submitted"


def test_none_installs_nothing(world: World, index: PackageIndex) -> None:
    world.write("print('plain')\n")
    (world.code / "requirements.txt").write_text("alpha\n")
    job = world.submit(environment={"requirements": "none"})
    assert world.ended(job).phase == "succeeded"
    assert world.lines(job) == ["[stoker] attempt 1", "plain"]
    assert index.requests == []


def test_what_a_training_does_to_its_environment_is_undone_for_the_next_job(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha==1.0\n")
    first = world.submit(run="pip install alpha==2.0 && python train.py")
    assert world.ended(first).phase == "succeeded", world.story(first)
    assert any(line.startswith("alpha 2.0 in ") for line in world.lines(first))
    told = "[stoker] requirements.txt: its environment was modified after it was built, so it is built again"
    second = world.submit()
    assert world.ended(second).phase == "succeeded", world.story(second)
    assert told in world.lines(second)
    assert any(line.startswith("alpha 1.0 in ") for line in world.lines(second))
    (made,) = [path for path in (world.home / "environments").iterdir() if path.is_dir()]
    shutil.rmtree(made / "lib")
    third = world.submit()
    assert world.ended(third).phase == "succeeded", world.story(third)
    assert told in world.lines(third)
    # What was compiled meanwhile is no change.
    fourth = world.submit()
    assert world.ended(fourth).phase == "succeeded"
    assert "[stoker] requirements.txt: its environment exists already" in world.lines(fourth)


def test_variables_of_uv_are_part_of_what_an_environment_is(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    pins = world.root / "pins.txt"
    pins.write_text("alpha<2\n")
    for env, version in (({}, "2.0"), ({"UV_CONSTRAINT": str(pins)}, "1.0")):
        job = world.submit(env=env)
        assert world.ended(job).phase == "succeeded", world.story(job)
        assert any(line.startswith(f"alpha {version} in ") for line in world.lines(job))


def test_a_set_up_that_says_nothing_is_not_blamed_with_what_uv_said(world: World, index: PackageIndex) -> None:
    world.write(TRAIN)
    (world.code / "requirements.txt").write_text("alpha\n")
    summary = world.ended(world.submit(setup="exit 3"))
    assert summary.reason.endswith("setup: exited with 3 and printed nothing"), summary.reason
