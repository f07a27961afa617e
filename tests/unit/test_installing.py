"""Packages are installed with the real uv: in an environment of their own, or beside what the image has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench
from uv import find_uv_bin

from stoker.agent.environment.uv import PackageChange, parse_changes
from tests.support.package_index import make_wheel

pytestmark = pytest.mark.slow

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench


def test_nothing_is_made_where_everything_is_installed(bench: Bench) -> None:
    bench.write("requirements.txt", "torch>=2.4\nnumpy<2\n")
    before = len(bench.index.requests)
    assert bench.install() == {}
    assert bench.said == [
        f"requirements.txt: everything is installed already in {bench.python}, so no environment is built"
    ]
    assert len(bench.index.requests) == before, "somebody was asked for what is there"
    assert [path.name for path in bench.environments.iterdir()] == []


def test_an_environment_of_its_own_sees_nothing_of_the_image(bench: Bench) -> None:
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install()
    assert bench.version(environ, "torch") == "2.5.0"
    assert bench.version(environ, "lightning") == "2.0"
    folder = Path(environ["VIRTUAL_ENV"])
    assert folder.parent == bench.environments
    assert environ["PATH"].split(os.pathsep)[:2] == [f"{folder}/bin", str(bench.python.parent)]
    # The image is as it was.
    assert bench.version({}, "torch") == "2.4.0+cu121"


def test_the_image_has_a_framework_that_is_not_seen(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    bench.install()
    told = "environment.system_packages: true keeps what the image has"
    line = f"requirements.txt: {bench.python} has torch 2.4.0+cu121, which the environment does not see; {told}"
    assert bench.said[-1] == line
    # Told each time, not only when it is made.
    bench.install()
    assert bench.said == ["requirements.txt: its environment exists already", line]


def test_system_packages_keep_the_images_own_pytorch(bench: Bench) -> None:
    bench.write("requirements.txt", "lightning\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "torch") == "2.4.0+cu121"
    assert bench.version(environ, "lightning") == "1.0", "what needs another PyTorch was chosen"
    assert bench.said[-1] == f"requirements.txt: kept of what {bench.python} has: torch 2.4.0+cu121, numpy 1.0"
    installed = {path.name for path in Path(environ["VIRTUAL_ENV"]).glob("lib/*/site-packages/*.dist-info")}
    assert installed == {"lightning-1.0.dist-info"}
    # The image's torchrun would start the image's Python, which has no lightning.
    assert bench.runs(environ, "torchrun") == f"torchrun {environ['VIRTUAL_ENV']} 1.0"


def test_what_is_replaced_is_told_and_no_more_is_than_must_be(bench: Bench) -> None:
    bench.write("requirements.txt", "fresh\nlightning\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "numpy") == "2.0"
    assert bench.version(environ, "torch") == "2.4.0+cu121"
    assert bench.version(environ, "lightning") == "1.0"
    assert bench.said[-2:] == [
        f"requirements.txt: replaced of what {bench.python} has: numpy 1.0 → 2.0",
        f"requirements.txt: kept of what {bench.python} has: torch 2.4.0+cu121",
    ]
    assert bench.version({}, "numpy") == "1.0"


def test_a_framework_that_has_to_go_is_replaced_and_told(bench: Bench) -> None:
    bench.write("requirements.txt", "torch>=2.5\n")
    environ = bench.install(system_packages=True)
    assert bench.version(environ, "torch") == "2.5.0"
    assert f"requirements.txt: replaced of what {bench.python} has: torch 2.4.0+cu121 → 2.5.0" in bench.said


def test_what_uv_says_that_it_changed() -> None:
    text = "Resolved 5 packages\n - torch==2.4.0\n + torch==2.5.0 (from file:///x)\n + mine @ file:///y\n ~ a-b==1\n"
    assert parse_changes(text) == (
        PackageChange("-", "torch", "2.4.0"),
        PackageChange("+", "torch", "2.5.0"),
        PackageChange("+", "mine", None),
        PackageChange("~", "a-b", "1"),
    )


def test_system_packages_of_a_python_that_is_no_environment(bench: Bench) -> None:
    plain = Path(getattr(sys, "_base_executable", sys.executable))
    if subprocess.run([plain, "-c", "import pip"], check=False, capture_output=True).returncode:
        pytest.skip(f"{plain} has no package to keep")
    bench.python = plain
    bench.write("requirements.txt", "fresh\npip\n")
    environ = bench.install(system_packages=True, python=str(plain))
    assert bench.version(environ, "fresh") == "1.0"
    assert bench.version(environ, "pip") == bench.version({}, "pip")
    assert "include-system-site-packages = true" in (Path(environ["VIRTUAL_ENV"]) / "pyvenv.cfg").read_text()


def test_pip_installs_into_the_environment_and_not_into_its_base(bench: Bench) -> None:
    bench.local = False
    bench.write("requirements.txt", "lightning==1.0\n")
    environ = bench.install()
    bench.runs(environ, "pip", "install", "--quiet", "click")
    assert bench.version(environ, "click") == "8.0"
    assert not list(bench.python.parent.parent.glob("lib/*/site-packages/click*"))


# ── Every kind of file ────────────────────────────────────────────────────────────────────────────────────────────────


PROJECT = """\
[project]
name = "mine"
version = "1"
requires-python = ">=3.10"
dependencies = ["lightning<2"]
"""


def test_a_project_has_its_dependencies_installed(bench: Bench) -> None:
    bench.write("pyproject.toml", PROJECT)
    environ = bench.install("pyproject.toml")
    assert (bench.version(environ, "lightning"), bench.version(environ, "torch")) == ("1.0", "2.5.0")


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
def test_a_lock_says_what_is_installed(bench: Bench, name: str) -> None:
    bench.write("pyproject.toml", PROJECT.replace("lightning<2", "lightning<2', 'torch<2.5").replace("'", '"'))
    env = dict(bench.command(()).env)
    subprocess.run([find_uv_bin(), "lock"], cwd=bench.code, env=env, check=True, capture_output=True)
    if name == "pylock.toml":
        export = [find_uv_bin(), "export", "-q", "--no-emit-project", "--format=pylock.toml", "-o", name]
        subprocess.run(export, cwd=bench.code, env=env, check=True, capture_output=True)
    # Only the lock counts.
    bench.write("pyproject.toml", PROJECT)
    environ = bench.install(name)
    assert bench.version(environ, "torch") == "2.4.0"
    assert bench.install(name) == environ
    assert bench.said[0] == f"{name}: its environment exists already"


def test_parts_of_the_code_are_installed_as_they_are(bench: Bench) -> None:
    """Not as links to a folder that is gone with its node."""
    made = make_wheel("inner", "3.0")
    (bench.code / made.filename).write_bytes(made.data)
    bench.write("requirements.txt", f"./{made.filename}\n")
    environ = bench.install()
    (bench.code / made.filename).unlink()
    assert bench.version(environ, "inner") == "3.0"
