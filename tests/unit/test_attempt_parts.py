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

from stoker.agent import attempt
from stoker.agent import flush_after_restart as flush_module
from stoker.agent import setup as ready_module
from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.checkpoints.sync import SyncOptions, SyncStatus
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.exit_report import TrainingRecord, make_exit
from stoker.agent.metric_progress import Progress
from stoker.agent.output_files import Baseline
from stoker.agent.peers import PeerLeft
from stoker.agent.phases import context, finish, permission
from stoker.agent.phases import training as training_phase
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.leaving import LeaveEarly
from stoker.agent.phases.training import TrainingPhase, start_syncs
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import EndRequest, TrainingOutcome
from stoker.model.errors import SetupFailed, StoreUnavailable
from stoker.model.log_entries import Closed
from stoker.model.node_facts import Activity, CheckpointRef, Heartbeat, NoticeFact, SaveAnswer, SaveTimes, Trend, Usage
from stoker.model.spec import Checkpoints, Environment, Spec
from stoker.model.spec import Container as ContainerSpec
from stoker.model.submission import Submission
from stoker.processes import TRAINING
from stoker.store.checkpoint_manifests import TrustedClaims

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

    def wake(self) -> None:
        self.did.append("wake")

    def close(self) -> None:
        self.did.append("close")

    def final(self, seconds: None, end: TrainingEnd, until_s: Any) -> None:
        self.did.append(end.how)
        self.final_s.append(until_s() - time.monotonic())


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def a_life(world: AgentWorld, machine: Here | None = None, rank: int = 0, nodes: int = 1) -> AttemptContext:
    life = world.life(world.claim(nodes), rank, machine=machine)
    life.log_watch.poll()
    return life


def phase_of(life: AttemptContext) -> TrainingPhase:
    return TrainingPhase(life, Submission(JOB, Spec(name="job", run="true"), "test"))


def said(life: AttemptContext) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""


# ── The last commit ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_held_back_is_told_with_the_checkpoint_that_stays(world: AgentWorld) -> None:
    life = a_life(world)
    ref = CheckpointRef(f"{life.config.claim:08d}/000002-step-9", "step-9")
    sync = FakeSync(held_back="a.pt is cut off", last=ref)
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    assert phase_of(life).commit_last(20.0, TrainingEnd("died")) is True and sync.did == ["died"]
    assert 15.0 < sync.final_s[0] <= 20.0
    assert "a.pt is cut off; the checkpoint stays at step-9 (1.2)\n" in said(life)
    sync.now = SyncStatus(held_back="b.pt is cut off", unsynced_bytes=1)
    assert phase_of(life).commit_last(20.0, TrainingEnd("died")) is False
    assert "b.pt is cut off; there is no checkpoint yet\n" in said(life)
    life.record.restored = RestoredCheckpoint(f"{life.config.claim:08d}/000001-step-4", ())
    phase_of(life).commit_last(20.0, TrainingEnd("died"))
    assert "b.pt is cut off; the checkpoint stays at step-4 (1.1)\n" in said(life)


def test_a_notice_during_the_last_commit_leaves_time_for_the_exit(world: AgentWorld) -> None:
    machine = Here()
    life = a_life(world, machine)
    machine.give(10.0)
    sync = FakeSync()
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    phase_of(life).commit_last(1000.0, TrainingEnd("finished"))
    assert sync.final_s[0] <= 8.0 and said(life) == ""


# ── A training that is asked to go ────────────────────────────────────────────────────────────────────────────────────


def test_a_training_hears_before_anything_else_that_it_must_go(world: AgentWorld) -> None:
    life = a_life(world)
    phase = phase_of(life)
    did: list[str] = []
    sync = FakeSync(commits=4)

    def hurry(seconds: float) -> None:
        did.append(f"hurry {round(seconds)}")

    def notify(ending: EndRequest, notice: Path) -> float:
        did.append(f"tell {ending.why} {notice.name}")
        return time.monotonic() + 100.0

    def end(ending: EndRequest, notice: Path, last_look: Any, pressed: Any) -> TrainingOutcome:
        did.append(f"end {ending.why} {notice.name} {life.heartbeat.now.phase}")
        assert last_look == phase.commit_last and pressed == life.notices.poll
        sync.now = SyncStatus(commits=6)
        return TrainingOutcome(0, None, 7.0, ending, SaveTimes(1.0, 2.0, 3.0, 100.0))

    def look(_status: SyncStatus, trained_s: float, *, leaving: bool) -> None:
        did.append(f"look {trained_s} {leaving}")

    sync.hurry = hurry  # type: ignore[attr-defined]
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    life.training = SimpleNamespace(notify=notify, end=end, trained_s=5.0)  # type: ignore[assignment]
    life.syncs.missing = SimpleNamespace(check=look)  # type: ignore[assignment]
    life.syncs.outputs = SimpleNamespace(pause=lambda: did.append("hold"))  # type: ignore[assignment]
    phase.end(EndRequest("stop", "stop asked by me", 100.0))
    told = ["tell stop notice.json", "look 5.0 True", "hurry 100", "hold", "end stop notice.json saving"]
    assert did == told and "stop asked by me: 100.0 s to save\n" in said(life)
    assert life.record.outcome is not None and life.record.outcome.save == SaveTimes(1.0, 2.0, 3.0, 100.0, commits=2)
    assert "the command" not in said(life), "it saved and left"


