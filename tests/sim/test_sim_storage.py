"""Checkpoints and logs of attempt after attempt, in a store whose writes and deletes land late.

The sender, the publisher, the pruner and the chunk writer are the real ones. Each seed decides what is saved (often the
same content as before), which requests land late or twice, and when an attempt is cut off. Whatever lands: the newest
committed checkpoint has all its blobs, and a drained log is whole.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from checkpoint_world import JOB, World, restored_content

from stoker.agent.logs.log_pump import durable_offset
from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.model.node_facts import Manifest
from stoker.store.checkpoint_manifests import TrustedClaims, encode
from stoker.store.checkpoints import Checkpoint, list_checkpoints
from stoker.store.log_chunks import ChunkWriter, Segment, encode_segment
from stoker.testing.memory_store import Fault, MemoryStore

SEEDS = int(os.environ.get("STOKER_SIM_STORAGE_SEEDS", "60"))
EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
_WRITES = ("put", "create", "delete", "put_file")


class Late:
    """A store of which some writes land when others have long been answered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"storage {seed}")
        self.memory = MemoryStore(self.now)
        self.moment_s = 0.0
        self.rate = self.random.choice((0.02, 0.1))
        self.under_way: list[Callable[[], object]] = []
        self.store = self.memory.client(self._faults)

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.moment_s)

    def _faults(self, method: str, _key: str) -> Fault | None:
        self.moment_s += self.random.choice((0.1, 1.0, 10.0))
        if self.under_way and self.random.random() < 0.1:
            self.land()
        if method not in _WRITES or self.random.random() >= self.rate:
            return None
        if self.random.random() < 0.5:
            return Fault(later=self.under_way.append, error=StoreUnavailable("the reply was lost"))
        return Fault(again=self.under_way.append)

    def land(self) -> None:
        self.under_way.pop(self.random.randrange(len(self.under_way)))()

    def land_all(self) -> None:
        while self.under_way:
            self.land()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_committed_checkpoint_loses_a_blob(seed: int, tmp_path: Path) -> None:
    late = Late(seed)
    claims = dict.fromkeys((2, 5, 8), 1)
    planted = Manifest("step-9", JOB, 99999999, 0, 1, EPOCH, ())
    late.memory.put(keys.manifest(JOB, "99999999/000001-step-9"), encode(planted))
    for claim in claims:
        trust = TrustedClaims({known: 1 for known in claims if known <= claim}, imported=False)
        world = World(tmp_path / str(claim), late.store, keep=late.random.choice((1, 2)), claim=claim, trust=trust)
        saved = 0
        while True:
            try:
                world.begin()
                break
            except StoreUnavailable:
                continue
        for number in range(late.random.randrange(2, 7)):
            content = {f"part-{n}": late.random.choice("ab") for n in range(2)} | {"same": "always"}
            world.save(f"step-{number}", content)
            world.tick(rounds=late.random.choice((1, 3, 40)))
            saved = number
        if late.random.random() < 0.5:
            world.tick(rounds=400)
            assert checkpoints_of(late, trust)[-1].name == f"step-{saved}", "with time, the last save is committed"
        if late.random.random() < 0.5:
            late.land_all()
        check(late, trust, tmp_path / f"back-{claim}")
    late.land_all()
    check(late, trust, tmp_path / "back")


def checkpoints_of(late: Late, trust: TrustedClaims) -> list[Checkpoint]:
    return [one for one in list_checkpoints(late.memory, JOB, trust=trust) if one.complete]


def check(late: Late, trust: TrustedClaims, target: Path) -> None:
    found = checkpoints_of(late, trust)
    if found:
        newest = found[-1]
        assert newest.place.claim <= max(trust.claims or ())
        assert restored_content(late.memory, target, newest.key)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_drained_log_stays_whole(seed: int) -> None:
    late = Late(seed)
    writer = ChunkWriter(late.store, lambda n, size: keys.log_chunk("node", n, size))
    offset = 0
    for number in range(200):
        data = b"line %d " % number + b"x" * late.random.choice((1, 500, 3000)) + b"\n"
        writer.add(encode_segment(Segment(number, offset, data)))
        offset += len(data)
        try:
            writer.push()
        except StoreUnavailable:
            continue
    while writer.pending:
        try:
            writer.push()
        except StoreUnavailable:
            continue
    assert durable_offset(late.memory, ["node"]) == offset
    late.land_all()
    assert durable_offset(late.memory, ["node"]) == offset, "whatever lands after it was drained"
