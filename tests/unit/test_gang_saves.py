"""One save of several ranks whose script knows nothing of Stoker: complete only if all parts are of one save."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import JOB, Gang, World, checkpoints, memory_store, restored_content, write
from test_sync import LIMIT_S, Meddling

from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.model import keys
from stoker.model.gang_messages import SaveAnswer
from stoker.testing.memory_store import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store(is_local=False)


class Nodes:
    """Two or more ranks that share a store and hear one another at once, unless the test says otherwise."""

    def __init__(self, root: Path, memory: MemoryStore, nodes: int = 2, **options: object) -> None:
        self.told, self.memory, self.root = Gang(), memory, root
        self.during: Callable[[int], None] = lambda _rank: None
        self.lead_left = threading.Event()
        self.ranks = [
            World(
                root,
                Meddling(memory.client(), lambda _source, rank=rank: self.during(rank)),  # type: ignore[arg-type, misc]
                rank=rank,
                nodes=nodes,
                gang=self.told.link(rank),
                lead_finished=self.lead_left.is_set,
                **options,
            ).begin()
            for rank in range(nodes)
        ]

    def save(self, step: int, folder: str = "", *ranks: int) -> None:
        for world in self.ranks:
            if not ranks or world.rank in ranks:
                write(world.folder / folder / f"shard{world.rank}.pt", f"step {step}")

    def tick(self, seconds: float, *ranks: int) -> None:
        for _ in range(int(seconds / 0.5)):
            for world in self.ranks:
                if not ranks or world.rank in ranks:
                    world.tick()

    def while_sending(self, rank: int, happens: Callable[[], None]) -> None:
        """Let something happen during the next upload of a rank."""

        def during(sender: int) -> None:
            if sender == rank:
                self.during = lambda _rank: None
                happens()

        self.during = during

    def contents(self) -> list[dict[str, str]]:
        """The contents of all complete checkpoints, oldest first."""
        return [
            {path: data.decode() for path, data in restored_content(self.memory, self.root / "back", one.key).items()}
            for one in checkpoints(self.memory)
        ]

    def final(self, *ranks: int) -> None:
        """End the training of these ranks, and let them commit for the last time while time passes."""
        threads = {
            rank: threading.Thread(target=self.ranks[rank].sync.final, args=(600.0, TrainingEnd("finished")))
            for rank in ranks
        }
        for thread in threads.values():
            thread.start()
        limit_s = time.monotonic() + LIMIT_S
        while any(thread.is_alive() for thread in threads.values()):
            assert time.monotonic() < limit_s
            for rank in ranks:
                self.ranks[rank].clock.s += 0.2
            time.sleep(0.02)
            if 0 in threads and not threads[0].is_alive():
                self.lead_left.set()


# ── Which ranks take part ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_save_has_the_parts_of_all_ranks_however_late_they_are_heard(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory, settle_s=None)
    nodes.told.delayed = {1}
    nodes.save(1)
    nodes.tick(80)
    assert checkpoints(memory, complete=False) == []
    assert "rank 1" in (nodes.ranks[0].sync.status().held_back or "")
    nodes.told.delayed = set()
    nodes.tick(20)
    assert nodes.contents() == [{"shard0.pt": "step 1", "shard1.pt": "step 1"}]
    assert nodes.ranks[0].sync.status().held_back is None


def test_a_rank_that_begins_to_save_later_is_part_of_that_save(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "", 0)
    nodes.tick(40)
    nodes.save(2)
    nodes.tick(40)
    assert nodes.contents() == [{"shard0.pt": "step 1"}, {"shard0.pt": "step 2", "shard1.pt": "step 2"}]


def test_a_rank_that_gets_its_first_files_while_rank_0_sends_is_asked_again(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)

    def late() -> None:
        nodes.save(1, "", 1)
        nodes.tick(1, 1)

    nodes.while_sending(0, late)
    nodes.save(1, "", 0)
    nodes.tick(40)
    assert nodes.contents() == [{"shard0.pt": "step 1", "shard1.pt": "step 1"}]


def test_a_rank_that_never_had_files_and_falls_silent_is_waited_for_five_minutes(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "", 0)
    nodes.tick(20)
    nodes.save(2, "", 0)
    nodes.tick(300, 0)
    assert len(checkpoints(memory)) == 1
    nodes.tick(10, 0)
    assert len(checkpoints(memory)) == 2


def test_a_rank_that_had_files_and_falls_silent_is_waited_for(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(20)
    nodes.save(2)
    nodes.tick(300, 0)
    assert len(checkpoints(memory, complete=False)) == 1
    nodes.tick(20)
    assert nodes.contents()[-1] == {"shard0.pt": "step 2", "shard1.pt": "step 2"}


def test_ranks_without_files_do_not_hold_up_a_folder_that_never_settles(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    for number in range(200):
        nodes.save(number, "", 0)
        nodes.tick(0.5)
    assert checkpoints(memory)


# ── One save ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_save_that_ends_while_rank_0_sends_the_one_before_is_another_checkpoint(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)

    def next_save() -> None:
        nodes.save(2, "epoch_2")
        nodes.tick(15, 1)

    nodes.while_sending(0, next_save)
    nodes.save(1, "epoch_1")
    nodes.tick(20)
    first = {"epoch_1/shard0.pt": "step 1", "epoch_1/shard1.pt": "step 1"}
    second = {"epoch_2/shard0.pt": "step 2", "epoch_2/shard1.pt": "step 2"}
    nodes.tick(40)
    assert nodes.contents() == [first, first | second]


def test_a_file_that_is_rewritten_before_a_rank_looks_at_rank_0_again_is_not_of_its_save(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    while not checkpoints(memory, complete=False):
        nodes.tick(0.5)
    nodes.save(2)
    nodes.tick(20, 1)
    assert nodes.contents() == [{"shard0.pt": "step 1", "shard1.pt": "step 1"}]
    nodes.tick(60)
    assert nodes.contents()[1:] == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]


def test_a_part_that_is_rewritten_before_it_is_sent_is_dropped(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.while_sending(1, lambda: nodes.save(2, "", 1))
    nodes.save(1)
    nodes.tick(20)
    assert nodes.contents() == []
    nodes.save(2, "", 0)
    nodes.tick(60)
    assert nodes.contents() == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]


def test_a_save_of_rank_0_between_its_proposal_and_the_answers_is_proposed_again(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    while not nodes.told.proposals:
        nodes.tick(0.5, 0)
    nodes.tick(5, 1)
    # Rank 0 has begun its next save, rank 1 has not.
    nodes.save(2, "", 0)
    nodes.tick(1)
    nodes.save(2, "", 1)
    nodes.tick(60)
    assert nodes.contents() == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]


@pytest.mark.parametrize("in_place", [False, True])
def test_an_agreed_save_is_committed_after_an_outage_unless_it_was_written_over(
    tmp_path: Path, memory: MemoryStore, in_place: bool
) -> None:
    broken = threading.Event()

    class Broken(Meddling):
        def put_file(self, source, key):  # type: ignore[no-untyped-def]
            if broken.is_set():
                raise OSError("the disk of the store is away")
            return super().put_file(source, key)

    nodes = Nodes(tmp_path, memory)
    nodes.ranks[0].store = Broken(memory, lambda _source: None)  # type: ignore[assignment]
    nodes.ranks[0].begin()
    broken.set()
    folders = ("", "") if in_place else ("epoch_1", "epoch_2")
    nodes.save(1, folders[0])
    nodes.tick(20)
    nodes.save(2, folders[1])
    nodes.tick(1)
    broken.clear()
    nodes.tick(120)
    if in_place:
        assert nodes.contents() == [{"shard0.pt": "step 2", "shard1.pt": "step 2"}]
    else:
        first = {"epoch_1/shard0.pt": "step 1", "epoch_1/shard1.pt": "step 1"}
        assert nodes.contents()[0] == first and len(nodes.contents()) == 2


def test_saves_of_different_numbers_are_never_one_checkpoint(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "epoch_1", 0)
    nodes.save(2, "epoch_2", 1)
    nodes.tick(200)
    assert checkpoints(memory) == []
    nodes.save(2, "epoch_2", 0)
    nodes.save(1, "epoch_1", 1)
    nodes.tick(20)
    assert len(nodes.contents()) == 1


def test_a_rank_that_writes_its_part_a_while_later_is_waited_for(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(100)
    nodes.save(2, "", 0)
    nodes.tick(25)
    nodes.save(2, "", 1)
    nodes.tick(40)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}, {"step 2"}]


def test_a_part_with_a_log_that_grows_is_committed(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    for world in nodes.ranks:
        world.open.add("train.log")
    for number in range(100):
        if number == 4:
            nodes.save(1)
        for world in nodes.ranks:
            write(world.folder / "train.log", "line\n" * number)
        nodes.tick(0.5)
    assert nodes.contents() and nodes.contents()[0]["shard1.pt"] == "step 1"


def test_an_old_proposal_that_lands_late_brings_back_no_save(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory, keep=10)
    nodes.save(1)
    nodes.tick(40)
    nodes.save(2)
    nodes.tick(40)
    first, second = nodes.told.proposals
    nodes.save(3, "", 1)
    nodes.told.proposals = [second, first]
    nodes.tick(60, 1)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}, {"step 2"}]


def test_of_three_ranks_all_have_their_parts_at_every_save(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory, nodes=3, keep=10)
    for step in range(1, 5):
        nodes.save(step)
        nodes.tick(40)
    assert [set(one.values()) for one in nodes.contents()] == [{f"step {step}"} for step in (1, 2, 3, 4)]
    assert [set(one.manifests) for one in checkpoints(memory, complete=False)] == [{0, 1, 2}] * 4


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_save_of_all_ranks_is_one_checkpoint(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(40)
    nodes.save(2)
    nodes.tick(0.5)
    nodes.final(0, 1)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}, {"step 2"}]


def test_a_last_save_that_one_rank_has_not_begun_is_not_complete(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(40)
    nodes.save(2, "", 0)
    nodes.tick(0.5)
    nodes.final(0, 1)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}]


def test_a_rank_one_save_ahead_at_the_end_joins_nothing(tmp_path: Path, memory: MemoryStore) -> None:
    """Rank 0's save is older than that of rank 1 by more than ranks are apart."""
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(40)
    nodes.save(2)
    nodes.told.delayed = {1}
    nodes.tick(50)
    nodes.save(3, "", 1)
    nodes.tick(0.5)
    nodes.final(0, 1)
    assert {"step 2", "step 3"} not in [set(one.values()) for one in nodes.contents()]


