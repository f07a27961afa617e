"""The phase of the training: what it hears, what ends it, and where it runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from attempt_parts import NOW, FakeSync, a_life, phase_of, said, world
from noticing_machine import Here

from stoker.agent import attempt
from stoker.agent import setup as ready_module
from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.output_files import Baseline
from stoker.agent.peers import PeerLeft
from stoker.agent.phases import permission
from stoker.agent.phases import training as training_phase
from stoker.agent.phases.leaving import LeaveEarly
from stoker.agent.phases.training import start_syncs
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.supervise import EndRequest, TrainingOutcome
from stoker.model.errors import StoreUnavailable
from stoker.model.gang_messages import SaveAnswer
from stoker.model.log_entries import Closed
from stoker.model.node_facts import CheckpointRef, NoticeFact, SaveTimes
from stoker.model.spec import Checkpoints, Environment, Spec
from stoker.model.spec import Container as ContainerSpec
from stoker.model.submission import Submission
from stoker.processes import TRAINING
from stoker.store.checkpoint_manifests import TrustedClaims

__all__ = ["world"]

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