@pytest.mark.parametrize(
    ("code", "number", "saved_s", "told"),
    [
        (None, 15, 1.0, "the command ended with signal 15\n"),
        (143, None, 1.0, "the command ended with exit code 143\n"),
        (None, 9, None, "the command did not end in time, and was killed\n"),
    ],
)
def test_the_log_says_how_a_training_that_was_asked_to_end_did(
    world: AgentWorld, code: int | None, number: int | None, saved_s: float | None, told: str
) -> None:
    life = a_life(world)
    sync = FakeSync(held_back="ckpt.pt is not part of the checkpoint")
    sync.hurry = lambda _seconds: None  # type: ignore[attr-defined]
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    ending = EndRequest("stop", "stop asked by me", 100.0)
    outcome = TrainingOutcome(code, number, 7.0, ending, SaveTimes(saved_s, None, 3.0, 100.0))
    life.training = SimpleNamespace(  # type: ignore[assignment]
        notify=lambda *_: time.monotonic() + 100.0, end=lambda *_: outcome, trained_s=5.0
    )
    phase_of(life).end(ending)
    assert told in said(life)
    assert life.record.outcome is not None and life.record.outcome.save is not None
    assert life.record.outcome.save.torn, "its last save was not whole"


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

    monkeypatch.setattr(
        training_phase, "CheckpointSync", lambda options: Sync("sync", (options.store,), **vars(options))
    )
    monkeypatch.setattr(training_phase, "OutputSync", lambda *words, **options: Sync("outputs", words, **options))
    life.leaving.peers = SimpleNamespace(answers=lambda: {1: SaveAnswer(7, True)}, lead_finished=False)  # type: ignore[assignment]
    life.record.restored = RestoredCheckpoint("key", ())
    submission = Submission(JOB, Spec(name="job", run="true", checkpoints=Checkpoints(keep=7)), "test")
    place = ready_module.make_location(
        life.node, submission, life.setup_result, RendezvousResult(("a", "b"), 1, None), 1
    )
    trust = TrustedClaims({life.config.claim: 2})
    start_syncs(life, submission.spec, place, Baseline(), trust)
    sync: Any = life.syncs.checkpoints
    outputs: Any = life.syncs.outputs
    assert started == ["sync", "outputs"] and life.training.observer is sync
    told = {name: sync.options[name] for name in ("job", "claim", "rank", "nodes", "keep", "restored", "trust")}
    attempt = {"job": JOB, "claim": life.config.claim, "rank": rank, "nodes": 2, "keep": 7}
    assert told == attempt | {"restored": life.record.restored, "trust": trust}
    assert sync.options["folder"] == place.checkpoints and sync.options["gang"].answers() == {1: SaveAnswer(7, True)}
    assert (sync.options["channel"], sync.options["scratch"]) == (life.paths.channel, life.paths.scratch)
    assert sync.options["lead_finished"]() is False and not sync.options["writing"]({}).files
    life.leaving.peers.lead_finished = True  # type: ignore[union-attr]
    assert sync.options["lead_finished"]() is True
    assert outputs.words[1:4] == (JOB, life.config.claim, rank) and outputs.options == {"nodes": 2}
    assert (life.syncs.missing is not None) is (rank == 0), "one rank says that nothing is saved"


