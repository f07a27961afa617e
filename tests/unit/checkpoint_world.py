"""A folder, a channel and a store, and time that passes when the test says so."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.checkpoints.restore import RestoredCheckpoint, restore
from stoker.agent.checkpoints.save_protocol import MARKER, Save
from stoker.agent.checkpoints.sync import CheckpointSync, SyncOptions
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints
from stoker.model import keys
from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.processes import OpenFile, WritableFiles
from stoker.store.base import Store, open_store
from stoker.store.checkpoints import Checkpoint, list_checkpoints, parse_key, read_manifests
from stoker.testing.memory_store import MemoryStore
from tests.support.newest_checkpoint import restore_newest

JOB = "job-1"


def memory_store(*, is_local: bool = True) -> MemoryStore:
    return MemoryStore(lambda: datetime.now(timezone.utc), is_local=is_local)


class Clock:
    """Monotonic time."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s

    def advance(self, seconds: float) -> None:
        self.s += seconds


class Gang:
    """What the ranks of a gang have told one another. `delayed` are ranks whose heartbeats do not arrive."""

    def __init__(self) -> None:
        self.proposals: list[SaveProposal] = []
        self.answered: dict[int, SaveAnswer] = {}
        self.delayed: set[int] = set()

    def link(self, rank: int) -> GangMember:
        return GangMember(self, rank)


@dataclass
class GangMember:
    """The link of one rank. What it hears is as new as what was told."""

    gang: Gang
    rank: int

    def propose(self, proposal: SaveProposal) -> None:
        self.gang.proposals.append(proposal)

    def answers(self) -> Mapping[int, SaveAnswer]:
        return {rank: one for rank, one in self.gang.answered.items() if rank not in self.gang.delayed}

    def proposal(self) -> SaveProposal | None:
        return self.gang.proposals[-1] if self.gang.proposals else None

    def answer(self, answer: SaveAnswer) -> None:
        self.gang.answered[self.rank] = answer


class Answered(GangMember):
    """The link of rank 0 where the other ranks answer every proposal at once: `saves` says which have a part."""

    def __init__(self, saves: dict[int, bool]) -> None:
        super().__init__(Gang(), 0)
        self.saves = saves

    def answers(self) -> Mapping[int, SaveAnswer]:
        token = self.gang.proposals[-1].token if self.gang.proposals else 0
        return {rank: SaveAnswer(token, saves) for rank, saves in self.saves.items()}


class World:
    """One node: its folder and its agent's sync, which is driven by `tick`."""

    def __init__(
        self, root: Path, store: Store, *, claim: int = 1, rank: int = 0, nodes: int = 1, **options: Any
    ) -> None:
        self.store = store
        self.clock = Clock()
        self.claim, self.rank, self.nodes = claim, rank, nodes
        self.root = root / f"claim-{claim}-rank-{rank}"
        self.folder = self.root / "checkpoints"
        self.channel = self.root / "channel"
        self.scratch = self.root / "scratch"
        for folder in (self.folder, self.channel):
            folder.mkdir(parents=True, exist_ok=True)
        self.open: set[str] = set()
        self.alive = True
        self.options = options
        self.restored: RestoredCheckpoint | None = None
        self.sync = self.make()

    def make(self, **changes: Any) -> CheckpointSync:
        options = SyncOptions(
            self.store,
            JOB,
            self.claim,
            self.rank,
            self.nodes,
            self.folder,
            channel=self.channel,
            scratch=self.scratch,
            writing=self.writing,
            **{"monotonic": self.clock, "restored": self.restored, "settle_s": 2.0} | self.options | changes,
        )
        return CheckpointSync(options)

    def writing(self, _aliased: object) -> WritableFiles:
        """As if one process, which is alive, had these files open."""
        files = {self.folder / path: OpenFile(frozenset({1}), False) for path in self.open}
        return WritableFiles(files, frozenset({1}) if self.alive else frozenset())

    def begin(self) -> World:
        self.sync = self.make()
        self.sync.begin()
        return self

    def restore_newest(self, poisoned: PoisonedCheckpoints = NONE_POISONED) -> World:
        self.restored = restore_newest(self.store, JOB, self.folder, poisoned, rank=self.rank)
        return self

    def restore(self, key: str) -> World:
        self.restored = restore(self.store, JOB, self.rank, key, self.folder)
        return self

    def tick(self, rounds: int = 1, every_s: float = 0.5) -> None:
        for _ in range(rounds):
            self.clock.s += every_s
            self.sync.tick()

    def settle(self) -> None:
        """Long enough for a folder that nobody writes to."""
        self.tick(rounds=80)

    def write(self, **files: str | bytes) -> None:
        """`write(a="…", sub__b="…")`: two underscores for a slash, and `.pt` at the end."""
        for name, content in files.items():
            write(self.folder / f"{name.replace('__', '/')}.pt", content)

    def save(self, name: str, files: Mapping[str, str | bytes], step: int | None = None, sharded: bool = False) -> None:
        with Save(name, self.folder, self.channel, step=step, sharded=sharded, writers=1) as folder:
            for path, content in files.items():
                write(folder / path, content)


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def age(folder: Path, seconds: float = 3600.0) -> None:
    """Make every file look old, so that its digest may be remembered."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            stat = path.stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(seconds * 1e9)))


@contextmanager
def ordinary_permissions() -> Iterator[None]:
    """Let permissions of files count for this thread, and for threads that it starts, even if it is root's."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    # Each set is in two words: effective, permitted, inheritable. 1 is CAP_DAC_OVERRIDE, 2 CAP_DAC_READ_SEARCH.
    fewer = (ctypes.c_uint32 * 6)(before[0] & ~0b110, *before[1:])
    assert libc.capset(header, fewer) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())


def content(folder: Path) -> dict[str, bytes]:
    """Every file, but for what marks a save."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }


def checkpoints(store: Store, *, complete: bool = True) -> list[Checkpoint]:
    return [one for one in list_checkpoints(store, JOB) if one.complete or not complete]


def manifest_keys(store: Store) -> list[str]:
    return [one.key for one in checkpoints(store)]


def restored_content(store: Store, target: Path, key: str | None = None, rank: int = 0) -> dict[str, bytes]:
    """What a restore of that key (or the newest) gives."""
    chosen = key or checkpoints(store)[-1].key
    restore(store, JOB, rank, chosen, target)
    return content(target)


def blobs(store: Store, rank: int = 0) -> set[str]:
    prefix = f"{keys.blobs(JOB)}{rank}/"
    return {meta.key[len(prefix) :] for meta in store.list(prefix)}


def needed(store: Store, rank: int = 0) -> set[str]:
    stored = read_manifests(store, JOB, keys.checkpoints(JOB))
    return {
        blob.name
        for item in stored
        if item.place.rank == rank and item.manifest is not None
        for blob in item.manifest.files
    }


def assert_sound(store: Store) -> None:
    """Every manifest that can be read has all its blobs, byte for byte."""
    for item in read_manifests(store, JOB, keys.checkpoints(JOB)):
        assert item.manifest is not None, item.meta.key
        assert parse_key(item.place.key) == item.place
        for blob in item.manifest.files:
            found = store.get(keys.blob(JOB, item.place.rank, blob.name))
            assert found is not None, f"{item.place.key} lacks {blob.path}"
            assert hashlib.sha256(found.data).hexdigest() == blob.digest
            assert len(found.data) == blob.size


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory_store() if request.param == "memory" else open_store(str(tmp_path / "store"))


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def world(tmp_path: Path, store: Store) -> World:
    return World(tmp_path, store).begin()
