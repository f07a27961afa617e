"""Files of conda environments, and what conda notes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stoker.agent.environment.conda import forget, without_channels


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
    forget(tmp_path, "hunter2")
    assert (notes / "python.json").read_text() == '{"channel": "https://jane:***@host/conda"}'
    assert (notes / "history").read_text() == "nothing\n"
