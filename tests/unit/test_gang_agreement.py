"""The agreement of several ranks on one save: late answers, ranks that are ahead, and ranks that skip saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_gang_saves
from checkpoint_world import checkpoints
from test_gang_saves import Nodes

from stoker.model.gang_messages import SaveAnswer
from stoker.testing.memory_store import MemoryStore

# Fixtures that all tests of gangs share.
memory = test_gang_saves.memory


def test_a_folder_of_which_a_part_never_rests_is_no_part_of_a_save_of_several(
    tmp_path: Path, memory: MemoryStore
) -> None:
    """Nothing was committed yet that could take the place of that part."""
    nodes = Nodes(tmp_path, memory)
    for folder in ("a", "b"):
        nodes.save(1, folder)
    nodes.ranks[0].open.add("a/shard0.pt")
    nodes.tick(50)
    assert checkpoints(memory, complete=False) == []
    nodes.ranks[0].open.clear()
    nodes.tick(60)
    assert [len(one) for one in nodes.contents()] == [4]


def test_a_rank_that_had_no_files_when_it_answered_is_asked_again_about_a_newer_save(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "", 0)
    while not nodes.told.proposals:
        nodes.tick(0.5, 0)
    nodes.tick(2, 1)
    heard = {1: nodes.told.answered[1]}
    assert heard == {1: SaveAnswer(nodes.told.proposals[-1].token, False)}
    # Rank 0 hears nothing of the files that rank 1 gets now.
    link = nodes.ranks[0].options["gang"]
    monkeypatch.setattr(link, "answers", lambda: heard)
    nodes.save(2)
    nodes.ranks[0].open.add("shard0.pt")
    nodes.tick(3)
    nodes.ranks[0].open.clear()
    nodes.tick(20)
    assert checkpoints(memory, complete=False) == []
    monkeypatch.undo()
    nodes.tick(40)
    assert nodes.contents() == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]


def test_a_late_answer_with_the_next_save_is_not_of_the_save_that_rank_0_still_has(
    tmp_path: Path, memory: MemoryStore
) -> None:
    """Rank 1 hears of the proposal after it has begun the next save, and rank 0 begins that a few seconds later."""
    nodes = Nodes(tmp_path, memory, settle_s=None)
    nodes.save(1)
    nodes.tick(50, 0)
    assert nodes.told.proposals
    nodes.ranks[1].clock.s += 49.0
    nodes.tick(1, 1)
    nodes.save(2, "", 1)
    nodes.tick(8)
    nodes.save(2, "", 0)
    nodes.tick(60)
    assert nodes.contents() == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]


def test_a_rank_that_takes_an_old_proposal_for_an_open_one_joins_the_next(tmp_path: Path, memory: MemoryStore) -> None:
    """It gets its first files after the save was committed without it, and before it hears of another proposal."""
    nodes = Nodes(tmp_path, memory, nodes=3)
    nodes.save(1, "", 0, 2)
    nodes.tick(40)
    nodes.save(2)
    nodes.tick(8, 1)
    assert nodes.told.answered[1] == SaveAnswer(nodes.told.proposals[-1].token, True)
    nodes.tick(60)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}, {"step 2"}]
    assert len(nodes.contents()[-1]) == 3


def test_a_rank_that_heard_late_of_a_save_is_not_one_that_skips_saves(tmp_path: Path, memory: MemoryStore) -> None:
    """Its part of the first save was old when it heard of it. Of the last save it has none."""
    nodes = Nodes(tmp_path, memory, settle_s=None)
    nodes.save(1)
    nodes.tick(3)
    nodes.tick(50, 0)
    nodes.ranks[1].clock.s += 50.0
    nodes.tick(100)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}]
    nodes.save(2, "", 0)
    nodes.tick(0.5)
    nodes.final(0, 1)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}]


@pytest.mark.parametrize(("skipped", "joins"), [(0, False), (1, False), (2, True)])
def test_a_rank_that_skipped_two_saves_is_as_it_is_in_the_last(
    tmp_path: Path, memory: MemoryStore, skipped: int, joins: bool
) -> None:
    nodes = Nodes(tmp_path, memory, keep=10)
    nodes.save(1)
    nodes.tick(60)
    for step in range(skipped):
        nodes.save(2 + step, "", 0)
        nodes.tick(100)
    assert len(nodes.contents()) == 1 + skipped
    nodes.save(9, "", 0)
    nodes.tick(0.5)
    nodes.final(0, 1)
    assert ({"shard0.pt": "step 9", "shard1.pt": "step 1"} in nodes.contents()) is joins