# ── Reasons to end ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_peer_that_leaves_ends_the_training_with_its_grace_or_the_jobs(world: AgentWorld) -> None:
    life = a_life(world, nodes=2)
    phase = phase_of(life)
    life.leaving.peers = SimpleNamespace(left=None, stop=lambda: None)  # type: ignore[assignment]
    assert phase.reason_to_end(60.0) is None
    life.leaving.peers = SimpleNamespace(left=PeerLeft(1, "rank 1 left: oh"), stop=lambda: None)  # type: ignore[assignment]
    ending = phase.reason_to_end(60.0)
    assert ending is not None and (ending.why, ending.reason, ending.grace_s) == ("peer", "rank 1 left: oh", 60.0)
    left = PeerLeft(1, "rank 1 was given notice", 0.0)
    life.leaving.peers = SimpleNamespace(left=left, stop=lambda: None)  # type: ignore[assignment]
    ending = phase.reason_to_end(60.0)
    assert ending is not None and ending.grace_s == 0.0
    with pytest.raises(LeaveEarly) as leaving:
        life.leaving.check_notices()
    assert (leaving.value.why, leaving.value.reason) == ("peer", "rank 1 was given notice")


def test_evidence_that_the_log_asks_for_is_collected_before_and_during_the_training(world: AgentWorld) -> None:
    life = a_life(world)
    phase = phase_of(life)
    looks: list[Any] = []
    life.monitors.stack_dumps.start_requested = looks.append  # type: ignore[method-assign]
    life.leaving.check_notices()
    assert looks == [life.log_watch.state]
    assert phase.reason_to_end(60.0) is None and looks == [life.log_watch.state] * 2


def test_a_hint_is_passed_on_once_and_another_one_again(world: AgentWorld) -> None:
    machine = Here()
    life = a_life(world, machine)
    phase = phase_of(life)
    sync = FakeSync()
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    for number in (1, 2):
        machine.now = NoticeFact(hard=False, source=f"hint {number}", at=NOW, grace_s=0.0)
        assert phase.reason_to_end(60.0) is None and phase.reason_to_end(60.0) is None
        assert life.paths.save.read_text() == str(number) and sync.did == ["wake"] * number
        assert said(life).count("asked to save, going on") == number


def test_a_hint_that_cannot_be_passed_on_does_not_end_the_training(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Here()
    life = a_life(world, machine)
    phase = phase_of(life)
    life.syncs.checkpoints = FakeSync()  # type: ignore[assignment]
    life.paths.channel.rmdir()
    machine.now = NoticeFact(hard=False, source="hint", at=NOW, grace_s=0.0)
    assert phase.reason_to_end(60.0) is None and "the training cannot be asked to save" in caplog.text


def test_what_is_asked_of_a_store_that_is_away_is_asked_again_with_longer_pauses(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    life = a_life(world)
    pauses: list[float] = []
    life.leaving.pause = pauses.append  # type: ignore[method-assign]
    answers: list[int] = []

    def question() -> str:
        answers.append(1)
        if len(answers) < 9:
            raise StoreUnavailable("away")
        return "here"

    assert life.leaving.ask_store(question) == "here"
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] and caplog.text.count("away") == 8


def test_nothing_is_begun_for_a_node_that_has_left(world: AgentWorld) -> None:
    life = a_life(world)
    life.leaving.stop_if_left(1, 2)
    life.leaving.mark_left()
    with pytest.raises(LeaveEarly):
        life.leaving.stop_if_left()


@pytest.mark.parametrize(("is_local", "pause_s"), [(True, 0.05), (False, 1.0)])
def test_a_store_far_away_is_asked_less_often_for_the_permission_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, pause_s: float
) -> None:
    world = AgentWorld(tmp_path)
    world.submit("true")
    older = world.claim()
    claim = world.claim(launched=False)
    life = world.life(claim)
    life.node = replace(life.node, store=SimpleNamespace(is_local=is_local))  # type: ignore[arg-type]
    pauses: list[float] = []

    def launch(seconds: float) -> None:
        pauses.append(seconds)
        world.launch(claim.number)

    monkeypatch.setattr(permission.time, "sleep", launch)
    state = permission.wait_until_named(life)
    assert pauses == [pause_s] and state.seq == world.state.seq

    def close(seconds: float) -> None:
        pauses.append(seconds)
        world.append(Closed(older.number, "lost", "test", restart=True))

    monkeypatch.setattr(permission.time, "sleep", close)
    allowed = permission.wait_until_allowed(life)
    assert pauses == [pause_s, pause_s] and allowed.seq == world.state.seq and life.heartbeat.now.phase == "waiting"


# ── The heartbeat ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_beat(**more: Any) -> Heartbeat:
    return Heartbeat(**{"beat": 1, "phase": "training", "at": NOW, "interval_s": 2.0} | more)


