"""The Python that a job names is what `python` means on its machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import installing_machine
import pytest
from installing_machine import Bench

from stoker.model.errors import SetupFailed

# Fixtures that all tests of installing share.
index, image, bench = installing_machine.index, installing_machine.image, installing_machine.bench


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("3.99", "environment.python: there is no Python '3.99' on this machine; there are "),
        ("vision", "environment.python: there is no Python 'vision' on this machine; there are "),
        ("/opt/none/bin/python", "environment.python: there is no Python '/opt/none/bin/python' on this machine"),
        ("/bin/false", "environment.python: /bin/false does not run on this machine"),
    ],
)
def test_a_python_that_is_not_there(bench: Bench, wanted: str, told: str) -> None:
    bench.local = False
    with pytest.raises(SetupFailed) as failure:
        bench.install(None, python=wanted)
    assert failure.value.user
    assert str(failure.value).startswith(told)
    assert "\n" not in str(failure.value)


def test_a_python_by_its_version_is_what_python_means(bench: Bench, tmp_path: Path) -> None:
    bench.local = False
    programs = tmp_path / "programs"
    programs.mkdir()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    plain = getattr(sys, "_base_executable", sys.executable)
    (programs / f"python{version}").symlink_to(plain)
    bench.python = programs / "python"
    environ = bench.install(None, python=version)
    assert bench.runs(environ, "python", "-c", "import sys; print(sys.version_info[:2])") == str(sys.version_info[:2])


@pytest.mark.parametrize("other", [True, False])
def test_a_python_of_this_computer_is_what_python_means_where_nothing_is_installed(
    bench: Bench, tmp_path: Path, other: bool
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mine").symlink_to(getattr(sys, "_base_executable", sys.executable))
    if other:
        # As where `/usr/bin/python3.11` is named, and `/usr/bin/python` is another one.
        (programs / "python").write_text("#!/bin/sh\necho other\n")
        (programs / "python").chmod(0o755)
    environ = bench.install(None, python=str(programs / "mine"))
    for name in ("python", "python3"):
        # The link is the node's own, and leads to the one that was named.
        link = bench.root / "node/bin" / name
        assert bench.runs(environ, name, "-c", "import sys; print(sys.executable)") == str(link)
        assert link.samefile(programs / "mine")
    # One that is called `python` needs nothing, and nobody is asked.
    (programs / "python").unlink(missing_ok=True)
    (programs / "python").symlink_to(programs / "mine")
    assert bench.install(None, python=str(programs / "python")) == {}


def test_a_python_by_the_name_of_its_conda_environment(bench: Bench, tmp_path: Path) -> None:
    bench.local = False
    folder = tmp_path / "conda/envs/vision/bin"
    folder.mkdir(parents=True)
    (tmp_path / "conda/bin").mkdir()
    shutil.copy("/bin/true", tmp_path / "conda/bin/conda")
    (folder / "python").symlink_to(getattr(sys, "_base_executable", sys.executable))
    bench.python = tmp_path / "conda/bin/python"
    environ = bench.install(None, python="vision")
    assert environ["PATH"].startswith(str(folder))


def test_frameworks_are_found_by_the_names_of_their_folders(tmp_path: Path) -> None:
    """Without importlib.metadata, which takes longer to import than all else that a Python is asked."""
    import json
    import subprocess

    from stoker.agent.environment.python import _ASK, _MARK

    folder = tmp_path / "packages"
    for name in ("torch-2.4.0+cu121.dist-info", "tensorflow-2.16.1-py3.11.egg-info", "torch_geometric-2.5.0.dist-info"):
        (folder / name).mkdir(parents=True)
    (folder / "jax").mkdir()
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); before = set(sys.modules)\n{_ASK}\n"
    code += "assert 'importlib.metadata' not in set(sys.modules) - before\n"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    (line,) = [line for line in said.stdout.splitlines() if line.startswith(_MARK)] or [said.stderr]
    assert json.loads(line.removeprefix(_MARK))["frameworks"] == {"torch": "2.4.0+cu121", "tensorflow": "2.16.1"}
    assert said.returncode == 0, said.stderr
