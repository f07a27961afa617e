"""Random stories of several ranks that save without `stoker.train`, each with its real sync, in virtual time.

A program saves on all ranks: they begin a save within ten seconds of one another, in their own folders, and every file
says of which save it is. Heartbeats take their time and overtake one another, stores are slow or fail, ranks die and
are replaced, agents are started again. One seed is one story.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from checkpoint_world import JOB, World, checkpoints, memory_store

from stoker.agent.checkpoints import folder_commits
from stoker.agent.checkpoints.commit_schedule import LastAlive
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.node import utcnow
from stoker.agent.peers import HeartbeatLink, PeerWatch
from stoker.model import keys
from stoker.model.errors import StoreError
from stoker.model.node_facts import Heartbeat
from stoker.store.base import Store
from stoker.testing.memory_store import Fault

# The most by which ranks are apart when they begin a save: what `docs/checkpoints.md` asks of a program.
APART_S = 9.5
_FINAL_S = 150.0
_BASE_NS = 1_000_000_000 * 10**9


@dataclass(frozen=True)
class Scenario:
    """What happens in a story. `calm`: nothing fails, nothing is slow and nobody dies before the end."""

    nodes: int
    style: str
    files: int
    calm: bool
    is_local: bool
    # Ranks without files, and ranks that write at every second save alone.
    idle: frozenset[int]
    seldom: frozenset[int]
    saves: int
    # The time from the end of a save to the begin of the next.
    pause_s: tuple[float, float]
    heartbeat_s: float
    poll_s: float
    # The longest call of the store, and the share of its calls that fail.
    call_s: float
    fails: float
    attempts: int

    @classmethod
    def draw(cls, rng: random.Random, *, calm: bool) -> Scenario:
        nodes = rng.choice([2, 2, 3])
        others = range(1, nodes)
        idle = frozenset(rank for rank in others if rng.random() < 0.15)
        style = rng.choice(["in place", "renamed", "folders", "numbered"])
        seldom = frozenset(rank for rank in others if rng.random() < 0.15) - idle
        if style == "numbered":
            # Saves of different numbers are never one checkpoint.
            seldom = frozenset()
        # Until a rank has files, rank 0 has to hear of its first ones before it commits.
        heard = calm or seldom
        return cls(
            nodes=nodes,
            style=style,
            files=rng.choice([1, 1, 2, 3]),
            calm=calm,
            is_local=rng.random() < 0.5,
            idle=idle if len(idle) < nodes - 1 else frozenset(),
            seldom=seldom,
            saves=rng.randint(2, 4),
            pause_s=(75.0, 150.0) if calm else rng.choice([(60.0, 150.0), (60.0, 80.0), (45.0, 90.0)]),
            heartbeat_s=2.0 if heard else rng.choice([0.5, 3.0, 30.0, 120.0]),
            poll_s=2.0 if heard else rng.choice([0.5, 3.0, 15.0]),
            call_s=0.3 if calm else rng.choice([0.1, 2.0, 20.0]),
            fails=0.0 if calm else rng.choice([0.0, 0.0, 0.05, 0.3]),
            attempts=1 if calm else rng.randint(1, 3),
        )


class _Killed(BaseException):
    """The agent was killed during a call of the store."""


class _Client:
    """The store of one rank: its calls take time, in which everything else goes on."""

    def __init__(self, store: Store, rank: Rank) -> None:
        self._store, self._rank = store, rank

    def put_file(self, source: Path, key: Callable[[str], str]) -> object:
        self._rank.wait_for_store()
        sent = self._store.put_file(source, key)
        self._rank.wait_for_store()
        return sent

    def create(self, key: str, data: bytes) -> bool:
        self._rank.wait_for_store()
        created = self._store.create(key, data)
        self._rank.wait_for_store()
        return created

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class _Beats:
    """The heartbeat of one rank. Each write lands when it lands."""

    def __init__(self, story: Story, rank: Rank) -> None:
        self._story, self._rank = story, rank
        self._now = Heartbeat(beat=0, phase="training", at=utcnow(), interval_s=2.0)
        self.landed: Heartbeat | None = None

    def change(self, **changes: Any) -> None:
        fields = vars(self._now) | changes | {"beat": self._now.beat + 1}
        beat = self._now = Heartbeat(**fields)

        def land() -> None:
            self.landed = beat

        story = self._story
        late_s = story.rng.uniform(0.05, story.scenario.heartbeat_s)
        if story.scenario.heartbeat_s != 2.0 and story.rng.random() < 0.1:
            late_s += story.rng.uniform(0.0, 90.0)
        story.after(late_s, land)


@dataclass
class Rank:
    """One rank in one attempt: its program's folder, its agent and what it hears of the others."""

    story: Story
    number: int
    claim: int
    world: World = field(init=False)
    peers: PeerWatch = field(init=False)
    beats: _Beats = field(init=False)
    offset_s: float = 0.0
    alive: bool = True
    # The agent is in a round, which may wait for the store.
    busy: bool = False
    ends: TrainingEnd | None = None
    final_since: float | None = None
    finished: bool = False
    last_tick: float = 0.0

    def __post_init__(self) -> None:
        story = self.story
        self.offset_s = story.rng.uniform(0.0, 5000.0)
        self.beats = _Beats(story, self)
        launched = SimpleNamespace(number=self.claim, launched=())
        self.peers = PeerWatch(story.store, JOB, launched, self.number)  # type: ignore[arg-type]
        client = _Client(story.store.client(lambda method, key: story.fault(self, method, key)), self)
        self.world = World(
            story.root,
            client,  # type: ignore[arg-type]
            claim=self.claim,
            rank=self.number,
            nodes=story.scenario.nodes,
            gang=HeartbeatLink(self.beats, self.peers),  # type: ignore[arg-type]
            lead_finished=lambda: self.peers.lead_finished,
            monotonic=self.monotonic,
            settle_s=None,
            keep=50,
        )

    def monotonic(self) -> float:
        return self.story.now + self.offset_s

    def wait_for_store(self) -> None:
        """Let time pass during a call of the store."""
        if self.busy:
            story = self.story
            often_s = min(0.3, story.scenario.call_s)
            longest_s = story.scenario.call_s if story.rng.random() < 0.3 else often_s
            story.run_until(story.now + story.rng.uniform(0.0, longest_s))
        if not self.alive:
            raise _Killed

    # ── The agent ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def round(self) -> None:
        """Run one round of the agent, and the next one later."""
        if not self.alive or self.finished:
            return
        self.busy, self.last_tick = True, self.story.now
        try:
            if self.ends is None:
                self.world.sync.tick()
            else:
                self.final_round(self.ends)
        except _Killed:
            return
        finally:
            self.busy = False
        self.story.after(0.7, self.round)

    def final_round(self, end: TrainingEnd) -> None:
        """As `CheckpointSync._finish`."""
        rounds = self.world.sync._rounds
        if self.final_since is None:
            self.final_since = self.story.now
            rounds.training_end = end
            rounds.begin_final()
        try:
            needs_no_leader = rounds.needs_no_leader()
            busy = rounds.attempt(final=True)
        except StoreError as error:
            rounds.backoff.note_failure(error)
            return
        began = self.final_since + self.offset_s
        done = not busy and not rounds.is_unclear() and rounds.all_done(began, needs_no_leader=needs_no_leader)
        if done or self.story.now - self.final_since > _FINAL_S:
            self.finished = True

    def look(self) -> None:
        """Read the heartbeats of the others, and again later."""
        if not self.alive or self.finished:
            return
        for other in self.story.ranks:
            if other is not self and (self.number == 0 or other.number == 0) and other.beats.landed is not None:
                self.peers._note(other.number, other.beats.landed)
        lead = self.story.ranks[0]
        if lead.finished and self.story.rng.random() < 0.5:
            self.peers.lead_finished = True
        self.story.after(self.story.rng.uniform(0.2, self.story.scenario.poll_s), self.look)

    def kill(self) -> None:
        """kill -9 of the agent, with which its training dies."""
        self.alive = False

    def end(self, how: TrainingEnd) -> None:
        if self.alive and self.ends is None:
            self.world.sync.before_kill()
            self.ends = TrainingEnd(how.how, open=frozenset(self.world.open))
            self.world.open.clear()

    def flush(self) -> None:
        """A new agent starts in the place of one that was killed."""
        half_written = frozenset(self.world.open)
        self.world.open.clear()
        self.world.alive = False
        self.alive, self.busy = True, True
        sync = self.world.sync = self.world.make(recovering=True, gang=None, restored=None)
        rounds = sync._rounds
        rounds.training_end = TrainingEnd("died")
        until = self.story.now + 60.0
        recalled = False
        while self.story.now < until:
            try:
                if not recalled:
                    rounds.begin_final()
                    rounds.recall(LastAlive(self.story.file_ns(self.last_tick + self.offset_s), True, half_written))
                    recalled = True
                busy = rounds.attempt(final=True)
            except StoreError:
                busy = True
            if recalled and not busy and not rounds.is_unclear():
                break
            self.story.run_until(self.story.now + 1.0)
        self.busy, self.alive = False, False


