"""A conda environment is made by the program that is there, and nothing but the environment is left of that."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from installing_machine import Bench

from stoker.agent.environment.conda import Conda, CondaEnvironment, is_installed
from stoker.model.errors import SetupFailed
from stoker.model.spec import Environment, PackageIndex

# Notes its variables and arguments, and makes a prefix: with a Python where the file asks for one.
PROGRAM = """#!/bin/sh
if [ "$1" = --version ]; then echo conda 9.9; exit; fi
here=$(dirname "$0")
echo "$*" >>"$here/asked"
env >"$here/variables"
while [ "$1" != --file ]; do shift; done
cat "$2" >"$here/file"
prefix=$4
mkdir -p "$prefix/conda-meta" "$prefix/bin" || exit 7
echo "https://me:$STOKER_CONDA_PASSWORD@host $PIP_INDEX_URL" >"$prefix/conda-meta/x.json"
if grep -q python "$2"; then ln -s /bin/true "$prefix/bin/python"; fi
if grep -q broken "$2"; then echo 'ResolvePackageNotFound: broken'; exit 1; fi
"""


class Place(Bench):
    """A machine with such a program."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, SimpleNamespace(url="http://127.0.0.1:1/"), Path(sys.executable))  # type: ignore[arg-type]
        self.programs = root / "bin"
        self.programs.mkdir()
        (self.programs / "conda").write_text(PROGRAM)
        (self.programs / "conda").chmod(0o755)
        self.env = {"PATH": f"{self.programs}:/usr/bin:/bin", "MAMBA_EXE": "", "CONDA_EXE": "", "HOME": str(root)}

    def make(self, **wishes: Any) -> CondaEnvironment:
        with self._set_up(Environment(conda="environment.yml", **wishes)) as making:
            fetch = lambda field, _: f"pass/{field.split('.')[1]}"  # noqa: E731
            return Conda(making, self.command, fetch).make()

    def noted(self, name: str) -> str:
        return (self.programs / name).read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def left(place: Place) -> list[str]:
    """Of the set-up, in the node's folder."""
    return sorted(path.name for path in (*place.code.iterdir(), *(place.root / "node/environments").glob(".conda*")))


def test_the_variables_with_which_it_is_found(place: Place) -> None:
    place.write("environment.yml", "dependencies: [python]\n")
    made = place.make()
    prefix = made.environ["CONDA_PREFIX"]
    assert Path(prefix).parent == place.environments
    assert made.environ == {
        "PATH": os.pathsep.join((f"{prefix}/bin", place.env["PATH"])),
        "CONDA_PREFIX": prefix,
        "CONDA_DEFAULT_ENV": prefix,
    }
    assert made.python == f"{prefix}/bin/python"
    program = place.programs / "conda"
    assert f"environment.yml: building an environment with {program} (conda 9.9)" in place.said
    assert place.noted("asked") == f"env create --quiet --file {place.code}/environment.yml --prefix {prefix}\n"
    assert left(place) == ["environment.yml"]
    # Once is enough.
    assert place.make() == made
    assert len(place.noted("asked").splitlines()) == 1


def test_one_without_a_python(place: Place) -> None:
    place.write("environment.yml", "dependencies: [git]\n")
    assert place.make().python is None


def test_the_installer_asks_no_questions(place: Place) -> None:
    place.write("environment.yml", "dependencies: [git]\n")
    place.make()
    told = {"CONDA_ALWAYS_YES=true", "MAMBA_ALWAYS_YES=true", "PIP_NO_INPUT=1", "NO_COLOR=1"}
    assert told <= set(place.noted("variables").splitlines())


def test_no_password_stays_in_it(place: Place) -> None:
    place.write("environment.yml", "channels: [defaults]\ndependencies: [git]\n")
    made = place.make(
        conda_channel=PackageIndex("https://me@host/conda", "env:A"), index=PackageIndex("https://host/simple", "env:B")
    )
    assert place.noted("file") == "dependencies: [git]\n"
    assert "STOKER_CONDA_PASSWORD=pass%2Fconda_channel" in place.noted("variables").splitlines()
    assert "PIP_INDEX_URL=https://__token__:pass%2Findex@host/simple" in place.noted("variables").splitlines()
    note = (Path(made.environ["CONDA_PREFIX"]) / "conda-meta/x.json").read_text()
    assert note == "https://me:***@host ***\n"
    assert left(place) == ["environment.yml"]


def test_what_cannot_be_installed_is_told_and_leaves_nothing(place: Place) -> None:
    place.write("environment.yml", "dependencies: [broken]\n")
    (place.root / "node/environments/.conda").mkdir(parents=True)
    with pytest.raises(SetupFailed) as failed:
        place.make(conda_channel=PackageIndex("https://host/conda"))
    assert failed.value.user
    told = "environment.conda: environment.yml cannot be installed: ResolvePackageNotFound: broken"
    assert str(failed.value) == told
    assert left(place) == ["environment.yml"]
    assert not [path for path in place.environments.iterdir() if path.is_dir()]


@pytest.mark.parametrize("data", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_told(place: Place, data: bytes | None) -> None:
    if data is not None:
        (place.code / "environment.yml").write_bytes(data)
    with pytest.raises(SetupFailed, match=r"^environment\.conda: environment\.yml cannot be read: ") as failed:
        place.make()
    assert failed.value.user


def test_the_programs_of_this_computer_are_looked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    assert is_installed()