def test_a_heartbeat_says_what_is_known_now(world: AgentWorld) -> None:
    life = a_life(world)
    life.monitors.usage._latest = Usage(cpu_percent=7.0)
    life.record.restored = RestoredCheckpoint("key", (), step=40)
    ref = CheckpointRef("key", "name")
    life.syncs.checkpoints = FakeSync(
        last=ref, files=3, unsynced_bytes=5, error="the store is slow", held_back="a is cut off"
    )  # type: ignore[assignment]
    life.syncs.missing = SimpleNamespace(warning="nothing has been saved", elsewhere=("m.pt",))  # type: ignore[assignment]
    life.pumps.copy = SimpleNamespace(warning="the store is slow")  # type: ignore[assignment]
    life.log_watch.error = "no answer"
    found = life.fill_heartbeat(a_beat(restored_from="key"))
    assert found.usage == Usage(cpu_percent=7.0) and found.restored_step == 40
    assert (found.checkpoint, found.checkpoint_files, found.unsynced_bytes) == (ref, 3, 5)
    assert found.saves_elsewhere == ("m.pt",)
    assert found.warnings == ("no answer", "the store is slow", "a is cut off", "nothing has been saved")
    assert life.fill_heartbeat(a_beat()).restored_step is None, "it has not said what it restored yet"
    plain = a_life(world).fill_heartbeat(a_beat())
    assert plain.warnings == () and plain.checkpoint is None and plain.trained_s == 0.0


def test_a_look_at_the_training_passes_on_its_steps_values_and_saves(world: AgentWorld) -> None:
    life = a_life(world)
    told: list[Any] = []
    fact = Activity(silent_s=1.0)
    life.monitors.training = SimpleNamespace(  # type: ignore[assignment]
        note_step=lambda step, moves: told.append((step, moves)),
        note_metrics=told.append,
        note_checkpoints=told.append,
        report=lambda: None,
        idle_s=lambda gpus: 4.0 + gpus,
    )
    life.monitors.setup.report = lambda: fact  # type: ignore[method-assign]
    trends = {"a": Trend(1.0, 2.0, 3.0, 4.0)}
    life.pumps.metrics = SimpleNamespace(progress=Progress(1, 5, {"a": 1.0}, trends, 3))  # type: ignore[assignment]
    life.syncs.checkpoints = FakeSync(files=1, unsynced_bytes=2, bytes_moved=3, commits=4)  # type: ignore[assignment]
    found = life.fill_heartbeat(a_beat())
    assert told == [(5, 3), {"a": 1.0}, (1, 2, 3, 4)]
    assert (found.step, found.first_step, found.metrics, found.trends) == (5, 1, {"a": 1.0}, trends)
    assert found.activity is fact and found.waste is not None and found.waste.idle_s == 4.0
    own = Activity(silent_s=9.0)
    life.monitors.training.report = lambda: own  # type: ignore[method-assign]
    assert life.fill_heartbeat(a_beat()).activity is own, "of the training, once it has begun"


@pytest.mark.parametrize(
    ("last_age_s", "over_s", "asked_s", "lost_s"),
    [
        (None, 0.0, None, 100.0),
        (30.0, 0.0, None, 30.0),
        (30.0, 20.0, None, 10.0),
        (5.0, 20.0, None, 0.0),
        (500.0, 0.0, None, 100.0),
        (None, 0.0, 10.0, 100.0),
        (11.0, 1.0, 10.0, 10.0),
        (9.0, 1.0, 10.0, 0.0),
    ],
)
def test_what_was_trained_since_the_last_checkpoint_is_lost(
    world: AgentWorld, last_age_s: float | None, over_s: float, asked_s: float | None, lost_s: float
) -> None:
    """But not the time of a save that was begun because the training was asked to end."""
    life = a_life(world)
    life.training = SimpleNamespace(trained_s=100.0, over_s=over_s, asked_s=asked_s)  # type: ignore[assignment]
    life.syncs.checkpoints = FakeSync(last_age_s=last_age_s)  # type: ignore[assignment]
    life.record.waited_s = 1.23456
    found = life.waste()
    assert (found.lost_s, found.waited_s) == (lost_s, 1.235)


