"""From `stoker run` to the first step there is one way: few calls from room to room, and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import PATIENCE_S, World

MOST_CROSSINGS = 40
ROOT = Path(__file__).parents[2]


def run_counted(world: World, *words: str) -> tuple[list[list[str]], int]:
    """The crossings until the script runs (see `tests.support.crossings`), and how often YAML was parsed."""
    report, marker = world.root / "report.json", world.root / "first-step"
    world.write(f"open({str(marker)!r}, 'w').close()\nprint('first step')\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.crossings", str(report), str(marker), "run", *words],
        cwd=world.code,
        env=world.environ() | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0 and "first step" in done.stdout, done.stderr
    counted = json.loads(report.read_text())
    return counted["pairs"], counted["yaml"]


def test_the_command_crosses_few_rooms_before_the_first_step(world: World) -> None:
    pairs, parsed = run_counted(world, "--", "python", "train.py")
    listed = "\n".join(f"{caller}  ->  {called}" for caller, called in pairs)
    assert 20 < len(pairs) <= MOST_CROSSINGS, f"{len(pairs)} crossings:\n{listed}"
    assert parsed == 0, "there is no YAML"


def test_a_job_file_is_parsed_once(world: World) -> None:
    (world.code / "stoker.yaml").write_text("run: python train.py\nresources: {provider: local}\n")
    pairs, parsed = run_counted(world)
    assert len(pairs) <= MOST_CROSSINGS and parsed == 1
