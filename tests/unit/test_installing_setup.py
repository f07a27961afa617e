"""A set-up that may install packages has an environment of its own, and changes nobody's Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench

from stoker.agent.environment.archive import list_folder

pytestmark = pytest.mark.slow

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench


def test_a_set_up_that_may_change_it_has_one_of_its_own(bench: Bench) -> None:
    bench.write("requirements.txt", "click\n")
    bench.setup = "pip install lightning"
    environ = bench.install()
    assert Path(environ["VIRTUAL_ENV"]).is_relative_to(bench.root / "node")


@pytest.mark.parametrize("requirements", [None, "none", "requirements.txt"])
@pytest.mark.parametrize("named", [True, False])
def test_a_set_up_changes_nobodys_python(bench: Bench, requirements: str | None, named: bool) -> None:
    """With nothing to install, and with everything there already."""
    bench.write("requirements.txt", "torch\n")
    bench.setup = "pip install lightning"
    base = bench.python
    if named:
        bench.python = Path("/usr/bin/python3")
    environ = bench.install(requirements, **({"python": str(base)} if named else {}))
    folder = Path(environ["VIRTUAL_ENV"])
    assert folder.is_relative_to(bench.root / "node") and not list(bench.environments.glob("*.lock"))
    assert bench.version(environ, "torch") == "2.4.0+cu121", "what the Python has is not seen"
    before = list_folder(base.parent.parent).dump()
    settings = {"PIP_INDEX_URL": bench.index.url, "PIP_CONFIG_FILE": os.devnull, "PIP_USER": "1"}
    said = bench.runs({**settings, **environ}, "pip", "install", "--no-cache-dir", "lightning<2")
    assert "torch" not in said.partition("Successfully installed")[2], "what is there was installed again"
    assert bench.runs(environ, "python", "-c", "import lightning; print(lightning.__file__)").startswith(str(folder))
    assert bench.runs(environ, "torchrun") == f"torchrun {folder} 1.0"
    assert list_folder(base.parent.parent).dump() == before
    # Made anew each time: nobody knows what an earlier one was left in.
    assert bench.install(requirements, **({"python": str(base)} if named else {})) == environ
    assert not list(folder.glob("lib/*/site-packages/lightning*"))


def test_a_set_up_on_a_python_that_is_no_environment(bench: Bench) -> None:
    plain = Path(getattr(sys, "_base_executable", sys.executable))
    bench.setup = "pip install fresh"
    bench.python = plain
    environ = bench.install(None)
    settings = {"PIP_INDEX_URL": bench.index.url, "PIP_CONFIG_FILE": os.devnull}
    bench.runs({**settings, **environ}, "pip", "install", "--no-cache-dir", "--no-deps", "fresh")
    there = bench.runs(environ, "python", "-c", "import fresh; print(fresh.__file__)")
    assert there.startswith(str(bench.root / "node"))
    # Programs are found in the order that they were found in.
    assert environ["PATH"] == f"{environ['VIRTUAL_ENV']}/bin:{bench.command(()).env['PATH']}"


def test_a_set_up_that_changes_nobodys_python_needs_no_environment(bench: Bench) -> None:
    assert bench.install(None) == {}
    bench.setup = "make"
    (bench.root / "bin").mkdir()
    (bench.root / "bin/sh").symlink_to("/bin/sh")
    bench.env = {"PATH": str(bench.root / "bin")}
    assert bench.install(None) == {}
    (said,) = bench.said
    assert said.startswith("setup has no environment of its own: environment.python: there is no python on this")
