"""Parts of an attempt that depend on moments which are hard to meet: with stand-ins for what the agent has running."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from noticing_machine import Here

from stoker.agent import attempt as life_module
from stoker.agent import flush_after_restart as flush_module
from stoker.agent import setup as ready_module
from stoker.agent.attempt import Left, Life
from stoker.agent.checkpoints.restore import Restored
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.checkpoints.whole_units import TrainingEnd
from stoker.agent.exit_report import Trained, make_exit
from stoker.agent.metrics import Progress
from stoker.agent.output_files import Baseline
from stoker.agent.peers import PeerLeft
from stoker.agent.rendezvous import Agreement
from stoker.agent.shutdown_budget import Closing
from stoker.agent.supervise import Ended, Ending
from stoker.model.errors import SetupFailed, StoreUnavailable
from stoker.model.log_entries import Closed
from stoker.model.node_facts import Activity, CheckpointRef, Heartbeat, NoticeFact, SaveTimes, Trend, Usage
from stoker.model.spec import Checkpoints, Environment, Spec, Submission
from stoker.model.spec import Container as ContainerSpec
from stoker.processes import TRAINING

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FakeSync:
    """A sync whose status the test sets."""

    sending = False

    def __init__(self, **status: Any) -> None:
        self.now = SyncStatus(**status)
        self.did: list[str] = []
        self.final_s: list[float] = []

    def status(self) -> SyncStatus:
        return self.now

    def poke(self) -> None:
        self.did.append("poke")

    def close(self) -> None:
        self.did.append("close")

    def final(self, seconds: float, end: TrainingEnd, until_s: Any) -> None:
        self.did.append(end.how)
        self.final_s += [seconds, until_s() - time.monotonic()]


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def a_life(world: AgentWorld, machine: Here | None = None, rank: int = 0, nodes: int = 1) -> Life:
    life = world.life(world.claim(nodes), rank, machine=machine)
    life.watch.poll()
    return life


def said(life: Life) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""


# ── The last commit ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_held_back_is_told_with_the_checkpoint_that_stays(world: AgentWorld) -> None:
    life = a_life(world)
    ref = CheckpointRef(f"{life.config.claim:08d}/000002-step-9", "step-9")
    sync = FakeSync(held_back="a.pt is cut off", last=ref)
    life.sync = sync  # type: ignore[assignment]
    assert life._last_commit(20.0, TrainingEnd("died")) is True and sync.did == ["died"]
    assert sync.final_s[0] == 20.0 and 0.0 < sync.final_s[1] <= 20.0
    assert "a.pt is cut off; the checkpoint stays at step-9 (1.2)\n" in said(life)
    sync.now = SyncStatus(held_back="b.pt is cut off", unsynced_bytes=1)
    assert life._last_commit(20.0, TrainingEnd("died")) is False
    assert "b.pt is cut off; there is no checkpoint yet\n" in said(life)
    life.trained.restored = Restored(f"{life.config.claim:08d}/000001-step-4", ())
    life._last_commit(20.0, TrainingEnd("died"))
    assert "b.pt is cut off; the checkpoint stays at step-4 (1.1)\n" in said(life)


def test_a_notice_during_the_last_commit_leaves_time_for_the_exit(world: AgentWorld) -> None:
    machine = Here()
    life = a_life(world, machine)
    machine.give(10.0)
    sync = FakeSync()
    life.sync = sync  # type: ignore[assignment]
    life._last_commit(1000.0, TrainingEnd("finished"))
    assert sync.final_s[1] <= 8.0 and said(life) == ""


# ── A training that is asked to go ────────────────────────────────────────────────────────────────────────────────────


def test_a_training_hears_before_anything_else_that_it_must_go(world: AgentWorld) -> None:
    life = a_life(world)
    did: list[str] = []
    sync = FakeSync(commits=4)

    def press(seconds: float) -> None:
        did.append(f"press {round(seconds)}")

    def tell(ending: Ending, notice: Path) -> float:
        did.append(f"tell {ending.why} {notice.name}")
        return time.monotonic() + 100.0

    def end(ending: Ending, notice: Path, last_look: Any, pressed: Any) -> Ended:
        did.append(f"end {ending.why} {notice.name} {life.beat.now.phase}")
        assert last_look == life._last_commit and pressed == life.notices.look
        sync.now = SyncStatus(commits=6)
        return Ended(0, None, 7.0, ending, SaveTimes(1.0, 2.0, 3.0, 100.0))

    def look(_status: SyncStatus, trained_s: float, *, leaving: bool) -> None:
        did.append(f"look {trained_s} {leaving}")

    sync.press = press  # type: ignore[attr-defined]
    life.sync = sync  # type: ignore[assignment]
    life.training = SimpleNamespace(tell=tell, end=end, trained_s=5.0)  # type: ignore[assignment]
    life.missing = SimpleNamespace(look=look)  # type: ignore[assignment]
    life.outputs = SimpleNamespace(hold=lambda: did.append("hold"))  # type: ignore[assignment]
    life._end(Ending("stop", "stop asked by me", 100.0))
    told = ["tell stop notice.json", "look 5.0 True", "press 100", "hold", "end stop notice.json saving"]
    assert did == told and "stop asked by me: 100.0 s to save\n" in said(life)
    assert life.trained.ended is not None and life.trained.ended.save == SaveTimes(1.0, 2.0, 3.0, 100.0, commits=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_checkpoints_and_outputs_are_watched_as_the_job_says(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    life = a_life(world, rank=rank, nodes=2)
    started: list[str] = []

    class Sync:
        def __init__(self, name: str, words: tuple[Any, ...], **options: Any) -> None:
            self.name, self.words, self.options = name, words, options

        def start(self) -> None:
            started.append(self.name)

    monkeypatch.setattr(life_module, "CheckpointSync", lambda *words, **options: Sync("sync", words, **options))
    monkeypatch.setattr(life_module, "OutputSync", lambda *words, **options: Sync("outputs", words, **options))
    life.peers = SimpleNamespace(ranks_with_files=lambda: (1,), lead_finished=False)  # type: ignore[assignment]
    life.trained.restored = Restored("key", ())
    submission = Submission(JOB, Spec(name="job", run="true", checkpoints=Checkpoints(keep=7)), "test")
    place = ready_module.make_place(life.node, submission, life.ready, Agreement(("a", "b"), 1, None), 1)
    life._start_syncs(submission, place, Baseline())
    sync: Any = life.sync
    outputs: Any = life.outputs
    assert started == ["sync", "outputs"] and life.training.observer is sync
    told = {name: sync.options[name] for name in ("job", "claim", "rank", "nodes", "keep", "restored", "trust")}
    attempt = {"job": JOB, "claim": life.config.claim, "rank": rank, "nodes": 2, "keep": 7}
    assert told == attempt | {"restored": life.trained.restored, "trust": life.trust}
    assert sync.options["folder"] == place.checkpoints and sync.options["peers"]() == (1,)
    assert (sync.options["channel"], sync.options["scratch"]) == (life.paths.channel, life.paths.scratch)
    assert sync.options["lead_finished"]() is False and not sync.options["writing"]().files
    life.peers.lead_finished = True  # type: ignore[union-attr]
    assert sync.options["lead_finished"]() is True
    assert outputs.words[1:4] == (JOB, life.config.claim, rank) and outputs.options == {"nodes": 2}
    assert (life.missing is not None) is (rank == 0), "one rank says that nothing is saved"


# ── Reasons to end ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_peer_that_leaves_ends_the_training_with_its_grace_or_the_jobs(world: AgentWorld) -> None:
    life = a_life(world, nodes=2)
    life.peers = SimpleNamespace(left=None, stop=lambda: None)  # type: ignore[assignment]
    assert life._reason_to_end(60.0) is None
    life.peers = SimpleNamespace(left=PeerLeft(1, "rank 1 left: oh"), stop=lambda: None)  # type: ignore[assignment]
    ending = life._reason_to_end(60.0)
    assert ending is not None and (ending.why, ending.reason, ending.grace_s) == ("peer", "rank 1 left: oh", 60.0)
    left = PeerLeft(1, "rank 1 was given notice", 0.0)
    life.peers = SimpleNamespace(left=left, stop=lambda: None)  # type: ignore[assignment]
    ending = life._reason_to_end(60.0)
    assert ending is not None and ending.grace_s == 0.0
    with pytest.raises(Left) as leaving:
        life._leave_if_noticed()
    assert (leaving.value.why, leaving.value.reason) == ("peer", "rank 1 was given notice")


def test_evidence_that_the_log_asks_for_is_collected_before_and_during_the_training(world: AgentWorld) -> None:
    life = a_life(world)
    looks: list[Any] = []
    life.witness.look = looks.append  # type: ignore[method-assign]
    life._leave_if_noticed()
    assert looks == [life.watch.state]
    assert life._reason_to_end(60.0) is None and looks == [life.watch.state] * 2


def test_a_hint_is_passed_on_once_and_another_one_again(world: AgentWorld) -> None:
    machine = Here()
    life = a_life(world, machine)
    sync = FakeSync()
    life.sync = sync  # type: ignore[assignment]
    for number in (1, 2):
        machine.now = NoticeFact(hard=False, source=f"hint {number}", at=NOW, grace_s=0.0)
        assert life._reason_to_end(60.0) is None and life._reason_to_end(60.0) is None
        assert life.paths.save.read_text() == str(number) and sync.did == ["poke"] * number
        assert said(life).count("asked to save, going on") == number


def test_a_hint_that_cannot_be_passed_on_does_not_end_the_training(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Here()
    life = a_life(world, machine)
    life.sync = FakeSync()  # type: ignore[assignment]
    life.paths.channel.rmdir()
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    assert life._reason_to_end(60.0) is None and "the training cannot be asked to save" in caplog.text


def test_what_is_asked_of_a_store_that_is_away_is_asked_again_with_longer_pauses(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    life = a_life(world)
    pauses: list[float] = []
    life._pause = pauses.append  # type: ignore[method-assign]
    answers: list[int] = []

    def question() -> str:
        answers.append(1)
        if len(answers) < 9:
            raise StoreUnavailable("away")
        return "here"

    assert life._ask(question) == "here"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] and caplog.text.count("away") == 8


def test_nothing_is_begun_for_a_node_that_has_left(world: AgentWorld) -> None:
    life = a_life(world)
    life._stop_if_left(1, 2)
    life._left.set()
    with pytest.raises(Left):
        life._stop_if_left()


@pytest.mark.parametrize(("near", "pause_s"), [(True, 0.05), (False, 1.0)])
def test_a_store_far_away_is_asked_less_often_for_the_permission_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool, pause_s: float
) -> None:
    world = AgentWorld(tmp_path)
    world.submit("true")
    older = world.claim()
    claim = world.claim(launched=False)
    life = world.life(claim)
    life.store = SimpleNamespace(near=near)  # type: ignore[assignment]
    pauses: list[float] = []

    def launch(seconds: float) -> None:
        pauses.append(seconds)
        world.launch(claim.number)

    monkeypatch.setattr(life_module.time, "sleep", launch)
    state = life._wait_until_named()
    assert pauses == [pause_s] and state.seq == world.state.seq

    def close(seconds: float) -> None:
        pauses.append(seconds)
        world.append(Closed(older.number, "lost", "test", restart=True))

    monkeypatch.setattr(life_module.time, "sleep", close)
    allowed = life._wait_until_allowed()
    assert pauses == [pause_s, pause_s] and allowed.seq == world.state.seq and life.beat.now.phase == "waiting"


# ── The heartbeat ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_beat(**more: Any) -> Heartbeat:
    return Heartbeat(**{"beat": 1, "phase": "training", "at": NOW, "interval_s": 2.0} | more)


def test_a_heartbeat_says_what_is_known_now(world: AgentWorld) -> None:
    life = a_life(world)
    life.usage._latest = Usage(cpu_percent=7.0)
    life.trained.restored = Restored("key", (), step=40)
    ref = CheckpointRef("key", "name")
    life.sync = FakeSync(last=ref, files=3, unsynced_bytes=5, error="the store is slow", held_back="a is cut off")  # type: ignore[assignment]
    life.missing = SimpleNamespace(warning="nothing has been saved", elsewhere=("m.pt",))  # type: ignore[assignment]
    life.copy = SimpleNamespace(warning="the store is slow")  # type: ignore[assignment]
    life.watch.error = "no answer"
    found = life._refresh(a_beat(restored_from="key"))
    assert found.usage == Usage(cpu_percent=7.0) and found.restored_step == 40
    assert (found.checkpoint, found.checkpoint_files, found.unsynced_bytes) == (ref, 3, 5)
    assert found.saves_elsewhere == ("m.pt",)
    assert found.warnings == ("no answer", "the store is slow", "a is cut off", "nothing has been saved")
    assert life._refresh(a_beat()).restored_step is None, "it has not said what it restored yet"
    plain = a_life(world)._refresh(a_beat())
    assert plain.warnings == () and plain.checkpoint is None and plain.trained_s == 0.0


def test_a_look_at_the_training_passes_on_its_steps_values_and_saves(world: AgentWorld) -> None:
    life = a_life(world)
    told: list[Any] = []
    fact = Activity(silent_s=1.0)
    life.activity = SimpleNamespace(  # type: ignore[assignment]
        stepped=lambda step, moves: told.append((step, moves)),
        reported=told.append,
        saved=told.append,
        fact=lambda: None,
        idle_s=lambda gpus: 4.0 + gpus,
    )
    life.preparing.fact = lambda: fact  # type: ignore[method-assign]
    trends = {"a": Trend(1.0, 2.0, 3.0, 4.0)}
    life.metrics = SimpleNamespace(progress=Progress(1, 5, {"a": 1.0}, trends, 3))  # type: ignore[assignment]
    life.sync = FakeSync(files=1, unsynced_bytes=2, bytes_moved=3, commits=4)  # type: ignore[assignment]
    found = life._refresh(a_beat())
    assert told == [(5, 3), {"a": 1.0}, (1, 2, 3, 4)]
    assert (found.step, found.first_step, found.metrics, found.trends) == (5, 1, {"a": 1.0}, trends)
    assert found.activity is fact and found.waste is not None and found.waste.idle_s == 4.0
    own = Activity(silent_s=9.0)
    life.activity.fact = lambda: own  # type: ignore[method-assign]
    assert life._refresh(a_beat()).activity is own, "of the training, once it has begun"


@pytest.mark.parametrize(
    ("last_age_s", "over_s", "lost_s"),
    [(None, 0.0, 100.0), (30.0, 0.0, 30.0), (30.0, 20.0, 10.0), (5.0, 20.0, 0.0), (500.0, 0.0, 100.0)],
)
def test_what_was_trained_since_the_last_checkpoint_is_lost(
    world: AgentWorld, last_age_s: float | None, over_s: float, lost_s: float
) -> None:
    life = a_life(world)
    life.training = SimpleNamespace(trained_s=100.0, over_s=over_s)  # type: ignore[assignment]
    life.sync = FakeSync(last_age_s=last_age_s)  # type: ignore[assignment]
    life._waited_s = 1.23456
    found = life._waste()
    assert (found.lost_s, found.waited_s) == (lost_s, 1.235)


def test_what_the_training_prints_goes_to_all_who_read_it(world: AgentWorld) -> None:
    life = a_life(world)
    heard: list[str] = []
    life.copy = SimpleNamespace(feed=lambda data, at: heard.append(f"copy {data!r} {at}"))  # type: ignore[assignment]
    life.preparing.heard = lambda data: heard.append("preparing")  # type: ignore[method-assign]
    life.activity.heard = lambda data: heard.append("activity")  # type: ignore[method-assign]
    life._scan(b"x", 1.0)
    assert heard == ["copy b'x' 1.0", "preparing", "activity"]
    life.metrics = SimpleNamespace(  # type: ignore[assignment]
        scan=lambda data, at: heard.append("metrics"), add_usage=lambda usage: heard.append("usage")
    )
    life._scan(b"x", 1.0)
    life._take_usage(Usage())
    assert heard[-2:] == ["metrics", "usage"]


# ── Evidence ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("early", [True, False])
def test_evidence_is_of_the_training_or_of_what_comes_before_it(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    life = a_life(world)
    asked: list[dict[str, Any]] = []

    def testify(members: set[int], log: Path, secrets: dict[str, str], **options: Any) -> bytes:
        asked.append({"members": members, "log": log, "secrets": secrets, **options})
        return b"text"

    monkeypatch.setattr(life_module, "testify", testify)
    monkeypatch.setattr(life_module, "find_spy", lambda: Path("/spy"))
    life.preparing.members = lambda: {1}  # type: ignore[method-assign]
    life.enclosure = SimpleNamespace(group=SimpleNamespace(members=lambda: {2}))  # type: ignore[assignment]
    life.readying = SimpleNamespace(secrets={"A": "1", "B": "1"})  # type: ignore[assignment]
    life.ready = replace(life.ready, secrets={"B": "2"})
    life.trained.started_at = None if early else NOW
    assert life._testify() == b"text"
    [found] = asked
    assert found["members"] == ({1} if early else {2}) and found["agent"] is early
    assert found["secrets"] == {"A": "1", "B": "2"} and found["log"] == life.paths.train_log
    assert found["spy"] == Path("/spy")


def test_a_py_spy_that_cannot_be_had_is_told(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    life = a_life(world)
    monkeypatch.setattr(life_module, "find_spy", lambda: None)
    monkeypatch.setattr(life_module, "fetch_program", lambda *_: Path("/fetched"))
    assert life._spy() == Path("/fetched")

    def fail(*_: object) -> None:
        raise SetupFailed("it is gone", user=False)

    monkeypatch.setattr(life_module, "fetch_program", fail)
    assert life._spy() is None and "py-spy cannot be had: it is gone" in said(life)


# ── Where it runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_with_a_container_runs_in_one_unless_its_machine_is_one(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    class FakeContainer:
        group = SimpleNamespace(members=set, kill=lambda _s=0.0: True)

        def __init__(self, *words: Any) -> None:
            made.append(words)

    class Contained(Here):
        contained = True

    monkeypatch.setattr("stoker.agent.container.container.Container", FakeContainer)
    environment = Environment(container=ContainerSpec("repo/x:1"))
    inside = Submission(JOB, Spec(name="job", run="true", environment=environment), "test")
    for machine, submission in ((Contained(), inside), (Here(), Submission(JOB, Spec(name="job", run="true"), "test"))):
        life = a_life(world, machine)
        before = life.enclosure
        life._enclose(submission)
        assert life.enclosure is before and made == []
    life._enclose(inside)
    assert isinstance(life.enclosure, FakeContainer) and len(made) == 1 and made[0][:2] == (life.node, inside)
    assert life.training._enclosure is life.enclosure
    cut: list[bool] = []
    life.readying = SimpleNamespace(cut_mounts=lambda: cut.append(True))  # type: ignore[assignment]
    life.training._unblock()
    assert cut == [True] and TRAINING


# ── Leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Pump:
    """Keeps how long it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def drain(self, seconds: float, until_s: Any = None) -> bool:
        self.given.append(f"drain {seconds:.0f}")
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        self.given.append(f"stop {timeout_s:.0f}")