class Story:
    """One job through its attempts. `run` returns what went wrong; None: nothing."""

    def __init__(self, seed: int, root: Path, *, calm: bool = False) -> None:
        self.rng = random.Random(f"{seed}-{calm}")
        self.root = root
        self.scenario = Scenario.draw(self.rng, calm=calm)
        self.store = memory_store(is_local=self.scenario.is_local)
        self.now = 0.0
        self.ranks: list[Rank] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # What each rank's own files are after each save, by the number of the save.
        self.expected: dict[int, dict[int, dict[str, str]]] = {}
        self.number = 0
        self.checked: set[str] = set()
        self.log: list[str] = []
        self.wrong: str | None = None
        # The saves that were followed by a pause, and those that became checkpoints.
        self.paused: list[int] = []
        self.committed: set[int] = set()

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), happens))

    def run_until(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            at, _, happens = heapq.heappop(self._events)
            self.now = max(self.now, at)
            happens()
        self.now = max(self.now, until)

    def file_ns(self, at: float) -> int:
        return _BASE_NS + int(at * 1e9)

    def fault(self, rank: Rank, method: str, _key: str) -> Fault | None:
        if not self.scenario.fails or self.rng.random() >= self.scenario.fails:
            return None
        if method == "create" and self.rng.random() < 0.3:
            return Fault(later=lambda land: self.after(self.rng.uniform(0.0, 60.0), lambda: _land(land)))
        return Fault(after=self.rng.random() < 0.5)

    # ── The program ───────────────────────────────────────────────────────────────────────────────────────────────────

    def paths(self, rank: int, number: int) -> list[str]:
        names = range(self.scenario.files)
        match self.scenario.style:
            case "numbered":
                return [f"epoch_{number}/part{name}-{rank}.bin" for name in names]
            case "folders":
                return [f"{'abc'[name]}/shard-{rank}.bin" for name in names]
            case _:
                return [f"{'abc'[name]}-{rank}.bin" for name in names]

    def begin_save(self) -> float:
        """All ranks have come to a save. Return when the last of them has ended it."""
        number = self.number = self.number + 1
        latest = 0.0
        for rank in self.ranks:
            state = dict(self.expected[number - 1].get(rank.number, {}))
            self.expected.setdefault(number, {})[rank.number] = state
            seldom = rank.number in self.scenario.seldom and number % 2
            if rank.number in self.scenario.idle or seldom:
                continue
            at = self.rng.uniform(0.0, APART_S) if rank.number else self.rng.choice([0.0, APART_S])
            for path in self.paths(rank.number, number):
                text = f"save {number} of rank {rank.number} in attempt {rank.claim}: {path}"
                state[path] = text
                # Nothing shows that a file is still to come, if it is renamed into its place.
                took_s = self.rng.choice([0.0, 0.3, 1.0, 1.0 if self.scenario.style == "renamed" else 8.0])
                self.after(at, partial(self.open_file, rank, path))
                self.after(at + took_s, partial(self.close_file, rank, path, text))
                at += took_s + self.rng.uniform(0.02, 0.8)
            latest = max(latest, at)
        self.say(f"save {number}")
        return self.now + latest

    def open_file(self, rank: Rank, path: str) -> None:
        if rank.alive and rank.ends is None and self.scenario.style != "renamed":
            self.put(rank, path, "half")
            rank.world.open.add(path)

    def close_file(self, rank: Rank, path: str, text: str) -> None:
        if rank.alive and rank.ends is None:
            self.put(rank, path, text)
            rank.world.open.discard(path)

    def put(self, rank: Rank, path: str, text: str) -> None:
        target = rank.world.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.scenario.style == "renamed":
            target.unlink(missing_ok=True)
        target.write_text(text)
        at_ns = self.file_ns(self.now + rank.offset_s)
        os.utime(target, ns=(at_ns, at_ns))

    # ── Attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> str | None:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(folder_commits, "SCAN_CPU_SHARE", 1e9))
            stack.enter_context(mock.patch.object(folder_commits, "_HURRIED_CPU_SHARE", 1e9))
            stack.enter_context(mock.patch.object(SyncOptions, "workers", 1))
            self.expected[0] = {rank: {} for rank in range(self.scenario.nodes)}
            for claim in range(1, self.scenario.attempts + 1):
                self.attempt(claim)
                if self.wrong is not None:
                    return self.wrong
        return None

    def attempt(self, claim: int) -> None:
        rng, scenario = self.rng, self.scenario
        self.say(f"attempt {claim}")
        self._events.clear()
        self.ranks = []
        self.ranks = [Rank(self, number, claim) for number in range(scenario.nodes)]
        found = checkpoints(self.store)
        for rank in self.ranks:
            shutil.rmtree(rank.world.folder, ignore_errors=True)
            rank.world.folder.mkdir(parents=True)
            if found:
                client, rank.world.store = rank.world.store, self.store
                rank.world.restore(found[-1].key)
                rank.world.store = client
            rank.world.begin()
        if found:
            # The program goes on from the restored save.
            saved = self.number_of(self.contents_of(found[-1]))
            self.expected[self.number] = self.expected[saved]
        else:
            self.expected[self.number] = {rank: {} for rank in range(scenario.nodes)}
        for rank in self.ranks:
            self.after(rng.uniform(0.0, 1.0), rank.round)
            self.after(rng.uniform(0.0, 1.0), rank.look)
        self.run_until(self.now + rng.uniform(1.0, 5.0))
        for _ in range(scenario.saves):
            ended = self.begin_save()
            self.run_checked(ended + rng.uniform(*scenario.pause_s))
            self.paused.append(self.number)
        self.end_attempt()

    def end_attempt(self) -> None:
        rng, scenario = self.rng, self.scenario
        how = "finish" if scenario.calm else rng.choice(["finish", "kill one", "kill one", "kill all", "signal"])
        if how != "finish" or rng.random() < 0.5:
            ended = self.begin_save()
            self.run_checked(self.now + rng.uniform(0.0, 40.0) if how != "finish" else ended + rng.uniform(0.1, 5.0))
        self.say(how)
        dead: list[Rank] = []
        if how in ("kill one", "kill all"):
            dead = [rng.choice(self.ranks)] if how == "kill one" else list(self.ranks)
        for rank in dead:
            rank.kill()
            self.say(f"kill {rank.number}")
        apart_s = 2.0 if how == "finish" else 15.0
        for rank in self.ranks:
            end = TrainingEnd("finished" if how == "finish" else "died")
            self.after(rng.uniform(0.0, apart_s), partial(rank.end, end))
        for rank in dead:
            self.after(rng.uniform(3.0, 60.0), rank.flush)
        for _ in range(100):
            self.run_checked(self.now + 5.0)
            if all(rank.finished or not rank.alive for rank in self.ranks):
                break
        self.run_checked(self.now + 70.0)

    # ── What must hold ────────────────────────────────────────────────────────────────────────────────────────────────

    def run_checked(self, until: float) -> None:
        while self.now < until and self.wrong is None:
            self.run_until(min(until, self.now + 5.0))
            self.check()

    def check(self) -> None:
        for one in checkpoints(self.store):
            if one.key in self.checked:
                continue
            self.checked.add(one.key)
            contents = self.contents_of(one)
            number = self.number_of(contents)
            self.say(f"{one.key}: save {number}")
            if number < 0:
                self.wrong = f"{one.key} is of no one save: {contents}"
                return
            self.committed.add(number)

    def contents_of(self, one: Any) -> dict[int, dict[str, str]]:
        found: dict[int, dict[str, str]] = {rank: {} for rank in range(self.scenario.nodes)}
        for rank, manifest in one.manifests.items():
            for blob in manifest.files:
                stored = self.store.get(keys.blob(JOB, rank, blob.name))
                assert stored is not None, f"{one.key} lacks {blob.path}"
                found[rank][blob.path] = stored.data.decode()
        return found

    def number_of(self, contents: Mapping[int, Mapping[str, str]]) -> int:
        """Return the newest save of which these are the files of all ranks; -1: there is none."""
        return max((number for number, state in self.expected.items() if state == contents), default=-1)

    def say(self, what: str) -> None:
        self.log.append(f"{self.now:7.1f} {what}")


def _land(land: Callable[[], object]) -> None:
    with suppress(StoreError):
        land()
