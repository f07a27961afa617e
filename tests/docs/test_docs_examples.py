"""The programs in the pages are run as a reader would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from pages import DOCS, blocks

ENV = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTEST_"))}


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=ENV, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_first_script_trains_saves_and_goes_on(tmp_path: Path) -> None:
    """Without Stoker, as a page says it can, and without its pauses."""
    (block,) = [block for block in blocks(DOCS / "getting-started.md") if block.language == "python"]
    text = block.text.replace("time.sleep(0.1)", "time.sleep(0)")
    assert text != block.text
    (tmp_path / "train.py").write_text(text.replace("step < 150", "step < 75"))
    done = python(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["step 25", "step 50", "step 75"]
    assert json.loads((tmp_path / "checkpoints" / "step-75" / "state.json").read_text()) == {"step": 75}

    (tmp_path / "train.py").write_text(text)
    done = python(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["step 100", "step 125", "step 150"]


def test_the_example_provider_keeps_the_contract(tmp_path: Path) -> None:
    """Both files as they are in the page, and pytest on them."""
    for block in blocks(DOCS / "write-a-provider.md"):
        if block.language == "python":
            name = re.match(r'"""(\w+\.py)"""', block.text)
            assert name is not None, str(block)
            (tmp_path / name[1]).write_text(block.text)
    done = python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_stoker_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert told is not None, done.stdout
    # The page shows this line.
    shown = "." * int(told[1]) + "s" * int(told[2])
    assert f"\n{shown} " in (DOCS / "write-a-provider.md").read_text(encoding="utf-8")