def test_what_comes_before_the_exit_gets_its_share_of_the_time(world: AgentWorld) -> None:
    life = a_life(world)
    logs, metrics, copy = Pump(), Pump(), Pump()
    final: list[tuple[float, bool]] = []
    stopped: list[str] = []
    life.logs, life.metrics, life.copy = logs, metrics, copy  # type: ignore[assignment]
    settled: list[float] = []
    life.readying = SimpleNamespace(settle=lambda until_s: settled.append(until_s() - time.monotonic()))  # type: ignore[assignment]

    def outputs(seconds: float, until_s: Any, publish: bool) -> bool:
        final.append((seconds, publish))
        return True

    life.outputs = SimpleNamespace(final=outputs)  # type: ignore[assignment]
    sync = FakeSync()
    life.sync = sync  # type: ignore[assignment]
    for name in ("peers", "usage", "preparing", "activity"):
        setattr(life, name, SimpleNamespace(stop=lambda name=name: stopped.append(name)))
    left = make_exit("succeeded", "finished", "done", Trained())
    clock = [0.0]
    assert life._flush_rest(left, Closing(100.0, lambda: None, lambda: clock[0])) is left
    assert logs.given == ["drain 50", "stop 5"] and metrics.given == ["drain 50", "stop 5"]
    assert copy.given == ["drain 2"] and final == [(100.0, True)] and 50.0 < settled[0] <= 60.0
    assert stopped == ["peers", "usage", "preparing", "activity"] and sync.did == ["close"]
    # A machine that is taken away has no time for copies, names and environments.
    life.notices.look = lambda: 1.0  # type: ignore[method-assign]
    pressed = Closing(100.0, lambda: 12.0, lambda: clock[0])
    assert pressed.share_s() == 10.0
    found = life._flush_rest(left, pressed)
    assert found is left and final[-1] == (10.0, False) and len(copy.given) == 1 and settled[-1] < 0.0
    sync.now = SyncStatus(unsynced_bytes=1)
    found = life._flush_rest(left, pressed)
    assert (found.outcome, found.why) == ("interrupted", "notice")
    assert found.reason == "the command finished, but the machine was taken before everything was safe"
    failed = make_exit("failed", "finished", "oh", Trained())
    assert life._flush_rest(failed, pressed) is failed


