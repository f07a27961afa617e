"""Several nodes: real DDP under plain torchrun, losing one of them, and checkpoints of which every rank has a part."""

from __future__ import annotations

import re

from harness import EXAMPLES, World, chain, fields, until

from stoker import client, layout
from stoker.model import BlobRef

# Nodes of this computer talk through loopback.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def test_ddp_loses_a_node_and_goes_on(world: World) -> None:
    """The example as it is: `torchrun train.py` and nothing else."""
    job = world.submit(
        run="torchrun train.py", code=str(EXAMPLES / "ddp"), nodes=2, params={"steps": 120, "pause": 0.05}, env=LOOPBACK
    )
    until(lambda: (world.summary(job).step or 0) >= 22, "it trains, and has saved")
    world.terminate(world.instance(job, rank=1))
    summary = world.ended(job)
    story = world.story(job)
    assert summary.phase == "succeeded", story
    assert fields(summary, "outcome") == [("lost",), ("succeeded",)], story
    lines = world.lines(job)
    assert "attempt 1 rank 0 of 2 starts at 0" in lines
    starts = {int(at) for line in lines for at in re.findall(r"attempt 2 rank \d of 2 starts at (\d+)", line)}
    assert len(starts) == 1 and starts.pop() >= 20, story
    finished = [line for line in lines if "finished with loss" in line]
    assert len(finished) == 2, story
    assert [node.rank for node in summary.attempts[1].nodes] == [0, 1]


def test_a_notice_on_one_node_is_a_notice_to_all(world: World) -> None:
    job = world.submit(
        run="torchrun train.py", code=str(EXAMPLES / "ddp"), nodes=2, params={"steps": 90, "pause": 0.05}, env=LOOPBACK
    )
    until(lambda: (world.summary(job).step or 0) >= 5, "it trains")
    world.interrupt(job, grace_s=30, node=1)
    summary = world.ended(job)
    story = world.story(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], story
    first, second = summary.attempts
    assert first.step is not None and second.first_step == first.step + 1, story


def test_losing_a_node_saves_what_the_others_have(world: World) -> None:
    world.script("counter.py")
    job = world.submit(nodes=2, params={"steps": 100, "pause": 0.05, "every": 1000})
    until(lambda: {record.rank for record in world.journal("step")} == {0, 1}, "both train")
    world.terminate(world.instance(job, rank=1))
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("lost",), ("succeeded",)], world.story(job)
    # Rank 0 was asked to save, so the whole resumes where it had got to.
    (saved,) = [record.step for record in world.journal("interrupted") if record.attempt == 1]
    assert {record.step for record in world.journal("start") if record.attempt == 2} == {saved}
    assert [record.text for record in world.journal("finish")] == [chain(100)] * 2
    assert not world.journal("overlap")


def test_a_damaged_shard_moves_all_ranks_back(world: World) -> None:
    world.script("counter.py")
    job = world.submit(nodes=3, params={"steps": 40, "pause": 0.1, "every": 5, "sure": 1, "sharded": 1})

    def whole() -> list[int]:
        return [one.step or 0 for one in world.checkpoints(job) if one.complete]

    until(lambda: len(whole()) >= 2, "two checkpoints are complete")
    client.stop(job, world.url)
    assert world.ended(job).phase == "stopped", world.story(job)
    *_, before, newest = [one for one in world.checkpoints(job) if one.complete]
    assert sorted(newest.manifests) == [0, 1, 2]
    # One byte of one shard of one rank.
    (shard,) = [blob for blob in newest.manifests[2].files if blob.path.endswith("state-2.json")]
    damage(world, job, 2, shard)

    client.resume(job, world.url)
    world.start("govern", "--watch")
    summary = world.ended(job)
    story = world.story(job)
    assert summary.phase == "succeeded", story
    assert summary.attempts[1].restored_from == before.key, story
    second = [record for record in world.journal("start") if record.attempt == 2]
    assert sorted((record.rank, record.step) for record in second) == [(rank, before.step) for rank in range(3)]
    assert [record.text for record in world.journal("finish")] == [chain(40)] * 3


def damage(world: World, job: str, rank: int, blob: BlobRef) -> None:
    path = world.folder / layout.blob(job, rank, blob.digest)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
