"""Several ranks that save without `stoker.train`: whatever is late, fails, dies or is restarted, a checkpoint is of one
save of all ranks; and where nothing goes wrong, every save becomes one.

STOKER_GANG_SEEDS=1000 plays so many stories of each kind. One story: `Story(seed, folder).run()`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

from gang_story import Story

pytestmark = pytest.mark.slow

SEEDS = range(int(os.environ.get("STOKER_GANG_SEEDS", "8")))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checkpoint_is_of_one_save_of_all_ranks(seed: int, tmp_path: Path) -> None:
    story = Story(seed, tmp_path)
    assert story.run() is None, "\n".join([str(story.scenario), story.wrong or "", *story.log])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_save_becomes_a_checkpoint_where_nothing_goes_wrong(seed: int, tmp_path: Path) -> None:
    story = Story(seed, tmp_path, calm=True)
    assert story.run() is None, story.wrong
    # The last one may be interrupted by the end.
    missing = [number for number in story.paused if number not in story.committed]
    assert not missing, "\n".join([str(story.scenario), f"not committed: {missing}", *story.log])