def test_what_is_not_in_the_store_is_told_to_those_whom_it_concerns(world: AgentWorld) -> None:
    life = a_life(world)
    life._spec = Spec(name="job", run="true")
    failed = make_exit("failed", "finished", "oh", Trained())
    lost = "nothing was saved: "
    concluded: list[float] = []

    def missing(*elsewhere: str) -> Any:
        return SimpleNamespace(conclude=concluded.append, elsewhere=elsewhere)

    assert life._say_what_is_kept(failed) is failed, "it never trained"
    life.sync = FakeSync()  # type: ignore[assignment]
    life.missing = missing()
    assert life._say_what_is_kept(failed) is failed
    life.trained.ended = Ended(1, None, 7.0)
    life._say_what_is_kept(failed)
    assert concluded == [7.0] and lost not in said(life), "it failed by itself, and saved nowhere"
    life._say_what_is_kept(make_exit("infrastructure", "finished", "oh", life.trained))
    assert said(life).count(lost) == 1
    life.missing = missing("m.pt")
    assert life._say_what_is_kept(failed).saves_elsewhere == ("m.pt",) and said(life).count(lost) == 2
    life.sync = FakeSync(files=2)  # type: ignore[assignment]
    life._say_what_is_kept(failed)
    assert "was not whole in time" in said(life)
    count = said(life).count(lost)
    life._say_what_is_kept(make_exit("succeeded", "finished", "done", life.trained))
    life.trained.restored = Restored("key", ())
    life._say_what_is_kept(failed)
    life.trained.restored = None
    life.sync = FakeSync(last=CheckpointRef("key", "name"))  # type: ignore[assignment]
    life._say_what_is_kept(failed)
    assert said(life).count(lost) == count


