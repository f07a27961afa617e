"""`stoker.train` in the Python of an old image: 3.7 of TensorFlow 1.15, 3.8 of PyTorch 1.12, 3.9 of PyTorch 1.13."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
# Everything that a script may call under Stoker, as far as one process can.
SCRIPT = """
import os, sys
from stoker import train
train.report(step=1, loss=2.0, lr=None)
train.params(), train.attempt(), train.time_left(), train.save_requested(), train.output_dir(), train.on_interrupt()
for number in range(2):
    with train.checkpoint("step-%d" % number, step=number) as folder:
        (folder / "weights").write_text("x")
assert str(train.latest()).endswith("step-1"), train.latest()
assert not train.interrupted() and not train.wait_durable(timeout=0)
try:
    train.checkpoint("x", stp=1)
except TypeError as error:
    assert "step" in str(error), error
print(*sorted(path for name, module in sys.modules.items() if name.partition(".")[0] == "stoker"
              for path in [os.path.realpath(module.__file__)]), sep="\\n")
"""


def run(python: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "channel").mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STOKER_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "STOKER_OUTPUT_DIR": str(folder / "outputs"),
        "STOKER_CHANNEL": str(folder / "channel"),
    }
    return subprocess.run([python, "-c", SCRIPT], env=env, cwd=folder, capture_output=True, text=True, check=False)


def old_pythons() -> list[str]:
    """The Pythons from 3.7 to 3.9 of this computer; perhaps none."""
    found = [*Path.home().glob(".pyenv/versions/3.[789].*/bin/python")]
    found += [Path(path) for name in ("python3.7", "python3.8", "python3.9") if (path := shutil.which(name))]
    works = [
        subprocess.run([path, "-c", "import ctypes"], capture_output=True, check=False).returncode for path in found
    ]
    return [str(path) for path, code in zip(found, works, strict=True) if code == 0]


def test_it_runs_in_every_old_python_there_is(tmp_path: Path) -> None:
    for number, python in enumerate([sys.executable, *old_pythons()]):
        folder = tmp_path / str(number)
        folder.mkdir()
        ran = run(python, folder)
        assert ran.returncode == 0, f"{python}: {ran.stderr}"


def test_what_it_imports_has_nothing_that_python_3_7_lacks(tmp_path: Path) -> None:
    """Without an old Python at hand the syntax tells most of it."""
    imported = run(sys.executable, tmp_path).stdout.split()
    assert {"train.py", "save_protocol.py", "keywords.py"} <= {Path(path).name for path in imported}
    for path in imported:
        tree = ast.parse(Path(path).read_text(), path, feature_version=(3, 7))
        for node in ast.walk(tree):
            assert lacks(node) is None, f"{path}:{getattr(node, 'lineno', 0)}: {lacks(node)}"


def lacks(node: ast.AST) -> str | None:
    """Why this would fail in Python 3.7, beside syntax."""
    if isinstance(node, ast.keyword) and node.arg in ("missing_ok", "dirs_exist_ok", "kw_only", "slots"):
        return f"{node.arg} is newer"
    if isinstance(node, ast.Attribute) and node.attr in ("removeprefix", "removesuffix", "is_relative_to", "readlink"):
        return f".{node.attr} is newer, but for os.readlink"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(node.left, ast.Dict):
        return "dicts have no |"
    return None


@pytest.mark.parametrize("text", ["path.unlink(missing_ok=True)", 'name.removeprefix("a")', '{"a": 1} | tree'])
def test_that_check_sees_what_is_newer(text: str) -> None:
    assert any(lacks(node) for node in ast.walk(ast.parse(text)))
