"""The ranks of a gang agree before any of them starts, and hear of each other's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from agent_world import JOB, AgentWorld
from plain_store import wait_for

from stoker.agent import peers as peers_module
from stoker.agent import rendezvous as gang_module
from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.peers import HeartbeatLink, PeerLeft, PeerWatch
from stoker.agent.rendezvous import GangRendezvous, RendezvousResult, sleep_interruptibly
from stoker.model import codec, keys
from stoker.model.errors import SetupFailed
from stoker.model.gang_messages import Ack, Rendezvous, SaveAnswer, SaveProposal
from stoker.model.job_state import Claim
from stoker.model.node_facts import Exit, Heartbeat, NoticeFact
from stoker.store.base import Store
from stoker.store.checkpoints import RestoreError
from stoker.testing.memory_store import Fault, MemoryStore


class Told(Exception):
    """The node must leave."""


class Rank:
    """One rank, whose heartbeat is written at every change."""

    def __init__(self, world: AgentWorld, claim: Claim, rank: int, *, broken: tuple[str, ...] = ()) -> None:
        self.node = world.node(claim, rank)
        self.restored: list[str] = []
        self.pauses: list[float] = []
        self.tells: list[Heartbeat] = []
        self.broken = broken
        self.result: RendezvousResult | BaseException | None = None
        beat = self.beat = HeartbeatThread(world.store, self.node.key, lambda found: found)
        change = beat.change

        def change_and_write(**changes: object) -> None:
            change(**changes)
            beat.write()
            self.tells.append(beat.now)

        beat.change = change_and_write  # type: ignore[method-assign]
        self.gang = GangRendezvous(self.node.store, JOB, claim, rank, beat, self.pause)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        time.sleep(0.01)

    def restore(self, key: str) -> None:
        if key in self.broken:
            raise RestoreError(f"{key} is torn")
        self.restored.append(key)

    def follow(self, address: str) -> threading.Thread:
        def work() -> None:
            try:
                self.result = self.gang.follow(address, self.restore, f"host-{address[-1]}")
            except (Told, SetupFailed) as error:
                self.result = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def ends_soon(rank: Rank) -> None:
    """A rank whose agreement does not come leaves instead of waiting for ever."""
    until_s = time.monotonic() + 60.0
    pause = rank.pause

    def bounded(seconds: float) -> None:
        pause(seconds)
        if time.monotonic() > until_s:
            raise Told

    rank.gang._pause = bounded


def agree(world: AgentWorld, ranks: list[Rank], proposals: Iterator[str]) -> RendezvousResult:
    for rank in ranks:
        ends_soon(rank)
    threads = [rank.follow(f"10.0.0.{number}") for number, rank in enumerate(ranks[1:], start=1)]
    try:
        return ranks[0].gang.lead("10.0.0.0", 29500, proposals, ranks[0].restore, "host-0")
    finally:
        for rank in ranks:
            rank.gang._pause = stop if ranks[0].tells and not ranks[0].tells[-1].rendezvous.go else rank.gang._pause  # type: ignore[union-attr]
        for thread in threads:
            thread.join(60.0)


def stop(_seconds: float) -> None:
    raise Told


def test_every_rank_restores_what_the_first_proposes_and_knows_all_addresses(world: AgentWorld) -> None:
    claim = world.claim(nodes=3)
    ranks = [Rank(world, claim, rank) for rank in range(3)]
    agreement = agree(world, ranks, iter(["new", "old"]))
    assert agreement == RendezvousResult(
        ("10.0.0.0", "10.0.0.1", "10.0.0.2"), 29500, "new", ("host-0", "host-1", "host-2")
    )
    assert [rank.result for rank in ranks[1:]] == [agreement, agreement]
    assert [rank.restored for rank in ranks] == [["new"]] * 3
    assert [rank.beat.now.restored_from for rank in ranks] == ["new"] * 3
    assert [rank.beat.now.address for rank in ranks[1:]] == ["10.0.0.1", "10.0.0.2"]
    assert [tell.rendezvous and (tell.rendezvous.round, tell.rendezvous.go) for tell in ranks[0].tells] == [
        (1, False),
        (1, True),
    ]
    assert [rank.beat.now.ack for rank in ranks[1:]] == [Ack(1, ok=True)] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_one_rank_that_cannot_restore_moves_all_back_by_one(world: AgentWorld, failing: int) -> None:
    claim = world.claim(nodes=2)
    ranks = [Rank(world, claim, rank, broken=("new",) if rank == failing else ()) for rank in range(2)]
    agreement = agree(world, ranks, iter(["new", "old", "oldest"]))
    assert agreement.checkpoint == "old" and ranks[1].result == agreement
    assert [rank.restored[-1] for rank in ranks] == ["old", "old"]
    assert ranks[0].beat.now.rendezvous == Rendezvous(
        2, agreement.addresses, 29500, "old", go=True, hosts=agreement.hosts
    )
    if failing == 1:
        acks = [tell.ack for tell in ranks[1].tells if tell.ack is not None]
        assert acks[0] == Ack(1, ok=False, error="new is torn") and acks[-1] == Ack(2, ok=True)


def test_where_no_checkpoint_can_be_restored_nothing_begins_anew(world: AgentWorld) -> None:
    claim = world.claim(nodes=2)
    ranks = [Rank(world, claim, 0, broken=("new",)), Rank(world, claim, 1, broken=("old",))]
    with pytest.raises(RestoreError) as raised:
        agree(world, ranks, iter(["new", "old"]))
    assert raised.value.reason == "no checkpoint could be restored: rank 1: old is torn"
    assert isinstance(ranks[1].result, Told), "it waited for a word that does not come"
    assert not any(tell.rendezvous and tell.rendezvous.go for tell in ranks[0].tells)


def test_without_any_checkpoint_all_begin_at_the_beginning(world: AgentWorld) -> None:
    claim = world.claim(nodes=2)
    ranks = [Rank(world, claim, rank) for rank in range(2)]
    agreement = agree(world, ranks, iter([]))
    assert agreement.checkpoint is None and ranks[1].result == agreement
    assert [rank.restored for rank in ranks] == [[], []]


@pytest.mark.parametrize(
    "address", ["10.0.0.9 s3.amazonaws.com", "10.0.0.9\n10.0.0.9 pypi.org", "pypi.org", "0", "x" * 900]
)
def test_what_is_no_address_reaches_no_rank(world: AgentWorld, address: str) -> None:
    """Facts are written by others, and addresses end in `/etc/hosts`."""
    claim = world.claim(nodes=2)
    lead, other = Rank(world, claim, 0), Rank(world, claim, 1)
    ends_soon(lead)
    thread = other.follow(address)
    with pytest.raises(SetupFailed, match=r"^rank 1 reports an address that is none: '[^\n]{0,70}$") as failed:
        lead.gang.lead("10.0.0.1", 29500, iter([]), lead.restore)
    assert not failed.value.user
    # The same where rank 0 says it.
    for addresses in (("10.0.0.1", address), ("10.0.0.1",), ("10.0.0.1",) * 3):
        lead.beat.change(rendezvous=Rendezvous(7, addresses, 29500, go=True))
        thread.join(60.0)
        assert isinstance(other.result, SetupFailed)
        thread = other.follow("10.0.0.2")
    other.gang._pause = stop
    thread.join(60.0)


def test_a_rank_alone_agrees_with_itself(world: AgentWorld) -> None:
    rank = Rank(world, world.claim(), 0)
    agreement = rank.gang.lead("fd00::1", 1, iter(["new"]), rank.restore, "vm")
    assert agreement == RendezvousResult(("fd00::1",), 1, "new", ("vm",))
    assert rank.pauses == []


def test_a_rank_that_the_log_does_not_name_is_waited_for(world: AgentWorld) -> None:
    claim = world.claim(nodes=2, launched=False)
    rank = Rank(world, claim, 1)
    rank.gang._pause = stop
    with pytest.raises(Told):
        rank.gang.follow("10.0.0.1", rank.restore)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_rank_asks_a_store_far_away_less_often(world: AgentWorld, is_local: bool) -> None:
    store = MemoryStore(lambda: datetime.now(timezone.utc), is_local=is_local)
    claim = world.claim(nodes=2)
    rank = Rank(world, claim, 1)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        raise Told

    gang = GangRendezvous(store, JOB, claim, 1, rank.beat, pause)
    with pytest.raises(Told):
        gang.follow("10.0.0.1", rank.restore)
    assert pauses == [gang_module.LOCAL_POLL_S if is_local else gang_module.REMOTE_POLL_S]


def test_the_error_of_a_restore_is_told_in_short(world: AgentWorld) -> None:
    rank = Rank(world, world.claim(), 0)

    def fail(_key: str) -> None:
        raise RestoreError("x" * 2000)

    with pytest.raises(RestoreError) as raised:
        rank.gang.lead("127.0.0.1", 1, iter(["new"]), fail)
    assert 400 < len(raised.value.reason) < 600


def test_a_sleep_ends_when_its_time_has_come_or_the_check_says_so() -> None:
    asked: list[float] = []
    began_s = time.monotonic()
    sleep_interruptibly(0.2, lambda: asked.append(time.monotonic()))
    assert time.monotonic() - began_s >= 0.2
    assert 2 <= len(asked) <= 6, "it sleeps in between"
    began_s = time.monotonic()

    def check() -> None:
        if time.monotonic() - began_s > 0.1:
            raise Told

    with pytest.raises(Told):
        sleep_interruptibly(1000.0, check)
    with pytest.raises(Told):
        sleep_interruptibly(0.0, stop_now)


def stop_now() -> None:
    raise Told


# ── Hearing of each other's end ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Store, Claim, int], tuple[PeerWatch, list[str]]]]:
    monkeypatch.setattr(peers_module, "LOCAL_POLL_S", 0.01)
    made: list[PeerWatch] = []

    def start(store: Store, claim: Claim, rank: int) -> tuple[PeerWatch, list[str]]:
        changes: list[str] = []
        watch = PeerWatch(store, JOB, claim, rank)
        made.append(watch)
        watch.start(lambda: changes.append("left"))
        return watch, changes

    yield start
    for watch in made:
        watch.stop()


Watches = Callable[[Store, Claim, int], tuple[PeerWatch, list[str]]]


def beats(world: AgentWorld, claim: Claim, rank: int, **changes: object) -> str:
    node = world.node(claim, rank)
    beat = HeartbeatThread(world.store, node.key, lambda found: found)
    beat.change(**{"phase": "training"} | changes)
    beat.write()
    return node.key


def leaves(world: AgentWorld, key: str, outcome: str, reason: str = "oh") -> None:
    left = Exit(outcome, "finished", datetime.now(timezone.utc), reason)  # type: ignore[arg-type]
    world.store.put(keys.exit_(key), codec.dumps(left))


def gives_notice(world: AgentWorld, key: str, *, hard: bool) -> None:
    notice = NoticeFact(hard, "cloud", datetime.now(timezone.utc), 25.0)
    world.store.put(keys.notice(key), codec.dumps(notice))


def looked_again(world: AgentWorld, reads: dict[str, int], times: int = 3) -> None:
    """Wait until the peers were read some more times."""
    before = reads.get("get", 0)
    wait_for(lambda: reads.get("get", 0) > before + times * 8)


def test_a_peer_that_fails_ends_the_others(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=3)
    key_list = [beats(world, claim, rank) for rank in range(3)]
    watch, changes = watches(world.store, claim, 0)
    looked_again(world, world.store.counts)
    assert watch.left is None and changes == []
    leaves(world, key_list[2], "failed")
    wait_for(lambda: watch.left is not None)
    assert watch.left == PeerLeft(2, "rank 2 left: oh") and watch.left.grace_s is None
    leaves(world, key_list[1], "failed")
    looked_again(world, world.store.counts)
    assert watch.left == PeerLeft(2, "rank 2 left: oh") and changes == ["left"], "the first one is the reason"


def test_a_peer_that_succeeds_lets_the_others_finish(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    key_list = [beats(world, claim, rank) for rank in range(2)]
    lead, _ = watches(world.store, claim, 0)
    follower, changes = watches(world.store.client(), claim, 1)
    leaves(world, key_list[1], "succeeded")
    looked_again(world, world.store.counts)
    assert lead.left is None and not lead.lead_finished and not follower.lead_finished
    leaves(world, key_list[0], "succeeded")
    wait_for(lambda: follower.lead_finished)
    assert follower.left is None and changes == []


def test_a_notice_of_a_peer_gives_the_others_its_grace(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    key = beats(world, claim, 1)
    watch, changes = watches(world.store, claim, 0)
    gives_notice(world, key, hard=False)
    looked_again(world, world.store.counts)
    assert watch.left is None, "a hint takes nothing away"
    gives_notice(world, key, hard=True)
    wait_for(lambda: changes == ["left"])
    assert watch.left == PeerLeft(1, "rank 1 was given notice", 25.0)


def test_a_peer_that_saves_to_leave_has_the_others_save(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    beats(world, claim, 0, phase="saving")
    watch, changes = watches(world.store, claim, 1)
    wait_for(lambda: changes == ["left"])
    assert watch.left == PeerLeft(0, "rank 0 is saving to leave")


def test_ranks_other_than_the_first_watch_the_first_alone(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=3)
    key_list = [beats(world, claim, rank) for rank in range(3)]
    leaves(world, key_list[2], "failed")
    watch, _ = watches(world.store, claim, 1)
    looked_again(world, world.store.counts)
    assert watch.left is None
    leaves(world, key_list[0], "failed")
    wait_for(lambda: watch.left is not None)
    assert watch.left is not None and watch.left.rank == 0


def test_a_peer_that_cannot_be_read_has_not_left(
    world: AgentWorld, watches: Watches, caplog: pytest.LogCaptureFixture
) -> None:
    claim = world.claim(nodes=3)
    first, second = beats(world, claim, 1), beats(world, claim, 2)
    reads: list[str] = []

    def faults(_method: str, key: str) -> Fault | None:
        reads.append(key)
        if key.startswith(first):
            raise RuntimeError("a reply that makes no sense")
        return None

    leaves(world, first, "failed")
    watch, _ = watches(world.store.client(faults), claim, 0)
    wait_for(lambda: len(reads) > 30)
    assert watch.left is None and "reading rank 1 failed" in caplog.text
    leaves(world, second, "failed")
    wait_for(lambda: watch.left is not None)
    assert watch.left is not None and watch.left.rank == 2


def test_answers_and_proposals_of_saves_are_heard(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=3)
    lead, _ = watches(world.store, claim, 0)
    follower, _ = watches(world.store.client(), claim, 1)
    assert lead.answers() == {} and follower.proposal is None
    beats(world, claim, 0, save_proposal=SaveProposal(7, 2.5, ("epoch_2",)))
    beats(world, claim, 1, save_answer=SaveAnswer(7, True))
    beats(world, claim, 2)
    wait_for(lambda: lead.answers() == {1: SaveAnswer(7, True)})
    wait_for(lambda: follower.proposal == SaveProposal(7, 2.5, ("epoch_2",)))


def test_a_heartbeat_that_lands_late_brings_back_no_proposal(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    beats(world, claim, 0, beat=8, save_proposal=SaveProposal(7, 2.5))
    watch, _ = watches(world.store, claim, 1)
    wait_for(lambda: watch.proposal == SaveProposal(7, 2.5))
    beats(world, claim, 0, beat=3, save_proposal=SaveProposal(5, 2.5))
    looked_again(world, world.store.counts)
    assert watch.proposal == SaveProposal(7, 2.5)


def test_ranks_tell_one_another_through_their_heartbeats(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    beat_of = [HeartbeatThread(world.store, world.node(claim, rank).key, lambda found: found) for rank in range(2)]
    links = [HeartbeatLink(beat_of[rank], watches(world.store.client(), claim, rank)[0]) for rank in range(2)]
    for beat in beat_of:
        beat.start()
    try:
        links[0].propose(SaveProposal(7, 2.5))
        wait_for(lambda: links[1].proposal() == SaveProposal(7, 2.5))
        links[1].answer(SaveAnswer(7, False))
        wait_for(lambda: links[0].answers() == {1: SaveAnswer(7, False)})
    finally:
        for beat in beat_of:
            beat.stop()


def test_rank_0_has_finished_only_when_its_last_heartbeat_was_read(world: AgentWorld, watches: Watches) -> None:
    """Its exit may be read in the same round as an older heartbeat, which lacks its last proposal."""
    claim = world.claim(nodes=2)
    key = beats(world, claim, 0)
    proposal = SaveProposal(7, 0.0, ended=True)

    def faults(method: str, read: str) -> Fault | None:
        if method == "get" and read == keys.exit_(key) and not world.store.holds(keys.exit_(key)):
            beats(world, claim, 0, save_proposal=proposal)
            leaves(world, key, "succeeded")
        return None

    watch, _ = watches(world.store.client(faults), claim, 1)
    wait_for(lambda: watch.lead_finished)
    assert watch.proposal == proposal


def test_a_node_alone_watches_nobody(world: AgentWorld, watches: Watches) -> None:
    before = threading.active_count()
    watch, _ = watches(world.store, world.claim(), 0)
    assert threading.active_count() == before and watch.answers() == {}


def test_a_watch_that_is_stopped_reads_no_more(world: AgentWorld, watches: Watches) -> None:
    claim = world.claim(nodes=2)
    beats(world, claim, 1)
    store = world.store.client()
    watch, _ = watches(store, claim, 0)
    looked_again(world, store.counts)
    watch.stop()
    wait_for(lambda: "peers" not in [thread.name for thread in threading.enumerate()])


class Pauses:
    """Keeps how long a watch wants to wait, and stops it."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return True


def test_peers_are_looked_at_less_often_in_a_store_far_away(world: AgentWorld) -> None:
    claim = world.claim(nodes=2)
    asked: list[float] = []
    for is_local in (True, False):
        pauses = Pauses()
        watch = PeerWatch(MemoryStore(lambda: datetime.now(timezone.utc), is_local=is_local), JOB, claim, 0)
        watch._stop = pauses  # type: ignore[assignment]
        watch._run(lambda: None)
        asked += pauses.asked
    near_s, far_s = asked
    # Requests to a cloud cost money; a notice leaves half a minute.
    assert 0.1 <= near_s <= 1.0 <= far_s <= 10.0