def test_what_the_training_prints_goes_to_all_who_read_it(world: AgentWorld) -> None:
    life = a_life(world)
    heard: list[str] = []
    life.pumps.copy = SimpleNamespace(feed=lambda data, at: heard.append(f"copy {data!r} {at}"))  # type: ignore[assignment]
    life.monitors.setup.note_output = lambda data: heard.append("preparing")  # type: ignore[method-assign]
    life.monitors.training.note_output = lambda data: heard.append("activity")  # type: ignore[method-assign]
    life.take_output(b"x", 1.0)
    assert heard == ["copy b'x' 1.0", "preparing", "activity"]
    life.pumps.metrics = SimpleNamespace(  # type: ignore[assignment]
        scan=lambda data, at: heard.append("metrics"), add_usage=lambda usage: heard.append("usage")
    )
    life.take_output(b"x", 1.0)
    life.take_usage(Usage())
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

    monkeypatch.setattr(context, "collect_stack_dump", testify)
    monkeypatch.setattr(context, "find_py_spy", lambda: Path("/spy"))
    life.monitors.setup.members = lambda: {1}  # type: ignore[method-assign]
    life.runtime = SimpleNamespace(group=SimpleNamespace(members=lambda: {2}))  # type: ignore[assignment]
    life.setup = SimpleNamespace(secrets={"A": "1", "B": "1"})  # type: ignore[assignment]
    life.setup_result = replace(life.setup_result, secrets={"B": "2"})
    life.record.started_at = None if early else NOW
    assert life.collect_stacks() == b"text"
    [found] = asked
    assert found["members"] == ({1} if early else {2}) and found["agent"] is early
    assert found["secrets"] == {"A": "1", "B": "2"} and found["log"] == life.paths.train_log
    assert found["spy"] == Path("/spy")


