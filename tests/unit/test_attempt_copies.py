"""`checkpoints.copy_to` in an attempt: the copies begin with the training, and give way to what the job needs first."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from attempt_parts import FakeSync, a_life, phase_of, world
from checkpoint_world import write

from stoker.agent import setup as ready_module
from stoker.agent.checkpoints.blobs import BlobSender, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.exit_report import TrainingRecord, make_exit
from stoker.agent.node import utcnow
from stoker.agent.output_files import Baseline
from stoker.agent.phases import finish
from stoker.agent.phases import training as training_phase
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.training import start_syncs
from stoker.agent.rendezvous import RendezvousResult
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import EndRequest, TrainingOutcome, TrainingSurvived
from stoker.model import keys
from stoker.model.node_facts import Heartbeat, Manifest
from stoker.model.spec import Checkpoints, Spec
from stoker.model.submission import Submission
from stoker.store.base import open_store
from stoker.store.checkpoint_copy import read_record
from stoker.store.checkpoint_manifests import TRUST_ALL, encode

__all__ = ["world"]

SUCCEEDED = make_exit("succeeded", "finished", "done", TrainingRecord())


def commit(world: AgentWorld, life: AttemptContext, text: str) -> None:
    """A checkpoint that this attempt has committed."""
    folder = world.root / "saved"
    write(folder / "a.pt", text)
    sender = BlobSender(world.store, JOB, 0, scratch=world.root, workers=1)
    blobs = sender.send([OutgoingFile(file, folder / file.path) for file in scan(folder).values()])
    claim = life.config.claim
    manifest = Manifest("ckpt", JOB, claim, 0, 1, utcnow(), tuple(blobs.values()))
    assert world.store.create(keys.manifest(JOB, keys.checkpoint_key(claim, 1, "ckpt")), encode(manifest))


@pytest.mark.parametrize(("rank", "copied"), [(0, True), (1, False), (0, False)])
def test_rank_0_copies_checkpoints_to_the_url_of_the_job(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int, copied: bool
) -> None:
    life = a_life(world, rank=rank, nodes=2)
    sync = SimpleNamespace(start=lambda: None, status=lambda: SimpleNamespace(last=None))
    monkeypatch.setattr(training_phase, "CheckpointSync", lambda _options: sync)
    monkeypatch.setattr(training_phase, "OutputSync", lambda *_words, **_options: sync)
    life.leaving.peers = SimpleNamespace(lead_finished=False)  # type: ignore[assignment]
    url = (tmp_path / "copies").as_uri() if copied or rank else None
    spec = Spec(name="job", run="true", checkpoints=Checkpoints(copy_to=url), resume_from="base-1")
    submission = Submission(JOB, spec, "test")
    place = ready_module.make_location(
        life.node, submission, life.setup_result, RendezvousResult(("a", "b"), 1, None), 1
    )
    life.paths.scratch.mkdir(parents=True, exist_ok=True)
    commit(world, life, "weights")
    start_syncs(life, spec, place, Baseline(), TRUST_ALL)
    assert (life.syncs.copies is not None) is copied
    if life.syncs.copies is None:
        return
    life.syncs.copies.final(lambda: float("inf"))
    assert life.syncs.copies.warning is None
    assert (tmp_path / "copies" / "a.pt").read_text() == "weights"
    record = read_record(open_store(str(tmp_path / "copies")))
    assert record is not None and record.owner == (world.store.url, JOB)
    assert (record.submitted_at, record.resumed_from) == (world.state.submitted_at, "base-1")


class Copies:
    """Copies whose calls the test sees."""

    def __init__(self, did: list[str], warning: str | None = None) -> None:
        self._did, self.warning = did, warning

    def pause(self) -> None:
        self._did.append("pause copies")

    def final(self, until_s: Callable[[], float]) -> None:
        self._did.append(f"last copy {until_s():.0f}")

    def close(self) -> None:
        self._did.append("close copies")


class Pump:
    def __init__(self, did: list[str], name: str) -> None:
        self._did, self._name = did, name

    def drain(self, seconds: float, until_s: Any = None) -> bool:
        self._did.append(f"drain {self._name} {seconds:.0f}")
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        self._did.append(f"stop {self._name}")

    def tail(self, *_bounds: int) -> str:
        return ""


def test_copies_give_way_to_the_last_save(world: AgentWorld) -> None:
    life = a_life(world)
    did: list[str] = []
    sync = FakeSync()
    sync.hurry = lambda _seconds: did.append("hurry")  # type: ignore[attr-defined]
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    life.syncs.copies = Copies(did)  # type: ignore[assignment]
    ending = EndRequest("stop", "stop asked by me", 100.0)

    def end(*_: object) -> TrainingOutcome:
        did.append("save")
        return TrainingOutcome(0, None, 7.0, ending)

    life.training = SimpleNamespace(  # type: ignore[assignment]
        notify=lambda *_: time.monotonic() + 100.0, end=end, trained_s=5.0
    )
    phase_of(life).end(ending)
    assert did == ["hurry", "pause copies", "save"]


@pytest.mark.parametrize("warning", [None, "the newest checkpoint is not copied"])
def test_the_newest_checkpoint_is_copied_before_the_exit_and_a_failure_reaches_the_log(
    world: AgentWorld, warning: str | None
) -> None:
    life = a_life(world)
    did: list[str] = []
    life.pumps.logs = Pump(did, "logs")  # type: ignore[assignment]
    life.syncs.copies = Copies(did, warning)  # type: ignore[assignment]
    assert finish.flush(life, SUCCEEDED, ShutdownBudget(100.0, lambda: None, lambda: 0.0)) is SUCCEEDED
    again = ["drain logs 5"] if warning else []
    assert did == ["drain logs 50", "last copy 100", *again, "close copies", "stop logs"]


def test_a_machine_that_is_taken_away_leaves_the_copy_to_the_next_attempt(world: AgentWorld) -> None:
    life = a_life(world)
    did: list[str] = []
    life.syncs.copies = Copies(did)  # type: ignore[assignment]
    life.notices.poll = lambda: 1.0  # type: ignore[method-assign]
    finish.flush(life, SUCCEEDED, ShutdownBudget(100.0, lambda: 12.0, lambda: 0.0))
    assert did == ["close copies"]


def test_the_log_is_sent_again_when_it_names_saves_that_are_outputs(world: AgentWorld) -> None:
    life = a_life(world)
    did: list[str] = []
    life.pumps.logs = Pump(did, "logs")  # type: ignore[assignment]
    outputs = SimpleNamespace(final=lambda *_, **__: True, stored_saves=lambda: ["a.pt"], stored_loose=list)
    life.syncs.outputs = outputs  # type: ignore[assignment]
    finish.flush(life, SUCCEEDED, ShutdownBudget(100.0, lambda: None, lambda: 0.0))
    assert did == ["drain logs 50", "drain logs 5", "stop logs"]
    outputs.stored_saves = list
    did.clear()
    finish.flush(life, SUCCEEDED, ShutdownBudget(100.0, lambda: None, lambda: 0.0))
    assert did == ["drain logs 50", "stop logs"], "nothing was said"


def test_a_heartbeat_warns_of_copies_that_are_not_made(world: AgentWorld) -> None:
    life = a_life(world)
    life.syncs.copies = Copies([], "checkpoints are not copied: AccessDenied")  # type: ignore[assignment]
    beat = Heartbeat(beat=1, phase="training", at=utcnow(), interval_s=2.0)
    assert life.fill_heartbeat(beat).warnings == ("checkpoints are not copied: AccessDenied",)


def test_a_node_whose_training_survives_sends_the_copy_of_its_log_and_writes_no_exit(world: AgentWorld) -> None:
    life = a_life(world)
    did: list[str] = []
    life.pumps.logs = Pump(did, "logs")  # type: ignore[assignment]
    life.pumps.copy = Pump(did, "copy")  # type: ignore[assignment]
    life.runtime.close = lambda: did.append("close runtime")  # type: ignore[method-assign]
    life.heartbeat.stop = lambda timeout_s=5.0: did.append("stop heartbeat")  # type: ignore[method-assign]
    finish.leave_without_exit(life, TrainingSurvived("processes of the training cannot be ended (pid 7)"))
    assert did[-4:] == ["stop heartbeat", "close runtime", "drain copy 10", "stop copy"]
    assert not world.has_exit(life)