def test_an_agreed_save_is_finished_at_the_end(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    while not (nodes.told.answered.get(1) or SaveAnswer(0, False)).token:
        nodes.tick(0.5)
    nodes.final(0, 1)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}]


def test_a_first_save_at_the_end_needs_a_word_of_every_rank(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.tick(2)
    nodes.save(1, "", 0)
    nodes.tick(0.5)
    nodes.final(0)
    assert checkpoints(memory) == [] and len(checkpoints(memory, complete=False)) == 1
    # Rank 1 has no files: its part is empty.
    nodes.final(1)
    assert nodes.contents() == [{"shard0.pt": "step 1"}]


@pytest.mark.parametrize("ends", [((0, 1),), ((1,), (0,))])
def test_a_first_save_at_the_end_of_a_rank_that_saves_alone(
    tmp_path: Path, memory: MemoryStore, ends: tuple[tuple[int, ...], ...]
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.tick(2)
    nodes.save(1, "", 0)
    nodes.tick(0.5)
    for ranks in ends:
        nodes.final(*ranks)
    assert nodes.contents() == [{"shard0.pt": "step 1"}]
    assert [one.manifests[0].ranks for one in checkpoints(memory)] == [(0,)]


def test_a_rank_without_files_that_ends_waits_for_nothing(tmp_path: Path, memory: MemoryStore) -> None:
    """Its end is what the other ranks have to hear of first."""
    nodes = Nodes(tmp_path, memory)
    nodes.tick(2)
    before_s = nodes.ranks[1].clock.s
    nodes.final(1)
    assert nodes.ranks[1].clock.s - before_s < 5.0


def test_a_first_save_at_the_end_is_not_complete_without_a_rank_that_is_gone(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(1)
    nodes.final(0)
    assert checkpoints(memory) == []


def test_a_rank_that_had_no_files_at_the_last_save_is_not_waited_for_at_the_end(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "", 0)
    nodes.tick(20)
    nodes.save(2, "", 0)
    nodes.tick(0.5, 0)
    nodes.final(0)
    assert nodes.contents() == [{"shard0.pt": "step 1"}, {"shard0.pt": "step 2"}]


def test_a_rank_whose_training_has_ended_does_not_join_a_later_save_of_rank_0(
    tmp_path: Path, memory: MemoryStore
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(40)
    nodes.save(2, "", 0)
    other = nodes.ranks[1]
    for _ in range(200):
        nodes.ranks[0].tick()
        other.clock.s += 0.5
        other.sync._rounds.folder_commits.advance(final=True)
    assert [set(one.values()) for one in nodes.contents()] == [{"step 1"}]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_restarted_agent_ends_at_once_if_it_can_join_nothing(tmp_path: Path, memory: MemoryStore, rank: int) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    nodes.tick(1)
    world = nodes.ranks[rank]
    world.options |= {"gang": None, "recovering": True, "monotonic": time.monotonic}
    world.sync = world.make()
    began_s = time.monotonic()
    world.sync.final(LIMIT_S, TrainingEnd("finished"))
    assert time.monotonic() - began_s < 10.0 and checkpoints(memory, complete=False) == []
    assert world.sync.uncommitted()


@pytest.mark.parametrize("saves", [True, False])
def test_a_restarted_agent_of_rank_0_rescues_its_last_save_only_if_it_saves_alone(
    tmp_path: Path, memory: MemoryStore, saves: bool
) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1, "", *((0, 1) if saves else (0,)))
    nodes.tick(40)
    assert len(checkpoints(memory)) == 1
    nodes.save(2, "", 0)
    world = nodes.ranks[0]
    world.options |= {"gang": None, "recovering": True, "monotonic": time.monotonic}
    world.sync = world.make()
    world.sync.final(5.0, TrainingEnd("finished"))
    assert len(checkpoints(memory, complete=False)) == (1 if saves else 2)


def test_blobs_of_a_part_that_were_pruned_are_sent_again(tmp_path: Path, memory: MemoryStore) -> None:
    nodes = Nodes(tmp_path, memory)
    nodes.save(1)
    while not (nodes.told.answered.get(1) or SaveAnswer(0, False)).token:
        nodes.tick(0.5)
    sender = nodes.ranks[1].sync._rounds.sender
    memory.delete([keys.blob(JOB, 1, name) for name in sender.names])
    sender.forget_blobs(sender.names)
    nodes.tick(40)
    assert nodes.contents() == [{"shard0.pt": "step 1", "shard1.pt": "step 1"}]
