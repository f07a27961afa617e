"""Whatever is written, committed, pruned, lost and restarted: what is listed as complete can be restored.

The model is the list of contents that were committed. Saves, the store's failures and crashes come in any order.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

from checkpoint_world import (
    World,
    assert_sound,
    blobs,
    checkpoints,
    content,
    memory_store,
    needed,
    restored_content,
    write,
)

from stoker.agent.checkpoints import prune
from stoker.store.base import Store, open_store
from stoker.testing.memory_store import Fault, MemoryStore

pytestmark = pytest.mark.slow

KEEP = 2
NAMES = ("a", "b", "last", "sub/c", "sub/d")


@dataclass(frozen=True)
class Change:
    """Write or remove files: what each of `NAMES` becomes, None for nothing."""

    files: tuple[int | None, ...]


@dataclass(frozen=True)
class Settle:
    """Time passes. `fails` is which of the store's calls fail meanwhile, and whether before or after their effect."""

    fails: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Crash:
    """The machine is gone. Another takes up from the newest checkpoint; `graceful`, it saved first."""

    graceful: bool


fails = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=3).map(tuple)
changes = st.tuples(*[st.one_of(st.none(), st.integers(0, 5)) for _ in NAMES]).map(Change)
steps = st.lists(st.one_of(changes, st.builds(Settle, fails), st.builds(Crash, st.booleans())), min_size=1, max_size=14)
# Blobs of earlier attempts are removed when they are old: here all are, at the end of a story.
AT_ONCE = timedelta(days=-1)
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Failing:
    """Which of the next calls fail."""

    def __init__(self) -> None:
        self.plan: dict[int, bool] = {}
        self.calls = 0

    def arm(self, fails: tuple[tuple[int, bool], ...]) -> None:
        self.plan, self.calls = dict(fails), 0

    def __call__(self, method: str, key: str) -> Fault | None:
        self.calls += 1
        after = self.plan.get(self.calls - 1)
        return None if after is None else Fault(after=after)


class Story:
    """A job through its attempts."""

    def __init__(self, root: Path, store: Store, client: Store, failing: Failing) -> None:
        self.root = root
        self.store = store
        self.client = client
        self.failing = failing
        self.claim = 1
        self.number = 0
        # Everything that ever was a whole state of the folder, or a save.
        self.whole: list[dict[str, bytes]] = []
        self.node = World(root, client, claim=1, keep=KEEP).begin()

    def settle(self, fails: tuple[tuple[int, bool], ...] = ()) -> None:
        self.failing.arm(fails)
        self.node.tick(rounds=12, every_s=4.0)
        self.failing.arm(())
        self.check()

    def crash(self, *, graceful: bool) -> None:
        if graceful:
            self.settle()
        self.claim += 1
        self.node = World(self.root, self.client, claim=self.claim, keep=KEEP).restore_newest()
        self.node.begin()

    def check(self) -> None:
        """What must hold whenever the store is looked at."""
        assert_sound(self.store)
        for one in checkpoints(self.store):
            with tempfile.TemporaryDirectory() as folder:
                assert restored_content(self.store, Path(folder) / "back", one.key) in self.whole

    def check_rest(self, newest: dict[str, bytes] | None) -> None:
        """What must hold after a time without failures in which something was committed."""
        if newest is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            assert restored_content(self.store, Path(folder) / "back") == newest


def apply_to(folder: Path, change: Change) -> None:
    for name, value in zip(NAMES, change.files, strict=True):
        if value is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write(folder / name, f"content {value}" * (value + 1))


def tell(steps: list[object], root: Path, store: Store, client: Store, failing: Failing, *, saves: bool) -> None:
    story = Story(root, store, client, failing)
    for step in [*steps, Settle()]:
        match step:
            case Change() if saves:
                story.number += 1
                files = {
                    name: f"content {value}" for name, value in zip(NAMES, step.files, strict=True) if value is not None
                }
                story.node.save(f"step-{story.number % 4}", files)
                story.whole.append({f"step-{story.number % 4}/{name}": text.encode() for name, text in files.items()})
            case Change():
                apply_to(story.node.folder, step)
                story.whole.append(content(story.node.folder))
            case Settle():
                story.settle(step.fails)
            case Crash():
                story.crash(graceful=step.graceful)
                story.whole.append(content(story.node.folder))
    # One more commit without failures: pruning has caught up with whatever was left.
    if saves:
        story.node.save("end", {"model": "end"})
        story.whole.append({"end/model": b"end"})
    else:
        write(story.node.folder / "end", "end")
        story.whole.append(content(story.node.folder))
    story.node.sync._rounds.pruning.pruner._rounds = 0
    with mock.patch.object(prune, "ORPHANED_FOR", AT_ONCE):
        story.settle()
    story.check_rest(story.whole[-1])
    restored = story.node.restored
    kept = [one.key for one in checkpoints(store) if restored is None or one.key != restored.key]
    assert len(kept) <= KEEP
    assert blobs(store) == needed(store)
    assert story.node.sync.status().error is None


@few
@given(steps, st.booleans())
def test_with_a_store_that_fails(steps: list[object], saves: bool) -> None:
    memory: MemoryStore = memory_store()
    failing = Failing()
    with tempfile.TemporaryDirectory() as folder:
        tell(steps, Path(folder), memory, memory.client(failing), failing, saves=saves)


@settings(few, max_examples=15)
@given(steps, st.booleans())
def test_on_a_folder(steps: list[object], saves: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "store"))
        tell(steps, Path(folder), store, store, Failing(), saves=saves)


@settings(few, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
    st.integers(2, 3),
)
def test_shards_of_several_ranks_count_together_or_not_at_all(turns: list[tuple[int, bool]], nodes: int) -> None:
    """Ranks save and commit in any order and at any speed; some never get to it."""
    store = memory_store()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [World(Path(folder), store, rank=rank, nodes=nodes, keep=KEEP).begin() for rank in range(nodes)]
        saved = [0] * nodes
        for rank, commits in turns:
            if rank >= nodes:
                continue
            saved[rank] += 1
            ranks[rank].save("last", {f"shard-{rank}": f"{saved[rank]}"}, sharded=True)
            if commits:
                ranks[rank].tick()
        # In the end all have saved as often, and come to rest.
        for rank, world in enumerate(ranks):
            while saved[rank] < max(saved):
                saved[rank] += 1
                world.save("last", {f"shard-{rank}": f"{saved[rank]}"}, sharded=True)
        for world in ranks:
            world.tick(rounds=10)
        assert_sound(store)
        found = checkpoints(store)
        for one in found:
            back = restored_content(store, Path(folder) / "back", one.key)
            assert len({*back.values()}) == 1 and len(back) == nodes
        if max(saved):
            assert restored_content(store, Path(folder) / "back")["last/shard-0"] == f"{max(saved)}".encode()


def test_a_story_that_is_known_to_matter() -> None:
    """A lost reply to a manifest, then a crash."""
    story: list[object] = [
        Change((1, None, None, 2, None)),
        Settle(((3, True), (4, True))),
        Change((2, None, None, 2, None)),
        Crash(graceful=False),
        Change((3, 1, None, None, None)),
        Settle(((0, False),)),
    ]
    for saves in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            memory, failing = memory_store(), Failing()
            tell(story, Path(folder), memory, memory.client(failing), failing, saves=saves)
