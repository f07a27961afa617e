"""One rank of a gang in a random story: its program's folder, its agent with the real sync, its heartbeat."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from checkpoint_world import JOB, World

from stoker.agent.checkpoints.commit_schedule import LastAlive
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.node import utcnow
from stoker.agent.peers import HeartbeatLink, PeerWatch
from stoker.model.errors import StoreError
from stoker.model.node_facts import Heartbeat
from stoker.store.base import Store

if TYPE_CHECKING:
    from gang_story import Story

# The most by which ranks are apart when they begin a save: what `docs/checkpoints.md` asks of a program.
APART_S = 9.5
_FINAL_S = 150.0
_BASE_NS = 10**18


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


def file_ns(at: float) -> int:
    """Return a virtual time as files are stamped with it."""
    return _BASE_NS + int(at * 1e9)


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
                    rounds.recall(LastAlive(file_ns(self.last_tick + self.offset_s), True, half_written))
                    recalled = True
                busy = rounds.attempt(final=True)
            except StoreError:
                busy = True
            if recalled and not busy and not rounds.is_unclear():
                break
            self.story.run_until(self.story.now + 1.0)
        self.busy, self.alive = False, False
