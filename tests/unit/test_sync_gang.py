"""Checkpoints of several nodes whose scripts know nothing of one another."""

from __future__ import annotations

from pathlib import Path

import checkpoint_world
from checkpoint_world import (
    JOB,
    Answered,
    Gang,
    GangMember,
    World,
    checkpoints,
    content,
    manifest_keys,
    restored_content,
)
from test_sync import Meddling

from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.store.base import Store
from stoker.store.checkpoints import list_checkpoints

# Fixtures that all tests of checkpoints share.
store = checkpoint_world.store

NOTHING = SaveAnswer(0, False)


def gang(tmp_path: Path, store: Store, nodes: int = 2, claim: int = 1, begin: bool = True) -> list[World]:
    told = Gang()
    ranks = [World(tmp_path, store, rank=rank, nodes=nodes, claim=claim, gang=told.link(rank)) for rank in range(nodes)]
    if begin:
        for world in ranks:
            world.begin()
    return ranks


def told_of(world: World) -> Gang:
    link = world.options["gang"]
    assert isinstance(link, GangMember)
    return link.gang


def settle_all(ranks: list[World]) -> None:
    for _ in range(80):
        for world in ranks:
            world.tick()


def test_a_rank_without_files_takes_no_part(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    ranks[0].write(model="1")
    settle_all(ranks)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0}


def test_part_of_an_older_save_is_committed_alone_or_not_at_all(tmp_path: Path, store: Store) -> None:
    """Another rank may have its first files while rank 0 sends, and could not know which part it has to join."""
    link, joins = Answered({1: False}), False
    world = World(tmp_path, Meddling(store, lambda _source: link.saves.update({1: joins})), nodes=2, gang=link)  # type: ignore[arg-type]
    world.begin()
    world.write(first__model="1")
    world.settle()
    joins = True
    world.open.add("first/model.pt")
    world.write(second__model="2")
    for number in range(80):
        world.write(first__model=f"{number:03d}")
        world.tick()
    assert [set(one.manifests[0].ranks) for one in checkpoints(store, complete=False)] == [{0}]


def test_ranks_with_files_commit_theirs_under_the_name_of_rank_0(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store, nodes=3)
    for step in (1, 2):
        ranks[0].write(**{f"step_{step}__shard_0": f"{step}"})
        ranks[2].write(**{f"other_{step}__shard_2": f"{step}"})
        settle_all(ranks)
    first, second = checkpoints(store)
    assert set(first.manifests) == set(second.manifests) == {0, 2}
    assert [world.sync.status().commits for world in ranks] == [2, 0, 2]
    assert second.name == "step_2"
    assert restored_content(store, tmp_path / "back", rank=1) == {
        "step_1/shard_0.pt": b"1",
        "other_1/shard_2.pt": b"1",
        "step_2/shard_0.pt": b"2",
        "other_2/shard_2.pt": b"2",
    }


def test_until_every_rank_has_committed_the_save_does_not_count(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    for world in ranks:
        world.write(shard="1")
    while not list_checkpoints(store, JOB):
        # Rank 1 holds its part, and then hears nothing for a while.
        if ranks[1].sync.status().files == 0 or not told_of(ranks[1]).answered.get(1, NOTHING).token:
            ranks[1].tick()
        ranks[0].tick()
    ranks[0].settle()
    assert len(list_checkpoints(store, JOB)) == 1
    assert checkpoints(store) == []
    settle_all(ranks)
    assert len(checkpoints(store)) == 1


def test_a_rank_that_has_nothing_new_still_joins(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    ranks[1].write(rank_1_config="once")
    ranks[0].write(model="1")
    settle_all(ranks)
    ranks[0].write(model="2")
    settle_all(ranks)
    assert len(checkpoints(store)) == 2


def test_what_was_restored_from_others_is_not_ones_own(tmp_path: Path, store: Store) -> None:
    first = gang(tmp_path, store)
    first[0].write(model="1")
    settle_all(first)
    second = gang(tmp_path, store, claim=2, begin=False)
    for world in second:
        world.restore(manifest_keys(store)[-1]).begin()
    assert content(second[1].folder) == {"model.pt": b"1"}
    settle_all(second)
    assert [world.sync.status().files for world in second] == [1, 0]
    second[0].write(model="2")
    settle_all(second)
    newest = checkpoints(store)[-1]
    assert newest.place.claim == 2 and set(newest.manifests) == {0}


def test_shards_are_restored_to_all_and_committed_by_their_owner(tmp_path: Path, store: Store) -> None:
    first = gang(tmp_path, store)
    for world in first:
        world.write(**{f"shard_{world.rank}": "1", "same": f"from {world.rank}"})
    settle_all(first)
    second = gang(tmp_path, store, claim=2, begin=False)
    for world in second:
        world.restore(manifest_keys(store)[-1]).begin()
        assert content(world.folder) == {
            "shard_0.pt": b"1",
            "shard_1.pt": b"1",
            "same.pt": f"from {world.rank}".encode(),
        }
    second[0].write(shard_0="2")
    settle_all(second)
    newest = checkpoints(store)[-1]
    assert newest.place.claim == 2
    assert {rank: {blob.path for blob in newest.manifests[rank].files} for rank in (0, 1)} == {
        0: {"same.pt", "shard_0.pt"},
        1: {"same.pt", "shard_1.pt"},
    }


def test_a_rank_whose_script_asks_for_commits_has_no_part_in_a_proposed_save(tmp_path: Path, store: Store) -> None:
    answered: list[SaveAnswer] = []

    class Counting(GangMember):
        def answer(self, answer: SaveAnswer) -> None:
            answered.append(answer)

    told = Gang()
    world = World(tmp_path, store, rank=1, nodes=2, gang=Counting(told, 1)).begin()
    world.save("step-1", {"shard-1": "1"}, sharded=True)
    world.tick(rounds=2)
    assert answered == [], "nothing is proposed"
    for token in (7, 8):
        told.proposals.append(SaveProposal(token, 0.0, (), 0, False))
        world.tick(rounds=3)
    assert answered == [SaveAnswer(7, False), SaveAnswer(8, False)], "once each"
