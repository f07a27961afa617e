"""Files of packages that nothing could be installed from: told before a machine is asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from uv import find_uv_bin

from stoker.model.errors import UserError
from stoker.model.spec import Environment, Spec
from stoker.submit.requirements_file import check_conda, choose_requirements

WRONG = [
    "numpy=1.0",
    "torch 2.1",
    "import torch",
    "numpy>=",
    "numpy==",
    "numpy>=1 <2",
    "numpy, scipy",
    "numpy[",
    "numpy;",
    "x=1=py_0",
    "pip install numpy",
    "a-",
    "_x",
    "- numpy",
    "<html>",
    "é",
]
RIGHT = [
    "numpy",
    "numpy == 1.0  # the old one",
    "numpy>1,<2,",
    "numpy (>=1, <2)",
    "numpy[a,b]>=1 ; python_version > '3'",
    "a [b] >= 1",
    "Zope.Interface~=5.0",
    "numpy==1.*",
    "numpy==v1.0",
    "numpy @ https://host/numpy-1.0-py3-none-any.whl",
    "numpy@git+https://host/numpy.git@main#subdirectory=x",
    "git+https://host/numpy.git",
    "https://host/numpy-1.0-py3-none-any.whl",
    "./libs/mine",
    "libs/mine[extra]",
    "wheels/numpy-1.0-py3-none-any.whl",
    "numpy-1.0-py3-none-any.whl",
    "-e .",
    "--index-url https://host/simple",
    "numpy==1.0 --hash=sha256:00 --hash=sha256:11",
    "numpy==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11",
    "${NAME}==1.0",
    "numpy==${VERSION}",
]


def spec(**wishes: object) -> Spec:
    return Spec(name="j", run="true", environment=Environment(**wishes))  # type: ignore[arg-type]


def choose(code: Path, name: str, text: str | bytes) -> None:
    (code / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    choose_requirements(spec(requirements=name), code, {path.name for path in code.iterdir()})


@pytest.mark.parametrize("line", WRONG)
def test_a_line_that_is_no_requirement_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError) as refused:
        choose(tmp_path, "requirements.txt", f"# ours\nscipy \\\n  >=1\n\n{line}\n")
    assert str(refused.value).startswith(f"environment.requirements: requirements.txt:5: {line!r} is no requirement; ")
    # Whoever would install it says so, too.
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    uv = [find_uv_bin(), "pip", "compile", "--offline", "--no-deps", "--no-config", "--no-cache", "requirements.txt"]
    said = subprocess.run(uv, cwd=tmp_path, capture_output=True, text=True, check=False).stderr
    assert "Couldn't parse requirement" in said or "expected '-c', '-e', '-r' or the start of a requirement" in said


@pytest.mark.parametrize("line", RIGHT)
def test_what_may_be_a_requirement_is_left_to_uv(tmp_path: Path, line: str) -> None:
    choose(tmp_path, "requirements.txt", f"\ufeff{line}\nscipy\n")
    choose(tmp_path, "requirements.txt", f"{line}\r\nscipy\r\n".encode("utf-16"))


def test_what_is_included_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text("numpy 2\n")
    with pytest.raises(UserError, match=r"pins.txt:1: 'numpy 2' is no requirement"):
        choose(tmp_path, "requirements.txt", "numpy\n-c pins.txt\n")


@pytest.mark.parametrize("name", ["pyproject.toml", "pylock.toml", "uv.lock"])
def test_what_is_no_toml_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(
        UserError, match=rf"environment.requirements: {name} is not valid TOML: .*line 2.*; correct it$"
    ):
        choose(tmp_path, name, "[project]\nname = mine\n")
    choose(tmp_path, name, '[project]\nname = "mine"\n')


def test_settings_of_uv_that_are_no_toml(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text("index-url = \n")
    with pytest.raises(UserError, match=r"environment.requirements: uv.toml is not valid TOML"):
        choose(tmp_path, "requirements.txt", "numpy\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\ndependencies: [numpy\n", "environment.yml:3: not valid YAML"),
        ("numpy\n", "environment.yml holds no fields such as `dependencies:`"),
    ],
)
def test_a_file_for_conda_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "environment.yml").write_text(text)
    with pytest.raises(UserError, match=rf"^environment.conda: {problem}"):
        check_conda(spec(conda="environment.yml"), tmp_path, {"environment.yml"})