def test_a_py_spy_that_cannot_be_had_is_told(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    life = a_life(world)
    monkeypatch.setattr(context, "find_py_spy", lambda: None)
    monkeypatch.setattr(context, "fetch_program", lambda *_: Path("/fetched"))
    assert life.find_py_spy() == Path("/fetched")

    def fail(*_: object) -> None:
        raise SetupFailed("it is gone", user=False)

    monkeypatch.setattr(context, "fetch_program", fail)
    assert life.find_py_spy() is None and "py-spy is not available: it is gone" in said(life)


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

    monkeypatch.setattr("stoker.agent.container.container.ContainerRuntime", FakeContainer)
    environment = Environment(container=ContainerSpec("repo/x:1"))
    inside = Submission(JOB, Spec(name="job", run="true", environment=environment), "test")
    for machine, submission in ((Contained(), inside), (Here(), Submission(JOB, Spec(name="job", run="true"), "test"))):
        life = a_life(world, machine)
        before = life.runtime
        attempt._choose_runtime(life, submission)
        assert life.runtime is before and made == []
    attempt._choose_runtime(life, inside)
    assert isinstance(life.runtime, FakeContainer) and len(made) == 1 and made[0][:2] == (life.node, inside)
    assert life.training._runtime is life.runtime
    cut: list[bool] = []
    life.setup = SimpleNamespace(cut_mounts=lambda: cut.append(True))  # type: ignore[assignment]
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
    life.pumps.logs, life.pumps.metrics, life.pumps.copy = logs, metrics, copy  # type: ignore[assignment]
    settled: list[float] = []
    life.setup = SimpleNamespace(wait_for_uploads=lambda until_s: settled.append(until_s() - time.monotonic()))  # type: ignore[assignment]

    def outputs(seconds: None, until_s: Any, publish: bool) -> bool:
        final.append((until_s() - clock[0], publish))
        return True

    life.syncs.outputs = SimpleNamespace(final=outputs, stored_saves=list, stored_loose=list)  # type: ignore[assignment]
    sync = FakeSync()
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    for owner, name in ((life.leaving, "peers"), *((life.monitors, name) for name in ("usage", "setup", "training"))):
        setattr(owner, name, SimpleNamespace(stop=lambda name=name: stopped.append(name)))
    left = make_exit("succeeded", "finished", "done", TrainingRecord())
    clock = [0.0]
    assert finish.flush(life, left, ShutdownBudget(100.0, lambda: None, lambda: clock[0])) is left
    assert logs.given == ["drain 50", "stop 5"] and metrics.given == ["drain 50", "stop 5"]
    assert copy.given == ["drain 2"] and final == [(100.0, True)] and 50.0 < settled[0] <= 60.0
    assert stopped == ["peers", "usage", "setup", "training"] and sync.did == ["close"]
    # A machine that is taken away has no time for copies, names and environments.
    life.notices.poll = lambda: 1.0  # type: ignore[method-assign]
    pressed = ShutdownBudget(100.0, lambda: 12.0, lambda: clock[0])
    assert pressed.share_s() == 10.0
    found = finish.flush(life, left, pressed)
    assert found is left and final[-1] == (10.0, False) and len(copy.given) == 1 and settled[-1] < 0.0
    sync.now = SyncStatus(unsynced_bytes=1)
    found = finish.flush(life, left, pressed)
    assert (found.outcome, found.why) == ("interrupted", "notice")
    assert found.reason == "the command finished, but the machine was taken before everything was safe"
    failed = make_exit("failed", "finished", "oh", TrainingRecord())
    assert finish.flush(life, failed, pressed) is failed


def test_what_is_not_in_the_store_is_told_to_those_whom_it_concerns(world: AgentWorld) -> None:
    life = a_life(world)
    life.submission = Submission(JOB, Spec(name="job", run="true"), "test")
    failed = make_exit("failed", "finished", "oh", TrainingRecord())
    lost = "nothing was saved: "
    concluded: list[float] = []

    def missing(*elsewhere: str) -> Any:
        return SimpleNamespace(conclude=concluded.append, settle=lambda: None, elsewhere=elsewhere)

    assert finish.say_nothing_saved(life, failed) is failed, "it never trained"
    life.syncs.checkpoints = FakeSync()  # type: ignore[assignment]
    life.syncs.missing = missing()
    assert finish.say_nothing_saved(life, failed) is failed
    life.record.outcome = TrainingOutcome(1, None, 7.0)
    finish.say_nothing_saved(life, failed)
    assert concluded == [7.0] and lost not in said(life), "it failed by itself, and saved nowhere"
    finish.say_nothing_saved(life, make_exit("infrastructure", "finished", "oh", life.record))
    assert said(life).count(lost) == 1
    life.syncs.missing = missing("m.pt")
    assert finish.say_nothing_saved(life, failed).saves_elsewhere == ("m.pt",) and said(life).count(lost) == 2
    life.syncs.checkpoints = FakeSync(files=2)  # type: ignore[assignment]
    finish.say_nothing_saved(life, failed)
    assert "was not whole in time" in said(life)
    count = said(life).count(lost)
    done = make_exit("succeeded", "finished", "done", life.record)
    assert finish.say_nothing_saved(life, done).saves_elsewhere == (), "the folder has files"
    life.syncs.checkpoints = FakeSync()  # type: ignore[assignment]
    assert finish.say_nothing_saved(life, done).saves_elsewhere == ("m.pt",)
    advice = "m.pt looks like a save: write `checkpoints: {dir: "
    assert f"no checkpoint was made: no file was written to checkpoints/; {advice}" in said(life)
    life.syncs.missing = missing()
    spoken = said(life)
    assert finish.say_nothing_saved(life, done) is done and said(life) == spoken, (
        "it saved nothing, and needs no advice"
    )
    life.record.restored = RestoredCheckpoint("key", ())
    finish.say_nothing_saved(life, failed)
    life.record.restored = None
    life.syncs.checkpoints = FakeSync(last=CheckpointRef("key", "name"))  # type: ignore[assignment]
    finish.say_nothing_saved(life, failed)
    assert said(life).count(lost) == count


@pytest.mark.parametrize("grace_s", [None, 10.0])
def test_a_restarted_agent_hurries_under_a_notice_alone(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, grace_s: float | None
) -> None:
    did: list[tuple[str, float]] = []

    class Sync:
        def __init__(self, options: SyncOptions) -> None:
            assert options.recovering is True

        def hurry(self, seconds: float) -> None:
            did.append(("hurry", round(seconds)))

        def final(self, seconds: float | None, until_s: Any) -> None:
            did.append(("final", round(until_s() if seconds is None else seconds)))

        def status(self) -> SyncStatus:
            return SyncStatus(commits=3)

    monkeypatch.setattr(flush_module, "CheckpointSync", Sync)
    node = world.node(world.claim())
    submission = Submission(JOB, Spec(name="job", run="true"), "test")
    clock = [0.0]
    closing = ShutdownBudget(100.0, lambda: grace_s, lambda: clock[0])
    assert flush_module._flush_checkpoints(node, world.state, submission, closing) is None, "there is no folder"
    (node.paths.code / "checkpoints").mkdir(parents=True)
    closing.flush_by_s()
    sync = flush_module._flush_checkpoints(node, world.state, submission, closing)
    assert sync is not None and sync.status().commits == 3
    assert did == ([("final", 100)] if grace_s is None else [("hurry", 8), ("final", 6)])
