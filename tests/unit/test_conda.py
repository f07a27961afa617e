"""Files of conda environments, and what conda notes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stoker.agent.environment.conda import erase_password, may_install_code, without_channels


@pytest.mark.parametrize(
    "text",
    [
        "name: x\nchannels:\n  - conda-forge\n  - defaults\ndependencies:\n  - python=3.12\n",
        "channels:\n- conda-forge\n\n# more\n- defaults\nname: x\ndependencies: [python=3.12]\n",
        "name: x\ndependencies:\n  - python=3.12\nchannels: [conda-forge, defaults]",
        "name: x\nchannels: # where from\n  # the first\n  - conda-forge\ndependencies:\n  - python=3.12\n",
        "name: x\ndependencies:\n  - python=3.12\n",
    ],
)
def test_channels_are_taken_out(text: str) -> None:
    assert yaml.safe_load(without_channels(text)) == {"name": "x", "dependencies": ["python=3.12"]}


def test_a_dependency_that_is_called_so_stays() -> None:
    text = "name: x\ndependencies:\n  - channels\n  - pip:\n    - channels==1\n"
    assert without_channels(text) == text


def test_passwords_are_taken_out_of_what_conda_notes(tmp_path: Path) -> None:
    notes = tmp_path / "conda-meta"
    (notes / "sub").mkdir(parents=True)
    (notes / "python.json").write_text('{"channel": "https://jane:hunter2@host/conda"}')
    (notes / "history").write_text("nothing\n")
    erase_password(tmp_path, "hunter2")
    assert (notes / "python.json").read_text() == '{"channel": "https://jane:***@host/conda"}'
    assert (notes / "history").read_text() == "nothing\n"


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("    - -r requirements.txt\n", True),
        ("    - -e .\n", True),
        ("    - --find-links wheels\n", True),
        ("    - mine@./libs/mine\n", True),
        ("    - libs/mine\n", True),
        ('    - "mine @ file:libs/mine"\n', True),
        ("    - mine-1-py3-none-any.whl\n", True),
        ("    - --extra-index-url https://host/whl/cu124\n    - torch==2.5\n", False),
        ("    - mine @ git+https://host/mine.git\n    - libs\n", False),
    ],
)
def test_what_installs_parts_of_the_code(tmp_path: Path, text: str, local: bool) -> None:
    (tmp_path / "libs/mine").mkdir(parents=True)
    head = "name: x # ./no\nchannels: [nvidia/label/cuda-12.4, conda-forge]\ndependencies:\n  - python=3.12\n  - pip:\n"
    assert may_install_code(f"{head}{text}prefix: /opt/conda/envs/x\n", tmp_path) is local


def test_what_installs_parts_of_the_code_on_one_line(tmp_path: Path) -> None:
    assert may_install_code("dependencies: [python=3.12, {pip: [numpy, './libs/mine']}]\n", tmp_path)
