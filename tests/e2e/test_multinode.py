"""Several nodes: real DDP under plain torchrun, losing one of them, and checkpoints of which every rank has a part."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from harness import EXAMPLES, World, chain, fields, until

from stoker import client
from stoker.model import keys
from stoker.model.node_facts import BlobRef

# Nodes of this computer talk through loopback.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def test_ddp_through_a_notice_and_a_loss(world: World) -> None:
    """The example as it is: `torchrun train.py` and nothing else."""
    settings = {"steps": 110, "pause": 0.05}
    job = world.submit(run="torchrun train.py", code=str(EXAMPLES / "ddp"), nodes=2, params=settings, env=LOOPBACK)
    until(lambda: (world.summary(job).step or 0) >= 3, "it trains")
    world.interrupt(job, grace_s=60, node=1)

    def saved() -> int:
        """The newest step that the second attempt has saved."""
        second = [claim for claim in world.state(job).attempts if claim.attempt == 2]
        numbers = {claim.number for claim in second}
        return max((one.step or 0 for one in world.checkpoints(job) if one.place.claim in numbers), default=0)

    before_loss = until(saved, "the second attempt trains, and has saved")
    world.terminate(world.instance(job, rank=1))
    summary = world.ended(job)
    story = world.story(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("lost",), ("succeeded",)], story

    # A notice to one rank is one to all, and costs nothing.
    first, second, third = summary.attempts
    assert first.step is not None and second.first_step == first.step + 1, story
    # A machine that vanishes costs what was not saved.
    assert third.first_step is not None and third.first_step > before_loss, story
    lines = world.lines(job)
    for attempt in summary.attempts:
        starts = [at for line in lines for at in re.findall(rf"attempt {attempt.n} rank \d of 2 starts at (\d+)", line)]
        assert len(starts) == 2 and len(set(starts)) == 1, story
    losses = [line.rpartition(" ")[2] for line in lines if "finished with loss" in line]
    assert len(losses) == 2, story


def test_a_rank_that_is_killed(world: World) -> None:
    world.script("counter.py")
    job = world.submit(nodes=2, params={"steps": 60, "pause": 0.05, "every": 1000})
    until(lambda: {record.rank for record in world.journal("step")} == {0, 1}, "both train")
    victim = [process for process in world.processes("training") if b"NODE_RANK=1" in environ_of(process.pid)]
    assert victim[0].signal(signal.SIGKILL)
    summary = world.ended(job)
    assert fields(summary, "outcome", "rule") == [("infrastructure", "killed"), ("succeeded", "finished")], world.story(
        job
    )
    (saved,) = [record.step for record in world.journal("interrupted") if record.attempt == 1]
    assert {record.step for record in world.journal("start") if record.attempt == 2} == {saved}
    assert not world.journal("overlap")


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


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
    path = world.folder / keys.blob(job, rank, blob.name)
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


PLAIN = """
import json, os, pathlib, time
rank, folder = int(os.environ["NODE_RANK"]), pathlib.Path("checkpoints")
folder.mkdir(exist_ok=True)
found = [json.loads((folder / f"shard{each}.json").read_text())["step"] for each in (0, 1)
         if (folder / f"shard{each}.json").exists()]
print("rank", rank, "found", found, flush=True)
if found:
    raise SystemExit(0)
for step in (1, 2):
    time.sleep(2 * rank)
    (folder / f"shard{rank}.json").write_text(json.dumps({"step": step}))
    time.sleep(25 - 2 * rank if step == 1 else 600)
"""


def test_parts_of_a_plain_script_are_of_one_save(world: World, tmp_path: Path) -> None:
    code = tmp_path / "plain"
    code.mkdir()
    (code / "train.py").write_text(PLAIN)
    job = world.submit(run="python train.py", code=str(code), nodes=2)

    def complete() -> int:
        return sum(one.complete for one in world.checkpoints(job))

    until(lambda: complete() == 1, "the first save is a checkpoint of both ranks")
    assert [sorted(one.manifests) for one in world.checkpoints(job)] == [[0, 1]], world.story(job)
    until(lambda: complete() == 2, "and so is the second")
    world.terminate(world.instance(job, rank=1))
    summary = world.ended(job)
    assert summary.phase == "succeeded", world.story(job)
    assert [line for line in world.lines(job) if "found [2, 2]" in line], world.story(job)


def test_a_notice_before_it_trains_ends_all_ranks(world: World) -> None:
    """The others must not wait at the rendezvous for a rank that will never come."""
    world.script("counter.py")
    hold = world.truth / "hold"
    hold.touch()
    wait = f'if [ "$NODE_RANK" = 1 ] && [ -e {hold} ]; then echo holds; sleep 300; fi'
    job = world.submit(nodes=2, setup=wait, params={"steps": 5})
    until(lambda: "holds" in world.lines(job), "rank 1 is held up, rank 0 waits for it")
    hold.unlink()
    world.interrupt(job, grace_s=30, node=1)
    summary = world.ended(job)
    assert fields(summary, "outcome") == [("reclaimed",), ("succeeded",)], world.story(job)
    assert {record.attempt for record in world.journal()} == {2}


def test_a_set_up_that_fails_on_one_rank_is_the_users(world: World) -> None:
    world.script("counter.py")
    fail = 'if [ "$NODE_RANK" = 1 ]; then sleep 1; echo broken here; exit 3; else sleep 300; fi'
    summary = world.run(nodes=2, setup=fail, params={"steps": 5})
    assert fields(summary, "outcome", "exit_code") == [("failed", 3)], world.story(summary.id)
    assert "broken here" in summary.reason