@pytest.mark.parametrize("grace_s", [None, 10.0])
def test_a_restarted_agent_hurries_under_a_notice_alone(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, grace_s: float | None
) -> None:
    did: list[tuple[str, float]] = []

    class Sync:
        def __init__(self, *_: Any, **options: Any) -> None:
            assert options["recovering"] is True

        def press(self, seconds: float) -> None:
            did.append(("press", round(seconds)))

        def final(self, seconds: float, until_s: Any) -> None:
            did.append(("final", round(seconds)))

        def status(self) -> SyncStatus:
            return SyncStatus(commits=3)

    monkeypatch.setattr(flush_module, "CheckpointSync", Sync)
    node = world.node(world.claim())
    submission = Submission(JOB, Spec(name="job", run="true"), "test")
    clock = [0.0]
    closing = Closing(100.0, lambda: grace_s, lambda: clock[0])
    assert flush_module._flush_checkpoints(node, world.state, submission, closing) is None, "there is no folder"
    (node.paths.code / "checkpoints").mkdir(parents=True)
    closing.rest_by_s()
    status = flush_module._flush_checkpoints(node, world.state, submission, closing)
    assert status is not None and status.commits == 3
    assert did == ([("final", 100)] if grace_s is None else [("press", 8), ("final", 6)])
